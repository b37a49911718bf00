# SPDX-License-Identifier: BSD-3-Clause
"""Windows of each kind, and what all the objects of one window share."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ..errors import NotLocalError
from ..group import Group
from ..window import Window
from .attributes import Attributes, MpiWin
from .epochs import Epochs
from .errors import error

__all__ = ["State", "allocate", "allocate_shared", "create", "create_dynamic"]

Bytes = NDArray[np.uint8]

_NULL_HANDLE = MpiWin().handle
_PROC_NULL = int(MPI.PROC_NULL)


class State:
    """What all the objects of one window share.

    Attributes
    ----------
    window : rmaext.Window
        Of bytes.
    units : list of int
        Displacement unit of each rank, in bytes.
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
        self.epochs = Epochs()
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
        """Forget the handle."""
        del self._live[self.handle]
        self.attributes.release()



def create(memory: Any, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over memory of this rank's."""
    array = bytes_of(memory)
    window = Window(comm, array)
    return _state(window, MPI.WIN_FLAVOR_CREATE, unit, info, comm, memory)


def allocate(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory."""
    window = Window.allocate(comm, operator.index(size), np.uint8)
    return _state(window, MPI.WIN_FLAVOR_ALLOCATE, unit, info, comm)


def allocate_shared(size: int, unit: int, info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window over new memory that all ranks have mapped."""
    window = Window.shared(comm, operator.index(size), np.uint8)
    return _state(window, MPI.WIN_FLAVOR_SHARED, unit, info, comm)


def create_dynamic(info: MPI.Info, comm: MPI.Intracomm) -> State:
    """Return a window to which memory is attached later."""
    window = Window.dynamic(comm, np.uint8)
    return _state(window, MPI.WIN_FLAVOR_DYNAMIC, 1, info, comm, {})


def _state(
    window: Any, flavor: int, unit: int, info: MPI.Info, comm: MPI.Intracomm, keep: Any = None
) -> State:
    units = comm.allgather(unit)
    array = np.empty(0, np.uint8) if flavor == MPI.WIN_FLAVOR_DYNAMIC else window.local
    fixed = {
        MPI.WIN_BASE: address_of(array),
        MPI.WIN_SIZE: array.nbytes,
        MPI.WIN_DISP_UNIT: unit,
        MPI.WIN_CREATE_FLAVOR: flavor,
        MPI.WIN_MODEL: MPI.WIN_UNIFIED,
    }
    return State(window, units, Attributes(comm, info, fixed), keep)


def bytes_of(memory: Any) -> Bytes:
    """Return memory that somebody gave as bytes; it must be writeable."""
    if memory is None or isinstance(memory, MPI.BottomType):
        return np.empty(0, np.uint8)
    buffer = MPI.buffer.frombuffer(memory, readonly=False)
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def address_of(array: Bytes) -> int:
    """Return where an array is; 0 if it is empty."""
    return int(array.__array_interface__["data"][0]) if array.size else 0


def attach(state: State, memory: Any) -> None:
    """Attach memory to a dynamic window."""
    array = bytes_of(memory)
    if array.size:
        state.window.attach(array)
        state.keep[address_of(array)] = array


def detach(state: State, memory: Any) -> None:
    """Detach it."""
    address = address_of(bytes_of(memory))
    if address:
        state.window.detach(state.keep.pop(address, None))


def shared_query(state: State, rank: int) -> tuple[MPI.buffer, int]:
    """Return the memory of a rank, if it is mapped here, and its displacement unit."""
    number = operator.index(rank)
    sizes = state.window._sizes
    if number == _PROC_NULL:
        number = next((r for r, size in enumerate(sizes) if size), 0)
    if not 0 <= number < len(sizes):
        raise error(MPI.ERR_RANK, f"Shared_query: there is no rank {number}")
    try:
        view = state.window.peer_view(number)
    except NotLocalError:
        return MPI.buffer(), 1
    return MPI.buffer.frombuffer(view), state.units[number]
