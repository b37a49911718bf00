# SPDX-License-Identifier: BSD-3-Clause
"""New memory of a device, and arrays of other libraries over what lies there."""

from __future__ import annotations

import errno
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .._native._lib import ffi, lib
from .._native.owned import owned
from ..errors import Unsupported
from ..typing import ArrayLibrary
from . import cuda
from .cuda import ON_CUDA, content
from .devices import DeviceArray
from .node import sized
from .pages import Wish

__all__ = ["LIBRARIES", "array_of", "empty"]

_CHUNK = 1 << 24  # bytes of zeros that are copied at once
LIBRARIES: dict[ArrayLibrary, tuple[str, str]] = {  # module, and what takes an array of another
    "cupy": ("cupy", "asarray"),
    "torch": ("torch", "from_dlpack"),
    "numba": ("numba.cuda", "as_cuda_array"),
}


def _checked(index: Any) -> Any:
    """Return what names a part, and reads no element: a mask would, and so is a bool."""
    if isinstance(index, (slice, type(...), type(None))):
        return index
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
        raise TypeError("memory of a device: its parts are named by slices and integers")
    return int(index)


class DeviceMemory:
    """An array on a device of CUDA's, of which other libraries make theirs.

    `cupy.asarray(it)`, `torch.from_dlpack(it)` and `numba.cuda.as_cuda_array(it)` are arrays over
    the same memory, which goes with the last of them.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    def __init__(self, place: Any, number: int) -> None:
        self._place, self._number = place, number
        self.shape, self.dtype = place.shape, place.dtype

    def __repr__(self) -> str:
        return f"<rmaext.DeviceMemory on cuda:{self._number}: shape {self.shape}, {self.dtype}>"

    def __getitem__(self, key: Any) -> DeviceMemory:
        """Return a part, as slices and integers name it; without elements none is looked at."""
        items = key if isinstance(key, tuple) else (key,)
        items = tuple(map(_checked, items))
        whole = () if Ellipsis in items else (...,)  # else an element would be read
        return DeviceMemory(self._place[(*items, *whole)], self._number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        facts: dict[str, Any] = {**self._place.__array_interface__, "stream": None}
        return facts  # nothing of ours is under way in any stream

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_CUDA, self._number

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._place.__dlpack__()  # NumPy's own, which says that it is the host's
        device = ffi.cast("int32_t *", content(capsule, b"dltensor"))
        device[2], device[3] = self.__dlpack_device__()
        return capsule


def _number(device: str) -> int:
    kind, colon, number = device.partition(":")
    if kind != "cuda" or (
        colon and not (number.isascii() and number.isdigit() and len(number) < 9)
    ):
        raise ValueError(f"device={device!r}: must be 'cuda:0' or another number; 'cuda' is 0")
    return int(number or 0)


def empty(shape: int | tuple[int, ...], dtype: DTypeLike, device: str, wish: Wish) -> DeviceArray:
    """Return new memory of a device, filled with zeros. Local, blocking.

    What it is for the program (`given`) is an array of CuPy or PyTorch, if the program has
    imported that; else a `DeviceMemory`.

    Raises
    ------
    ValueError, TypeError
        There is no such kind of device, or that is no shape or dtype; or the host's pages are
        wished for.
    Unsupported
        The program has no context on the device.
    LibraryError, RmaError
        CUDA is not there, or fails; the device has no memory left.
    """
    where, number = f"device={device!r}", _number(device)
    if wish != Wish():
        raise ValueError(f"{where}: hint, fixed_address, lazy and hugepages are for the host's")
    dims, dtype, nbytes = sized(shape, dtype)
    try:
        handle = cuda.opened(where, number)
    except Unsupported:
        text = f"{where}: this process has no active context there: make one before, as "
        text += f"cupy.zeros(1) or torch.zeros(1, device={device!r}) does"
        raise Unsupported(errno.EOPNOTSUPP, text) from None
    address = ffi.new("void **")
    cuda.called(lib.rmaext_device_allocate(handle, max(nbytes, 1), address), where)
    free = functools.partial(lib.rmaext_device_free, handle)
    memory = ffi.buffer(owned(ffi.cast("char *", address[0]), free), max(nbytes, 1))
    flat = np.frombuffer(memory, np.uint8)[:nbytes]
    zeros = np.zeros(min(nbytes, _CHUNK), np.uint8)
    for start in range(0, nbytes, _CHUNK):
        some = flat[start : start + _CHUNK]
        with cuda.filling(DeviceMemory(some, number), zeros[: some.size]) as way:
            way.finish()
    place = flat.view(dtype).reshape(dims)
    array = place.view(DeviceArray)
    array.number, array.handle = number, handle
    array.given = DeviceMemory(place, number)
    for name in ("cupy", "torch"):
        if name in sys.modules:
            array.given = array_of(array.given, name)
            break
    return array


def array_of(it: Any, library: Any) -> Any:
    """Return an array of a library over the memory of an array on a device. Local.

    Raises
    ------
    ValueError
        There is none of that name.
    ImportError
        It is not installed.
    """
    if library not in LIBRARIES:
        raise ValueError(f"{library!r} must be one of {', '.join(map(repr, LIBRARIES))}")
    module, name = LIBRARIES[library]
    make: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return make(it)
