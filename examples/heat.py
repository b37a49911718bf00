# SPDX-License-Identifier: BSD-3-Clause
"""Heat conduction in a plate, split by rows over the ranks of a communicator.

    mpirun -n 4 python examples/heat.py

Each rank keeps its rows and one halo row above and below. After a step it
*puts* its outermost rows into its neighbours' halos. The answer is compared,
bit for bit, with a serial NumPy run.
"""

from __future__ import annotations

import sys
import time
import traceback
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext

Field = NDArray[np.float64]
ROOT = 0
DIFFUSION = 0.2  # alpha * dt / dx**2, stable below 0.25


class Result(NamedTuple):
    """Outcome of `solve` on one rank; times in seconds, summed over steps."""

    field: Field | None  # the whole plate on ROOT, None elsewhere
    routes: dict[int, str]  # neighbour -> route
    compute: float  # in NumPy
    exchange: float  # in put and flush
    wait: float  # in fence


def plate(rows: int, cols: int) -> Field:
    """Initial temperatures: (rows + 2, cols), the outermost lines are fixed.

    Warm left edge, cold right, top and bottom edge, two hot discs.
    """
    y, x = np.ogrid[0 : rows + 2, 0:cols]
    field = np.zeros((rows + 2, cols))
    for cy, cx, radius in ((0.3, 0.4, 0.15), (0.7, 0.6, 0.2)):
        distance2 = (y - cy * rows) ** 2 + (x - cx * cols) ** 2
        field[distance2 < (radius * min(rows, cols)) ** 2] = 100.0
    field[:, 0] = 50.0
    field[0] = field[-1] = 0.0
    return field


def step(old: Field, new: Field) -> None:
    """One explicit Euler step for all points that have four neighbours."""
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    centre = old[1:-1, 1:-1]
    new[1:-1, 1:-1] = centre + DIFFUSION * (around - 4.0 * centre)


def serial(rows: int, cols: int, steps: int) -> Field:
    """The same computation in one process, without rmaext."""
    old = plate(rows, cols)
    new = old.copy()
    for _ in range(steps):
        step(old, new)
        old, new = new, old
    return old[1:-1]


def split(rows: int, size: int) -> list[tuple[int, int]]:
    """First and last + 1 row of each rank; ranks in excess get none."""
    each, extra = divmod(rows, size)
    ends = [(r + 1) * each + min(r + 1, extra) for r in range(size)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def solve(comm: Any, rows: int = 192, cols: int = 256, steps: int = 200) -> Result:
    """Run `steps` steps on all ranks of `comm`. Collective."""
    parts = split(rows, comm.size)
    counts = [last - first for first, last in parts]
    first, last = parts[comm.rank]
    mine = counts[comm.rank]
    up = down = MPI.PROC_NULL  # nobody
    if mine and comm.rank > 0:
        up = comm.rank - 1
    if mine and comm.rank + 1 < comm.size and counts[comm.rank + 1]:
        down = comm.rank + 1

    def at(rank: int, level: int, row: int) -> int:
        """Offset of a row in the window of `rank`."""
        return (level * (counts[rank] + 2) + row) * cols

    compute = exchange = wait = 0.0
    # Two time levels, each with its halos: while this rank still reads one, a
    # faster neighbour writes into the other. Nobody can be two steps ahead,
    # because of the fence in each step.
    with rmaext.Window.allocate(comm, (2, mine + 2, cols), np.float64) as win:
        win.local[:] = plate(rows, cols)[first : last + 2]
        old, new = 0, 1
        win.fence()  # no put may come before this initialisation
        for _ in range(steps):
            t0 = time.perf_counter()
            step(win.local[old], win.local[new])
            t1 = time.perf_counter()
            if up != MPI.PROC_NULL:
                win.put(win.local[new, 1], up, at(up, new, counts[up] + 1))
            if down != MPI.PROC_NULL:
                win.put(win.local[new, mine], down, at(down, new, 0))
            win.flush()  # my rows are in the neighbours' halos
            t2 = time.perf_counter()
            win.fence()  # and theirs are in mine
            t3 = time.perf_counter()
            compute, exchange, wait = compute + t1 - t0, exchange + t2 - t1, wait + t3 - t2
            old, new = new, old

        routes = {r: win.route(r) for r in (up, down) if r != MPI.PROC_NULL}
        field = None
        if comm.rank == ROOT:
            field = np.empty((rows, cols))
            for rank, (a, b) in enumerate(parts):
                if a < b:
                    win.get(rank, at(rank, old, 1), out=field[a:b])
        win.fence()
    return Result(field, routes, compute, exchange, wait)


def check(comm: Any, result: Result, rows: int = 192, cols: int = 256, steps: int = 200) -> bool:
    """Whether ROOT's field equals the serial one exactly. Collective."""
    good = None
    if comm.rank == ROOT:
        good = result.field is not None and np.array_equal(result.field, serial(rows, cols, steps))
    return bool(comm.bcast(good, ROOT))


def main(comm: Any = MPI.COMM_WORLD) -> int:
    """Solve, check and report. Returns the exit status, the same on each rank."""
    result = solve(comm)
    good = check(comm, result)
    if comm.rank == ROOT:
        print(f"heat: {'OK' if good else 'WRONG'}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        status = 1
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
