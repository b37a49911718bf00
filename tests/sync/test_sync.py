# SPDX-License-Identifier: BSD-3-Clause
"""Locks, epochs of start, post, complete and wait, and the rest of synchronisation."""

from __future__ import annotations

import _thread
import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import launch
import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, in_threads
from support.prelude import PRELUDE

import rmaext
from rmaext._comm.host import Beacon
from rmaext._comm.liveness import Living, Watch
from rmaext._native._lib import ffi
from rmaext._sync.ticket_lock import FarLock, NearLock

PROGRAM = Path(__file__).parent / "programs" / "locks.py"


def drawn(win, rank):
    """Tickets of a rank's lock that were drawn."""
    return int(win._block.window.get(rank, win._state("test").places.next, 1)[0])


def until(condition, limit=20):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.001)


def add_one(win, rank):
    """Not atomic."""
    value = win.get(rank, 0, 1)
    win.put(value + 1, rank, 0)


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
            if not free:  # somebody has drawn a ticket and is inside
                words[0] += 1
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
                words[2] += 1
            comm.Barrier()
            with win.lock(target, True, timeout=20):
                pass
            comm.Barrier()


def count(comm, rounds, threads):
    with guarded(comm, 2, "i8") as win:
        target = comm.size - 1

        def work(_):
            for _ in range(rounds):
                with win.lock(target, exclusive=True):
                    add_one(win, target)

        in_threads(threads, work)
        comm.Barrier()
        if comm.rank == target:
            assert win.local[0] == rounds * threads * comm.size
        win.fence()


@pytest.mark.parametrize("threads", [1, 3])
def test_exclusive_lock_makes_updates_atomic(comm, threads):
    count(comm, 60 // threads, threads)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("threads", [1, 4])
def test_exclusive_lock_makes_many_updates_atomic(world, threads):
    count(world, 20_000 // threads if launch.test_route() == "direct" else 1000, threads)


def test_route_of_the_lock(comm):
    """Locks of this node go by memory, whatever memory the window is over."""
    with rmaext.Window(comm, np.zeros(1)) as win:
        for rank in range(comm.size):
            lock = win._target("test", rank)
            mapped = bool(win._block.maps[rank])
            assert type(lock) is (NearLock if mapped else FarLock)
            if rank == comm.rank or launch.test_route() in ("", "direct"):
                assert mapped


def test_readers_are_inside_together(comm):
    with guarded(comm, 1, "i8") as win:
        with win.lock(comm.size - 1, exclusive=False) as same:
            assert same is win
            comm.Barrier()  # nobody leaves before all are inside
        win.fence()


def test_a_lock_is_exclusive(comm):
    """As MPI's, if nothing is said: a port that reads, adds and writes under it loses nothing."""
    with guarded(comm, 1, "i8") as win:
        for first in range(comm.size):
            if comm.rank == first:
                win.lock(0)
            comm.Barrier()
            if comm.rank != first or comm.size == 1:
                for exclusive in False, True:
                    in_threads(1, lambda _, how=exclusive: locked_out(win, 0, how))
            comm.Barrier()
            if comm.rank == first:
                add_one(win, 0)
                win.unlock(0)
        comm.Barrier()
        assert comm.rank or win.local[0] == comm.size
        win.fence()


@pytest.mark.parametrize("rounds", [20, pytest.param(400, marks=pytest.mark.stress)])
def test_no_writer_is_inside_with_others(comm, rounds):
    with guarded(comm, 4, "i8") as win:
        random = np.random.default_rng(comm.rank)
        mine = []
        for _ in range(rounds):
            exclusive = bool(random.integers(2))
            with win.lock(0, exclusive):
                # of this node, all have one clock
                start = time.monotonic_ns()
                time.sleep(random.random() * 1e-3)
                mine.append((start, time.monotonic_ns(), exclusive))
        times = sorted(itertools.chain.from_iterable(comm.allgather(mine)))
        last_writer = last_reader = 0
        for start, end, exclusive in times:
            assert start > last_writer
            if exclusive:
                assert start > last_reader
                last_writer = end
            else:
                last_reader = max(last_reader, end)
        win.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("modes", ["w", "r", "wr"])
def test_first_come_first_served(world, modes):
    """Ranks queue up one by one, and enter in that order."""
    with guarded(world, world.size + 1, "i8") as win:
        if world.rank == 0:
            win.lock(0, exclusive=True)
        world.Barrier()
        if world.rank:
            until(lambda: drawn(win, 0) == world.rank)
            exclusive = modes[world.rank % len(modes)] == "w"
            with win.lock(0, exclusive):
                win.put(np.int64(world.rank), 0, 1 + int(win.fetch_add(1, 0, 0)))
        else:
            until(lambda: drawn(win, 0) == world.size)
            win.unlock(0)
        win.fence()
        if world.rank == 0 and modes != "r":
            order = win.local[1 : world.size].tolist()
            assert order == sorted(order) or modes == "wr"
            # a writer is where it queued up, whatever the readers did
            writers = [r for r in range(1, world.size) if modes[r % len(modes)] == "w"]
            assert [order[r - 1] for r in writers] == writers
        win.fence()


def test_nobody_starves(comm):
    """If all always want the lock, they have it in turn."""
    rounds = 20
    total = rounds * comm.size
    with guarded(comm, total + 1, "i8") as win:
        for _ in range(rounds):
            with win.lock(0, exclusive=True):
                at = int(win.get(0, 0, 1)[0])
                until(lambda at=at: drawn(win, 0) >= min(at + comm.size, total))
                win.put(np.array([comm.rank]), 0, 1 + at)
                win.put(np.array([at + 1]), 0, 0)
        win.fence()
        if comm.rank == 0:
            order = win.local[1:].reshape(rounds, comm.size)
            assert (order == order[0]).all()
            assert sorted(order[0]) == list(range(comm.size))
        win.fence()


def test_tickets_are_served_in_order(comm):
    rounds = 50
    with guarded(comm, rounds * comm.size + 1, "i8") as win:
        for _ in range(rounds):
            with win.lock(0, exclusive=True):
                at = int(win.get(0, 0, 1)[0])
                ticket = win._target("test", 0).state.ticket
                win.put(np.array([ticket]), 0, 1 + at)
                win.put(np.array([at + 1]), 0, 0)
        win.fence()
        if comm.rank == 0:
            assert win.local[1:].tolist() == list(range(rounds * comm.size))
        win.fence()


def test_lock_all_is_shared(comm):
    with guarded(comm, comm.size, "i8") as win:
        with win.lock_all() as same:
            assert same is win
            comm.Barrier()
            for rank in range(comm.size):
                win.put(np.int64(comm.rank), rank, comm.rank)
            with pytest.raises(rmaext.SyncError, match="holds"):
                win.lock(0, exclusive=False)
            with pytest.raises(rmaext.SyncError):
                win.unlock(0)
            comm.Barrier()
        comm.Barrier()
        assert win.local.tolist() == list(range(comm.size))
        # and it keeps writers out
        if comm.rank == 0:
            win.lock_all()
        comm.Barrier()
        if comm.rank or comm.size == 1:
            in_threads(1, lambda _: locked_out(win, comm.size - 1))
        comm.Barrier()
        if comm.rank == 0:
            win.unlock_all()
        win.fence()


def locked_out(win, rank, exclusive=True):
    with pytest.raises(rmaext.RmaTimeout, match=f"rank {rank}"):
        win.lock(rank, exclusive, timeout=0.05)


def test_locks_of_several_targets(comm):
    with guarded(comm, 1, "i8") as win:
        for _ in range(5):
            for rank in range(comm.size):  # in one order on all ranks
                win.lock(rank, exclusive=True)
            for rank in range(comm.size):
                add_one(win, rank)
            for rank in reversed(range(comm.size)):
                win.unlock(rank)
        comm.Barrier()
        assert win.local[0] == 5 * comm.size
        win.fence()


def test_timeout_leaves_the_lock_to_others(comm):
    with guarded(comm, 1, "i8") as win:
        if comm.rank == 0:
            win.lock(0, exclusive=True)
        comm.Barrier()
        for exclusive in (False, True):
            if comm.rank:
                with pytest.raises(rmaext.RmaTimeout):
                    win.lock(0, exclusive, timeout=0.05 * comm.rank)
            else:
                in_threads(2, lambda _: locked_out(win, 0))
        comm.Barrier()
        if comm.rank == 0:
            win.unlock(0)
        # some take up their tickets again, others' are passed on
        if comm.rank % 2 == 0:
            for _ in range(3):
                with win.lock(0, exclusive=True, timeout=20):
                    add_one(win, 0)
        comm.Barrier()
        assert comm.rank or win.local[0] == 3 * ((comm.size + 1) // 2)
        win.fence()


def test_exception_releases(comm):
    with guarded(comm, 1, "i8") as win:
        for exclusive in (True, False):
            with pytest.raises(ZeroDivisionError), win.lock(0, exclusive):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), win.lock_all():
            raise ZeroDivisionError
        comm.Barrier()
        with win.lock(0, exclusive=True, timeout=20):
            pass
        win.fence()


def test_threads_hold_locks_each_for_itself(comm):
    with guarded(comm, 1, "i8") as win:
        inside = threading.Barrier(2)

        def together(_):
            with win.lock(0, exclusive=False):
                inside.wait(20)  # both are inside

        def alone(_):
            with win.lock(comm.rank, exclusive=True):
                with pytest.raises(rmaext.SyncError):
                    in_threads(1, lambda _: win.unlock(comm.rank))
                add_one(win, comm.rank)

        in_threads(2, together)
        comm.Barrier()
        in_threads(2, alone)
        assert win.local[0] == 2
        win.fence()


@pytest.mark.parametrize("hold", ["lock", "exclusive", "lock_all", "post", "start"])
def test_close_is_refused_by_all(comm, hold):
    """The last rank still holds something; the error is the same everywhere."""
    win = rmaext.Window.allocate(comm, 1)
    last = comm.size - 1
    if comm.rank == last:
        {
            "lock": lambda: win.lock(0, exclusive=False),
            "exclusive": lambda: win.lock(0, exclusive=True),
            "lock_all": win.lock_all,
            "post": lambda: win.post([]),
            "start": lambda: win.start([]),
        }[hold]()
    with pytest.raises(rmaext.SyncError, match="close"):
        win.close()
    assert win.closed
    with pytest.raises(rmaext.ClosedError):
        win.unlock(0)


WRONG = {
    "unlock": (lambda w: w.unlock(0), rmaext.SyncError),
    "unlock_all": (lambda w: w.unlock_all(), rmaext.SyncError),
    "unlock twice": (
        lambda w: (w.lock(0, exclusive=False), w.unlock(0), w.unlock(0)),
        rmaext.SyncError,
    ),
    "lock after lock": (
        lambda w: (w.lock(0, exclusive=False), w.lock(0, exclusive=False)),
        rmaext.SyncError,
    ),
    "exclusive after lock": (
        lambda w: (w.lock(0, exclusive=False), w.lock(0, exclusive=True)),
        rmaext.SyncError,
    ),
    "lock after exclusive": (
        lambda w: (w.lock(0, exclusive=True), w.lock(0, exclusive=False)),
        rmaext.SyncError,
    ),
    "lock_all after lock": (lambda w: (w.lock(0, exclusive=False), w.lock_all()), rmaext.SyncError),
    "lock_all twice": (lambda w: (w.lock_all(), w.lock_all()), rmaext.SyncError),
    "lock in lock_all": (lambda w: (w.lock_all(), w.lock(0, exclusive=False)), rmaext.SyncError),
    "unlock in lock_all": (lambda w: (w.lock_all(), w.unlock(0)), rmaext.SyncError),
    "unlock_all after lock": (
        lambda w: (w.lock(0, exclusive=False), w.unlock_all()),
        rmaext.SyncError,
    ),
    "lock of no rank": (lambda w: w.lock(10**6), rmaext.BoundsError),
    "lock of a word": (lambda w: w.lock("0"), TypeError),
    "unlock of no rank": (lambda w: w.unlock(-5), rmaext.BoundsError),
    "complete": (lambda w: w.complete(), rmaext.SyncError),
    "wait": (lambda w: w.wait(), rmaext.SyncError),
    "test": (lambda w: w.test(), rmaext.SyncError),
    "start twice": (lambda w: (w.start([]), w.start([])), rmaext.SyncError),
    "post twice": (lambda w: (w.post([]), w.post([])), rmaext.SyncError),
    "complete twice": (lambda w: (w.start([]), w.complete(), w.complete()), rmaext.SyncError),
    "wait twice": (lambda w: (w.post([]), w.wait(), w.wait()), rmaext.SyncError),
    "test after wait": (lambda w: (w.post([]), w.test(), w.test()), rmaext.SyncError),
    "post to no rank": (lambda w: w.post([10**6]), rmaext.BoundsError),
    "start on no rank": (lambda w: w.start([-1]), rmaext.BoundsError),
    "post twice to a rank": (lambda w: w.post([0, 0]), ValueError),
    "start on a rank twice": (lambda w: w.start([0, 0]), ValueError),
    "start on nothing": (lambda w: w.start(None), TypeError),
    "post to no group": (lambda w: w.post(MPI.GROUP_NULL), ValueError),
    "flush_local of no rank": (lambda w: w.flush_local(10**6), rmaext.BoundsError),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_use(comm, what):
    call, error = WRONG[what]
    with guarded(comm, 1, "i8") as win:
        with pytest.raises(error) as caught:
            call(win)
        assert str(caught.value)
        undo = [lambda: win.unlock(0), win.unlock_all, win.complete, win.wait]
        for one in undo:
            try:
                one()
            except rmaext.SyncError:
                continue
        comm.Barrier()
        with win.lock(0, exclusive=True, timeout=20):
            add_one(win, 0)
        win.fence()
        assert comm.rank or win.local[0] == comm.size


def test_closed_window(comm):
    win = rmaext.Window.allocate(comm, 1)
    with win.lock(0, exclusive=False):
        pass
    win.close()
    calls = [
        lambda: win.lock(0, exclusive=False),
        lambda: win.unlock(0),
        *(win.lock_all, win.unlock_all, win.complete, win.wait, win.test),
        *(win.flush_all, win.flush_local, win.flush_local_all, win.sync),
        *(lambda: win.start([]), lambda: win.post([])),
    ]
    for call in calls:
        with pytest.raises(rmaext.ClosedError):
            call()


def test_the_next_window_gets_a_clean_block(comm):
    """Blocks are used again."""
    for _ in range(20):
        with rmaext.Window.allocate(comm, 1, "i8") as win:
            assert drawn(win, 0) == 0
            win.fence()
            with win.lock(0, exclusive=True):
                add_one(win, 0)
            win.post(range(comm.size))
            win.start(range(comm.size))
            win.complete()
            win.wait()


def test_ctrl_c_in_the_queue(comm):
    """The others go on, and so does this rank."""
    with guarded(comm, 1, "i8") as win:
        target = comm.size - 1
        if comm.rank == target:
            win.lock(target, exclusive=True)
        comm.Barrier()
        if comm.rank != target or comm.size == 1:
            until(lambda: drawn(win, target) >= 1)
            main = threading.get_ident()
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            if comm.size == 1:
                win.unlock(0)
                hold = threading.Event()
                other = threading.Thread(target=held, args=(win, hold))
                other.start()
                until(lambda: drawn(win, 0) >= 2)
            with pytest.raises(KeyboardInterrupt):
                win.lock(target, exclusive=bool(comm.rank % 2))
            timer.join()
            if comm.size == 1:
                hold.set()
                other.join()
                win.lock(0, exclusive=True)
        comm.Barrier()
        if comm.rank == target:
            win.unlock(target)
        with win.lock(target, exclusive=True, timeout=20):
            add_one(win, target)
        comm.Barrier()
        assert comm.rank != target or win.local[0] == comm.size
        win.fence()


def held(win, event):
    with win.lock(0, exclusive=True):
        event.wait(20)


class Shot(Exception):
    """From a signal handler."""


@contextlib.contextmanager
def shooter(seed):
    """A function that lets a signal interrupt this thread within 2 ms; and one that disarms it."""
    random = np.random.default_rng(seed)
    main, before = threading.get_ident(), None
    state = {"armed": False}

    def handler(*_):
        if state["armed"]:
            state["armed"] = False
            raise Shot

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


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("seconds", [1.0, pytest.param(20.0, marks=pytest.mark.stress)])
@pytest.mark.timeout(60)
def test_a_signal_anywhere_in_a_lock(comm, exclusive, seconds):
    """Whatever it interrupts, no lock is lost: all can lock afterwards, and close."""
    hits = 0
    with guarded(comm, 1, "i8") as win, shooter(comm.rank) as (arm, disarm):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
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


@pytest.mark.parametrize("seconds", [1.0, pytest.param(20.0, marks=pytest.mark.stress)])
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
        while comm.bcast(time.monotonic() < end):
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
    watch._hellos = [SimpleNamespace(beacon=beacon.name)]
    living, hits = Living(SimpleNamespace(watch=watch, size=2, _network=None)), 0
    with shooter(1) as (arm, disarm):
        end = time.monotonic() + 1
        while time.monotonic() < end:
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


# -- start, post, complete, wait -----------------------------------------------------


def test_ring_of_epochs(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with guarded(comm, 4, "i8") as win:
        for number in range(30):
            win.post([left])
            win.start([right])
            win.put(np.full(4, number * comm.size + comm.rank), right)
            win.complete()
            win.wait()
            assert (win.local == number * comm.size + left).all()
        win.fence()


def test_groups_of_mpi(comm):
    everybody = comm.Get_group()
    with guarded(comm, comm.size, "i8") as win:
        win.post(everybody)
        win.start(everybody)
        for rank in range(comm.size):
            win.put(np.int64(comm.rank + 1), rank, comm.rank)
        win.complete()
        win.wait()
        assert win.local.tolist() == list(range(1, comm.size + 1))
        win.fence()
    everybody.Free()


@pytest.mark.mpi(min_size=2)
def test_group_of_another_communicator(world):
    """Ranks are translated; who has no part in the window is refused."""
    pairs = world.Split(world.rank // 2, -world.rank)
    everybody, own = world.Get_group(), pairs.Get_group()
    with guarded(pairs, 1, "i8") as win:
        if pairs.size < world.size:
            for call in (win.post, win.start):
                with pytest.raises(rmaext.BoundsError, match="no part"):
                    call(everybody)
        win.post(own)
        win.start(own)
        win.complete()
        win.wait()
        win.fence()
    for handle in (everybody, own, pairs):
        handle.Free()


def test_empty_groups(comm):
    with guarded(comm, 1, "i8") as win:
        for group in ([], (), MPI.GROUP_EMPTY):
            win.post(group)
            assert win.test() is True
            win.start(group)
            win.complete()
            win.post(group)
            win.start(group)
            win.wait()
            win.complete()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_early_start_and_late_post(world):
    with guarded(world, 1, "i8") as win:
        times = []
        if world.rank == 0:
            time.sleep(0.2)
            times.append(time.monotonic())
            win.post(range(1, world.size))
            with pytest.raises(rmaext.RmaTimeout):
                win.wait(timeout=0.01)
            world.Barrier()
            until(win.test)
            assert win.local[0] == sum(range(1, world.size))
        else:
            win.start([0])
            times.append(time.monotonic())
            world.Barrier()  # test() was False before
            win.fetch_add(world.rank, 0)
            win.complete()
        post, *starts = world.allgather(times[0])
        assert min(starts) > post, "before the post"
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_epochs_of_several_ahead(world):
    """An origin may be epochs ahead of the target's wait; none is mixed up."""
    with guarded(world, 8, "i8") as win:
        for number in range(20):
            if world.rank == 0:
                win.post(range(1, world.size))
                win.wait()
                assert (win.local[1 : min(8, world.size)] == number).all()
            else:
                win.start([0])
                if world.rank < 8:
                    win.put(np.int64(number), 0, world.rank)
                win.complete()
        win.fence()


def test_kinds_of_epochs_one_after_another(comm):
    right = (comm.rank + 1) % comm.size
    with guarded(comm, 1, "i8") as win:
        expected = 0
        for _ in range(5):
            win.put(np.int64(expected + 1), right)
            win.fence()
            with win.lock(right, exclusive=True):
                add_one(win, right)
            win.fence()
            win.post([(comm.rank - 1) % comm.size])
            win.start([right])
            add_one(win, right)
            win.complete()
            win.wait()
            with win.lock_all():
                win.fetch_add(1, right)
            win.fence()
            expected += 4
            assert win.local[0] == expected
            win.fence()


@pytest.mark.mpi(min_size=2)
def test_ctrl_c_in_start_and_wait(world):
    """Nothing is used up: the same call again succeeds."""
    with guarded(world, 1, "i8") as win:
        main = threading.get_ident()

        def interrupted(call):
            timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            timer.join()

        others = range(1, world.size)
        if world.rank == 0:
            world.Barrier()  # they were interrupted
            win.post(others)
            interrupted(win.wait)
            world.Barrier()
            win.wait()
            assert win.local[0] == len(others)
        else:
            interrupted(lambda: win.start([0]))
            world.Barrier()
            win.start([0])
            win.fetch_add(1, 0)
            world.Barrier()
            win.complete()
        win.fence()


# -- the rest ------------------------------------------------------------------------


def test_kinds_of_flush(comm):
    right = (comm.rank + 1) % comm.size
    with guarded(comm, 3, "i8", proc_null=True) as win:
        buffer = np.array([1, 2, 3])
        win.put(buffer, right)
        win.flush_local(right)
        win.flush_local()
        win.flush_local_all()
        win.flush_local(MPI.PROC_NULL)
        buffer[:] = 0
        win.flush_all()
        assert win.get(right).tolist() == [1, 2, 3]
        comm.Barrier()
        win.local[0] = 7
        win.sync()
        comm.Barrier()
        assert win.get(right, 0, 1)[0] == 7
        win.fence()


# -- ranks that are lost -------------------------------------------------------------

SCENARIOS = [
    *("killed_writer", "killed_reader", "killed_in_the_queue", "killed_unrelated"),
    *("killed_in_a_loop", "interrupted_in_the_queue", "left", "start", "wait"),
]


def lose(mpirun, scenario, *args, timeout=50, **env):
    env = {"PYTHONPATH": launch.PYTHONPATH, **env}
    survive = scenario != "left"
    done = mpirun(4, PROGRAM, scenario, *args, env=env, survive=survive, timeout=timeout)
    assert done.stdout.count("OK") == 3, done.stdout + done.stderr
    assert done.returncode == 0 or not survive, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_rank(mpirun, scenario):
    lose(mpirun, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_rank_by_the_network(mpirun, scenario):
    lose(mpirun, scenario, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize("scenario", ["killed_writer", "killed_in_the_queue", "wait"])
def test_lost_rank_on_another_node(mpirun, scenario):
    lose(mpirun, scenario, "nodes")


GIVE_UP = """
from support.processes import stopped

pid = world.bcast(os.getpid(), 1)
for how in "lock", "unlock", "unlock_all", "post", "complete":
    win, kept = rmaext.Window.allocate(world, 4), None
    win.fence()
    block = win._block.slab, win._block.place
    if how == "complete":
        win.start([1]) if rank == 0 else win.post([0])
    elif how != "post" and rank == 0:
        {"unlock": lambda: win.lock(1, exclusive=False), "unlock_all": win.lock_all}.get(how, int)()
    calls = {name: partial(getattr(win, name), 1) for name in ("lock", "unlock")}
    calls |= {"unlock_all": win.unlock_all, "complete": win.complete, "post": lambda: win.post([1])}
    world.Barrier()
    if rank == 0:
        with stopped(pid):
            refuses(calls[how], rmaext.RmaTimeout)
    elif how == "complete":
        win.wait()  # so it has come
    try:
        win.close()
    except rmaext.SyncError:
        assert how == "post"
    other = rmaext.Window.allocate(world, 4)
    assert ((other._block.slab, other._block.place) == block) == (how == "complete"), how
    other.close()
print("end")
"""


def test_no_message_that_was_given_up_reaches_another_window(mpirun):
    """What it may still change, the control block, is not used again."""
    code = "from functools import partial\n" + PRELUDE + GIVE_UP
    env = {"RMAEXT_TIMEOUT": "1", "RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, code, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2, done.stderr


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", ["", "fabric"])
def test_many_ranks_lost_at_any_moment(mpirun, route):
    for seed in range(15):
        lose(mpirun, "killed_in_a_loop", f"seed={seed}", RMAEXT_ROUTE=route)


@pytest.mark.mpi
@pytest.mark.scale
def test_lock_all_of_many_ranks(world):
    with rmaext.Window.allocate(world, 1, "i8") as win:
        start = time.perf_counter()
        with win.lock_all():
            took = time.perf_counter() - start
            win.fetch_add(1, 0)
        win.fence()
        with win.lock(0, exclusive=True):
            add_one(win, 0)
        win.fence()
        assert world.rank or win.local[0] == 2 * world.size
        slowest = world.reduce(took, MPI.MAX)
        if world.rank == 0:
            sys.stderr.write(f"lock_all of {world.size} ranks: {slowest * 1e3:.2f} ms\n")


# -- what must end although signal handlers raise ----------------------------------------


END = """
    import signal, threading, time
    from rmaext._native.hot import to_the_end
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
    done = run_python(END + code, timeout=10)
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
    done = run_python(END + code, timeout=10)
    assert done.returncode == 0, done.stderr


def test_lock_whose_message_has_no_memory():
    """A far lock that fails halfway is broken, and says so; its owner goes on."""

    class NoMemory:
        def run(self, ranks, make):
            raise MemoryError("no buffers")

    group = SimpleNamespace(rank=0, size=2)
    places = SimpleNamespace(next=0, readers=1, writers=2, sleepers=3, slots=4)
    lock = FarLock(group, 1, places, None, NoMemory())
    lock.state.owner, lock.state.inside, lock.state.kind = 7, 1, 1
    done = [False]
    with pytest.raises(MemoryError):
        lock.leave(True, done)
    assert done == [True]
    assert not lock.state.owner
    with pytest.raises(rmaext.RmaError, match="halfway"):
        lock.take(7, True)
