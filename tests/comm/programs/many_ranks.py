# SPDX-License-Identifier: BSD-3-Clause
"""What a communicator of very many ranks keeps of them. Its other ranks are records.

    python many_ranks.py RANKS [traced]

The product's own code opens the group and its network, and makes windows; only the gathers
are not MPI's: they return what this rank has said, with what differs from rank to rank changed.
Prints bytes and objects as JSON.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext._comm import agreement, collective
from rmaext._comm.group import Group
from rmaext._comm.meeting import Meetings
from rmaext._comm.window_record import WindowRecord
from rmaext._native._lib import lib

Numbered = Callable[[int], bytes]  # makes what is a rank's
BOTH = lib.RMAEXT_READ | lib.RMAEXT_WRITE
COUNT, TRACED = int(sys.argv[1]), "traced" in sys.argv
NODE = 100  # ranks of a node
_TRIM = ctypes.CDLL(None).malloc_trim


class Many(MPI.Intracomm):
    """A communicator that says it is larger than it is."""

    size = COUNT


def numbered(payload: bytes, changes: dict[bytes, Numbered]) -> Numbered:
    """Return a function that makes a rank's record of this rank's payload."""
    pieces = [payload]
    fills: list[Numbered] = []
    for old, change in changes.items():
        at = next(i for i, piece in enumerate(pieces) if old in piece)
        before, after = pieces[at].split(old, 1)
        pieces[at : at + 1] = [before, after]
        fills.insert(at, change)

    def of(rank: int) -> bytes:
        parts = [pieces[0]]
        for fill, piece in zip(fills, pieces[1:], strict=True):
            parts += fill(rank), piece
        return agreement.encode(b"".join(parts))

    return of


def hello_of(payload: bytes) -> Numbered:
    """Each node has its namespaces and network interface, each rank its process."""
    own = json.loads(payload)
    node: Callable[[str], Numbered]
    node = lambda name: lambda rank: f'"{name}": "boot-{rank // NODE}/{name}"'.encode()  # noqa: E731
    changes = {f'"{name}": "{own[name]}"'.encode(): node(name) for name in ("net", "pids")}
    for name in ("beacon", "nonce", "secret"):
        if own[name]:
            changes[f'"{name}": "{own[name]}"'.encode()] = lambda rank, name=name: (
                f'"{name}": "{rank:0{len(own[name])}x}"'.encode()
            )
    return numbered(payload, changes)


def address_of(payload: bytes) -> Numbered:
    """Each rank has an address and a key."""
    n = int.from_bytes(payload[:2], "little")
    name, record = payload[2 : 2 + n], WindowRecord.unpack(payload[2 + n :])

    def of(rank: int) -> bytes:
        # family, port, IPv4 address
        other = name[:2] + rank.to_bytes(6, "big") + name[8:]
        key = (rank * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(len(record.key), "little")
        said = record._replace(key=key)
        return agreement.encode(payload[:2] + other + said.pack())

    return of


def simulate(_: Meetings, record: bytes) -> tuple[Any, Any]:
    """Stand in for `Meetings.gather_whole`."""
    failed, payload = agreement.decode(record)
    assert not failed, payload
    if payload.startswith(b'{"build"'):
        of = hello_of(payload)
    elif payload[:4] == b"\x10\0\x02\0":  # an address of IPv4, by its length and family
        of = address_of(payload)
    else:
        of = numbered(payload, {})
        return record * COUNT, np.full(COUNT, len(record), np.int32)
    parts = [record, *map(of, range(1, COUNT))]
    lengths = np.fromiter(map(len, parts), np.int32, COUNT)
    return b"".join(parts), lengths


class Taken:
    """What has been taken since: bytes of the process, bytes and objects of Python."""

    def __init__(self) -> None:
        self.before = self._now()

    @staticmethod
    def _now() -> np.ndarray:
        gc.collect()
        _TRIM(0)
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        python = blocks = 0
        if TRACED:
            python = tracemalloc.get_traced_memory()[0]
            blocks = sum(s.count for s in tracemalloc.take_snapshot().statistics("filename"))
        size = os.sysconf("SC_PAGE_SIZE")
        return np.array([resident * size, python, len(gc.get_objects()), blocks])

    def told(self) -> dict[str, int]:
        """Return it."""
        names = ("resident", "python", "objects", "blocks")
        return dict(zip(names, (self._now() - self.before).tolist(), strict=True))


class OneHost(Group):
    """The loopback interface serves as the network between the nodes."""

    one_host = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]


def main() -> None:
    """Open a group, its network, and windows over it."""
    # so that what is the process's is there: an endpoint, a thread, an arena
    os.environ["RMAEXT_ROUTE"] = "fabric"
    first = rmaext.Window.allocate(MPI.COMM_SELF, 100)
    first.put(1.0, 0)
    first.flush()
    os.environ["RMAEXT_ROUTE"] = ""
    collective.duplicate = lambda comm, late, opening: Many(MPI.COMM_SELF.Dup())  # type: ignore[assignment]
    Meetings.gather_whole = simulate  # type: ignore[method-assign]
    Meetings.reduce = lambda self, value: value  # type: ignore[method-assign]
    if TRACED:
        tracemalloc.start()
    start, taken = time.monotonic(), Taken()
    OneHost._opening = []
    group = OneHost(MPI.COMM_SELF)
    said = {"communicator": taken.told(), "seconds": time.monotonic() - start}
    assert group.size == COUNT
    assert not group.all_direct
    Group.of = lambda comm: group  # type: ignore[method-assign, assignment]
    windows = []
    for name in ("first window", "window"):
        taken = Taken()
        windows.append(rmaext.Window.allocate(MPI.COMM_SELF, 100))
        said[name] = taken.told()
    # those that are used: each gets a peer
    taken, used = Taken(), min(COUNT - 1, 1000)
    for rank in range(1, 1 + used):
        assert lib.rmaext_window_check(windows[-1]._handle, rank, 0, 800, BOTH, -1) == 0
        assert lib.rmaext_window_check(windows[-1]._handle, rank, 0, 801, BOTH, -1) < 0
    said["used"] = {name: value / used for name, value in taken.told().items()}
    print(json.dumps(said), flush=True)
    os._exit(0)  # the others are not there to meet at the end


if __name__ == "__main__":
    main()
