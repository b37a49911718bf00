# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in CUDA's memory: what their protocols say of them, and copies from and to them.

Imported when the first such array appears. The library of CUDA's driver is opened by C then
(csrc/memory/cuda.c), and no context is ever made.
"""

from __future__ import annotations

import ctypes
import errno
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime import config, locks
from .._runtime.failures import from_c
from ..errors import RmaError
from .devices import DeviceArray, Landing

__all__ = ["device_array", "fetch", "fill", "landing", "put"]

_began: list[int] = []  # by how many forks the process had come to be that opened a device first
ON_CUDA = 2  # DLPack's number of the kind of device
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # codes of DLPack's types
# one of our own: what ctypes.pythonapi has is everybody's, with one signature
content = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_in_use: list[Any] = []  # arrays that a copy which has not ended in its time may still use


class _Facts(NamedTuple):
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None  # bytes
    writeable: bool
    stream: int | None = None  # whose work comes first, where the protocol leaves that to us


def _name(it: Any) -> str:
    return f"a {type(it).__module__}.{type(it).__qualname__} on a device"


def _of_capsule(it: Any, capsule: Any) -> _Facts:
    """Return what a DLManagedTensor begins with: DLPack's DLTensor."""
    at = ffi.cast("char *", content(capsule, b"dltensor"))
    facts = struct.unpack("QiiiBBHQQQ", bytes(ffi.buffer(at, 48)))
    address, _, _, ndim, code, bits, lanes, shape, strides, start = facts
    if code not in _KINDS or bits % 8 or lanes != 1:
        raise TypeError(f"{_name(it)} has elements that NumPy has no dtype for")
    dtype = np.dtype(f"{_KINDS[code]}{bits // 8}")
    dims = tuple(ffi.cast("int64_t *", shape)[0:ndim]) if ndim else ()
    steps = None
    if strides and ndim:
        steps = tuple(n * dtype.itemsize for n in ffi.cast("int64_t *", strides)[0:ndim])
    return _Facts(address + start, dims, dtype, steps, True)


def _of_interface(it: Any) -> _Facts:
    facts = it.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise TypeError(f"{_name(it)} has a mask, which nobody would see")
    strides = facts.get("strides")
    address, read_only = facts["data"]
    dtype = np.dtype(facts["typestr"])
    if dtype.kind == "V" and facts.get("descr"):  # records
        dtype = np.lib.format.descr_to_dtype(facts["descr"])
    where = (address or 0, tuple(facts["shape"]), dtype)
    steps = None if strides is None else tuple(strides)
    return _Facts(*where, steps, not read_only, facts.get("stream"))


def _check(it: Any, facts: _Facts) -> int:
    """Refuse what is not in one piece; return its bytes."""
    step = facts.dtype.itemsize
    nbytes = step * math.prod(facts.shape)
    for n, stride in zip(reversed(facts.shape), reversed(facts.strides or ()), strict=False):
        if n != 1 and nbytes and stride != step:
            text = f"{_name(it)} is not C-contiguous: cupy.ascontiguousarray(a) is, a.contiguous()"
            raise ValueError(text)
        step *= n
    return nbytes


def called(code: int, it: Any) -> None:
    """Raise what a call of C has returned; `it` is an array, or says where the call was."""
    if code:
        raise from_c(code, it if isinstance(it, str) else _name(it))


def _find(it: Any, facts: _Facts) -> int:
    """Return the number of the device that has the array; 0 of an empty one, which has none."""
    found, nbytes = ffi.new("int *"), _check(it, facts)
    if nbytes:
        where = ffi.cast("void *", facts.address)
        called(lib.rmaext_device_find(config.cuda_library(), where, nbytes, found), it)
    return int(found[0])


def opened(it: Any, number: int) -> Any:
    """Return C's handle of a device; `it` as for `called`."""
    if _began and _began[0] != locks.forks():  # else the array's own library says something
        text = "CUDA does not work in this process: one that was forked after CUDA began is to be "
        raise RmaError(
            errno.EREMOTEIO, f"{it if isinstance(it, str) else _name(it)}: {text}spawned"
        )
    device = ffi.new("rmaext_device **")
    called(lib.rmaext_device_open(config.cuda_library(), number, device), it)
    _began[:] = _began or [locks.forks()]
    return device[0]


@contextmanager
def _reached(it: Any) -> Iterator[tuple[_Facts, int, Any, Any]]:
    """Let what the array's stream has to do come before what is done in a stream of ours.

    Gives its facts, the device and its number, and the stream; they are good within.
    """
    stream, handle = ffi.new("rmaext_stream **"), ffi.new("uint64_t *")
    limit = int(config.timeout_seconds(None) * 1e9)
    if hasattr(type(it), "__dlpack_device__"):
        number = int(it.__dlpack_device__()[1])
        device = opened(it, number)
        called(lib.rmaext_stream_take(device, limit, stream, handle), it)
        capsule = it.__dlpack__(stream=handle[0])  # keeps it, until it is collected
        facts = _of_capsule(it, capsule)
        _find(it, facts)
    else:
        capsule, facts = None, _of_interface(it)
        number = _find(it, facts)
        device = opened(it, number)
        if facts.stream is not None:
            called(lib.rmaext_device_wait(device, facts.stream, limit), it)
        called(lib.rmaext_stream_take(device, limit, stream, handle), it)
    try:
        yield facts, number, device, stream[0]
    finally:
        if lib.rmaext_stream_give(stream[0]):
            _in_use.append((it, capsule))
        del capsule


def device_array(it: Any) -> DeviceArray:
    """Return where an array lies; all that its stream has to do is done. Blocking.

    Raises
    ------
    TypeError, ValueError
        Its elements have no dtype, or it is not C-contiguous.
    LibraryError, Unsupported, RmaError
        CUDA, or the array's context, is not there; or its memory was freed.
    """
    with _reached(it) as (facts, number, handle, stream):
        called(lib.rmaext_stream_copy(stream, 0, ffi.NULL, ffi.NULL, 0), it)
        nbytes = facts.dtype.itemsize * math.prod(facts.shape)
        # np.frombuffer takes none of no bytes, and looks at no element
        memory = ffi.buffer(ffi.cast("char *", facts.address), max(nbytes, facts.dtype.itemsize))
        flat = np.frombuffer(memory, facts.dtype)[: math.prod(facts.shape)]
        array = flat.reshape(facts.shape).view(DeviceArray)
        array.given, array.number, array.handle = it, number, handle
        array.flags.writeable = facts.writeable
        return array


def fetch(it: Any) -> NDArray[Any]:
    """Return a copy on the host, of what the array has once its stream's work is done. Blocking."""
    with _reached(it) as (facts, _, _, stream):
        made: NDArray[Any] = np.empty(facts.shape, facts.dtype)
        there = ffi.cast("void *", facts.address)
        called(lib.rmaext_stream_copy(stream, 0, there, ffi.from_buffer(made), made.nbytes), it)
        made.flags.writeable = facts.writeable  # see check_result
        return made


def landing(it: Any, keep: bool) -> Landing:
    """Return where a result for the array comes to; `keep`: with what the array has. Local."""
    if keep:
        return Landing.of(it, fetch(it))
    if hasattr(type(it), "__dlpack_device__"):
        opened(it, int(it.__dlpack_device__()[1]))
        capsule = it.__dlpack__(stream=-1)  # nobody waits: only the copy comes behind others
        facts = _of_capsule(it, capsule)
    else:
        capsule, facts = None, _of_interface(it)
    _find(it, facts)
    del capsule
    host = np.empty(facts.shape, facts.dtype)
    host.flags.writeable = facts.writeable  # see check_result
    return Landing.of(it, host)


def fill(it: Any, values: NDArray[Any]) -> None:
    """Copy values to an array of the same shape and dtype, behind its stream's work. Blocking."""
    with _reached(it) as (facts, _, _, stream):
        there = ffi.cast("void *", facts.address)
        called(lib.rmaext_stream_copy(stream, 1, there, ffi.from_buffer(values), values.nbytes), it)


def put(window: Any, it: Any, rank: Any, offset: int) -> bool:
    """Put an array, behind its stream's work, to memory of the same device. Blocking.

    It is complete then. False: nothing was done, as the memory there lies elsewhere.
    """
    if not isinstance(rank, (int, np.integer)):
        return False  # which the window says
    number = int(rank)
    if window._divided or not 0 <= number < len(window._sizes):
        return False
    if window._routes[number] != lib.RMAEXT_IPC:
        return False
    with _reached(it) as (facts, _, _, stream):
        if facts.dtype != window._dtype:
            return False
        place = window._place("put", number, offset, math.prod(facts.shape))
        what = ffi.new("struct rmaext_call *")
        what.kind, what.rank, what.offset = lib.RMAEXT_PUT, number, window._byte(place[1])
        what.operand = ffi.cast("void *", facts.address)
        what.count = place[2] * facts.dtype.itemsize
        code = lib.rmaext_stream_put(stream, window._handle, what)
        if code and code != -errno.EXDEV:
            raise from_c(code, window._where("put", place))
        return not code
