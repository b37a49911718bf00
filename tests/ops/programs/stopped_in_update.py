# SPDX-License-Identifier: BSD-3-Clause
"""A rank is stopped while it updates another's memory in bulk; a third reaches that by network.

    mpiexec -n 3 python stopped_in_update.py

Rank 1 updates rank 0's memory, on whose node it is; rank 2, on another one, stops it now and
then. Rank 2's updates wait meanwhile, up to the time limit, and are done once when rank 1 runs
on; all else goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback

import numpy as np
from mpi4py import MPI
from support.processes import stopped

comm = MPI.COMM_WORLD
os.environ["RMAEXT_NODE"] = "far" if comm.rank == 2 else "near"

import rmaext  # noqa: E402

TARGET, NEAR, FAR = range(3)
COUNT, FEW = 1 << 19, 3000  # elements of bulk updates; of rank 2's
SINGLE, PLAIN = COUNT, COUNT + 1  # elements of their own
LIMIT, HITS = 1.0, 3


def near(win: rmaext.Window) -> int:
    """Update in bulk until rank 2 has seen enough; return how often."""
    ones, times = np.ones(COUNT, "i8"), 0
    while not comm.iprobe(FAR):
        win.accumulate(ones, TARGET)
        times += 1
    comm.recv(source=FAR)
    win.flush(TARGET)
    return times


def flush(win: rmaext.Window) -> None:
    """All that waited is done, if later than the time limit."""
    for _ in range(20):
        with contextlib.suppress(rmaext.RmaTimeout):
            return win.flush(TARGET)
    raise TimeoutError("what waited for a stopped rank is not done when that runs on")


def far(win: rmaext.Window, other: rmaext.Window, pid: int) -> int:
    """Stop it until that was in the middle often enough; return how often it was stopped."""
    times = hits = 0
    hasty = win.dup(timeout=LIMIT)
    end = time.monotonic() + 30
    while hits < HITS:
        assert time.monotonic() < end, f"{hits} of {times} stops in a bulk update"
        with stopped(pid):
            try:
                hasty.fetch_add(1, TARGET, SINGLE)
            except rmaext.RmaTimeout:
                hits += 1
            times += 1
            assert other.fetch_add(1, TARGET, 1) == times - 1
            win.accumulate(np.ones(FEW, "i8"), TARGET)  # later updates of this rank wait behind it
            other.put(times, TARGET, 0)
            other.flush(TARGET)
            assert other.get(TARGET, 0, 2).tolist() == [times, times]
            assert win.get(TARGET, PLAIN, 1)[0] == 7
        flush(hasty)
        assert win.get(TARGET, SINGLE, 1)[0] == times
    comm.send(None, NEAR)
    return times


def main() -> None:
    pid = comm.bcast(os.getpid(), NEAR)
    with (
        rmaext.Window(comm, rmaext.zeros(COUNT + 2, "i8"), timeout=20) as win,
        rmaext.Window(comm, rmaext.zeros(2, "i8"), timeout=20) as other,
    ):
        win.local[PLAIN] = 7
        win.fence()
        assert comm.rank == TARGET or win.route(TARGET) == ("direct", "fabric")[comm.rank - NEAR]
        times = (lambda: 0, lambda: near(win), lambda: far(win, other, pid))[comm.rank]()
        _, bulks, fews = comm.allgather(times)
        win.fence()
        if comm.rank == TARGET:
            assert (win.local[:FEW] == bulks + fews).all()
            assert (win.local[FEW:SINGLE] == bulks).all()
            assert win.local[SINGLE:].tolist() == [fews, 7]
        win.fence()
    os.write(1, f"rank {comm.rank}: {times} times, OK\n".encode())


try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    comm.Abort(1)
