# SPDX-License-Identifier: BSD-3-Clause
"""A connection to a rank, and puts to it, with and without the check of who connects; for table.py.

The connection is one of TCP, with the request of ofi_rxm and its answer, from a socket of this
program: a rank itself connects once to each other rank.
"""

from __future__ import annotations

import os
import socket
import struct
import time

import numpy as np

from rmaext.bench import cases
from rmaext.bench.measure import Job, per_call
from rmaext.bench.peers import Side

CHECKED, UNCHECKED = "rmaext, connections checked", "not checked"
HEADER = struct.pack("<BBHIQQQ", 3, 0, socket.htons(24), 0, 0, 0, 1)
REQUEST = HEADER + struct.pack("<BBBBHBBIIQ", 1, 1, 4, 3, 9, 0, 0, 16384, 128, 77 << 32)


class Target:
    """A rank that others connect to."""

    def __init__(self, side: Side, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.comm = side.comm
        self.enter = side.comm.Barrier
        address = side.comm.bcast(side.win.fabric.address, rank)
        host, port = address.partition("://")[2].rsplit(":", 1)
        self.address = (host, int(port))

    def leave(self) -> None:
        """Sleep until the origin comes: there are fewer cores than ranks."""
        comm = self.comm
        if comm.rank:
            while not comm.iprobe(0):
                time.sleep(0.005)
            comm.recv(source=0)
        else:
            for rank in range(1, comm.size):
                comm.send(None, rank)

    def connect(self, n: int) -> None:
        """Connect n times, and wait for the answer."""
        for _ in range(n):
            with socket.create_connection(self.address, 5) as it:
                it.sendall(REQUEST)
                if not it.recv(256):
                    raise ConnectionError(f"rank {self.rank} does not answer")


def connections(job: Job) -> None:
    """Connect, and put 8 B and flush: to rank 1, which checks, and to rank 2, which does not."""
    if job.comm.rank == 2:
        os.environ["RMAEXT_ADMIT"] = "everyone"
    (side,) = cases.sides(job, 1)
    rivals = [Target(side, CHECKED, 1), Target(side, UNCHECKED, 2)]
    if job.comm.allgather(side.win.fabric.guarded)[1:] != [True, False]:
        raise RuntimeError("rank 1 alone shall check its connections")
    job.facts["routes"] = {target.name: side.win.route(target.rank) for target in rivals}
    sent = np.array([42])
    job.expect(2 * job.rounds * len(rivals))

    def put(target: Target) -> list[float]:
        return per_call(lambda n: side.put_flush(n, sent, target.rank, 0), 5e-3)

    job.add("connection", job.alternate(rivals, lambda it: per_call(it.connect, 5e-3)), "us")
    job.add("put + flush", job.alternate(rivals, put), "us", 8)
    cases.check(job, side, "put", sent)
