# SPDX-License-Identifier: BSD-3-Clause
"""Fields with dimensions, and view: the same memory as elements of another dtype."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.guarded import guarded, neighbour, same

import rmaext

pytestmark = pytest.mark.pair

PART = np.dtype([("a", "f4"), ("b", "i2", 2)], align=True)
RECORD = np.dtype(
    [("id", "i4"), ("x", "f8", (2, 3)), ("parts", PART, 2), ("k", "i8", 4)], align=True
)
PACKED = np.dtype([("id", "i2"), ("x", "f8", (2, 3)), ("k", "i4", 4)])


def filled(shape, dtype):
    """Records whose numbers all differ, but for the padding."""
    array = np.zeros(shape, dtype)
    fill(array, 1)
    return array


def fill(array, first):
    for name in array.dtype.names:
        part = array[name]
        if part.dtype.names:
            first = fill(part, first)
        else:
            part[...] = np.arange(first, first + part.size).reshape(part.shape)
            first += part.size
    return first


def numbers(array):
    if array.dtype.names:
        return [numbers(array[name]) for name in array.dtype.names]
    return array.tolist()


# -- fields with dimensions ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [RECORD, PACKED], ids=["aligned", "packed"])
@pytest.mark.parametrize("shape", [(5,), (2, 3)], ids=str)
def test_put_and_get(comm, dtype, shape):
    """Offsets count elements of the field; the other fields stay as they are."""
    peer, want = neighbour(comm), filled(shape, dtype)
    with guarded(comm, shape, dtype, want) as win:
        x, k = win.field("x"), win.field("k")
        n = want["x"].size
        assert x.size(peer) == n
        assert x.local.shape == (*shape, 2, 3)
        assert np.shares_memory(x.local, win.local)
        flat = want["x"].reshape(-1)
        assert same(x.get(peer), flat)
        assert same(x.get(peer, 4, 9), flat[4:13])
        picks = [n - 1, 0, 7, 7, 5]
        assert same(x.get_many([peer] * 10, picks * 2), flat[picks * 2])
        assert same(x.get_many(np.full(10, peer)[::2], picks), flat[picks])
        assert same(x.get_many(peer, np.array([picks] * 2).T), flat[np.array([picks] * 2).T])
        out = np.zeros((3, 4))
        assert same(x.get(peer, n - 12, out=out).reshape(-1), flat[-12:])
        comm.Barrier()
        x.put(np.arange(8.0) + 0.5, peer, 5)
        x.put(-1.0, peer, n - 1)
        x.put_many(peer, [0, 3], np.array([7.5, 8.5]))
        k.put_many(np.array([peer]), [[1], [4]], 9)
        x.flush()
        flat[5:13], flat[-1], flat[0], flat[3] = np.arange(8) + 0.5, -1, 7.5, 8.5
        want["x"] = flat.reshape(want["x"].shape)
        want.reshape(-1)["k"][1, 0] = 9
        want.reshape(-1)["k"][0, 1] = 9
        win.fence()
        assert numbers(win.local) == numbers(want)
        win.fence()


def test_indexing(comm):
    """As NumPy has it in an array with the field's dimensions."""
    peer, want = neighbour(comm), filled((3, 4), RECORD)
    with guarded(comm, (3, 4), RECORD, want) as win:
        x, b = win.field("x"), win.field("parts").field("b")
        assert b.local.shape == (3, 4, 2, 2)
        picks, mask = np.array([2, 0, 2]), want["x"][..., 0] % 2 == 0
        everything = slice(None)
        for key in (
            1,
            (2, 3, 1, 2),
            (..., 0),
            (slice(2, None, -2), everything, 1, slice(1, 3)),
            (everything, picks),
            (0, picks, ..., picks),
            (picks, 1, 1),
            mask,
            (everything, None, 3, 1),
        ):
            assert same(x[(peer, *(key if isinstance(key, tuple) else (key,)))], want["x"][key])
        for key in ((..., 1), (1, picks, 1), (everything, 2, everything, 0)):
            assert same(b[(peer, *key)], want["parts"]["b"][key])
        comm.Barrier()
        x[peer, :, 1::2, 1, 0] = -1.0
        x[peer, picks, 2, 0] = [5.5, 6.5, 7.5]
        b[peer, 0, ..., 1] = 3
        want["x"][:, 1::2, 1, 0] = -1
        want["x"][picks, 2, 0] = [5.5, 6.5, 7.5]
        want["parts"]["b"][0, ..., 1] = 3
        win.fence()
        assert numbers(win.local) == numbers(want)
        with pytest.raises(rmaext.BoundsError, match="axis 3 with size 3"):
            x[peer, 0, 0, 0, 3]
        win.fence()


def calls(window):
    return sum(row["calls"] for row in window.stats if row["kind"] == "fetch")


def test_updates(comm):
    p, peer = comm.size, neighbour(comm)
    with guarded(comm, 5, RECORD) as win:
        k = win.field("k")
        got = [k.fetch_add(1, 0, 7) for _ in range(20)]
        assert sorted(np.ravel(comm.allgather(got))) == list(range(20 * p))
        k.accumulate_many(0, [2, 9, 2], 1)
        k.at(0).add((slice(None), 3), 1)  # element 3 of each record
        k.accumulate(np.arange(5), peer, 10)
        k.flush()
        comm.Barrier()
        want = np.arange(20) // 10 * (np.arange(20) - 10) * (np.arange(20) < 15)
        if comm.rank == 0:
            want[3::4] += p
            want[[7, 2, 9]] += (20 * p, 2 * p, p)
        assert k.local.reshape(-1).tolist() == want.tolist()
        comm.Barrier()
        assert k.compare_and_swap(2, 70, peer, 12) == 2
        assert k.load(peer, 12) == 70
        found = k.load(peer, 10, 4)
        compare, before = found + [0, 0, 1, 0], calls(k)
        assert k.compare_and_swap(compare, [7, 8, 9, 6], peer, 10).tolist() == found.tolist()
        assert calls(k) == before + 1  # one operation for all of them
        assert k.load(peer, 10, 4).tolist() == [7, 8, found[2], 6]
        k.rput(np.array([5, 6]), peer, 18).wait()
        assert k.rget(peer, 17, 3).wait().tolist()[1:] == [5, 6]
        row = k.load(peer, 16, 4)
        k.accumulate(np.full(4, 3, k.dtype), peer, key=4)
        k.flush()
        assert k.load(peer, 16, 4).tolist() == (row + 3).tolist()
        comm.Barrier()
        assert not win.local["x"].any()
        assert not win.local["id"].any()
        win.fence()
    with guarded(comm, 5, PACKED) as win:
        with pytest.raises(rmaext.AlignmentError, match="records of 66 bytes"):
            win.field("x").fetch_add(1.0, peer)
        win.fence()


def test_bounds(comm):
    with guarded(comm, 5, RECORD) as win:
        x = win.field("x")
        for call in (
            lambda: x.put(1.0, comm.rank, 30),
            lambda: x.get(comm.rank, 25, 6),
            lambda: x.get(comm.rank, -1, 1),
        ):
            with pytest.raises(rmaext.BoundsError, match="outside the 30 elements"):
                call()
        with pytest.raises(rmaext.BoundsError, match=r"element \[1\], .* offset 30"):
            x.put_many(comm.rank, [29, 30, 0], 1.0)
        with pytest.raises(rmaext.BoundsError, match=r"element \[0\], .* offset -1"):
            x.get_many(comm.rank, [-1, 3])
        with pytest.raises(rmaext.Unsupported, match="the field of a subwindow"):
            x.subwindow(0, 6)
        part = win.subwindow(1, 3).field("x")
        part.put(np.arange(12.0), comm.rank)
        with pytest.raises(rmaext.BoundsError):
            part.put(1.0, comm.rank, 12)
        assert win.local["x"][1:3].reshape(-1).tolist() == list(range(12))
        assert not win.local["x"][3:].any()
        win.fence()


def test_peers_and_waits(comm):
    with guarded(comm, 3, RECORD) as win:
        k = win.field("k")
        k.put(comm.rank + 1, comm.rank, 6)
        assert k.wait_until(6, "==", comm.rank + 1, timeout=30) == comm.rank + 1
        win.fence()
        for rank in range(comm.size):
            if win.route(rank) == "direct":
                assert k.peer_view(rank)[1, 2] == rank + 1
        assert k.advise("willneed") in (True, False)
        win.fence()


def test_without_gaps(comm):
    """The only field of a record: its elements follow each other, and C knows all of it."""
    with guarded(comm, 3, [("v", "f8", (3,))]) as win:
        v = win.field("v")
        v.put(np.arange(9.0), comm.rank)
        assert v[comm.rank, 1].tolist() == [3, 4, 5]
        assert v.subwindow(2, 4).get(comm.rank).tolist() == [2, 3]
        assert v.get_many(comm.rank, [8, 1]).tolist() == [8, 1]
        assert v.dup().get(comm.rank, 7).tolist() == [7, 8]
        win.fence()


# -- view --------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["u1", "i4", "f8", "c16", "S24", "f4,i4,f8"])
def test_view(comm, other):
    """Its elements, and their number, are those of numpy.ndarray.view."""
    peer = neighbour(comm)
    with guarded(comm, (3, 12), "f8") as win:
        win.local[...] = np.arange(36).reshape(3, 12) + comm.rank
        win.fence()
        view, want = win.view(other), (np.arange(36.0).reshape(3, 12) + peer).view(other)
        assert view.dtype == want.dtype
        assert view.size(peer) == want.size
        assert view.local.shape == want.shape
        assert np.shares_memory(view.local, win.local)
        assert same(view.get(peer), want.reshape(-1))
        assert same(view[peer, 1, 2:], want[1, 2:])
        assert same(view.get_many(peer, [5, 0]), want.reshape(-1)[[5, 0]])
        with pytest.raises(rmaext.BoundsError, match=re.escape(f"as {view.dtype}")):
            view.get(peer, want.size, 1)
        if win.route(peer) == "direct":
            assert same(view.peer_view(peer), want)
        win.fence()
        view.put(want.reshape(-1)[::-1].copy(), peer)
        win.fence()
        mine = (np.arange(36.0).reshape(3, 12) + comm.rank).view(other).reshape(-1)[::-1]
        assert win.local.tobytes() == mine.tobytes()
        win.fence()


def test_updates_of_a_view(comm):
    """Atomic against those of the window, whose elements have the same size."""
    p, rounds = comm.size, 30
    with guarded(comm, 4, "i8") as win:
        bits = win.view("u8").subwindow(2, 3)
        for _ in range(rounds):
            win.accumulate(1, 0, 2)
            bits.accumulate(1 << 32, 0)
        win.fence()
        assert win.get(0, 2, 1)[0] == rounds * p * (2**32 + 1)
        win.fence()


def test_views_of_views(comm):
    with guarded(comm, 8, "f8") as win:
        part = win.subwindow(2, 5).view("f4").subwindow(1, 4)
        part.put(np.ones(3, "f4"), comm.rank)
        part.flush()
        assert win.local.view("f4")[5:8].tolist() == [1] * 3
        assert win.view("i8").dup(access="r").memory.access == "r"
        win.fence()
    with guarded(comm, 3, RECORD) as win:
        k = win.field("k").view("f8")
        k.put(1.5, comm.rank, 5)
        k.flush()
        assert win.local["k"][1, 1] == np.float64(1.5).view("i8")
        with pytest.raises(ValueError, match="8 bytes, not 4"):
            k.view("f4")
        win.fence()


def test_what_has_no_view(comm):
    with guarded(comm, (4, 3), "f4") as win:
        for wrong in ("f8", "S5", np.dtype("f4,f4")):
            with pytest.raises(ValueError, match=r"view: window .* rank 0: 3 x 4 bytes"):
                win.view(wrong)
        with pytest.raises(TypeError, match="objects"):
            win.view(object)
        with pytest.raises(TypeError, match="dimensions"):
            win.view("3f4")
        with pytest.raises(TypeError):
            win.view("no dtype")
        win.fence()
    with pytest.raises(rmaext.ClosedError, match="view"):
        win.view("i4")
    with guarded(comm, (), "f8") as win:
        assert win.view("i8").local.shape == ()
        with pytest.raises(ValueError, match=r"1 x 8 bytes .* shape \(\)"):
            win.view("i4")
        win.fence()
    with rmaext.Window(comm, [np.zeros(2), np.zeros(3)]) as win:
        with pytest.raises(rmaext.Unsupported, match="view"):
            win.view("i8")
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_sizes_that_differ(world):
    last = world.size - 1
    with guarded(world, 5 if world.rank == last else 6, "f4") as win:
        with pytest.raises(ValueError, match=f"rank {last}: 5 x 4 bytes"):
            win.view("f8")
        halves = win.view("f2")
        assert [halves.size(rank) for rank in (0, last)] == [12, 10]
        assert halves[last].shape == (10,)
        win.fence()
