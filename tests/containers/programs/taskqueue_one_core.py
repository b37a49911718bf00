# SPDX-License-Identifier: BSD-3-Clause
"""Four ranks on one core: those without tasks leave it to those that have some.

mpiexec -n 4 python taskqueue_one_core.py
"""

from __future__ import annotations

import os
import time

import numpy as np
from mpi4py import MPI

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

from rmaext.containers import TaskQueue  # noqa: E402

comm = MPI.COMM_WORLD
with TaskQueue(comm, "i8", 3000) as queue:
    got = 0
    for turn in range(3):
        if comm.rank == turn:
            queue.put(np.arange(3000))
        for task in queue:
            got += 1
            if turn == 2 and task < 100:
                queue.put(task + 10_000)
    assert comm.allreduce(got) == 3 * 3000 + 100
    # One rank has work for a second that cannot be shared.
    if not comm.rank:
        queue.put(0)
    comm.Barrier()
    start, used, worked = time.monotonic(), time.process_time(), 0
    for _ in queue:
        worked += 1
        while time.process_time() - used < 1.0:
            pass
    took, used = time.monotonic() - start, time.process_time() - used  # MPI's waits are busy
    took = comm.allreduce(took, MPI.MAX)
    assert comm.allreduce(worked) == 1
    assert worked or used < 0.25 * took, f"waiting took {used:.2f} s of {took:.2f}"
os.write(1, f"rank {comm.rank}: OK\n".encode())
