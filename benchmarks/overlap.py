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
import subprocess
import sys
import time
from pathlib import Path

TURNS, REPEATS = 6, 5


def one() -> None:
    """Be a rank of a job."""
    import numpy as np
    from mpi4py import MPI

    import rmaext

    comm = MPI.COMM_WORLD
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
    if not comm.rank:
        print(alone, 1 - (both - work) / alone)


def main() -> None:
    """Run the jobs."""
    command = [str(Path(sys.executable).with_name("mpiexec")), "-n", "2", sys.executable]
    hidden: dict[str, list[float]] = {"0": [], "1": []}
    for turn in range(TURNS):
        for setting in ("01", "10")[turn % 2]:
            env = dict(os.environ, RMAEXT_MPI_PROGRESS=setting, OPENBLAS_NUM_THREADS="1")
            done = subprocess.run(
                [*command, __file__, "rank"],
                env=env,
                timeout=60,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            hidden[setting].append(float(done.stdout.split()[1]))
    for setting, values in hidden.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"RMAEXT_MPI_PROGRESS={setting}: {middle:.2f} hidden ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    one() if sys.argv[1:] == ["rank"] else main()
