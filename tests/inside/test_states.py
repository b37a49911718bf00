# SPDX-License-Identifier: BSD-3-Clause
"""A thread is said to wait while it does, and no longer, however its wait has ended."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext._record.record import find
from rmaext._runtime.reports import Patience

pytestmark = pytest.mark.mpi


@pytest.fixture
def win():
    with rmaext.Window.allocate(MPI.COMM_SELF, 8) as made:
        yield made


def state(tid=None):
    """Return what the record says that a thread is in, by default this one."""
    tid = tid or threading.get_native_id()
    (record,), _ = find([os.getpid()])
    with record:
        return next(t.kind for t in record.snapshot().threads if t.tid == tid)


class Interrupt(Exception):
    pass


@pytest.fixture
def interrupted():
    """Return what has an exception raised in a wait that has lasted; in the test, not before."""

    def handler(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.15)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_what_ends_between_two_slices(win, monkeypatch):
    look = Patience.look
    said = []

    def slow(self, *args):
        look(self, *args)
        said.append(state())
        if len(said) == 1:
            win.put_notify(np.zeros(1), 0, slot=3)

    monkeypatch.setattr(Patience, "look", slow)
    win.wait_notify(3)
    assert (set(said), state()) == ({"notify"}, "")


@pytest.mark.parametrize(
    "wait",
    [
        lambda win, **limit: win.wait_notify(1, **limit),
        lambda win, **limit: win.wait_any([1, 2], **limit),
        lambda win, **limit: win.wait_until(0, "!=", 0, **limit),
    ],
    ids=["notify", "any", "until"],
)
def test_what_an_exception_ends(win, wait, interrupted):
    with pytest.raises(Interrupt):
        (interrupted(), wait(win))
    assert state() == ""
    with pytest.raises(rmaext.RmaTimeout):
        wait(win, timeout=0.15)
    assert state() == ""


def test_the_lock_of_another_thread(win, interrupted):
    there, done, seen, me = threading.Event(), threading.Event(), [], threading.get_native_id()

    def hold():
        with win.lock(0):
            there.set()
            end = time.monotonic() + 10
            while not (now := state(me)) and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(now)
            interrupted()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    there.wait()
    with pytest.raises(Interrupt):
        win.lock(0)
    assert (seen, state()) == (["lock"], "")
    done.set()
    other.join()
    with win.lock(0):
        assert state() == ""
