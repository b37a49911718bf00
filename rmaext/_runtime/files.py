# SPDX-License-Identifier: BSD-3-Clause
"""Small files, without pathlib, whose import takes longer than that of a third of this package."""

from __future__ import annotations

__all__ = ["text_of"]


def text_of(path: str, errors: str = "strict") -> str:
    """Return what is in a file; OSError as of open()."""
    with open(path, errors=errors) as file:
        return file.read()
