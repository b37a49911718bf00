# SPDX-License-Identifier: BSD-3-Clause
"""One-sided communication as programs use it: epochs, locks, queues, requests, views.

The cases are those that suites for MPI's RMA have come to hold, on this library's calls. Each
rank checks what others did to it, and every window lies between guard bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import threading

import numpy as np
import pytest
from guarded import Guarded, guarded, neighbour, noise, rounds, same
from mpi4py import MPI

import rmaext

NOTHING = np.empty(0, "i8")


def left_of(comm):
    return (comm.rank - 1) % comm.size


def others(comm):
    return [rank for rank in range(comm.size) if rank != comm.rank]


# -- fence -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 300, 20_000])
def test_fence_put_get_accumulate_in_turn(comm, count):
    """Each rank writes to all, then reads from all, then adds to all."""
    size, rank = comm.size, comm.rank
    with guarded(comm, size * count, "i8") as win:
        for turn in range(3):
            for target in range(size):
                win.put(np.full(count, 100 * turn + rank), target, rank * count)
            win.fence()
            want = np.repeat(100 * turn + np.arange(size), count)
            assert same(win.local, want)
            assert all(same(win.get(target), want) for target in range(size))
            win.fence()
            for target in range(size):
                win.accumulate(np.full(size * count, rank + 1), target)
            win.fence()
            assert same(win.local, want + size * (size + 1) // 2)
            win.fence()


def test_empty_fence_epochs(comm):
    with guarded(comm, 3, "i8") as win:
        for _ in range(20):
            win.fence()
        win.put(7, neighbour(comm), 1)
        for _ in range(5):
            win.fence()
            assert win.local.tolist() == [0, 7, 0]


def test_transpose_by_fence(comm):
    """Each rank's rows become columns of all."""
    size, block = comm.size, 6
    n = size * block
    whole = np.arange(n * n, dtype="f8").reshape(n, n)
    with guarded(comm, (block, n), "f8") as win:
        mine = whole[comm.rank * block : (comm.rank + 1) * block]
        for target in range(size):
            part = mine[:, target * block : (target + 1) * block].T
            for row in range(block):
                win.put(part[row], target, row * n + comm.rank * block)
        win.fence()
        assert same(win.local, whole.T[comm.rank * block : (comm.rank + 1) * block])
        win.fence()


def test_many_operations_in_one_epoch(comm):
    """More than any queue holds at once, of every kind."""
    count = 2000
    with guarded(comm, 3 * count, "i8") as win:
        right = neighbour(comm)
        for i in range(count):
            win.put(i, right, i)
            win.accumulate(1, right, count + i % 10)
            win.rput(-i, right, 2 * count + i)
        win.fence()
        assert same(win.local[:count], np.arange(count))
        assert win.local[count : count + 10].tolist() == [count // 10] * 10
        assert same(win.local[2 * count :], -np.arange(count))
        win.fence()


# -- post, start, complete, wait -------------------------------------------------------


@rounds(30, 3000)
def test_pscw_ring(comm, rounds):
    """The exposure of one epoch is not taken for that of the next."""
    right, left = neighbour(comm), left_of(comm)
    with guarded(comm, 501, "i8") as win:
        for i in range(1, rounds + 1):
            count = (1, 500, 30)[i % 3]
            win.post([left])
            win.start([right])
            win.put(np.full(count, i), right)
            win.accumulate(i, right, 500)
            win.complete()
            win.wait()
            assert (win.local[:count] == i).all()
            assert win.local[500] == i
            win.local[:] = 0  # the own exposure is over


@pytest.mark.parametrize("empty", ["list", "tuple", "array", "group"])
def test_pscw_empty_groups(comm, empty):
    none = {"list": [], "tuple": (), "array": np.empty(0, int), "group": MPI.GROUP_EMPTY}[empty]
    with guarded(comm, 3, "i8") as win:
        for _ in range(3):
            win.post(none)
            win.start(none)
            win.complete()
            win.wait()
            win.start(none)
            win.post(none)
            assert win.test() is True
            win.complete()
        win.post([left_of(comm)])
        win.start([neighbour(comm)])
        win.put(5, neighbour(comm))
        win.complete()
        win.wait()
        assert win.local[0] == 5


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("target", [0, -1])
def test_pscw_early_start(world, target):
    """Origins start long before the target posts: they see what it wrote until then."""
    target %= world.size
    origins = others(world)
    with guarded(world, world.size, "i8") as win:
        for i in range(1, 6):
            if world.rank == target:
                if i == 1:
                    # all others are in start, or as good as
                    for rank in origins:
                        world.recv(source=rank)
                    threading.Event().wait(0.1)
                win.local[target] = i
                win.post(origins)
                win.wait()
                assert all(win.local[rank] == i for rank in range(world.size))
            else:
                if i == 1:
                    world.send(None, target)
                win.start([target])
                assert win.get(target, target, 1)[0] == i
                win.put(i, target, world.rank)
                win.complete()


@pytest.mark.mpi(min_size=2)
@rounds(20, 1000)
def test_pscw_many_origins_one_target(world, rounds):
    origins = others(world)
    with guarded(world, 4, "i8") as win:
        for i in range(rounds):
            target = i % world.size
            if world.rank == target:
                win.post(origins)
                if i % 2:
                    while not win.test():
                        os.sched_yield()
                else:
                    win.wait()
                assert win.local[1] == len(origins)
                win.local[1] = 0
            else:
                win.start([target])
                win.accumulate(1, target, 1)
                win.complete()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_pscw_groups_of_mpi(world):
    """All expose to all others, by MPI.Group; of ranks out of order, too."""
    group = world.Get_group().Incl(others(world)[::-1])
    with guarded(world, world.size, "i8") as win:
        for i in range(1, 10):
            win.post(group)
            win.start(group)
            for rank in others(world):
                win.put(i, rank, world.rank)
            win.complete()
            win.wait()
            assert all(win.local[rank] == i for rank in others(world))
            assert win.local[world.rank] == 0
    group.Free()


@pytest.mark.mpi(min_size=3)
def test_pscw_a_chain_of_epochs_in_order(world):
    """Rank 0 exposes to 1, then to 2, then to both: each comes in its epoch."""
    with guarded(world, 3, "i8") as win:
        for i in range(0, 40, 2):
            if world.rank == 0:
                for group, want in ([1], [1, 0]), ([2], [1, 1]), ([2, 1], [2, 2]):
                    win.post(group)
                    win.wait()
                    assert win.local[1:].tolist() == [i + x for x in want]
                    win.local[0] += 1
            elif world.rank < 3:
                for posted in (1, 3) if world.rank == 1 else (2, 3):
                    win.start([0])
                    before = win.get(0)
                    assert before[0] == i // 2 * 3 + posted - 1
                    win.put(before[world.rank] + 1, 0, world.rank)
                    win.complete()
        win.fence()


def test_pscw_with_oneself(comm):
    with guarded(comm, 3, "i8") as win:
        for i in range(10):
            win.post([comm.rank])
            assert win.test() is False
            win.start([comm.rank])
            win.put(i, comm.rank, 1)
            win.complete()
            assert win.test() is True
            assert win.local[1] == i


@pytest.mark.mpi(min_size=2)
def test_pscw_wait_has_a_time_limit(world):
    """The epoch stays open: a second wait takes it up."""
    with guarded(world, 1, "i8") as win:
        if world.rank == 0:
            win.post([1])
            with pytest.raises(rmaext.RmaTimeout):
                win.wait(timeout=0.05)
            assert win.test() is False
            world.send(None, 1)
            win.wait(timeout=30)
            assert win.local[0] == 3
        elif world.rank == 1:
            win.start([0])
            win.put(3, 0)
            world.recv(source=0)
            win.complete()
        win.fence()


# -- locks -----------------------------------------------------------------------------


@rounds(25, 2000)
@pytest.mark.parametrize("home", [0, -1])
def test_counter_under_an_exclusive_lock(comm, home, rounds):
    """get, add one, put: nobody comes between."""
    home %= comm.size
    with guarded(comm, 3, "i8") as win:
        for i in range(rounds):
            if i % 2:
                with win.lock(home, exclusive=True):
                    now = win.get(home, 1, 1)
                    win.put(now + 1, home, 1)
            else:
                win.lock(home, exclusive=True)
                now = win.get(home, 1, 1)
                win.put(now + 1, home, 1)
                win.unlock(home)
        win.fence()
        assert win.get(home).tolist() == [0, rounds * comm.size, 0]
        win.fence()


@rounds(15, 1000)
def test_owner_works_on_its_memory_under_the_lock(comm, rounds):
    """By ordinary loads and stores, while others put."""
    with guarded(comm, 2000, "i8") as win:
        for i in range(rounds * comm.size):
            home = i % comm.size
            with win.lock(home, exclusive=True):
                if home == comm.rank:
                    win.local[:] += 1
                else:
                    win.put(win.get(home) + 1, home)
        win.fence()
        assert (win.local == rounds * comm.size).all()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_shared_locks_are_held_together(world):
    """All ranks hold it at the same time, or this does not end."""
    with guarded(world, 1, "i8") as win:
        for home in range(world.size):
            with win.lock(home):
                world.Barrier()
                win.fetch_op(1, home)
            world.Barrier()
        with win.lock_all():
            world.Barrier()
            win.accumulate(1, neighbour(world))
            win.flush_all()
            world.Barrier()
            assert win.local[0] == world.size + 1
        win.fence()


@rounds(12, 500)
@pytest.mark.parametrize("everybody", [False, True])
def test_shared_locks_keep_an_exclusive_one_out(comm, everybody, rounds):
    """Who holds a shared lock sees no half of what is written under an exclusive one."""
    with guarded(comm, 3000, "i8") as win:
        for i in range(1, rounds + 1):
            home = i % comm.size
            if (comm.rank + i) % 2:
                with win.lock_all() if everybody else win.lock(home):
                    got = win.get(home)
                    assert (got == got[0]).all()
                    assert same(win.get(home), got)
            else:
                with win.lock(home, exclusive=True):
                    value = int(win.get(home, 0, 1)[0]) + 1
                    win.put(np.full(1000, value), home)
                    win.put(np.full(2000, value), home, 1000)
        win.fence()
        assert (win.local == win.local[0]).all()
        total = comm.allreduce(int(win.local[0]))
        assert total == sum(
            (r + i) % 2 == 0 for r in range(comm.size) for i in range(1, rounds + 1)
        )
        win.fence()


@rounds(20, 1500)
def test_nested_locks_over_several_targets(comm, rounds):
    """Transfers between accounts of two ranks: no money is lost, none made."""
    draw = np.random.default_rng(comm.rank)
    with guarded(comm, 4, "i8", 1000) as win:
        for _ in range(rounds):
            a, b = sorted(map(int, draw.integers(0, comm.size, 2)))
            amount = int(draw.integers(1, 100))
            with contextlib.ExitStack() as stack:
                stack.enter_context(win.lock(a, exclusive=True))
                if a != b:
                    stack.enter_context(win.lock(b, exclusive=True))
                win.put(win.get(a, 2, 1) - amount, a, 2)
                win.flush(a)
                win.put(win.get(b, 2, 1) + amount, b, 2)
        win.fence()
        assert comm.allreduce(int(win.local[2])) == 1000 * comm.size
        assert win.local[[0, 1, 3]].tolist() == [1000] * 3
        win.fence()


def test_locks_on_all_ranks_at_once_are_released_in_any_order(comm):
    with guarded(comm, 1, "i8") as win:
        for turn in range(4):
            for rank in range(comm.size):
                win.lock(rank, exclusive=turn % 2 == 0)
            for rank in range(comm.size):
                win.accumulate(1, rank)
            for rank in np.random.default_rng(comm.rank).permutation(comm.size):
                win.unlock(int(rank))
        win.fence()
        assert win.local[0] == 4 * comm.size
        win.fence()


def test_lock_of_nothing(comm):
    """Locks without an operation, and on MPI.PROC_NULL."""
    with guarded(comm, 1, "i8") as win:
        for exclusive in False, True:
            for rank in range(comm.size):
                with win.lock(rank, exclusive=exclusive):
                    pass
            with win.lock(MPI.PROC_NULL, exclusive=exclusive):
                win.put(1, MPI.PROC_NULL)
                assert win.fetch_op(1, MPI.PROC_NULL) is None
            win.lock(MPI.PROC_NULL)
            win.unlock(MPI.PROC_NULL)
        with win.lock_all():
            pass
        win.lock_all()
        win.unlock_all()
        win.fence()
        assert win.local[0] == 0
        win.fence()


@pytest.mark.parametrize("count", [1, 100, 60_000])
def test_get_is_complete_before_unlock(comm, count):
    """The own array changes after the unlock: the result does not."""
    right, left = neighbour(comm), left_of(comm)
    with guarded(comm, count, "i8", comm.rank + 1) as win:
        out = np.zeros(count, "i8")
        with win.lock(right, exclusive=True):
            got = win.get(right)
            win.get(right, out=out)
            request = win.rget(right)
        comm.sendrecv(None, right, source=left)  # mine has been read, too
        win.local[:] = -1
        comm.sendrecv(None, left, source=right)  # and is overwritten by now
        want = np.full(count, right + 1)
        assert same(got, want)
        assert same(out, want)
        assert same(request.result(), want)
        win.fence()


def test_unlock_completes_what_was_put(comm):
    """A third rank told after the unlock sees it, flushed or not before."""
    size, rank = comm.size, comm.rank
    with guarded(comm, size * 1000, "i8") as win:
        for i in range(1, 20):
            home = (rank + 1) % size
            with win.lock(home, exclusive=i % 3 == 0):
                win.put(np.full(1000, i), home, rank * 1000)
                if i % 2:
                    win.flush_local(home)
            comm.sendrecv(None, (rank + 2) % size, source=(rank - 2) % size)
            writer = (rank - 2) % size
            assert (win.get((writer + 1) % size, writer * 1000, 1000) >= i).all()
        win.fence()


def test_lock_ends_with_its_block_whatever_happens(comm):
    with guarded(comm, 1, "i8") as win:
        home = comm.size - 1

        def fail(offset):
            with win.lock(home, exclusive=True):
                win.put(win.get(home) + 1, home)
                win.put(1, home, offset)

        for _ in range(3):
            with pytest.raises(rmaext.BoundsError):
                fail(5)
            with pytest.raises(TypeError):
                fail(None)
        win.fence()
        assert win.get(home)[0] == 6 * comm.size
        win.fence()


@rounds(15, 800)
@pytest.mark.parametrize("exclusive", [True, False])
def test_locks_from_several_threads(comm, exclusive, rounds):
    """Each thread has locks of its own; the same target and different ones."""
    with guarded(comm, 2, "i8") as win:
        failures = []

        def work(number):
            try:
                for i in range(rounds):
                    home = (number + i) % comm.size
                    with win.lock(home, exclusive=exclusive):
                        if exclusive:
                            win.put(win.get(home, 0, 1) + 1, home)
                            win.flush(home)
                        win.accumulate(1, home, 1)
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        win.fence()
        hits = sum((n + i) % comm.size == comm.rank for n in range(4) for i in range(rounds))
        hits *= comm.size
        assert win.local.tolist() == [hits if exclusive else 0, hits]
        win.fence()


# -- epochs mixed ----------------------------------------------------------------------


@rounds(6, 300)
def test_kinds_of_epoch_one_after_another(comm, rounds):
    right, left = neighbour(comm), left_of(comm)
    with guarded(comm, 8, "i8") as win:
        for i in range(1, rounds + 1):
            win.put(i, right, 0)
            win.fence()
            with win.lock(right, exclusive=True):
                win.put(i, right, 1)
            win.post([left])
            win.start([right])
            win.put(i, right, 2)
            win.complete()
            win.wait()
            assert win.local[:3].tolist() == [i] * 3  # complete came after the unlock
            win.fence()  # no exclusive lock is wanted any more
            with win.lock_all():
                win.accumulate(i, right, 3, op="replace")
                win.flush(right)
                win.put_notify(i, right, 4, 9)
                win.wait_notify(9)
                assert win.local[:5].tolist() == [i] * 5
            request = win.rput(i, right, 5)
            request.wait()
            win.flush_all()
            win.accumulate(1, right, 6)
            win.wait_until(6, ">=", i)
            assert win.local[5] == i
            with win.lock(right):
                assert win.get(right, 0, 5).tolist() == [i] * 5
            win.fence()
        assert win.local.tolist() == [rounds] * 7 + [0]
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_locks_within_an_epoch_of_another_window(world):
    with guarded(world, 2, "i8") as one, guarded(world, 2, "i8") as two:
        right, left = neighbour(world), left_of(world)
        one.post([left])
        one.start([right])
        with two.lock(0, exclusive=True):
            two.put(two.get(0, 0, 1) + 1, 0)
            one.put(6, right)
        one.complete()
        one.wait()
        assert one.local[0] == 6
        two.fence()
        assert two.get(0, 0, 1)[0] == world.size
        two.fence()


# -- order of accumulates --------------------------------------------------------------

SIZES = [1, 2, 60, 200, 1000, 70_000]


@rounds(40, 1000)
@pytest.mark.parametrize("dtype", ["i8", "i2", "D"])
def test_accumulates_of_one_origin_apply_in_order(comm, dtype, rounds):
    """Small, large, small to one place; operations whose order is everything."""
    size, count = comm.size, max(SIZES)
    draw = np.random.default_rng([7, comm.rank])
    right, left = neighbour(comm), left_of(comm)
    dtype = np.dtype(dtype)
    want = np.zeros(count, dtype)
    theirs = np.random.default_rng([7, left])

    def step(rng):
        n = int(rng.choice(SIZES))
        offset = int(rng.integers(0, min(count - n, 300) + 1))
        op = str(rng.choice(["replace", "sum", "prod"]))
        return op, offset, rng.integers(0, 3, n).astype(dtype)

    with guarded(comm, count, dtype) as win:
        for i in range(rounds):
            op, offset, values = step(draw)
            if i % 4 == 3:
                win.get_accumulate(values, right, offset, op=op)
            elif i % 4 == 2:
                win.raccumulate(values, right, offset, op=op)
            else:
                win.accumulate(values, right, offset, op=op)
        win.fence()
        for _ in range(rounds):
            op, offset, values = step(theirs)
            part = want[offset : offset + len(values)]
            if op == "replace":
                part[:] = values
            elif op == "sum":
                part += values
            else:
                part *= values
        assert same(win.local, want), size
        win.fence()


@pytest.mark.parametrize("large", [200, 5000, 300_000])
def test_small_large_small_to_one_location(comm, large):
    right, middle = neighbour(comm), large // 2
    with guarded(comm, large, "i8") as win:
        for i in range(1, 8):
            win.accumulate(i, right, middle, op="replace")
            win.accumulate(np.full(large, 10 * i), right, op="replace")
            win.accumulate(i, right, middle, op="sum")
            win.accumulate(np.full(3, 2), right, middle - 1, op="prod")
            win.flush(right)
            got = win.get(right)
            assert got[middle - 2 : middle + 3].tolist() == [
                *(10 * i, 20 * i, 22 * i, 20 * i, 10 * i)
            ]
            assert got[0] == got[-1] == 10 * i
        win.fence()


# -- read, modify, write ---------------------------------------------------------------


@rounds(30, 3000)
@pytest.mark.parametrize("by", ["fetch_op", "get_accumulate", "cas", "fetch_add", "rfetch_op"])
def test_tickets(comm, by, rounds):
    """Each number is drawn once."""
    home = comm.size - 1
    with guarded(comm, 3, "i8") as win:

        def draw():
            if by == "fetch_op":
                return win.fetch_op(1, home, 1, op="sum")
            if by == "get_accumulate":
                return win.get_accumulate(np.ones(1, "i8"), home, 1, op="sum")[0]
            if by == "fetch_add":
                return win.fetch_add(1, home, 1)
            if by == "rfetch_op":
                return win.rfetch_op(1, home, 1).result()
            now, seen = None, win.fetch_op(0, home, 1, op="no_op")
            while now != seen:
                now, seen = seen, win.compare_and_swap(seen, seen + 1, home, 1)
            return now

        mine = [int(draw()) for _ in range(rounds)]
        win.fence()
        assert mine == sorted(mine)
        every = sorted(itertools.chain(*comm.allgather(mine)))
        assert every == list(range(rounds * comm.size))
        assert win.get(home).tolist() == [0, rounds * comm.size, 0]
        win.fence()


@rounds(20, 1500)
@pytest.mark.parametrize("by", ["cas", "replace", "bor"])
def test_mutex_of_atomics(comm, by, rounds):
    """A test-and-set lock protects get and put."""
    home = 0
    with guarded(comm, 3000, "i8") as win:

        def taken():
            if by == "cas":
                return win.compare_and_swap(0, 1, home)
            return win.fetch_op(1, home, op=by)

        for _ in range(rounds):
            while taken():
                pass
            win.put(win.get(home, 1) + 1, home, 1)
            win.flush(home)
            win.accumulate(0, home, op="replace")
        win.fence()
        got = win.get(home)
        assert got[0] == 0
        assert (got[1:] == rounds * comm.size).all()
        win.fence()


@rounds(15, 1500)
def test_queue_of_waiters(comm, rounds):
    """The lock of Mellor-Crummey and Scott: each waits on its own memory, in order of arrival."""
    waiting, following, tail, count = 0, 1, 2, 3
    home = comm.size - 1
    me = comm.rank + 1
    with guarded(comm, 4, "i8") as win:
        for _ in range(rounds):
            win.accumulate(0, comm.rank, following, op="replace")
            win.accumulate(1, comm.rank, waiting, op="replace")
            win.flush(comm.rank)
            before = int(win.fetch_op(me, home, tail, op="replace"))
            if before:
                win.accumulate(me, before - 1, following, op="replace")
                win.flush(before - 1)
                win.wait_until(waiting, "==", 0)
            win.put(win.get(home, count, 1) + 1, home, count)
            win.flush(home)
            if win.compare_and_swap(me, 0, home, tail) != me:
                win.wait_until(following, "!=", 0)
                after = int(win.fetch_op(0, comm.rank, following, op="no_op"))
                win.accumulate(0, after - 1, waiting, op="replace")
                win.flush(after - 1)
        win.fence()
        assert win.get(home, tail).tolist() == [0, rounds * comm.size]
        win.fence()


UNIT = 1 << 20


@rounds(20, 1500)
def test_linked_queue(comm, rounds):
    """Many producers, one consumer: a list whose tail is swapped."""
    home, size = 0, comm.size
    per_rank = rounds + 1
    with guarded(comm, (per_rank + 1) * 2, "i8") as win:
        # node n of a rank: elements 2n (next, 0 is none) and 2n + 1 (value); the tail is last
        tail = 2 * per_rank

        def name(rank, node):
            return rank * per_rank + node + 1

        def place(number):
            return (number - 1) // per_rank, 2 * ((number - 1) % per_rank)

        if comm.rank == home:
            win.local[tail] = name(home, 0)  # an empty node
        win.fence()
        for i in range(1, per_rank):
            win.put(UNIT * comm.rank + i, comm.rank, 2 * i + 1)
            win.flush(comm.rank)
            before = int(win.fetch_op(name(comm.rank, i), home, tail, op="replace"))
            rank, offset = place(before)
            win.accumulate(name(comm.rank, i), rank, offset, op="replace")
        if comm.rank == home:
            taken, at = [], name(home, 0)
            while len(taken) < rounds * size:
                rank, offset = place(at)
                after = int(win.fetch_op(0, rank, offset, op="no_op"))
                if after:
                    at = after
                    rank, offset = place(at)
                    taken.append(int(win.get(rank, offset + 1, 1)[0]))
            for rank in range(size):
                mine = [value % UNIT for value in taken if value // UNIT == rank]
                assert mine == list(range(1, per_rank))
        win.fence()


# -- lists in dynamic windows ----------------------------------------------------------

NONE = -1
SHIFT = 48  # a pointer in one element: rank and displacement


def pointer(rank, displacement):
    assert 0 <= displacement < 1 << SHIFT
    return rank << SHIFT | displacement


def pointee(value):
    value = int(value)
    return value >> SHIFT, value & (1 << SHIFT) - 1


@rounds(10, 300)
@pytest.mark.parametrize("by", ["cas", "fetch_op", "lock"])
def test_linked_list_in_a_dynamic_window(comm, by, rounds):
    """Each rank attaches nodes (next, value) one by one and hangs them behind the last."""
    nodes = [Guarded(2, "i8") for _ in range(rounds + 1)]
    with rmaext.Window.dynamic(comm, dtype="i8") as win:
        nodes[0].array[:] = NONE
        head = win.attach(nodes[0].array)
        head = pointer(0, comm.bcast(head))
        last = head
        for i in range(1, rounds + 1):
            nodes[i].array[:] = NONE, 1000 * comm.rank + i
            win.sync()
            new = pointer(comm.rank, win.attach(nodes[i].array))
            while True:
                rank, at = pointee(last)
                if by == "lock":
                    with win.lock(rank, exclusive=True):
                        now = int(win.get(rank, at, 1)[0])
                        if now == NONE:
                            win.put(new, rank, at)
                elif by == "cas":
                    now = int(win.compare_and_swap(NONE, new, rank, at))
                else:
                    now = int(win.fetch_op(0, rank, at, op="no_op"))
                    if now == NONE:
                        now = int(win.compare_and_swap(NONE, new, rank, at))
                if now == NONE:
                    break
                last = now
            last = new
        win.fence()
        values, at = [], head
        while at != NONE:
            rank, offset = pointee(at)
            at, value = map(int, win.get(rank, offset, 2))
            values.append(value)
        win.fence()
        assert values[0] == NONE
        for rank in range(comm.size):
            mine = [value for value in values[1:] if value // 1000 == rank]
            assert mine == [1000 * rank + i for i in range(1, rounds + 1)]
        assert len(values) == rounds * comm.size + 1
        for node in nodes:
            win.detach(node.array)
        win.fence()
    for node in nodes:
        node.check()


def test_memory_comes_and_goes_in_a_dynamic_window(comm):
    right, left = neighbour(comm), left_of(comm)
    parts = [Guarded(count, "i4") for count in (1, 100, 5000)]
    with rmaext.Window.dynamic(comm, dtype="i4") as win:
        for turn in range(1, 4):
            places = [win.attach(part.array) for part in parts]
            theirs = comm.sendrecv(places, left, source=right)
            for part, place in zip(parts, theirs, strict=True):
                win.put(np.full(part.array.size, turn, "i4"), right, place)
                win.accumulate(np.ones(1, "i4"), right, place)
                win.put_notify(np.empty(0, "i4"), right, place, 0)
            win.fence()
            win.wait_notify(0, len(parts))
            for part in parts:
                assert part.array[0] == turn + 1
                assert (part.array[1:] == turn).all()
            win.fence()
            middle = theirs[1]
            for part in parts:
                win.detach(part.array)
            win.fence()
            with pytest.raises(rmaext.BoundsError):
                win.put(np.int32(9), right, middle)
            win.fence()
    for part in parts:
        part.check()


# -- requests --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1000, 200_000])
def test_request_of_every_kind(comm, count):
    right = neighbour(comm)
    ones = np.ones(count, "i8")
    with guarded(comm, count + 2, "i8") as win:
        put = win.rput(np.full(count, 5), right)
        put.wait()
        win.flush(right)
        get = win.rget(right, 0, count)
        assert same(get.result(), np.full(count, 5))
        assert same(get.result(), np.full(count, 5)), "asked a second time"
        add = win.raccumulate(ones, right)
        add.wait()
        win.flush(right)
        swap = win.rget_accumulate(ones, right, op="replace")
        while not swap.test():
            pass
        assert same(swap.result(), np.full(count, 6))
        one = win.rfetch_op(3, right, count)
        assert one.result() == 0
        cas = win.rcompare_and_swap(3, 4, right, count)
        assert cas.result() == 3
        cas = win.rcompare_and_swap(3, 9, right, count)
        assert cas.result() == 4
        win.fence()
        assert win.local[count:].tolist() == [4, 0]
        assert same(win.local[:count], ones)
        out = np.zeros(count, "i8")
        assert win.rget(right, 0, out=out).result() is out
        assert same(out, ones)
        win.fence()


@pytest.mark.parametrize("order", ["forwards", "backwards", "all", "any", "test"])
def test_many_requests_outstanding(comm, order):
    """To all ranks, of all kinds, ended in any order."""
    count, size = 120, comm.size
    with guarded(comm, 3 * count * size, "i8") as win:
        base = 3 * count * comm.rank
        requests = []
        for i in range(count):
            rank = i % size
            requests.append(win.rput(np.array([i]), rank, base + i))
            requests.append(win.raccumulate(np.full(1, i), rank, base + count + i))
            requests.append(win.rfetch_op(i, rank, base + 2 * count + i))
        if order == "all":
            rmaext.Request.waitall(requests)
        elif order == "any":
            left = list(requests)
            while left:
                index = rmaext.Request.waitany(left)
                del left[index]
        elif order == "test":
            while not rmaext.Request.testall(requests):
                pass
        else:
            for request in requests if order == "forwards" else requests[::-1]:
                request.wait()
        assert all(request.result() == 0 for request in requests[2::3])
        win.fence()
        for writer in range(size):
            for i in range(count):
                if i % size == comm.rank:
                    here = win.local[3 * count * writer + i :: count][:3]
                    assert here.tolist() == [i] * 3
        win.fence()


@rounds(300, 20_000)
def test_requests_own_temporaries(comm, rounds):
    """Origins that nobody else keeps, while the collector runs."""
    right = neighbour(comm)
    with guarded(comm, (8, 200), "i8") as win:
        flat = win.local.reshape(-1)
        for i in range(rounds):
            win.rput(np.full(200, i), right, 200 * (i % 8))
            if i % 50 == 0:
                gc.collect()
                np.full(2000, -1)
        win.fence()
        for part in range(8):
            last = max(i for i in range(rounds) if i % 8 == part)
            assert (flat[200 * part : 200 * part + 200] == last).all()
        win.fence()


def test_request_is_done_after_flush_and_unlock(comm):
    right = neighbour(comm)
    with guarded(comm, 50_000, "i8", 7) as win:
        put = win.rput(np.full(25_000, 8), right)
        win.flush(right)
        assert put.test()
        with win.lock(right):
            get = win.rget(right, 25_000)
            add = win.raccumulate(np.ones(10, "i8"), right)
        assert get.test()
        assert add.test()
        assert (get.result() == 7).all()
        win.fence()
        assert win.local[9] == 9
        win.fence()


def test_requests_are_awaitable(comm):
    right = neighbour(comm)

    async def one(i):
        await win.rput(np.array([i]), right, i)
        old = await win.rfetch_op(10, right, i)
        got = await win.rget(right, i, 1)
        return int(old), int(got[0])

    async def everything():
        return await asyncio.gather(*map(one, range(20)))

    with guarded(comm, 20, "i8") as win:
        assert asyncio.run(everything()) == [(i, i + 10) for i in range(20)]
        win.fence()
        assert same(win.local, np.arange(10, 30))
        win.fence()


# -- nothing at all, and oneself -------------------------------------------------------


def every_call(win, rank, offset, count):
    """One of each operation; returns what each gave."""
    data = np.ones(count, win.dtype)
    return {
        "put": win.put(data, rank, offset),
        "get": win.get(rank, offset, count),
        "accumulate": win.accumulate(data, rank, offset),
        "get_accumulate": win.get_accumulate(data, rank, offset),
        "fetch_add": win.fetch_add(data, rank, offset),
        "cas": win.compare_and_swap(data, data, rank, offset),
        "rput": win.rput(data, rank, offset).wait(),
        "rget": win.rget(rank, offset, count).result(),
        "raccumulate": win.raccumulate(data, rank, offset).wait(),
        "rget_accumulate": win.rget_accumulate(data, rank, offset).result(),
        "put_notify": win.put_notify(data, rank, offset, 3),
        "get_notify": win.get_notify(rank, offset, count, 4),
        "flush": win.flush(rank),
        "flush_local": win.flush_local(rank),
    }


def test_zero_counts(comm):
    """At the end too, and where a rank has no elements; a notification comes all the same."""
    right = neighbour(comm)
    with guarded(comm, 3, "i8", 4) as win, guarded(comm, 0, "i8") as none:
        for offset in 0, 2, 3:
            for name, got in every_call(win, right, offset, 0).items():
                assert got is None or got.size == 0, name
        win.put_many(right, [], NOTHING)
        assert win.get_many(right, []).size == 0
        for name, got in every_call(none, right, 0, 0).items():
            assert got is None or got.size == 0, name
        win.fence()
        none.fence()
        assert win.local.tolist() == [4] * 3
        win.wait_notify(3, 3)
        assert win.test_notify(4, 3)
        assert none.test_notify(3)
        assert not win.test_notify(3)
        win.fence()


def test_proc_null(comm):
    """Nothing happens, wherever and however long."""
    with guarded(comm, 2, "i8") as win:
        for count in 0, 1, 70:
            for name, got in every_call(win, MPI.PROC_NULL, 5, count).items():
                assert got is None or got.size == 0, name
        assert win.fetch_op(1, MPI.PROC_NULL) is None
        assert win.rfetch_op(1, MPI.PROC_NULL, 9).result() is None
        assert win.rcompare_and_swap(1, 2, MPI.PROC_NULL, 9).result() is None
        win.fence()
        assert not win.local.any()
        assert not np.any(win.notify_counts())
        win.fence()


def test_self_communication(comm):
    """All operations on the own rank, from several kinds of epoch."""
    me = comm.rank
    with guarded(comm, 6, "i8") as win:
        for epoch in "fence", "lock", "lock_all", "pscw":
            win.local[:] = 0
            if epoch == "lock":
                win.lock(me, exclusive=True)
            elif epoch == "lock_all":
                win.lock_all()
            elif epoch == "pscw":
                win.post([me])
                win.start([me])
            win.put(np.array([1, 2, 3]), me)
            win.flush(me)
            win.accumulate(np.array([10, 10]), me, 1)
            assert win.fetch_op(1, me, 1) == 12
            assert win.get_accumulate(np.array([7]), me, 1, op="max").tolist() == [13]
            assert win.compare_and_swap(13, 0, me, 2) == 13
            win.flush(me)
            assert win.get(me).tolist() == [1, 13, 0, 0, 0, 0]
            assert win.rget(me, 1, 1).result().tolist() == [13]
            win.put_notify(np.array([8]), me, 5, 0)
            win.wait_notify(0)
            assert win.local.tolist() == [1, 13, 0, 0, 0, 8]
            if epoch == "lock":
                win.unlock(me)
            elif epoch == "lock_all":
                win.unlock_all()
            elif epoch == "pscw":
                win.complete()
                win.wait()
            else:
                win.fence()
        win.fence()


# -- notifications ---------------------------------------------------------------------


@rounds(60, 5000)
@pytest.mark.parametrize("count", [0, 1, 100, 30_000])
def test_notifications_are_counted(comm, count, rounds):
    """From all ranks to all: none is lost, none is made."""
    rounds = max(5, rounds // (1 + count // 1000))
    size = comm.size
    data = np.arange(count)
    with guarded(comm, max(1, count * size), "i8") as win:
        for _ in range(rounds):
            for rank in range(size):
                win.put_notify(data, rank, count * comm.rank, comm.rank % 7)
        for slot in range(7):
            senders = sum(rank % 7 == slot for rank in range(size))
            if senders:
                win.wait_notify(slot, rounds * senders)
        assert same(win.local[: count * size], np.tile(data, size)) or not count
        win.fence()
        assert not np.any(win.notify_counts())
        assert not win.test_notify(0)
        win.fence()


def test_get_with_notification(comm):
    """The target learns that its memory was read, and may use it again."""
    right, left = neighbour(comm), left_of(comm)
    for count in 1, 20_000:
        with guarded(comm, count, "i8") as win:
            for i in range(1, 15):
                win.local[:] = i
                win.sync()
                comm.sendrecv(i, left, source=right)
                got = win.get_notify(right, 0, count, 17)
                assert (got == i).all()
                win.wait_notify(17)
            win.fence()


def test_any_all_and_some_slots(comm):
    right = neighbour(comm)
    with guarded(comm, 4, "i8") as win:
        for slot in 2, 5, 9:
            win.put_notify(np.array([slot]), right, 0, slot)
        win.wait_all([2, 5, 9])
        win.fence()
        win.put_notify(np.array([1]), right, 1, 5)
        assert win.wait_any([2, 5, 9]) == 5
        win.fence()
        for slot in 9, 2:
            win.put_notify(np.array([1]), right, 2, slot)
        win.fence()
        assert sorted(win.wait_some([2, 5, 9])) == [2, 9]
        assert not np.any(win.notify_counts())
        win.fence()


def test_slots_of_a_window_are_its_own(comm):
    right = neighbour(comm)
    with guarded(comm, 1, "i8") as one, guarded(comm, 1, "i8") as two:
        one.put_notify(np.array([1]), right, 0, 200)
        one.fence()
        assert not two.test_notify(200)
        assert one.test_notify(200)
        assert not one.test_notify(200)
        two.fence()


def test_notify_and_wait_until_time_out(comm):
    with guarded(comm, 2, "i8") as win:
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_notify(0, timeout=0.02)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_until(1, "==", 1, timeout=0.02)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_any([0, 1], timeout=0.02)
        comm.Barrier()
        win.put_notify(np.array([1]), neighbour(comm), 1, 0)
        win.wait_notify(0, timeout=30)
        win.wait_until(1, "==", 1, timeout=0.02)
        win.fence()


@pytest.mark.parametrize(
    ("compare", "value"), [("==", 5), ("!=", 0), (">=", 5), (">", 4), ("<=", -3), ("<", 0)]
)
@pytest.mark.parametrize("dtype", ["i8", "i4", "f8"])
def test_wait_until(comm, dtype, compare, value):
    set_to = -3 if "<" in compare else 5
    with guarded(comm, 3, dtype) as win:
        win.accumulate(np.full(1, set_to, dtype), neighbour(comm), 1, op="replace")
        win.wait_until(1, compare, value)
        assert win.local[1] == set_to
        win.fence()


# -- windows that overlap, are many, are parts -----------------------------------------


def test_overlapping_windows(comm):
    """What was flushed through one is seen through another."""
    mine = Guarded(600, "i8")
    right = neighbour(comm)
    with (
        rmaext.Window(comm, mine.array) as whole,
        rmaext.Window(comm, mine.array[100:500]) as part,
    ):
        for i in range(1, 20):
            whole.put(np.full(600, i), right)
            whole.flush(right)
            assert (part.get(right) == i).all()
            part.put(np.full(400, -i), right)
            part.flush(right)
            got = whole.get(right)
            assert (got[100:500] == -i).all()
            assert (got[:100] == i).all()
            assert (got[500:] == i).all()
        whole.fence()
        for _ in range(50):  # single updates are atomic whatever the window
            whole.fetch_op(1, 0, 300)
            part.fetch_add(1, 0, 200)
            part.accumulate(1, 0, 200)
        whole.fence()
        part.fence()
        if comm.rank == 0:
            assert mine.array[300] == 150 * comm.size - 19
        whole.fence()
    mine.check()


@pytest.mark.parametrize("make", ["subwindow", "dup"])
def test_views_of_a_window(comm, make):
    right = neighbour(comm)
    with guarded(comm, 100, "i8") as win:
        view = win.subwindow(20, 60) if make == "subwindow" else win.dup()
        shift = 20 if make == "subwindow" else 0
        assert view.size(right) == (40 if make == "subwindow" else 100)
        view.put(np.arange(40), right, 20 - shift)
        view.accumulate(1, right, 30 - shift)
        view.flush(right)
        assert win.get(right, 20, 40).tolist() == [*range(10), 11, *range(11, 40)]
        with view.lock(right, exclusive=True):
            assert view.get(right, 59 - shift, 1)[0] == 39
        view.put_notify(np.array([5]), right, 59 - shift, 1)
        view.wait_notify(1)
        assert win.local[59] == 5
        with pytest.raises(rmaext.BoundsError):
            view.put(1, right, 40 if make == "subwindow" else 100)
        view.close()
        assert view.closed
        win.put(9, right, 99)
        win.fence()
        assert win.local[99] == 9
        win.fence()


@pytest.mark.parametrize("color", ["parity", "reversed", "alone"])
def test_everything_in_sub_communicators(world, color):
    """Beside a window of all ranks, whose locks and slots are others."""
    group = {"parity": world.rank % 2, "reversed": 0, "alone": world.rank}[color]
    sub = world.Split(group, -world.rank)
    right, left = neighbour(sub), left_of(sub)
    with guarded(world, 4, "i8") as outer, guarded(sub, 4, "i8") as win:
        for i in range(1, 6):
            with outer.lock(0):
                with win.lock(0, exclusive=True):
                    win.put(win.get(0, 0, 1) + 1, 0)
                outer.accumulate(1, 0, 3)
            win.post([left])
            win.start([right])
            win.put(i, right, 1)
            win.complete()
            win.wait()
            assert win.local[1] == i
            win.put_notify(np.array([i]), right, 2, 30)
            win.wait_notify(30)
            assert win.local[2] == i
            win.fence()
        assert win.get(0, 0, 1)[0] == 5 * sub.size
        win.fence()
        outer.fence()
        assert outer.get(0, 3, 1)[0] == 5 * world.size
        assert not np.any(outer.notify_counts())
        outer.fence()
    sub.Free()


def test_many_windows_at_once(comm):
    """Each with locks, slots, epochs and updates of its own."""
    right, left = neighbour(comm), left_of(comm)
    with contextlib.ExitStack() as stack:
        wins = [
            stack.enter_context(
                guarded(comm, 3, "i8") if i % 2 else rmaext.Window.allocate(comm, 3, "i8")
            )
            for i in range(24)
        ]
        for i, win in enumerate(wins):
            win.post([left])
            win.lock(right)
            win.put_notify(np.array([i]), right, 0, i)
        for i, win in reversed([*enumerate(wins)]):
            win.start([right])
            win.accumulate(i, right, 1)
            win.wait_notify(i)
            assert win.local[0] == i
            win.unlock(right)
            win.complete()
        for i, win in enumerate(wins):
            win.wait()
            assert win.local.tolist() == [i, i, 0]
            assert not np.any(win.notify_counts())
        for one, two in itertools.pairwise(wins):
            with one.lock(0, exclusive=True), two.lock(0):
                pass
        comm.Barrier()


@rounds(4, 100)
def test_windows_come_and_go_with_their_state(comm, rounds):
    """A new window starts with no lock, no notification and no exposure of an old one."""
    right, left = neighbour(comm), left_of(comm)
    for i in range(rounds):
        with guarded(comm, 2, "i8") as win:
            assert not np.any(win.notify_counts())
            comm.Barrier()
            with win.lock(right, exclusive=True):
                win.put(i, right)
            win.put_notify(np.array([i]), right, 1, i % 200)
            win.fence()  # the notification is left
            win.post([left])
            win.start([right])
            win.complete()
            win.wait()
            win.fence()


def test_structured_elements_take_part(comm):
    dtype = np.dtype([("a", "i4"), ("b", "f8")], align=True)
    right = neighbour(comm)
    values = np.zeros(50, dtype)
    values["a"], values["b"] = np.arange(50), noise("u1", 50, 3)
    with guarded(comm, 50, dtype) as win:
        with win.lock(right, exclusive=True):
            win.put(values, right)
        assert same(win.rget(right).result(), values)
        win.put_notify(values[:1], right, 49, 2)
        win.wait_notify(2)
        assert win.local[49] == values[0]
        win.fence()
