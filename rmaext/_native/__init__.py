# SPDX-License-Identifier: BSD-3-Clause
"""The compiled part: how it is built, loaded, and refused where it cannot be."""
