# SPDX-License-Identifier: BSD-3-Clause
"""MPI collectives that can be interrupted, and that notice what goes on meanwhile.

The only collectives used are nonblocking; C waits for them in slices, and serves the
network meanwhile.
"""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import starmap
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from .._native._lib import ffi, lib
from .._runtime import lifetime, locks, mpi_progress
from .._runtime.reports import Patience
from .._runtime.steps import FIRST, Step

__all__ = ["allgather", "complete", "duplicate", "finish", "recorded"]


class Waiter(Protocol):
    """What goes on while MPI is waited for."""

    def fabric(self) -> Any:
        """Return the C endpoint that is to be served; NULL if there is none."""

    def look(self) -> None:
        """Look whether it is in vain to wait on, after each slice; raises then."""


SLICE = 20_000_000  # ns
GRACE = 1.0  # seconds that the last message of a peer may take after it has left

_FITS = 124  # bytes: a window's record of one dimension, with a key of 8
_SLOT = np.dtype([("length", np.int32), ("record", np.uint8, _FITS)])

# Collectives under way, with their buffers; those interrupted stay for ever.
_running: dict[int, list[Any]] = {}


# Duplications that a signal has interrupted: duplicate, request, whom to tell, and why.
_late: list[tuple[MPI.Comm, MPI.Request, Callable[..., None], BaseException]] = []
_finishing = locks.lock()


_COME = (
    "for ranks that have not come. Do all ranks of the communicator make this window, and run "
    "under `python -m rmaext run`, or import rmaext? `python -m rmaext why` names those that do not"
)


class Nobody:
    """Looks for nothing; says that it waits."""

    def __init__(self) -> None:
        self._patience = Patience()

    def fabric(self) -> Any:
        """There is none."""
        return ffi.NULL

    def look(self) -> None:
        """Tell where the program is, of a wait that lasts."""
        self._patience.look(FIRST, lambda: None, hint=_COME)


@contextmanager
def recorded(comm: int, step: Step) -> Iterator[None]:
    """Have the record say that this rank is in a meeting by MPI; `comm`: a `Group.record_id`."""
    lib.rmaext_record_meets(comm, step.word())
    try:
        yield
    except BaseException:
        lib.rmaext_record_met(-errno.ECANCELED)
        raise
    lib.rmaext_record_met(0)


def complete(
    call: Callable[..., Any], waiter: Waiter, *buffers: Any, entry: list[Any] | None = None
) -> Any:
    """Start a nonblocking collective and wait for it; return what the call returned.

    `entry`: an empty list, which gets the buffers, and what the call returned.
    """
    # MPI uses the buffers until the request ends, whatever a signal handler
    # raises here: extend() over starmap() runs the call without a bytecode between
    # it and the place where its request is kept.
    entry = [] if entry is None else entry
    entry.append(buffers)
    _running[id(entry)] = entry
    entry.extend(starmap(call, [buffers]))
    started = entry[1]
    request = started[1] if isinstance(started, tuple) else started
    where, quiet, fabric = mpi_progress.address_of(request), ffi.new("int64_t *"), waiter.fabric()
    try:
        while True:
            if not lib.rmaext_mpi_wait(where, fabric, quiet, SLICE):
                break
            waiter.look()
            finish()
        request.Test()  # it is done, or raises MPI's error
    except BaseException:
        lib.rmaext_record_waited(lib.RMAEXT_IN_MPI, -errno.EINTR)
        raise
    finally:
        if fabric:
            lib.rmaext_fabric_leave(fabric)
    del _running[id(entry)]
    return started


def allgather(comm: MPI.Comm, record: bytes, waiter: Waiter) -> tuple[Any, Any]:
    """Return every rank's record, of any length, one after another; and the lengths.

    One collective where all fit into a slot, as nearly all do; a second one otherwise.
    """
    own = len(record).to_bytes(4, sys.byteorder) + record[:_FITS].ljust(_FITS, b"\0")
    slots = np.empty(comm.size, _SLOT)
    complete(comm.Iallgather, waiter, [own, MPI.BYTE], [slots, MPI.BYTE])
    lengths = slots["length"].copy()
    if lengths.max() <= _FITS:
        return slots["record"][np.arange(_FITS) < lengths[:, np.newaxis]], lengths
    starts = np.zeros(comm.size + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    everything = bytearray(int(starts[-1]))
    target = [everything, (lengths, starts[:-1]), MPI.BYTE]
    complete(comm.Iallgatherv, waiter, [record, MPI.BYTE], target)
    return everything, lengths


def has_begun(entry: list[Any]) -> bool:
    """Whether `complete` has begun the collective that it was to enter there."""
    return len(entry) > 1


def duplicate(
    comm: MPI.Comm, late: Callable[[MPI.Comm, BaseException], None], entry: list[Any]
) -> MPI.Comm:
    """Return a private duplicate, whose errors are raised. Collective; `entry`: as of `complete`.

    If a signal interrupts this, the others may wait for this rank on the duplicate: `late`
    is called with it once it is there, by a thread where threads may call MPI.
    """
    try:
        with recorded(comm.size, Step(FIRST, 0, 0)):  # the ranks have no name for it yet
            dup: MPI.Comm = complete(comm.Idup, Nobody(), entry=entry)[0]
        dup.Set_errhandler(MPI.ERRORS_RETURN)
    except BaseException as exc:
        if has_begun(entry):
            _late.append((*entry[1], late, exc))
            if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
                threading.Thread(target=_finish_all, daemon=True).start()
            else:
                lifetime.on_exit(finish)
        raise
    return dup


def finish() -> None:
    """Call `late` of the duplicates that are there by now. Local."""
    if not _late:
        return
    with _finishing:
        for entry in list(_late):
            _try_to_finish(entry)


def _try_to_finish(entry: Any) -> None:
    dup, request, late, error = entry
    if request.Test():
        _late.remove(entry)
        late(dup, error)


def _finish_all() -> None:
    while _late and not lifetime.ending():
        finish()
        time.sleep(1e-3)
