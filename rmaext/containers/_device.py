# SPDX-License-Identifier: BSD-3-Clause
"""This rank's memory on a device, as containers copy parts of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import Window

__all__ = ["OnDevice"]


class OnDevice:
    """Parts of the own memory of a window: `memory[key]` is one, `part[...] = values` fills it."""

    def __init__(self, win: Window[Any]) -> None:
        self._win, self.dtype = win, win.dtype

    def __getitem__(self, key: Any) -> _Part:
        return _Part(self._win, key)


class _Part:
    def __init__(self, win: Window[Any], key: Any) -> None:
        self._win, self._rank = win, win.comm.rank
        self._key = (self._rank, *key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._win[self._key], dtype)  # always a copy

    def __setitem__(self, _: Any, values: Any) -> None:
        self._win[self._key] = np.asarray(values)
        self._win.flush(self._rank)
