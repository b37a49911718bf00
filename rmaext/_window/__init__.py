# SPDX-License-Identifier: BSD-3-Clause
"""Windows: each kind, how they are made, the memory they take, views and indexing."""
