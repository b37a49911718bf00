# SPDX-License-Identifier: BSD-3-Clause
"""C objects that go with the last reference to them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from ._lib import ffi

__all__ = ["owned"]

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = [ctypes.py_object], None


def owned(pointer: Any, free: Callable[[Any], object], root: object = None) -> Any:
    """Return a pointer that frees what it leads to when nothing refers to the pointer any more.

    The root outlives that call. `free` is C's, or a partial of it: functions of Python have
    lost the names that they use when the interpreter ends.

    The pointer of `ffi.gc` does so earlier, where the garbage collector finds it in a cycle:
    before the program's own `__del__` of objects in that cycle, which may use a window and its
    memory. The collector never sees this one, which refers to nothing in a cycle itself.
    """
    last = functools.partial(free)
    vars(last)["root"] = root  # it goes when the call has returned
    made = ffi.gc(pointer, last)
    _untrack(made)
    return made
