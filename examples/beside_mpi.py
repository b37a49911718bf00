# SPDX-License-Identifier: BSD-3-Clause
"""The same work on MPI.Win and on rmaext. `make demo` runs both, and says what came out.

    mpiexec -n 2 python examples/beside_mpi.py MPI.Win busy updates offset
    mpiexec -n 2 python examples/beside_mpi.py rmaext busy updates offset

Each case prints what it saw, as a line of JSON; `--to FILE` appends it to a file. The case
`killed` is for 3 ranks and a launcher that lets survivors live (docs/guides/survivors.md).
With MPI.Win `offset` and `killed` may end the job, or hang.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext

Array = NDArray[np.float64]
ORIGIN, TARGET, VICTIM = 0, 1, 2  # ranks
COMPUTES = 1.0  # seconds
LENGTH, PUT_AT, PUT = 8, 6, 4  # elements: of the window, before the put, of the put
TABLE, UPDATES, TRIES = 100_000, 1_000, 5


class MpiWin:
    """A window of MPI.Win. An operation is complete when its epoch ends, in Unlock."""

    def __init__(self, comm: Any, array: Array) -> None:
        self.win = MPI.Win.Create(array, array.itemsize, comm=comm)

    @classmethod
    def allocate(cls, comm: Any, count: int) -> MpiWin:
        """Make a window over so many zeros of its own. Collective."""
        self = cls.__new__(cls)
        self.win = MPI.Win.Allocate(count * 8, 8, comm=comm)
        np.frombuffer(self.win.tomemory(), np.float64)[:] = 0.0
        return self

    def get(self, rank: int, offset: int, count: int) -> Array:
        """Return elements of a rank."""
        values = np.empty(count)
        self.win.Lock(rank, MPI.LOCK_SHARED)
        self.win.Get(values, rank, offset)
        self.win.Unlock(rank)
        return values

    def put(self, values: Array, rank: int, offset: int) -> None:
        """Put elements into a rank's memory, and wait until they are there."""
        self.win.Lock(rank, MPI.LOCK_SHARED)
        self.win.Put(values, rank, offset)
        self.win.Unlock(rank)

    def add(self, values: Array, rank: int, offsets: NDArray[np.int64]) -> None:
        """Add to elements of a rank, and wait until that is done."""
        self.win.Lock(rank, MPI.LOCK_SHARED)
        for i, offset in enumerate(offsets.tolist()):
            self.win.Accumulate(values[i : i + 1], rank, offset, MPI.SUM)
        self.win.Unlock(rank)

    def fence(self) -> None:
        """Wait until all ranks' operations are done. Collective."""
        self.win.Fence()

    def close(self) -> None:
        """End the window. Collective."""
        self.win.Free()


class Rmaext:
    """A window of rmaext. No operation needs an epoch."""

    def __init__(self, comm: Any, array: Array) -> None:
        self.win = rmaext.Window(comm, array)

    @classmethod
    def allocate(cls, comm: Any, count: int) -> Rmaext:
        """Make a window over so many zeros of its own. Collective."""
        self = cls.__new__(cls)
        self.win = rmaext.Window.allocate(comm, count)
        return self

    def get(self, rank: int, offset: int, count: int) -> Array:
        """Return elements of a rank."""
        return self.win.get(rank, offset, count)

    def put(self, values: Array, rank: int, offset: int) -> None:
        """Put elements into a rank's memory, and wait until they are there."""
        self.win.put(values, rank, offset)
        self.win.flush(rank)

    def add(self, values: Array, rank: int, offsets: NDArray[np.int64]) -> None:
        """Add to elements of a rank, and wait until that is done."""
        self.win.accumulate_many(rank, offsets, values)
        self.win.flush(rank)

    def fence(self) -> None:
        """Wait until all ranks' operations are done. Collective."""
        self.win.fence()

    def close(self) -> None:
        """End the window. Collective."""
        self.win.close()


def busy(comm: Any, library: Any, tell: Any) -> None:
    """Get from a rank that computes, and measure how long it takes."""
    win = library(comm, np.full(LENGTH, float(comm.rank)))
    comm.Barrier()
    if comm.rank == TARGET:
        comm.send("I compute from now on", ORIGIN)
        until = time.monotonic() + COMPUTES
        while time.monotonic() < until:
            np.sort(np.arange(10_000)[::-1])
    elif comm.rank == ORIGIN:
        comm.recv(source=TARGET)
        start = time.perf_counter()
        values = win.get(TARGET, 0, LENGTH)
        seconds = time.perf_counter() - start
        tell(seconds=seconds, right=bool((values == TARGET).all()))
    comm.Barrier()
    win.close()


def updates(comm: Any, library: Any, tell: Any) -> None:
    """Add to random elements of another rank, and measure how long it takes."""
    win = library.allocate(comm, TABLE)
    offsets = np.random.default_rng(1).integers(0, TABLE, UPDATES)
    values, times = np.ones(UPDATES), []
    comm.Barrier()
    if comm.rank == ORIGIN:
        for _ in range(TRIES):
            start = time.perf_counter()
            win.add(values, TARGET, offsets)
            times.append(time.perf_counter() - start)
        expected = np.zeros(TABLE)
        np.add.at(expected, offsets, TRIES * values)
        tell(seconds=min(times), right=np.array_equal(win.get(TARGET, 0, TABLE), expected))
    comm.Barrier()
    win.close()


def offset(comm: Any, library: Any, tell: Any) -> None:
    """Put past the end of a window, and look at what lies behind it."""
    array = np.zeros(2 * LENGTH)
    win = library(comm, array[:LENGTH])
    comm.Barrier()
    error = None
    if comm.rank == ORIGIN:
        error = outcome(partial(win.put, np.ones(PUT), TARGET, PUT_AT))
    comm.Barrier()
    behind = comm.gather(int(np.count_nonzero(array[LENGTH:])), ORIGIN)
    if comm.rank == ORIGIN:
        tell(error=error, overwritten=behind[TARGET])
    comm.Barrier()
    win.close()


def killed(comm: Any, library: Any, tell: Any) -> None:
    """Kill a rank, and measure how long the others take to learn of it in a fence."""
    win = library(comm, np.zeros(LENGTH))
    win.fence()
    comm.Barrier()
    if comm.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    tell(waits=True, memory=memory())
    start = time.perf_counter()
    error = outcome(win.fence)
    tell(error=error, seconds=time.perf_counter() - start)
    sys.stdout.flush()
    os._exit(0)  # MPI_Finalize would wait for the dead


def outcome(call: Any) -> str | None:
    """Return the error that a call raises, in words, or None."""
    try:
        call()
    except Exception as exc:
        name = "MPI.Exception" if isinstance(exc, MPI.Exception) else type(exc).__name__
        return f"{name}: {exc}"
    return None


def memory() -> list[str]:
    """Return MPI's files of shared memory, which it leaves behind when a rank is killed."""
    with open("/proc/self/maps") as maps:
        fields = [line.split(maxsplit=5) for line in maps]
    # programs and libraries that lie there are mapped as private
    shared = {it[5].strip() for it in fields if len(it) > 5 and it[1] == "rw-s"}
    return sorted(it for it in shared if it.startswith("/dev/shm/") and not it.endswith(")"))


LIBRARIES = {"MPI.Win": MpiWin, "rmaext": Rmaext}
CASES = {case.__name__: case for case in (busy, updates, offset, killed)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run cases, on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("cases", choices=CASES, nargs="+")
    parser.add_argument("--to", default="/dev/stdout", metavar="FILE")
    args = parser.parse_args(argv)
    comm = MPI.COMM_WORLD

    def tell(case: str, **facts: Any) -> None:
        line = json.dumps({"case": case, "rank": comm.rank, **facts})
        with open(args.to, "a") as file:
            file.write(line + "\n")

    for case in args.cases:
        CASES[case](comm, LIBRARIES[args.library], partial(tell, case))


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
