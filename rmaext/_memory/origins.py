# SPDX-License-Identifier: BSD-3-Clause
"""Arrays that operations read or write, where a provider wants them registered (FI_MR_LOCAL).

C keeps the memory registered that it is told of here, and is told in time when that goes:
an array's weak references are called before its memory is freed. Nor can it be moved
meanwhile: `ndarray.resize` refuses an array that has a weak reference. What has no such
owner (memory of an mmap, of bytes, of another library) C registers for one operation.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime import locks
from . import arrays
from .node import NO_BLOCK, Arena

__all__ = ["Origins"]

Array = NDArray[Any]


class Origins:
    """What one fabric's C side knows of this process's arrays."""

    # C copies those that are not longer
    least: ClassVar[int] = int(lib.RMAEXT_COPIED)

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        # of each owner by its id: what keeps it from being moved, where it was, and C's token
        self._known: dict[int, tuple[weakref.ref[Array], tuple[int, int], Any]] = {}
        self._lock = locks.lock()

    def know(self, buffer: Any, pinned: bool = False) -> bool:
        """Let C keep the memory of an array registered, if that is safe; local.

        Parameters
        ----------
        buffer : object
            That an operation is to use. What is short, or no array, is passed over.
        pinned : bool, optional
            It stays registered until the array goes, whatever else there is.
        """
        if not isinstance(buffer, np.ndarray) or buffer.nbytes <= self.least:
            return False
        owner = buffer
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        pointer = arrays.address(owner)
        place = int(ffi.cast("uintptr_t", pointer)), owner.nbytes
        key = id(owner)
        known = self._known.get(key)
        if known is not None and known[1] == place and known[2][0]:
            return True
        with self._lock:
            return self._enter(owner, key, pointer, place, pinned)

    def _enter(
        self, owner: Array, key: int, pointer: Any, place: tuple[int, int], pinned: bool
    ) -> bool:
        known = self._known.get(key)
        if known is not None:
            if known[1] == place and known[2][0]:
                return True  # another thread was faster
            self._gone(key, known[2], None)  # owner.data was assigned to
        if not owner.flags.c_contiguous and not owner.flags.f_contiguous:
            return False
        if not owner.flags.owndata and Arena.find(pointer, owner.nbytes) == NO_BLOCK:
            return False
        # Entered before C knows it: whatever a signal handler raises, or does, C forgets it.
        token = ffi.new("uint64_t *")
        reference = weakref.ref(owner, functools.partial(self._gone, key, token))
        entry = self._known[key] = reference, place, token
        if lib.rmaext_origin_know(self._fabric.live(), pointer, owner.nbytes, pinned, token):
            self._known.pop(key, None)
            return False
        if self._known.get(key) is not entry:  # a signal handler has put the same array
            self._forget(token)
        return True

    def _gone(self, key: int, token: Any, _: Any) -> None:
        """Deregister before the memory is freed."""
        self._forget(token)
        known = self._known.get(key)
        if known is not None and known[2] is token:
            self._known.pop(key, None)

    def _forget(self, token: Any) -> None:
        handle = self._fabric.handle
        if handle:  # else closing it has done so, or this is a forked child
            lib.rmaext_origin_forget(handle, token[0])
