# SPDX-License-Identifier: BSD-3-Clause
"""Updates over the route cma: rank 0 says once that they are messages."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

import rmaext

comm = MPI.COMM_WORLD
peer = (comm.rank + 1) % comm.size
with rmaext.Window.allocate(comm, 4) as fast, rmaext.Window(comm, np.zeros(4)) as slow:
    fast.accumulate(1.0, peer)
    fast.fetch_add(1.0, peer)
    fast.fence()
    comm.Barrier()
    if comm.rank == 0:
        print("before", flush=True)
    assert slow.route(peer) == "cma"
    for _ in range(3):
        slow.accumulate(1.0, peer)
        slow.fetch_add(1.0, peer, 1)
    slow.fence()
    assert slow.local[:2].tolist() == [3, 3]
