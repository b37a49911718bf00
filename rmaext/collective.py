# SPDX-License-Identifier: BSD-3-Clause
"""MPI collectives that can be interrupted and that notice dead peers.

The only collectives used are nonblocking; they are tested in slices, so that
Ctrl-C works and the fabric is served meanwhile.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import starmap
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from .errors import PeerLostError

__all__ = ["allgather", "allreduce_max", "duplicate"]


class Server(Protocol):
    """What to do while MPI is waited for."""

    def serve(self, seconds: float) -> None:
        """Do something useful for about so long; may raise."""

    def leave(self) -> None:
        """End the wait."""


_SPIN = 5e-3  # seconds of testing without a pause; less is slow with many ranks a core
_SLICE = 10e-3
GRACE = 1.0  # seconds that the last message of a peer may take after it has left

_FITS = 124  # bytes: a window's record of one dimension, with a key of 8
_SLOT = np.dtype([("length", np.int32), ("record", np.uint8, _FITS)])

# Collectives under way, with their buffers; those interrupted stay for ever.
_running: dict[int, list[Any]] = {}


class Nap:
    """Serves nothing: lets the other ranks of this node run."""

    def serve(self, seconds: float) -> None:
        """Sleep, or only yield."""
        if seconds:
            time.sleep(seconds)
        else:
            os.sched_yield()

    def leave(self) -> None:
        """Do nothing."""


def _complete(call: Callable[..., Any], server: Server, *buffers: Any) -> Any:
    """Start a nonblocking collective and wait for it; return what the call returned.

    The pauses grow with the time waited, to a quarter of it at most: what is
    waited for long may come a little late, and many ranks may share a core.
    """
    # MPI uses the buffers until the request ends, whatever a signal handler
    # raises here: extend() over starmap() runs the call without a bytecode between
    # it and the place where its request is kept.
    entry: list[Any] = [buffers]
    _running[id(entry)] = entry
    entry.extend(starmap(call, [buffers]))
    started = entry[1]
    request = started[1] if isinstance(started, tuple) else started
    start = time.monotonic()
    lost: PeerLostError | None = None
    deadline = 0.0
    try:
        while not request.Test():
            now = time.monotonic()
            if lost is not None:
                if now > deadline:
                    raise lost
                time.sleep(1e-3)
                continue
            try:
                server.serve(0.0 if now - start < _SPIN else min((now - start) / 4, _SLICE))
            except PeerLostError as exc:
                # a peer may have sent its part, and left, since the last test
                lost, deadline = exc, now + GRACE
    finally:
        server.leave()
    del _running[id(entry)]
    return started


def allgather(comm: MPI.Comm, record: bytes, server: Server) -> tuple[Any, Any]:
    """Return every rank's record, of any length, one after another; and the lengths.

    One collective where all fit into a slot, as nearly all do; a second one otherwise.
    """
    own = len(record).to_bytes(4, sys.byteorder) + record[:_FITS].ljust(_FITS, b"\0")
    slots = np.empty(comm.size, _SLOT)
    _complete(comm.Iallgather, server, [own, MPI.BYTE], [slots, MPI.BYTE])
    lengths = slots["length"].copy()
    if lengths.max() <= _FITS:
        return slots["record"][np.arange(_FITS) < lengths[:, np.newaxis]], lengths
    starts = np.zeros(comm.size + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    everything = bytearray(int(starts[-1]))
    target = [everything, (lengths, starts[:-1]), MPI.BYTE]
    _complete(comm.Iallgatherv, server, [record, MPI.BYTE], target)
    return everything, lengths


def allreduce_max(comm: MPI.Comm, value: int, server: Server) -> int:
    """Return the largest value; also a barrier. Collective."""
    own, largest = np.array([value], np.int32), np.empty(1, np.int32)
    _complete(comm.Iallreduce, server, own, largest, MPI.MAX)
    return int(largest[0])


def duplicate(comm: MPI.Comm) -> MPI.Comm:
    """Return a private duplicate. Collective."""
    dup: MPI.Comm = _complete(comm.Idup, Nap())[0]
    return dup
