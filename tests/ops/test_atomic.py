# SPDX-License-Identifier: BSD-3-Clause
"""fetch_add and compare_and_swap."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.guarded import guarded, neighbour, noise, same

INTS = ["i4", "u4", "i8", "u8"]
FLOATS = ["f4", "f8"]


def sample(dtype, count, *seed):
    """Values of every size, all of whose sums are finite."""
    if np.dtype(dtype).kind in "iu":
        return noise(dtype, count, *seed)
    rng = np.random.default_rng(seed)
    return (rng.normal(size=count) * 10.0 ** rng.integers(-9, 9, count)).astype(dtype)


@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_fetch_add_scalars(comm, dtype):
    before, values = sample(dtype, 20, 1), sample(dtype, 20, 2)
    with guarded(comm, 20, dtype, before) as win:
        for i, value in enumerate(values):
            old = win.fetch_add(value, neighbour(comm), i)
            assert type(old) is np.dtype(dtype).type
            assert same(old, before[i])
        win.fence()
        assert same(win.local, before + values)
        win.fence()


@pytest.mark.parametrize("dtype", INTS + FLOATS)
@pytest.mark.parametrize("count", [1, 7, 1000, 30_000])
def test_fetch_add_arrays(comm, dtype, count):
    before, values = sample(dtype, count, 1), sample(dtype, count, 2)
    with guarded(comm, count + 2, dtype) as win:
        win.local[1:-1] = before
        win.fence()
        old = win.fetch_add(values, neighbour(comm), 1)
        assert same(old, before)
        win.fence()
        assert same(win.local[1:-1], before + values)
        assert win.local[0] == win.local[-1] == 0
        win.fence()


@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_compare_and_swap_scalars(comm, dtype):
    before, values = sample(dtype, 20, 1), sample(dtype, 20, 2)
    with guarded(comm, 20, dtype, before) as win:
        for i, value in enumerate(values):
            compare = before[i] if i % 2 else values[i - 1]
            old = win.compare_and_swap(compare, value, neighbour(comm), i)
            assert type(old) is np.dtype(dtype).type
            assert same(old, before[i])
        win.fence()
        want = np.where(np.arange(20) % 2, values, before)
        assert same(win.local, want)
        win.fence()


@pytest.mark.parametrize("dtype", INTS + FLOATS)
@pytest.mark.parametrize("count", [1, 7, 1000, 30_000])
def test_compare_and_swap_arrays(comm, dtype, count):
    before, values = sample(dtype, count, 1), sample(dtype, count, 2)
    compare = np.where(np.arange(count) % 3, before, values)
    with guarded(comm, count + 2, dtype) as win:
        win.local[1:-1] = before
        win.fence()
        old = win.compare_and_swap(compare, values, neighbour(comm), 1)
        assert same(old, before)
        win.fence()
        want = np.where(compare == before, values, before)
        assert same(win.local[1:-1], want)
        assert win.local[0] == win.local[-1] == 0
        win.fence()


def test_forms_of_values(comm):
    rank = neighbour(comm)
    with guarded(comm, (3, 4), "i8") as win:
        assert win.fetch_add(5, rank) == 0
        assert win.fetch_add(np.int64(5), rank) == 5
        assert same(win.fetch_add(np.array(5), rank), np.int64(10))
        assert same(win.fetch_add(np.array([5]), rank), np.array([15]))
        grid = np.arange(12).reshape(3, 4).T[:2]  # packed in C order
        old = win.fetch_add(grid, rank, 4)
        assert same(old, np.zeros((2, 3), "i8"))
        old = win.compare_and_swap(grid, grid + 1, rank, 4)
        assert same(old, grid)
        win.fence()
        assert win.local.ravel()[:4].tolist() == [20, 0, 0, 0]
        assert win.local.ravel()[4:10].tolist() == (grid + 1).ravel().tolist()
        empty = win.fetch_add(np.empty(0, "i8"), rank, 12)
        assert empty.size == 0
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("dtype", INTS)
def test_integers_wrap_around(comm, dtype):
    info = np.iinfo(dtype)
    with guarded(comm, 3, dtype, [info.max, info.min, 3]) as win:
        rank = neighbour(comm)
        assert win.fetch_add(1, rank, 0) == info.max
        one_less = -1 if info.min else info.max
        assert win.fetch_add(one_less, rank, 1) == info.min
        assert win.fetch_add(info.max, rank, 2) == 3
        win.fence()
        want = np.array([info.min, info.max, 3], dtype)
        want[2:] += want.dtype.type(info.max)
        assert same(win.local, want)
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_negative_values(comm, dtype):
    with guarded(comm, 2, dtype) as win:
        rank = neighbour(comm)
        assert win.fetch_add(-5, rank, 1) == 0
        assert win.fetch_add(-7, rank, 1) == -5
        assert win.compare_and_swap(-12, -1, rank, 1) == -12
        win.fence()
        assert win.local.tolist() == [0, -1]
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("dtype", FLOATS)
def test_infinity_and_nan_are_added(comm, dtype):
    with guarded(comm, 3, dtype, [np.inf, 1, -0.0]) as win:
        rank = neighbour(comm)
        assert win.fetch_add(1.0, rank, 0) == np.inf
        assert win.fetch_add(np.nan, rank, 1) == 1
        assert same(win.fetch_add(-0.0, rank, 2), np.array(-0.0, dtype)[()])
        win.fence()
        assert win.local[0] == np.inf
        assert np.isnan(win.local[1])
        assert same(win.local[2], np.array(-0.0, dtype)[()])
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("dtype", FLOATS)
def test_compare_and_swap_of_floats_compares_bits(comm, dtype):
    uint = "u4" if dtype == "f4" else "u8"
    nan = np.array([np.nan, np.nan], dtype)
    nan.view(uint)[1] ^= 1  # another NaN
    start = [0.0, -0.0, nan[0], nan[0], 1.5]
    with guarded(comm, 5, dtype, start) as win:
        rank = neighbour(comm)
        assert win.local.view(uint)[2] == nan.view(uint)[0]
        win.fence()
        for i, compare in enumerate([-0.0, -0.0, nan[0], nan[1], 1.5]):
            old = win.compare_and_swap(np.array(compare, dtype)[()], 9.0, rank, i)
            assert same(old, np.array(start[i], dtype)[()])
        win.fence()
        assert same(win.local, np.array([0.0, 9, 9, nan[0], 9], dtype))
        win.fence()


def counter(comm, target, draws):
    """Every value is drawn once and the own draws ascend."""
    with guarded(comm, 3, "i8") as win:
        mine = [int(win.fetch_add(1, target, 1)) for _ in range(draws)]
        win.fence()
        assert mine == sorted(set(mine))
        everything = comm.allgather(mine)
        if comm.rank == target:
            total = draws * comm.size
            assert win.local.tolist() == [0, total, 0]
            assert sorted(itertools.chain(*everything)) == list(range(total))
        win.fence()


@pytest.mark.parametrize("target", [0, -1])
def test_counter_gives_each_value_once(comm, target):
    counter(comm, target % comm.size, 500)


@pytest.mark.stress
@pytest.mark.parametrize("route", [None, "fabric"])
def test_counter_with_8_ranks(mpirun, route):
    code = """
        import numpy as np, rmaext
        from mpi4py import MPI
        comm, draws = MPI.COMM_WORLD, 20_000
        with rmaext.Window(comm, np.zeros(3, "i8")) as win:
            mine = [int(win.fetch_add(1, 0, 1)) for _ in range(draws)]
            win.fence()
            assert mine == sorted(set(mine))
            everything = comm.gather(mine)
            if comm.rank == 0:
                assert sorted(sum(everything, [])) == list(range(draws * comm.size))
                assert win.local.tolist() == [0, draws * comm.size, 0]
                print("each once")
    """
    done = mpirun(8, code, timeout=300, env={"RMAEXT_ROUTE": route})
    assert done.returncode == 0, done.stderr
    assert "each once" in done.stdout


@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_all_ranks_add_to_all_ranks(comm, dtype):
    """The own rank, by whatever route, mixed with the others."""
    with guarded(comm, 4, dtype) as win:
        for i in range(40):
            for rank in range(comm.size):
                win.fetch_add(i % 5, rank, i % 3)
        win.fence()
        total = np.zeros(4, dtype)
        np.add.at(total, np.arange(40) % 3, (np.arange(40) % 5).astype(dtype))
        assert same(win.local, total * np.dtype(dtype).type(comm.size))
        win.fence()


def test_all_ranks_add_arrays_to_one(comm):
    """Atomic per element, also where an operation is cut into chunks."""
    count = 5000
    ramp = np.arange(count) - 2
    with guarded(comm, count, "i8") as win:
        for _ in range(10):
            win.fetch_add(ramp, 0)
        win.fence()
        if comm.rank == 0:
            assert same(win.local, 10 * comm.size * ramp)
        win.fence()


def test_only_one_rank_wins_a_swap(comm):
    with guarded(comm, 50, "i4", -1) as win:
        rank = comm.size - 1
        wins = [win.compare_and_swap(-1, comm.rank, rank, i) == -1 for i in range(50)]
        winners = np.array(comm.allgather(wins))
        assert (winners.sum(axis=0) == 1).all()
        assert same(win.get(rank), winners.argmax(axis=0).astype("i4"))
        win.fence()


def test_spin_lock(comm):
    """A lock by compare_and_swap protects a plain get and put."""
    lock, total, rounds = 0, 1, 10
    owner = comm.size - 1
    with guarded(comm, 2, "i8") as win:
        for _ in range(rounds):
            while win.compare_and_swap(0, comm.rank + 1, owner, lock) != 0:
                pass
            seen = int(win.get(owner, total, 1)[0])
            win.put(seen + 1, owner, total)
            win.flush(owner)
            old = win.compare_and_swap(comm.rank + 1, 0, owner, lock)
            assert old == comm.rank + 1
        win.fence()
        if comm.rank == owner:
            assert win.local.tolist() == [0, rounds * comm.size]
        win.fence()


def test_increments_by_compare_and_swap(comm):
    with guarded(comm, 1, "f8") as win:
        for _ in range(40):
            seen, old = None, win.get(0)[0]
            while seen != old:
                seen = old
                old = win.compare_and_swap(seen, seen + 1, 0)
        win.fence()
        assert win.get(0)[0] == 40 * comm.size
        win.fence()


def test_adds_and_swaps_mix(comm):
    """A swap between two adds is lost by neither."""
    with guarded(comm, 1, "i8") as win:
        swapped = 0
        for i in range(100):
            if i % 2:
                win.fetch_add(1, 0)
            else:
                now = int(win.get(0)[0])
                if win.compare_and_swap(now, now + 1000, 0) == now:
                    swapped += 1
        win.fence()
        total = comm.allreduce(swapped)
        assert win.get(0)[0] == 50 * comm.size + 1000 * total
        assert total > 0
        win.fence()


def test_put_then_flush_then_add(comm):
    """flush orders a put before the atomic that follows it."""
    rank = neighbour(comm)
    with guarded(comm, 5000, "i4") as win:
        for i in range(50):
            win.put(np.full(5000, i, "i4"), rank)
            win.flush(rank)
            assert win.fetch_add(1, rank, 4999) == i
            assert win.get(rank, 4999)[0] == i + 1
        win.fence()


def test_atomics_see_and_are_seen_by_put_and_get(comm):
    with guarded(comm, comm.size, "i8") as win:
        for rank in range(comm.size):
            win.put(10 * rank, rank, comm.rank)
            win.flush(rank)
            assert win.fetch_add(comm.rank, rank, comm.rank) == 10 * rank
            assert win.get(rank, comm.rank, 1)[0] == 10 * rank + comm.rank
        win.fence()
        want = 10 * comm.rank + np.arange(comm.size)
        assert same(win.local, want)
        win.fence()
