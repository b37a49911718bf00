# SPDX-License-Identifier: BSD-3-Clause
"""Memory: NumPy arrays, pages, what ranks of a node map, and origins of operations."""
