# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on a device that containers, lists and the drop-in are given have the window's limit."""

from __future__ import annotations

import numpy as np
import pytest
from device.test_waiting import held

import rmaext
from rmaext.compat import Win
from rmaext.containers import Array, Dict, MultiDict, Published, Store, TaskQueue

pytestmark = pytest.mark.mpi
LIMIT = {"timeout": 1.5}
USES = {
    "Published": (
        lambda comm: Published(comm, 10, **LIMIT),
        lambda it, rank, given: it.publish(given),
    ),
    "TaskQueue": (
        lambda comm: TaskQueue(comm, float, 20, **LIMIT),
        lambda it, rank, given: it.put(given),
    ),
    "Array": (
        lambda comm: Array(comm, 10, **LIMIT),
        lambda it, rank, given: it.__setitem__(..., given),
    ),
    "Array.add": (
        lambda comm: Array(comm, 10, **LIMIT),
        lambda it, rank, given: it.add(..., given),
    ),
    "values of Dict": (
        lambda comm: Dict(comm, "i8", "f8", 100, **LIMIT),
        lambda it, rank, given: it.set_many(np.arange(10), given),
    ),
    "default of Dict": (
        lambda comm: Dict(comm, "i8", "f8", 100, **LIMIT),
        lambda it, rank, given: it.get_many(np.arange(10), given),
    ),
    "a list": (
        lambda comm: rmaext.Window(comm, np.zeros(20), **LIMIT),
        lambda it, rank, given: it.put([given, given], rank),
    ),
    "a record": (
        lambda comm: rmaext.Window(comm, np.zeros(2, [("n", "i8"), ("x", "f8", 10)]), **LIMIT),
        lambda it, rank, given: it.put((1, given), rank),
    ),
}
KEYS = {
    "Dict": (
        lambda comm: Dict(comm, "i8", "f8", 100, **LIMIT),
        lambda it, given: it.set_many(given, np.ones(10)),
    ),
    "MultiDict": (
        lambda comm: MultiDict(comm, "i8", "f8", 100, **LIMIT),
        lambda it, given: it.get_many(given),
    ),
}
late = pytest.raises(rmaext.RmaTimeout, match=r"not ended in 1[.]5 s")


@pytest.mark.parametrize(("make", "use"), USES.values(), ids=USES)
def test_values(cuda, comm, make, use):
    with make(comm) as it:
        given, may_end = held(cuda)
        try:
            with late:
                use(it, comm.rank, given)
        finally:
            may_end.set()
        given.stream.synchronize()
        use(it, comm.rank, given)
        comm.Barrier()


@pytest.mark.parametrize(("make", "use"), KEYS.values(), ids=KEYS)
def test_keys(cuda, comm, make, use):
    with make(comm) as it:
        given, may_end = held(cuda, "i8")
        try:
            with late:
                use(it, given)
        finally:
            may_end.set()
        given.stream.synchronize()
        comm.Barrier()


def test_samples(cuda, comm):
    given, may_end = held(cuda)
    try:
        with late:
            Store(comm, given, **LIMIT)
    finally:
        may_end.set()
    given.stream.synchronize()


@pytest.mark.parametrize("call", ["Put", "Get", "Accumulate"])
def test_the_drop_in(cuda, comm, monkeypatch, call):
    """Whose windows have the limit that was set when the first of a communicator was made."""
    monkeypatch.setenv("RMAEXT_TIMEOUT", "1.5")
    own = comm.Dup()
    win = Win.Create(np.zeros(10), 8, comm=own)
    monkeypatch.setenv("RMAEXT_TIMEOUT", "60")
    win.Fence()
    given, may_end = held(cuda)
    try:
        with pytest.raises(Exception, match=r"not ended in 1[.]5 s"):
            getattr(win, call)(given, comm.rank)
    finally:
        may_end.set()
    given.stream.synchronize()
    win.Fence()
    win.Free()
    own.Free()
