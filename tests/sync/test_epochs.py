# SPDX-License-Identifier: BSD-3-Clause
"""Epochs of start, post, complete and wait; and the kinds of flush."""

from __future__ import annotations

import time

import numpy as np
import pytest
from locks import add_one, interrupted, until
from mpi4py import MPI
from support.guarded import guarded

import rmaext

# -- start, post, complete, wait -----------------------------------------------------


def test_ring_of_epochs(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with guarded(comm, 4, "i8") as win:
        for number in range(30):
            win.post([left])
            win.start([right])
            win.put(np.full(4, number * comm.size + comm.rank), right)
            win.complete()
            win.wait()
            assert (win.local == number * comm.size + left).all()
        win.fence()


def test_groups_of_mpi(comm):
    everybody = comm.Get_group()
    with guarded(comm, comm.size, "i8") as win:
        win.post(everybody)
        win.start(everybody)
        for rank in range(comm.size):
            win.put(np.int64(comm.rank + 1), rank, comm.rank)
        win.complete()
        win.wait()
        assert win.local.tolist() == list(range(1, comm.size + 1))
        win.fence()
    everybody.Free()


@pytest.mark.mpi(min_size=2)
def test_group_of_another_communicator(world):
    """Ranks are translated; who has no part in the window is refused."""
    pairs = world.Split(world.rank // 2, -world.rank)
    everybody, own = world.Get_group(), pairs.Get_group()
    with guarded(pairs, 1, "i8") as win:
        if pairs.size < world.size:
            for call in (win.post, win.start):
                with pytest.raises(rmaext.BoundsError, match="no part"):
                    call(everybody)
        win.post(own)
        win.start(own)
        win.complete()
        win.wait()
        win.fence()
    for handle in (everybody, own, pairs):
        handle.Free()


def test_empty_groups(comm):
    with guarded(comm, 1, "i8") as win:
        for group in ([], (), MPI.GROUP_EMPTY):
            win.post(group)
            assert win.test() is True
            win.start(group)
            win.complete()
            win.post(group)
            win.start(group)
            win.wait()
            win.complete()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_early_start_and_late_post(world):
    with guarded(world, 1, "i8") as win:
        times = []
        if world.rank == 0:
            time.sleep(0.2)
            times.append(time.monotonic())
            win.post(range(1, world.size))
            with pytest.raises(rmaext.RmaTimeout):
                win.wait(timeout=0.01)
            world.Barrier()
            until(win.test)
            assert win.local[0] == sum(range(1, world.size))
        else:
            win.start([0])
            times.append(time.monotonic())
            world.Barrier()  # test() was False before
            win.fetch_add(world.rank, 0)
            win.complete()
        post, *starts = world.allgather(times[0])
        assert min(starts) > post, "before the post"
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_epochs_of_several_ahead(world):
    """An origin may be epochs ahead of the target's wait; none is mixed up."""
    with guarded(world, 8, "i8") as win:
        for number in range(20):
            if world.rank == 0:
                win.post(range(1, world.size))
                win.wait()
                assert (win.local[1 : min(8, world.size)] == number).all()
            else:
                win.start([0])
                if world.rank < 8:
                    win.put(np.int64(number), 0, world.rank)
                win.complete()
        win.fence()


def test_kinds_of_epochs_one_after_another(comm):
    right = (comm.rank + 1) % comm.size
    with guarded(comm, 1, "i8") as win:
        expected = 0
        for _ in range(5):
            win.put(np.int64(expected + 1), right)
            win.fence()
            with win.lock(right, exclusive=True):
                add_one(win, right)
            win.fence()
            win.post([(comm.rank - 1) % comm.size])
            win.start([right])
            add_one(win, right)
            win.complete()
            win.wait()
            with win.lock_all():
                win.fetch_add(1, right)
            win.fence()
            expected += 4
            assert win.local[0] == expected
            win.fence()


@pytest.mark.mpi(min_size=2)
def test_ctrl_c_in_start_and_wait(world):
    """Nothing is used up: the same call again succeeds."""
    with guarded(world, 1, "i8") as win:
        others = range(1, world.size)
        if world.rank == 0:
            world.Barrier()  # they were interrupted
            win.post(others)
            interrupted(win.wait)
            world.Barrier()
            win.wait()
            assert win.local[0] == len(others)
        else:
            interrupted(lambda: win.start([0]))
            world.Barrier()
            win.start([0])
            win.fetch_add(1, 0)
            world.Barrier()
            win.complete()
        win.fence()


# -- the rest ------------------------------------------------------------------------


def test_kinds_of_flush(comm):
    right = (comm.rank + 1) % comm.size
    with guarded(comm, 3, "i8", proc_null=True) as win:
        buffer = np.array([1, 2, 3])
        win.put(buffer, right)
        win.flush_local(right)
        win.flush_local()
        win.flush_local_all()
        win.flush_local(MPI.PROC_NULL)
        buffer[:] = 0
        win.flush_all()
        assert win.get(right).tolist() == [1, 2, 3]
        comm.Barrier()
        win.local[0] = 7
        win.sync()
        comm.Barrier()
        assert win.get(right, 0, 1)[0] == 7
        win.fence()
