# SPDX-License-Identifier: BSD-3-Clause
"""Bad input is refused at the origin, with nothing sent or changed."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, neighbour

import rmaext

pytestmark = pytest.mark.pair

SIZE = 10
START = np.arange(SIZE, dtype="i4") + 100
I4 = np.ones(4, "i4")


def bad(id_, error, call):
    return pytest.param(error, call, id=id_)


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
    bad("put np.int64", OverflowError, lambda w, t: w.put(np.int64(2**31), t)),
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


@pytest.mark.parametrize(("error", "call"), ARGUMENTS)
def test_arguments(comm, error, call):
    with guarded(comm, SIZE, "i4", START) as win:
        refused(error, call, win, neighbour(comm))
        still_works(win, neighbour(comm))


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
