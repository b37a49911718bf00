# SPDX-License-Identifier: BSD-3-Clause
"""What RMAEXT_MPI_PROGRESS=1 gains: a message of 64 MiB that MPI carries while both ranks compute.

    python benchmarks/overlap.py

Jobs of two ranks, with and without, in turns. In each both ranks begin the message,
compute for about three times as long as it takes, and wait for it. The number is how much of the
message's time the computation hid: 1 if all of it, 0 if none.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.bench import run
from rmaext.bench.job import main
from rmaext.bench.measure import Job

TURNS, REPEATS = 6, 5


def overlap(job: Job) -> None:
    """Measure it on the ranks of a job; "hidden" among the facts is the number."""
    comm = job.comm
    rmaext.Window.allocate(comm, 1)  # who has none needs no progress of rmaext's
    data = np.ones(8 << 20)
    square = np.ones((150, 150))

    def begin() -> MPI.Request:
        return comm.Irecv(data, 0) if comm.rank else comm.Isend(data, 1)

    def compute(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            square @ square

    def timed(seconds: float) -> float:
        comm.Barrier()
        start = time.perf_counter()
        request = begin()
        compute(seconds)
        request.Wait()
        return comm.allreduce(time.perf_counter() - start, MPI.MAX)

    timed(0)
    alone = statistics.median(timed(0) for _ in range(REPEATS))
    work = 3 * alone
    both = statistics.median(timed(work) for _ in range(REPEATS))
    job.facts["hidden"] = 1 - (both - work) / alone


def jobs() -> None:
    """Run the jobs, and print what they found."""
    mpi, job = run.mpi_in_use(), run.Job("overlap", program=(__file__,))
    hidden: dict[str, list[float]] = {"0": [], "1": []}
    for turn in range(TURNS):
        for setting in ("01", "10")[turn % 2]:
            os.environ["RMAEXT_MPI_PROGRESS"] = setting
            hidden[setting].append(run.launch(mpi, job, 60)["facts"]["hidden"])
    for setting, values in hidden.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"RMAEXT_MPI_PROGRESS={setting}: {middle:.2f} hidden ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main({"overlap": overlap}) if sys.argv[1:] else jobs()
