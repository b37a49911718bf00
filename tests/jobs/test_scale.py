# SPDX-License-Identifier: BSD-3-Clause
"""Many more ranks than cores: make test-scale runs these at 16 to 256 ranks."""

from __future__ import annotations

import numpy as np
import pytest

import rmaext

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.scale, pytest.mark.timeout(240)]


def test_ring(world):
    """Everybody puts to the right, and reads what the left neighbour got."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    with rmaext.Window.allocate(world, 100, "i8") as win:
        for turn in range(3):
            win.put(np.full(100, 1000 * turn + world.rank), right)
            win.fence()
            assert (win.local == 1000 * turn + left).all()
            far = (world.rank + world.size // 2) % world.size
            assert (win.get(far) == 1000 * turn + (far - 1) % world.size).all()
            win.fence()


def test_one_counter(world):
    """All ranks draw from rank 0's counter: each number once."""
    draws = 20
    with rmaext.Window.allocate(world, 1 if world.rank == 0 else 0, "u8") as win:
        mine = [int(win.fetch_add(1, 0)) for _ in range(draws)]
        numbers = world.allgather(mine)
    assert sorted(n for some in numbers for n in some) == list(range(draws * world.size))


def test_error_on_one_rank(world):
    """All ranks raise it, and go on."""
    wrong = world.size - 1
    dtype = object if world.rank == wrong else float
    with pytest.raises(TypeError, match=f"rank {wrong}"):
        rmaext.Window(world, np.zeros(3, dtype))
    with rmaext.Window(world, np.full(3, float(world.rank))) as win:
        assert win.get(wrong).tolist() == [wrong] * 3


def test_many_windows(world):
    """Twenty at once, closed in another order."""
    windows = [rmaext.Window(world, np.full(2, i)) for i in range(20)]
    target = (world.rank * 7 + 1) % world.size
    assert [int(win.get(target)[1]) for win in windows] == list(range(20))
    for win in windows[::2] + windows[1::2]:
        win.close()
