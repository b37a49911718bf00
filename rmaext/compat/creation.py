# SPDX-License-Identifier: BSD-3-Clause
"""Windows of each kind, and what all the objects of one window share."""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._comm.group import Group
from .._native._lib import lib
from .._runtime.failures import of_all
from .._window.window import Window
from ..errors import NotLocalError, RmaError
from .attributes import Attributes, MpiWin
from .epochs import Epochs
from .errors import RAISED, error, translation
from .first_locks import FirstLocks

__all__ = ["State", "allocate", "allocate_shared", "create", "create_dynamic", "together"]

Bytes = NDArray[np.uint8]
T = TypeVar("T")

_NEW = (MPI.WIN_FLAVOR_ALLOCATE, MPI.WIN_FLAVOR_SHARED)
_NULL_HANDLE = MpiWin().handle
_PROC_NULL = int(MPI.PROC_NULL)
_ARGUMENTS = struct.Struct("<qq")  # displacement unit, code of an error


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
        Memory that the user gave.
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


def together(comm: MPI.Intracomm, make: Callable[[], T]) -> T:
    """Bracket a creation, which is several collective calls.

    What only this rank raises between them, as a signal handler does, is told to the others.
    """
    try:
        return make()
    except BaseException as exc:
        group = Group.known(comm)
        agreed = isinstance(exc, MPI.Exception) or "of_all_ranks" in exc.__dict__
        if group is not None and not agreed:
            group.meetings.give_up(exc, "creation of a compat.Win")
        raise


def create(memory: Any, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over memory of this rank's."""
    array, units = _agree(comm, info, unit, lambda: bytes_of(memory))
    window = _translate(lambda: Window(comm, array, proc_null=True))
    return _state(window, MPI.WIN_FLAVOR_CREATE, units, info, comm, memory)


def allocate(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory."""
    nbytes, units = _agree(comm, info, unit, lambda: _size(size))
    window = _translate(lambda: Window.allocate(comm, nbytes, np.uint8, proc_null=True))
    return _state(window, MPI.WIN_FLAVOR_ALLOCATE, units, info, comm)


def allocate_shared(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory that all ranks have mapped."""
    nbytes, units = _agree(comm, info, unit, lambda: _size(size))
    real = None

    def make() -> Any:
        nonlocal real
        try:
            return Window.shared(comm, nbytes, np.uint8, proc_null=True)
        except NotLocalError:  # on all ranks
            # routes may be forced by network: MPI's own memory, and rmaext's operations
            real = MpiWin.Allocate_shared(nbytes, unit, info, comm)
            return Window(comm, bytes_of(real.tomemory()), proc_null=True)

    window = _translate(make)
    return _state(window, MPI.WIN_FLAVOR_SHARED, units, info, comm, real)


def create_dynamic(info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window to which memory is attached later."""
    _, units = _agree(comm, info, 1, lambda: None)
    window = _translate(lambda: Window.dynamic(comm, np.uint8, proc_null=True))
    return _state(window, MPI.WIN_FLAVOR_DYNAMIC, units, info, comm, {})


def _size(size: int) -> int:
    number = operator.index(size)
    if number < 0:
        raise error(MPI.ERR_SIZE, f"the size is {number}")
    return number


def _agree(
    comm: MPI.Intracomm, info: MPI.Info, unit: int, prepare: Callable[[], T]
) -> tuple[T, list[int]]:
    """Check what each rank has given; return the own, and all displacement units.

    Collective. If anything is wrong on one rank, all ranks raise.
    """
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm must be an MPI.Intracomm, not {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise error(MPI.ERR_COMM, "the communicator is MPI.COMM_NULL")
    own: BaseException | None = None
    given = 1
    code = 0
    try:
        given = operator.index(unit)
        if not isinstance(info, MPI.Info):
            raise TypeError(f"info must be an MPI.Info, not {type(info).__name__}")
        if not 0 < given < 1 << 31:
            raise error(MPI.ERR_DISP, f"the displacement unit is {given}")
        prepared = prepare()
    except Exception as exc:
        own = exc
        code = exc.error_class if isinstance(exc, MPI.Exception) else MPI.ERR_ARG

    def gather() -> Sequence[bytes]:
        group = Group.of(comm)
        with group.collective("creation of a compat.Win"):
            return group.gather(_ARGUMENTS.pack(given, code))

    received = [_ARGUMENTS.unpack(record) for record in _translate(gather)]
    if own is not None:
        raise of_all(own)  # each in its own words
    for rank, (_, other) in enumerate(received):
        if other:
            raise error(other, f"rank {rank}: wrong arguments")
    return prepared, [its for its, _ in received]


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
    array = np.empty(0, np.uint8) if flavor == MPI.WIN_FLAVOR_DYNAMIC else window.local
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
        return np.empty(0, np.uint8)
    buffer: Any = MPI.buffer.frombuffer(memory, readonly=False)
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def address_of(array: Bytes) -> int:
    """Return where an array is; 0 if it is empty."""
    return int(array.__array_interface__["data"][0]) if array.size else 0


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
    number = operator.index(rank)
    sizes = state.window._sizes
    if number == _PROC_NULL:
        number = next((r for r, size in enumerate(sizes) if size), -1)
        if number < 0:
            return MPI.buffer(), 0
    if not 0 <= number < len(sizes):
        raise error(MPI.ERR_RANK, f"Shared_query: there is no rank {number}")
    unit = state.units[number]
    if not sizes[number]:
        return MPI.buffer(), unit  # of nothing there is no address, as in MPICH
    if isinstance(state.keep, MpiWin):
        return state.keep.Shared_query(number)[0], unit
    try:
        return MPI.buffer.frombuffer(state.window.peer_view(number)), unit
    except NotLocalError:
        return MPI.buffer(), 1
