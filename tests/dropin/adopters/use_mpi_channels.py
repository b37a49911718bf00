# SPDX-License-Identifier: BSD-3-Clause
"""mpi-channels: tasks and results through queues in windows of rank 0."""

from __future__ import annotations

import numpy as np
from clock import REPEAT, check, took
from mpi4py import MPI
from mpi_channels import RemoteChannel

TASKS = 60
LONGEST = 16


def there_and_back() -> int:
    """Send tasks by the first queue and results by the second; return how many this rank did."""
    done = 0
    if comm.rank == 0:
        futures = [tasks.putf(vector) for vector in vectors]
        sums = {}
        while (pair := results.take()) is not None:
            sums[int(pair[0])] = pair[1]
        for future in futures:
            future.result()
        expected = {number: vector[1:].sum() for number, vector in enumerate(vectors)}
        check(sums == expected, f"{len(sums)} of {TASKS} tasks have results, or some are wrong")
    else:
        while (vector := tasks.take()) is not None:
            results.put((vector[0], vector[1:].sum()))
            done += 1
    return done


comm = MPI.COMM_WORLD
# The waits of a full or empty queue are random, of 0.5 s on average, unless one says this.
wait = {"s_threashold": 4, "t_wait": 1e-4, "r_wait": 1e-4}
tasks = RemoteChannel(8, LONGEST, **wait)
results = RemoteChannel(8, 2, **wait)
rng = np.random.default_rng(7)
vectors = [
    np.append(float(number), rng.integers(100, size=number % LONGEST)) for number in range(TASKS)
]
for _ in range(REPEAT):
    tasks.claim(TASKS)
    results.claim(TASKS)
    with took(comm, f"{TASKS} tasks there and back"):
        done = there_and_back()
    check(comm.allreduce(done) == TASKS, "a task was taken twice, or never")
