# SPDX-License-Identifier: BSD-3-Clause
"""The last rank is killed while it updates another's memory in bulk; the others go on.

    mpiexec -n 3 python killed_in_update.py arena | own | nodes

With "own" the memory is NumPy's, with "nodes" each rank pretends to be on a node of its
own. Needs a launcher that lets the survivors run; they leave by os._exit.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
kind = sys.argv[1]
if kind == "nodes":
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

from support.processes import alive  # noqa: E402

import rmaext  # noqa: E402

VICTIM, TARGET = comm.size - 1, 0
COUNT = 1 << 19  # 4 MiB
SINGLES = 2000
LONGEST = 5.0  # seconds that an operation may wait for the dead


def victim(win: rmaext.Window) -> None:
    """Update in bulk for ever; some other process ends this one, in the middle of one mostly."""
    ones = np.ones(COUNT, "i8")
    win.accumulate(ones, TARGET)
    win.flush(TARGET)
    command = f"sleep {0.3 + os.getpid() % 97 / 300}; kill -9 {os.getpid()}"
    subprocess.Popen(["sh", "-c", command])
    while True:
        win.accumulate(ones, TARGET)


def survivor(win: rmaext.Window, pid: int) -> None:
    """Singles before and after, then bulk updates: all are there, and none waits for long."""
    ones, slowest, done = np.ones(COUNT, "i8"), 0.0, 0
    while done < SINGLES or alive(pid):
        start = time.monotonic()
        win.fetch_add(1 << 40, TARGET, 5)
        win.accumulate(1 << 40, TARGET, 6)
        done += 1
        slowest = max(slowest, time.monotonic() - start)
    win.fetch_add(1 << 40, TARGET, 5)
    win.accumulate(1 << 40, TARGET, 6)
    done += 1
    for _ in range(3):
        start = time.monotonic()
        win.accumulate(ones, TARGET)
        win.flush(TARGET)
        slowest = max(slowest, time.monotonic() - start)
    totals = survivors.allgather(done)
    survivors.Barrier()
    if comm.rank == TARGET:
        own = 3 * survivors.size
        # the victim's last may be there in part: a prefix, in the order of its pieces
        his = (win.local & ((1 << 40) - 1)) - own
        assert his.min() >= 1, his.min()
        assert his.max() - his.min() <= 1, (his.min(), his.max())
        singles = win.local >> 40
        assert singles[5] == singles[6] == sum(totals), (singles[:8], totals)
        assert singles.sum() == 2 * sum(totals)
    assert slowest < LONGEST, slowest
    os.write(1, f"rank {comm.rank}, {kind}: slowest {slowest:.2f} s, OK\n".encode())


survivors = comm.Split(comm.rank != VICTIM, comm.rank)
faulthandler.dump_traceback_later(25, exit=True)
try:
    signal.alarm(80)
    make = np.zeros if kind == "own" else rmaext.zeros
    window = rmaext.Window(comm, make(COUNT if comm.rank == TARGET else 1, "i8"))
    pids = comm.allgather(os.getpid())
    for rank in range(comm.size):
        window.get(rank, 0, 1)
    comm.Barrier()
    if comm.rank == VICTIM:
        victim(window)
    else:
        survivor(window, pids[VICTIM])
    survivors.Barrier()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
