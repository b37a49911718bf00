# SPDX-License-Identifier: BSD-3-Clause
"""A request of many copies and some long writes: slow_copies.py HOW, on three ranks.

The copies, to the neighbour by system calls, take longer than a call may; the writes go to
another node. `plain` waits; with `signal` a handler raises amid the copies.
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

LONG, SMALL = 1 << 20, 400_000
if MPI.COMM_WORLD.rank == 2:
    os.environ["RMAEXT_NODE"] = "elsewhere"

import rmaext  # noqa: E402 (which reads that)

comm = MPI.COMM_WORLD
win = rmaext.Window(comm, np.zeros(4 * LONG, "u1"), timeout=40)
win.fence()
if comm.rank == 0:
    assert [win.route(rank) for rank in (1, 2)] == ["cma", "fabric"]
    ranks = np.repeat([1, 2], [SMALL, 4])
    offsets = np.concatenate([np.arange(SMALL) * 10, np.arange(4) * LONG])
    counts = np.repeat([1, LONG], [SMALL, 4])
    values = np.ones(SMALL + 4 * LONG, "u1")

    def handler(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    if sys.argv[1] == "signal":
        signal.setitimer(signal.ITIMER_REAL, 0.12)
    start = time.monotonic()
    try:
        win.rput_ranges(ranks, offsets, counts, values).wait()
        print("done")
    except KeyboardInterrupt:
        print("interrupted")
    print(f"{time.monotonic() - start:.2f} s")
    del values
    churn = [np.full(LONG, 2, "u1") for _ in range(20)]  # where the values were
    win.flush()
win.fence()
if comm.rank == 2:
    found = np.unique(win.local).tolist()
    assert found == [1] if sys.argv[1] == "plain" else set(found) <= {0, 1}, found
win.close()
