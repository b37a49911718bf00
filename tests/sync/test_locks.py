# SPDX-License-Identifier: BSD-3-Clause
"""Locks: exclusive and shared, their order, their time limits, and who holds them."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import launch
import numpy as np
import pytest
from locks import add_one, interrupted, until
from mpi4py import MPI
from support.guarded import guarded, in_threads
from support.wakeups import LATE, only_told

import rmaext
from rmaext._sync.ticket_lock import FarLock, NearLock, NodeLock


def drawn(win, rank):
    """Tickets of a rank's lock that were drawn."""
    return int(win._block.window.get(rank, win._state("test").places.next, 1)[0])


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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.timeout(120)
def test_waiters_are_told(comm, threads, monkeypatch):
    """Of any node: none has to look by itself, which takes it longer than all of this does."""
    only_told(monkeypatch.setattr)
    with guarded(comm, 2, "i8") as win, guarded(comm, 1, "i8") as other:
        start = time.monotonic()

        def work(thread):
            for k in range(30):
                with win.lock(0, exclusive=True):
                    add_one(win, 0)
                with win.lock(0, exclusive=False):
                    seen = int(win.get(0, 0, 1)[0])
                    with other.lock(comm.size - 1, exclusive=False):
                        assert int(win.get(0, 0, 1)[0]) == seen
                other.lock(comm.size - 1, exclusive=k % 3 == thread)
                with win.lock(0, exclusive=False):  # joins
                    other.unlock(comm.size - 1)

        in_threads(threads, work)
        assert time.monotonic() - start < LATE
        win.fence()
        if comm.rank == 0:
            assert win.local[0] == 30 * threads * comm.size
        win.fence()


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
            mapped = [bool(win._block.maps[other]) for other in range(comm.size)]
            near = NearLock if win._group.all_direct else NodeLock
            assert type(lock) is (near if mapped[rank] else FarLock)
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
            for call, wrong in ((win.unlock, (0,)), (win.unlock, ()), (win.unlock_all, (0,))):
                with pytest.raises((rmaext.SyncError, TypeError)):
                    call(*wrong)  # which releases nothing
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


@pytest.mark.mpi(min_size=2)
def test_nobody_gives_way_to_one_who_gave_up(world):
    """It would be for twice as long each time."""
    last = world.size - 1
    with guarded(world, 1, "i8") as win:
        if world.rank == 0:
            win.lock(last, exclusive=False)
        world.Barrier()
        if world.rank == 1:
            locked_out(win, last)
        world.Barrier()
        if world.rank == 0:
            win.unlock(last)
            with win.lock(0, exclusive=False):
                for _ in range(30):
                    with win.lock(last, exclusive=False):
                        pass
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
            if comm.size == 1:
                win.unlock(0)
                hold = threading.Event()
                other = threading.Thread(target=held, args=(win, hold))
                other.start()
                until(lambda: drawn(win, 0) >= 2)
            interrupted(lambda: win.lock(target, exclusive=bool(comm.rank % 2)))
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


def test_lock_whose_message_has_no_memory():
    """A far lock that fails halfway is broken, and says so; its owner goes on."""

    class NoMemory:
        def run(self, ranks, make):
            raise MemoryError("no buffers")

    group = SimpleNamespace(rank=0, size=2)
    places = SimpleNamespace(next=0, turn=1, inside=2, sleepers=3, slots=4)
    lock = FarLock(group, 1, places, None, NoMemory())
    lock.state.owner, lock.state.inside, lock.state.kind = 7, 1, 1
    done = [False]
    with pytest.raises(MemoryError):
        lock.leave(True, done)
    assert done == [True]
    assert not lock.state.owner
    with pytest.raises(rmaext.RmaError, match="halfway"):
        lock.take(7, True)
