# SPDX-License-Identifier: BSD-3-Clause
"""put_many, get_many, fetch_add_many and accumulate_many against NumPy."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import launch
import numpy as np
import pytest
from support.guarded import guarded, neighbour, noise, same
from support.jobs import passes
from support.libraries import BOTH_IN_MATRIX, SYSTEM

import rmaext

PROGRAM = "ops/programs/vectors.py"
SIZE = 50

DTYPES = ["i1", "u2", "i4", "f4", "i8", "f8", "c8", "c16", "g", "G", "S3", "i2,f8", "M8[s]", "?"]
NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8"]
COUNTS = [1, 3, 1000, 1024, 1025, 5000]
CHANGING = [(3000, dtype) for dtype in ("i4", "i8", "f4", "f8", "i2")]
CHANGING += [(300_000, "i8"), pytest.param(300_000, "f4", marks=pytest.mark.matrix)]


def places(comm, count, *seed):
    rng = np.random.default_rng((count, *seed))
    return rng.integers(0, comm.size, count), rng.integers(0, SIZE, count)


# -- results -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_put_and_get(comm, dtype):
    """Each origin has elements of its own in every window; the last put counts."""
    p = comm.size
    with guarded(comm, p * SIZE, dtype) as win:
        raw = f"V{win.dtype.itemsize}"  # all bits, padding too
        want = np.zeros((p, p * SIZE), raw)
        win.local.view("u1")[:] = 0
        comm.Barrier()
        for count in COUNTS:
            for origin in range(p):
                ranks, offsets = places(comm, count, origin)
                data = noise(dtype, count, count, origin)
                if origin == comm.rank:
                    win.put_many(ranks, offsets * p + origin, data)
                for rank, offset, value in zip(ranks, offsets, data.view(raw), strict=True):
                    want[rank, offset * p + origin] = value
            comm.Barrier()  # no flush
            assert same(win.local.view(raw), want[comm.rank])
            ranks, offsets = places(comm, count, 77)
            got = win.get_many(ranks, offsets)
            assert same(got.view(raw), want[ranks, offsets])
            comm.Barrier()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_updates(comm, dtype):
    """Sums are exact, and between the first value and the last no value is lost."""
    p = comm.size
    with guarded(comm, SIZE, dtype) as win:
        want = np.zeros((p, SIZE), win.dtype)
        for count in (1, 700, 1100):
            for origin in range(p):
                ranks, offsets = places(comm, count, origin)
                value = (np.arange(count) % 3).astype(win.dtype)
                np.add.at(want, (ranks, offsets), value)
                np.add.at(want, (ranks, offsets), value)
                if origin == comm.rank:
                    win.accumulate_many(ranks, offsets, value)
                    old = win.fetch_add_many(ranks, offsets, value)
                    assert old.dtype == win.dtype
                    assert old.shape == (count,)
            comm.Barrier()
            assert same(win.local, want[comm.rank])
            comm.Barrier()


@pytest.mark.parametrize("count", [255, 256, 1000])
@pytest.mark.parametrize("dtype", ["i8", "V64", "V65"])
def test_short_and_long_elements_of_arrays(comm, dtype, count):
    """Over any array few or long elements go by system calls, many short ones by messages."""
    dtype = np.dtype(dtype)
    memory = np.zeros(2 * count * dtype.itemsize, np.uint8).view(dtype)
    with rmaext.Window(comm, memory) as win:
        win.fence()
        target = (comm.rank + 1) % comm.size
        draw = np.random.default_rng(comm.rank)
        places = draw.permutation(2 * count)[:count]
        values = np.frombuffer(draw.bytes(count * dtype.itemsize), dtype)
        win.put_many(target, places, values)
        assert win.get_many(target, places).tobytes() == values.tobytes()
        win.fence()
        got = win.local.view(np.uint8).reshape(2 * count, -1)
        win.fence()
        owner = np.random.default_rng((comm.rank - 1) % comm.size)
        places = owner.permutation(2 * count)[:count]
        assert got[places].tobytes() == owner.bytes(count * dtype.itemsize)
        got[places] = 0
        assert not got.any()
        win.fence()


@pytest.mark.parametrize("away", ["stopped", "no progress thread"])
def test_many_elements_of_a_rank_that_is_away(mpirun, away):
    """Over cma a put never depends on the target, and a get only on its progress thread."""
    code = f"""
        import os, signal, time
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        away = {away!r}
        if away == "no progress thread" and comm.rank:
            os.environ["RMAEXT_PROGRESS"] = "0"
        import numpy as np, rmaext
        pids = comm.allgather(os.getpid())
        win = rmaext.Window(comm, np.zeros(1000), timeout=10)
        assert win.route(1 - comm.rank) == "cma"
        win.get_many(1 - comm.rank, np.arange(1000))
        win.fence()
        if comm.rank:
            time.sleep(4)
        else:
            if away == "stopped":
                os.kill(pids[1], signal.SIGSTOP)
            start = time.monotonic()
            win.put_many(1, np.arange(1000), 5.0)
            win.put(7.0, 1, 3)
            if away != "stopped":
                assert win.get_many(1, np.arange(1000)).sum() == 4995 + 7
            assert time.monotonic() - start < 3
            os.kill(pids[1], signal.SIGCONT)
        win.fence()
        assert not comm.rank or (win.local[3], win.local.sum()) == (7, 4995 + 7)
        win.close()
        print("ok", flush=True)
    """
    done = mpirun(2, code)
    assert done.stdout.count("ok") == 2, done.stdout + done.stderr


def test_results_of_fetch_add_are_in_order(comm):
    """One origin's additions to one place."""
    with guarded(comm, p := comm.size, "i8") as win:
        ranks = np.arange(6000) % p
        old = win.fetch_add_many(ranks, comm.rank, 1)
        assert same(old, np.arange(6000) // p)
        win.fence()


def test_counter_of_all(comm):
    """Many to one, by single and by vectorised operations: each number is given out once."""
    p, each = comm.size, 1500
    with guarded(comm, 3, "i8") as win:
        got = list(win.fetch_add_many(0, np.ones(each, int), 1))
        for _ in range(100):
            got.append(win.fetch_add(1, 0, 1))
            got += list(win.fetch_add_many([0, 0], 1, 1))
        win.accumulate_many(0, 1, np.ones(7, "i8"))
        numbers = np.sort(np.concatenate(comm.allgather(np.array(got))))
        assert np.unique(numbers).size == numbers.size == p * (each + 300)
        assert win.get(0, 1, 1)[0] == p * (each + 307)
        win.fence()


def test_floats_and_wrapping(comm):
    with guarded(comm, 2, "f8") as win:
        old = win.fetch_add_many(comm.rank, [0, 0, 0], np.array([0.5, 0.25, np.inf]))
        assert old.tolist() == [0, 0.5, 0.75]
        win.fence()
    with guarded(comm, 2, "u1") as win:
        assert win.fetch_add_many(comm.rank, [0, 0, 0], 200).tolist() == [0, 200, 144]
        win.fence()


# -- shapes --------------------------------------------------------------------------


def test_shapes(comm):
    to = neighbour(comm)
    with guarded(comm, 24, "i4") as win:
        index = np.arange(24).reshape(2, 3, 4)
        win.put_many(to, index, index.astype("i4"))
        win.fence()
        assert win.local.tolist() == list(range(24))
        for ranks, offsets in [
            (to, 5),
            (to, [5]),
            ([to], 5),
            (to, [[1, 2], [3, 4]]),
            (np.full((3, 1), to), np.arange(4)),
            (np.full((2, 3, 4), to), index),
            (np.full(4, to), index[:, :, ::-1]),
            (np.full((3, 4), to), index.transpose(2, 0, 1).T.transpose(1, 0, 2)),
            (to, np.asfortranarray(index)),
            (np.full(6, to)[::2], np.arange(6)[::2]),
            (np.int8(to), np.arange(4, dtype="u1")),
            (np.array(to), np.arange(4, dtype=">i8")),
            (to, []),
            ([], []),
            (to, np.zeros((0, 3), int)),
            (to, np.frombuffer(b"x" + index.tobytes(), "i8", 24, 1)),
        ]:
            shape = np.broadcast_shapes(np.shape(ranks), np.shape(offsets))
            want = np.broadcast_to(np.asarray(offsets, int), shape).astype("i4")
            assert same(win.get_many(ranks, offsets), want)
            out = np.empty(shape, "i4")
            assert win.get_many(ranks, offsets, out) is out
            assert same(out, want)
            win.put_many(ranks, offsets, want)
            win.accumulate_many(ranks, offsets, 0)
            old = win.fetch_add_many(ranks, offsets, 0)
            assert same(old, want)
            assert isinstance(old, np.ndarray if shape else np.generic)
        win.fence()
        assert win.local.tolist() == list(range(24))


def test_values_broadcast(comm):
    to = neighbour(comm)
    with guarded(comm, 12, "f8") as win:
        win.put_many(to, np.arange(12), 2)
        win.put_many(to, np.arange(4).reshape(2, 2), np.array([7.0, 8.0]))
        win.fence()
        assert win.local.tolist() == [7, 8, 7, 8] + [2] * 8
        win.fence()
        win.accumulate_many(to, 11, np.ones((3, 2)))
        win.put_many(to, 10, np.array([1.0, 2.0, 3.0]))
        old = win.fetch_add_many(to, 9, np.ones((2, 2)).T[::-1])
        assert old.tolist() == [[2, 3], [4, 5]]
        win.fence()
        assert win.local[9:].tolist() == [6, 3, 8]
        win.fence()


def test_out_that_is_an_argument(comm):
    n = 9000
    with guarded(comm, n, "i8", np.arange(n)[::-1]) as win:
        base = np.arange(n + 1)
        got = win.get_many(neighbour(comm), base[:-1], out=base[1:])
        assert same(got, np.arange(n)[::-1])
        win.fence()


@pytest.mark.parametrize("dtype", ["f8", "i8"])
@pytest.mark.parametrize("count", [64, 9000])
def test_out_over_indices(comm, dtype, count):
    """Also where its dtype is another one; with few elements and with many."""
    with guarded(comm, 300, dtype, np.arange(300)) as win:
        base = np.arange(count + 4) % 200
        for index, out in [
            (base[:count], base[:count]),
            (base[4:], base[:count]),
            (base[:count], base[4:]),
        ]:
            want = index.astype(dtype)
            out = out.view(dtype)
            assert win.get_many(neighbour(comm), index, out) is out
            assert same(out, want)
            base[:] = np.arange(count + 4) % 200
        ranks = np.zeros(count, int)
        assert same(win.get_many(ranks, base[4:], ranks.view(dtype)), base[4:].astype(dtype))
        win.fence()


def test_parts_of_different_sizes(comm):
    """The end of each is its own, the one of no elements too."""
    p, size = comm.size, 3 * comm.rank + (comm.rank == comm.size - 1)
    with rmaext.Window.allocate(comm, size, "i4") as win:
        ranks = np.concatenate([np.full(win.size(r), r) for r in range(p)])
        offsets = np.concatenate([np.arange(win.size(r)) for r in range(p)])
        ranks, offsets = (np.tile(a, 40)[:2000].astype(int) for a in (ranks, offsets))
        win.fence()
        win.accumulate_many(ranks, offsets, np.ones(ranks.size, "i4"))
        win.fence()
        times = np.bincount(offsets[ranks == comm.rank], minlength=size)[:size] * p
        assert win.local.tolist() == times.tolist()
        for rank in range(p):
            wrong = np.append(offsets, win.size(rank))
            for at in (wrong, wrong[::-1]):
                where = np.append(ranks, rank)[:: 1 if at is wrong else -1]
                with pytest.raises(rmaext.BoundsError, match=f"rank {rank}"):
                    win.put_many(where.copy(), at.copy(), np.zeros(at.size, "i4"))
        win.fence()
        assert win.local.tolist() == times.tolist()
        win.fence()


@pytest.mark.parametrize(("count", "dtype"), CHANGING)
def test_indices_that_change_meanwhile(comm, dtype, count):
    """Another thread breaks and mends them: all, none or some are done, no more."""
    to = neighbour(comm)
    with guarded(comm, SIZE, dtype) as win:
        ranks, offsets = np.full(count, to), np.arange(count) % SIZE
        good, out, one = offsets.copy(), np.empty(count, dtype), np.ones(count, dtype)
        stop, ended = threading.Event(), {"well": 0, "refused": 0}

        def disturb():
            wrong = (2**62, -1, SIZE, 2**63 - 1)
            at = 0
            while not stop.is_set():
                at = (at + 7919) % count
                offsets[at] = wrong[at % 4]
                if at % 3 == 0:
                    ranks[at] = (-1, comm.size, 2**50)[at % 9 // 3]
                    ranks[at] = to
                np.copyto(offsets, good)  # without the GIL

        thread = threading.Thread(target=disturb)
        thread.start()
        calls = [
            lambda: win.put_many(ranks, offsets, one),
            lambda: win.get_many(ranks, offsets, out),
            lambda: win.accumulate_many(ranks, offsets, one),
            lambda: win.fetch_add_many(to, offsets, one),
        ]
        try:
            for turn in range(60 if count < 9000 else 16):
                try:
                    calls[turn % 4]()
                    ended["well"] += 1
                except rmaext.RmaError:
                    ended["refused"] += 1
        finally:
            stop.set()
            thread.join()
        np.copyto(offsets, good)
        ranks[:] = to
        win.put_many(ranks, offsets, one)
        win.fence()
        assert sum(ended.values()) == turn + 1
    # guarded() has looked around the window


# -- refusals ------------------------------------------------------------------------

# The element at fault and what it says of the offset or rank; the rest is in order.
BAD_PLACES = [
    (0, -1),
    (0, SIZE),
    (0, 2**62),
    (0, -(2**63)),
    (-1, 0),
    (-7, 0),
    ("size", 0),
    (2**40, 0),
]


@pytest.mark.pair
@pytest.mark.parametrize("place", BAD_PLACES)
@pytest.mark.parametrize("name", ["put", "get", "fetch_add", "accumulate"])
def test_first_bad_element(comm, name, place):
    rank = comm.size if place[0] == "size" else place[0]
    ranks, offsets = np.full((40, 50), neighbour(comm)), np.zeros((40, 50), int)
    for at in [(39, 49), (17, 3)]:
        ranks[at], offsets[at] = rank, place[1]
    with guarded(comm, SIZE, "i8", 5) as win:
        call = getattr(win, f"{name}_many")
        with pytest.raises(rmaext.BoundsError) as caught:
            call(ranks, offsets, *([] if name == "get" else [7]))
        text = str(caught.value)
        assert re.search(r"element \[17, 3\]", text), text
        assert f"rank {rank}" in text
        assert f"offset {place[1]}" in text
        assert "window" in text
        win.fence()
        assert (win.local == 5).all(), "something was sent"
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("count", [1, 2, 9, 1030, 5000, 270_000])
@pytest.mark.parametrize("name", ["put", "get", "fetch_add", "accumulate"])
def test_bad_at_either_end(comm, name, count):
    """In each way that C may take: nothing is done."""
    to = neighbour(comm)
    with guarded(comm, SIZE, "i8", 5) as win:
        call = getattr(win, f"{name}_many")
        for at in {0, count - 1}:
            for what in ("rank", "offset", "scalar rank"):
                ranks, offsets = np.full(count, to), np.arange(count) % SIZE
                bad = (ranks if what == "rank" else offsets, comm.size if what == "rank" else SIZE)
                bad[0][at] = bad[1]
                values = [] if name == "get" else [np.ones(count, "i8")]
                with pytest.raises(rmaext.BoundsError, match=rf"element \[{at}\]"):
                    call(to if what == "scalar rank" else ranks, offsets, *values)
        win.fence()
        assert (win.local == 5).all(), "something was sent"
        win.fence()


I8 = np.ones(4, "i8")


@pytest.mark.pair
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda w, t: w.put_many(float(t), I8, I8)),
        (TypeError, lambda w, t: w.put_many(t, [0.0, 1.0], 1)),
        (TypeError, lambda w, t: w.get_many(t, np.zeros(3))),
        (TypeError, lambda w, t: w.get_many(t, np.zeros(0))),
        (TypeError, lambda w, t: w.get_many(t, [True, False])),
        (TypeError, lambda w, t: w.get_many(t, None)),
        (TypeError, lambda w, t: w.get_many(t, "1")),
        (TypeError, lambda w, t: w.get_many(None, 1)),
        (TypeError, lambda w, t: w.put_many(t, I8, np.ones(4))),
        (TypeError, lambda w, t: w.put_many(t, I8, 1.5)),
        (TypeError, lambda w, t: w.fetch_add_many(t, I8, np.ones(4, "i4"))),
        (TypeError, lambda w, t: w.accumulate_many(t, I8, None)),
        (OverflowError, lambda w, t: w.put_many(t, I8, 2**63)),
        (ValueError, lambda w, t: w.put_many(t, I8, I8[:3])),
        (ValueError, lambda w, t: w.put_many([t] * 3, I8, 1)),
        (ValueError, lambda w, t: w.get_many(t, I8, out=np.zeros(3, "i8"))),
        (ValueError, lambda w, t: w.get_many(t, I8, out=np.zeros((4, 1), "i8"))),
        (ValueError, lambda w, t: w.get_many(t, I8, out=np.zeros(8, "i8")[::2])),
        (TypeError, lambda w, t: w.get_many(t, I8, out=np.zeros(4))),
        (TypeError, lambda w, t: w.get_many(t, I8, out=[0] * 4)),
        (IndexError, lambda w, t: w.get_many(t, 2**70)),
        (IndexError, lambda w, t: w.get_many(2**63, 0)),
        (IndexError, lambda w, t: w.get_many(t, [0, 2**70])),
        (IndexError, lambda w, t: w.get_many(t, np.array([2**64 - 1], "u8"))),
    ],
)
def test_arguments(comm, error, call):
    with guarded(comm, SIZE, "i8", 5) as win:
        with pytest.raises(error):
            call(win, neighbour(comm))
        win.fence()
        assert (win.local == 5).all()
        win.fence()


def test_the_caller_alone_learns_of_a_failure(comm):
    """And not a flush of another thread, which waits for the same elements."""
    right = (comm.rank + 1) % comm.size
    with rmaext.Window.dynamic(comm) as win:
        memory = np.ones(1000)
        where = comm.allgather(win.attach(memory))[right] + 8 * np.arange(500)
        win.fence()
        win.detach(memory)
        win.fence()
        stop = threading.Event()

        def flush():
            while not stop.is_set():
                win.flush(right)

        with ThreadPoolExecutor(1) as pool:
            flushed = pool.submit(flush)
            try:
                for _ in range(30):
                    with pytest.raises(rmaext.BoundsError) as caught:
                        win.get_many(right, where)
                    assert caught.value.call == "get_many"
            finally:
                stop.set()
            flushed.result()
        win.flush()


# -- the same by message; faults -----------------------------------------------------


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("library", "size"),
    [pytest.param("", 3, marks=pytest.mark.matrix), (SYSTEM, 2)],
    ids=["preferred", "system"],
)
def test_by_message(mpirun, library, size):
    """This file again, but for bad arguments, on the fabric route, by a library of choice."""
    code = f"""
        import sys, pytest
        options = ["-c", "{launch.ROOT}/pyproject.toml", "-q", "-p", "no:cacheprovider"]
        marks = ["-m", "mpi and not pair and {launch.QUICK}"]
        sys.exit(pytest.main([*options, *marks, "{__file__}"]))
    """
    env = {"RMAEXT_LIBFABRIC": library or None, "RMAEXT_ROUTE": "fabric"}
    done = mpirun(size, code, env=env, timeout=140)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("scenario", ["threads", "interrupt", "stopped"])
def test_program(library, scenario):
    passes(2, PROGRAM, scenario, oks=2, library=library, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_target_killed_meanwhile(library):
    """Before: jobs/programs/killed.py."""
    how = {"library": library, "RMAEXT_ROUTE": "fabric"}
    passes(3, PROGRAM, "killed", "during", oks=2, survive=True, **how)


@pytest.mark.parametrize("own", [(), ("own",)], ids=["arena", "own"])
def test_target_that_leaves_this_node(own):
    """By the routes direct and cma."""
    passes(3, PROGRAM, "killed", "leaving", *own, oks=3, survive=True)


def test_places_that_are_not_aligned(comm):
    """As fields of packed records are: as arrays, and as one of them."""
    packed = np.zeros(3, np.dtype([("", "i1"), ("place", "i8")]))
    packed["place"] = comm.rank, comm.rank, 1
    ranks, offset = packed["place"][:2], packed["place"][2:].reshape(())
    with rmaext.Window(comm, np.arange(4.0)) as win:
        assert (win.get_many(ranks, offset) == 1).all()
        assert (win.get_many(ranks[:1].reshape(()), [1, 2]) == [1, 2]).all()
        assert (win.rget_many(ranks, offset).wait() == 1).all()
        assert (win.get_ranges(ranks, offset, offset) == [1, 1]).all()
        win.fence()


def test_a_load_of_more_than_there_is_takes_no_memory(comm):
    with rmaext.Window(comm, np.zeros(4)) as win:
        with pytest.raises(rmaext.BoundsError):
            win.load(comm.rank, 0, 10**13)
        win.fence()
