# SPDX-License-Identifier: BSD-3-Clause
"""Several arrays of each rank as one window."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import Guarded, neighbour, noise, same

import rmaext

SIZES = [7, 0, 1, 20, 5]
TOTAL = sum(SIZES)


@contextlib.contextmanager
def joined(comm, sizes=SIZES, dtype=float):
    """A window over guarded arrays, checked at the end."""
    arrays = [Guarded(n, dtype) for n in sizes]
    with rmaext.Window(comm, [a.array for a in arrays]) as win:
        yield win
    for array in arrays:
        array.check()


def whole(win):
    return np.concatenate([array.reshape(-1) for array in win.local])


@pytest.mark.parametrize("dtype", ["i1", "f8", "c16", "i2,f8"])
def test_put_and_get(comm, dtype):
    """Over every seam, at every place."""
    peer = neighbour(comm)
    with joined(comm, dtype=dtype) as win:
        assert win.size(peer) == TOTAL
        assert [a.size for a in win.local] == SIZES
        assert win.dtype == np.dtype(dtype)
        win.fence()
        data = noise(dtype, TOTAL, comm.rank)
        win.put(data, peer)
        win.flush(peer)
        assert same(win.get(peer), data)
        for first in range(TOTAL):
            for count in (0, 1, 2, 9, TOTAL - first):
                if first + count <= TOTAL:
                    assert same(win.get(peer, first, count), data[first : first + count])
        win.fence()
        mine = noise(dtype, TOTAL, (comm.rank - 1) % comm.size)
        assert same(whole(win), mine)
        out = np.zeros((2, 5), dtype)
        assert win.get(comm.rank, 4, out=out) is out
        assert same(out.reshape(-1), mine[4:14])
        win.fence()


def test_within_an_array_nothing_is_done_in_python(comm, monkeypatch):
    """A call that crosses no seam goes straight to the array's window, in C."""
    peer, ends = comm.rank, np.cumsum(SIZES)
    with joined(comm, dtype="i8") as win:
        if not comm.allreduce(win.route(peer) == "direct", MPI.LAND):
            pytest.skip("not by memory")
        for name in ("put", "get", "fetch_add", "compare_and_swap", "accumulate", "store", "load"):
            monkeypatch.setattr(type(win), f"_{name}", None)
        for at in range(TOTAL):
            win.put(at + 1, peer, at)
            win.flush(peer)
            assert win.get(peer, at, 1) == at + 1
            assert win.fetch_add(5, peer, at) == at + 1
            assert win.compare_and_swap(at + 6, -at, peer, at) == at + 6
            win.accumulate(1, peer, at)
            win.flush(peer)
            assert win.load(peer, at) == 1 - at
            win.store(at, peer, at)
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            assert win.get(peer, first, end - first).tolist() == [*range(first, end)]
        with pytest.raises(TypeError):  # the last of the array and the first of the next
            win.get(peer, ends[0] - 1, 2)
        win.fence()


def test_long_transfers(comm):
    sizes, peer = [100_000, 300_001, 7], neighbour(comm)
    with joined(comm, sizes) as win:
        data = np.arange(sum(sizes)) + float(comm.rank)
        win.put(data, peer)
        win.fence()
        assert same(whole(win), np.arange(sum(sizes)) + float((comm.rank - 1) % comm.size))
        assert same(win.get(peer), data)
        win.fence()


def test_atomics(comm):
    p = comm.size
    with joined(comm, dtype="i8") as win:
        got = [int(win.fetch_add(np.full(4, 1), 0, 6)[2]) for _ in range(20)]  # 7 | 8 | 9, 10
        assert sorted(np.ravel(comm.allgather(got))) == list(range(20 * p))
        win.fence()
        assert win.fetch_add(5, comm.rank, 27) == 0
        assert win.compare_and_swap(5, 6, comm.rank, 27) == 5
        old = win.compare_and_swap(np.zeros(9, "i8"), np.ones(9, "i8"), comm.rank, 22)
        assert old.tolist() == [0] * 5 + [6] + [0] * 3
        want = np.zeros(TOTAL, "i8")
        want[6:10] = 20 * p if comm.rank == 0 else 0
        want[22:31], want[27] = 1, 6
        assert same(whole(win), want)
        win.fence()


def test_all_updates(comm):
    with joined(comm, dtype="i8") as win:
        for _ in range(5):
            win.accumulate(np.arange(20), 0, 5)
        win.fence()
        want = np.zeros(TOTAL, "i8")
        want[5:25] = 5 * comm.size * np.arange(20) if comm.rank == 0 else 0
        assert same(whole(win), want)
        old = win.get_accumulate(np.full(TOTAL, 7), comm.rank, op="max")
        assert same(old, want)
        assert same(
            win.get_accumulate(np.zeros(9, "i8"), comm.rank, 3, op="no_op"),
            np.maximum(want, 7)[3:12],
        )
        assert win.fetch_op(3, comm.rank, 7, op="replace") == max(want[7], 7)
        assert win.fetch_op_many(comm.rank, [7, 8], 2, op="prod").tolist() == [3, max(want[8], 7)]
        win.fence()


def test_many(comm):
    p, rng = comm.size, np.random.default_rng(comm.rank)
    with joined(comm, dtype="i8") as win:
        ranks, offsets = rng.integers(0, p, (30, 40)), rng.integers(0, TOTAL, (30, 40))
        win.accumulate_many(ranks, offsets, 1)
        counts = np.zeros((p, TOTAL), "i8")
        np.add.at(counts, (ranks, offsets), 1)
        win.fence()
        assert same(whole(win), sum(comm.allgather(counts))[comm.rank])
        comm.Barrier()
        every = np.arange(TOTAL)
        win.put_many(comm.rank, every, every)
        assert same(whole(win), every)
        comm.Barrier()
        assert same(win.get_many(ranks, offsets), offsets)
        out = np.zeros((30, 40), "i8")
        assert win.get_many(ranks, offsets, out=out) is out
        assert same(out, offsets)
        comm.Barrier()
        old = win.fetch_add_many(comm.rank, [3, 8, 3, 30, 8], 10)
        assert old.tolist() == [3, 8, 13, 30, 18]
        assert win.get_many(comm.rank, 3).shape == ()
        win.fence()


def test_bounds(comm):
    peer = neighbour(comm)
    with joined(comm) as win:
        for call in (
            lambda: win.put(np.ones(3), peer, TOTAL - 2),
            lambda: win.put(1.0, peer, -1),
            lambda: win.put(1.0, comm.size),
            lambda: win.get(peer, TOTAL, 1),
            lambda: win.fetch_add(np.ones(2), peer, TOTAL - 1),
            lambda: win.put_many(peer, [0, TOTAL], 1.0),
            lambda: win.get_many([0, comm.size], 0),
            lambda: win.get_many(peer, [0, -1]),
            lambda: win.prepare_put(np.ones(3), peer, TOTAL - 2),
        ):
            with pytest.raises(rmaext.BoundsError):
                call()
        with pytest.raises(TypeError):
            win.put(np.ones(3, "i4"), peer)
        with pytest.raises(ValueError, match="out"):
            win.get_many(peer, [0, 1], out=np.zeros(3))
        win.put(7.0, peer, TOTAL - 1)
        win.prepare_put(np.full(4, 3.0), peer, 6)()
        win.register(np.full(4, 4.0)).put(peer, 11)
        win.fence()
        assert whole(win).sum() == 7 + 12 + 16
        assert whole(win)[6:10].tolist() == [3] * 4
        win.fence()


def test_rights_of_each_array(comm):
    """Refused before the first array is written."""
    peer = neighbour(comm)
    arrays = [np.zeros(3), np.zeros(3)]
    arrays[1].flags.writeable = False
    with rmaext.Window(comm, arrays) as win:
        for call in (
            lambda: win.put(np.ones(5), peer, 1),
            lambda: win.put_many(peer, [0, 4], 1.0),
            lambda: win.fetch_add(np.ones(5), peer),
        ):
            with pytest.raises(rmaext.AccessError):
                call()
        assert not win.get(peer).any()
        win.put(np.ones(3), peer)
        win.fence()
        assert win.local[0].all()
    with pytest.raises(rmaext.AccessError):
        rmaext.Window(comm, arrays, access="rw")


def test_numbers_that_differ(comm):
    """Each rank has as many arrays as it likes."""
    sizes = [4] * (comm.rank + 1)
    with joined(comm, sizes) as win:
        for rank in range(comm.size):
            assert win.size(rank) == 4 * (rank + 1)
            if rank == comm.rank:
                win.put(np.arange(win.size(rank), dtype=float), rank)
        win.fence()
        last = comm.size - 1
        assert same(win.get(last), np.arange(4.0 * comm.size))
        assert len(win.local) == len(win.memory) == comm.rank + 1
        assert win.memory[-1].size == 32
        win.fence()
    with rmaext.Window(comm, (np.zeros((2, 3)),)) as win:
        win.put(np.arange(6.0).reshape(2, 3), neighbour(comm))
        win.fence()
        assert same(win.local[0], np.arange(6.0).reshape(2, 3))


def test_peer_view(comm):
    with joined(comm) as win:
        win.local[3][:] = comm.rank
        win.fence()
        for rank in range(comm.size):
            if win.route(rank) == "direct":
                views = win.peer_view(rank)
                assert [view.size for view in views] == SIZES
                assert (views[3] == rank).all()
            else:
                with pytest.raises(rmaext.NotLocalError):
                    win.peer_view(rank)
        win.fence()


@pytest.mark.pair
def test_wrong_arguments(comm):
    """The same error on all ranks, for the mistake of one."""
    last = comm.size - 1
    good = [np.zeros(3), np.zeros(2)]
    for wrong, error in (
        ([], ValueError),
        ([np.zeros(3), 4], TypeError),
        ([np.zeros(3), np.zeros(3, "i4")], TypeError),
        ([np.zeros((4, 4))[:, 1]], ValueError),
        ([np.zeros(3, object)], TypeError),
        ([np.zeros(3, "i4")] * 2, TypeError),
    ):
        if wrong and getattr(wrong[0], "dtype", None) == "i4" and not last:
            continue
        with pytest.raises(error, match=f"rank {last}"):
            rmaext.Window(comm, wrong if comm.rank == last else good)
    if last:
        with pytest.raises(TypeError, match="list of arrays"):
            rmaext.Window(comm, good if comm.rank == last else good[0])
    with joined(comm) as win:
        for call in (
            lambda: win.subwindow(0, 1),
            win.dup,
            lambda: win.field("a"),
            lambda: win.numba,
        ):
            with pytest.raises(rmaext.Unsupported):
                call()
        win.fence()


def test_close(comm):
    win = rmaext.Window(comm, array=[np.zeros(3), np.zeros(4)])
    put = win.prepare_put(np.ones(7), neighbour(comm))
    put()
    arrays = win.local
    win.close()
    win.close()
    assert [array.all() for array in arrays] == [True, True]
    for call in (
        put,
        win.flush,
        win.fence,
        lambda: win.get(0),
        lambda: win.get_many(0, 0),
        lambda: win.peer_view(0),
    ):
        with pytest.raises(rmaext.ClosedError):
            call()
    for _ in range(20):
        rmaext.Window(comm, [np.zeros(3), np.zeros(4)]).close()
    win = rmaext.Window(comm, [np.zeros(3), np.zeros(4)])
    with pytest.raises(ZeroDivisionError), win:
        raise ZeroDivisionError
    with pytest.warns(ResourceWarning):
        forget([rmaext.Window(comm, [np.zeros(3), np.zeros(4)])])
    comm.Barrier()


def forget(windows):
    windows.clear()
    gc.collect()
