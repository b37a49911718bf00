# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies after room was set aside at it and at others: theirs is given back.

mpiexec -n 3 python dict_room.py

It needs a launcher that lets the survivors run; they leave by os._exit.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.containers import Dict
from rmaext.containers._dict.memory import ROOM

comm = MPI.COMM_WORLD
VICTIM = comm.size - 1

table = Dict(comm, "i8", "i8", 300, timeout=10)
pids = comm.allgather(os.getpid())
if comm.rank == VICTIM:
    time.sleep(600)
if comm.rank == 0:
    entries = table._slots
    go_on = entries._insert_some

    def late(*arguments: object) -> object:
        os.kill(pids[VICTIM], signal.SIGKILL)
        while not table._memory.is_gone(VICTIM):
            time.sleep(0.01)
        return go_on(*arguments)

    entries._insert_some = late
    try:
        table.set_many(np.arange(200), 1)
    except rmaext.PeerLostError:
        pass
    else:
        raise AssertionError("nobody was lost")
    entries._insert_some = go_on
    made, limit = 0, table._memory.limit
    start = time.monotonic()
    try:
        for key in range(1000, 100_000):
            if table.rank_of(key) == 0:
                table[key] = 1
                made += 1
    except rmaext.CapacityError:
        pass
    here = len(table.local_items())
    assert (here, time.monotonic() - start < 5) == (limit, True), (here, made, limit)
    comm.send(None, 1)
else:
    comm.recv(source=0)
    assert table._memory.head.local[ROOM + table._memory.rank] >> 34 == 0
    table[next(key for key in range(1000) if table.rank_of(key) == 1)] = 5
print("OK", flush=True)
os._exit(0)
