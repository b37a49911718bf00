# SPDX-License-Identifier: BSD-3-Clause
"""What stays of communicators that had windows: nothing, once all ranks have freed them."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext._comm import group
from rmaext._memory import node

world = MPI.COMM_WORLD
TURNS = 20
LAG = 3  # communicators that others may not have come to the end of


def state():
    """Return descriptors, mappings, arrays that are kept, and the bytes of these."""
    gc.collect()
    with open("/proc/self/maps") as file:
        maps = sum(1 for _ in file)
    kept = sum(array.nbytes for array in node._kept.values())
    return np.array([len(os.listdir("/proc/self/fd")), maps, len(node._kept), kept])


def closed(comm):
    with rmaext.Window.allocate(comm, 10) as win, rmaext.Window(comm, np.zeros(3)) as other:
        for it in (win, other):
            it.put(1.0, (comm.rank + 1) % comm.size)
            it.fence()


def left(comm):
    """All ranks leave their windows by an exception."""
    try:
        with rmaext.Window.allocate(comm, 10) as win, rmaext.Window.dynamic(comm) as other:
            other.attach(np.zeros(3))
            win.put(1.0, (comm.rank + 1) % comm.size)
            win.fence()
            raise KeyError
    except KeyError:
        pass


def outlasting(comm):
    """The window is closed after its communicator was freed."""
    win = rmaext.Window.allocate(comm, 10)
    comm.Free()
    win.fence()
    win.close()


@pytest.mark.mpi
@pytest.mark.parametrize("use", [closed, left, outlasting])
@pytest.mark.parametrize("split", [False, True])
def test_memory_and_descriptors_do_not_grow(use, split):
    before = None
    for turn in range(TURNS):
        comm = world.Split(world.rank % 2) if split else world.Dup()
        use(comm)
        if comm != MPI.COMM_NULL:
            comm.Free()
        if turn == TURNS // 4:
            before = state()
    more = state() - before
    assert len(group._ending) <= LAG
    assert more[0] <= 1, more
    assert more[1] <= 2, more
    assert more[2] <= 3 * LAG, more
    assert more[3] < 100_000 * LAG, more
    world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_is_late_may_still_write():
    """Where one rank has left a window, and freed its communicator, others go on."""
    comm = world.Dup()
    win = rmaext.Window.allocate(comm, 10)
    win.fence()
    if comm.rank == 0:
        array = win.local
        with pytest.raises(KeyError), win:
            raise KeyError
        comm.Free()
        world.Barrier()
        for _ in range(5):
            closed(MPI.COMM_SELF)
        others = [rmaext.zeros(10) for _ in range(20)]  # where the window's memory was, if free
        world.Barrier()
        world.Barrier()
        assert array[world.size - 1] == world.size - 1
        assert not any(it.any() for it in others)
    else:
        world.Barrier()
        world.Barrier()
        win.put(float(comm.rank), 0, comm.rank)
        win.flush(0)
        with pytest.raises(KeyError), win:
            raise KeyError
        comm.Free()
        world.Barrier()
