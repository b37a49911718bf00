# SPDX-License-Identifier: BSD-3-Clause
"""What ranks tell each other when they make a container: all four do so in one way."""

from __future__ import annotations

import gc
import os
import pickle
import re

import numpy as np
import pytest
from support.jobs import passes

import rmaext
from rmaext.containers import Array, Dict, Published, Store, TaskQueue
from rmaext.containers._agreement import common, exchange

MAKERS = {
    "Array": lambda comm: Array(comm, (5, 4), ghosts=1),
    "Dict": lambda comm: Dict(comm, "i8", "f8", 10),
    "Published": lambda comm: Published(comm, 3),
    "Store": lambda comm: Store(comm, np.zeros((3, 2))),
    "TaskQueue": lambda comm: TaskQueue(comm, "i8", 10),
}


def errors(world, error, action):
    """Require an error on all ranks, the same on each; return its text."""
    with pytest.raises(error) as caught:
        action()
    (text,) = set(world.allgather(str(caught.value)))
    return text


def test_what_is_told(comm):
    """By rank, whatever its length."""

    def told(rank):
        return {"rank": rank, "text": "x" * (1000 * rank), "dtype": np.dtype("i4,f8")}

    for _ in range(3):
        found = exchange(comm, "test", lambda: told(comm.rank), None)
        assert found == [told(rank) for rank in range(comm.size)]
    assert exchange(comm, "test", lambda: None, None) == [None] * comm.size


@pytest.mark.parametrize("error", [ValueError, OverflowError, ZeroDivisionError, MemoryError])
def test_an_error_on_one_rank(world, error):
    last = world.size - 1

    def tell():
        if world.rank == last:
            raise error("does not fit")
        return 1

    text = errors(world, error, lambda: exchange(world, "test", tell, None))
    assert f"rank {last}" in text
    assert "does not fit" in text
    assert exchange(world, "test", lambda: 5, None) == [5] * world.size


def test_what_cannot_be_told(world):
    """As an error in what tells."""
    last = world.size - 1
    what = (lambda: 0) if world.rank == last else 0
    error = (AttributeError, pickle.PicklingError, rmaext.RmaError)
    assert "lambda" in errors(world, error, lambda: exchange(world, "test", lambda: what, None))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", MAKERS)
def test_another_container(world, name):
    other = "Dict" if name == "TaskQueue" else "TaskQueue"
    make = MAKERS[name if world.rank == 1 else other]
    text = errors(world, rmaext.SyncError, lambda: make(world))
    assert f"rank 1: {name}" in text
    assert f": {other}" in text
    with MAKERS[name](world) as made:
        assert not made.closed


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", MAKERS)
def test_another_call(world, name):
    """One rank is in a fence: the same error on all, and they go on."""
    with rmaext.Window.allocate(world, 4) as win:
        with pytest.raises(rmaext.SyncError):
            win.fence() if world.rank == 1 else MAKERS[name](world)
        with MAKERS[name](world) as made:
            assert not made.closed


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("first", "second", "texts"),
    [
        (
            lambda comm: Dict(comm, "i8", "i8", 10),
            lambda comm: Dict(comm, "i8", "u8", 10),
            ("int64 -> int64, capacity 10", "int64 -> uint64, capacity 10"),
        ),
        (
            lambda comm: Published(comm, (2, 3)),
            lambda comm: Published(comm, (3, 2)),  # as many elements
            ("4 buffers of shape (2, 3)", "4 buffers of shape (3, 2)"),
        ),
        (
            lambda comm: Published(comm, 6, buffers=2),
            lambda comm: Published(comm, 3, buffers=4),
            ("2 buffers of shape (6,)", "4 buffers of shape (3,)"),
        ),
        (
            lambda comm: Store(comm, np.zeros((3, 2))),
            lambda comm: Store(comm, np.zeros((3, 2, 2))),
            ("1 dimensions", "2 dimensions"),
        ),
    ],
)
def test_arguments_that_differ(world, first, second, texts):
    make = second if world.rank == 1 else first
    text = errors(world, ValueError, lambda: make(world))
    assert f"rank 1: {texts[1]}" in text
    others = [str(rank) for rank in range(world.size) if rank != 1]
    assert f"rank{'s' * (len(others) > 1)} {', '.join(others)}: {texts[0]}" in text


@pytest.mark.mpi(min_size=2)
def test_calls_that_differ(world):
    """The call of the container is named, and not only the windows that it is made of."""
    table = Dict(world, "i8", "f8", 10)
    calls = [lambda: len(table), lambda: rmaext.Window.allocate(world, 3)]
    text = errors(world, rmaext.SyncError, calls[world.rank == 0])
    assert re.search(r"rank 0: creation of window \d+ \(test_agreement.py:\d+\)", text)
    assert re.search(r"ranks? 1.*: fence of window \d+ \(Dict.len, test_agreement.py:\d+\)", text)
    assert len(table) == 0
    table.close()


def test_what_is_common():
    assert common([3, None, 3], ValueError, "odd") == 3
    assert common([None, None], ValueError, "odd") is None
    assert common([], ValueError, "odd") is None
    with pytest.raises(TypeError, match=r"^odd \(ranks 0, 3: <1>; rank 2: <2>\): all need the"):
        common([1, None, 2, 1], TypeError, "odd", "<{}>".format)


@pytest.mark.parametrize("where", [(), ("nodes",)], ids=["node", "nodes"])
@pytest.mark.parametrize("name", MAKERS)
def test_killed_in_the_constructor(name, where):
    program = "containers/programs/killed_in_constructor.py"
    passes(3, program, name, *where, oks=2, survive=True, timeout=50)


def test_no_memory_for_many_GiB_leaves_no_windows(comm):
    """Those that were made before it was seen are closed: whoever asks for less has all of it."""
    counts = []
    for _ in range(6):
        with pytest.raises(MemoryError):
            Dict(comm, "i8", "V100000", 1 << 31)  # 200 TB
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1]
    with Dict(comm, "i8", "i8", 10) as table:
        assert table.add(comm.rank, 1) == 0
