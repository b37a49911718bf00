# SPDX-License-Identifier: BSD-3-Clause
"""Rank 0 leaves by an exception while a stranger waits for its beacon's name; others fence.

mpiexec -n 2 python beacon.py NAMESPACE READY; a file READY is made once the stranger looks.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mpi4py import MPI
from support import netns

netns.enter(int(sys.argv[1]))

import rmaext  # noqa: E402

comm = MPI.COMM_WORLD
win = rmaext.Window.allocate(comm, 8)
win.fence()
end = time.monotonic() + 15
while not Path(sys.argv[2]).exists() and time.monotonic() < end:
    time.sleep(0.01)
comm.Barrier()
if comm.rank == 0:
    time.sleep(0.3)
    raise ZeroDivisionError("this rank leaves")
start = time.monotonic()
try:
    win.fence()
except rmaext.PeerLostError as exc:
    text = f"{type(exc).__name__} after {time.monotonic() - start:.1f} s: {exc}\n"
    os.write(1, text.encode())
    time.sleep(0.5)  # the launcher ends the job when the first rank has left
    os._exit(1)
