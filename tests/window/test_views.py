# SPDX-License-Identifier: BSD-3-Clause
"""subwindow, dup and field: windows that look at the memory of another."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from support.guarded import guarded, neighbour, noise, same

import rmaext

START, STOP, SIZE = 5, 25, 40  # of the subwindows here, in windows of SIZE
INSIDE = STOP - START


def outside_is_zero(win):
    parts = win.local[:START], win.local[STOP:]
    return not any(np.frombuffer(part.tobytes(), np.uint8).any() for part in parts)


# -- subwindows ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i1", "f8", "c16", "S3", "i2,f8"])
def test_put_and_get(comm, dtype):
    """Offsets count from its start; nothing else is touched."""
    peer = neighbour(comm)
    with guarded(comm, SIZE, dtype, fill=np.zeros((), dtype)) as win:
        view = win.subwindow(START, STOP)
        assert view.size(peer) == INSIDE
        assert view.local.shape == (INSIDE,)
        assert np.shares_memory(view.local, win.local)
        data = noise(dtype, INSIDE, comm.rank)
        for whole in (view, view.dup()):
            whole.put(data[1:], peer, 1)
            whole.put(data[:1], peer)
        view.flush(peer)
        assert same(view.get(peer), data)
        assert same(view.get(peer, 3, 2), data[3:5])
        assert same(win.get(peer, START, INSIDE), data)
        assert view.get(peer, INSIDE).size == 0
        win.fence()
        mine = noise(dtype, INSIDE, (comm.rank - 1) % comm.size)
        assert same(win.local[START:STOP], mine)
        assert outside_is_zero(win)
        win.fence()


def test_indexing_where_sizes_differ(comm):
    """The shape of a part is that of its elements on each rank, which may have other ones."""
    peer, sizes = neighbour(comm), [9 + rank for rank in range(comm.size)]
    with rmaext.Window.allocate(comm, sizes[comm.rank], "i4,f8") as win:
        win.local["f1"] = np.arange(sizes[comm.rank])
        win.fence()
        part = win.subwindow(2, 7)
        values = np.arange(2, 7)
        for view in (part, part.dup()):
            assert view[peer]["f1"].tolist() == values.tolist()
            assert view.field("f1")[peer, 1:4].tolist() == [3, 4, 5]
            assert view.field("f1").subwindow(1, 4).dup()[peer].tolist() == [3, 4, 5]
        assert win.dup()[peer].shape == win[peer].shape == (sizes[peer],)
        assert win.field("f0").subwindow(0, 9).view("f4")[peer].shape == (9,)
        win.fence()


def test_long_transfers(comm):
    """Such as take more than one piece on each route."""
    count, peer = 300_000, neighbour(comm)
    with guarded(comm, count + 10) as win:
        view = win.subwindow(3, count + 3)
        data = np.arange(count, dtype=float) + comm.rank
        view.put(data, peer)
        win.fence()  # of the window, for the view
        assert same(win.local[3:-7], np.arange(count) + float((comm.rank - 1) % comm.size))
        assert not win.local[:3].any()
        assert not win.local[-7:].any()
        assert same(view.get(peer), data)
        win.fence()


def test_atomics_meet_those_of_the_window(comm):
    p = comm.size
    with guarded(comm, SIZE, "i8") as win:
        view = win.subwindow(START, STOP)
        got = []
        for k in range(20 * p):
            for it, at in ((win, START + 2), (view, 2), (view.subwindow(2, 4), 0)):
                got.append(it.fetch_add(1, k % p, at))
        win.fence()
        total = 60 * p  # every origin, three times in 20 rounds
        assert win.local[START + 2] == total
        assert set().union(*comm.allgather(got)) == set(range(total))
        assert view.compare_and_swap(total, -1, comm.rank, 2) == total
        assert view.compare_and_swap(total, 5, comm.rank, 2) == -1
        assert view.fetch_add(np.arange(INSIDE), comm.rank)[2] == -1
        assert same(win.local[START:STOP], np.arange(INSIDE) - (np.arange(INSIDE) == 2))
        assert outside_is_zero(win)
        win.fence()


def test_many(comm):
    p, rng = comm.size, np.random.default_rng(comm.rank)
    with guarded(comm, SIZE, "i8") as win:
        view = win.subwindow(START, STOP)
        assert same(view.subwindow(1, 3).fetch_add_many(comm.rank, [0, 1], 1), np.zeros(2, "i8"))
        comm.Barrier()
        ranks = rng.integers(0, p, 3000)
        offsets = rng.integers(0, INSIDE, 3000)
        view.accumulate_many(ranks, offsets, 1)
        comm.Barrier()
        total = sum(np.asarray(comm.allgather(win.local.sum())))
        assert total == 3000 * p + 2 * p
        assert outside_is_zero(win)
        got = view.get_many(ranks, offsets)
        assert same(got, win.get_many(ranks, offsets + START))
        comm.Barrier()
        view.put_many(comm.rank, np.arange(INSIDE), np.arange(INSIDE))
        assert same(win.local[START:STOP], np.arange(INSIDE))
        with pytest.raises(rmaext.BoundsError, match=rf"\[{START}:{STOP}\].*offset {INSIDE}"):
            view.put_many([comm.rank] * 2, [0, INSIDE], 7)
        with pytest.raises(rmaext.BoundsError):
            view.get_many(0, -1)
        assert same(win.local[START:STOP], np.arange(INSIDE))
        win.fence()


def test_prepared_and_registered(comm):
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        view = win.subwindow(START, STOP)
        data = np.arange(4.0)
        view.prepare_put(data, peer, 16)()
        view.register(data).put(peer, 1)
        view.flush()
        assert same(win.get(peer, START + 16, 4), data)
        assert same(win.get(peer, START + 1, 4), data)
        with pytest.raises(rmaext.BoundsError):
            view.prepare_put(data, peer, 17)
        with pytest.raises(rmaext.BoundsError):
            view.register(data).put(peer, 17)
        win.fence()
        assert outside_is_zero(win)


def test_bounds(comm):
    """Refused at the origin, with the view's name; the next operation works."""
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        view = win.subwindow(START, STOP)
        for call in (
            lambda: view.put(1.0, peer, INSIDE),
            lambda: view.put(np.ones(INSIDE + 1), peer),
            lambda: view.put(1.0, peer, -1),
            lambda: view.put(1.0, comm.size),
            lambda: view.get(peer, INSIDE - 1, 2),
            lambda: view.fetch_add(1.0, peer, INSIDE),
            lambda: view.compare_and_swap(0.0, 1.0, peer, -1),
        ):
            with pytest.raises(rmaext.BoundsError, match=rf"\[{START}:{STOP}\]"):
                call()
        view.put(2.0, peer, INSIDE - 1)
        view.flush()
        assert win.get(peer, STOP - 1, 1)[0] == 2
        for wrong in ((-1, 3), (3, 2), (0, SIZE + 1)):
            with pytest.raises(rmaext.BoundsError):
                win.subwindow(*wrong)
        with pytest.raises(rmaext.BoundsError):
            view.subwindow(0, INSIDE + 1)
        with pytest.raises(TypeError):
            win.subwindow(0, 1.5)
        empty = win.subwindow(SIZE, SIZE)
        assert empty.get(peer).size == empty.size(peer) == 0
        with pytest.raises(rmaext.BoundsError):
            empty.put(1.0, peer)
        win.fence()
        assert outside_is_zero(win)


@pytest.mark.mpi(min_size=2)
def test_sizes_that_differ(world):
    """A rank without memory has none in the view; one with too little has no view."""
    last = world.size - 1
    with guarded(world, 30 if world.rank != last else 0) as win:
        view = win.subwindow(10, 20)
        assert view.size(0) == 10
        assert view.size(last) == view.get(last).size == 0
        assert view.local.size == (0 if world.rank == last else 10)
        with pytest.raises(rmaext.BoundsError):
            view.put(1.0, last)
        view.put(float(world.rank), 0, 0)
        win.fence()
    with guarded(world, 30 if world.rank != last else 15) as win:
        with pytest.raises(rmaext.BoundsError, match=f"rank {last}"):
            win.subwindow(10, 20)
        assert win.subwindow(10, 15).size(last) == 5
        win.fence()


def test_views_of_views(comm):
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        inner = win.subwindow(START, STOP).subwindow(3, 10).subwindow(2, 4)
        gc.collect()  # those between are gone
        inner.put(np.array([1.0, 2.0]), peer)
        inner.flush()
        assert same(win.get(peer, START + 5, 2), np.array([1.0, 2.0]))
        assert "[5:25][3:10][2:4]" in repr(inner)
        win.fence()
        assert win.local.sum() == 3


def test_flush_of_either(comm):
    """What a view that is gone has put, the window's flush completes."""
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        for k in range(INSIDE):
            win.subwindow(START, STOP).put(k + 1.0, peer, k)
        win.flush(peer)
        gc.collect()
        comm.Barrier()
        assert same(win.local[START:STOP], np.arange(INSIDE) + 1.0)
        win.fence()


def test_peer_view(world):
    with guarded(world, (4, 10)) as win:
        win.local[...] = np.arange(40).reshape(4, 10) + 100 * world.rank
        view = win.subwindow(START, STOP)
        win.fence()
        for rank in range(world.size):
            if win.route(rank) == "direct":
                assert same(view.peer_view(rank), np.arange(START, STOP) + 100.0 * rank)
                assert win.dup().peer_view(rank).shape == (4, 10)
                assert not win.dup(access="r").peer_view(rank).flags.writeable
                with pytest.raises(rmaext.AccessError):
                    win.dup(access="w").peer_view(rank)
            else:
                with pytest.raises(rmaext.NotLocalError):
                    view.peer_view(rank)
        win.fence()


# -- life --------------------------------------------------------------------------------


def test_close(comm):
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        view, other = win.subwindow(START, STOP), win.dup()
        with view as same_one:
            assert same_one is view
            view.put(3.0, peer, 1)
        assert view.closed
        view.close()
        for call in (
            lambda: view.put(1.0, peer),
            lambda: view.get(peer),
            lambda: view.fetch_add(1.0, peer),
            lambda: view.get_many(peer, 0),
            view.flush,
            view.fence,
            lambda: view.subwindow(0, 1),
            view.dup,
            lambda: view.peer_view(comm.rank),
            view.__enter__,
        ):
            with pytest.raises(rmaext.ClosedError):
                call()
        assert other.get(peer, START + 1, 1)[0] == 3
        if comm.rank % 2:
            other.close()  # local: nobody waits
        win.fence()


def test_window_closes_its_views(comm):
    win = rmaext.Window(comm, np.zeros(SIZE))
    view = win.subwindow(START, STOP)
    inner = view.subwindow(1, 2)
    put = view.prepare_put(np.ones(1), comm.rank)
    number = view.numba
    assert number
    win.close()
    for closed in (view, inner):
        assert closed.closed
        with pytest.raises(rmaext.ClosedError):
            closed.put(1.0, 0)
        closed.close()
    with pytest.raises(rmaext.ClosedError):
        put()
    with pytest.raises(rmaext.ClosedError):
        win.dup()
    del win, view, inner, put
    gc.collect()


def test_exceptions_inside_with(comm):
    with guarded(comm, SIZE) as win:
        with pytest.raises(ZeroDivisionError), win.subwindow(0, 2) as view:
            raise ZeroDivisionError
        assert view.closed
        assert not win.closed
        win.fence()


def test_forgotten_views_go(comm):
    """They are freed at once, and do not warn."""
    with guarded(comm, SIZE) as win:
        view = win.subwindow(0, 3)
        gone = weakref.ref(view)
        del view
        assert gone() is None
        for _ in range(2000):
            win.subwindow(0, 3).put(1.0, comm.rank)
        win.fence()


def test_threads_in_views_when_the_window_closes(comm):
    win = rmaext.Window(comm, np.zeros(SIZE))
    started = threading.Barrier(4, timeout=30)
    ends = []

    def work():
        started.wait()
        try:
            while True:
                view = win.subwindow(START, STOP)
                view.put(np.ones(INSIDE), neighbour(comm))
                view.fetch_add(1.0, neighbour(comm))
                view.flush()
        except rmaext.ClosedError as error:
            ends.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    comm.Barrier()
    win.close()
    for thread in threads:
        thread.join(30)
    assert len(ends) == 3


# -- hints -------------------------------------------------------------------------------


def test_access_of_a_duplicate(comm):
    peer = neighbour(comm)
    with guarded(comm, SIZE) as win:
        reader, writer = win.dup(access="r"), win.dup(access="w")
        writer.put(4.0, peer, 7)
        writer.flush()
        assert reader.get(peer, 7, 1)[0] == 4
        assert reader.memory.access == "r"
        for call in (
            lambda: reader.put(1.0, peer),
            lambda: reader.put_many(peer, 0, 1.0),
            lambda: reader.fetch_add(1.0, peer),
            lambda: reader.subwindow(0, 1).put(1.0, peer),
            lambda: writer.get(peer),
            lambda: writer.get_many(peer, 0),
            lambda: writer.compare_and_swap(0.0, 1.0, peer),
            lambda: reader.dup(access="rw"),
            lambda: reader.dup(access="w"),
        ):
            with pytest.raises(rmaext.AccessError):
                call()
        with pytest.raises(ValueError, match="access"):
            win.dup(access="x")
        with pytest.raises(TypeError):
            win.dup(access=1)
        win.fence()
        assert win.local.sum() == 4
    with rmaext.Window(comm, np.zeros(3), access="r") as win:
        with pytest.raises(rmaext.AccessError):
            win.dup(access="w")
        assert win.dup().memory.access == "r"


def test_timeout_of_a_duplicate(comm):
    with guarded(comm, 3) as win:
        assert win.dup(timeout=1.5).timeout == 1.5
        assert win.dup(timeout=1.5).subwindow(0, 1).dup().timeout == 1.5
        with pytest.raises(ValueError, match="timeout"):
            win.dup(timeout=-1)
        win.fence()


# -- fields ------------------------------------------------------------------------------

PARTICLE = np.dtype([("id", "i4"), ("mass", "f8"), ("at", "f4"), ("kind", "S3")], align=True)
PACKED = np.dtype([("id", "i2"), ("mass", "f8")])


@pytest.mark.parametrize("dtype", [PARTICLE, PACKED], ids=["aligned", "packed"])
@pytest.mark.parametrize("shape", [(12,), (3, 4)])
def test_records_and_fields(comm, dtype, shape):
    """Whole records, and one field of many, without touching the others."""
    peer, p = neighbour(comm), comm.size
    with guarded(comm, shape, dtype) as win:
        flat = win.local.reshape(-1)
        flat["id"] = np.arange(12)
        mass = win.field("mass")
        assert mass.dtype == float
        assert mass.size(peer) == 12
        assert np.shares_memory(mass.local, win.local)
        assert mass.local.shape == shape
        win.fence()
        mass.put(np.arange(6.0) + comm.rank, peer, 3)
        mass.put(77.5, peer, 11)
        mass.put_many(peer, [0, 1], np.array([0.5, 0.25]))
        mass.flush()
        want = np.zeros(12)
        want[3:9], want[11], want[:2] = np.arange(6) + comm.rank, 77.5, (0.5, 0.25)
        assert same(mass.get(peer), want)
        assert same(mass.get(peer, 4, 2), want[4:6])
        assert same(mass.get_many([peer] * 12, np.arange(12)), want)
        out = np.zeros((2, 3))
        assert mass.get(peer, 3, out=out) is out
        assert same(out.reshape(-1), want[3:9])
        win.fence()
        want[3:9] += (comm.rank - 1) % p - comm.rank
        assert same(flat["mass"].copy(), want)
        assert same(flat["id"].copy(), np.arange(12, dtype=dtype["id"]))
        record = np.zeros(2, dtype)
        record["id"], record["mass"] = (-1, -2), 9
        win.fence()
        win.put(record, peer, 10)
        win.flush()
        assert win.get(peer, 10).tolist() == record.tolist()
        win.fence()


def test_atomics_on_fields(comm):
    p = comm.size
    with guarded(comm, 12, PARTICLE) as win:
        ids, mass = win.field("id"), win.field("mass")
        got = [ids.fetch_add(1, 0, 4) for k in range(30)]
        mass.accumulate_many(0, np.arange(30) % 3, 0.5)
        assert sorted(np.ravel(comm.allgather(got))) == list(range(30 * p))
        assert win.get(0)["mass"].sum() == 15 * p
        win.fence()
        ids.local[...] = np.where(np.arange(12) == 4, 30, 0)
        old = mass.fetch_add(np.ones(3), comm.rank)
        assert old.sum() == (15 * p if comm.rank == 0 else 0)
        assert same(mass.local[:3].copy(), old + 1)
        assert ids.compare_and_swap(30, 5, comm.rank, 4) == 30
        old, new = np.array([5, 7], "i4"), np.array([8, 9], "i4")
        assert ids.compare_and_swap(old, new, comm.rank, 4).tolist() == [5, 0]
        assert win.local["id"][4:6].tolist() == [8, 0]
        with pytest.raises(rmaext.Unsupported):
            win.field("kind").fetch_add(np.array(b"a", "S3"), comm.rank)
        with pytest.raises(rmaext.Unsupported):
            mass.numba  # noqa: B018
        win.fence()


def test_all_updates_of_fields(comm):
    """One record and several, with and without results, also of long types."""
    dtype = np.dtype([("n", "i8"), ("z", "c16"), ("k", "i2")], align=True)
    with guarded(comm, 12, dtype, fill=np.zeros((), dtype)) as win:
        z, k = win.field("z"), win.field("k")
        for _ in range(3):
            z.accumulate(np.full(3, 1 + 2j), 0, 4)
            z.accumulate(1j, 0, 5)
        k.accumulate(np.arange(12, dtype="i2"), comm.rank, op="max")
        z.flush()
        comm.Barrier()
        assert z.get(0, 4, 3).tolist() == [
            (3 + 6j) * comm.size + 3j * comm.size * (n == 1) for n in range(3)
        ]
        assert k.get(comm.rank).tolist() == list(range(12))
        comm.Barrier()
        old = k.get_accumulate(np.full(4, 100, "i2"), comm.rank, 2, op="replace")
        assert old.tolist() == [2, 3, 4, 5]
        assert k.fetch_op(1, comm.rank, 11, op="bxor") == 11
        assert k.fetch_op_many(comm.rank, [2, 11], np.array([1, 1], "i2")).tolist() == [100, 10]
        assert not win.local["n"].any()
        win.fence()


def test_misaligned_fields(comm):
    """Refused before anything is sent, also where one of the records would do."""
    peer = neighbour(comm)
    with guarded(comm, 12, PACKED) as win:
        win.local["id"] = 5
        mass = win.field("mass")
        win.fence()
        for call in (
            lambda: mass.fetch_add(1.0, peer),
            lambda: mass.fetch_add(1.0, peer, 3),  # byte 32
            lambda: mass.fetch_add(np.ones(5), peer, 3),
            lambda: mass.compare_and_swap(0.0, 1.0, peer),
            lambda: mass.fetch_add_many(peer, [3, 7], 1.0),
            lambda: mass.accumulate_many(peer, 3, 1.0),
        ):
            with pytest.raises(rmaext.AlignmentError):
                call()
        ids = win.field("id")
        assert ids.fetch_add(1, peer, 3) == 5
        win.fence()
        assert not win.local["mass"].any()
        assert win.local["id"].sum() == 61
        win.fence()


def test_bounds_of_fields(comm):
    peer = neighbour(comm)
    with guarded(comm, 12, PARTICLE) as win:
        mass = win.field("mass")
        for call in (
            lambda: mass.put(np.ones(2), peer, 11),
            lambda: mass.put(1.0, peer, 12),
            lambda: mass.get(peer, -1, 1),
            lambda: mass.get_many(peer, 12),
            lambda: mass.fetch_add(np.ones(13), peer),
        ):
            with pytest.raises(rmaext.BoundsError, match="mass"):
                call()
        part = mass.subwindow(2, 5)
        part.put(np.arange(3.0) + 1, peer)
        with pytest.raises(rmaext.BoundsError):
            part.put(np.ones(4), peer)
        win.fence()
        assert win.local["mass"].tolist() == [0, 0, 1, 2, 3] + [0] * 7
        assert same(part.local.copy(), np.arange(3.0) + 1)
        with pytest.raises(KeyError, match="nothing"):
            win.field("nothing")
        with pytest.raises(TypeError):
            mass.field("mass")
        win.fence()
    with guarded(comm, 3, [("v", "f8", (0,)), ("w", "f8")]) as win:
        with pytest.raises(TypeError, match="'v'"):
            win.field("v")
        win.fence()
