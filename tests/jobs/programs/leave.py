# SPDX-License-Identifier: BSD-3-Clause
"""The last rank leaves by an exception, into MPI_Finalize; the others wait in fence.

mpiexec -n 3 python leave.py [nodes]
"""

from __future__ import annotations

import os
import sys
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402

with rmaext.Window.allocate(comm, 4) as win:
    win.put(1.0, (comm.rank + 1) % comm.size)
    win.fence()
    if comm.rank == comm.size - 1:
        raise ZeroDivisionError("this rank leaves")
    start = time.monotonic()
    try:
        win.fence()
    except rmaext.SyncError as exc:
        text = f"rank {comm.rank}: SyncError: {exc}"
        if time.monotonic() - start < 8:
            print(text, flush=True)
        # The launcher ends the job when the first of them has raised: all say it before.
        for other in range(comm.size - 1):
            comm.sendrecv(None, other, source=other)
        raise
