# SPDX-License-Identifier: BSD-3-Clause
"""`MultiDict` against dictionaries of lists; what it refuses, and who is lost."""

from __future__ import annotations

import itertools
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.jobs import passes

import rmaext
from rmaext.containers import Dict, MultiDict

PAIR = np.dtype([("a", "i1"), ("b", "f8")], align=True)
KEYS = {
    "i8": np.arange(-3, 5),
    "S5": np.array([b"", b"a", b"bb", b"ccccc"]),
    "U3": np.array(["", "ä", "€ö", "abc"]),
    "pair": np.array([(1, 0.5), (1, 1.5), (-2, 0.5)], PAIR),
}
VALUES = {
    "f8": np.arange(1000.0),
    "i2": np.arange(1000, dtype="i2"),
    "record": np.array([(k, b"x" * (k % 7)) for k in range(1000)], [("a", "i8"), ("b", "S12")]),
    "object": np.array([[k] * (k % 3) for k in range(1000)], object),
}


def lists(values, starts):
    """What get_many returns, as a list of lists without order."""
    assert starts.dtype == np.int64
    assert starts[0] == 0
    assert starts[-1] == len(values)
    return [sorted(map(str, values[a:b])) for a, b in itertools.pairwise(starts)]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", KEYS)
def test_all_find_what_all_have_appended(comm, key, value):
    kinds, given = KEYS[key], VALUES[value]
    draw = np.random.default_rng(comm.rank)
    most = {"max_bytes": 60} if value == "object" else {}
    want = {str(one): [] for one in kinds}
    with MultiDict(comm, kinds.dtype, given.dtype, 60 * comm.size, **most) as table:
        for count in 1, 0, 30:
            which, rows = draw.integers(0, len(kinds), count), draw.integers(0, 1000, count)
            values = list(given[rows]) if most else given[rows]
            table.append_many(kinds[which], values)
            for ones, others in comm.allgather((which, rows)):
                for one, row in zip(ones, others, strict=True):
                    want[str(kinds[one])].append(str(given[row]))
            order = np.append(draw.permutation(len(kinds)), 0)  # one twice
            found = lists(*table.get_many(kinds[order]))
            assert found == [sorted(want[str(one)]) for one in kinds[order]]
            comm.Barrier()
        assert table.value_dtype == given.dtype
        assert (table.comm, table.capacity) == (comm, 60 * comm.size)
        assert "capacity" in repr(table)
    assert table.closed
    assert "closed" in repr(table)
    with pytest.raises(rmaext.ClosedError):
        table.append_many(kinds[:1], list(given[:1]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=5))
def test_one_rank_s_values_keep_their_order(batches):
    want, number = {key: [] for key in range(7)}, 0
    with MultiDict(MPI.COMM_SELF, "u1", "i4", 80) as table:
        for keys in batches:
            table.append_many(keys, np.arange(number, number + len(keys)))
            for key in keys:
                want[key].append(number)
                number += 1
        values, starts = table.get_many(np.arange(7).reshape(7, 1))
        assert np.split(values, starts[1:-1]).__repr__() == repr(
            [np.array(want[key], "i4") for key in range(7)]
        )


def test_a_join(comm):
    """Of rows of all ranks, as nested loops find it on one process."""
    draw = np.random.default_rng(comm.rank)
    left, right = draw.integers(0, 40, 50), draw.integers(0, 40, 60)
    with MultiDict(comm, "i8", "i8", 60 * comm.size) as table:
        table.append_many(right, 1000 * comm.rank + np.arange(60))
        comm.Barrier()
        rows, starts = table.get_many(left)
        pairs = zip(np.repeat(np.arange(50), np.diff(starts)), rows, strict=True)
        found = sorted((int(one), int(other)) for one, other in pairs)
        every = list(enumerate(comm.allgather(right)))
        assert found == sorted(
            (one, 1000 * rank + other)
            for one in range(50)
            for rank, keys in every
            for other in np.flatnonzero(keys == left[one]).tolist()
        )


def test_scalars_and_broadcasting():
    with MultiDict(MPI.COMM_SELF, "U5", "f8", 20) as table:
        table.append_many("one", 1)
        table.append_many([["one", "two"], ["two", "two"]], 0.5)
        values, starts = table.get_many("one")
        assert (values.tolist(), starts.tolist()) == ([1, 0.5], [0, 2])
        assert table.get_many(["two", "six"])[1].tolist() == [0, 3, 3]


def test_what_was_counted_and_not_set():
    """As of who was killed, or interrupted, in between."""
    with MultiDict(MPI.COMM_SELF, "i8", "i8", 20) as table:
        table.append_many([1, 2], [10, 20])
        table._counts.add_many([1, 3], [2, 1])
        table.append_many([1, 1], [11, 12])
        values, starts = table.get_many([3, 1, 2, 4])
        assert (values.tolist(), starts.tolist()) == ([10, 11, 12, 20], [0, 0, 3, 4, 4])


def test_what_is_refused():
    with MultiDict(MPI.COMM_SELF, "i4", "i2", 4) as table:
        table.append_many([1, 2], 7)
        for keys, values, error in [
            ([1.5], 1, TypeError),
            ([2**31], 1, OverflowError),
            ([1], 2**15, OverflowError),
            ([1], 0.5, TypeError),
            ([1, 2], [1, 2, 3], ValueError),
            ("one", 1, TypeError),
        ]:
            with pytest.raises(error):
                table.append_many(keys, values)
        with pytest.raises(rmaext.CapacityError):
            table.append_many(np.arange(100), 1)
        with pytest.raises(rmaext.CapacityError):
            table.append_many(np.ones(100, "i4"), 1)
        values, starts = table.get_many([1, 2, 3])
        assert (values.tolist(), starts.tolist()) == ([7, 7], [0, 1, 2, 2])
        with pytest.raises(TypeError):
            table.get_many([0.5])
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(table)


def test_ranks_that_do_not_agree(world):
    if world.size == 1:
        pytest.skip("one rank agrees")
    last = world.rank == world.size - 1
    for wrong, error in [
        (("i4", "i8", 10), ValueError),
        (("i8", "i4", 10), ValueError),
        (("i8", "i8", 11), ValueError),
        (("i8", "i8", 0), ValueError),
        (("f8", "i8", 10), TypeError),
        (("S249", "i8", 10), ValueError),
        (("i8", object, 10), TypeError),
    ]:
        with pytest.raises(error, match="rank") as info:
            MultiDict(world, *(wrong if last else ("i8", "i8", 10)))
        assert len(set(world.allgather(str(info.value)))) == 1
    with pytest.raises(rmaext.SyncError, match="different calls"):
        (Dict if last else MultiDict)(world, "i8", "i8", 10)
    with MultiDict(world, "S248", "i8", 10) as table:  # nobody is left behind
        assert len(table.get_many([b"a"])[0]) == 0


def test_threads(comm):
    """What each has appended is there once, whoever counts at the same time."""
    with MultiDict(comm, "i8", "i8", 400 * comm.size) as table:

        def append(thread):
            for turn in range(10):
                keys = np.arange(10) % 3
                table.append_many(keys, 1000 * comm.rank + 100 * thread + 10 * turn + np.arange(10))

        threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        comm.Barrier()
        values, _ = table.get_many(np.arange(3))
        want = [1000 * rank + k for rank in range(comm.size) for k in range(400)]
        assert sorted(values.tolist()) == want
        comm.Barrier()


@pytest.mark.parametrize("where", [(), ("nodes",)], ids=" ".join)
def test_a_rank_that_is_killed(where):
    program = "containers/programs/multidict_killed.py"
    passes(3, program, *where, oks=2, survive=True, timeout=60)
