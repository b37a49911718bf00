# SPDX-License-Identifier: BSD-3-Clause
"""Windows for other jobs: tickets, grants, and the windows attached by them."""
