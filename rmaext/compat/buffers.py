# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's specifications of buffers and of targets."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._memory.devices import device_of, is_mapped, of_cuda, out_of_reach
from .._native._lib import ffi
from .._native.cmethods import Layout
from ..errors import RmaError
from .datatypes import is_basic, layout_of
from .errors import error
from .numbers import integer, is_integral

__all__ = [
    "Part",
    "Target",
    "check_disp",
    "in_cuda",
    "memory_of",
    "pack",
    "part_of",
    "runs_of",
    "target_of",
    "unpack",
]

_CODES: dict[str, MPI.Datatype] = MPI._typedict
_NO_FORMAT = "B"
_NONE = np.empty(0, np.uint8)
_NO_BUFFERS = (MPI.IN_PLACE, MPI.BUFFER_AUTOMATIC)


def _memory_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory of this process, which the caller keeps, as an array."""
    return np.frombuffer(ffi.buffer(ffi.cast("char *", address), nbytes), np.uint8)


def pack(layout: Layout, base: int) -> NDArray[np.uint8]:
    """Return the data at an address in one piece; a copy, unless it is in one there.

    Corresponds to MPI_Pack.
    """
    if not layout.nbytes:
        return _NONE
    if layout.whole:
        return _memory_at(base + layout.first, layout.nbytes)
    data = np.empty(layout.nbytes, np.uint8)
    layout.copy(base, data, True)
    return data


def runs_of(layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return offset and length of each run of bytes."""
    offsets, lengths = layout.runs().T
    return offsets, lengths


def unpack(layout: Layout, base: int, data: NDArray[np.uint8]) -> None:
    """Write data in one piece to where the layout at an address has it.

    Corresponds to MPI_Unpack.
    """
    layout.copy(base, data, False)


@dataclass(frozen=True)
class Part:
    """Elements in the memory of this process.

    Attributes
    ----------
    owner : MPI.buffer or None
        Keeps the memory that the specification names; None if it names none.
    address : int
    count : int
        Elements.
    datatype : MPI.Datatype
    landing : Landing or None
        The memory, where it stands for an array on a device that is to get what is written here.
    limit : float or None
        Seconds for what lies on a device; None: RMAEXT_TIMEOUT.
    """

    owner: MPI.buffer | None
    address: int
    count: int
    datatype: MPI.Datatype
    landing: Any = None
    limit: float | None = None

    def land(self, layout: Layout) -> None:
        """Let an array on a device have what was written here; all else stays. Blocking."""
        if self.landing is None or not layout.nbytes:
            return
        from .._memory import cuda  # late: most programs have none

        host = np.asarray(self.landing).reshape(-1).view(np.uint8)
        runs: Any = layout.runs() + [self.address - host.ctypes.data, 0]
        cuda.fill(self.landing.given, host, self.limit, runs)

    def layout(self, whole: bool = False) -> Layout:
        """Return where they lie, from the address on; see `layout_of`."""
        return layout_of(self.datatype, whole).repeat(self.count)

    def data(self, layout: Layout) -> NDArray[np.uint8]:
        """Return the bytes of a layout in one piece: a copy, unless they are in one."""
        if not layout.whole:
            return pack(layout, self.address)
        if not layout.nbytes:
            return _NONE
        start, owner = self.address + layout.first, self.owner
        low = 0 if owner is None else start - owner.address
        if owner is None or low < 0 or low + layout.nbytes > owner.nbytes:
            return _memory_at(start, layout.nbytes)
        kept: Any = owner
        return np.frombuffer(kept, np.uint8, layout.nbytes, low)


@dataclass(frozen=True)
class Target:
    """Elements in a rank's window: `count` of a datatype from a displacement on."""

    disp: int
    count: int
    datatype: MPI.Datatype

    def layout(self, whole: bool = False) -> Layout:
        """Return where they lie, from the displacement on; see `layout_of`."""
        return layout_of(self.datatype, whole).repeat(self.count)


def _is_datatype(it: Any) -> bool:
    return isinstance(it, MPI.Datatype | str)


def _datatype(it: Any) -> MPI.Datatype:
    """Return a datatype, given as such or by its code."""
    if not isinstance(it, MPI.Datatype):
        try:
            return _CODES[it]
        except KeyError:
            raise KeyError(f"cannot map {it!r} to MPI datatype") from None
    if it == MPI.DATATYPE_NULL:
        raise error(MPI.ERR_TYPE, "message: datatype is null")
    return it


def _datatype_of(it: Any) -> MPI.Datatype:
    """Return the datatype of a buffer's elements."""
    if type(it) is np.ndarray and it.dtype.isnative and it.dtype.names is None:
        text = it.dtype.char
    else:
        text = _format(it)
    if text == _NO_FORMAT:
        return MPI.BYTE
    if text[:1] == ">":  # no machine of ours
        raise BufferError(f"format string {text!r} with non-native byte order")
    return _datatype(text[1:] if text[:1] in ("@", "<") else text)


def _format(it: Any) -> str:
    """Return the PEP 3118 format of a buffer."""
    try:
        return memoryview(it).format
    except TypeError:
        pass
    if hasattr(it, "__cuda_array_interface__"):
        return str(np.dtype(it.__cuda_array_interface__["typestr"]).char)
    return str(np.from_dlpack(it).dtype.char)


def memory_of(it: Any, readonly: bool) -> MPI.buffer:
    """Return the memory of what exports a buffer, or is an array that this process can read.

    Raises
    ------
    BufferError, TypeError
        It is read-only or in pieces; it is no buffer. As mpi4py does.
    MPI.Exception
        It lies on a device (ERR_BUFFER).
    """
    if (text := out_of_reach(it)) and not is_mapped(it):
        raise error(MPI.ERR_BUFFER, f"message: {text}")
    return MPI.buffer.frombuffer(it, readonly)


def in_cuda(it: Any, use: Callable[[Any], Any]) -> Any:
    """Return what `use` makes, given what handles arrays in CUDA's memory; None: it is elsewhere.

    Managed memory is the host's, too. What fails is ERR_BUFFER.
    """
    if device_of(it) != "cuda" or is_mapped(it):
        return None
    try:
        return use(of_cuda(it))
    except RmaError as exc:
        raise error(MPI.ERR_BUFFER, f"message: {exc}") from exc


def _memory(it: Any, readonly: bool) -> MPI.buffer:
    """Return the memory of a buffer."""
    if isinstance(it, np.ndarray) and not it.flags.c_contiguous and it.flags.f_contiguous:
        it = it.T
    return memory_of(it, readonly)


def _is_buffer(it: Any) -> bool:
    if isinstance(it, np.ndarray):
        return True
    if isinstance(it, list | tuple):
        return False
    if hasattr(it, "__dlpack__") or hasattr(it, "__cuda_array_interface__"):
        return True
    try:
        memoryview(it)
    except TypeError:
        return False
    except (ValueError, BufferError):  # it cannot be had as one; that is said later
        pass
    return True


def _unpacked(given: Any) -> tuple[Any, Any, Any, Any]:
    """Return buffer, count, displacement and datatype; None where it is not given."""
    if isinstance(given, list | tuple):
        if len(given) == 2:
            it, count = given
            if _is_datatype(count):
                return it, None, None, count
            datatype = None
        elif len(given) == 3:
            it, count, datatype = given
        elif len(given) == 4:
            return tuple(given)
        else:
            raise ValueError("message: expecting 2 to 4 items")
        if isinstance(count, list | tuple):
            count, disp = count
            return it, count, disp, datatype
        return it, count, None, datatype
    if not _is_buffer(given):
        raise TypeError("message: expecting buffer or list/tuple")
    return given, None, None, None


def _extent(datatype: MPI.Datatype, what: str) -> int:
    extent = layout_of(datatype).extent
    if extent <= 0:
        lower = datatype.Get_extent()[0]
        bounds = f"(lb:{lower}, ub:{lower + extent})"
        raise ValueError(f"message: cannot {what}, datatype extent {extent} {bounds}")
    return extent


def _infer(length: int, datatype: MPI.Datatype) -> int:
    """Return how many elements fill a buffer."""
    extent = _extent(datatype, "infer count")
    if length % extent:
        text = f"buffer length {length} is not a multiple of datatype extent {extent}"
        raise ValueError(f"message: cannot infer count, {text}")
    return length // extent


def part_of(given: Any, win: Any = None, readonly: bool = True) -> Part:
    """Return the elements that a specification means.

    Parameters
    ----------
    given : buffer, or list or tuple
        As mpi4py has it: ``[buffer, count, displacement, datatype]``, of which only
        the buffer is always needed; count and displacement may be a pair.
    win : Win, optional
        Whose time limit holds for what lies on a device; None: RMAEXT_TIMEOUT.
    readonly : bool
        Whether read-only memory will do.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py does.
    MPI.Exception
        The datatype is null (ERR_TYPE), the buffer MPI.IN_PLACE (ERR_BUFFER).
    """
    it, count, disp, datatype = _unpacked(given)
    limit = None if win is None else win._window.timeout

    def host(cuda: Any) -> Any:
        return cuda.fetch(it, limit) if readonly else cuda.landing(it, False, limit)

    copy = in_cuda(it, host)
    for what in _NO_BUFFERS:
        if it is what:
            raise error(MPI.ERR_BUFFER, f"message: {what!r} has no meaning here")
    if it is None or it is MPI.BOTTOM:
        owner: MPI.buffer | None = None
        address = length = 0
        datatype = _datatype(datatype)
    else:
        it = it if copy is None else copy
        owner = _memory(it, readonly)
        address, length = owner.address, owner.nbytes
        datatype = _datatype_of(it) if datatype is None else _datatype(datatype)
    if disp is not None:
        disp = operator.index(disp)
        if disp < 0:
            raise ValueError(f"message: negative displacement {disp}")
        first = disp * _extent(datatype, "handle displacement") if disp else 0
        if first > length:
            number = length // (first // disp)
            text = f"out of bounds, number of datatype entries {number}"
            raise ValueError(f"message: displacement {disp} {text}")
        address, length = address + first, length - first
    if count is not None:
        count = operator.index(count)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
        if count and it is None:
            raise ValueError(f"message: buffer is None but count is {count}")
    else:
        count = _infer(length, datatype) if length else 0
    _check_length(owner, length, count, datatype)
    if copy is not None and count and not is_basic(datatype):
        low, high = layout_of(datatype).repeat(count).span
        if address + low < copy.ctypes.data or address + high > copy.ctypes.data + copy.nbytes:
            raise ValueError("message: the datatype leads out of the array on a device")
    return Part(owner, address, count, datatype, copy, limit)


def _check_length(owner: Any, length: int, count: int, datatype: MPI.Datatype) -> None:
    """Refuse more elements of a predefined datatype than there are.

    A derived one may well lead out of the buffer that begins it.
    """
    if owner is not None and count and is_basic(datatype):
        extent = layout_of(datatype).extent
        if count * extent > length:
            text = f"buffer too small for requested count {count}, it has {length // extent}"
            raise ValueError(f"message: {text}")


def check_disp(disp: Any) -> int:
    """Return a displacement of a target; ERR_DISP if it is negative."""
    number = integer(disp, 64)
    if number < 0:
        raise error(MPI.ERR_DISP, f"target: displacement {number} is negative")
    return number


def target_of(given: Any, origin: Part) -> Target:
    """Return the elements of a window that a specification means.

    Parameters
    ----------
    given : int, list or tuple, optional
        As mpi4py has it: ``(displacement, count, datatype)``, of which those that
        are not given are those of the origin; the displacement is then 0.
    origin : Part

    Raises
    ------
    TypeError, ValueError, KeyError
        As mpi4py does.
    MPI.Exception
        ERR_DISP, ERR_COUNT, ERR_TYPE.
    """
    disp: Any = 0
    count: Any = origin.count
    datatype: Any = origin.datatype
    if given is None:
        pass
    elif is_integral(given):
        disp = given
    elif isinstance(given, list | tuple):
        if len(given) > 3:
            raise ValueError("target: expecting 3 items at most")
        disp, count, datatype = list(given) + [disp, count, datatype][len(given) :]
    else:
        raise ValueError("target: expecting integral or list/tuple")
    disp, count = check_disp(operator.index(disp)), operator.index(count)
    if count < 0:
        raise error(MPI.ERR_COUNT, f"target: count {count} is negative")
    return Target(disp, count, _datatype(datatype))
