# SPDX-License-Identifier: BSD-3-Clause
"""NodeArray: one copy a node, the same for all, which stays as long as somebody looks."""

from __future__ import annotations

import errno
import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.bytecodes import Interrupt, Tracing, interrupt
from support.guarded import noise, same
from support.jobs import passes

import rmaext
from rmaext.containers import NodeArray, _nodearray

RECORD = np.dtype([("mass", "f8"), ("count", "i4"), ("name", "S5")])


def mapped():
    """How many bytes of nodes' arrays this process has mapped."""
    with open("/proc/self/maps") as lines:
        places = [line.split()[0].split("-") for line in lines if "rmaext-node" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in places)


DTYPES = ["f8", "?", "c16", "U3", ">i4", "M8[s]", RECORD, ("f4", (2,))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), 0, (3, 0, 2), 5, (2, 3)], ids=str)
def test_filled_once_a_node(comm, shape, dtype):
    calls = []

    def fill(array):
        calls.append(array.shape)
        assert not array.tobytes().strip(b"\0")
        array[...] = noise(array.dtype, array.size, 3, 4).reshape(array.shape)

    with NodeArray(comm, shape, dtype, fill=fill) as table:
        like = np.zeros(shape, dtype)
        array = table.array
        assert (array.shape, array.dtype) == (like.shape, like.dtype)
        assert same(array, noise(like.dtype, like.size, 3, 4).reshape(like.shape))
        firsts = comm.allgather(table.filled_by)
        assert len(calls) == (table.filled_by == comm.rank)
        with rmaext.Window.allocate(comm, 0) as window:
            for rank in range(comm.size):
                if rank != comm.rank:
                    near = window.route(rank) == "direct"
                    assert near == (firsts[rank] == firsts[comm.rank])
    assert table.closed
    assert "closed" in repr(table)
    with pytest.raises(rmaext.ClosedError):
        table.array  # noqa: B018


def test_it_is_one_memory(node):
    """What the first rank changes behind its back, all see; else nobody can."""
    writeable = []
    table = NodeArray(node, 4, "i8", fill=writeable.append)
    if node.rank == 0:
        writeable[0][:] = 7
    node.Barrier()
    assert (table.array == 7).all()
    assert table.filled_by == 0
    assert not table.array.flags.writeable
    for change in (
        lambda: table.array.__setitem__(0, 1),
        lambda: setattr(table.array.flags, "writeable", True),
        lambda: setattr(table.array[1:].view("u1").flags, "writeable", True),
    ):
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            change()
    memory = table.array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    memory = getattr(memory, "obj", memory)
    assert not np.frombuffer(memory, "i8", 4).flags.writeable  # nor is the mapping


def test_views_stay(comm):
    """After close, without the table, and until the last of them goes."""
    gc.collect()
    before = mapped()
    table = NodeArray(comm, (1000, 3), fill=lambda array: array.fill(comm.size))
    part = table.array[10:20, 1]
    table.close()
    table.close()
    del table
    comm.Barrier()
    other = NodeArray(comm, (1000, 3), fill=lambda array: array.fill(-1))
    assert (part == comm.size).all()
    assert mapped() > before
    del part, other
    gc.collect()
    assert mapped() == before


def test_assemble(comm):
    """Rows of varying number, in their order; none at all, too."""
    for counts in ([rank % 3 for rank in range(comm.size)], [0] * comm.size, [5] * comm.size):
        rows = [noise(RECORD, 2 * n, n, rank).reshape(n, 2) for rank, n in enumerate(counts)]
        with NodeArray.assemble(comm, rows[comm.rank]) as table:
            assert same(table.array, np.concatenate(rows))
    with NodeArray.assemble(comm, np.arange(12).reshape(2, 6)[:, ::2] + comm.rank) as table:
        whole = [np.arange(12).reshape(2, 6)[:, ::2] + rank for rank in range(comm.size)]
        assert (table.array == np.concatenate(whole)).all()


def test_an_empty_list_says_nothing(comm):
    """Of dtype and shape; where all have one it is an array of numbers."""
    rows = [[1, 2]] * comm.rank
    with NodeArray.assemble(comm, rows) as table:
        assert table.array.tolist() == [[1, 2]] * (comm.size * (comm.size - 1) // 2)
        assert table.array.dtype == (int if comm.size > 1 else float)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=3), st.integers(0, 4))
def test_assemble_alone(tail, count):
    rows = noise(np.dtype("i2"), count * int(np.prod(tail)), 1, 2).reshape(count, *tail)
    with NodeArray.assemble(MPI.COMM_SELF, rows) as table:
        assert same(table.array, rows)


def test_sub_communicators(world):
    part = world.Split(world.rank % 2, -world.rank)
    with NodeArray.assemble(part, [world.rank]) as table:
        assert table.array.tolist() == sorted(range(world.rank % 2, world.size, 2), reverse=True)
    part.Free()


def test_fill_that_takes_longer_than_the_time_limit(comm):
    def fill(array):
        time.sleep(1)
        array[:] = 1

    with NodeArray(comm, 3, fill=fill, timeout=0.3) as table:
        assert table.array.tolist() == [1, 1, 1]


class OwnError(ValueError):
    """Which the other ranks do not know."""


def test_fill_that_raises(world):
    """On the last node: the same on all ranks, and they go on."""
    with NodeArray(world, 1, fill=lambda array: None) as table:
        last = max(world.allgather(table.filled_by))

    def fill(array):
        if world.rank == last:
            raise OwnError("no such table")

    before = mapped()
    with pytest.raises(ValueError, match=rf"rank {last}: no such table") as info:
        NodeArray(world, 1000, fill=fill)
    assert len(set(world.allgather(str(info.value)))) == 1
    del info
    gc.collect()
    assert mapped() <= before
    with NodeArray(world, 3, fill=lambda array: array.fill(2)) as table:
        assert table.array.tolist() == [2, 2, 2]


def test_fill_that_stops(world):
    """As by next() of what has no more: it ends no loop of ours, and all ranks go on."""
    with pytest.raises(rmaext.RmaError, match="StopIteration"):
        NodeArray(world, 3, fill=lambda array: next(iter(())))
    with NodeArray(world, 3, fill=lambda array: array.fill(2)) as table:
        assert table.array.tolist() == [2, 2, 2]


@pytest.mark.pair
def test_wrong_arguments(world):
    good = {"shape": 3, "fill": lambda array: None}
    for wrong, error in [
        ({"shape": -1}, ValueError),
        ({"shape": (2, "3")}, TypeError),
        ({"shape": 2**62}, MemoryError),
        ({"dtype": object}, TypeError),
        ({"fill": np.zeros(3)}, TypeError),
    ]:
        mine = good | wrong if world.rank == world.size - 1 else good
        with pytest.raises(error, match="rank") as info:
            NodeArray(world, **mine)
        assert len(set(world.allgather(str(info.value)))) == 1
    for rows, error in [
        (5, ValueError),
        (["a", None], TypeError),
        (np.ma.zeros(3), TypeError),
    ]:
        with pytest.raises(error, match="rank"):
            NodeArray.assemble(world, rows if world.rank == world.size - 1 else np.zeros(3))
    if world.size > 1:
        with pytest.raises(ValueError, match=r"shape \(4,\).*all need the same"):
            NodeArray(world, 4 if world.rank else 3, fill=good["fill"])
        with pytest.raises(TypeError, match=r"float32.*all need the same"):
            NodeArray(world, 3, "f4" if world.rank else "f8", fill=good["fill"])
        with pytest.raises(ValueError, match=r"rows differ.*shape \(2,\)"):
            NodeArray.assemble(world, np.zeros((3, 2 if world.rank else 1)))


def test_no_memory(world, monkeypatch):
    """Of one node: an error of all ranks."""

    def none(number, offset, nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", none)
    with pytest.raises(MemoryError, match="no shared memory of 24 bytes"):
        NodeArray(world, 3, fill=lambda array: None)


def test_a_profiler(monkeypatch):
    """Its signals may begin an allocation again, as kernels do: it has short steps, no gaps."""
    steps, allocate = [], os.posix_fallocate

    def recorded(number, offset, nbytes):
        steps.append((offset, nbytes))
        allocate(number, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", recorded)
    with NodeArray(MPI.COMM_SELF, 10_000_001, "u1", fill=lambda array: array.fill(3)) as table:
        assert (table.array == 3).all()
    ends = np.cumsum([nbytes for _, nbytes in steps]).tolist()
    assert [offset for offset, _ in steps] == [0, *ends[:-1]]
    assert ends[-1] == 10_000_001
    assert max(nbytes for _, nbytes in steps) <= 1 << 22


def test_eight_threads(comm):
    with (
        NodeArray(comm, 1000, "i8", fill=lambda array: np.cumsum(array + 1, out=array)) as table,
        ThreadPoolExecutor(8) as pool,
    ):
        assert set(pool.map(lambda _: int(table.array.sum()), range(64))) == {500_500}


def test_interrupted_constructor(world):
    """On one rank: it leaves nothing behind, and the others know."""
    before = mapped()
    for k in 20, 60, 100:
        comm = world.Dup()  # which nobody can use afterwards
        tracing = nullcontext()
        if world.rank == world.size - 1:
            tracing = Tracing((_nodearray,), k, interrupt)
        with suppress(Interrupt, rmaext.RmaError), tracing:
            NodeArray(comm, 100, fill=lambda array: None)
        assert world.rank < world.size - 1 or tracing.acted
        world.Barrier()
    gc.collect()
    assert mapped() <= before


@pytest.mark.parametrize("where", [(), ("nodes",)])
def test_the_rank_that_filled_it_dies(where):
    """The others read on."""
    passes(3, "containers/programs/nodearray_killed.py", *where, oks=2, survive=True, timeout=60)


def test_a_handlers_timeout_is_its_own(monkeypatch):
    """It is an OSError, as what the system says of memory that it has not."""

    def fails(error):
        monkeypatch.setattr("os.posix_fallocate", lambda *_: (_ for _ in ()).throw(error))
        NodeArray(MPI.COMM_SELF, 3, fill=len)

    with pytest.raises(TimeoutError, match="of a handler"):
        fails(TimeoutError("of a handler"))
    with pytest.raises(MemoryError, match=r"no shared memory of 24 bytes.*No space left"):
        fails(OSError(errno.ENOSPC, "No space left"))
