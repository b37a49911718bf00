# SPDX-License-Identifier: BSD-3-Clause
"""Signal handlers that raise anywhere in a lock, an epoch or a wait leave nothing behind."""

from __future__ import annotations

import _thread
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from locks import add_one
from mpi4py import MPI
from support.guarded import guarded

import rmaext
from rmaext._comm.host import Beacon
from rmaext._comm.liveness import Living, Watch
from rmaext._native._lib import ffi
from rmaext._sync.ticket_lock import WRITER


class RingError(Exception):
    pass


class SecondError(Exception):
    pass


@pytest.fixture
def two_signals():
    """Return a function: RingError at a later step, and SecondError as soon as Python looks."""
    pair = signal.SIGUSR1, signal.SIGUSR2
    left = 0

    def raiser(error):
        def ring(*_):
            raise error

        return ring

    def step(frame, event, _):
        nonlocal left
        left -= event != "c_call"  # Python looks after calls, not before them
        if left == 0:
            sys.setprofile(None)
            list(map(_thread.interrupt_main, pair))  # in one call: it looks after it

    def arm(steps):
        nonlocal left
        left = steps
        sys.setprofile(step)

    first = signal.signal(signal.SIGUSR1, raiser(RingError))
    second = signal.signal(signal.SIGUSR2, raiser(SecondError))
    yield arm
    signal.signal(signal.SIGUSR1, first)
    signal.signal(signal.SIGUSR2, second)


# -- locks ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("exclusive", [False, True], ids=["shared", "exclusive"])
@pytest.mark.parametrize("free", [False, True], ids=["queued", "free"])
def test_signals_leave_no_lock_behind(comm, two_signals, exclusive, free):
    """Two at a time, at any step; the second is raised while the lock is undone."""
    target = (comm.rank + 1) % comm.size
    with rmaext.Window.allocate(comm, 1) as win:
        places = win._state("test").places
        words = ffi.cast("int64_t *", win._block.maps[comm.rank]) + places.next - win._block.base
        with win.lock(target, exclusive=False):
            pass
        cell = win._target("test", target).state
        win.fence()
        for step in range(1, 80, 2):
            if not free:  # a writer has drawn a ticket and is inside
                words[0] += 1
                words[2] += WRITER
            comm.Barrier()
            try:
                try:
                    two_signals(step)
                    win.lock(target, exclusive, timeout=0.01)
                    win.unlock(target)
                finally:
                    sys.setprofile(None)
            except (RingError, SecondError, rmaext.RmaTimeout):
                pass
            try:
                time.sleep(0)
            except SecondError:  # the first was raised by the last step
                pass
            assert cell.inside or not cell.owner, f"step {step}"
            with contextlib.suppress(rmaext.SyncError):  # it may have returned
                win.unlock(target)
            comm.Barrier()
            if not free:
                words[1] += 1
                words[2] -= WRITER
            comm.Barrier()
            with win.lock(target, True, timeout=20):
                pass
            comm.Barrier()


class Shot(Exception):
    """From a signal handler."""


def shoot():
    """Raise from a signal handler."""
    raise Shot


@contextlib.contextmanager
def shooter(seed, does=shoot):
    """A function that lets a signal interrupt this thread within 2 ms; and one that disarms it."""
    random = np.random.default_rng(seed)
    main, before = threading.get_ident(), None
    state = {"armed": False}

    def handler(*_):
        if state["armed"]:
            state["armed"] = False
            does()

    def arm():
        state["armed"] = True
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2e-3 * random.random() ** 3)

    def disarm():
        state["armed"] = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    assert main == threading.main_thread().ident
    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # what is raised in a finalizer is lost
    try:
        yield arm, disarm
    finally:
        disarm()
        gc.enable()
        signal.signal(signal.SIGALRM, before)


# CI has them at nine sizes
each_duration = pytest.mark.parametrize(
    "seconds", [0.3, pytest.param(20.0, marks=pytest.mark.stress)]
)


@pytest.mark.parametrize("exclusive", [False, True])
@each_duration
@pytest.mark.timeout(60)
def test_a_signal_anywhere_in_a_lock(comm, exclusive, seconds):
    """Whatever it interrupts, no lock is lost: all can lock afterwards, and close."""
    hits = 0
    with guarded(comm, 1, "i8") as win, shooter(comm.rank) as (arm, disarm):
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end or (hits <= 20 and now < end + 10):
            try:
                arm()
                for _ in range(20):
                    win.lock(0, exclusive)
                    win.unlock(0)
                disarm()
            except Shot:
                hits += 1
            # between lock and unlock it is held, and the caller knows
            with contextlib.suppress(rmaext.SyncError):
                win.unlock(0)
        comm.Barrier()
        with win.lock(0, exclusive=True, timeout=10):
            add_one(win, 0)
        comm.Barrier()
        assert comm.rank or win.local[0] == comm.size
        assert hits > 20
        win.fence()


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@each_duration
@pytest.mark.timeout(60)
def test_a_handler_asks_for_the_lock_anywhere_in_a_lock(comm, exclusive, joins, seconds):
    """Of the two, one gets it, once; the other is refused, and does not wait for itself."""
    got, interrupted = [], comm.rank % 2 == 0

    def asks():
        with contextlib.suppress(rmaext.SyncError, rmaext.RmaTimeout):
            win.lock(0, exclusive, timeout=0.01)
            got.append("handler")

    with guarded(comm, 1, "i8") as win, guarded(comm, 1, "i8") as other:
        with shooter(comm.rank, asks) as (arm, disarm):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if joins:
                    other.lock(0, exclusive=False)
                if interrupted:
                    arm()
                with contextlib.suppress(rmaext.SyncError, rmaext.RmaTimeout):
                    win.lock(0, exclusive, timeout=5)
                    got.append("lock")
                disarm()
                assert len(got) == 1, got
                got.clear()
                win.unlock(0)
                with pytest.raises(rmaext.SyncError):
                    win.unlock(0)
                if joins:
                    other.unlock(0)
        comm.Barrier()
        assert win.lock(0, exclusive=True, timeout=10)
        win.unlock(0)
        win.fence()


@each_duration
@pytest.mark.timeout(60)
def test_a_signal_anywhere_in_an_epoch(comm, seconds):
    """The call that it interrupts says by SyncError, when it is repeated, that it was done."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    hits = number = 0
    with guarded(comm, 1, "i8") as win, shooter(comm.rank) as (arm, disarm):
        steps = [
            lambda: win.post([left]),
            lambda: win.start([right]),
            lambda: win.complete(),
            lambda: win.wait(),
        ]
        end = time.monotonic() + seconds
        while comm.allreduce(time.monotonic() < end or hits <= 5, MPI.LOR):
            for _ in range(10):
                number += 1
                for step in steps:
                    try:
                        arm()
                        step()
                        disarm()
                    except Shot:
                        hits += 1
                        with contextlib.suppress(rmaext.SyncError):
                            step()
                    win.put(np.int64(number), right)
                    win.flush()
                assert win.local[0] >= number
        assert hits > 5
        win.fence()


@pytest.mark.timeout(60)
def test_a_signal_anywhere_in_a_look_for_the_dead():
    """It leaves nothing open or locked: who ends later is still found."""
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    fd = os.pidfd_open(child.pid)
    beacon = Beacon()
    watch = Watch()
    watch.pidfds, watch.near = {1: fd}, [0]
    watch._hellos = {0: SimpleNamespace(beacon=beacon.name)}
    living, hits = Living(SimpleNamespace(watch=watch, size=2, _network=None)), 0
    with shooter(1) as (arm, disarm):
        end = time.monotonic() + 1
        while (now := time.monotonic()) < end or (hits <= 20 and now < end + 10):
            with contextlib.suppress(Shot):
                arm()
                for _ in range(50):
                    living._next_look, living._next_probe = 0, 1
                    assert not living.gone()
                disarm()
                continue
            hits += 1
    assert hits > 20
    child.communicate()
    living._next_look = 0
    assert living.gone() == {1}
    beacon.close()
    living._next_look, living._next_probe = 0, 1
    assert living.gone() == {0, 1}
    os.close(fd)


# -- what must end although signal handlers raise ----------------------------------------


END = """
    import signal, threading, time
    from rmaext._native.cmethods import to_the_end
    from rmaext.errors import RmaError
    calls = []
"""


@pytest.mark.parametrize("error", ["MemoryError", "TypeError", "KeyboardInterrupt"])
def test_what_a_function_raises_itself(run_python, error):
    """Listed or not, it is not called for ever: no signal handler raises it."""
    code = f"""
    def fails(how):
        calls.append(threading.get_ident())
        raise {error}(how)
    try:
        to_the_end(RmaError, fails, "always")
    except {error} as caught:
        assert caught.args == ("always",)
    else:
        raise AssertionError("no error")
    assert len(calls) == 2, calls
    """
    done = run_python(END + code)
    assert done.returncode == 0, done.stderr


def test_handlers_that_raise_while_a_function_ends(run_python):
    """Again and again, in whatever it does: it is called until it has ended, twice at most."""
    code = """
    def rings(*_):
        if calls and calls[-1] != "ended":
            raise ZeroDivisionError("ring")
    signal.signal(signal.SIGALRM, rings)
    def works(n):
        calls.append(n)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass
        calls.append("ended")
        return n + 1
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.001)
    result, ring = to_the_end(RmaError, works, 6)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert result == 7
    assert isinstance(ring, ZeroDivisionError)
    assert calls == [6, 6, "ended"]
    """
    done = run_python(END + code)
    assert done.returncode == 0, done.stderr
