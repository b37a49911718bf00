# SPDX-License-Identifier: BSD-3-Clause
"""Updates as programs use them: in order, as counters, locks and queues, in linked lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.guarded import Guarded, guarded, left_of, neighbour, rounds, same

import rmaext

# -- order of accumulates --------------------------------------------------------------

SIZES = [1, 2, 60, 200, 1000, 70_000]


@rounds(40, 1000)
@pytest.mark.parametrize("dtype", ["i8", "i2", "D"])
def test_accumulates_of_one_origin_apply_in_order(world, dtype, rounds):
    """Small, large, small to one place; operations whose order is everything."""
    size, count = world.size, max(SIZES)
    draw = np.random.default_rng([7, world.rank])
    right, left = neighbour(world), left_of(world)
    dtype = np.dtype(dtype)
    want = np.zeros(count, dtype)
    theirs = np.random.default_rng([7, left])

    def step(rng):
        n = int(rng.choice(SIZES))
        offset = int(rng.integers(0, min(count - n, 300) + 1))
        op = str(rng.choice(["replace", "sum", "prod"]))
        return op, offset, rng.integers(0, 3, n).astype(dtype)

    with guarded(world, count, dtype) as win:
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
def test_small_large_small_to_one_location(world, large):
    right, middle = neighbour(world), large // 2
    with guarded(world, large, "i8") as win:
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
def test_tickets(world, by, rounds):
    """Each number is drawn once."""
    home = world.size - 1
    with guarded(world, 3, "i8") as win:

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
        every = sorted(itertools.chain(*world.allgather(mine)))
        assert every == list(range(rounds * world.size))
        assert win.get(home).tolist() == [0, rounds * world.size, 0]
        win.fence()


@rounds(20, 1500)
@pytest.mark.parametrize("by", ["cas", "replace", "bor"])
def test_mutex_of_atomics(world, by, rounds):
    """A test-and-set lock protects get and put."""
    home = 0
    with guarded(world, 3000, "i8") as win:

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
        assert (got[1:] == rounds * world.size).all()
        win.fence()


@rounds(15, 1500)
def test_queue_of_waiters(world, rounds):
    """The lock of Mellor-Crummey and Scott: each waits on its own memory, in order of arrival."""
    waiting, following, tail, count = 0, 1, 2, 3
    home = world.size - 1
    me = world.rank + 1
    with guarded(world, 4, "i8") as win:
        for _ in range(rounds):
            win.accumulate(0, world.rank, following, op="replace")
            win.accumulate(1, world.rank, waiting, op="replace")
            win.flush(world.rank)
            before = int(win.fetch_op(me, home, tail, op="replace"))
            if before:
                win.accumulate(me, before - 1, following, op="replace")
                win.flush(before - 1)
                win.wait_until(waiting, "==", 0)
            win.put(win.get(home, count, 1) + 1, home, count)
            win.flush(home)
            if win.compare_and_swap(me, 0, home, tail) != me:
                win.wait_until(following, "!=", 0)
                after = int(win.fetch_op(0, world.rank, following, op="no_op"))
                win.accumulate(0, after - 1, waiting, op="replace")
                win.flush(after - 1)
        win.fence()
        assert win.get(home, tail).tolist() == [0, rounds * world.size]
        win.fence()


UNIT = 1 << 20


@rounds(20, 1500)
def test_linked_queue(world, rounds):
    """Many producers, one consumer: a list whose tail is swapped."""
    home, size = 0, world.size
    per_rank = rounds + 1
    with guarded(world, (per_rank + 1) * 2, "i8") as win:
        # node n of a rank: elements 2n (next, 0 is none) and 2n + 1 (value); the tail is last
        tail = 2 * per_rank

        def name(rank, node):
            return rank * per_rank + node + 1

        def place(number):
            return (number - 1) // per_rank, 2 * ((number - 1) % per_rank)

        if world.rank == home:
            win.local[tail] = name(home, 0)  # an empty node
        win.fence()
        for i in range(1, per_rank):
            win.put(UNIT * world.rank + i, world.rank, 2 * i + 1)
            win.flush(world.rank)
            before = int(win.fetch_op(name(world.rank, i), home, tail, op="replace"))
            rank, offset = place(before)
            win.accumulate(name(world.rank, i), rank, offset, op="replace")
        if world.rank == home:
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
def test_linked_list_in_a_dynamic_window(world, by, rounds):
    """Each rank attaches nodes (next, value) one by one and hangs them behind the last."""
    nodes = [Guarded(2, "i8") for _ in range(rounds + 1)]
    with rmaext.Window.dynamic(world, dtype="i8") as win:
        nodes[0].array[:] = NONE
        head = win.attach(nodes[0].array)
        head = pointer(0, world.bcast(head))
        last = head
        for i in range(1, rounds + 1):
            nodes[i].array[:] = NONE, 1000 * world.rank + i
            win.sync()
            new = pointer(world.rank, win.attach(nodes[i].array))
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
        for rank in range(world.size):
            mine = [value for value in values[1:] if value // 1000 == rank]
            assert mine == [1000 * rank + i for i in range(1, rounds + 1)]
        assert len(values) == rounds * world.size + 1
        for node in nodes:
            win.detach(node.array)
        win.fence()
    for node in nodes:
        node.check()


def test_memory_comes_and_goes_in_a_dynamic_window(world):
    right, left = neighbour(world), left_of(world)
    parts = [Guarded(count, "i4") for count in (1, 100, 5000)]
    with rmaext.Window.dynamic(world, dtype="i4") as win:
        for turn in range(1, 4):
            places = [win.attach(part.array) for part in parts]
            theirs = world.sendrecv(places, left, source=right)
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
