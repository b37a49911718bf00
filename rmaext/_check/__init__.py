# SPDX-License-Identifier: BSD-3-Clause
"""RMAEXT_CHECK: it finds a program's own mistakes, as docs/guides/check.md describes them."""
