# SPDX-License-Identifier: BSD-3-Clause
"""A heat equation and a task farm by shared memory, and over libfabric as between machines.

    mpiexec -n 4 python examples/both_routes.py

Their answers are compared with NumPy's on one process. Exit status 0 if all are right, 1 on
every rank if not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import heat
import taskfarm
from mpi4py import MPI

import rmaext

ROOT = 0


def run_both(comm: Any, args: argparse.Namespace) -> bool:
    """Run both programs, and print routes, times and verdicts in a line. Collective."""
    start = time.perf_counter()
    plate = heat.solve(comm, args.rows, args.cols, args.steps)
    seconds = time.perf_counter() - start
    farm = taskfarm.run(comm, args.tasks, args.cols)
    heat_right = heat.check(comm, plate, args.rows, args.cols, args.steps)
    farm_right = taskfarm.check(comm, farm, args.tasks, args.cols)
    with rmaext.Window.allocate(comm, 1) as win:
        fabric = win.fabric
        means = f"{fabric.provider}, libfabric {fabric.version}" if fabric else "shared memory"
    rows = comm.gather((means, seconds, farm.seconds), ROOT)
    if comm.rank == ROOT:
        by, *times = zip(*rows, strict=True)
        rights = heat_right, farm_right
        texts = [
            f"{name} {1e3 * max(column):,.0f} ms, {'right' if right else 'WRONG'}"
            for name, column, right in zip(("heat", "task farm"), times, rights, strict=True)
        ]
        print(f"  {' and '.join(dict.fromkeys(by))}: {'; '.join(texts)}")
        sys.stdout.flush()
    return heat_right and farm_right


def main(comm: Any = MPI.COMM_WORLD, argv: Sequence[str] | None = None) -> int:
    """Run both programs by each route. Returns the exit status, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=192, help="rows of the plate")
    parser.add_argument("--cols", type=int, default=256, help="columns of the plate")
    parser.add_argument("--steps", type=int, default=200, help="time steps")
    parser.add_argument("--tasks", type=int, default=128, help="tasks in the farm")
    args = parser.parse_args(argv)
    good = run_both(comm, args)  # by the routes that windows take by themselves
    # The route is settled with a communicator's first window, so this takes another one.
    os.environ["RMAEXT_ROUTE"] = "fabric"
    good = run_both(comm.Dup(), args) and good
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
