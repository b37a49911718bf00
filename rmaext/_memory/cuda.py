# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in CUDA's memory: what their protocols say of them, and copies from and to them.

Imported when the first such array appears. The library of CUDA's driver is opened by C then
(csrc/memory/cuda_library.c), and no context is ever made.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import math
import struct
from functools import partial
from itertools import starmap, tee
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime import config, locks
from .._runtime.failures import from_c
from .._runtime.reports import copying, until_copied
from ..errors import RmaError
from .devices import DeviceArray, Landing

__all__ = ["Passage", "device_array", "fetch", "fill", "get", "landing", "put", "wait"]

_began: list[int] = []  # by how many forks the process had come to be that opened a device first
ON_CUDA = 2  # DLPack's number of the kind of device
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # codes of DLPack's types
# one of our own: what ctypes.pythonapi has is everybody's, with one signature
content = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _is_inherited() -> bool:
    """Return whether it is not this process that opened a device, but one it was forked from."""
    return bool(_began) and _began[0] != locks.forks()


class _Kept:
    """An array that copies use, or may use yet if these were given up."""

    given = False  # whether the stream that they are in is C's again

    def __init__(self, device: Any, it: Any) -> None:
        self.device, self.it = device, it
        self.capsule: Any = None  # of DLPack; keeps the memory, until it is collected


_in_use: set[_Kept] = set()


def _let_go() -> None:
    """Keep no array any longer on whose device nothing goes on that was given up."""
    for kept in list(_in_use):  # and others add more meanwhile
        if kept.given and not _is_inherited() and not lib.rmaext_device_late(kept.device):
            _in_use.discard(kept)


@atexit.register
def _pin() -> None:
    """Keep what is in use yet, or comes to be, from the end of the interpreter, too."""
    _let_go()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_in_use))


class _Facts(NamedTuple):
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None  # bytes
    writeable: bool
    stream: int | None = None  # whose work comes first, where the protocol leaves that to us


def _by_dlpack(it: Any) -> bool:
    """Return whether DLPack says where it lies; else the other protocol, which has all dtypes."""
    kind = type(it)
    return hasattr(kind, "__dlpack_device__") and not getattr(kind, "has_all_dtypes", False)


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
    """Return the number of the device that has the array; of an empty one what it says, or 0."""
    found, nbytes = ffi.new("int *"), _check(it, facts)
    if nbytes:
        where = ffi.cast("void *", facts.address)
        called(lib.rmaext_device_find(config.cuda_library(), where, nbytes, found), it)
    elif hasattr(type(it), "__dlpack_device__"):
        return int(it.__dlpack_device__()[1])
    return int(found[0])


def opened(it: Any, number: int) -> Any:
    """Return C's handle of a device; `it` as for `called`."""
    if _is_inherited():  # else the array's own library says something
        text = "CUDA does not work in this process: one that was forked after CUDA began is to be "
        raise RmaError(
            errno.EREMOTEIO, f"{it if isinstance(it, str) else _name(it)}: {text}spawned"
        )
    device = ffi.new("rmaext_device **")
    called(lib.rmaext_device_open(config.cuda_library(), number, device), it)
    _began[:] = _began or [locks.forks()]
    return device[0]


class Passage:
    """A stream of ours, in which a copy comes behind what the array's stream has to do.

    Nothing that it does waits, but `begin`, which comes first, `wait` and `finish`. It is given
    back by `close`; `with` does both.

    Attributes
    ----------
    facts : _Facts
        Of the array; good from `begin` until `close`.
    number : int
        Of its device.
    device : cdata
        C's, of the device.
    """

    _is_begun = False

    def __init__(self, it: Any, limit: float | None = None) -> None:
        self.it = it
        self.stream: Any = None
        self._limit = int((config.timeout_seconds(None) if limit is None else limit) * 1e9)
        if _by_dlpack(it):
            self.number = int(it.__dlpack_device__()[1])
        else:
            self.facts = _of_interface(it)
            self.number = _find(it, self.facts)
        self.device = opened(it, self.number)
        self._take()

    def _take(self) -> None:
        stream = ffi.new("rmaext_stream **")
        take = (self.device, self._limit, stream)
        self._kept = _Kept(self.device, self.it)
        # All in one step of C's: where a signal handler raises it is not taken, or given back.
        taken, codes = tee(starmap(lib.rmaext_stream_take, [take]))
        own = partial(ffi.gc, destructor=partial(lib.rmaext_stream_give))
        try:
            self.stream = next(map(own, map(stream.__getitem__, taken)))
        except IndexError:  # as the code is not 0
            called(next(codes), self.it)
        _in_use.add(self._kept)  # where a handler raises before, __del__ closes it

    def begin(self, ns: int) -> bool:
        """Wait for so long at most until a stream is free; return whether copies may come now.

        These come behind the work of the array's stream. Errors are as of `wait`.
        """
        if self._is_begun:
            return True
        handle = ffi.new("uint64_t *")
        if not self._has_ended(lib.rmaext_stream_handle(self.stream, ns, handle)):
            return False
        try:
            if _by_dlpack(self.it):
                self._kept.capsule = self.it.__dlpack__(stream=int(handle[0]))
                self.facts = _of_capsule(self.it, self._kept.capsule)
                _find(self.it, self.facts)
            elif self.facts.stream is not None:
                self.behind(self.facts.stream)
        except BaseException:
            self.close()
            raise
        self._is_begun = True
        return True

    def _called(self, code: int) -> None:
        """Raise what a call of C has returned. After RmaTimeout one may try the same again."""
        if code:
            error = from_c(code, _name(self.it))  # before the calls of `close`, which may fail too
            if code != -errno.ETIMEDOUT:
                self.close()
            raise error

    def behind(self, handle: int) -> None:
        """Let what comes next come behind what another stream has to do."""
        self._called(lib.rmaext_stream_behind(self.stream, handle))

    def copy(self, into: bool, host: NDArray[Any], runs: NDArray[Any] | None = None) -> None:
        """Begin a copy to the array, or from it; `host` stays as it is until `close`.

        Runs are rows of offset and length, in bytes; None: the whole.

        It is begun once, however often this is called, unless it was refused: to call C and to
        note that it has begun is one step, so no signal handler comes between.
        """
        there = ffi.cast("void *", self.facts.address)
        here = ffi.from_buffer(host)
        rows = np.array([[0, host.nbytes]]) if runs is None else np.ascontiguousarray(runs)
        self._runs = rows = rows.astype(np.int64, copy=False)
        which = ffi.from_buffer("int64_t[]", rows), len(rows)
        copy = partial(lib.rmaext_stream_copy, self.stream, into, there, here, *which)
        until_begun = vars(self).setdefault("_copying", iter(copy, 0))
        self._called(next(until_begun, 0))

    def wait(self, ns: int) -> bool:
        """Wait for so long at most; return whether all has ended.

        It is RmaTimeout after the limit, and what was begun goes on: one may wait again.
        """
        return self._has_ended(lib.rmaext_stream_wait(self.stream, ns))

    def _has_ended(self, code: int) -> bool:
        if code != lib.RMAEXT_PENDING:
            self._called(code)
        return not code

    def finish(self) -> None:
        """Wait until all has ended. A signal handler may raise here."""
        until_copied(self.number, partial(self.wait, lib.RMAEXT_SLICE))

    def fetched(self) -> NDArray[Any]:
        """Return a copy of the array on the host. Blocking."""
        made: NDArray[Any] = np.empty(self.facts.shape, self.facts.dtype)
        self.copy(False, made)
        self.finish()
        made.flags.writeable = self.facts.writeable  # see check_result
        return made

    def close(self) -> None:
        """Give the stream back. What goes on there may use the array yet."""
        stream = self.stream
        if stream is None:
            return
        if _is_inherited():  # CUDA does not work here, and C's lock may be held for ever
            ffi.gc(stream, None)
            self.stream = None
            return
        # One who was interrupted here, by a signal handler, begins anew in __del__.
        ffi.release(stream)  # once
        self._kept.given, self.stream = True, None
        _let_go()

    def __del__(self) -> None:
        if getattr(self, "stream", None) is not None:  # else it was not made, or is closed
            self.close()

    def __enter__(self) -> Passage:
        try:
            until_copied(self.number, partial(self.begin, lib.RMAEXT_SLICE))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def device_array(it: Any, limit: float | None = None) -> DeviceArray:
    """Return where an array lies; all that its stream has to do is done. Blocking.

    Raises
    ------
    TypeError, ValueError
        Its elements have no dtype, or it is not C-contiguous.
    LibraryError, Unsupported, RmaError
        CUDA, or the array's context, is not there; or its memory was freed.
    """
    with Passage(it, limit) as way:
        way.finish()
        facts = way.facts
        nbytes = facts.dtype.itemsize * math.prod(facts.shape)
        # np.frombuffer takes none of no bytes, and looks at no element
        memory = ffi.buffer(ffi.cast("char *", facts.address), max(nbytes, facts.dtype.itemsize))
        flat = np.frombuffer(memory, facts.dtype)[: math.prod(facts.shape)]
        array = flat.reshape(facts.shape).view(DeviceArray)
        array.given, array.number, array.handle = it, way.number, way.device
        array.flags.writeable = facts.writeable
        return array


def wait(place: DeviceArray, limit: float | None = None) -> None:
    """Wait for the device's legacy default stream. Blocking."""
    if place.handle is not None:
        with Passage(place.given, limit) as way:
            way.behind(1)
            way.finish()


def fetch(it: Any, limit: float | None = None) -> NDArray[Any]:
    """Return a copy on the host, of what the array has once its stream's work is done. Blocking.

    `limit` is a window's time limit; by default RMAEXT_TIMEOUT, here and below.
    """
    with Passage(it, limit) as way:
        return way.fetched()


def landing(it: Any, keep: bool, limit: float | None = None) -> Landing:
    """Return where a result for the array comes to; `keep`: with what the array has. Local."""
    if keep:
        with Passage(it, limit) as way:
            return Landing.of(it, way.number, way.fetched(), limit)
    if _by_dlpack(it):
        number = int(it.__dlpack_device__()[1])
        opened(it, number)
        capsule = it.__dlpack__(stream=-1)  # nobody waits: only the copy comes behind others
        facts = _of_capsule(it, capsule)
        _find(it, facts)
    else:
        capsule, facts = None, _of_interface(it)
        number = _find(it, facts)
    del capsule
    host = np.empty(facts.shape, facts.dtype)
    host.flags.writeable = facts.writeable  # see check_result
    return Landing.of(it, number, host, limit)


def fill(
    it: Any,
    values: NDArray[Any],
    limit: float | None = None,
    runs: NDArray[np.int64] | None = None,
) -> None:
    """Copy values to an array of the same shape and dtype, behind its stream's work. Blocking.

    Where there are runs, as `Passage.copy` has them, all else stays.
    """
    with Passage(it, limit) as way:
        way.copy(True, values, runs)
        way.finish()


def put(window: Any, it: Any, rank: Any, offset: Any) -> bool:
    """Put an array, behind its stream's work, to memory of the same device. Blocking.

    It is complete then. False: nothing was done, as the memory there lies elsewhere.
    """
    return _across(window, "put", it, rank, offset, None)


def get(window: Any, it: Any, rank: Any, offset: Any, count: Any) -> bool:
    """Fill an array, behind its stream's work, from memory of the same device; as `put`."""
    if count is not None and not isinstance(count, (int, np.integer)):
        return False  # which the window says
    return _across(window, "get", it, rank, offset, count)


def _across(window: Any, call: str, it: Any, rank: Any, offset: Any, count: Any) -> bool:
    if not isinstance(rank, (int, np.integer)):
        return False  # which the window says
    number = int(rank)
    if window._divided or not 0 <= number < len(window._sizes):
        return False
    if window._routes[number] != lib.RMAEXT_IPC:
        return False
    with Passage(it, window._timeout) as way:
        facts, size = way.facts, math.prod(way.facts.shape)
        if facts.dtype != window._dtype:
            return False
        what = ffi.new("struct rmaext_call *")
        what.kind = lib.RMAEXT_PUT
        what.operand = at = ffi.cast("void *", facts.address)
        if call == "get":
            if not facts.writeable or count not in (None, size):
                return False
            what.kind, what.operand, what.result = lib.RMAEXT_GET, ffi.NULL, at
        place = window._place(call, number, offset, size)
        what.rank, what.offset = number, window._byte(place[1])
        what.count = size * facts.dtype.itemsize
        with copying(way.number):
            while True:  # see tests/support/jumps.py
                code = lib.rmaext_stream_across(way.stream, window._handle, what, lib.RMAEXT_SLICE)
                if code != lib.RMAEXT_PENDING:  # after a slice a signal handler may raise
                    break
        if code and code != -errno.EXDEV:
            raise from_c(code, window._where(call, place))
        return not code
