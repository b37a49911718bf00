# SPDX-License-Identifier: BSD-3-Clause
"""Communicators of the mode's own, on which clocks go from rank to rank."""

from __future__ import annotations

import errno
import pickle
import time
import weakref
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from .._comm import collective
from .._comm.columns import Split
from .._native._lib import ffi
from .._runtime import mpi_progress
from ..errors import RmaTimeout
from .clock import Times, clock
from .report import report

__all__ = ["Clocks", "all_of", "gathered", "hidden", "of_windows", "ranks_of", "world"]

_PATIENCE = 10.0  # seconds
_LONG = 60.0  # seconds that ranks may need to compare what they did
_KEY: list[int] = []
_out_of_step: list[MPI.Intracomm] = []  # of which some rank has given up a collective
_of_windows: weakref.WeakKeyDictionary[Any, MPI.Intracomm] = weakref.WeakKeyDictionary()


class Clocks:
    """A duplicate of MPI.COMM_WORLD, and the clocks that came with messages.

    It is made without waiting, since the import of a module is no place to wait for others.
    """

    def __init__(self) -> None:
        self._able = MPI.Is_initialized() and not MPI.Is_finalized()
        if self._able:
            self._comm, self._made = MPI.COMM_WORLD.Idup()
        self._ready = False
        self._came: dict[tuple[int, int], deque[Times]] = defaultdict(deque)
        self._sent: list[tuple[Any, Any]] = []

    @property
    def comm(self) -> MPI.Intracomm | None:
        """The duplicate; None if not all ranks have imported rmaext."""
        if not self._able:
            report.note("MPI was initialised after rmaext was imported: no messages are followed")
            return None
        if not self._ready:
            end = time.monotonic() + _PATIENCE
            while not self._made.Test():
                if time.monotonic() > end:
                    report.note(
                        "some rank has not imported rmaext: no messages of MPI are followed"
                    )
                    return None
                mpi_progress.nap(1e-4)
            self._ready = True
        return self._comm

    def send(self, target: int, tag: int) -> None:
        """Send the clock ahead of a message. Not blocking."""
        comm = self.comm
        if comm is not None:
            data = np.append(clock().release(), tag)
            self._sent = [it for it in self._sent if not it[0].Test()]
            self._sent.append((comm.Isend([data, MPI.INT64_T], target), data))

    def receive(self, source: int, tag: int) -> None:
        """Take over the clock of a message that has come."""
        comm = self.comm
        if comm is None:
            return
        end = time.monotonic() + _PATIENCE / 10
        while not self._came[source, tag]:
            if comm.Iprobe(source):
                data = np.empty(clock().now.size + 1, np.int64)
                comm.Recv([data, MPI.INT64_T], source)
                self._came[source, int(data[-1])].append(data[:-1])
            elif time.monotonic() > end:
                report.note(f"a message of rank {source} was sent by a call that is not followed")
                return
            else:
                mpi_progress.nap(1e-5)
        clock().acquire(self._came[source, tag].popleft())


_own: list[Clocks] = []


def world() -> Clocks:
    """Return those of this process."""
    if not _own:
        _own.append(Clocks())
    return _own[0]


def hidden(comm: Any, make: bool = True) -> MPI.Intracomm | None:
    """Return a communicator of the same ranks. Collective, where there is none yet.

    None for intercommunicators, for a rank alone, and for processes of another MPI.COMM_WORLD.
    """
    if comm.Is_inter() or comm.size == 1:
        return None
    if not _KEY:
        _KEY.append(MPI.Comm.Create_keyval(delete_fn=_free))
    found: MPI.Intracomm | None = comm.Get_attr(_KEY[0])
    if found is None and make and MPI.UNDEFINED not in ranks_of(comm):
        found = duplicate(comm)
        comm.Set_attr(_KEY[0], found)
    return found


def duplicate(comm: Any) -> MPI.Intracomm:
    """Return a new communicator of the same ranks, without the attributes of the other."""
    group = comm.Get_group()
    made = MPI.Intracomm(MPI.Intracomm(comm).Create(group))
    group.Free()
    return made


def of_windows(comm: Any, group: Any) -> MPI.Intracomm | None:
    """Return what the windows of a communicator use, also when the program has freed that.

    Collective, for the first window. Raises as `gathered`.
    """
    if comm.size == 1:
        return None
    if group not in _of_windows:
        made = collective.complete(group.comm.Idup, _Others(group))[0]
        made.Set_errhandler(MPI.ERRORS_RETURN)
        _of_windows[group] = made
    return _of_windows[group]


def _free(comm: Any, keyval: int, found: Any) -> None:
    with suppress(MPI.Exception):
        if not MPI.Is_finalized():
            found.Free()


class _Anyone:
    """What ends a wait for ranks of which nothing is known; see `collective.Waiter`."""

    def __init__(self, most: float) -> None:
        self._most, self._end = most, time.monotonic() + most

    def fabric(self) -> Any:
        """Return no endpoint."""
        return ffi.NULL

    def look(self) -> None:
        """Raise if a rank has not come."""
        if time.monotonic() > self._end:
            raise RmaTimeout(errno.ETIMEDOUT, f"some rank has not come within {self._most:g} s")


class _Others(_Anyone):
    """The same for the other ranks of a window."""

    def __init__(self, group: Any) -> None:
        super().__init__(_LONG)
        self._group = group

    def fabric(self) -> Any:
        """Return the C endpoint to serve meanwhile."""
        return self._group.meetings.fabric()

    def look(self) -> None:
        """Raise if a rank is lost, or has not come."""
        self._group.watch.look(self._group._network)
        super().look()


def _exchange(comm: MPI.Intracomm, what: Any, waiter: _Anyone) -> list[Any]:
    whole = collective.allgather(comm, pickle.dumps(what), waiter)
    return [pickle.loads(record) for record in Split(*whole)]


def gathered(comm: MPI.Intracomm, group: Any, what: Any) -> list[Any]:
    """Return what each rank brings. Collective; the ranks are those of the group.

    Raises
    ------
    PeerLostError, RmaTimeout
        Nothing can be exchanged over the communicator any more.
    """
    if comm in _out_of_step:
        raise RmaTimeout(errno.ETIMEDOUT, "some rank has not come to compare another window")
    try:
        return _exchange(comm, what, _Others(group))
    except BaseException:
        _out_of_step.append(comm)
        raise


def all_of(comm: MPI.Intracomm, what: Any) -> list[Any]:
    """Return what each rank brings, or only this one if some rank does not come. Collective."""
    try:
        return _exchange(comm, what, _Anyone(_PATIENCE))
    except RmaTimeout:
        return [what]


def ranks_of(comm: Any) -> list[int]:
    """Return the ranks of a communicator, or of the other group of one, in MPI.COMM_WORLD."""
    group = comm.Get_remote_group() if comm.Is_inter() else comm.Get_group()
    everyone = MPI.COMM_WORLD.Get_group()
    found = MPI.Group.Translate_ranks(group, list(range(group.size)), everyone)
    group.Free()
    everyone.Free()
    return list(found)
