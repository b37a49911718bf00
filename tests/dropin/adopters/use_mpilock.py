# SPDX-License-Identifier: BSD-3-Clause
"""mpilock: read and write locks around files that all ranks share.

python use_mpilock.py (pump | still)

With the pump, a thread of the master keeps MPI's progress going; without it, locks wait
until the master calls MPI.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from clock import REPEAT, check, say, took
from mpi4py import MPI
from mpilock import WindowController, sync

ROUNDS = 25
COMPUTES = 0.5  # seconds that the master is away


def two_files(locks: WindowController, folder: Path) -> None:
    """Raise numbers in two files together; a reader must never see them differ."""
    first, second = folder / "first", folder / "second"
    if locks.rank == locks.master:
        first.write_text("0")
        second.write_text("0")
    comm.Barrier()
    seen = 0
    for _ in range(ROUNDS):
        with locks.write():
            number = int(first.read_text()) + 1
            first.write_text(str(number))
            second.write_text(str(number))
        with locks.read():
            pair = int(first.read_text()), int(second.read_text())
        check(pair[0] == pair[1] >= number > seen, f"{pair} after {number} and {seen}")
        seen = number
    comm.Barrier()
    check(int(second.read_text()) == ROUNDS * comm.size, "a rank's increment was lost")


def nested(locks: WindowController, file: Path) -> None:
    """Take locks inside locks: a write lock promotes a read lock of the same rank."""
    if locks.rank == locks.master:
        file.write_text("0")
    comm.Barrier()
    for _ in range(5):
        with locks.read(), locks.read(), locks.write(), locks.write():
            file.write_text(str(int(file.read_text()) + 1))
    comm.Barrier()
    check(int(file.read_text()) == 5 * comm.size, "a nested increment was lost")


def away(locks: WindowController) -> float:
    """Return how long the others' locks took while the master computes, in seconds."""
    comm.Barrier()
    start = time.perf_counter()
    if locks.rank == locks.master:
        while time.perf_counter() - start < COMPUTES:
            sum(range(1000))
        spent = 0.0
    else:
        for _ in range(10):
            with locks.write():
                pass
            with locks.read():
                pass
        spent = time.perf_counter() - start
    return comm.allreduce(spent, MPI.MAX)


comm = MPI.COMM_WORLD
pump = {"pump": True, "still": False}[sys.argv[1]]
with tempfile.TemporaryDirectory() as own:
    folder = Path(comm.bcast(own))
    with sync(comm, pump=pump) as locks:
        for _ in range(REPEAT):
            with took(comm, f"{2 * ROUNDS} locks of each rank"):
                two_files(locks, folder)
            say(comm, f"20 locks of each other rank, master computes {COMPUTES} s", away(locks))
        nested(locks, folder / "nested")
        with locks.single_write() as fence:
            fence.guard()
            fence.share(locks.rank + 40)
        check(fence.collect() == 40, "what one rank shared")
    for _ in range(REPEAT):
        with took(comm, "5 controllers made and closed"):
            for number in range(5):
                with sync(comm, master=number % comm.size, pump=False) as other, other.write():
                    pass
    comm.Barrier()  # before the folder goes
