# SPDX-License-Identifier: BSD-3-Clause
"""win[rank, key] and win.at(rank) against NumPy."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import launch
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.guarded import guarded, neighbour, noise, same
from support.jobs import passes

import rmaext

# A key and a value are made of one number that hypothesis draws: 100 a shape by either route,
# and ten times as many in test-stress.
COUNTS = [100, pytest.param(1000, marks=pytest.mark.stress)]

SHAPES = [
    ((), "f8"),
    ((0,), "i4"),
    ((11,), "i8"),
    ((11,), "i2,f8"),
    ((5, 6), "f8"),
    ((4, 3, 5), "f4"),
    ((3, 0, 2), "u1"),
    ((2, 3, 1, 4), "S3"),
    ((2, 2, 3, 2, 2), "c8"),
]
NUMBERS = [entry for entry in SHAPES if entry[1] not in ("S3", "i2,f8")]


# -- keys ----------------------------------------------------------------------------


def item(draw, n):
    """A part of a key for an axis of n elements; now and then one that is wrong."""
    low, high = (-n, n - 1) if draw.random() < 0.97 else (-n - 1, n)
    kind = draw.choice("issssNEaaAlmMub")
    if kind == "i":
        number = draw.randint(low, max(low, high))
        return draw.choice([int, np.int64, np.int8, np.array])(number)
    if kind == "s":
        ends = [None, *range(-n - 2, n + 3)]
        step = draw.choice([None, None, 1, 2, 3, -1, -1, -2, 100, -100])
        return slice(draw.choice(ends), draw.choice(ends), step)
    if kind in "aAlu":
        shape = draw.choice([(3,), (2,), (1,), (2, 1), (2, 3), (0,)] if n else [(0,)])
        count = int(np.prod(shape))
        index = np.array([draw.randint(low, max(low, high)) for _ in range(count)], int)
        index = index.reshape(shape)
        if kind == "u":
            return (index % max(n, 1)).astype(draw.choice(["u1", "u8", ">i4"]))
        return index.tolist() if kind == "l" else index[::-1]
    if kind in "mM" and n:  # NumPy takes one of no elements for any axis, at times
        mask = np.array([draw.random() < 0.6 for _ in range(n)], bool)
        return mask if kind == "m" else mask.tolist()
    if kind == "b":
        return draw.choice([True, False, np.True_])
    return None if kind in "NmM" else Ellipsis


def make_key(draw, shape):
    if draw.random() < 0.05 and shape:
        return (np.array([draw.random() < 0.5 for _ in range(int(np.prod(shape)))]).reshape(shape),)
    axes = list(shape[: draw.randint(0, len(shape))])
    if draw.random() < 0.2 and shape:
        axes.append(draw.choice(shape))
    return tuple(item(draw, n) for n in axes)


def in_order(key):
    """The key of which NumPy, too, lets the last one win that names an element twice.

    It goes through indices as they lie in memory.
    """
    return tuple(np.array(it, order="C") if isinstance(it, np.ndarray) else it for it in key)


def make_values(draw, dtype, shape):
    """Values that may be broadcast to the shape."""
    how = draw.randrange(6)
    if how == 0 and dtype.kind in "fc":
        return draw.randint(-50, 50) / 2
    shape = list(shape)
    if how == 1:
        shape = [1, 1, *shape]
    if how == 2:
        shape = shape[draw.randint(0, len(shape)) :]
    if how == 3:
        shape = [1 if draw.random() < 0.5 else n for n in shape]
    count, seed = int(np.prod(shape)), draw.randrange(10**6)
    if dtype.kind in "iufc":  # so that sums are exact
        values = np.random.default_rng(seed).integers(0, 9, count).astype(dtype)
    else:
        values = noise(dtype, count, seed)
    values = values.reshape(shape)
    if how == 4:
        return np.asfortranarray(values)
    return values[..., ::-1].copy()[..., ::-1] if how == 5 and shape else values


def outcome(function):
    """Result, or the error's type."""
    with warnings.catch_warnings():
        # indices that name no element, as NumPy deems them now
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("error", "Out of bound index found", DeprecationWarning)
        try:
            return function(), None
        except DeprecationWarning:  # an IndexError in later releases of NumPy
            return None, IndexError
        except (IndexError, ValueError) as exc:
            return None, type(exc)


def agree(mine, reference, key):
    """Both succeed, with the same, or fail, with the same kind of error."""
    wanted, error = outcome(reference)
    if error is None:
        got = mine()
        assert type(got) is type(wanted), key
        assert wanted is None or same(got, wanted), (key, got, wanted)
        return wanted
    with pytest.raises(error):
        mine()
    return None


def examples(function, count):
    """Run a function with so many generators of random numbers, the same each time."""
    run = settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(st.integers(0, 2**40).map(random.Random))(function))
    run()


# -- agreement with NumPy ------------------------------------------------------------


@pytest.mark.pair
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("shape", "dtype"), SHAPES, ids=str)
def test_keys(comm, shape, dtype, count):
    """Each rank has its neighbour's window for itself."""
    dtype, to = np.dtype(dtype), neighbour(comm)
    with guarded(comm, shape, dtype) as win:
        model = noise("u1", win.local.nbytes, 1).view(dtype).reshape(shape)
        if dtype.kind in "fc":
            model = np.arange(model.size).astype(dtype).reshape(shape)
        model = model.copy()
        win.fence()
        win[to] = model
        win.flush()

        def one(draw):
            key = make_key(draw, shape)
            wanted = agree(lambda: win[(to, *key)], lambda: model[key], key)
            values = make_values(draw, dtype, np.shape(wanted))
            if isinstance(wanted, np.generic):  # what else an element may be set to has changed
                values = np.asarray(values, dtype).reshape(())[()]
            if len(key) == 1 and np.ndim(values) > np.ndim(wanted):  # NumPy: not with a mask
                values = values.reshape(np.shape(wanted))
            agree(
                lambda: win.__setitem__((to, *key), values),
                lambda: model.__setitem__(in_order(key), values),
                key,
            )
            win.flush(to)
            assert same(win[to, ...], model[...]), key

        examples(one, count)
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("shape", "dtype"), NUMBERS, ids=str)
def test_add_at(comm, shape, dtype, count):
    """As numpy.add.at: what is named twice is added to twice."""
    dtype, to = np.dtype(dtype), neighbour(comm)
    with guarded(comm, shape, dtype) as win:
        model = np.zeros(shape, dtype)
        win.fence()
        at = win.at(to)

        def one(draw):
            key = make_key(draw, shape)
            wanted, error = outcome(lambda: model[key])
            values = make_values(draw, dtype, np.shape(wanted))
            if isinstance(values, np.ndarray):  # np.add.at takes no additional dimensions
                values = values.reshape(values.shape[max(0, values.ndim - np.ndim(wanted)) :])
            if error is None:
                np.add.at(model, key, values)
                at.add(key, values)
            else:
                with pytest.raises(error):
                    at.add(key, values)
            assert same(win[to, ...], model[...]), key

        examples(one, count)
        win.fence()


def test_updates_of_all(comm):
    """Repeated indices, every rank at once: none is lost."""
    rng = np.random.default_rng(comm.rank)
    with guarded(comm, (7, 9), "i8") as win:
        want = np.zeros((7, 9), "i8")
        win.fence()
        for _ in range(20):
            index = (rng.integers(0, 7, 300), rng.integers(0, 9, 300))
            win.at(0).add(index, 2)
            np.add.at(want, index, 2)
            win.at(0).update((slice(None), 3), 1)
            want[:, 3] += 1
        want = comm.allreduce(want)
        win.fence()
        assert comm.rank or same(win.local, want)
        win.fence()


# -- long, and many ------------------------------------------------------------------

WHOLE = slice(None)
BACK = slice(None, None, -1)


@pytest.mark.parametrize(
    ("shape", "dtype", "key"),
    [
        ((6, 40, 300), "f8", (slice(None, None, 2),)),  # runs of 96 kB
        ((6, 40, 300), "f8", (BACK, slice(3, 30))),
        ((40, 3000), "f8", (WHOLE, slice(100, 1000))),  # of 7,200 bytes
        ((40, 3000), "f8", (BACK, slice(1, None))),
        ((40, 3000), "f8", ([3, 1, 39, 1], slice(10, 2000))),
        ((4, 5, 6000), "u1", (WHOLE, BACK, slice(1, 5500))),
        ((2000, 7), "f8", (WHOLE, 3)),
        ((2000, 7), "f8", (BACK, slice(1, 6))),
        ((900, 700), "i1", (WHOLE, slice(None, None, 2))),  # 315,000 runs
        ((300, 9, 37), "S3", (slice(None, None, 3), BACK, slice(1, 30, 4))),
        ((3,) * 9, "i2", (BACK, slice(1, None)) * 4),
        ((2,) * 18, "i1", (WHOLE, BACK) * 9),  # more loops than a message takes
        ((9, 20000), "f8", ([[1], [3]], BACK)),
        ((9, 20000), "i4", (np.arange(9) % 2 == 0,)),
    ],
    ids=range(14),
)
def test_large(comm, shape, dtype, key):
    to = neighbour(comm)
    with guarded(comm, shape, dtype) as win:
        model = noise(dtype, int(np.prod(shape)), 3).reshape(shape).copy()
        win.fence()
        win[to] = model
        win.flush(to)
        assert same(win[(to, *key)], model[key])
        values = noise(dtype, model[key].size, 4).reshape(model[key].shape)
        given = values.copy()
        win[(to, *key)] = given
        given.view("u1")[...] = 0  # it may be reused
        model[key] = values
        win.flush(to)
        assert same(win[to], model)
        win[(to, *key)] = values[..., :1]  # broadcast
        model[key] = values[..., :1]
        win.fence()
        assert same(win.local, model)
        win.fence()


def test_own_memory_in_pieces(comm):
    """Values that overlap the target, and such with steps of their own."""
    me, model = comm.rank, np.arange(300.0).reshape(20, 15)
    with guarded(comm, (20, 15)) as win:
        for count in (20, 3):
            part = slice(count)
            win.local[...] = model
            win[me, BACK] = win.local
            win.flush()
            assert same(win.local, model[::-1])
            win[me, :count, 1:] = win.local[part, :-1]
            win.flush()
            want = model[::-1].copy()
            want[part, 1:] = model[::-1][part, :-1]
            assert same(win.local, want)
            win[me, :, 4] = model[:, 7]
            win[me, :5, :5] = model[5:10, 5:10].T
            want[:, 4] = model[:, 7]
            want[:5, :5] = model[5:10, 5:10].T
            win.flush()
            assert same(win.local, want)
        win.fence()


@pytest.mark.parametrize("count", [70, 70_000])
def test_values_over_a_long_target(comm, count):
    with guarded(comm, count, "i4") as win:
        win.local[...] = np.arange(count)
        win[comm.rank, 1:] = win.local[:-1]
        win.flush()
        assert same(win.local, np.append(0, np.arange(count - 1)).astype("i4"))
        win[comm.rank, ::-2] = win.local[::-2][::-1]
        win.fence()


def test_indices_and_values_in_the_target(comm):
    me, model = comm.rank, np.array([3, 0, 2, 1, 2])
    with guarded(comm, 5, "i8") as win:
        win.local[...] = model
        win[me, win.local] = win.local[::-1]
        win.flush()
        model[model.copy()] = model[::-1].copy()
        assert same(win.local, model)
        win[me] = np.array([3, 0, 2, 1, 2])
        win.flush()
        win.at(me).add(win.local, win.local)
        assert win.local.tolist() == [3, 1, 6, 4, 2]
        win.fence()


def test_sizes_that_differ(comm):
    """The shape is that of the rank at hand; one has no elements."""
    with rmaext.Window.allocate(comm, (comm.rank, 3), "i4") as win:
        for rank in range(comm.size):
            assert win[rank].shape == (rank, 3)
            win[rank, :, comm.rank % 3] = 7
            with pytest.raises(rmaext.BoundsError, match=f"rank {rank}"):
                win[rank, rank]
        win.fence()


def test_column_of_a_structure(comm):
    to = neighbour(comm)
    with guarded(comm, (5, 4), "i2,f8") as win:
        win.fence()
        one = np.array((3, 2.5), "i2,f8")
        win[to, :, 2] = one
        win[to, 1, 1] = one[()]
        win.fence()
        want = np.zeros((5, 4), "i2,f8")
        want[:, 2] = want[1, 1] = one
        assert same(win.local, want)
        got = win[to, 3, 2]
        assert isinstance(got, np.void)
        assert got["f1"] == 2.5
        win.fence()


def test_views(comm):
    """A subwindow is of one dimension; a field has the shape of its window."""
    to = neighbour(comm)
    with guarded(comm, (5, 4), "i4,f8") as win:
        values = win.field("f1")
        model = np.arange(20.0).reshape(5, 4)
        win.fence()
        values[to] = model
        values[to, ::2, 1] = -1.0
        values[to, [1, 3], 2:] = 7.0
        model[::2, 1] = -1
        model[[1, 3], 2:] = 7
        values.flush()
        for key in (WHOLE, (BACK, 2), ([0, 4], [1, 1]), model > 5, (2, 3)):
            assert same(values[(to, *key) if isinstance(key, tuple) else (to, key)], model[key])
        part = win.subwindow(6, 15)
        part[to, ::4] = np.zeros((), win.dtype)
        model.reshape(-1)[6:15:4] = 0
        win.fence()
        assert same(win.local["f1"], model)
        assert not win.local["f0"].any()
        assert same(part[to, 1:3]["f1"], model.reshape(-1)[7:9])
        win.fence()


def test_windows_that_are_no_array(comm):
    with rmaext.Window(comm, [np.zeros(3), np.zeros(2)]) as win:
        for call in (lambda: win[0], lambda: win.__setitem__((0, 1), 1.0)):
            with pytest.raises(rmaext.Unsupported):
                call()
        with pytest.raises(rmaext.Unsupported):
            win.at(0).add(1, 1.0)


# -- what else there is --------------------------------------------------------------


def test_nobody(comm):
    """MPI.PROC_NULL: nothing is read or written, but types are looked at."""
    nobody = MPI.PROC_NULL
    with guarded(comm, 4, "i4", 5, proc_null=True) as win:
        assert same(win[nobody], np.empty(0, "i4"))
        assert same(win[nobody, 2:3], np.empty(0, "i4"))
        win[nobody, 77] = 1
        win.at(nobody).add(77, 1)
        with pytest.raises(TypeError):
            win[nobody, 1] = 1.5
        with pytest.raises(TypeError):
            win.at(nobody).add(1, 1.5)
        win.fence()
        assert (win.local == 5).all()


def test_augmented_assignment_reads_and_writes(comm):
    """It works, as of an array, but is not atomic."""
    to = neighbour(comm)
    with guarded(comm, (3, 4)) as win:
        win.fence()
        win[to, 1, 2] += 1
        win[to, :, 1] += 2
        win[to, [0, 0], 3] -= 1  # as in NumPy: once
        win.fence()
        assert win.local.tolist() == [[0, 2, 0, -1], [0, 2, 1, 0], [0, 2, 0, 0]]
        win.fence()


def test_results_are_copies(comm):
    with guarded(comm, 9, "i4", 1) as win:
        for key in (WHOLE, Ellipsis, BACK, [1, 2], slice(2, 5)):
            got = win[comm.rank, key]
            got[...] = 7
            assert got.flags.owndata
            assert got.flags.writeable
        assert (win.local == 1).all()
        win.fence()


F8 = np.ones(3)
REFUSED = [
    (rmaext.BoundsError, lambda w, t: w[t, 5]),
    (rmaext.BoundsError, lambda w, t: w[t, -6]),
    (rmaext.BoundsError, lambda w, t: w[t, 2**70]),
    (rmaext.BoundsError, lambda w, t: w[t, 0, 6]),
    (rmaext.BoundsError, lambda w, t: w[t, :, 6]),
    (rmaext.BoundsError, lambda w, t: w[t, 0, 0, 0]),
    (rmaext.BoundsError, lambda w, t: w[t, [0, 5]]),
    (rmaext.BoundsError, lambda w, t: w[t, [0, -6], 1]),
    (rmaext.BoundsError, lambda w, t: w[t, np.array([2**64 - 1], "u8")]),
    (IndexError, lambda w, t: w[t, [2**70]]),
    (rmaext.BoundsError, lambda w, t: w[t, np.ones(4, bool)]),
    (rmaext.BoundsError, lambda w, t: w[t, np.ones((5, 5), bool)]),
    (rmaext.BoundsError, lambda w, t: w[w.comm.size, 0]),
    (rmaext.BoundsError, lambda w, t: w[2**70, 0]),
    (rmaext.BoundsError, lambda w, t: w.at(w.comm.size)),
    (rmaext.BoundsError, lambda w, t: w.at(t).add(5, 1.0)),
    (rmaext.BoundsError, lambda w, t: w.__setitem__((t, 5), 1.0)),
    (rmaext.BoundsError, lambda w, t: w.__setitem__((t, [1, 5]), 1.0)),
    (rmaext.BoundsError, lambda w, t: w.__setitem__((t, WHOLE, -7), 1.0)),
    (IndexError, lambda w, t: w[t, 1.0]),
    (IndexError, lambda w, t: w[t, "f0"]),
    (IndexError, lambda w, t: w[t, [0.5]]),
    (IndexError, lambda w, t: w[t, np.zeros(0)]),
    (IndexError, lambda w, t: w[t, ..., ...]),
    (IndexError, lambda w, t: w[t, [0, 1], [0, 1, 2]]),
    (IndexError, lambda w, t: w[t, np.array(1.0)]),
    (IndexError, lambda w, t: w.at(t).add(1.5, 1.0)),
    (ValueError, lambda w, t: w[t, 0:5:0]),
    (TypeError, lambda w, t: w[t, 0:5:F8]),
    (TypeError, lambda w, t: w[0:1]),
    (TypeError, lambda w, t: w[()]),
    (TypeError, lambda w, t: w[None]),
    (TypeError, lambda w, t: w[[t], 1]),
    (TypeError, lambda w, t: w["x"]),
    (TypeError, lambda w, t: w.__delitem__((t, 0))),
    (TypeError, lambda w, t: iter(w)),
    (TypeError, lambda w, t: 1.0 in w),
    (TypeError, lambda w, t: len(w)),
    (TypeError, lambda w, t: w.__setitem__((t, 0), np.ones(6, "f4"))),
    (TypeError, lambda w, t: w.__setitem__((t, 0), np.ones(6, int))),
    (TypeError, lambda w, t: w.__setitem__((t, 0), np.ones(6, ">f8"))),
    (TypeError, lambda w, t: w.__setitem__((t, 0), np.complex64(1))),
    (TypeError, lambda w, t: w.__setitem__((t, 0), ["1.0"] * 6)),
    (TypeError, lambda w, t: w.__setitem__((t, 0), "text")),
    (TypeError, lambda w, t: w.__setitem__((t, 0), None)),
    (TypeError, lambda w, t: w.__setitem__((t, [0]), 1j)),
    (TypeError, lambda w, t: w.at(t).add(0, np.ones(6, "f4"))),
    (TypeError, lambda w, t: w.at(t).add(0, "x")),
    (OverflowError, lambda w, t: w.__setitem__((t, 0), 10**400)),
    (ValueError, lambda w, t: w.__setitem__((t, 0), F8)),
    (ValueError, lambda w, t: w.__setitem__((t, [0]), F8)),
    (ValueError, lambda w, t: w.__setitem__((t, 0, 0), F8)),
    (ValueError, lambda w, t: w.__setitem__((t, WHOLE, 0), np.ones((2, 5)))),
    (ValueError, lambda w, t: w.at(t).add(WHOLE, F8)),
    (rmaext.Unsupported, lambda w, t: w.at(t).update(0, 1.0, op="bxor")),
    (ValueError, lambda w, t: w.at(t).update(0, 1.0, op="mean")),
]


@pytest.mark.pair
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(comm, number):
    """Nothing is written, and the next operation works."""
    error, call = REFUSED[number]
    to = neighbour(comm)
    with guarded(comm, (5, 6), "f8", 5.0) as win:
        with pytest.raises(error) as caught:
            call(win, to)
        assert str(caught.value)
        if error is rmaext.BoundsError:
            assert "window" in str(caught.value)
        win.fence()
        assert (win.local == 5).all()
        win.fence()
        win[to, 1] = 6.0
        win.fence()
        assert (win.local[1] == 6).all()
        win.fence()


def test_rights(comm):
    to = neighbour(comm)
    keys = [WHOLE, 3, slice(None, None, 2), [0, 2]]
    with rmaext.Window(comm, np.zeros(9, "i8"), "r") as win:
        for key in keys:
            with pytest.raises(rmaext.AccessError):
                win[to, key] = 1
            assert not win[to, key].any()
        with pytest.raises(rmaext.AccessError):
            win.at(to).add(0, 1)
        win.fence()
    with rmaext.Window(comm, np.zeros(9, "i8"), "w") as win:
        for key in keys:
            with pytest.raises(rmaext.AccessError):
                win[to, key]
            win[to, key] = 1
        win.fence()
        assert (win.local == 1).all()
        win.fence()


def test_closed(comm):
    win = rmaext.Window.allocate(comm, 4, "i8")
    at = win.at(0)
    win.close()
    for call in (
        lambda: win[0],
        lambda: win[0, [1]],
        lambda: win.__setitem__((0, 1), 1),
        lambda: win.at(0),
        lambda: at.add(1, 1),
    ):
        with pytest.raises(rmaext.ClosedError):
            call()


def test_index_objects(comm):
    """Whatever has __index__ is an integer, in slices too; what it does is its business."""

    class Three:
        def __index__(self):
            return 3

    class Closing:
        def __init__(self, win):
            self.win = win

        def __index__(self):
            self.win.close()
            return 1

    with guarded(comm, 9, "i4") as win:
        win.local[...] = np.arange(9)
        win.fence()
        to = neighbour(comm)
        assert win[to, Three()] == 3
        assert win[to, Three() : np.int8(7) : Three()].tolist() == [3, 6]
        assert win[Three() if comm.size > 3 else to, [Three().__index__()]].tolist() == [3]
        win.fence()
    win = rmaext.Window.allocate(MPI.COMM_SELF, 9)
    with pytest.raises(rmaext.ClosedError):
        win[0, Closing(win) :]


def test_many_dimensions(comm):
    """As many as NumPy has, and None as many times as there is room for."""
    to = neighbour(comm)
    with guarded(comm, (1,) * 30 + (2,), "i2") as win:
        win[to] = np.arange(2, dtype="i2").reshape((1,) * 30 + (2,))
        win.fence()
        key = (None,) * 33
        assert same(win[(to, *key)], win.local[key])
        for more in itertools.repeat(None, 2):
            key = (*key, more)
            with pytest.raises((IndexError, ValueError)):
                win[(to, *key)]
        win.fence()


# -- faults, threads -----------------------------------------------------------------


@pytest.mark.parametrize("scenario", ["threads", "interrupt", "stopped"])
@pytest.mark.parametrize("library", ["", "wheel"])
def test_program(scenario, library):
    """Elements by message, and long runs as writes, when the target is stopped."""
    wheel = launch.wheel() if library else None
    passes(2, "ops/programs/indexing.py", scenario, oks=2, library=wheel, RMAEXT_ROUTE="fabric")


# -- undefined behaviour -------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_indices_overflow_nothing(tmp_path):
    """Compiled so that a signed overflow ends the process: it is checked before."""
    root = Path(launch.ROOT)
    flags = "-O0 -fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error"
    folders = ["--build-temp", str(tmp_path / "objects"), "--build-lib", str(tmp_path / "lib")]
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--force", *folders],
        cwd=root,
        env={**os.environ, "CFLAGS": flags},
        check=True,
        timeout=300,
    )
    shutil.copytree(
        root / "rmaext",
        tmp_path / "lib" / "rmaext",
        ignore=shutil.ignore_patterns("*.so", "*.c"),
        dirs_exist_ok=True,
    )
    done = launch.run_python(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import rmaext
        from mpi4py import MPI
        assert rmaext.__file__.startswith(sys.argv[1])
        with rmaext.Window.allocate(MPI.COMM_SELF, (5, 6)) as win:
            for far in (1 << 62) + 1, 1 - (1 << 63), -1 << 62, (1 << 63) - 1:
                for key in (0, far), (0, 1, far), (0, ..., far), (0, far, slice(None)):
                    try:
                        win[key]
                    except rmaext.BoundsError:
                        continue
                    raise AssertionError(key)
                win[0, far:, ::far], win[0, ::far, :far]
        print("done")
        """,
        str(tmp_path / "lib"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
