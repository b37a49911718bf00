# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on the devices of RMAEXT_CUDA, or of the tests' libcuda (device.h), for tests.

An `Array` speaks DLPack and `__cuda_array_interface__` as CuPy's and torch's do. All is done by
functions of CUDA's driver, so that it works on a GPU as well.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "device" / "libcuda.so.1"
cuda = ctypes.CDLL(os.environ.get("RMAEXT_CUDA", str(LIBRARY)))
SIMULATED = hasattr(cuda, "device_fail")  # by the tests' libcuda
if SIMULATED:
    cuda.device_view.restype = ctypes.c_void_p
    cuda.device_fail.restype = cuda.device_hang.restype = None

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ON_CUDA = 2  # kDLCUDA
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode


class CudaError(RuntimeError):
    """What a call of the driver returned."""

    def __init__(self, function: str, number: int) -> None:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(number, ctypes.byref(name))
        super().__init__(f"{function}: {(name.value or b'?').decode()}")
        self.number = number


def call(function: str, *args: Any) -> None:
    """Call the driver. Plain numbers are of 64 bits, as addresses and sizes are."""
    words = [ctypes.c_uint64(arg) if isinstance(arg, int) else arg for arg in args]
    if number := getattr(cuda, function)(*words):
        raise CudaError(function, number)


def get(kind: Any, function: str, *args: Any) -> Any:
    """Call what returns something by its first argument."""
    out = kind()
    call(function, ctypes.byref(out), *args)
    return out.value


def begin(device: int = 0) -> int:
    """Make the primary context of a device current in this thread, and return it."""
    call("cuInit", 0)
    context = get(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
    call("cuCtxSetCurrent", context)
    return int(context)


_queued: dict[int, list[Any]] = {}  # what was launched and may run yet, by stream
_spare: dict[int, list[int]] = {}  # pinned memory that nothing uses, by its size


def _pinned(nbytes: int) -> int:
    """Return memory of the host for an asynchronous copy; to make it may wait for the device."""
    if _spare.get(nbytes):
        return _spare[nbytes].pop()
    return int(get(ctypes.c_uint64, "cuMemHostAlloc", nbytes, 0))


class Stream:
    """A stream: of its own unless `handle` is one (1: the legacy default stream)."""

    def __init__(self, handle: int | None = None, *, blocking: bool = False) -> None:
        self.owned = handle is None
        if handle is None:
            flags = 0 if blocking else 1
            handle = get(ctypes.c_void_p, "cuStreamCreateWithPriority", flags, 0)
        self.handle: int = handle

    def synchronize(self) -> None:
        done = _queued.pop(self.handle, [])
        call("cuStreamSynchronize", self.handle)
        for _, pinned in done:  # not before: ctypes frees functions that nobody holds
            for nbytes, address in pinned:
                _spare.setdefault(nbytes, []).append(address)

    def launch(self, kernel: Callable[..., object], *arrays: Array) -> None:
        """Queue kernel(*copies): NumPy arrays of what the arrays have then, written back after it.

        All of it is queued at once: the kernel runs when the stream comes to it.
        """
        pinned = [(a.nbytes, _pinned(a.nbytes)) for a in arrays]
        copies = [a._over(address) for a, (_, address) in zip(arrays, pinned, strict=True)]

        def run(_: object) -> None:
            kernel(*copies)

        function = HOST_FUNCTION(run)
        _queued.setdefault(self.handle, []).append((function, pinned))
        for a, (_, address) in zip(arrays, pinned, strict=True):
            call("cuMemcpyDtoHAsync_v2", address, a.address, a.nbytes, self.handle)
        call("cuLaunchHostFunc", self.handle, function, None)
        for a, (_, address) in zip(arrays, pinned, strict=True):
            call("cuMemcpyHtoDAsync_v2", a.address, address, a.nbytes, self.handle)

    def close(self) -> None:
        self.synchronize()
        if self.owned:
            call("cuStreamDestroy_v2", self.handle)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    """DLManagedTensor."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = (
    ("tensor", DLTensor),
    ("context", ctypes.c_void_p),
    ("deleter", DELETER),
)

_lent: dict[int, Any] = {}  # what a consumer has, by the address of its Managed

CAPSULE_END = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@DELETER
def _give_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


# of our own: functions of ctypes.pythonapi are everybody's, with one signature
_ASK = (ctypes.c_void_p, ctypes.c_char_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, *_ASK)(("PyCapsule_IsValid", ctypes.pythonapi))
_content = ctypes.PYFUNCTYPE(ctypes.c_void_p, *_ASK)(("PyCapsule_GetPointer", ctypes.pythonapi))


@CAPSULE_END
def _capsule_end(capsule: int) -> None:
    """A capsule that nobody has consumed still has its first name."""
    if _is_valid(capsule, b"dltensor"):
        _lent.pop(_content(capsule, b"dltensor"), None)


class Array:
    """A C-contiguous array on the current context's device, of undefined contents.

    Its work is queued on `stream`; without one, on the legacy default stream.
    """

    def __init__(self, shape: Any, dtype: Any, stream: Stream | None = None) -> None:
        self.shape = tuple(np.atleast_1d(shape).tolist())
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.stream = stream or Stream(1)
        self.device = get(ctypes.c_int, "cuCtxGetDevice")
        self.context = ctypes.c_void_p(get(ctypes.c_void_p, "cuCtxGetCurrent"))
        self.address = self._allocated(max(self.nbytes, 1))

    def _allocated(self, nbytes: int) -> int:
        return int(get(ctypes.c_uint64, "cuMemAlloc_v2", nbytes))

    @classmethod
    def from_numpy(cls, values: Any, stream: Stream | None = None) -> Array:
        values = np.ascontiguousarray(values)
        new = cls(values.shape, values.dtype, stream)
        call("cuMemcpyHtoDAsync_v2", new.address, values.ctypes.data, new.nbytes, new.stream.handle)
        return new

    def to_numpy(self) -> Any:
        """Return a copy, behind what is queued on the array's stream."""
        out = np.empty(self.shape, self.dtype)
        where = self.stream.handle
        call("cuMemcpyDtoHAsync_v2", out.ctypes.data, self.address, self.nbytes, where)
        return out

    def launch(self, kernel: Callable[..., object]) -> None:
        self.stream.launch(kernel, self)

    def free(self) -> None:
        call("cuMemFree_v2", self.address)

    def _over(self, address: int) -> Any:
        """Return an array of the host of the same kind, over memory there."""
        raw = (ctypes.c_char * self.nbytes).from_address(address)
        return np.frombuffer(raw, self.dtype).reshape(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "stream": self.stream.handle,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Work on `stream` comes behind the array's; -1: nobody waits."""
        stream = stream or 1  # None is the legacy default stream
        if stream not in (-1, self.stream.handle):
            call("cuCtxPushCurrent_v2", self.context)  # this thread may have none
            event = get(ctypes.c_void_p, "cuEventCreate", 2)
            call("cuEventRecord", event, self.stream.handle)
            call("cuStreamWaitEvent", stream, event, 0)
            call("cuEventDestroy_v2", event)
            get(ctypes.c_void_p, "cuCtxPopCurrent_v2")
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        code, bits = CODES[self.dtype.kind], self.dtype.itemsize * 8
        tensor = DLTensor(
            self.address, ON_CUDA, self.device, len(shape), code, bits, 1, shape, None, 0
        )
        managed = Managed(tensor, None, _give_back)
        _lent[ctypes.addressof(managed)] = managed, shape, self
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        return new(ctypes.c_void_p(ctypes.addressof(managed)), b"dltensor", _capsule_end)


class Pooled(Array):
    """An array of cudaMallocAsync's pool."""

    def _allocated(self, nbytes: int) -> int:
        address = get(ctypes.c_uint64, "cuMemAllocAsync", nbytes, self.stream.handle)
        call("cuStreamSynchronize", self.stream.handle)
        return int(address)

    def free(self) -> None:
        call("cuMemFreeAsync", self.address, self.stream.handle)


class Expandable(Array):
    """An array over blocks of cuMemCreate, one after another, as torch's expandable segments are.

    Its first 64 bytes are in the first block, the others in the following ones.
    """

    handles = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _allocated(self, nbytes: int) -> int:
        kind = struct.pack("iiiiQQ", 1, self.handles, 1, self.device, 0, 0)  # CUmemAllocationProp
        size = get(ctypes.c_size_t, "cuMemGetAllocationGranularity", kind, 0)
        self.block, self.count = size, 1 - (64 - nbytes) // size
        # more is reserved than is ever mapped
        self.base = get(ctypes.c_uint64, "cuMemAddressReserve", (self.count + 1) * size, 0, 0, 0)
        for at in range(self.base, self.base + self.count * size, size):
            handle = get(ctypes.c_uint64, "cuMemCreate", size, kind, 0)
            call("cuMemMap", at, size, 0, handle, 0)
            call("cuMemRelease", handle)
        access = struct.pack("iii", 1, self.device, 3)  # CUmemAccessDesc
        call("cuMemSetAccess", self.base, self.count * size, access, 1)
        return int(self.base + size - 64)

    def free(self) -> None:
        for number in range(self.count):
            call("cuMemUnmap", self.base + number * self.block, self.block)
        call("cuMemAddressFree", self.base, (self.count + 1) * self.block)


class Unexported(Expandable):
    """The same, of blocks that were made without descriptors."""

    handles = 0
