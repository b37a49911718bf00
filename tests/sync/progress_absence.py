# SPDX-License-Identifier: BSD-3-Clause
"""How long the first operation into a target's absence takes.

    RMAEXT_ROUTE=fabric mpiexec -n 2 python progress_absence.py [--absences 20] [--json FILE]

Without RMAEXT_ROUTE the route is direct, with --own (an array of NumPy's) cma.

Rank 1 is absent for half a second: asleep, in a NumPy loop, or holding the GIL
in C. 50 ms into it rank 0 issues one operation, and only one, since in a later
one a stall would not show. The exit status is 0 if, in each row, at least 19
of 20 operations returned within 20 ms.

`absence` and OPERATIONS are also what test_progress.py uses.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext

LARGE = np.arange(1 << 17, dtype="i8")  # 1 MiB
COUNTER, SWAPPED, SMALL = len(LARGE), len(LARGE) + 1, len(LARGE) + 2
SIZE = len(LARGE) + 3


def sleeping(seconds: float) -> None:
    time.sleep(seconds)


def computing(seconds: float) -> None:
    end = time.monotonic() + seconds
    values = np.linspace(0, 1, 100_000)
    while time.monotonic() < end:
        values = np.cos(values)


def holding_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


ABSENCES: dict[str, Callable[[float], None]] = {
    "sleep": sleeping,
    "NumPy": computing,
    "GIL in C": holding_gil,
}


def put(win: rmaext.Window, rank: int, i: int) -> None:
    win.put(np.int64(i), rank, SMALL)
    win.flush(rank)


def put_large(win: rmaext.Window, rank: int, i: int) -> None:
    win.put(LARGE, rank)
    win.flush(rank)


OPERATIONS: dict[str, Callable[[rmaext.Window, int, int], Any]] = {
    "get": lambda win, rank, i: win.get(rank, SMALL, 1),
    "put+flush": put,
    "fetch_add": lambda win, rank, i: win.fetch_add(1, rank, COUNTER),
    "compare_and_swap": lambda win, rank, i: win.compare_and_swap(i, i + 1, rank, SWAPPED),
    "put 1 MiB+flush": put_large,
}


def absence(
    win: rmaext.Window, kind: str, seconds: float, operation: Callable[[], Any]
) -> tuple[list[float], list[float]]:
    """Rank 1 is absent while rank 0 operates; return when, on the machine's one clock.

    Collective. Other ranks sleep, not to take the processors from these two.
    """
    comm = win.comm
    comm.Barrier()
    start = time.monotonic()
    if comm.rank == 1:
        ABSENCES[kind](seconds)
    elif comm.rank == 0:
        time.sleep(0.05)
        start = time.monotonic()
        operation()
    else:
        time.sleep(seconds)
    times = comm.allgather([start, time.monotonic()])
    return times[0], times[1]


def connect(win: rmaext.Window) -> None:
    """Make every connection ahead of time."""
    for rank in range(win.comm.size):
        win.get(rank, 0, 1)
    win.fence()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--absences", type=int, default=20, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.5, help="of an absence")
    parser.add_argument("--limit", type=float, default=20, metavar="MS")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--own", action="store_true", help="memory outside the arena")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.size < 2:
        parser.error("needs 2 ranks")
    need = math.ceil(0.95 * options.absences)
    rows = []
    make = np.zeros if options.own else rmaext.zeros
    with rmaext.Window(comm, make(SIZE, "i8")) as win:
        connect(win)
        if comm.rank == 0:
            where = f"libfabric {win.fabric.version}, {win.fabric.provider}" if win.fabric else ""
            print(f"route {win.route(1)} {where}; {MPI.Get_library_version().splitlines()[0]}")
            print(f"{'target':10}{'operation':18}{'median':>9}{'max ms':>9}   within", flush=True)
        for kind in ABSENCES:
            for name, operate in OPERATIONS.items():
                took = []
                for i in range(options.absences):
                    win.fence()
                    ours, _ = absence(
                        win, kind, options.seconds, lambda i=i, f=operate: f(win, 1, i)
                    )
                    took.append(1e3 * (ours[1] - ours[0]))
                within = sum(t <= options.limit for t in took)
                rows.append({"target": kind, "operation": name, "ms": took, "within": within})
                if comm.rank == 0:
                    median, most = np.median(took), max(took)
                    print(
                        f"{kind:10}{name:18}{median:9.3f}{most:9.3f}   {within}/{len(took)}"
                        + ("" if within >= need else "  FAILED"),
                        flush=True,
                    )
                    if options.json:
                        with open(options.json, "w") as file:
                            json.dump({"route": win.route(1), "rows": rows}, file)
                if comm.rank == 1:
                    win.local[SWAPPED] = 0
        win.fence()
    return int(any(row["within"] < need for row in rows))


if __name__ == "__main__":
    sys.exit(main())
