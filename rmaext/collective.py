# SPDX-License-Identifier: BSD-3-Clause
"""MPI collectives that can be interrupted and that notice dead peers.

The only collectives used are nonblocking; they are tested in slices, so that
Ctrl-C works and the fabric is served meanwhile.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["allgather", "allreduce_max", "wait"]

# serve(seconds): do something useful for about so long; may raise
Serve = Callable[[float], None]

_SPIN = 50e-6  # seconds of testing without a pause
_SLICE = 10e-3

# Requests that were interrupted own their buffers until MPI is finalized.
_abandoned: list[tuple[Any, ...]] = []


def nap(seconds: float) -> None:
    """Serve nothing: let the other ranks of this node run."""
    if seconds:
        time.sleep(seconds)
    else:
        os.sched_yield()


def wait(request: MPI.Request, serve: Serve, *buffers: Any) -> None:
    """Wait for an MPI request. Blocking.

    The pauses grow with the time waited, to a quarter of it at most: what is
    waited for long may come a little late, and many ranks may share a core.
    """
    start = time.monotonic()
    try:
        while not request.Test():
            waited = time.monotonic() - start
            serve(0.0 if waited < _SPIN else min(waited / 4, _SLICE))
    except BaseException:
        _abandoned.append((request, *buffers))
        raise


def allgather(comm: MPI.Comm, record: bytes, serve: Serve) -> list[bytes]:
    """Return every rank's record, of any length. Collective."""
    lengths = np.empty(comm.size, np.int32)
    own = np.array([len(record)], np.int32)
    wait(comm.Iallgather(own, lengths), serve, own, lengths)
    starts = np.zeros(comm.size + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    everything = bytearray(int(starts[-1]))
    target = [everything, (lengths, starts[:-1]), MPI.BYTE]
    wait(comm.Iallgatherv([record, MPI.BYTE], target), serve, record, everything)
    view = memoryview(everything)
    return [bytes(view[a:b]) for a, b in itertools.pairwise(starts)]


def allreduce_max(comm: MPI.Comm, value: int, serve: Serve) -> int:
    """Return the largest value; also a barrier. Collective."""
    own, largest = np.array([value], np.int32), np.empty(1, np.int32)
    wait(comm.Iallreduce(own, largest, MPI.MAX), serve, own, largest)
    return int(largest[0])


def duplicate(comm: MPI.Comm) -> MPI.Comm:
    """Return a private duplicate. Collective."""
    dup, request = comm.Idup()
    wait(request, nap, dup)
    return dup
