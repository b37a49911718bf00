# SPDX-License-Identifier: BSD-3-Clause
"""Random 8-byte gets by all ranks at once, more ranks than cores.

    RMAEXT_ROUTE=fabric mpiexec -n 8 python benchmarks/oversubscribed.py
    MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo \
        mpiexec -n 8 python benchmarks/oversubscribed.py --mpi
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from mpi4py import MPI

SIZE = 1024


def measure(win: Any, comm: MPI.Comm, mpi: bool, seconds: float) -> list[float]:
    """Get words from random other ranks; return the microseconds of each."""
    rng = np.random.default_rng(comm.rank)
    word = np.zeros(1, np.int64)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rank = (comm.rank + 1 + int(rng.integers(comm.size - 1))) % comm.size
        place = int(rng.integers(SIZE))
        start = time.perf_counter()
        if mpi:
            win.Get(word, rank, place)
            win.Flush(rank)
        else:
            win.get(rank, place, out=word)
        times.append((time.perf_counter() - start) * 1e6)
        if word[0] != rank * SIZE + place:
            raise RuntimeError(f"rank {rank}, place {place}: got {word[0]}")
    return times


def main() -> None:
    """Measure and print one line. Collective over MPI.COMM_WORLD."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mpi", action="store_true", help="MPI.Win instead of rmaext")
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    memory = np.arange(SIZE) + comm.rank * SIZE
    if args.mpi:
        win: Any = MPI.Win.Create(memory, 8, comm=comm)
        win.Lock_all()
        for rank in range(comm.size):  # connect
            win.Get(np.zeros(1, np.int64), rank, 0)
        win.Flush_all()
        comm.Barrier()
        times = measure(win, comm, True, args.seconds)
        win.Unlock_all()
        win.Free()
    else:
        import rmaext

        with rmaext.Window(comm, memory) as win:
            win.connect()
            win.fence()
            times = measure(win, comm, False, args.seconds)
    everybody = comm.gather(times)
    if everybody is not None:
        all_times = np.concatenate(everybody)
        rate = len(all_times) / args.seconds / 1e3
        middle, late = np.percentile(all_times, [50, 99])
        print(f"{rate:.2f} k/s, median {middle:.0f} us, p99 {late:.0f} us")


if __name__ == "__main__":
    main()
