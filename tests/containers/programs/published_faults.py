# SPDX-License-Identifier: BSD-3-Clause
"""A rank that reads is stopped for a while, or killed; the others publish and read on.

    mpiexec -n 3 python published_faults.py stopped|killed|unsettled [nodes]

With "nodes" each rank pretends to be on a node of its own. "killed" and "unsettled", in which all
others are done, need a launcher that lets the survivors run; they leave by os._exit, as
MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback

import numpy as np
from mpi4py import MPI
from support.processes import stopped

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import Published  # noqa: E402

COUNT = 1 << 15  # 256 KiB
OWNER, READER, VICTIM = range(3)
SHORT, BOUND = 4.0, 8.0  # seconds; a publish that waits for the stopped rank never returns


def publish(state: Published, seconds: float, version: int) -> int:
    """Publish for a while; return the last version."""
    end, slowest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        start = time.monotonic()
        version += 1
        assert state.publish(np.full(COUNT, version)) == version
        slowest = max(slowest, time.monotonic() - start)
    assert slowest < SHORT, f"a publish took {slowest} s"
    return version


def read(state: Published, seconds: float, least: int = 1) -> None:
    """Read the owner's for a while, and so often at least: this rank may be held up."""
    end, seen, times = time.monotonic() + seconds, 0, 0
    while (now := time.monotonic()) < end or (times < least and now < end + 20):
        version, got = state.read(OWNER)
        assert (got == version).all(), f"torn: version {version}, {np.unique(got)}"
        assert version >= seen
        seen = version
        times += 1
    assert times >= least


def stop(state: Published, pid: int) -> None:
    if comm.rank == OWNER:
        version = publish(state, 0.5, 0)
        for _ in range(5):  # at different points of its reads
            with stopped(pid):
                version = publish(state, 0.2, version)
            version = publish(state, random.random() / 10, version)
        publish(state, 0.5, version)
    else:
        read(state, 2.0, 11)
    comm.Barrier()
    read(state, 0.1)
    state.close()


def kill(state: Published, pid: int) -> None:
    if comm.rank == VICTIM:
        state.publish(np.ones(COUNT, np.int64))
        read(state, 600)
    if comm.rank == OWNER:
        version = publish(state, 0.3 + random.random() / 2, 0)
        os.kill(pid, signal.SIGKILL)
        publish(state, 1.0, version)
    else:
        read(state, 2.0, 11)
    for call in (
        lambda: state.read(VICTIM, newer_than=100),
        lambda: state.read(VICTIM),
    ):
        start, rank = time.monotonic(), None
        try:
            call()
        except rmaext.PeerLostError as exc:
            rank = exc.rank
        assert rank == VICTIM, "read what a lost rank has published"
        assert time.monotonic() - start < BOUND
    # the survivors go on
    other = 1 - comm.rank
    survivors.Barrier()
    before = state.read(other)[0]
    survivors.Barrier()
    last = state.publish(np.full(COUNT, -1))
    assert state.read(other, newer_than=before)[0] == survivors.sendrecv(
        last, other, 0, None, other
    )
    survivors.Barrier()


def unsettled(state: Published, pid: int) -> None:
    if comm.rank == VICTIM:
        while not state.settled(False, {}):
            time.sleep(0.01)
    survivors.Barrier()
    if comm.rank == OWNER:
        os.kill(pid, signal.SIGKILL)
    for done in True, False, True:
        rank, end = None, time.monotonic() + BOUND
        while rank is None and time.monotonic() < end:
            try:
                assert not state.settled(done, {1 - comm.rank: 0})
            except rmaext.PeerLostError as exc:
                rank = exc.rank
        assert rank == VICTIM, "a lost rank cannot be done"
    assert state.publish(np.zeros(COUNT, np.int64)) == 1
    assert state.read(1 - comm.rank, newer_than=0)[0] == 1
    survivors.Barrier()


faulthandler.dump_traceback_later(50, exit=True)
random.seed()
try:
    state = Published(comm, COUNT, "i8", buffers=3)
    survivors = comm.Split(comm.rank == VICTIM, comm.rank)
    pids = comm.allgather(os.getpid())
    for rank in range(comm.size):
        state.read(rank)
    comm.Barrier()
    {"stopped": stop, "killed": kill, "unsettled": unsettled}[sys.argv[1]](state, pids[VICTIM])
    os.write(1, f"rank {comm.rank}, {sys.argv[1]}: OK\n".encode())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
if sys.argv[1] != "stopped":
    os._exit(0)
