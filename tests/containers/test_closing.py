# SPDX-License-Identifier: BSD-3-Clause
"""Containers whose close an exception ends: before the first window is closed, or after it."""

from __future__ import annotations

import signal
import time

import pytest
from mpi4py import MPI

import rmaext
from rmaext.containers import Array, Channel, Dict, MultiDict, Published, TaskQueue

KINDS = {
    "Array": lambda comm: Array(comm, 4),
    "Channel": lambda comm: Channel(comm, int, 4),
    "Dict": lambda comm: Dict(comm, "i8", "i8", 10),
    "MultiDict": lambda comm: MultiDict(comm, "i8", "i8", 10),
    "Published": lambda comm: Published(comm, 4),
    "TaskQueue": lambda comm: TaskQueue(comm, "i8", 4),
}


@pytest.fixture(params=KINDS)
def it(request):
    comm = MPI.COMM_SELF.Dup()  # which a call that is given up leaves of no use
    yield KINDS[request.param](comm)
    comm.Free()


def ended(monkeypatch, which):
    """Let a signal handler raise as that close of a window begins."""
    close, calls = rmaext.Window.close, []

    def closing(window):
        calls.append(window)
        if len(calls) == which:
            raise KeyboardInterrupt
        close(window)

    monkeypatch.setattr(rmaext.Window, "close", closing)


def test_before_it_began(it, monkeypatch):
    """It was not done, and may be called again."""
    ended(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        it.close()
    assert not it.closed
    it.close()
    assert it.closed


def test_before_it_began_in_a_with_block(it, monkeypatch):
    """The block leaves all windows, so that nobody waits for this rank."""
    ended(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt), it:
        it.close()
    assert it.closed


def test_halfway(it, monkeypatch):
    """The rest is left at once, and a second close has nothing to do."""
    ended(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        it.close()
    assert it.closed
    it.close()


def nested(make, comm):
    """Let a signal handler close it while this rank waits in its close for the others."""
    it, seen = make(comm), []

    def handler(*_):
        try:
            it.close()
        except rmaext.RmaError as exc:
            seen.append(exc)

    if comm.rank == 0:
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        time.sleep(0.5)
    it.close()
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, before)
    assert it.closed
    with rmaext.Window.allocate(comm, 1) as win:  # the communicator is as good as before
        win.fence()
    return seen


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_handler_that_closes_it_too(world, make):
    for error in nested(make, world):
        assert isinstance(error, rmaext.SyncError)
