# SPDX-License-Identifier: BSD-3-Clause
"""What RMAEXT_TRACE has written, merged: a timeline, a matrix, latencies and call sites."""
