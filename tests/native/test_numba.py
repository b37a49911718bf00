# SPDX-License-Identifier: BSD-3-Clause
"""The library called from code that numba compiles."""

from __future__ import annotations

import contextlib
import doctest
import errno
import gc
import os
import warnings
import weakref

import launch
import numpy as np
import numpy.ma  # else by numpy.unique, the first time that a call waits
import pytest
from c_methods import SIZE
from mpi4py import MPI
from support.guarded import guarded, neighbour, same

import rmaext
from rmaext._memory.arrays import atomic_dtypes

pytestmark = pytest.mark.pair

# -- numba -------------------------------------------------------------------------


def test_numba(comm):
    pytest.importorskip("numba")
    from rmaext import jit

    rank = neighbour(comm)
    with guarded(comm, 300_000, "l", 0) as win, guarded(comm, 3, "d", 0.5) as real:
        win.fence()
        data, out, old = np.arange(299_990), np.zeros(299_990, int), np.zeros(1, int)
        handle = win.numba
        win.check(jit.put(handle, rank, 10, data.ctypes.data, data.size))
        win.check(jit.flush(handle, rank))
        win.check(jit.get(handle, rank, 10, out.ctypes.data, out.size))
        assert same(out, data)
        win.check(jit.fetch_add_int64(handle, rank, 11, 5, old.ctypes.data))
        assert old[0] == 1
        win.check(jit.fetch_add_int64(handle, rank, 11, 5, 0))
        assert win.get(rank, 11, 1)[0] == 11
        assert jit.put(handle, rank, 0, 0, 0) == 0
        was = np.zeros(1)
        real.check(jit.fetch_add_float64(real.numba, rank, 2, 0.25, was.ctypes.data))
        assert was[0] == 0.5
        assert real.get(rank, 2, 1)[0] == 0.75
        for code, error in [
            (jit.put(handle, comm.size, 0, data.ctypes.data, 1), rmaext.BoundsError),
            (jit.put(handle, -1, 0, data.ctypes.data, 1), rmaext.BoundsError),
            (jit.put(handle, rank, 299_999, data.ctypes.data, 2), rmaext.BoundsError),
            (jit.get(handle, rank, -1, data.ctypes.data, 1), rmaext.BoundsError),
            (jit.get(handle, rank, 2**61, data.ctypes.data, 1), rmaext.BoundsError),
            (jit.get(handle, rank, 0, data.ctypes.data, -1), rmaext.BoundsError),
            (jit.fetch_add_int64(handle, rank, 300_000, 1, 0), rmaext.BoundsError),
            (jit.fetch_add_float64(handle, rank, 0, 1.0, 0), rmaext.RmaError),
            (jit.flush(handle, comm.size), rmaext.BoundsError),
        ]:
            assert code < 0
            with pytest.raises(error):
                win.check(code)
        win.fence()
    for code in (
        jit.put(handle, rank, 0, data.ctypes.data, 1),
        jit.fetch_add_int64(handle, rank, 0, 1, 0),
        jit.flush(handle, rank),
    ):
        with pytest.raises(rmaext.ClosedError):
            win.check(code)


@pytest.mark.parametrize("dtype", atomic_dtypes(), ids=str)
def test_compare_and_swap_of_every_dtype(comm, dtype):
    pytest.importorskip("numba")
    from rmaext import jit

    rank, both = neighbour(comm), np.array([0, 1], dtype)
    zero, one = (both.ctypes.data + i * both.itemsize for i in range(2))
    with guarded(comm, 3, dtype, both[1]) as win:
        old = np.zeros(3, dtype)
        middle = old.ctypes.data + old.itemsize
        win.check(jit.compare_and_swap(win.numba, rank, 1, zero, zero, middle))  # it is not zero
        assert old.tolist() == both[[0, 1, 0]].tolist()
        assert win.load(rank, 1).tolist() == both[1].tolist()
        win.check(jit.compare_and_swap(win.numba, rank, 1, one, zero, middle))
        assert old.tolist() == both[[0, 1, 0]].tolist()
        win.check(jit.compare_and_swap(win.numba, rank, 2, one, zero, 0))
        win.fence()
        assert win.local.tolist() == both[[1, 0, 0]].tolist()
        win.fence()


@pytest.mark.parametrize(
    ("dtype", "start"), [("i8", [-(2**63), 2**63 - 1, 1]), ("f8", [np.nan, -0.0, 1e300])]
)
def test_compare_and_swap_of_numbers(comm, dtype, start):
    """Bits are compared: so NaN equals itself, and 0.0 does not equal -0.0."""
    pytest.importorskip("numba")
    from rmaext import jit

    rank, old = neighbour(comm), np.zeros(1, dtype)
    swap = jit.compare_and_swap_int64 if dtype == "i8" else jit.compare_and_swap_float64
    with guarded(comm, 3, dtype, start) as win:
        for offset, was in enumerate(np.array(start, dtype)):
            for compare, value, found in (5, 6, was), (0, 7, was), (was, 8, was), (8, 9, 8):
                win.check(swap(win.numba, rank, offset, compare, value, old.ctypes.data))
                assert same(old, np.array([found], dtype))
        win.check(swap(win.numba, rank, 0, 9, 10, 0))
        win.fence()
        assert win.local.tolist() == [10, 9, 9]
        win.fence()


def test_compare_and_swap_refuses(comm):
    """As `fetch_add` and the method of `Window` do; nothing is written anywhere."""
    pytest.importorskip("numba")
    from rmaext import jit

    rank = neighbour(comm)
    elements, old = np.arange(6), np.full(1, -1)
    a, b, out = elements.ctypes.data, elements.ctypes.data + 8, old.ctypes.data
    swap, of_ints = jit.compare_and_swap, jit.compare_and_swap_int64
    of_reals = jit.compare_and_swap_float64
    with contextlib.ExitStack() as stack:
        ints = stack.enter_context(guarded(comm, 3, "i8"))
        bools = stack.enter_context(guarded(comm, 3, "?"))
        text = stack.enter_context(guarded(comm, 3, "S40", b""))
        read = stack.enter_context(guarded(comm, 3, "i8", access="r"))
        odd = stack.enter_context(guarded(comm, 3, "i8", shift=1))
        for place in (comm.size, 0), (-1, 0), (rank, 3), (rank, -1), (rank, 2**62):
            for code in (
                swap(ints.numba, *place, a, b, out),
                swap(text.numba, *place, a, b, out),
                of_ints(ints.numba, *place, 0, 1, out),
                of_reals(ints.numba, *place, 0.0, 1.0, out),
                jit.fetch_add_int64(ints.numba, *place, 1, out),
            ):
                with pytest.raises(rmaext.BoundsError):
                    ints.check(code)
        for window, call, *arguments, error in [
            (ints, of_reals, 0.0, 1.0, rmaext.RmaError),
            (bools, of_ints, 0, 1, rmaext.RmaError),
            (text, swap, a, b, rmaext.Unsupported),
            (read, swap, a, b, rmaext.AccessError),
            (read, of_ints, 0, 1, rmaext.AccessError),
            (odd, of_ints, 0, 1, rmaext.AlignmentError),
        ]:
            code = call(window.numba, rank, 0, *arguments, out)
            with pytest.raises(error) as caught:
                window.check(code)
            assert (caught.value.call, caught.value.rank) == ("compare_and_swap", rank)
        assert old[0] == -1
        for window in ints, bools, text, read, odd:
            window.fence()
            assert not any(window.local.tobytes())
            window.fence()
    for code in (swap(ints.numba, rank, 0, a, b, out), of_ints(ints.numba, rank, 0, 0, 1, out)):
        with pytest.raises(rmaext.ClosedError):
            ints.check(code)


def test_compare_and_swap_in_loops(comm):
    """All ranks count and add, in places of one rank, without a lock; nothing is lost."""
    numba = pytest.importorskip("numba")
    from rmaext.jit import compare_and_swap_float64, compare_and_swap_int64

    def loop(swap):
        def add(handle, value, times, old):
            for _ in range(times):
                while True:
                    seen = old[0]
                    code = swap(handle, 0, 1, seen, seen + value, old.ctypes.data)
                    if code:
                        return code
                    if old[0] == seen:
                        break
            return 0

        return numba.njit(add)

    rounds = 300
    with guarded(comm, 3, "i8") as ints, guarded(comm, 3, "f8") as reals:
        counted, added = np.zeros(1, "i8"), np.zeros(1)
        ints.check(loop(compare_and_swap_int64)(ints.numba, 3, rounds, counted))
        reals.check(loop(compare_and_swap_float64)(reals.numba, 0.5, rounds, added))
        ints.fence()
        reals.fence()
        if comm.rank == 0:
            assert ints.local.tolist() == [0, 3 * rounds * comm.size, 0]
            assert reals.local.tolist() == [0, 0.5 * rounds * comm.size, 0]
        ints.fence()


def test_docstring():
    """The example in the docstring of rmaext.jit."""
    pytest.importorskip("numba")
    from rmaext import jit

    with rmaext.Window.allocate(MPI.COMM_SELF, 10) as win:
        known = {"np": np, "win": win}
        example = doctest.DocTestParser().get_doctest(jit.__doc__, known, "jit", None, None)
        result = doctest.DocTestRunner().run(example)
    assert example.examples
    assert not result.failed


@pytest.mark.parametrize("closed", [True, False])
def test_a_late_call_from_numba(closed):
    """The number may be used after its window: for ever."""
    pytest.importorskip("numba")
    from rmaext import jit

    handles, data = [], np.zeros(3)
    for _ in range(12):
        win = rmaext.Window.allocate(MPI.COMM_SELF, SIZE)
        handles.append(win.numba)
        assert win.numba == handles[-1]
        win.check(jit.put(handles[-1], 0, 0, data.ctypes.data, 1))
        if closed:
            win.close()
        gone = weakref.ref(win)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del win
            gc.collect()
        assert gone() is None  # only what C needs is kept
        junk = [os.urandom(n) for n in range(16, 400, 8)]  # where it may have been
    assert len(set(handles)) == len(handles)
    shut = -errno.ESHUTDOWN
    for handle in handles:
        assert jit.put(handle, 0, 0, data.ctypes.data, 1) == shut
        assert jit.get(handle, 0, 0, data.ctypes.data, 1) == shut
        assert jit.fetch_add_float64(handle, 0, 0, 1.0, 0) == shut
        assert jit.flush(handle, -1) == shut
    assert junk
    with pytest.raises(ValueError, match="no window"):
        _ = rmaext.Window.__new__(rmaext.Window).numba


def test_numba_example(comm, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.syspath_prepend(launch.ROOT / "examples")
    import numba_histogram

    monkeypatch.setattr(numba_histogram, "PARTICLES", 2000)  # by network each is a message
    mine = numba_histogram.run(comm)
    want = numba_histogram.expected(comm.size).reshape(comm.size, -1)
    assert same(mine, want[comm.rank])
    assert mine.sum() <= numba_histogram.PARTICLES * comm.size
