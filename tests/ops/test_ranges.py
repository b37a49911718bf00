# SPDX-License-Identifier: BSD-3-Clause
"""get_ranges, put_ranges, compare_and_swap_many, and requests of calls on many places."""

from __future__ import annotations

import asyncio
import gc
import threading

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, neighbour

import rmaext

SIZE = 6000  # elements; a range of all is longer than a message, and than a read's least
LENGTHS = [0, 1, 7, 300, 2100, SIZE // 2]


def numbers(rank, size=SIZE, dtype="i8"):
    """Return what a rank's window has at first."""
    return (np.arange(size) + 100_000 * rank).astype(dtype)


def some_ranges(comm, count, longest, *seed):
    rng = np.random.default_rng((count, longest, *seed))
    counts = rng.integers(0, longest + 1, count)
    return rng.integers(0, comm.size, count), rng.integers(0, SIZE - longest, count), counts


def one_after_another(ranks, offsets, counts):
    parts = [numbers(r)[o : o + n] for r, o, n in zip(ranks, offsets, counts, strict=True)]
    return np.concatenate([np.zeros(0, "i8"), *parts])


@pytest.fixture(params=["allocate", "array"])
def filled(request, comm):
    """A window of consecutive numbers; by memory, or of an array that the kernel copies."""
    mine = numbers(comm.rank)
    if request.param == "array":
        win = rmaext.Window(comm, mine)
    else:
        win = rmaext.Window.allocate(comm, SIZE, "i8")
        win.local[:] = mine
    with win:
        win.fence()
        yield win
        win.fence()


# -- ranges --------------------------------------------------------------------------


@pytest.mark.parametrize("longest", LENGTHS)
@pytest.mark.parametrize("count", [0, 1, 5, 90])
def test_get_ranges(comm, filled, count, longest):
    ranks, offsets, counts = some_ranges(comm, count, longest, comm.rank)
    want = one_after_another(ranks, offsets, counts)
    got = filled.get_ranges(ranks, offsets, counts)
    assert got.dtype == filled.dtype
    assert np.array_equal(got, want)
    out = np.full(want.size, -1)
    assert filled.get_ranges(ranks, offsets, counts, out) is out
    assert np.array_equal(out, want)
    assert np.array_equal(filled.rget_ranges(ranks, offsets, counts).wait(), want)


def test_get_ranges_of_scalars_and_shapes(comm, filled):
    right = neighbour(comm)
    want = numbers(right)
    assert np.array_equal(filled.get_ranges(right, 5, 3), want[5:8])
    assert np.array_equal(filled.get_ranges(right, [5, 9], 2), want[[5, 6, 9, 10]])
    assert np.array_equal(filled.get_ranges([right, right], 5, [1, 2]), want[[5, 5, 6]])
    square = filled.get_ranges(right, np.array([[1, 2], [3, 4]], "u2"), 1)
    assert np.array_equal(square, want[1:5])
    strided = np.arange(0, 40)[::4]
    assert np.array_equal(filled.get_ranges(right, strided, 1), want[strided])
    shaped = np.empty((3, 2), "i8")
    assert filled.get_ranges(right, 0, 6, out=shaped) is shaped
    assert np.array_equal(shaped.reshape(-1), want[:6])


@pytest.mark.parametrize("longest", LENGTHS[1:])
def test_put_ranges(comm, longest):
    """Each origin has a third of every window for each of its three calls."""
    part = 2 * longest
    with guarded(comm, 3 * comm.size * part, "i8") as win:
        win.local[:] = -1
        win.fence()
        rng = np.random.default_rng((longest, comm.rank))
        first = 3 * comm.rank * part
        # ranges of one call do not overlap: one in each half, and one to each rank
        ranks = np.repeat(np.arange(comm.size), 2)
        counts = rng.integers(0, longest + 1, ranks.size)
        offsets = first + np.tile([0, longest], comm.size)
        values = rng.integers(0, 99, counts.sum())
        win.put_ranges(ranks, offsets, counts, values)
        assert np.array_equal(win.get_ranges(ranks, offsets, counts), values)
        request = win.rput_ranges(ranks, offsets + part, counts, values)
        win.rput_ranges(ranks, offsets + 2 * part, counts, values).free()
        assert request.wait() is None
        win.flush()
        comm.Barrier()
        everybody = comm.allgather((ranks, offsets, counts, values))
        want = np.full(win.local.size, -1)
        for origin in everybody:
            at = 0
            for rank, offset, count in zip(*origin[:3], strict=True):
                if rank == comm.rank:
                    for shift in (0, part, 2 * part):
                        start = offset + shift
                        want[start : start + count] = origin[3][at : at + count]
                at += count
        assert np.array_equal(win.local, want)
        comm.Barrier()


@pytest.mark.parametrize("dtype", ["u1", "f4", "c16", "S3", "i2,f8"])
def test_ranges_of_other_dtypes(comm, dtype):
    with guarded(comm, 40, dtype) as win:
        raw = win.local.view("u1")
        raw[:] = np.arange(raw.size) % 251
        comm.Barrier()
        ranks, offsets, counts = [neighbour(comm), comm.rank], [3, 30], [5, 10]
        got = win.get_ranges(ranks, offsets, counts)
        want = np.concatenate([win.local[3:8], win.local[30:40]])
        assert got.tobytes() == want.tobytes()
        comm.Barrier()


@pytest.mark.pair
@pytest.mark.parametrize(
    ("places", "words"),
    [
        (([0, -1], 0, 1), r"range \[1\], rank -1, offset 0, length 1: there are ranks 0 to"),
        (("size", 0, 1), r"window \d+, rank \d, offset 0, length 1: there are ranks 0 to"),
        ((0, [0, SIZE - 1], 2), rf"range \[1\], .* outside the {SIZE} elements there"),
        ((0, [5, -1], 2), r"range \[1\], rank 0, offset -1, length 2: outside"),
        ((0, 0, [3, -1]), r"range \[1\], rank 0, offset 0, length -1: outside"),
        ((0, 2**62, 2**62), "outside"),
        ((0, 0, [2**62, 2**62, 2**62, 2**62]), "outside"),
        ((0, 0, 10**12), "outside"),
        ((0, 2**70, 1), "outside any window"),
    ],
)
def test_ranges_outside(comm, filled, places, words):
    places = [comm.size if it == "size" else it for it in places]
    for call in (filled.get_ranges, filled.rget_ranges):
        with pytest.raises(rmaext.BoundsError, match=words):
            call(*places)
    for call in (filled.put_ranges, filled.rput_ranges):
        with pytest.raises((rmaext.BoundsError, ValueError)):
            call(*places, np.zeros(2, "i8"))
    comm.Barrier()
    assert np.array_equal(filled.local, numbers(comm.rank))  # nothing was sent


@pytest.mark.pair
def test_arguments_of_ranges(comm, filled):
    with pytest.raises(TypeError, match="counts must be integers"):
        filled.get_ranges(0, 0, 1.5)
    with pytest.raises(ValueError, match="out has 3 elements, the ranges have 2"):
        filled.get_ranges(0, 0, 2, out=np.zeros(3, "i8"))
    with pytest.raises(ValueError, match="values has 3 elements, the ranges have 2"):
        filled.put_ranges(0, 0, 2, [1, 2, 3])
    with pytest.raises(TypeError):
        filled.get_ranges(0, 0, 2, out=np.zeros(2))
    with pytest.raises(TypeError):
        filled.put_ranges(0, 0, 2, [1.5, 2.5])
    with pytest.raises(ValueError, match="broadcast"):
        filled.get_ranges([0, 0], [0, 0, 0], 1)
    comm.Barrier()
    assert np.array_equal(filled.local, numbers(comm.rank))


def test_ranges_to_nobody(comm):
    """What is for MPI.PROC_NULL is left out: results are 0, or as they were."""
    null = MPI.PROC_NULL
    with rmaext.Window.allocate(comm, 9, "i8", proc_null=True) as win:
        win.local[:] = np.arange(9)
        win.fence()
        assert win.get_ranges([null, 0], 3, 2).tolist() == [0, 0, 3, 4]
        out = np.full(4, 7)
        win.rget_ranges([0, null], 3, 2, out=out).wait()
        assert out.tolist() == [3, 4, 7, 7]
        win.fence()
        win.put_ranges([null, comm.rank], 3, 2, [7, 7, 8, 8])
        assert win.rget_many([null, comm.rank], 3).wait().tolist() == [0, 8]
        assert win.rfetch_op_many([null, comm.rank], 4, 1).wait().tolist() == [0, 8]
        win.fence()
        assert win.local.tolist() == [0, 1, 2, 8, 9, 5, 6, 7, 8]
        win.fence()


# -- other kinds of windows ------------------------------------------------------------


def test_ranges_of_views(comm, filled):
    right = neighbour(comm)
    view = filled.subwindow(100, 200)
    got = view.get_ranges(right, [0, 98], [3, 2])
    assert np.array_equal(got, numbers(right)[[100, 101, 102, 198, 199]])
    with pytest.raises(rmaext.BoundsError):
        view.get_ranges(right, 99, 2)
    assert np.array_equal(view.rget_many(right, [0, 99]).wait(), numbers(right)[[100, 199]])


def test_ranges_of_fields(comm):
    records = np.zeros(20, [("a", "i4"), ("b", "i8")])
    with rmaext.Window(comm, records) as win:
        win.local["b"] = np.arange(20)
        win.fence()
        field = win.field("b")
        assert field.get_ranges(0, [3, 17], [2, 3]).tolist() == [3, 4, 17, 18, 19]
        win.fence()
        field.put_ranges(comm.rank, [0, 5], [1, 2], [7, 8, 9])
        assert field.rget_many(comm.rank, [0, 5, 6]).wait().tolist() == [7, 8, 9]
        assert records["a"].tolist() == [0] * 20
        win.fence()


def test_ranges_of_several_arrays(comm):
    parts = [np.arange(5), np.arange(5, 12)]
    with rmaext.Window(comm, parts) as win:
        win.fence()
        assert win.get_ranges(0, [3, 0], [4, 2]).tolist() == [3, 4, 5, 6, 0, 1]
        with pytest.raises(rmaext.BoundsError):
            win.get_ranges(0, 10, 3)
        assert win.rget_many(0, [11, 4]).wait().tolist() == [11, 4]
        win.fence()


def test_ranges_of_what_is_attached(comm):
    mine = np.arange(30) + 1000 * comm.rank
    with rmaext.Window.dynamic(comm, "i8") as win:
        place = win.attach(mine)
        places = comm.allgather(int(place))
        right = neighbour(comm)
        got = win.get_ranges(right, [places[right], places[right] + 20], [2, 3])
        assert got.tolist() == [1000 * right + k for k in (0, 1, 20, 21, 22)]
        win.fence()


# -- updates ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i1", "u4", "i8", "f8", "c8", "c16", "g", "?"])
def test_compare_and_swap_many(comm, dtype):
    """Each element is replaced by one rank only, which alone sees what was there first."""
    p = comm.size
    with guarded(comm, 90, dtype) as win:
        win.fence()
        rng = np.random.default_rng(3)  # alike on all ranks
        index = rng.permutation(90 * p)
        ranks, offsets = index // 90, index % 90
        mine = np.asarray(1 + comm.rank % 100).astype(win.dtype)
        for call in (win.compare_and_swap_many, win.rcompare_and_swap_many):
            before = call(ranks, offsets, win.dtype.type(0), mine)
            before = before.wait() if isinstance(before, rmaext.Request) else before
            won = before == 0
            assert before.dtype == win.dtype
            win.fence()
            winners = np.zeros(90 * p, int)
            winners[index[won]] = 1
            total = comm.allreduce(winners)
            assert total.tolist() == [1] * (90 * p)
            after = win.get_many(ranks, offsets)
            assert (after[won] == mine).all()
            win.fence()
            win.local[:] = 0
            win.fence()


def test_compare_and_swap_many_in_order(comm):
    with rmaext.Window.allocate(comm, 4, "i8") as win:
        me = comm.rank
        for call in (win.compare_and_swap_many, lambda *a: win.rcompare_and_swap_many(*a).wait()):
            got = call(me, [1, 1, 2, 1], [0, 5, 9, 5], [5, 6, 1, 7])
            assert got.tolist() == [0, 5, 0, 6]
            assert win.local.tolist() == [0, 6, 0, 0]
            win.local[1] = 0
        one = win.compare_and_swap_many(me, 3, 0, 8)
        assert (one, one.shape) == (0, ())
        assert win.compare_and_swap_many(me, [[3], [3]], 8, [9, 8]).shape == (2, 2)
        with pytest.raises(ValueError, match="broadcast"):
            win.compare_and_swap_many(me, 3, [0, 0], [1, 2, 3])
        win.fence()
    with rmaext.Window.allocate(comm, 4, "S3") as win:
        with pytest.raises(rmaext.Unsupported, match=r"compare_and_swap_many: .* compare and swap"):
            win.compare_and_swap_many(0, 0, np.array(b"a", "S3"), np.array(b"b", "S3"))
        win.fence()


def test_requests_of_updates(comm):
    """Sums are exact; each value that was there is returned once."""
    p, n = comm.size, 700
    with rmaext.Window.allocate(comm, 10, "i8") as win:
        ranks, offsets = np.arange(n) % p, np.arange(n) // p % 10
        requests = [win.rfetch_op_many(ranks, offsets, 1), win.rfetch_op_many(ranks, offsets, 1)]
        win.raccumulate_many(ranks, offsets, 1).free()
        first, second = rmaext.Request.waitall(requests)
        win.flush()
        win.fence()
        each = np.zeros((p, 10), int)
        np.add.at(each, (ranks, offsets), 1)
        assert np.array_equal(win.local, 3 * p * each[comm.rank])
        seen = comm.gather(list(zip(ranks, offsets, first, second, strict=True)))
        if seen:
            values = {(r, o): [] for r in range(p) for o in range(10)}
            for rank, offset, *old in (one for some in seen for one in some):
                values[rank, offset] += old
            for (rank, offset), old in values.items():
                assert len(set(old)) == len(old)
                assert all(0 <= value < 3 * p * each[rank, offset] for value in old)
        win.fence()


def test_order_of_requests_of_updates(comm):
    """Updates of one origin apply in the order in which they are begun."""
    with rmaext.Window.allocate(comm, (comm.size, 600), "i8") as win:
        right, first = neighbour(comm), 600 * comm.rank
        offsets = first + np.arange(600)
        for k in range(5):
            win.raccumulate_many(right, offsets, k, op="replace")
            win.raccumulate(np.full(600, 10), right, first)
        win.flush()
        assert (win.get(right, first, 600) == 14).all()
        win.fence()


# -- requests --------------------------------------------------------------------------


def test_many_requests_at_once(comm, filled):
    places = [some_ranges(comm, 40, 100, comm.rank, k) for k in range(60)]
    requests = [filled.rget_ranges(*some) for some in places]
    while not rmaext.Request.testall(requests):
        pass
    for some, request in zip(places, requests, strict=True):
        assert request.done
        assert np.array_equal(request.wait(), one_after_another(*some))


def test_dropped_requests(comm, filled):
    for k in range(200):
        filled.rget_ranges(*some_ranges(comm, 20, 200, comm.rank, k))
    gc.collect()
    request = filled.rget_ranges(*some_ranges(comm, 20, 200, comm.rank, 0))
    request.free()
    with pytest.raises(rmaext.SyncError):
        request.wait()
    filled.flush()


def test_await(comm, filled):
    async def get(k):
        some = some_ranges(comm, 30, 300, comm.rank, k)
        return np.array_equal(await filled.rget_ranges(*some), one_after_another(*some))

    async def all_of_them():
        return await asyncio.gather(*(get(k) for k in range(20)))

    assert all(asyncio.run(all_of_them()))


def test_state_of_requests(comm, filled):
    request = filled.rget_ranges(neighbour(comm), [0, 3000], [5, 2000])
    assert "rget_ranges" in repr(request) or request.done
    assert request.cancel() is False
    assert request.result().size == 2005
    assert request.test()
    assert request.wait(timeout=0) is request.result()


def test_indices_that_change(comm, filled):
    """Another thread changes ranks, offsets and counts: results or errors, but no damage."""
    stop = threading.Event()
    ranks, offsets, counts = np.zeros(300, int), np.zeros(300, int), np.full(300, 3)

    def change():
        rng = np.random.default_rng(5)
        while not stop.is_set():
            ranks[:] = rng.integers(-1, comm.size + 1, 300)
            offsets[:] = rng.integers(-1, SIZE, 300)
            counts[:] = rng.integers(-1, 9, 300)
            ranks[:], offsets[:], counts[:] = 0, 0, 3

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            try:
                assert filled.get_ranges(ranks, offsets, counts).size <= 300 * 9
            except (rmaext.RmaError, ValueError):
                pass
    finally:
        stop.set()
        thread.join()
    comm.Barrier()
