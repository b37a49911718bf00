# SPDX-License-Identifier: BSD-3-Clause
"""Bad input is refused at the origin, with nothing sent or changed."""

from __future__ import annotations

import array
import re

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import Guarded, guarded, neighbour

import rmaext

SIZE = 10
START = np.arange(SIZE, dtype="i4") + 100
I4 = np.ones(4, "i4")


def bad(id_, error, call):
    return pytest.param(error, call, id=id_)


# call(win, t): an error at the origin for target t of an i4 window of SIZE.
BAD_RANK = [
    bad("put", rmaext.BoundsError, lambda w, r: w.put(I4, r)),
    bad("put nothing", rmaext.BoundsError, lambda w, r: w.put(I4[:0], r)),
    bad("get", rmaext.BoundsError, lambda w, r: w.get(r)),
    bad("get out", rmaext.BoundsError, lambda w, r: w.get(r, out=I4.copy())),
    bad("fetch_add", rmaext.BoundsError, lambda w, r: w.fetch_add(1, r)),
    bad("cas", rmaext.BoundsError, lambda w, r: w.compare_and_swap(0, 1, r)),
    bad("flush", rmaext.BoundsError, lambda w, r: w.flush(r)),
    bad("size", rmaext.BoundsError, lambda w, r: w.size(r)),
    bad("route", rmaext.BoundsError, lambda w, r: w.route(r)),
]

OFFSETS = [
    -1,
    -SIZE,
    SIZE - 3,
    SIZE,
    SIZE + 1,
    2**30,
    2**31 - 1,
    2**31,
    2**32,
    2**32 - 4,
    2**62,  # times the item size: 2**64
    2**63 - 1,
    -(2**62),
    -(2**63),
]

# call(w, t, o) covers elements o .. o + 3
BOUNDS = {
    "put": lambda w, t, o: w.put(I4, t, o),
    "put strided": lambda w, t, o: w.put(np.ones((4, 2), "i4")[:, 0], t, o),
    "get": lambda w, t, o: w.get(t, o, 4),
    "get out": lambda w, t, o: w.get(t, o, out=np.zeros(4, "i4")),
    "fetch_add": lambda w, t, o: w.fetch_add(I4, t, o),
    "cas": lambda w, t, o: w.compare_and_swap(I4, 2 * I4, t, o),
}

ARGUMENTS = [
    # ranks and offsets that are no integers
    bad("rank float", TypeError, lambda w, t: w.put(I4, float(t))),
    bad("rank str", TypeError, lambda w, t: w.get(str(t))),
    bad("rank None", TypeError, lambda w, t: w.fetch_add(1, None)),
    bad("rank list", TypeError, lambda w, t: w.put(I4, [t])),
    bad("rank huge", IndexError, lambda w, t: w.get(2**70)),
    bad("offset float", TypeError, lambda w, t: w.put(I4, t, 1.0)),
    bad("offset None", TypeError, lambda w, t: w.get(t, None)),
    bad("offset str", TypeError, lambda w, t: w.fetch_add(1, t, "1")),
    bad("offset huge", IndexError, lambda w, t: w.put(I4, t, 2**64)),
    bad("offset -huge", IndexError, lambda w, t: w.get(t, -(2**64))),
    # count
    bad("count too large", IndexError, lambda w, t: w.get(t, 0, SIZE + 1)),
    bad("count wraps", IndexError, lambda w, t: w.get(t, 1, 2**62)),
    bad("count huge", IndexError, lambda w, t: w.get(t, 1, 2**64)),
    bad("count negative", ValueError, lambda w, t: w.get(t, 0, -1)),
    bad("count float", TypeError, lambda w, t: w.get(t, 0, 2.0)),
    bad("count not out", ValueError, lambda w, t: w.get(t, 0, 3, np.zeros(4, "i4"))),
    # dtypes
    bad("put f8", TypeError, lambda w, t: w.put(np.ones(4), t)),
    bad("put i8", TypeError, lambda w, t: w.put(np.ones(4, "i8"), t)),
    bad("put i2", TypeError, lambda w, t: w.put(np.ones(4, "i2"), t)),
    bad("put u4", TypeError, lambda w, t: w.put(np.ones(4, "u4"), t)),
    bad("put >i4", TypeError, lambda w, t: w.put(np.ones(4, ">i4"), t)),
    bad("put empty f8", TypeError, lambda w, t: w.put(np.ones(0), t)),
    bad("put object", TypeError, lambda w, t: w.put(I4.astype(object), t)),
    bad("put structured", TypeError, lambda w, t: w.put(np.ones(4, "i2,i2"), t)),
    bad("put None", TypeError, lambda w, t: w.put(None, t)),
    bad("put str", TypeError, lambda w, t: w.put("abcd", t)),
    bad("put bytes", TypeError, lambda w, t: w.put(b"abcd", t)),
    bad("put float", TypeError, lambda w, t: w.put(1.5, t)),
    bad("put np.float64", TypeError, lambda w, t: w.put(np.float64(1), t)),
    bad("put np.int64", TypeError, lambda w, t: w.put(np.int64(1), t)),
    bad("put complex", TypeError, lambda w, t: w.put(1j, t)),
    bad("add f8", TypeError, lambda w, t: w.fetch_add(np.ones(4), t)),
    bad("add i8", TypeError, lambda w, t: w.fetch_add(np.ones(4, "i8"), t)),
    bad("add float", TypeError, lambda w, t: w.fetch_add(1.0, t)),
    bad("add object", TypeError, lambda w, t: w.fetch_add(I4.astype(object), t)),
    bad("cas f8", TypeError, lambda w, t: w.compare_and_swap(I4, np.ones(4), t)),
    bad("cas f8 old", TypeError, lambda w, t: w.compare_and_swap(np.ones(4), I4, t)),
    bad("cas float", TypeError, lambda w, t: w.compare_and_swap(100.0, 1, t)),
    bad("cas None", TypeError, lambda w, t: w.compare_and_swap(None, 1, t)),
    # values that do not fit
    bad("put 2**31", OverflowError, lambda w, t: w.put(2**31, t)),
    bad("put -2**31-1", OverflowError, lambda w, t: w.put(-(2**31) - 1, t)),
    bad("put 2**70", OverflowError, lambda w, t: w.put(2**70, t)),
    bad("add 2**31", OverflowError, lambda w, t: w.fetch_add(2**31, t)),
    bad("add -2**40", OverflowError, lambda w, t: w.fetch_add(-(2**40), t)),
    bad("cas 2**31", OverflowError, lambda w, t: w.compare_and_swap(0, 2**31, t)),
    bad("cas old 2**31", OverflowError, lambda w, t: w.compare_and_swap(2**31, 0, t)),
    # shapes
    bad("cas shapes", ValueError, lambda w, t: w.compare_and_swap(I4, I4[:3], t)),
    # out
    bad("out read-only", ValueError, lambda w, t: w.get(t, out=FIXED)),
    bad("out strided", ValueError, lambda w, t: w.get(t, out=np.zeros(8, "i4")[::2])),
    bad("out Fortran", ValueError, lambda w, t: w.get(t, out=np.zeros((2, 3), "i4", "F"))),
    bad("out backwards", ValueError, lambda w, t: w.get(t, out=np.zeros(4, "i4")[::-1])),
    bad("out i8", TypeError, lambda w, t: w.get(t, out=np.zeros(4, "i8"))),
    bad("out u4", TypeError, lambda w, t: w.get(t, out=np.zeros(4, "u4"))),
    bad("out >i4", TypeError, lambda w, t: w.get(t, out=np.zeros(4, ">i4"))),
    bad("out object", TypeError, lambda w, t: w.get(t, out=np.zeros(4, object))),
    bad("out list", TypeError, lambda w, t: w.get(t, out=[0] * 4)),
    bad("out bytearray", TypeError, lambda w, t: w.get(t, out=bytearray(16))),
    bad("out too large", IndexError, lambda w, t: w.get(t, out=np.zeros(11, "i4"))),
]
FIXED = np.zeros(4, "i4")
FIXED.flags.writeable = False


def still_works(win, target):
    """Every operation still does its work, on element 5, and nothing else has changed."""
    start = START.astype(win.dtype)
    win.put(start[:1] + 1, target, 5)
    win.flush(target)
    assert win.fetch_add(start[0], target, 5) == 101
    assert win.compare_and_swap(start[0] + 101, start[1], target, 5) == 201
    assert win.get(target, 5, 1)[0] == 101
    win.fence()
    start[5] = 101
    assert win.local.tobytes() == start.tobytes(), "the target was changed"


def refused(error, call, win, *args):
    with pytest.raises(error) as caught:
        call(win, *args)
    assert str(caught.value)
    return caught.value


def names(error, rank, offset, length):
    """The message names window, rank, offset and length."""
    text = str(error)
    assert "window" in text
    numbers = set(map(int, re.findall(r"-?\d+", text)))
    assert {rank, offset, length} <= numbers, text
    assert isinstance(error, rmaext.RmaError)
    assert error.rank == rank


@pytest.mark.parametrize("bad_rank", ["negative", "size", "far"])
@pytest.mark.parametrize(("error", "call"), BAD_RANK)
def test_rank_out_of_range(comm, error, call, bad_rank):
    rank = {"negative": -77, "size": comm.size, "far": 2**31 + 1}[bad_rank]
    assert rank != MPI.PROC_NULL
    with guarded(comm, SIZE, "i4", START) as win:
        caught = refused(error, call, win, rank)
        assert isinstance(caught, IndexError)
        assert "window" in str(caught)
        assert str(rank) in str(caught)
        still_works(win, neighbour(comm))


@pytest.mark.parametrize("call", BOUNDS.values(), ids=BOUNDS)
def test_offset_out_of_range(comm, call):
    with guarded(comm, SIZE, "i4", START) as win:
        for target in range(comm.size):
            for offset in OFFSETS:
                caught = refused(rmaext.BoundsError, call, win, target, offset)
                names(caught, target, offset, 4)
        still_works(win, neighbour(comm))


@pytest.mark.parametrize(("error", "call"), ARGUMENTS)
def test_arguments(comm, error, call):
    with guarded(comm, SIZE, "i4", START) as win:
        refused(error, call, win, neighbour(comm))
        still_works(win, neighbour(comm))


@pytest.mark.parametrize("call", BOUNDS.values(), ids=BOUNDS)
def test_bounds_are_those_of_the_target(world, call):
    """Not of the origin, whose window is larger or smaller."""
    size = 4 + 3 * world.rank
    with guarded(world, size, "i4", 100) as win:
        for target in range(world.size):
            fits = 3 * target
            caught = refused(rmaext.BoundsError, call, win, target, fits + 1)
            names(caught, target, fits + 1, 4)
        win.fence()
        assert (win.local == 100).all()
        win.fence()
        for target in range(world.size):
            call(win, target, 3 * target)
        win.fence()


OVERFLOW = [
    ("u1", 256),
    ("u1", -1),
    ("i1", 128),
    ("u4", -1),
    ("u4", 2**32),
    ("i8", 2**63),
    ("i8", -(2**63) - 1),
    ("u8", 2**64),
    ("u8", -1),
    ("f4", 1e39),
    ("f4", -1e300),
    ("f4", 10**60),
    ("f8", 10**400),
]


@pytest.mark.parametrize(("dtype", "value"), OVERFLOW)
def test_values_that_do_not_fit(comm, dtype, value):
    rank = neighbour(comm)
    with guarded(comm, SIZE, dtype, START) as win:
        before = win.local.tobytes()
        for call in (
            lambda: win.put(value, rank),
            lambda: win.fetch_add(value, rank),
            lambda: win.compare_and_swap(value, 0, rank),
            lambda: win.compare_and_swap(100, value, rank),
        ):
            with pytest.raises(OverflowError):
                call()
        win.fence()
        assert win.local.tobytes() == before
        if dtype in ("i1", "u1"):
            assert win.get(rank).tolist() == START.tolist()
        else:
            win.fence()
            still_works(win, rank)


@pytest.mark.parametrize(
    "call",
    [
        lambda w, t: w.put(I4, t, 1),
        lambda w, t: w.put(7, t, 1),
        lambda w, t: w.fetch_add(I4, t, 1),
        lambda w, t: w.compare_and_swap(I4 + 100, I4, t, 1),
    ],
    ids=["put", "put scalar", "fetch_add", "cas"],
)
@pytest.mark.parametrize("how", ["array", "argument"])
def test_read_only_target(comm, call, how):
    mine = Guarded(SIZE, "i4")
    mine.array[:] = START
    mine.array.flags.writeable = how == "argument"
    access = "r" if how == "argument" else None
    with rmaext.Window(comm, mine.array, access) as win:
        assert win.memory.access == "r"
        for target in range(comm.size):
            caught = refused(rmaext.AccessError, call, win, target)
            assert isinstance(caught, PermissionError)
            length = 1 if "7" in str(call.__code__.co_consts) else 4
            names(caught, target, 1, length)
            assert win.get(target).tolist() == START.tolist()
        win.fence()
    assert mine.array.tolist() == START.tolist()
    mine.check()


def test_write_only_target(comm):
    mine = Guarded(SIZE, "i4")
    mine.array[:] = START
    with rmaext.Window(comm, mine.array, "w") as win:
        target = neighbour(comm)
        out = np.full(4, 9, "i4")
        caught = refused(rmaext.AccessError, lambda w: w.get(target, 2, out=out), win)
        names(caught, target, 2, 4)
        assert out.tolist() == [9] * 4
        caught = refused(rmaext.AccessError, lambda w: w.fetch_add(I4, target, 3), win)
        names(caught, target, 3, 4)
        win.fence()
        assert mine.array.tolist() == START.tolist()
        win.fence()
        win.put(2 * I4, target, 6)
        win.fence()
    assert mine.array.tolist() == [*START[:6], 2, 2, 2, 2]
    mine.check()


@pytest.mark.parametrize(("dtype", "shift"), [("i4", 1), ("i8", 4), ("f8", 2), ("f4", 3)])
def test_misaligned_atomics(comm, dtype, shift):
    with guarded(comm, SIZE, dtype, START, shift) as win:
        rank = neighbour(comm)
        for target in range(comm.size):
            for call in (
                lambda w, t: w.fetch_add(1, t, 2),
                lambda w, t: w.compare_and_swap(102, 1, t, 2),
            ):
                caught = refused(rmaext.AlignmentError, call, win, target)
                assert isinstance(caught, ValueError)
                names(caught, target, 2, 1)
        win.fence()
        assert win.local.tolist() == START.tolist()
        win.fence()
        win.put(np.array([7, 8], dtype), rank, 3)  # moving data is no matter
        win.flush(rank)
        assert win.get(rank, 2, 4).tolist() == [102, 7, 8, 105]
        win.fence()


def test_alignment_is_that_of_the_target(world):
    shift = 1 if world.rank == 0 else 0
    with guarded(world, SIZE, "i8", START, shift) as win:
        for target in range(world.size):
            if target == 0:
                refused(rmaext.AlignmentError, lambda w: w.fetch_add(1, 0), win)
            else:
                win.fetch_add(1, target)
        win.fence()
        assert win.local[0] == 100 + (world.size if world.rank else 0)
        win.fence()


CLOSED = {
    "put": lambda w: w.put(I4, 0),
    "put scalar": lambda w: w.put(1, 0),
    "put nothing": lambda w: w.put(I4[:0], 0),
    "put PROC_NULL": lambda w: w.put(I4, MPI.PROC_NULL),
    "get": lambda w: w.get(0),
    "get out": lambda w: w.get(0, out=np.zeros(3, "i4")),
    "fetch_add": lambda w: w.fetch_add(1, 0),
    "cas": lambda w: w.compare_and_swap(0, 1, 0),
    "flush": lambda w: w.flush(),
    "flush rank": lambda w: w.flush(0),
    "fence": lambda w: w.fence(),
    "with": lambda w: w.__enter__(),
}


@pytest.mark.parametrize("kind", ["array", "allocate"])
@pytest.mark.parametrize("call", CLOSED.values(), ids=CLOSED)
def test_closed_window(comm, call, kind):
    array = np.full(SIZE, 3, "i4")
    if kind == "array":
        win = rmaext.Window(comm, array)
    else:
        win = rmaext.Window.allocate(comm, SIZE, "i4")
    win.close()
    for _ in range(2):
        caught = refused(rmaext.ClosedError, call, win)
        assert isinstance(caught, ValueError)
        assert "window" in str(caught)
    assert array.tolist() == [3] * SIZE
    with guarded(comm, SIZE, "i4", START) as again:
        still_works(again, neighbour(comm))


def strided():
    return np.zeros((3, 4))[:, 1]


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


W, A = rmaext.Window, rmaext.Window.allocate
CREATION = [
    bad("object", TypeError, lambda c: W(c, np.zeros(3, object))),
    bad("object field", TypeError, lambda c: W(c, np.zeros(3, "i4,O"))),
    bad("list", TypeError, lambda c: W(c, [1.0, 2.0])),
    bad("None", TypeError, lambda c: W(c, None)),
    bad("bytearray", TypeError, lambda c: W(c, bytearray(8))),
    bad("strided", ValueError, lambda c: W(c, strided())),
    bad("Fortran", ValueError, lambda c: W(c, np.zeros((3, 4), order="F"))),
    bad("backwards", ValueError, lambda c: W(c, np.zeros(3)[::-1])),
    bad("rw over read-only", rmaext.AccessError, lambda c: W(c, read_only(), "rw")),
    bad("w over read-only", rmaext.AccessError, lambda c: W(c, read_only(), "w")),
    bad("access x", ValueError, lambda c: W(c, np.zeros(3), "x")),
    bad("access empty", ValueError, lambda c: W(c, np.zeros(3), "")),
    bad("access int", TypeError, lambda c: W(c, np.zeros(3), 3)),
    bad("timeout str", TypeError, lambda c: W(c, np.zeros(3), timeout="1")),
    bad("timeout negative", ValueError, lambda c: W(c, np.zeros(3), timeout=-1)),
    bad("timeout nan", ValueError, lambda c: W(c, np.zeros(3), timeout=np.nan)),
    bad("allocate object", TypeError, lambda c: A(c, 3, object)),
    bad("allocate dtype", TypeError, lambda c: A(c, 3, "nonsense")),
    bad("allocate negative", ValueError, lambda c: A(c, -1)),
    bad("allocate negative N-d", ValueError, lambda c: A(c, (3, -1))),
    bad("allocate float", TypeError, lambda c: A(c, 2.5)),
    bad("allocate None", TypeError, lambda c: A(c, None)),
    bad("allocate access", ValueError, lambda c: A(c, 3, "i4", "rx")),
    bad("allocate 2**60", MemoryError, lambda c: A(c, 2**60, "u1")),
    bad("allocate 2**64", (MemoryError, ValueError), lambda c: A(c, (2**32, 2**33))),
    bad("comm None", TypeError, lambda c: W(None, np.zeros(3))),
    bad("comm int", TypeError, lambda c: W(0, np.zeros(3))),
    bad("comm class", TypeError, lambda c: W(MPI.Comm, np.zeros(3))),
    bad("comm array", TypeError, lambda c: W(np.zeros(3), np.zeros(3))),
    bad("COMM_NULL", ValueError, lambda c: W(MPI.COMM_NULL, np.zeros(3))),
    bad("allocate COMM_NULL", ValueError, lambda c: A(MPI.COMM_NULL, 3)),
    bad("allocate comm None", TypeError, lambda c: A(None, 3)),
]


@pytest.mark.parametrize(("error", "call"), CREATION)
def test_creation(comm, error, call):
    with pytest.raises(error) as caught:
        call(comm)
    assert str(caught.value)
    with guarded(comm, SIZE, "i4", START) as win:
        still_works(win, neighbour(comm))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("make", [W, A], ids=["Window", "allocate"])
def test_intercommunicator(world, make):
    half = world.Split(world.rank % 2)
    inter = half.Create_intercomm(0, world, 1 - world.rank % 2)
    with pytest.raises((ValueError, TypeError), match=r"(?i)inter"):
        make(inter, np.zeros(3) if make is W else 3)
    inter.Free()
    half.Free()
    with guarded(world, SIZE, "i4", START) as win:
        still_works(win, neighbour(world))


def test_freed_communicator(world):
    comm = world.Dup()
    comm.Free()
    with pytest.raises(ValueError, match=r"(?i)null|freed"):
        W(comm, np.zeros(3))


def test_errors_have_a_number_and_a_call(comm):
    with guarded(comm, SIZE, "i4", START) as win:
        caught = refused(rmaext.BoundsError, lambda w: w.get(0, 9, 9), win)
        assert isinstance(caught, OSError)
        assert isinstance(caught.errno, int)
        assert caught.errno > 0
        assert caught.rank == 0
        assert isinstance(caught.call, str | None)
        assert isinstance(caught.detail, str | None)


def test_a_thousand_errors_leave_nothing_behind(comm):
    with guarded(comm, SIZE, "i4", START) as win:
        rank = neighbour(comm)
        for i in range(1000):
            with pytest.raises(rmaext.BoundsError):
                win.put(I4, rank, SIZE - 3 + i)
        still_works(win, rank)


def waits(win, timeout):
    win.post([])
    try:
        win.wait(timeout=timeout)
    except (TypeError, ValueError):
        win.wait()  # the epoch goes on
        raise


TIMEOUTS = {
    "lock": lambda w, t: (w.lock(0, timeout=t), w.unlock(0)),
    "lock shared": lambda w, t: (w.lock(0, exclusive=False, timeout=t), w.unlock(0)),
    "lock_all": lambda w, t: (w.lock_all(timeout=t), w.unlock_all()),
    "wait": waits,
    "wait_notify": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_notify(0, 1, t)),
    "wait_any": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_any([0], t)),
    "wait_some": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_some([0], t)),
    "wait_all": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_all([0], t)),
    "wait_until": lambda w, t: w.wait_until(0, ">=", -(2**31), t),
    "request.wait": lambda w, t: w.rget(w.comm.rank).wait(t),
    "waitall": lambda w, t: rmaext.Request.waitall([w.rget(w.comm.rank)], t),
    "waitany": lambda w, t: rmaext.Request.waitany([w.rget(w.comm.rank)], t),
    "dup": lambda w, t: w.dup(timeout=t).close(),
    "window": lambda w, t: rmaext.Window(w.comm, np.zeros(3), timeout=t).close(),
    "allocate": lambda w, t: rmaext.Window.allocate(w.comm, 3, timeout=t).close(),
    "dynamic": lambda w, t: rmaext.Window.dynamic(w.comm, timeout=t).close(),
}


@pytest.mark.parametrize("call", TIMEOUTS.values(), ids=TIMEOUTS)
def test_one_rule_for_time_limits(comm, call):
    """None, inf, what is huge and NumPy's numbers are taken everywhere; the rest nowhere."""
    with guarded(comm, SIZE, "i4", START) as win:
        for good in (None, np.inf, 1e300, 10**400, 10**12, 60, np.float32(60), np.int64(60)):
            call(win, good)
        for wrong in (-1, -0.5, -np.inf, np.nan, np.float64("nan"), np.int64(-1)):
            with pytest.raises(ValueError, match="timeout"):
                call(win, wrong)
        for wrong in ("1", b"1", [1], True, False, 1j, object()):
            with pytest.raises(TypeError, match="timeout"):
                call(win, wrong)
        comm.Barrier()
        while win.test_notify(0):
            pass


class Index:
    """No number, but an integer wherever one is wanted."""

    def __init__(self, value):
        self._value = int(value)

    def __index__(self):
        return self._value


ONE = np.ones(1, "i4")
OTHER = np.full(1, 2, "i4")

# call(win, rank, n, zero): each integer that is given is one of the last three, n is 1
INTEGERS = {
    "put": lambda w, r, n, o: (w.put(ONE, r, o), w.flush(r)),
    "put scalar": lambda w, r, n, o: w.put(1, r, o),
    "get": lambda w, r, n, o: w.get(r, o, n),
    "get out": lambda w, r, n, o: w.get(r, o, n, ONE.copy()),
    "get rest": lambda w, r, n, o: w.get(r, n),
    "fetch_add": lambda w, r, n, o: w.fetch_add(1, r, o),
    "fetch_add array": lambda w, r, n, o: w.fetch_add(ONE, r, o),
    "cas": lambda w, r, n, o: w.compare_and_swap(0, 1, r, o),
    "accumulate": lambda w, r, n, o: w.accumulate(ONE, r, o, "max"),
    "get_accumulate": lambda w, r, n, o: w.get_accumulate(ONE, r, o),
    "fetch_op": lambda w, r, n, o: w.fetch_op(1, r, o),
    "rput": lambda w, r, n, o: w.rput(ONE, r, o).wait(),
    "rget": lambda w, r, n, o: w.rget(r, o, n).wait(),
    "raccumulate": lambda w, r, n, o: w.raccumulate(ONE, r, o).wait(),
    "rget_accumulate": lambda w, r, n, o: w.rget_accumulate(ONE, r, o).wait(),
    "rfetch_op": lambda w, r, n, o: w.rfetch_op(1, r, o).wait(),
    "rcas": lambda w, r, n, o: w.rcompare_and_swap(0, 1, r, o).wait(),
    "flush": lambda w, r, n, o: w.flush(r),
    "flush_local": lambda w, r, n, o: w.flush_local(r),
    "connect": lambda w, r, n, o: w.connect([r]),
    "prepare_put": lambda w, r, n, o: w.prepare_put(ONE, r, o)(),
    "prepare_get": lambda w, r, n, o: w.prepare_get(ONE.copy(), r, o)(),
    "prepare_fetch_add": lambda w, r, n, o: w.prepare_fetch_add(ONE, r, o)(),
    "buffer put": lambda w, r, n, o: w.register(ONE).put(r, o),
    "buffer get": lambda w, r, n, o: w.register(ONE.copy()).get(r, o),
    "buffer fetch_add": lambda w, r, n, o: w.register(ONE).fetch_add(r, o),
    "put_many": lambda w, r, n, o: w.put_many(r, o, 1),
    "put_many lists": lambda w, r, n, o: w.put_many([r, r], [o, n], OTHER),
    "get_many": lambda w, r, n, o: w.get_many(r, o),
    "get_many list": lambda w, r, n, o: w.get_many(r, [o, n]),
    "accumulate_many": lambda w, r, n, o: w.accumulate_many(r, o, 1),
    "fetch_op_many list": lambda w, r, n, o: w.fetch_op_many(r, [n, o], 1),
    "fetch_add_many": lambda w, r, n, o: w.fetch_add_many(r, o, 1),
    "put_notify": lambda w, r, n, o: w.put_notify(ONE, r, o, n),
    "get_notify": lambda w, r, n, o: w.get_notify(r, o, n, n),
    "wait_notify": lambda w, r, n, o: (
        w.put_notify(ONE[:0], w.comm.rank, o, 7),
        w.wait_notify(Index(7), n),
    ),
    "test_notify": lambda w, r, n, o: w.test_notify(n, n),
    "lock": lambda w, r, n, o: (w.lock(r), w.unlock(r)),
    "lock again": lambda w, r, n, o: [(w.lock(r, False), w.unlock(r)) for _ in range(2)],
    "start": lambda w, r, n, o: (w.post([w.comm.rank]), w.start([w.comm.rank])) and ends(w),
    "index": lambda w, r, n, o: w[r, o],
    "index array": lambda w, r, n, o: w[r, [3, 4]],
    "index slice": lambda w, r, n, o: w[r, o:n],
    "index set": lambda w, r, n, o: w.__setitem__((r, o), 1),
    "at": lambda w, r, n, o: w.at(r).add(o, 1),
    "size": lambda w, r, n, o: w.size(r),
    "route": lambda w, r, n, o: w.route(r),
    "subwindow": lambda w, r, n, o: w.subwindow(o, n).close(),
    "advise": lambda w, r, n, o: w.advise("willneed", slice(o, n)),
    "refresh": lambda w, r, n, o: w.refresh(slice(o, n)),
    "wait_until": lambda w, r, n, o: w.wait_until(o, ">=", -(2**31)),
}
# calls that take no rank, and those whose integers NumPy calls masks
NO_RANK = {"wait_notify", "test_notify", "start", "subwindow", "advise", "refresh", "wait_until"}


def ends(win):
    win.complete()
    win.wait()


def kinds():
    """Ways to write an integer: Python's, NumPy's, and of a class of one's own."""
    return [int, np.int8, np.int64, np.uint64, lambda n: np.array(n), Index, Index]


@pytest.mark.parametrize("kind", ["array", "joined", "field"])
@pytest.mark.parametrize("name", INTEGERS)
def test_whatever_has_an_index_is_an_integer(comm, name, kind):
    """In every argument that is a rank, an offset, a count or a slot; floats and text are not."""
    call = INTEGERS[name]
    lacking = {
        "joined": {"index", "at", "subwindow", "advise", "wait_until"},
        "field": {"refresh"},
    }
    if kind != "array" and any(word in name for word in lacking[kind]):
        return
    if kind == "joined":
        whole = rmaext.Window(comm, [np.zeros(3, "i4"), np.zeros(7, "i4")])
        win = whole
    elif kind == "field":
        whole = rmaext.Window(comm, np.zeros(SIZE, np.dtype("i4,i8", align=True)))
        win = whole.field("f0")
    else:
        win = whole = rmaext.Window(comm, np.zeros(SIZE, "i4"))
    rank = comm.size - 1
    for make in kinds():
        call(win, make(rank), make(1), make(0))
    if rank <= 1 and "index" not in name and "list" not in name:
        call(win, bool(rank), True, False)  # Python's bools are integers
    wrong = [float, str, complex, lambda n: np.array(float(n)), lambda n: np.float32(n)]
    for make in [] if name in NO_RANK else wrong:
        with pytest.raises(TypeError):
            call(win, make(rank), 1, 0)
    whole.fence()
    while kind != "field" and win.test_notify(1):
        pass
    whole.close()


# what each of these returns is nothing, or an array without elements
NOBODY = {
    name: INTEGERS[name]
    for name in INTEGERS
    if name not in NO_RANK and name not in ("size", "route", "connect")
}
MANY = {name for name in NOBODY if "many" in name}


@pytest.mark.parametrize("consent", [False, True])
@pytest.mark.parametrize("kind", ["array", "allocate", "shared", "dynamic", "joined", "view"])
def test_proc_null_by_consent_only(world, kind, consent):
    """One rule for all calls and kinds of windows: an error, or nothing if that was asked for."""
    try:
        whole = {
            "array": lambda: rmaext.Window(world, np.zeros(SIZE, "i4"), proc_null=consent),
            "view": lambda: rmaext.Window(world, np.zeros(SIZE, "i4"), proc_null=consent),
            "allocate": lambda: rmaext.Window.allocate(world, SIZE, "i4", proc_null=consent),
            "shared": lambda: rmaext.Window.shared(world, SIZE, "i4", proc_null=consent),
            "dynamic": lambda: rmaext.Window.dynamic(world, "i4", proc_null=consent),
            "joined": lambda: rmaext.Window(world, [np.zeros(SIZE, "i4")], proc_null=consent),
        }[kind]()
    except rmaext.NotLocalError:
        return  # the routes are forced
    win = whole.subwindow(0, SIZE) if kind == "view" else whole
    for name, call in NOBODY.items():
        if ("index" in name or name == "at") and kind in ("joined", "dynamic"):
            continue
        if name in ("get rest",) and kind == "dynamic":
            continue
        null = MPI.PROC_NULL
        if not consent:
            for rank in {null, -1, -2, -3}:
                with pytest.raises(rmaext.BoundsError, match="proc_null=True"):
                    call(win, rank, 1, 0)
            continue
        got = call(win, null, 1, 0)
        got = got[0] if isinstance(got, tuple) else got
        if name in MANY:
            assert got is None or not np.any(got)
        elif not any(word in name for word in ("out", "lock", "prepare_get", "buffer get")):
            assert got is None or got.size == 0, name
        with pytest.raises(rmaext.BoundsError):
            call(win, null - 1, 1, 0)
    if consent:
        win.post([null, world.rank])
        win.start([world.rank, null, null])
        ends(win)
        win.connect([null])
    for name in ("size", "route"):
        with pytest.raises((rmaext.BoundsError, rmaext.Unsupported)):
            INTEGERS[name](win, MPI.PROC_NULL, 1, 0)
    whole.fence()
    if kind != "dynamic":
        assert not np.any(whole.local)
    assert not np.any(whole.notify_counts())
    whole.close()


def test_wrong_proc_null(comm):
    for wrong in (1, None, "yes", MPI.PROC_NULL):
        with pytest.raises(TypeError, match="proc_null"):
            rmaext.Window(comm, np.zeros(3), proc_null=wrong)


class Offers:
    """An array by `__array__` only."""

    def __init__(self, values, dtype):
        self._array = np.array(values, dtype)

    def __array__(self, dtype=None, copy=None):
        return self._array


class Interface:
    """An array by `__array_interface__` only."""

    def __init__(self, values, dtype):
        self._array = np.array(values, dtype)
        self.__array_interface__ = self._array.__array_interface__


def alike(dtype):
    """What NumPy takes for an array of three elements of a dtype: 1, 2 and 3."""
    made = np.array([1, 2, 3], dtype)
    code = {"i1": "b", "u2": "H", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}
    both = [memoryview(made), Offers([1, 2, 3], dtype), Interface([1, 2, 3], dtype), [*made]]
    if dtype in code:
        both += [array.array(code[dtype], [1, 2, 3]), (np.ctypeslib.as_ctypes(made))]
    if dtype == "u1":
        both += [bytearray(b"\1\2\3"), memoryview(b"\1\2\3")]
    if made.dtype.kind in "iufc":
        both += [[1, 2, 3], (1, 2, 3), [True, 2, 3]]
    if made.dtype.kind in "fc":
        both += [[1.0, 2, 3], [1.0, 2.0, 3.0]]
    if made.dtype.kind == "c":
        both += [[1 + 0j, 2, 3.0]]
    return both


@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "u2", "i4", "i8", "u8", "f4", "f8", "g", "c8", "c16"]
)
def test_array_likes_are_origins(comm, dtype):
    """As NumPy takes them, without a cast of anything that has a dtype."""
    want, rank = np.array([1, 2, 3], dtype), neighbour(comm)
    with guarded(comm, 3, dtype) as win:
        for given in alike(dtype):
            for call in (
                lambda given=given: win.put(given, rank),
                lambda given=given: win.rput(given, rank).wait(),
                lambda given=given: win.accumulate(given, rank, 0, "replace"),
                lambda given=given: win.put_many(rank, [0, 1, 2], given),
                lambda given=given: win.put_notify(given, rank, 0, 3),
                lambda given=given: win.__setitem__((rank, slice(None)), given),
                lambda given=given: win.at(rank).update([0, 1, 2], given, "replace"),
            ):
                win.put(np.zeros(3, dtype), rank)
                call()
                win.flush()
                assert win.get(rank).tolist() == want.tolist(), type(given)
                comm.Barrier()
        win.put([], rank)
        win.put([[1, 2], [3, 4]][:1], rank, 1)
        win.flush()
        assert win.get(rank).tolist() == [1, 1, 2]
        comm.Barrier()
        while win.test_notify(3):
            pass
    nested = rmaext.Window(comm, np.zeros((2, 2), dtype))
    nested.put([[1, 2], [3, 4]], rank)
    nested.fence()
    assert nested.local.tolist() == [[1, 2], [3, 4]]
    nested.close()


NO_ORIGINS = {
    "i4": [
        *([1.5], [1, 2.0], [2j], ["1"], [None], [[1], [2, 3]], [np.int64(1)], [np.ones(1, "i8")]),
        *({1, 2}, {1: 2}, range(3).__iter__(), object(), b"abcd", "abcd", None, Index(3)),
        *(memoryview(np.ones(2)), array.array("d", [1]), Offers([1], "i8"), Interface([1], "f8")),
    ],
    "?": [[1], [1.0], [2], array.array("b", [1])],
    "f4": [[1j], [np.float64(1)], Offers([1], "f8"), [b"1"], memoryview(b"1234")],
    "M8[s]": [[1], [1.0]],
    "i4,i4": [[(1, 2)], [1]],
}
TOO_LARGE = {
    "i4": [[2**31], [0, -(2**31) - 1], [10**30], [[1], [2**40]]],
    "u8": [[-1], [2**64], [1, 10**30]],
    "i1": [[128], [True, 200]],
    "f4": [[1e39], [float("nan"), 1e300], [1, 10**60], [float("inf"), -1e300]],
    "f2": [[70000], [1.0, 1e6]],
    "f8": [[10**400]],
    "c8": [[1e300j], [1.0, 1e39]],
}


@pytest.mark.parametrize("dtype", sorted({*NO_ORIGINS, *TOO_LARGE}))
def test_no_origins(comm, dtype):
    """Refused before anything is sent."""
    rank = neighbour(comm)
    with guarded(comm, 3, dtype) as win:
        before = win.local.tobytes()
        for given in NO_ORIGINS.get(dtype, []):
            with pytest.raises((TypeError, ValueError)) as caught:
                win.put(given, rank)
            assert not isinstance(caught.value, OverflowError)
        for given in TOO_LARGE.get(dtype, []):
            with pytest.raises(OverflowError):
                win.put(given, rank)
        win.fence()
        assert win.local.tobytes() == before
        win.fence()
