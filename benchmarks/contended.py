# SPDX-License-Identifier: BSD-3-Clause
"""What a lock takes that all ranks want at once, over tcp: ours, and that of MPI.Win.

    MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo \
        RMAEXT_ROUTE=fabric mpiexec -n 32 python benchmarks/contended.py

Each rank locks rank 0's window, reads a number, adds 1 to it, writes it back, and unlocks. One
line a side, medians of its turns: microseconds from one holder to the next, CPU time of all ranks.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext

TURNS, LOCKS = 5, 20


class Ours:
    """Locks of rmaext."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.window = rmaext.Window(comm, np.zeros(1))

    def add_one(self) -> None:
        """Add 1 under the lock."""
        with self.window.lock(0):
            self.window.put(self.window.get(0, 0, 1) + 1, 0)

    def total(self) -> float:
        """Return this rank's number."""
        return float(self.window.local[0])


class Theirs:
    """Locks of MPI."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.memory, self.buffer = np.zeros(1), np.zeros(1)
        self.window = MPI.Win.Create(self.memory, 8, comm=comm)

    def add_one(self) -> None:
        """Add 1 under the lock."""
        self.window.Lock(0)
        self.window.Get(self.buffer, 0)
        self.window.Flush(0)
        self.buffer += 1
        self.window.Put(self.buffer, 0)
        self.window.Unlock(0)

    def total(self) -> float:
        """Return this rank's number."""
        return float(self.memory[0])


def turn(comm: MPI.Comm, side: Any) -> tuple[float, float]:
    """Return the microseconds a lock, and those of CPU of all ranks."""
    comm.Barrier()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(LOCKS):
        side.add_one()
    comm.Barrier()
    took, spent = time.perf_counter() - start, time.process_time() - cpu
    per = 1e6 / (LOCKS * comm.size)
    return took * per, comm.allreduce(spent) * per


def main() -> None:
    """Measure both by turns."""
    comm = MPI.COMM_WORLD
    sides = {"rmaext": Ours(comm), "MPI.Win": Theirs(comm)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(TURNS):
        for name in list(sides)[:: 1 - 2 * (number % 2)]:
            found[name].append(turn(comm, sides[name]))
    for side in sides.values():
        assert comm.rank or side.total() == TURNS * LOCKS * comm.size
    if comm.rank == 0:
        for name, turns in found.items():
            took, spent = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"{name}: {comm.size} ranks, {took:.0f} us a lock, {spent:.0f} us of CPU")
    sides["rmaext"].window.close()
    sides["MPI.Win"].window.Free()


if __name__ == "__main__":
    main()
