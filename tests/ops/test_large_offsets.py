# SPDX-License-Identifier: BSD-3-Clause
"""Counts and offsets beyond 2^31; of memory of which little is ever touched."""

from __future__ import annotations

import numpy as np
import pytest
from support.guarded import neighbour, same

import rmaext

HIGH = (1 << 31) + 12_345  # an odd one
SIZE = (1 << 31) + (1 << 20)


def test_offsets(comm):
    """All operations, at places that no 32-bit number reaches."""
    peer, p = neighbour(comm), comm.size
    with rmaext.Window.allocate(comm, SIZE, np.uint8) as win:
        assert win.size(peer) == SIZE
        data = np.arange(1000, dtype=np.uint8)
        win.put(data, peer, HIGH)
        win.put(data[:2], peer, SIZE - 2)
        win.flush()
        assert same(win.get(peer, HIGH, 1000), data)
        assert same(win.get(peer, SIZE - 2), data[:2])
        win.put_many(peer, [HIGH + 5000, HIGH + 5002], np.array([7, 8], np.uint8))
        assert same(win.get_many(peer, [HIGH + 5002, HIGH + 999]), np.array([8, 231], np.uint8))
        win.accumulate_many(0, HIGH + 6000, np.uint8(1))
        win.fetch_add(1, 0, HIGH + 6001)
        win.fence()
        assert win.compare_and_swap(7, 9, comm.rank, HIGH + 5000) == 7
        assert same(win.local[HIGH : HIGH + 1000], data)
        assert win.local[HIGH + 5000 : HIGH + 5003].tolist() == [9, 0, 8]
        assert win.get(0, HIGH + 6000, 2).tolist() == [p, p]
        view = win.subwindow(HIGH, SIZE)
        assert same(view.get(comm.rank, 0, 1000), data)
        view.put(data[:3], peer, 7000)
        with pytest.raises(rmaext.BoundsError, match=str(SIZE)):
            win.put(data, peer, SIZE - 999)
        with pytest.raises(rmaext.BoundsError):
            win.get(peer, 0, SIZE + 1)
        with pytest.raises(rmaext.BoundsError):
            win.put(1, peer, 1 << 64)
        with pytest.raises(rmaext.BoundsError):
            view.put_many(peer, [0, SIZE - HIGH], np.uint8(1))
        win.fence()
        assert win.local[HIGH + 7000 : HIGH + 7003].tolist() == [0, 1, 2]
        assert not win.local[12_345:20_000].any()  # where a number cut to 31 bits leads
        win.fence()


def test_joined(comm):
    """Arrays that together have more."""
    half = SIZE // 2
    with rmaext.Window(comm, [rmaext.empty(half, "u1"), rmaext.empty(half, "u1")]) as win:
        peer = neighbour(comm)
        win.put(np.arange(10, dtype="u1"), peer, HIGH)
        win.put(np.arange(10, dtype="u1"), peer, half - 5)
        win.fence()
        assert same(win.local[1][HIGH - half : HIGH - half + 10], np.arange(10, dtype="u1"))
        assert win.get_many(peer, [HIGH + 3, half + 1]).tolist() == [3, 6]
        win.fence()


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.mpi(min_size=2)
def test_one_transfer(world):
    """Rank 0 puts, and gets, more than 2^31 elements at once."""
    count = SIZE if world.rank == world.size - 1 else 0
    with rmaext.Window.allocate(world, count, np.uint8, timeout=300) as win:
        last = world.size - 1
        if world.rank == 0:
            data = np.zeros(SIZE - 1, np.uint8)
            data[::4099] = np.arange(data[::4099].size, dtype=np.uint8)
            win.put(data, last, 1)
            win.flush()
            assert win.get(last, HIGH, 1)[0] == data[HIGH - 1]
            back = np.full(SIZE - 1, 255, np.uint8)
            win.get(last, 1, out=back)
            assert (back == data).all()
        win.fence()
        if world.rank == last:
            assert win.local[0] == 0
            assert win.local[1 + 4099] == 1
        win.fence()
