# SPDX-License-Identifier: BSD-3-Clause
"""Draw how examples/diffusion.py comes to its answer beside sweeps that wait for messages."""

import sys
import time
from itertools import count

import diffusion
import numpy as np
from mpi4py import MPI

SLOW, PAUSE = 1, 1e-3  # a rank, and the seconds that each of its sweeps takes longer
comm = MPI.COMM_WORLD
rows = slice(comm.rank * diffusion.ROWS, (comm.rank + 1) * diffusion.ROWS)
want = diffusion.direct(comm.size)


def watched():
    """Return a pace, and the list of times and errors that it makes."""
    seen = []
    comm.Barrier()
    begin = MPI.Wtime()

    def pace(u):
        if comm.rank == SLOW:
            time.sleep(PAUSE)
        seen.append((MPI.Wtime() - begin, abs(u - want[rows]).max()))

    return pace, seen


def with_messages(pace):
    """Solve by sweeps in step. Collective."""
    source, u = diffusion.sources(comm.size)[rows], np.zeros((diffusion.ROWS, diffusion.COLUMNS))
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for sweeps in count(1):
        above = comm.sendrecv(u[-1:], right, source=left)
        below = comm.sendrecv(u[:1], left, source=right)
        before, u = u, diffusion.sweep(above, u, below, source)
        pace(u)
        if comm.allreduce(abs(u - before).max(), MPI.MAX) < diffusion.TOLERANCE:
            return np.vstack(comm.allgather(u)), sweeps


solvers = {"Published": lambda pace: diffusion.solve(comm, pace), "messages": with_messages}
runs = {}
for name, solver in solvers.items():
    pace, seen = watched()
    answer, sweeps = solver(pace)
    if not np.allclose(answer, want, rtol=0, atol=1e-8):
        sys.exit(f"diffusion: WRONG with {name}")
    runs[name] = comm.gather((sweeps, seen))
if comm.rank == 0:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 4), layout="constrained", width_ratios=[2, 3]
    )
    figure.colorbar(left.imshow(answer), label="concentration")
    for rank in range(comm.size):
        left.text(0, (rank + 0.5) * diffusion.ROWS, f"rank {rank}", color="w", va="center")
        left.axhline(rank * diffusion.ROWS - 0.5, color="w", lw=0.5, ls="--")
    for (name, ranks), style in zip(runs.items(), ("-", ":"), strict=True):
        for rank, (_, seen) in enumerate(ranks):
            label = f"{name}, rank {rank}" + ", slow" * (rank == SLOW)
            right.semilogy(*zip(*seen, strict=True), style, color=f"C{rank}", label=label)
        print(f"{name}: {', '.join(str(sweeps) for sweeps, _ in ranks)} sweeps of ranks 0, 1, ...")
    right.set(xlabel="seconds", ylabel="largest error in a rank's rows")
    right.legend(fontsize="x-small")
    figure.savefig(sys.argv[1], dpi=120)
