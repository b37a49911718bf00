# SPDX-License-Identifier: BSD-3-Clause
"""Windows of each kind, and what all the objects of one window share."""

from __future__ import annotations

import functools
import itertools
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._comm.group import Group
from .._memory import node
from .._native._lib import lib
from .._runtime import lifetime
from .._runtime.failures import of_all
from .._window.shared import SharedWindow
from .._window.window import Window
from ..errors import NotLocalError, RmaError
from .attributes import Attributes, MpiWin
from .buffers import in_cuda, memory_of
from .epochs import Epochs
from .errors import RAISED, error, translation
from .first_locks import FirstLocks
from .numbers import integer

__all__ = ["State", "allocate", "allocate_shared", "create", "create_dynamic"]

Bytes = NDArray[np.uint8]
T = TypeVar("T")

_NEW = (MPI.WIN_FLAVOR_ALLOCATE, MPI.WIN_FLAVOR_SHARED)
_NULL_HANDLE = MpiWin().handle
_PROC_NULL = int(MPI.PROC_NULL)
_ARGUMENTS = struct.Struct("<4q")  # displacement unit, alignment, gaps, code of an error
_LEAST_ALIGNED, _MOST_ALIGNED = 64, 1 << 30
_NOTHING: Bytes = np.empty(0, np.uint8)  # memory that has no address


class CreatedWindow(Window[Any]):
    """One over memory of the program's: a kind of its own in the record, for its hints."""


class State:
    """What all the objects of one window share.

    Attributes
    ----------
    window : rmaext.Window
        Of bytes.
    units : list of int
        Displacement unit of each rank, in bytes.
    near : set of int
        Ranks on which an operation is complete when it returns.
    epochs : Epochs
    attributes : Attributes
    handle : int
    keep : object
        Memory that the user gave, or the window of MPI's that has it.
    over : bool
        MPI is finalized, or this process about to exit, or forked: there is nothing to free.
    """

    _handles = itertools.count(1)
    _live: dict[int, State] = {}  # noqa: RUF012

    def __init__(self, window: Any, units: list[int], attributes: Attributes, keep: Any) -> None:
        self.window, self.units, self.attributes, self.keep = window, units, attributes, keep
        self.near = frozenset(
            rank for rank in window._group.here if window._routes[rank] != lib.RMAEXT_FABRIC
        )
        new = attributes.fixed[MPI.WIN_CREATE_FLAVOR] in _NEW
        shared = attributes.fixed[MPI.WIN_CREATE_FLAVOR] == MPI.WIN_FLAVOR_SHARED
        self.epochs = Epochs(window, FirstLocks(window) if new else None, lazy=not shared)
        self.handle = next(self._handles)
        self._live[self.handle] = self
        self.over = False
        lifetime.on_end(self)

    def _forget(self) -> None:
        """After the end of MPI, or in a forked child."""
        self.over = True

    @classmethod
    def of(cls, handle: int) -> State | None:
        """Return what a handle stands for; None for that of WIN_NULL."""
        if handle == _NULL_HANDLE:
            return None
        state = cls._live.get(handle)
        if state is None:
            raise error(MPI.ERR_WIN, f"{handle} is not the handle of a window")
        return state

    def end(self) -> None:
        """Let go of what the window has, which is closed."""
        self._live.pop(self.handle, None)  # it may go on where a signal has ended it
        self.attributes.release()
        if isinstance(self.keep, MpiWin) and self.keep:
            self.keep.Free()
        self.keep = None


class Given(NamedTuple, Generic[T]):
    """What the ranks have given, of which the ranks know that all is right."""

    own: T
    units: list[int]
    alignment: int  # that a hint asks for, the largest
    gaps: bool  # a hint lets parts be where each rank likes them


def create(memory: Any, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over memory of this rank's."""
    given = _agree(comm, info, unit, lambda: _window_memory(memory))
    window = _translate(lambda: CreatedWindow(comm, given.own, proc_null=True))
    return _state(window, MPI.WIN_FLAVOR_CREATE, given.units, info, comm, memory)


def allocate(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory."""
    given = _agree(comm, info, unit, lambda: _size(size))

    def make() -> Window[Any]:
        window: Window[Any] = Window.__new__(Window)
        array = functools.partial(node.aligned, given.own, max(given.alignment, _LEAST_ALIGNED))
        window._create(comm, array, None, None, None, True)
        return window

    window = _translate(make)
    return _state(window, MPI.WIN_FLAVOR_ALLOCATE, given.units, info, comm)


def allocate_shared(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory that all ranks have mapped."""
    given = _agree(comm, info, unit, lambda: _size(size))
    lies = max(given.alignment, mmap.PAGESIZE) if given.gaps else given.alignment, given.gaps
    real = None

    def make() -> Any:
        nonlocal real
        try:
            return SharedWindow._make(comm, given.own, np.uint8, None, True, *lies)
        except NotLocalError:  # on all ranks
            # routes may be forced by network: MPI's own memory, and rmaext's operations
            real = MpiWin.Allocate_shared(given.own, given.units[comm.rank], info, comm)
            return Window(comm, _bytes(_of_mpi(real, comm.rank, given.own)), proc_null=True)

    window = _translate(make)
    return _state(window, MPI.WIN_FLAVOR_SHARED, given.units, info, comm, real)


def _of_mpi(real: MPI.Win, rank: int, nbytes: int) -> MPI.buffer:
    """Return the memory of a rank in a shared window of MPI's, where it is mapped here.

    MPICH says nothing of where a part of no bytes would lie: behind the parts before it.
    """
    address = real.Shared_query(rank)[0].address
    if not address:
        parts = [real.Shared_query(r)[0] for r in range(real.group_size)]
        before = [part for part in parts[:rank] if part.nbytes]
        if before:
            address = before[-1].address + before[-1].nbytes
        else:
            address = next((part.address for part in parts if part.nbytes), 0)
    return MPI.buffer.fromaddress(address, nbytes)


def create_dynamic(info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window to which memory is attached later."""
    given = _agree(comm, info, 1, lambda: None)
    window = _translate(lambda: Window.dynamic(comm, np.uint8, proc_null=True))
    return _state(window, MPI.WIN_FLAVOR_DYNAMIC, given.units, info, comm, {})


def _size(size: int) -> int:
    number = integer(size, 64)
    if number < 0:
        raise error(MPI.ERR_SIZE, f"the size is {number}")
    return number


def _agree(comm: MPI.Intracomm, info: MPI.Info, unit: int, prepare: Callable[[], T]) -> Given[T]:
    """Check what each rank has given; return the own, and what all have to know.

    Collective. If anything is wrong on one rank, all ranks raise.
    """
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm must be an MPI.Intracomm, not {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise error(MPI.ERR_COMM, "the communicator is MPI.COMM_NULL")
    own: BaseException | None = None
    given = alignment = 1
    code = gaps = 0
    try:
        given = integer(unit)
        if not isinstance(info, MPI.Info):
            raise TypeError(f"info must be an MPI.Info, not {type(info).__name__}")
        if not 0 < given < 1 << 31:
            raise error(MPI.ERR_DISP, f"the displacement unit is {given}")
        alignment, gaps = _alignment(info), _hint(info, "alloc_shared_noncontig") == "true"
        prepared = prepare()
    except Exception as exc:
        own = exc
        code = exc.error_class if isinstance(exc, MPI.Exception) else MPI.ERR_ARG

    def gather() -> Sequence[bytes]:
        group = Group.of(comm)
        with group.collective("creation of a compat.Win"):
            return group.gather(_ARGUMENTS.pack(given, alignment, gaps, code))

    received = [_ARGUMENTS.unpack(record) for record in _translate(gather)]
    if own is not None:
        raise of_all(own)  # each in its own words
    for rank, (*_, other) in enumerate(received):
        if other:
            raise error(other, f"rank {rank}: wrong arguments")
    units, alignments, all_gaps, _ = zip(*received, strict=True)
    return Given(prepared, list(units), max(alignments), any(all_gaps))


def _hint(info: MPI.Info, key: str) -> str | None:
    return None if info == MPI.INFO_NULL else info.Get(key)


def _alignment(info: MPI.Info) -> int:
    """Return the alignment that is asked for; 1 without that hint, or where it makes no sense.

    Others map shared memory at whole pages: of that, a larger one holds on rank 0 only.
    """
    text = _hint(info, "mpi_minimum_memory_alignment") or ""
    number = int(text) if text.isascii() and text.isdigit() else 1
    return number if number.bit_count() == 1 and number <= _MOST_ALIGNED else 1


def _translate(make: Callable[[], T]) -> T:
    try:
        return make()
    except RAISED as exc:
        raise translation(exc) or exc from exc


def _state(
    window: Any,
    flavor: int,
    units: list[int],
    info: MPI.Info,
    comm: MPI.Intracomm,
    keep: Any = None,
) -> State:
    # epochs, and locks with them, belong to the process
    window._holder = _process
    # not `local`, which on a device is no NumPy array
    array = _NOTHING if flavor == MPI.WIN_FLAVOR_DYNAMIC else window._array
    fixed = {
        MPI.WIN_BASE: address_of(array),
        MPI.WIN_SIZE: array.nbytes,
        MPI.WIN_DISP_UNIT: units[comm.rank],
        MPI.WIN_CREATE_FLAVOR: flavor,
        MPI.WIN_MODEL: MPI.WIN_UNIFIED,
    }
    return State(window, units, Attributes(comm, info, fixed), keep)


def _process() -> int:
    """Return who holds a lock, whichever thread asks."""
    return 1


def bytes_of(memory: Any) -> Bytes:
    """Return memory that somebody gave as bytes; it must be writeable."""
    if memory is None or isinstance(memory, MPI.BottomType):
        return _NOTHING
    buffer = memory_of(memory, readonly=False)
    return _bytes(buffer) if len(buffer) else _NOTHING


def _window_memory(memory: Any) -> Bytes:
    """As `bytes_of`, also of an array in CUDA's memory, which stays there."""
    array: Bytes | None = in_cuda(memory, lambda cuda: cuda.device_array(memory))
    if array is None:
        return bytes_of(memory)
    if not array.flags.writeable:
        raise BufferError("the array on a device is read-only")
    return array.reshape(-1).view(np.uint8)


def _bytes(buffer: Any) -> Bytes:
    return np.ndarray(len(buffer), np.uint8, buffer) if buffer.address else _NOTHING


def address_of(array: Bytes) -> int:
    """Return where an array is; 0 if it is nowhere."""
    return 0 if array is _NOTHING else int(array.__array_interface__["data"][0])


def attach(state: State, memory: Any) -> None:
    """Attach memory to a dynamic window."""
    kept = _attached(state)
    array = bytes_of(memory)
    if array.size:
        address = address_of(array)
        before = kept.get(address)
        kept[address] = array  # first: what is attached can be detached, whatever signals come
        try:
            state.window.attach(array)
        except RmaError:
            if before is None:
                del kept[address]
            else:
                kept[address] = before
            raise


def detach(state: State, memory: Any) -> None:
    """Detach it."""
    kept = _attached(state)
    address = address_of(bytes_of(memory))
    if not address:
        return
    if address not in kept:
        raise error(MPI.ERR_RMA_ATTACH, f"nothing that begins at {address:#x} is attached")
    state.window.detach(kept[address])
    del kept[address]


def _attached(state: State) -> dict[int, Bytes]:
    if state.attributes.fixed[MPI.WIN_CREATE_FLAVOR] != MPI.WIN_FLAVOR_DYNAMIC:
        raise error(MPI.ERR_RMA_FLAVOR, "the window is not dynamic")
    kept: dict[int, Bytes] = state.keep
    return kept


def shared_query(state: State, rank: int) -> tuple[MPI.buffer, int]:
    """Return the memory of a rank, if it is mapped here, and its displacement unit."""
    number = integer(rank)
    sizes = state.window._sizes
    if number == _PROC_NULL:
        number = next((r for r, size in enumerate(sizes) if size), -1)
        if number < 0:
            return MPI.buffer(), 0
    if not 0 <= number < len(sizes):
        raise error(MPI.ERR_RANK, f"Shared_query: there is no rank {number}")
    unit = state.units[number]
    if isinstance(state.keep, MpiWin):
        return _of_mpi(state.keep, number, sizes[number]), unit
    own = number == state.window._group.rank and state.attributes.fixed[MPI.WIN_BASE]
    if own:  # by whatever route it is reached
        return MPI.buffer.frombuffer(state.window.local), unit
    try:
        return MPI.buffer.frombuffer(state.window.peer_view(number)), unit
    except NotLocalError:
        return MPI.buffer(), unit if not sizes[number] else 1
