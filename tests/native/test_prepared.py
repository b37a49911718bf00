# SPDX-License-Identifier: BSD-3-Clause
"""Registered buffers and prepared operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.ma  # else by numpy.unique, the first time that a call waits
import pytest
from c_methods import SIZE, Child, frozen
from mpi4py import MPI
from support.guarded import guarded, neighbour, noise, same

import rmaext

# -- registered buffers and prepared operations ----------------------------------


@pytest.mark.parametrize("dtype", ["i4", "f8", "D", ">i4", "M8[s]", "i4,f8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_registered_and_prepared(comm, dtype, shape):
    right, left = neighbour(comm), (comm.rank - 1) % comm.size
    with guarded(comm, SIZE, dtype) as win:
        array = np.zeros(shape, dtype)
        count = array.size
        buffer = win.register(array)
        assert buffer.array is array
        assert buffer.window is win
        put = win.prepare_put(array, right, 5)
        out = np.zeros(shape, dtype)
        get = win.prepare_get(out, right, 5)
        for turn in range(3):
            array[...] = noise(dtype, count, comm.rank, turn).reshape(shape)
            want = noise(dtype, count, left, turn).tobytes()
            assert (put if turn % 2 else lambda: buffer.put(right, offset=5))() is None
            win.fence()
            assert win.local[5 : 5 + count].tobytes() == want
            assert get() is out
            assert same(out, array)
            win.fence()
            array[...] = np.zeros((), dtype)
            assert buffer.get(right, 5) is array
            assert same(out, array)
            win.fence()


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_prepared_fetch_add(comm, shape):
    with guarded(comm, SIZE, "i8", 1) as win:
        one = np.ones(shape, "i8")
        buffer = win.register(one)
        add = win.prepare_fetch_add(one, comm.rank, 2)
        for turn in range(0, 4, 2):
            one[...] = 1
            old = add()
            assert type(old) is (np.int64 if shape == () else np.ndarray)
            assert same(old, np.full(shape, 1 + turn * 5))
            one[...] = 9
            assert same(buffer.fetch_add(comm.rank, 2), np.full(shape, 2 + turn * 5))
        scalar = win.prepare_fetch_add(5, comm.rank, 11)
        assert [scalar(), scalar(), scalar()] == [1, 6, 11]
        win.fence()


def test_what_is_prepared_is_checked(windows):
    win, fixed = windows["i", "rw"], windows["i", "r"]
    good, wrong = np.zeros(3, "i4"), np.zeros(3)
    makers = {
        "put": win.prepare_put,
        "get": win.prepare_get,
        "fetch_add": win.prepare_fetch_add,
        "register": lambda array, *_: win.register(array),
    }
    for name, make in makers.items():
        with pytest.raises(TypeError):
            make(wrong, 0)
        with pytest.raises(TypeError):
            make([1, 2], 0)
        with pytest.raises(ValueError, match="C-contiguous"):
            make(np.zeros((3, 2), "i4").T, 0)
        if name == "register":
            continue
        for rank, offset in ((1, 0), (0, SIZE - 2), (0, -1), (0, 2**62)):
            with pytest.raises(rmaext.BoundsError):
                make(good, rank, offset)
        with pytest.raises(TypeError):
            make(good, 0.0)
        with pytest.raises(rmaext.BoundsError):
            make(good, MPI.PROC_NULL)
        with pytest.raises(TypeError):
            make(good, 0)(1)
    with pytest.raises(ValueError, match="read-only"):
        win.prepare_get(frozen(np.zeros(3, "i4")), 0)
    for make in (fixed.prepare_put, fixed.prepare_fetch_add):
        with pytest.raises(rmaext.AccessError):
            make(good, 0)
    with pytest.raises(rmaext.AccessError):
        windows["i", "w"].prepare_get(good, 0)
    with pytest.raises(rmaext.Unsupported):
        windows["M8[s]", "rw"].prepare_fetch_add(np.datetime64(1, "s"), 0)
    with pytest.raises(rmaext.Unsupported):
        windows[">i4", "rw"].prepare_fetch_add(1, 0)
    with pytest.raises(OverflowError):
        win.prepare_fetch_add(2**31, 0)


def test_prepared_alignment(comm):
    with guarded(comm, SIZE, "i8", 0, 4) as win:
        with pytest.raises(rmaext.AlignmentError):
            win.prepare_fetch_add(1, comm.rank, 2)
        win.prepare_put(np.ones(1, "i8"), comm.rank, 2)()
        win.fence()


def test_an_array_that_changes_after_it_was_registered(windows):
    win = windows["l", "rw"]
    for use in ("put", "get", "fetch_add", "buffer"):
        array = np.arange(4)
        made: Any = {
            "put": lambda a: win.prepare_put(a, 0, 6),
            "get": lambda a: win.prepare_get(a, 0, 6),
            "fetch_add": lambda a: win.prepare_fetch_add(a, 0, 6),
            "buffer": lambda a: win.register(a),
        }[use](array)
        run = (lambda made=made: made.put(0, 6)) if use == "buffer" else made
        run()
        with pytest.raises(ValueError, match="resize"):
            array.resize(400_000)
        # against all warnings: then it is looked at anew, or refused
        array.resize(5, refcheck=False)
        run()
        array.resize(400_000, refcheck=False)
        with pytest.raises(rmaext.BoundsError):
            run()
        array.resize(4, refcheck=False)
        run()
    array = np.zeros(4, int)
    get = win.prepare_get(array, 0)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        get()


def test_a_subclass_is_put_and_got(windows):
    win = windows["l", "rw"]
    child = np.arange(4).view(Child)
    win.prepare_put(child, 0, 1)()
    assert win.local[1:5].tolist() == [0, 1, 2, 3]
    out = np.zeros(4, int).view(Child)
    assert win.prepare_get(out, 0, 1)() is out
    assert win.register(out).get(0, 1) is out
    assert out.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [-1, 3, 4, 7, 1 << 30])
def test_no_such_operation(kind):
    with (
        rmaext.Window.allocate(MPI.COMM_SELF, 4) as win,
        pytest.raises(ValueError, match="prepare_put"),
    ):
        rmaext.Prepared(kind, win, np.zeros(1), 0, 0)
