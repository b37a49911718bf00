# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed while it writes or others wait for it to read; the others go on.

    mpiexec -n 3 python channel_killed.py writer|reader [nodes]

With "nodes" each rank pretends to be on a node of its own. It needs a launcher that lets the
survivors run; they leave by os._exit, as MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

from mpi4py import MPI

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import Channel  # noqa: E402

CAPACITY, BOUND, VICTIM = 100, 15.0, 2


def die_soon() -> None:
    """Be killed at a random time, whatever this thread does then."""
    seconds = random.uniform(0.05, 0.3)
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def drained(channel: Channel) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return what comes up to the end, and who was lost."""
    got, lost = [[] for _ in range(comm.size)], ()
    try:
        for source, records in channel:
            got[source].extend(records.tolist())
    except rmaext.PeerLostError as exc:
        lost = exc.ranks
    return got, lost


def writer(channel: Channel) -> None:
    """All that it had sent comes, and no record that it had not."""
    if comm.rank == VICTIM:
        die_soon()
        k = 0
        while True:
            channel.send(range(k, k + 7), k % 2)
            k += 7
    other = 1 - comm.rank
    channel.send(range(1000), other)
    channel.done()
    got, lost = drained(channel)
    assert lost == (VICTIM,), lost
    assert got[other] == list(range(1000))
    of_victim = got[VICTIM]
    assert (
        of_victim
        == [k for k in range(14 * len(of_victim)) if k // 7 % 2 == comm.rank][: len(of_victim)]
    )
    assert channel.receive() is None  # told once
    assert channel.ended


def reader(channel: Channel) -> None:
    """Who waits for room there is told; the others' records come."""
    if comm.rank == VICTIM:
        die_soon()
        time.sleep(600)
    other = 1 - comm.rank
    rank = None
    try:
        while True:
            channel.send(range(70), VICTIM)
    except rmaext.PeerLostError as exc:
        rank = exc.rank
    assert rank == VICTIM
    channel.send(range(50), other)
    channel.done()
    got, lost = drained(channel)
    assert got[other] == list(range(50))
    assert lost == (VICTIM,), lost


faulthandler.dump_traceback_later(50, exit=True)
random.seed()
try:
    channel = Channel(comm, "i8", CAPACITY)
    survivors = comm.Split(comm.rank == VICTIM, comm.rank)
    for rank in range(comm.size):
        channel.send([], rank)
    comm.Barrier()
    start = time.monotonic()
    {"writer": writer, "reader": reader}[sys.argv[1]](channel)
    assert time.monotonic() - start < BOUND
    survivors.Barrier()
    with suppress(rmaext.PeerLostError, rmaext.SyncError):
        channel.close()
    os.write(1, f"rank {comm.rank}, {sys.argv[1]}: OK\n".encode())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
