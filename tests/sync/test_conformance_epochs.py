# SPDX-License-Identifier: BSD-3-Clause
"""Epochs as programs use them: fences, post-start-complete-wait, locks, and all in turn.

The cases of this file and its sisters are those that suites for MPI's RMA have come to hold, on
this library's calls. Each rank checks what others did to it, between guard bytes.
"""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, left_of, neighbour, rounds, same

import rmaext


def others(world):
    return [rank for rank in range(world.size) if rank != world.rank]


# -- fence -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 300, 20_000])
def test_fence_put_get_accumulate_in_turn(world, count):
    """Each rank writes to all, then reads from all, then adds to all."""
    size, rank = world.size, world.rank
    with guarded(world, size * count, "i8") as win:
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


def test_empty_fence_epochs(world):
    with guarded(world, 3, "i8") as win:
        for _ in range(20):
            win.fence()
        win.put(7, neighbour(world), 1)
        for _ in range(5):
            win.fence()
            assert win.local.tolist() == [0, 7, 0]


def test_transpose_by_fence(world):
    """Each rank's rows become columns of all."""
    size, block = world.size, 6
    n = size * block
    whole = np.arange(n * n, dtype="f8").reshape(n, n)
    with guarded(world, (block, n), "f8") as win:
        mine = whole[world.rank * block : (world.rank + 1) * block]
        for target in range(size):
            part = mine[:, target * block : (target + 1) * block].T
            for row in range(block):
                win.put(part[row], target, row * n + world.rank * block)
        win.fence()
        assert same(win.local, whole.T[world.rank * block : (world.rank + 1) * block])
        win.fence()


def test_many_operations_in_one_epoch(world):
    """More than any queue holds at once, of every kind."""
    count = 2000
    with guarded(world, 3 * count, "i8") as win:
        right = neighbour(world)
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
def test_pscw_ring(world, rounds):
    """The exposure of one epoch is not taken for that of the next."""
    right, left = neighbour(world), left_of(world)
    with guarded(world, 501, "i8") as win:
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
def test_pscw_empty_groups(world, empty):
    none = {"list": [], "tuple": (), "array": np.empty(0, int), "group": MPI.GROUP_EMPTY}[empty]
    with guarded(world, 3, "i8") as win:
        for _ in range(3):
            win.post(none)
            win.start(none)
            win.complete()
            win.wait()
            win.start(none)
            win.post(none)
            assert win.test() is True
            win.complete()
        win.post([left_of(world)])
        win.start([neighbour(world)])
        win.put(5, neighbour(world))
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


def test_pscw_with_oneself(world):
    with guarded(world, 3, "i8") as win:
        for i in range(10):
            win.post([world.rank])
            assert win.test() is False
            win.start([world.rank])
            win.put(i, world.rank, 1)
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
def test_counter_under_an_exclusive_lock(world, home, rounds):
    """get, add one, put: nobody comes between."""
    home %= world.size
    with guarded(world, 3, "i8") as win:
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
        assert win.get(home).tolist() == [0, rounds * world.size, 0]
        win.fence()


@rounds(15, 1000)
def test_owner_works_on_its_memory_under_the_lock(world, rounds):
    """By ordinary loads and stores, while others put."""
    with guarded(world, 2000, "i8") as win:
        for i in range(rounds * world.size):
            home = i % world.size
            with win.lock(home, exclusive=True):
                if home == world.rank:
                    win.local[:] += 1
                else:
                    win.put(win.get(home) + 1, home)
        win.fence()
        assert (win.local == rounds * world.size).all()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_shared_locks_are_held_together(world):
    """All ranks hold it at the same time, or this does not end."""
    with guarded(world, 1, "i8") as win:
        for home in range(world.size):
            with win.lock(home, exclusive=False):
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
def test_shared_locks_keep_an_exclusive_one_out(world, everybody, rounds):
    """Who holds a shared lock sees no half of what is written under an exclusive one."""
    with guarded(world, 3000, "i8") as win:
        for i in range(1, rounds + 1):
            home = i % world.size
            if (world.rank + i) % 2:
                with win.lock_all() if everybody else win.lock(home, exclusive=False):
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
        total = world.allreduce(int(win.local[0]))
        assert total == sum(
            (r + i) % 2 == 0 for r in range(world.size) for i in range(1, rounds + 1)
        )
        win.fence()


@rounds(20, 1500)
def test_nested_locks_over_several_targets(world, rounds):
    """Transfers between accounts of two ranks: no money is lost, none made."""
    draw = np.random.default_rng(world.rank)
    with guarded(world, 4, "i8", 1000) as win:
        for _ in range(rounds):
            a, b = sorted(map(int, draw.integers(0, world.size, 2)))
            amount = int(draw.integers(1, 100))
            with contextlib.ExitStack() as stack:
                stack.enter_context(win.lock(a, exclusive=True))
                if a != b:
                    stack.enter_context(win.lock(b, exclusive=True))
                win.put(win.get(a, 2, 1) - amount, a, 2)
                win.flush(a)
                win.put(win.get(b, 2, 1) + amount, b, 2)
        win.fence()
        assert world.allreduce(int(win.local[2])) == 1000 * world.size
        assert win.local[[0, 1, 3]].tolist() == [1000] * 3
        win.fence()


def test_locks_on_all_ranks_at_once_are_released_in_any_order(world):
    with guarded(world, 1, "i8") as win:
        for turn in range(4):
            for rank in range(world.size):
                win.lock(rank, exclusive=turn % 2 == 0)
            for rank in range(world.size):
                win.accumulate(1, rank)
            for rank in np.random.default_rng(world.rank).permutation(world.size):
                win.unlock(int(rank))
        win.fence()
        assert win.local[0] == 4 * world.size
        win.fence()


def test_lock_of_nothing(world):
    """Locks without an operation, and on MPI.PROC_NULL."""
    with guarded(world, 1, "i8", proc_null=True) as win:
        for exclusive in False, True:
            for rank in range(world.size):
                with win.lock(rank, exclusive=exclusive):
                    pass
            with win.lock(MPI.PROC_NULL, exclusive=exclusive):
                win.put(1, MPI.PROC_NULL)
                assert same(win.fetch_op(1, MPI.PROC_NULL), np.empty(0, "i8"))
            win.lock(MPI.PROC_NULL, exclusive=False)
            win.unlock(MPI.PROC_NULL)
        with win.lock_all():
            pass
        win.lock_all()
        win.unlock_all()
        win.fence()
        assert win.local[0] == 0
        win.fence()


@pytest.mark.parametrize("count", [1, 100, 60_000])
def test_get_is_complete_before_unlock(world, count):
    """The own array changes after the unlock: the result does not."""
    right, left = neighbour(world), left_of(world)
    with guarded(world, count, "i8", world.rank + 1) as win:
        out = np.zeros(count, "i8")
        with win.lock(right, exclusive=True):
            got = win.get(right)
            win.get(right, out=out)
            request = win.rget(right)
        world.Sendrecv(b"", right, recvbuf=bytearray(), source=left)  # mine has been read, too
        win.local[:] = -1
        world.Sendrecv(b"", left, recvbuf=bytearray(), source=right)  # and is overwritten by now
        want = np.full(count, right + 1)
        assert same(got, want)
        assert same(out, want)
        assert same(request.result(), want)
        win.fence()


def test_unlock_completes_what_was_put(world):
    """A third rank told after the unlock sees it, flushed or not before."""
    size, rank = world.size, world.rank
    with guarded(world, size * 1000, "i8") as win:
        for i in range(1, 20):
            home = (rank + 1) % size
            with win.lock(home, exclusive=i % 3 == 0):
                win.put(np.full(1000, i), home, rank * 1000)
                if i % 2:
                    win.flush_local(home)
            world.Sendrecv(b"", (rank + 2) % size, recvbuf=bytearray(), source=(rank - 2) % size)
            writer = (rank - 2) % size
            assert (win.get((writer + 1) % size, writer * 1000, 1000) >= i).all()
        win.fence()


def test_lock_ends_with_its_block_whatever_happens(world):
    with guarded(world, 1, "i8") as win:
        home = world.size - 1

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
        assert win.get(home)[0] == 6 * world.size
        win.fence()


@rounds(15, 800)
@pytest.mark.parametrize("exclusive", [True, False])
def test_locks_from_several_threads(world, exclusive, rounds):
    """Each thread has locks of its own; the same target and different ones."""
    with guarded(world, 2, "i8") as win:
        failures = []

        def work(number):
            try:
                for i in range(rounds):
                    home = (number + i) % world.size
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
        hits = sum((n + i) % world.size == world.rank for n in range(4) for i in range(rounds))
        hits *= world.size
        assert win.local.tolist() == [hits if exclusive else 0, hits]
        win.fence()


# -- epochs mixed ----------------------------------------------------------------------


@rounds(6, 300)
def test_kinds_of_epoch_one_after_another(world, rounds):
    right, left = neighbour(world), left_of(world)
    with guarded(world, 8, "i8") as win:
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
            with win.lock(right, exclusive=False):
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
