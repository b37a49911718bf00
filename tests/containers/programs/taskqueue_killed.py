# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed while all work on the tasks of a queue; the others do the rest.

    mpiexec -n 4 python taskqueue_killed.py working|early|away [nodes]

"working": within its loop, at a random time. "early": before its loop, with tasks in its ring.
"away": after it has left its loop by break. With "nodes" each rank pretends to be on a node of
its own. It needs a launcher that lets the survivors run; they leave by os._exit, as MPI_Finalize
would wait.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from contextlib import suppress

import numpy as np
from mpi4py import MPI
from support.processes import wait_for_end

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import TaskQueue  # noqa: E402

COUNT = 600  # tasks that each rank begins with
PER_TASK = 1e-3  # seconds
BOUND = 15.0
VICTIM = comm.size - 1
pids = comm.allgather(os.getpid())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def work(queue: TaskQueue, journal: rmaext.Window, scenario: str) -> bool:
    """Run a loop, with notes of what was got; return whether a rank was lost."""
    start = time.monotonic()
    dies_at = start + random.uniform(0.02, 0.4)
    got, lost, said = 0, (), ""
    try:
        for task in queue:
            journal.fetch_add(1, 0, int(task))
            got += 1
            if comm.rank == VICTIM:
                if scenario == "working" and time.monotonic() > dies_at:
                    die()
                if scenario == "away" and got == 20:
                    break
            elif scenario == "working" and got == COUNT // 2:
                wait_for_end(pids[VICTIM])  # a late victim finds tasks yet
            time.sleep(PER_TASK)
    except rmaext.PeerLostError as exc:
        lost, said = exc.ranks, str(exc)
    assert time.monotonic() - start < BOUND
    assert not lost or (lost == (VICTIM,) and f"rank {VICTIM} lost" in said), said
    return bool(lost)


def main(scenario: str) -> None:
    survivors = comm.Split(comm.rank == VICTIM, comm.rank)
    total = COUNT * comm.size
    # what was got is noted in rank 0's memory, where a dead rank's notes stay
    journal = rmaext.Window.allocate(comm, 2 * total if comm.rank == 0 else 0, "i8")
    queue = TaskQueue(comm, "i8", total)
    queue.put(np.arange(COUNT) + COUNT * comm.rank)
    for rank in range(comm.size):
        journal.fetch_add(0, 0, rank)
    comm.Barrier()
    if scenario == "early" and comm.rank == VICTIM:
        time.sleep(random.random() / 5)
        die()
    lost = work(queue, journal, scenario)
    if comm.rank == VICTIM:
        time.sleep(random.random() / 5)
        die()
    assert lost or scenario == "away", "no error for the rank that was lost"
    survivors.Barrier()
    if comm.rank == 0:
        times = journal.local[:total]
        assert times.max() <= 1, f"got twice: {np.flatnonzero(times > 1)}"
        missing = np.flatnonzero(times == 0)
        # The victim had stolen few of others' tasks: they had as many as it.
        held = total // 2 if scenario == "working" else COUNT
        assert missing.size <= held, f"{missing.size} are missing"
        if scenario == "early":
            assert (missing >= COUNT * VICTIM).all(), missing
        if scenario == "away" and not lost:
            assert not missing.size
        print(f"{scenario}: {missing.size} of {total} lost with their rank", flush=True)
    survivors.Barrier()
    # The survivors use the queue further; nobody is told of the same loss twice.
    time.sleep(0.3)
    for turn in range(3):
        queue.put(total + COUNT * comm.rank + np.arange(COUNT // 10) + turn * COUNT // 10)
        again = work(queue, journal, "")
        assert not (again and lost), "told twice"
        lost = lost or again
    survivors.Barrier()
    if comm.rank == 0:
        times = journal.local[total:].reshape(comm.size, COUNT)[:VICTIM, : 3 * (COUNT // 10)]
        assert (times == 1).all(), times
    survivors.Barrier()
    with suppress(rmaext.PeerLostError, rmaext.SyncError):
        queue.close()


faulthandler.dump_traceback_later(50, exit=True)
try:
    main(sys.argv[1])
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os.write(1, f"rank {comm.rank}: OK\n".encode())
os._exit(0)
