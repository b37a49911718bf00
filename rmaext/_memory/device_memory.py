# SPDX-License-Identifier: BSD-3-Clause
"""New memory of a device, and arrays of other libraries over what lies there."""

from __future__ import annotations

import errno
import functools
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._native._lib import ffi, lib
from .._native.owned import owned
from ..errors import RmaError, Unsupported
from ..typing import ArrayLibrary
from . import arrays, cuda
from .cuda import ON_CUDA, content
from .devices import DeviceArray
from .node import sized
from .pages import Wish

__all__ = [
    *("LIBRARIES", "DeviceMemory", "array_of", "copied", "device_name", "empty"),
    *("located", "neighbours", "opened", "over"),
]

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
    has_all_dtypes : bool
        That the protocol of CUDA's arrays has; DLPack has no records, texts and dates.
    """

    has_all_dtypes = True

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


def opened(device: Any) -> tuple[int, Any]:
    """Return number and C's handle of a device that a program names. Local.

    Raises
    ------
    ValueError
        There is no such kind of device.
    Unsupported
        The program has no context on it.
    LibraryError, RmaError
        CUDA, or the device, is not there.
    """
    where, number = f"device={device!r}", _number(str(device))
    try:
        return number, cuda.opened(where, number)
    except Unsupported:
        text = f"{where}: this process has no active context there: make one before, as "
        text += f"cupy.zeros(1) or torch.zeros(1, device={device!r}) does"
        raise Unsupported(errno.EOPNOTSUPP, text) from None


def over(place: DeviceArray) -> Any:
    """Return an array for the program over such a place. Local.

    It is one of CuPy or PyTorch, if the program has imported that and it has such elements; else
    a `DeviceMemory`.
    """
    made = DeviceMemory(place, place.number)
    for name in ("cupy", "torch"):
        if name in sys.modules:
            # what they raise where they have no such dtype
            with suppress(TypeError, ValueError, BufferError, RuntimeError):
                return array_of(made, name)
            break
    return made


def _new(nbytes: int, device: str) -> Any:
    """Return so many bytes of undefined contents."""
    number, handle = opened(device)
    address = ffi.new("void **")
    code = lib.rmaext_device_allocate(handle, max(nbytes, 1), address)
    cuda.called(code, f"device={device!r}")
    free = functools.partial(lib.rmaext_device_free, handle)
    memory = ffi.buffer(owned(ffi.cast("char *", address[0]), free), max(nbytes, 1))
    flat = np.frombuffer(memory, np.uint8)[:nbytes].view(DeviceArray)
    flat.number, flat.handle = number, handle
    return flat


def copied(values: NDArray[Any], device: str, limit: float | None = None) -> Any:
    """Return an array of new memory of a device, with these values. Local, blocking.

    `limit` is as for `cuda.fill`, here and below.

    Raises
    ------
    LibraryError, RmaError
        As `empty`.
    """
    flat = _new(values.nbytes, device)
    if values.nbytes:
        bytes_ = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        cuda.fill(DeviceMemory(flat, flat.number), bytes_, limit)
    return over(flat.view(values.dtype).reshape(values.shape))


def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike,
    device: str,
    wish: Wish,
    limit: float | None = None,
) -> DeviceArray:
    """Return new memory of a device, filled with zeros. Local, blocking.

    What it is for the program (`given`) says `over`.

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
    _number(str(device))
    if wish != Wish():
        text = f"device={device!r}: hint, fixed_address, lazy and hugepages are for the host's"
        raise ValueError(text)
    dims, dtype, nbytes = sized(shape, dtype)
    flat = _new(nbytes, device)
    zeros = np.zeros(min(nbytes, _CHUNK), np.uint8)
    for start in range(0, nbytes, _CHUNK):
        some = flat[start : start + _CHUNK]
        cuda.fill(DeviceMemory(some, flat.number), zeros[: some.size], limit)
    place = flat.view(dtype).reshape(dims)
    array: DeviceArray = place.view()
    array.given = over(place)
    return array


def device_name(place: DeviceArray) -> bytes:
    """Return which device it is, by a name that all processes have for it. Local.

    b"" if no other process of the node can map that memory.
    """
    made = ffi.gc(ffi.new("struct rmaext_export *"), lib.rmaext_device_unexport)
    code = lib.rmaext_device_export(place.handle, arrays.address(place), place.nbytes, made)
    return b"" if code else bytes(ffi.buffer(made.device))


def located(it: Any, limit: float | None) -> DeviceArray:
    """Return what `cuda.device_array` does. Blocking.

    Memory of ours without bytes says itself on which device it is: CUDA knows of none there.
    """
    if isinstance(it, DeviceMemory) and not it._place.nbytes:
        place: DeviceArray = it._place
        return place
    return cuda.device_array(it, limit)


def neighbours(rank: int, nbytes: int, device: str, window: Any) -> DeviceArray:
    """Return another rank's memory, which the window has mapped and keeps so. Local."""
    number, handle = opened(device)
    at = lib.rmaext_device_memory(window._handle, rank)
    if at == ffi.NULL:
        text = f"device={device!r}: the memory of rank {rank} is not mapped any more: has the "
        text += "device no memory left?"
        raise RmaError(errno.ENOMEM, text, rank=rank)
    memory = ffi.buffer(ffi.cast("char *", at), nbytes)
    place = np.frombuffer(memory, np.uint8).view(DeviceArray)
    place.number, place.handle, place.given = number, handle, window
    return place


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
