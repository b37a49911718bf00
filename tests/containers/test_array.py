# SPDX-License-Identifier: BSD-3-Clause
"""Array: against NumPy on one process, on every route."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.arrays import DTYPES, drawn, key_for, with_ghosts
from support.guarded import noise, rounds, same
from support.jobs import passes

import rmaext
from rmaext.containers import Array


def many(comm, check, examples):
    """Run a check with seeds that are the same on all ranks."""
    run = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # ranks would not shrink alike
        suppress_health_check=list(HealthCheck),
    )(given(st.integers(0, 2**40))(lambda seed: check(comm, random.Random(seed))))
    run()


def random_values(draw, dtype, shape):
    return noise(dtype, math.prod(shape), draw.getrandbits(30)).reshape(shape)


def filled(comm, field, whole, rank=0):
    """One rank writes all; then all see it."""
    if comm.rank == rank:
        field[...] = whole
    field.fence()


def against_numpy(comm, draw):
    """Patches, by one rank after another, and what all of them see then."""
    case, dtype = drawn(draw, comm.size), np.dtype(draw.choice(DTYPES))
    whole = random_values(draw, dtype, case.shape).copy()
    with Array(comm, case.shape, dtype, *case[1:]) as field:
        assert (field.shape, field.dtype, field.ndim) == (case.shape, dtype, len(case.shape))
        assert field.size == whole.size
        filled(comm, field, whole, draw.randrange(comm.size))
        for _ in range(6):
            assert same(np.asarray(field), whole)
            if field.local.size:
                assert same(field.local, whole[(..., *field.where)])
            key = key_for(draw, case.shape)
            assert same(field[key], whole[key])
            got = field.rget(key).wait()
            assert same(got, whole[key])
            assert isinstance(got, np.ndarray) == isinstance(whole[key], np.ndarray)
            comm.Barrier()
            values = random_values(draw, dtype, whole[key].shape)
            if values.ndim and values.shape[0] and draw.random() < 0.3:
                values = values[:1]  # is broadcast
            if draw.random() < 0.2 and values.ndim:
                values = values[None]
            writer, begun = draw.randrange(comm.size), draw.random() < 0.5
            if comm.rank == writer and begun:
                field.rput(values, key).wait()
            elif comm.rank == writer:
                field[key] = values
            whole[key] = values
            field.fence()


@pytest.mark.timeout(240)
def test_against_numpy(comm):
    many(comm, against_numpy, 40 if comm.size > 1 else 25)


def updates(comm, draw):
    """All ranks add at once; the sum of all is there."""
    case, dtype = drawn(draw, comm.size), np.dtype(draw.choice(["f8", "i4", "c16", "u1"]))
    if draw.random() < 0.2:  # rows that are long enough to be taken one by one
        case = case._replace(shape=(*case.shape[:-1], 400), splits=None) if case.shape else case
    whole = np.zeros(case.shape, dtype)
    with Array(comm, case.shape, dtype, *case[1:]) as field:
        for _ in range(4):
            for rank in range(comm.size):
                key = key_for(draw, case.shape)
                values = (random_values(draw, "u1", whole[key].shape) % 8).astype(dtype)
                count = draw.randint(0, 5) if whole.size else 0
                points = np.array(
                    [[draw.randint(-n, n - 1) for n in case.shape] for _ in range(count)], int
                ).reshape(count, len(case.shape))
                if rank == comm.rank:
                    field.add(key, values)
                    field.add_points(points, dtype.type(3))
                whole[key] += values
                for point in points:
                    whole[tuple(point)] += dtype.type(3)
            field.fence()
            assert same(field[...], whole)
            there = [whole[tuple(point)] for point in points]
            assert same(field.points(points), np.array(there, dtype))
            comm.Barrier()


@pytest.mark.timeout(240)
def test_updates(comm):
    many(comm, updates, 30)


def test_fetch_add(comm):
    """Each number once, whoever takes it."""
    with Array(comm, (3, 4), int) as field:
        mine = [int(field.fetch_add((2, -1), 1)) for _ in range(50)]
        assert sorted(comm.allreduce(mine)) == list(range(50 * comm.size))
        assert field.fetch_add((2, 3), 0) == field.fetch_add(np.array([2, 3]), 0) == 50 * comm.size
    with Array(comm, (), int) as one:
        mine = [int(one.fetch_add((), 1)) for _ in range(5)]
        assert sorted(comm.allreduce(mine)) == list(range(5 * comm.size))


# -- ghosts --------------------------------------------------------------------------------


def ghosts(comm, draw):
    """Any width, corners, wrapped axes of one or two ranks, blocks that are shorter than ghosts."""
    case, dtype = drawn(draw, comm.size), np.dtype(draw.choice(DTYPES))
    with Array(comm, case.shape, dtype, *case[1:]) as field:
        for turn in range(4):
            whole = random_values(draw, dtype, case.shape)
            empty = np.zeros((), dtype)
            field.padded[...] = empty
            if field.local.size:
                field.local[...] = whole[field.where]
            if turn % 2:
                field.exchange()
            else:
                with field.exchanging():
                    field.local[...] = empty  # it is on its way
                if field.local.size:
                    field.local[...] = whole[field.where]
            if field.local.size and case.shape:
                assert same(field.padded, with_ghosts(whole, field.where, case, empty))


@pytest.mark.timeout(240)
def test_ghosts(comm):
    many(comm, ghosts, 40 if comm.size > 1 else 20)


@rounds(150, 5000)
def test_ghosts_stay_until_the_next_exchange(comm, rounds):
    """However far ahead a neighbour is: it may have begun the next one, and waits there."""
    draw = random.Random(comm.rank)
    with Array(comm, (4 * comm.size, 3), int, grid=(0, 1), ghosts=(1, 0), periodic=True) as ring:
        for step in range(rounds):
            ring.local[...] = step
            ring.exchange()
            for _ in range(2):
                assert (ring.padded == step).all(), (step, ring.padded)
                time.sleep(draw.choice([0, 0, 1e-4, 1e-3]))


def test_an_exchange_that_was_left_is_ended_by_the_next(comm):
    with Array(comm, 4 * comm.size, int, ghosts=1, periodic=True) as ring:
        for step in range(1, 6):
            ring.local[...] = step
            if step == 3:
                with pytest.raises(ZeroDivisionError), ring.exchanging():
                    _ = 1 // 0
                ring.local[...] = 99  # what was sent is sent
            ring.exchange()
            assert ring.padded[[0, -1]].tolist() == [step, step]
            ring.local[...] = step


class Interrupts:
    """An array at which Ctrl-C comes, once."""

    def __init__(self, array):
        self.array, self.comes = array, True

    def __setitem__(self, key, value):
        if self.comes:
            self.comes = False
            raise KeyboardInterrupt
        self.array[key] = value


def test_an_exchange_that_is_interrupted_goes_on(comm):
    """Also while it takes what has come, of which the window tells once only."""
    with Array(comm, 4 * comm.size, int, ghosts=1, periodic=True) as ring:
        for step in range(6):
            ring.local[...] = step
            if step in (2, 3):
                pairs = ring._ghosts._arrived[step % 2] or ring._ghosts._own
                pairs[-1] = Interrupts(pairs[-1][0]), pairs[-1][1]
                with pytest.raises(KeyboardInterrupt):
                    ring.exchange()
            ring.exchange()
            assert ring.padded[[0, -1]].tolist() == [step, step]


def test_long_faces(comm):
    """Those that the network does not carry in one message, in an exchange that is interrupted."""
    shape = (2 * comm.size, 5_000)
    with Array(comm, shape, grid=(comm.size, 1), ghosts=1, periodic=True) as ring:
        for step in range(6):
            whole = step + np.arange(math.prod(shape), dtype=float).reshape(shape)
            ring.local[...] = whole[ring.where]
            if step in (2, 3) and comm.size > 1:
                pairs = ring._ghosts._sections[-1][2]  # others are under way
                pairs[-1] = Interrupts(pairs[-1][0]), pairs[-1][1]
                with pytest.raises(KeyboardInterrupt):
                    ring.exchange()
            if step % 2:
                ring.exchange()
            else:
                with ring.exchanging():
                    pass
            wanted = np.pad(whole, 1, mode="wrap")
            rows = slice(ring.where[0].start, ring.where[0].stop + 2)
            assert np.array_equal(ring.padded, wanted[rows]), step


def test_no_barrier(world):
    """Rank 0 has ended its exchange long before the last one begins its own."""
    if world.size < 3:
        pytest.skip("all ranks are neighbours")
    with Array(world, 2 * world.size, ghosts=1) as line:
        line.fence()
        if world.rank == world.size - 1:
            world.recv(source=0)
        line.exchange()
        if world.rank == 0:
            world.send(None, dest=world.size - 1)


# -- collective calls ----------------------------------------------------------------------


def reductions(comm, draw):
    case, dtype = drawn(draw, comm.size), np.dtype(draw.choice(["f8", "i4", "u1", "?", "f4"]))
    whole = (random_values(draw, "u1", case.shape) % 8).astype(dtype)
    with Array(comm, case.shape, dtype, *case[1:]) as field:
        for name in ["sum", "max", "min"]:
            filled(comm, field, whole)
            there = whole.size or name == "sum"
            if there:
                assert same(getattr(field, name)(), getattr(np, name)(whole))
            else:
                with pytest.raises(ValueError, match="zero-size"):
                    getattr(field, name)()
            for axis in range(-len(case.shape), len(case.shape)):
                if case.shape[axis] or name == "sum":
                    with getattr(field, name)(axis=axis) as result:
                        assert same(result[...], getattr(np, name)(whole, axis=axis))
                        if result.local.size and result.ndim:
                            assert same(result.local, result[result.where])
                else:
                    with pytest.raises(ValueError, match="zero-size"):
                        getattr(field, name)(axis=axis)


@pytest.mark.timeout(240)
def test_reductions(comm):
    many(comm, reductions, 12)


@pytest.mark.parametrize("dtype", ["?", "i2", "f2", "f4", "f8", "c16"])
def test_what_numpy_calls(comm, dtype):
    """numpy.sum(field) and its kin are the collective methods, of the same dtypes as of arrays."""
    whole = (np.arange(30).reshape(5, 6) % 7).astype(dtype)
    exact = {"f2": np.float32}.get(dtype)  # of means
    with Array(comm, whole.shape, dtype) as field:
        filled(comm, field, whole)
        for call in np.sum, np.max, np.min, np.mean, np.amax:
            mean = {"dtype": exact} if call is np.mean else {}
            got, want = call(field), call(whole, **mean)
            assert (got, got.dtype) == (want, want.dtype)
            for axis in 0, 1, -1:
                with call(field, axis=axis) as along:
                    want = call(whole, axis=axis, **mean)
                    assert isinstance(along, Array)
                    assert same(along[...], want)
        for call in np.sum, np.mean:
            got, want = call(field, dtype="c8"), call(whole, dtype="c8")
            assert got.dtype == want.dtype == "c8"
            assert np.isclose(got, want, rtol=1e-6)
        with np.sum(field, 1, "c8") as along:
            assert along.dtype == "c8"
            assert np.allclose(along[...], whole.sum(axis=1))
        assert np.prod(field[:2]) == np.prod(whole[:2])  # of a patch all there is
        for call in np.sum, np.max, np.min, np.mean:
            with pytest.raises(TypeError, match="out="):
                call(field, out=np.zeros((), dtype))
            with pytest.raises(TypeError, match="keepdims"):
                call(field, keepdims=True)
        assert field.sum() == whole.sum()


def test_means_of_other_kinds(comm):
    with Array(comm, 4, "m8[s]") as times, Array(comm, 4, "f2") as large:
        filled(comm, times, np.arange(4).astype("m8[s]") * 2)
        filled(comm, large, np.full(4, 60000, "f2"))
        assert times.mean() == np.timedelta64(3, "s")
        assert np.isclose(large.mean(), 60000, rtol=1e-3)
    with Array(comm, 3, "S3") as texts, pytest.raises(TypeError):
        texts.mean()


def test_reductions_follow_each_other(comm):
    """What one leaves for others to read is not written over by the next."""
    with Array(comm, comm.size, int) as field:
        for step in range(100):
            field.local[...] = step
            assert (field.sum(), field.max()) == (step * comm.size, step)


def test_reductions_of_other_kinds(comm):
    times = np.arange(5).astype("M8[s]")
    with Array(comm, 5, "M8[s]") as field, Array(comm, 5, [("a", "i4")]) as records:
        filled(comm, field, times)
        assert field.max() == times[-1]
        for call in field.sum, records.sum, records.max:
            with pytest.raises(TypeError):
                call()
        with pytest.raises(np.exceptions.AxisError):
            field.max(axis=1)
        with pytest.raises(TypeError):
            field.max(axis=0.0)
    with Array(comm, 3) as field:
        filled(comm, field, [1.0, np.nan, 3.0])
        assert np.isnan(field.max())
        assert np.isnan(field.sum())


def differing(world, call, right, wrong, error, text):
    """One rank calls something else: an error of all, in the same words, and all go on."""
    with pytest.raises(error, match=text) as caught:
        call(wrong if world.rank == world.size - 1 else right)
    assert len(set(world.allgather(str(caught.value)))) == 1


def test_collective_calls_that_differ(world):
    if world.size < 2:
        pytest.skip("there is nobody to differ from")
    last = f"rank {world.size - 1}"
    with (
        Array(world, (6, 6), int) as field,
        Array.like(field) as other,
        Array(world, 3, int) as third,
    ):
        field.local[...] = world.rank
        field.fence()

        def reduced(name):
            return getattr(field, name)()

        for right, wrong in ("sum", "max"), ("min", "sum"):
            differing(world, reduced, right, wrong, rmaext.SyncError, f"Array.{wrong}")
        for right, wrong, error in (
            (0, 1, ValueError),
            (None, 0, ValueError),
            (1, 7, ValueError),
            ((None, "x", TypeError)),
        ):
            differing(world, lambda axis: field.max(axis), right, wrong, error, last)
        for right, wrong, error in (
            ({}, {"dtype": "f4"}, ValueError),
            ({"axis": 0, "dtype": "i2"}, {"axis": 0, "dtype": "i4"}, ValueError),
            ({}, {"dtype": "no"}, TypeError),
            ({}, {"out": np.zeros(())}, TypeError),
        ):
            differing(world, lambda how: field.sum(**how), right, wrong, error, last)
        assert field.max() == world.size - 1
        for wrong in None, third, field:
            differing(world, field.copy_to, other, wrong, rmaext.SyncError, last)
        other.fence()
        assert not other[...].any()
        differing(world, Array.like, field, third, ValueError, "shape")
        with field.max(axis=-1) as highest:
            assert same(highest[...], np.asarray(field).max(axis=-1))


def other_blocks(comm, draw):
    case, dtype = drawn(draw, comm.size), np.dtype(draw.choice(DTYPES))
    whole = random_values(draw, dtype, case.shape)
    with Array(comm, case.shape, dtype, *case[1:]) as field:
        filled(comm, field, whole, comm.size - 1)
        other = drawn(draw, comm.size)
        grid = tuple(reversed(field.grid))
        with field.redistribute(grid) as moved, Array.like(field) as alike:
            assert moved.grid == grid
            assert same(moved[...], whole)
            assert (alike.grid, alike.where, alike.dtype) == (field.grid, field.where, field.dtype)
            assert alike[...].tobytes() == bytes(whole.nbytes)
            moved.copy_to(alike)
            assert same(alike[...], whole)
        splits = [sorted(draw.randint(0, n) for _ in range(count - 1)) for n, count in
                  zip(case.shape, field.grid, strict=True)]  # fmt: skip
        with field.redistribute(splits=splits) as moved:
            assert same(moved[...], whole)
        if other.shape != case.shape:
            with Array(comm, other.shape, dtype) as wrong, pytest.raises(ValueError, match="shape"):
                field.copy_to(wrong)


@pytest.mark.timeout(240)
def test_other_blocks(comm):
    many(comm, other_blocks, 15)


def test_copies_to_what_is_none(comm):
    with Array(comm, 4) as field, Array(comm, 4, int) as whole:
        with pytest.raises(ValueError, match="float64"):
            field.copy_to(whole)
        with pytest.raises(TypeError, match="no Array"):
            field.copy_to(np.zeros(4))
        with pytest.raises(TypeError, match="no Array"):
            Array.like(np.zeros(4))
        if comm.size > 1:
            with Array(MPI.COMM_SELF, 4) as own, pytest.raises(ValueError, match="other ranks"):
                field.copy_to(own)


# -- what it is ----------------------------------------------------------------------------


def test_where_elements_are(comm):
    with Array(comm, (5, 7), ghosts=(1, 0)) as field:
        assert len(field) == 5
        assert "shape (5, 7), float64" in repr(field)
        owners = np.full((5, 7), -1)
        for rank in range(comm.size):
            owners[field.where_of(rank)] = rank
        assert owners.min() >= 0
        for index in np.ndindex(5, 7):
            assert field.owner(index) == owners[index]
        assert field.owner((-1, -1)) == owners[-1, -1]
        assert field.where == field.where_of(comm.rank)
        if field.local.size:
            assert field.padded.shape == (field.local.shape[0] + 2, field.local.shape[1])
            assert np.shares_memory(field.padded, field.local)
        with pytest.raises(ValueError, match="copies"):
            np.array(field, copy=False)
        assert np.asarray(field, "f4").dtype == "f4"
        assert [row.sum() for row in field] == [0] * 5
    with Array(comm, ()) as one, pytest.raises(TypeError):
        len(one)
    assert "closed" in repr(one)


@pytest.mark.pair
def test_arguments_of_numpy(comm):
    none = np.zeros((2, 0), int)
    size = np.array([1, comm.size])
    with Array(comm, np.array([4, 6]), ghosts=np.array([1, 0]), grid=size) as field:
        assert (field.shape, field.grid) == ((4, 6), (1, comm.size))
        assert field.padded.shape == (6, field.local.shape[1])
    with Array(comm, (4, 6), splits=none, periodic=np.array([True, False])) as field:
        assert field.grid == (1, 1)


def test_indices_of_narrow_dtypes(comm):
    """An axis may be longer than the dtype counts."""
    with Array(comm, 1000, int) as field:
        filled(comm, field, np.arange(1000))
        for dtype in "i1", "u1", "u8":
            assert field.points(np.array([[0], [100]], dtype)).tolist() == [0, 100]
        assert field.points(np.array([[-1]], "i1")) == 999
        for index in np.array([2**64 - 1], "u8"), np.array([1000], "u2"):
            with pytest.raises(rmaext.BoundsError):
                field.points(index)


def test_more_axes_than_mpi_knows(comm):
    with Array(comm, (2,) * 10 + (1,) * 20, int) as field:
        whole = np.arange(1024).reshape(field.shape)
        filled(comm, field, whole)
        assert same(field[1, ..., 0], whole[1, ..., 0])
        assert field.sum() == whole.sum()


def test_ranks_without_a_block(world):
    with Array(world, (2, 3), int, grid=(1, 1), ghosts=1, periodic=True) as field:
        assert (field.local.size > 0) == (world.rank == 0)
        filled(world, field, np.arange(6).reshape(2, 3), world.size - 1)
        field.exchange()
        assert field.sum() == 15
        if world.rank == 0:
            assert (field.padded == np.pad(np.arange(6).reshape(2, 3), 1, "wrap")).all()
        else:
            assert field.where_of(world.rank) == (slice(0, 0), slice(0, 0))


def test_of_some_ranks(world):
    """Two arrays over parts of the ranks, each with numbers of its own."""
    part = world.Split(world.rank % 2, -world.rank)
    with Array(part, 2 * part.size, int, ghosts=1, periodic=True) as field:
        field.local[...] = 10 * (world.rank % 2) + part.rank
        field.exchange()
        left = (part.rank - 1) % part.size
        assert field.padded[0] == 10 * (world.rank % 2) + left
        assert field.sum() == 2 * sum(10 * (world.rank % 2) + r for r in range(part.size))
    part.Free()


WRONG = [
    ({"shape": -1}, ValueError, "negative"),
    ({"shape": (3, "4")}, TypeError, "shape"),
    ({"shape": 2.0}, TypeError, "shape"),
    ({"dtype": object}, TypeError, None),
    ({"dtype": "no such thing"}, TypeError, None),
    ({"grid": (1,)}, ValueError, "2 axes"),
    ({"grid": (100, 100)}, ValueError, "10000 blocks"),
    ({"grid": (-1, 1)}, ValueError, "grid"),
    ({"ghosts": -1}, ValueError, "ghosts"),
    ({"ghosts": (1, 1, 1)}, ValueError, "ghosts"),
    ({"ghosts": 1.5}, TypeError, "ghosts"),
    ({"periodic": (True,)}, ValueError, "periodic"),
    ({"shape": (2**64, 1)}, ValueError, "shape"),
    ({"ghosts": 2**62}, ValueError, "ghosts"),
    ({"grid": ()}, ValueError, "0 entries, for 2 axes"),
    ({"splits": [1]}, TypeError, r"as \[\[10, 20\], None\]"),
    ({"splits": 1}, TypeError, r"as \[\[10, 20\], None\]"),
    ({"splits": [None]}, ValueError, "splits"),
    ({"splits": [[5], None]}, ValueError, "axis 0"),
    ({"splits": [[2, 1], None]}, ValueError, "axis 0"),
    ({"splits": [[], [0.5]]}, TypeError, None),
    ({"splits": [[], None], "grid": (2, 0)}, ValueError, "axis 0"),
    ({"timeout": -1}, ValueError, "timeout"),
]


@pytest.mark.pair
@pytest.mark.parametrize(("how", "error", "text"), WRONG, ids=lambda it: str(it)[:30])
def test_bad_arguments(comm, how, error, text):
    """The same error on all ranks, though one rank only is wrong."""
    right = {"shape": (3, 4)}
    with pytest.raises(error, match=text):
        Array(comm, **right | how)
    if comm.size > 1:
        with pytest.raises(error, match=f"rank {comm.size - 1}"):
            Array(comm, **(right | how if comm.rank == comm.size - 1 else right))


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"shape": (3, 5)}, ValueError, "shape"),
        ({"dtype": "i4"}, TypeError, "int32"),
        ({"ghosts": 1}, ValueError, "ghosts"),
        ({"periodic": True}, ValueError, "periodic"),
        ({"splits": [[1], None]}, ValueError, "cut"),
    ],
    ids=lambda it: str(it)[:30],
)
def test_ranks_that_differ(world, how, error, text):
    if world.size < 2:
        pytest.skip("there is nobody to differ from")
    right = {"shape": (3, 4), "grid": None if "splits" in how else (0, 1)}
    with pytest.raises(error, match=text) as caught:
        Array(world, **(right | how if world.rank == world.size - 1 else right))
    assert f"rank {world.size - 1}" in str(caught.value)


@pytest.mark.pair
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda it: it[3], IndexError, r"index 3 is out of bounds for axis 0 of shape \(3, 4\)"),
        (lambda it: it[0, -5], rmaext.BoundsError, r"index -5 .* axis 1"),
        (lambda it: it[0, 0, 0], IndexError, "too many"),
        (lambda it: it[..., ...], IndexError, "ellipsis"),
        (lambda it: it[[0, 1]], IndexError, "points"),
        (lambda it: it[np.ones(3, bool)], IndexError, "points"),
        (lambda it: it[True], IndexError, "points"),
        (lambda it: it[1.5], IndexError, "no index"),
        (lambda it: it[0.5:2, 0], TypeError, None),
        (lambda it: it.__setitem__(0, [1, 2, 3]), ValueError, "shape"),
        (lambda it: it.__setitem__((slice(1, 2), 0), [1, 2, 3]), ValueError, "shape"),
        (lambda it: it.__setitem__(0, "a"), TypeError, None),
        (lambda it: it.add(0, [1, 2, 3]), ValueError, "shape"),
        (lambda it: it.add((slice(0, 2), slice(0, 3)), np.ones((2, 2, 3))), ValueError, "shape"),
        (lambda it: it.rput(np.ones((3, 3)), ...), ValueError, "shape"),
        (lambda it: it.owner(1), IndexError, "one for each"),
        (lambda it: it.owner((3, 0)), IndexError, "axis 0"),
        (lambda it: it.fetch_add((0, 4), 1), IndexError, "axis 1"),
        (lambda it: it.fetch_add(0, 1), IndexError, "one for each"),
        (lambda it: it.fetch_add((slice(0, 1), 0), 1), IndexError, None),
        (lambda it: it.points([[0, 4]]), IndexError, "index 4 .* axis 1"),
        (lambda it: it.points([0]), ValueError, "2 axes"),
        (lambda it: it.points([[0.0, 1.0]]), TypeError, "integers"),
        (lambda it: it.add_points([[0, 1]], [1, 2]), ValueError, "shape"),
        (lambda it: it.where_of(99), rmaext.BoundsError, "99"),
        (lambda it: it.save("array.txt"), ValueError, "npy"),
    ],
)
def test_bad_keys(comm, call, error, text):
    """Before anything is sent."""
    with Array(comm, (3, 4)) as field:
        with pytest.raises(error, match=text):
            call(field)
        field.fence()
        assert not field[...].any()


def test_no_sum_of_records(comm):
    with Array(comm, 4, [("a", "i4")]) as records, pytest.raises(rmaext.Unsupported):
        records.add(..., (1,))


def test_closed(comm):
    field = Array(comm, (4, 4), ghosts=1, periodic=True)
    field.exchange()
    field.close()
    field.close()
    assert field.closed
    for call in (
        lambda: field[0, 0],
        lambda: field[...],
        lambda: field.exchange(),
        lambda: field.fence(),
        lambda: field.add(0, 1.0),
        lambda: field.points([[0, 0]]),
    ):
        with pytest.raises(rmaext.ClosedError):
            call()


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_of_many_ranks(world):
    draw = random.Random(world.rank)
    side = 4 * world.size
    with Array(world, (side, side), int, ghosts=1, periodic=True) as field:
        for step in range(5):
            field.local[...] = step
            field.exchange()
            assert (field.padded == step).all()
        field.fence()
        field.local[...] = 0
        field.fence()
        for _ in range(10):
            i, j = draw.randrange(side - 3), draw.randrange(side - 3)
            field.add((slice(i, i + 3), slice(j, j + 3)), 1)
        assert field.sum() == 90 * world.size
        with field.redistribute(grid=(0, 1)) as rows:
            assert rows.sum() == 90 * world.size


# -- a rank that is lost -------------------------------------------------------------------


@pytest.mark.parametrize("where", [(), ("nodes",)], ids=["node", "nodes"])
def test_killed(where):
    """Its part is PeerLostError; the others go on, and nobody waits for ever."""
    program = "containers/programs/array_killed.py"
    passes(4, program, *where, oks=3, survive=True, timeout=50)
