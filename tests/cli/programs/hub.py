# SPDX-License-Identifier: BSD-3-Clause
"""A hub that sleeps and spokes that read it and each other, as in mpi-sppy; mpi4py only.

Run by `python -m rmaext run` from test_run.py. The hub publishes numbered bounds and
sleeps; meanwhile each spoke reads them many times, publishes what it makes of them,
and is done before the hub wakes up. The ranks share one clock.
"""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

READS = 20
SLEEP = 3.0
LENGTH = 64

comm = MPI.COMM_WORLD
win = MPI.Win.Allocate(8 * LENGTH, 8, comm=comm)
mine = np.ndarray(LENGTH, "d", win.tomemory())
mine[:] = 0.0
comm.Barrier()


def put(values: np.ndarray) -> None:
    """Publish, in the own memory."""
    win.Lock(comm.rank, MPI.LOCK_EXCLUSIVE)
    win.Put((values, LENGTH, MPI.DOUBLE), comm.rank, 0)
    win.Unlock(comm.rank)


def get(rank: int) -> np.ndarray:
    """Read all that a rank has published."""
    values = np.full(LENGTH, -1.0)
    win.Lock(rank, MPI.LOCK_SHARED)
    win.Get((values, LENGTH, MPI.DOUBLE), rank, 0)
    win.Unlock(rank)
    assert (values == values[0]).all(), values  # never half of what is published
    return values


if comm.rank == 0:
    put(np.full(LENGTH, 1.0))
    while not all(get(spoke)[0] for spoke in range(1, comm.size)):
        time.sleep(0.01)
    put(np.full(LENGTH, 2.0))
    time.sleep(SLEEP)
    awake = time.monotonic()
    ends = comm.gather(None)
    assert all(end < awake for end in ends[1:]), (awake, ends)
    found = [get(spoke)[0] for spoke in range(1, comm.size)]
    assert found == [2.0 + READS] * (comm.size - 1), found
    print(f"{READS} reads by each spoke, the last {awake - max(ends[1:]):.2f} s too early to wait")
else:
    while get(0)[0] < 1.0:
        time.sleep(0.01)
    put(np.full(LENGTH, 1.0))  # met
    while get(0)[0] < 2.0:
        time.sleep(0.01)
    for number in range(1, READS + 1):
        hub = get(0)[0]
        put(np.full(LENGTH, hub + number))
    comm.gather(time.monotonic())
win.Free()
