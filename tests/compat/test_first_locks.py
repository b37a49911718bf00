# SPDX-License-Identifier: BSD-3-Clause
"""A lock right after Allocate waits until the target has written what it wants, but not long."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from rmaext import compat
from rmaext.compat import first_locks

WAYS = ["Lock", "Lock_all"]


def add_to_rank_0(win: compat.Win, way: str) -> None:
    """Add 1 to what rank 0 has."""
    if way == "Lock":
        win.Lock(0)
    else:
        win.Lock_all()
    win.Accumulate(np.array([1]), 0)
    if way == "Lock":
        win.Unlock(0)
    else:
        win.Unlock_all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", ["Allocate", "Allocate_shared"])
def test_memory_is_initialised_before_others_come(
    world: Any, monkeypatch: pytest.MonkeyPatch, make: str, way: str
) -> None:
    monkeypatch.setattr(first_locks, "GRACE", 30.0)
    win = getattr(compat.Win, make)(8, 8, comm=world)
    if world.rank == 0:
        time.sleep(0.1)
        np.frombuffer(win, np.int64)[0] = 5
    add_to_rank_0(win, way)
    world.Barrier()
    if world.rank == 0:
        assert np.frombuffer(win, np.int64)[0] == 5 + world.size
    win.Free()


@pytest.mark.parametrize("way", WAYS)
def test_nobody_waits_for_long(world: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(first_locks, "GRACE", 0.2)
    win = compat.Win.Allocate(8, 8, comm=world)
    if world.rank:
        add_to_rank_0(win, way)
        add_to_rank_0(win, way)
        assert win._epochs._first_locks is None
    world.Barrier()  # only now does rank 0 do anything
    assert world.rank or np.frombuffer(win, np.int64)[0] == 2 * (world.size - 1)
    win.Free()


def test_other_windows_never_wait(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_locks, "GRACE", 1e6)
    memory = np.zeros(1, np.int64)
    win = compat.Win.Create(memory, 8, comm=world)
    if world.rank:
        add_to_rank_0(win, "Lock")
    world.Barrier()
    assert world.rank or memory[0] == world.size - 1
    assert win.flavor == MPI.WIN_FLAVOR_CREATE
    win.Free()
