# SPDX-License-Identifier: BSD-3-Clause
"""Dynamic load balancing: ranks draw tasks from one shared counter.

    mpirun -n 4 python examples/taskfarm.py

A task is one row of the Mandelbrot set, so that some take much longer than
others. There is no master: a rank takes the next number by `fetch_add` on a
counter in rank 0's memory, computes, and *puts* its row into rank 0's image.
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

Image = NDArray[np.int32]
ROOT = 0
LIMIT = 250  # iterations


class Result(NamedTuple):
    """Outcome of `run` on one rank; times in seconds."""

    image: Image | None  # the whole image on ROOT, None elsewhere
    done: NDArray[np.int64] | None  # on ROOT: how often each task was done
    tasks: list[int]  # those that this rank did
    seconds: float
    drawing: float  # of these, in fetch_add on the counter


def escape(x: NDArray[np.float64], y: NDArray[np.float64]) -> Image:
    """Iterations that each point x + iy stays within radius 2.

    In real arithmetic: NumPy's complex product may round differently from
    one array length to another.
    """
    zx = np.zeros(np.broadcast_shapes(x.shape, y.shape))
    zy = zx.copy()
    count = np.zeros(zx.shape, np.int32)
    for _ in range(LIMIT):
        xx, yy = zx * zx, zy * zy
        inside = xx + yy <= 4.0
        count += inside
        zx, zy = np.where(inside, xx - yy + x, zx), np.where(inside, 2.0 * zx * zy + y, zy)
    return count


def axes(rows: int, cols: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The coordinates of the points: x of each column, y of each row."""
    return np.linspace(-2.0, 0.5, cols), np.linspace(-1.1, 1.1, rows)


def serial(rows: int, cols: int) -> Image:
    """The whole image in one process, without rmaext."""
    x, y = axes(rows, cols)
    return escape(x, y[:, np.newaxis])


def run(comm: Any, rows: int = 128, cols: int = 256) -> Result:
    """Compute `rows` tasks on all ranks of `comm`. Collective."""
    x, y = axes(rows, cols)
    # On ROOT: bag[0] is the next task, bag[1 + i] counts completions of task i.
    held = rows if comm.rank == ROOT else 0
    with (
        rmaext.Window.allocate(comm, 1 + rows if held else 0, np.int64) as bag,
        rmaext.Window.allocate(comm, (held, cols), np.int32) as image,
    ):
        tasks: list[int] = []
        drawing = 0.0
        image.fence()
        start = time.perf_counter()
        while True:
            t0 = time.perf_counter()
            task = int(bag.fetch_add(1, ROOT))
            drawing += time.perf_counter() - t0
            if task >= rows:
                break
            image.put(escape(x, y[task : task + 1]), ROOT, task * cols)
            bag.fetch_add(1, ROOT, 1 + task)
            tasks.append(task)
        image.fence()  # every rank's rows have arrived
        seconds = time.perf_counter() - start
        bag.fence()
        whole = image.local.copy() if comm.rank == ROOT else None
        done = bag.local[1:].copy() if comm.rank == ROOT else None
    return Result(whole, done, tasks, seconds, drawing)


def check(comm: Any, result: Result, rows: int = 128, cols: int = 256) -> bool:
    """Whether each task was done exactly once and the image is right. Collective."""
    drawn = comm.gather(result.tasks, ROOT)
    good = None
    if comm.rank == ROOT:
        good = (
            sorted(task for tasks in drawn for task in tasks) == list(range(rows))
            and result.done is not None
            and bool(np.all(result.done == 1))
            and result.image is not None
            and np.array_equal(result.image, serial(rows, cols))
        )
    return bool(comm.bcast(good, ROOT))


def main(comm: Any = MPI.COMM_WORLD) -> int:
    """Compute, check and report. Returns the exit status, the same on each rank."""
    result = run(comm)
    good = check(comm, result)
    if comm.rank == ROOT:
        print(f"task farm: {'OK' if good else 'WRONG'}")
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
