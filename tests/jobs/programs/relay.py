# SPDX-License-Identifier: BSD-3-Clause
"""After put and flush, a third rank that is told so reads the new data.

RMAEXT_ROUTE=fabric mpiexec -n 3 python relay.py ROUNDS
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI

import rmaext

SIZES = (1, 1, 1, 64, 1, 1, 512, 1, 1, 8192)  # elements; the last is not copied
WRITER, OWNER, READER = range(3)

comm = MPI.COMM_WORLD
signal = np.zeros(1, "i8")
stale = []
with rmaext.Window.allocate(comm, max(SIZES), "i8") as win:
    assert win.route(OWNER) == "fabric"
    for i in range(1, int(sys.argv[1]) + 1):
        size = SIZES[i % len(SIZES)]
        if comm.rank == WRITER:
            win.put(np.full(size, i), OWNER)
            win.flush(OWNER)
            comm.Send(signal, READER)
            comm.Recv(signal, READER)
        elif comm.rank == READER:
            comm.Recv(signal, WRITER)
            seen = win.get(OWNER, 0, size)
            if not (seen == i).all():
                stale.append((i, seen[seen != i][:3].tolist()))
            comm.Send(signal, WRITER)
    win.fence()  # the owner sleeps here
    if comm.rank == READER:
        assert not stale, f"{len(stale)} rounds with old data: {stale[:10]}"
        assert win.fabric is not None
        print(f"{i} rounds, libfabric {win.fabric.version}: OK")
