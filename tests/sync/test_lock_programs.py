# SPDX-License-Identifier: BSD-3-Clause
"""Random programs of locks end, unless their holders can wait in a circle."""

from __future__ import annotations

import time

import launch
import numpy as np
import pytest
from mpi4py import MPI
from support import lock_programs
from support.guarded import in_threads

import rmaext
import rmaext.compat


class Native:
    """Carries steps out on rmaext's windows."""

    def __init__(self, comm):
        self.comm = comm
        self.wins = [rmaext.Window.allocate(comm, 1, "i8") for _ in range(lock_programs.WINDOWS)]

    def order(self, rank):
        """The order in which that rank's lock_all takes the ranks."""
        return range(self.comm.size)

    def take(self, step, timeout):
        win = self.wins[step.window]
        if step.rank is None:
            win.lock_all(timeout)
        else:
            win.lock(step.rank, step.exclusive, timeout)

    def drop(self, step):
        win = self.wins[step.window]
        if step.rank is None:
            win.unlock_all()
        else:
            win.unlock(step.rank)

    def add_one(self, step):
        """Not atomic: whoever is inside too would be seen."""
        win = self.wins[step.window]
        win.put(win.get(step.rank, 0, 1) + 1, step.rank)

    def count(self):
        return sum(int(win.local[0]) for win in self.wins)

    def close(self):
        for win in self.wins:
            win.close()


class DropIn:
    """The same on the drop-in's, where the first operation takes a shared lock."""

    def __init__(self, comm):
        self.comm = comm
        many = range(lock_programs.WINDOWS)
        self.wins = [rmaext.compat.Win.Allocate(8, 8, comm=comm) for _ in many]
        for win in self.wins:
            np.frombuffer(win.tomemory(), "i8")[:] = 0
        comm.Barrier()

    def order(self, rank):
        return [(rank + n) % self.comm.size for n in range(self.comm.size)]

    def take(self, step, timeout):
        assert timeout is None, "MPI has no time limits"
        win = self.wins[step.window]
        if step.rank is None:
            win.Lock_all()
        else:
            win.Lock(step.rank, MPI.LOCK_EXCLUSIVE if step.exclusive else MPI.LOCK_SHARED)
        for rank in self.order(self.comm.rank) if step.rank is None else [step.rank]:
            self.get(win, rank)

    def get(self, win, rank):
        value = np.zeros(1, "i8")
        win.Get(value, rank)
        win.Flush(rank)
        return value

    def drop(self, step):
        win = self.wins[step.window]
        if step.rank is None:
            win.Unlock_all()
        else:
            win.Unlock(step.rank)

    def add_one(self, step):
        win = self.wins[step.window]
        win.Put(self.get(win, step.rank) + 1, step.rank)

    def count(self):
        return sum(int(np.frombuffer(win.tomemory(), "i8")[0]) for win in self.wins)

    def close(self):
        for win in self.wins:
            win.Free()


def carry_out(windows, steps, timeout):
    """Carry a thread's steps out; the end of a time limit ends them. Return how many it added."""
    added, held = 0, []
    for step in steps:
        if step.take:
            try:
                windows.take(step, timeout)
            except rmaext.RmaTimeout:
                break
            held.append(step._replace(take=False))
            if step.exclusive:
                windows.add_one(step)
                added += 1
        else:
            windows.drop(step)
            held.remove(step)
    for step in held:
        windows.drop(step)
    return added


def may_deadlock(program, windows, threads):
    """Ask the model, unless it would have too many states; then it is better to have limits."""
    if not lock_programs.nests_exclusive(program):
        return False
    orders = [windows.order(n // threads) for n in range(len(program))]
    return len(program) > 4 or lock_programs.can_deadlock(program, orders)


def test_circles_have_a_holder_of_an_exclusive_lock():
    """Of the model: it bears out the argument of docs/contributing/decisions.md."""
    found = 0
    for seed in range(150):
        program = lock_programs.make(seed, 3, 2)
        deadlocks = lock_programs.can_deadlock(program, [range(2)] * 3)
        assert lock_programs.nests_exclusive(program) or not deadlocks
        found += deadlocks
    assert found > 3


def all_end(world, make, programs, threads, first):
    """Carry so many programs out, `threads` threads on each rank; none may hang."""
    windows = make(world)
    added = timed = 0
    for seed in range(first, first + programs):
        program = lock_programs.make(seed, threads * world.size, world.size)
        circles = world.bcast(may_deadlock(program, windows, threads) if not world.rank else None)
        if circles and make is DropIn:
            continue
        timed += circles
        mine = program[world.rank * threads :][:threads]
        results = []
        in_threads(
            threads,
            lambda n, mine=mine, limit=0.02 if circles else None, results=results: results.append(
                carry_out(windows, mine[n], limit)
            ),
        )
        assert len(results) == threads
        added += sum(results)
        world.Barrier()
    assert windows.count() >= 0
    total = world.allreduce(windows.count())
    assert total == world.allreduce(added), "somebody was inside beside a writer"
    windows.close()
    return timed


# Rare orders are tried by tests/c/shm/locks.c; the futexes and Python's part are watched here.
SHARE = {"": 40, "direct": 40, "mixed": 15, "fabric": 10}
HOW = [(Native, 1), (Native, 2), (DropIn, 1)]


@pytest.mark.mpi(min_size=2, max_size=4)
@pytest.mark.parametrize(("make", "threads"), HOW)
def test_all_end(world, make, threads):
    all_end(world, make, SHARE[launch.test_route()], threads, 0)


@pytest.mark.mpi(min_size=4, max_size=4)
@pytest.mark.parametrize("make", [Native, DropIn])
def test_a_reader_passes_a_queue_that_others_pass_all_the_time(world, make):
    """Rank 0, inside, waits for rank 1, a reader behind the writer 3; rank 2 comes and goes."""
    windows, rank = make(world), world.rank
    shared, exclusive = (lock_programs.Step(True, 0, 2, how) for how in (False, True))
    other = lock_programs.Step(True, 1, 0)  # who holds it passes the queue
    windows.take(shared if rank == 0 else other, None)
    if rank == 3:
        windows.drop(other)
    world.Barrier()
    if rank == 0:
        world.recv(source=1)
        windows.drop(shared)
        world.send(0, 2)
    elif rank == 1:
        windows.drop(other)
        time.sleep(0.2)  # behind the writer, or the test shows nothing
        windows.take(shared, None)
        windows.drop(shared)
        world.send(0, 0)
    elif rank == 2:
        while not world.iprobe(source=0):
            windows.take(shared, None)
            time.sleep(0.01)  # so that looks find now one inside, now two
            windows.drop(shared)
        world.recv(source=0)
        windows.drop(other)
    else:
        windows.take(exclusive, None)
        windows.drop(exclusive)
    world.Barrier()
    windows.close()


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.mpi(min_size=2, max_size=4)
@pytest.mark.parametrize(("make", "threads"), HOW)
def test_ten_thousand_end(world, make, threads):
    all_end(world, make, 90 * SHARE[launch.test_route()], threads, 1000)
