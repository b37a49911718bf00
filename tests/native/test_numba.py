# SPDX-License-Identifier: BSD-3-Clause
"""The library called from code that numba compiles."""

from __future__ import annotations

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

    mine = numba_histogram.run(comm)
    want = numba_histogram.expected(comm.size).reshape(comm.size, -1)
    assert same(mine, want[comm.rank])
    assert mine.sum() <= numba_histogram.PARTICLES * comm.size
