# SPDX-License-Identifier: BSD-3-Clause
"""Window.shared: one piece of memory for the ranks of a node."""

from __future__ import annotations

import gc
import textwrap

import launch
import numpy as np
import pytest
from support.guarded import same
from support.jobs import PRELUDE

import rmaext


def can_share(comm):
    route = launch.test_route()
    return route != "fabric" and (route != "mixed" or comm.size == 1)


@pytest.fixture
def near(comm):
    """A communicator whose ranks can share memory."""
    if not can_share(comm):
        with pytest.raises(rmaext.NotLocalError):
            rmaext.Window.shared(comm, 3)
        pytest.skip("the ranks do not share a node")
    return comm


@pytest.mark.parametrize("dtype", ["i1", "f8", "i2,f8", "M8[s]"])
def test_one_piece(near, dtype):
    rank, p = near.rank, near.size
    shape = (rank + 1, 2)
    with rmaext.Window.shared(near, shape, dtype) as win:
        assert win.dtype == np.dtype(dtype)
        assert win.local.shape == shape
        assert win.whole.shape == (p * (p + 1),)
        assert not win.whole.view("u1").any()
        start = rank * (rank + 1)
        mine = win.whole[start : start + win.local.size]
        assert mine.ctypes.data == win.local.ctypes.data
        near.Barrier()
        win.local.view("u1")[...] = rank + 1
        win.fence()
        for r in range(p):
            assert win.route(r) == "direct"
            assert win.size(r) == 2 * (r + 1)
            assert win.peer_view(r).shape == (r + 1, 2)
            assert (win.peer_view(r).view("u1") == r + 1).all()
            assert win.get(r).tobytes() == bytes([r + 1]) * win.peer_view(r).nbytes
        raw = [r + 1 for r in range(p) for _ in range(2 * (r + 1) * win.dtype.itemsize)]
        assert win.whole.tobytes() == bytes(raw)
        near.Barrier()
    with pytest.raises(rmaext.ClosedError):
        win.whole  # noqa: B018


def test_operations(near):
    rank, p = near.rank, near.size
    with rmaext.Window.shared(near, 4, "i8") as win:
        for k in range(5 * p):
            win.fetch_add(1, k % p, 1)
        win.accumulate_many(np.arange(p), 2, 1)
        win.put(rank, (rank + 1) % p, 3)
        win.fence()
        assert win.local.tolist() == [0, 5 * p, p, (rank - 1) % p]
        assert win.whole.reshape(p, 4)[:, 1].tolist() == [5 * p] * p
        view = win.subwindow(1, 3)
        assert same(view.peer_view(p - 1), np.array([5 * p, p]))
        with pytest.raises(rmaext.BoundsError):
            win.put(np.ones(2, "i8"), 0, 3)
        win.fence()


def test_parts_without_memory(near):
    last = near.size - 1
    with rmaext.Window.shared(near, 5 if near.rank == last else 0) as win:
        win.put(np.arange(5.0), last)
        win.fence()
        assert same(win.whole, np.arange(5.0))
        assert win.local.size == (5 if near.rank == last else 0)
        near.Barrier()
    with rmaext.Window.shared(near, 0) as win:
        assert win.whole.size == win.peer_view(last).size == 0
        win.fence()


def test_wrong_arguments(near):
    """The same error on all ranks, for the mistake of one."""
    last = near.size - 1
    for wrong, error in (((-1,), ValueError), ((2.5,), TypeError), ((1, object), TypeError)):
        with pytest.raises(error, match=f"rank {last}"):
            rmaext.Window.shared(near, *(wrong if near.rank == last else (3,)))
    with pytest.raises(MemoryError):
        rmaext.Window.shared(near, 1 << 62)
    if last:
        with pytest.raises(TypeError, match="dtype"):
            rmaext.Window.shared(near, 3, "i4" if near.rank == last else "i8")
    with pytest.raises(ValueError, match="timeout"):
        rmaext.Window.shared(near, 3, timeout=-1)
    rmaext.Window.shared(near, 3).close()


def test_memory_comes_back(near):
    """The arena gets it back when all have closed, as zeros."""
    for _ in range(30):
        with rmaext.Window.shared(near, 1 << 20) as win:
            assert not win.local[::4096].any()
            near.Barrier()
            win.local[...] = 1
            near.Barrier()
    gc.collect()


def test_nodes_that_differ(world):
    if can_share(world):
        pytest.skip("the ranks share a node")
    for _ in range(2):  # and nothing is out of step
        with pytest.raises(rmaext.NotLocalError, match="several nodes"):
            rmaext.Window.shared(world, 3)
    with rmaext.Window(world, np.zeros(3)) as win:
        win.fence()


@pytest.mark.parametrize("killed", [0, 1])
def test_outlives_a_killed_rank(killed):
    """Rank 0, whose memory it is, or another: the survivors go on in what is left."""
    done = launch.mpirun(
        3,
        PRELUDE
        + textwrap.dedent(f"""
            win = rmaext.Window.shared(world, 1000, 'i8')
            win.local[:] = rank
            win.fence()
            if rank == {killed}:
                os.kill(os.getpid(), signal.SIGKILL)
            left = [r for r in range(3) if r != {killed}]
            try:
                while True: win.put(1, {killed})
            except rmaext.PeerLostError: pass
            for r in left:
                win.fetch_add(1, r, rank)
            win.whole[1000 * {killed} + rank] = 7
            while any((win.peer_view(r)[left] != r + 1).any() for r in left): pass
            assert win.whole[1000 * {killed} + 500] == {killed}
            print('end', flush=True)
            os._exit(0)
            """),
        survive=True,
    )
    assert done.stdout.count("end") == 2, done.stdout + done.stderr


def test_exit_without_close():
    done = launch.mpirun(
        2,
        PRELUDE
        + textwrap.dedent("""
            win = rmaext.Window.shared(world, 1000)
            exercise(win)
            whole = win.whole
            print('end', flush=True)
            """),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2
