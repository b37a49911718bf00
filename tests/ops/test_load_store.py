# SPDX-License-Identifier: BSD-3-Clause
"""load and store: atomic reads and writes of elements."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.guarded import guarded, neighbour, same

import rmaext
from rmaext._memory.arrays import atomic_dtypes


def numbers(dtype, count, seed):
    """Not `noise`: padding is not kept, and NaN does not equal itself."""
    array = np.zeros(count, dtype)
    for name in array.dtype.names or (...,):
        part = array[name]
        part[...] = np.random.default_rng(seed).integers(0, 100, count).astype(part.dtype)
    return array


@pytest.mark.parametrize("dtype", atomic_dtypes(), ids=str)
def test_every_dtype(comm, dtype):
    """One element, and several; what is stored is there at once, and nothing beside it."""
    before, values = numbers(dtype, 9, 1), numbers(dtype, 9, 2)
    peer = neighbour(comm)
    with guarded(comm, 9, dtype, before) as win:
        got = win.load(peer, 3)
        assert np.asarray(got).dtype == win.dtype
        assert got.tolist() == before[3].tolist()
        assert win.load(peer, 2, count=5).tolist() == before[2:7].tolist()
        assert same(win.load(peer, offset=9, count=0), before[:0])
        win.fence()
        win.store(values[4], peer, 4)
        win.store(values[6:8].reshape(2, 1), peer, 6)
        comm.Barrier()  # no flush
        before[4], before[6:8] = values[4], values[6:8]
        assert win.local.tolist() == before.tolist()
        assert win.load(peer, count=9).tolist() == before.tolist()
        win.fence()


def test_plain_numbers(comm):
    with guarded(comm, 3, "i8") as win:
        win.store(5, comm.rank)
        win.store([6, 7], rank=comm.rank, offset=1)
        assert win.local.tolist() == [5, 6, 7]
        assert type(win.load(comm.rank, offset=1)) is np.int64
        win.fence()
    with guarded(comm, 2, bool) as win:
        win.store(True, comm.rank, 1)
        assert [bool(win.load(comm.rank, i)) for i in range(2)] == [False, True]
        win.fence()


def test_long_ones(comm):
    count, peer = 40_000, neighbour(comm)
    with guarded(comm, count + 2) as win:
        win.store(np.arange(count) + 0.5, peer, 1)
        comm.Barrier()
        assert same(win.load(peer, 1, count), np.arange(count) + 0.5)
        assert win.local[0] == win.local[-1] == 0
        win.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("apart", [False, True])
def test_sequentially_consistent(world, apart):
    """Two ranks that store, then load what the other stores: one of them sees the other's."""
    rounds, me = 400, world.rank
    with guarded(world, 2 * rounds, "i8") as win:
        seen = np.ones(rounds, "i8")
        if me < 2:
            for k in range(rounds):
                places = [(0, 2 * k), (1 if apart else 0, 2 * k + 1)]
                win.store(1, *places[me])
                seen[k] = win.load(*places[1 - me])
        both = world.allgather(seen)
        assert (both[0] + both[1] > 0).all()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_tells_of_what_was_flushed(world):
    """Who has loaded a number finds what was put and flushed before it was stored."""
    last = world.size - 1
    with guarded(world, 3001, "i8") as win:
        deadline = time.monotonic() + 60
        for k in range(1, 20):
            if world.rank == 0:
                win.put(np.full(3000, k), last, 1)
                win.flush(last)
                win.store(k, last)
            while world.rank and (now := win.load(last)) < k:
                assert time.monotonic() < deadline
            if world.rank:
                assert win.get(last, 1, 3000).min() >= now >= k
            world.Barrier()
        win.fence()


@pytest.mark.pair
def test_refusals(comm):
    with guarded(comm, 4, "i8", fill=3) as win:
        with pytest.raises(rmaext.BoundsError, match="load: window"):
            win.load(comm.rank, 2, count=3)
        with pytest.raises(ValueError, match=r"load: window \S+: count -1"):
            win.load(comm.rank, 0, -1)
        for wrong, error in ((1.5, TypeError), (2**70, OverflowError), ("a", TypeError)):
            with pytest.raises(error):
                win.store(wrong, comm.rank)
        win.fence()
        assert win.local.tolist() == [3] * 4


def test_other_kinds_of_windows(comm):
    """Where one operation is several in C, and where the elements lie apart."""
    peer = neighbour(comm)
    with rmaext.Window(comm, [np.zeros(2), np.zeros(3)]) as win:
        win.store(np.arange(4.0), peer, 1)
        comm.Barrier()
        assert [array.tolist() for array in win.local] == [[0, 0], [1, 2, 3]]
        assert win.load(peer, 1, 3).tolist() == [0, 1, 2]
        win.fence()
    with guarded(comm, 5, [("a", "i8"), ("b", "f8")]) as win:
        field = win.field("b")
        field.store([1.0, 2.0], peer, 3)
        comm.Barrier()
        assert win.local["b"].tolist() == [0, 0, 0, 1, 2]
        assert field.load(peer, 4) == 2
        win.fence()
