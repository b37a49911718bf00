# SPDX-License-Identifier: BSD-3-Clause
"""Heat conduction in a plate whose blocks lie on GPUs: a halo exchange of CuPy arrays.

    mpirun -n 4 python examples/gpu_heat.py

Each rank has its rows, and one row of each neighbour around them, as a CuPy array that is also a
window's memory. After a step it puts its outermost rows into its neighbours' blocks: a put waits
for the kernels of its array's stream, and a fence is enough for the next kernel to find all of it.
The answer is compared with a serial NumPy run. It has never run on a GPU; tests run it over a
simulation of one.
"""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np
from mpi4py import MPI

import rmaext

ROWS, COLS, STEPS, DIFFUSION = 30, 40, 20, 0.2


def plate() -> Any:
    """Return the first temperatures; the outermost lines stay as they are."""
    field = np.zeros((ROWS + 2, COLS))
    field[10:20, 15:30], field[:, 0] = 100.0, 50.0
    return field


def step(old: Any, new: Any) -> None:
    """Go on by one step, for all points that have four neighbours."""
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    new[1:-1, 1:-1] = old[1:-1, 1:-1] + DIFFUSION * (around - 4.0 * old[1:-1, 1:-1])


def serial() -> Any:
    """Do the same in one process with NumPy."""
    levels = [plate(), plate()]
    for turn in range(STEPS):
        step(levels[turn % 2], levels[1 - turn % 2])
    return levels[STEPS % 2][1:-1]


def solve(comm: MPI.Comm) -> Any:
    """Return this rank's rows after all steps, and which they are. Collective."""
    most = -(-ROWS // comm.size)
    ends = [min(most * rank, ROWS) for rank in range(comm.size + 1)]  # the last may have none
    first, last = ends[comm.rank : comm.rank + 2]
    up = comm.rank - 1 if 0 < first < last else MPI.PROC_NULL
    down = comm.rank + 1 if last < ROWS else MPI.PROC_NULL

    def at(rank: int, level: int, row: int) -> int:
        rows = ends[rank + 1] - ends[rank] + 2 if rank >= 0 else 0
        return (level * rows + row % rows) * COLS if rows else 0

    cp.zeros(1)  # makes the context, which windows do not
    shape, device = (2, last - first + 2, COLS), f"cuda:{cp.cuda.runtime.getDevice()}"
    with rmaext.Window.allocate(comm, shape, float, device=device, proc_null=True) as win:
        block = win.local  # of CuPy
        for level in range(2):
            block[level] = cp.asarray(plate()[first : last + 2])
        cp.cuda.get_current_stream().synchronize()  # before others put there
        win.fence()
        for turn in range(STEPS):
            new = 1 - turn % 2
            step(block[1 - new], block[new])
            win.put(block[new, 1], up, at(up, new, -1))
            win.put(block[new, last - first], down, at(down, new, 0))
            win.fence()
        return cp.asnumpy(block[STEPS % 2, 1:-1]), slice(first, last)


if __name__ == "__main__":
    rows, where = solve(MPI.COMM_WORLD)
    good = MPI.COMM_WORLD.allreduce(np.allclose(rows, serial()[where]), MPI.LAND)
    if MPI.COMM_WORLD.rank == 0:
        print(f"gpu_heat: {'OK' if good else 'WRONG'}")
    raise SystemExit(not good)
