# SPDX-License-Identifier: BSD-3-Clause
"""`Array`: blocks say which rank has what, held holds it; then patches, reductions, array.

ghosts and files are what array uses; array is what users call.
"""

from .array import Array

__all__ = ["Array"]
