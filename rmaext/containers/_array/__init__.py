# SPDX-License-Identifier: BSD-3-Clause
"""`Array`: which rank has what (blocks), ghosts, files; array is what users call."""

from .array import Array

__all__ = ["Array"]
