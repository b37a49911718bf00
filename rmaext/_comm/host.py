# SPDX-License-Identifier: BSD-3-Clause
"""What a rank tells of its host and process, and how others find it there."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .._fabric.library import Candidate
from .._native._lib import lib
from .._runtime import lifetime
from .._runtime.config import Config
from ..errors import KeyRecordError

__all__ = ["Beacon", "Hello", "check_candidate", "check_types", "open_pidfd", "pidfd_of"]


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace(kind: str) -> str:
    """Return an identifier that two processes share only inside one namespace."""
    return f"{_boot_id()}/{os.readlink(f'/proc/self/ns/{kind}')}"


def _start_time(pid: int | str) -> int:
    """Return when a process started, in clock ticks since boot."""
    # of its first thread: qemu-user makes up what a process reads at /proc/self/stat
    text = Path(f"/proc/{pid}/task/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])  # field 22; the name may hold spaces


def check_types(thing: Any) -> None:
    """Raise ValueError where a field that came over the wire is not what it should be."""
    types = {"str": str, "int": int, "bool": bool}
    for field in fields(thing):
        value = getattr(thing, field.name)
        in_range = not isinstance(value, int) or 0 <= value < 1 << 63
        if not in_range or type(value) is not types.get(str(field.type), type(value)):
            raise ValueError(field.name)


def check_candidate(record: dict[str, Any]) -> Candidate:
    """Return the candidate that came over the wire; TypeError or ValueError if it is none."""
    candidate = Candidate(**record)
    check_types(candidate)
    if candidate.address:
        ipaddress.ip_network(f"{candidate.address}/{candidate.prefix}", strict=False)
    return candidate


@dataclass(frozen=True)
class Hello:
    """One rank's part of the first exchange on a communicator."""

    net: str  # network namespace
    pids: str  # pid namespace
    pid: int
    started: int
    node: str  # RMAEXT_NODE
    beacon: str
    nonce: str  # of the arena; "" if there is none
    address: int  # where it lies in this process
    arena: list[int]  # first segment of the arena, as node.Block
    board: list[int]  # rank 0's for the team; likewise
    secret: str  # rank 0's seeds the keys
    forced: bool  # RMAEXT_ROUTE=fabric
    wanted: str  # RMAEXT_PROVIDER
    filtered: str  # FI_PROVIDER, which restricts what libfabric offers
    mr_basic: bool  # RMAEXT_MR_MODE=basic
    progress: bool  # RMAEXT_PROGRESS
    version: str  # of libfabric
    cpus: int
    candidates: list[Candidate]  # in libfabric's order
    opened: dict[str, Candidate]  # scope -> what this process has open

    @classmethod
    def make(cls, config: Config, beacon: str, **given: Any) -> Hello:
        """Describe this process; `given` says what it offers."""
        nothing = [-1, 0, 0, 0]
        facts: dict[str, Any] = {
            **{"nonce": "", "address": 0, "arena": nothing, "board": nothing},
            **{"version": "", "candidates": [], "opened": {}},
            **given,
        }
        return cls(
            net=_namespace("net"),
            pids=_namespace("pid"),
            pid=os.getpid(),
            # in a /proc of another pid namespace the own number is somebody else's
            started=_start_time(os.readlink("/proc/self")),
            node=config.node,
            beacon=beacon,
            secret=secrets.token_hex(16),
            forced=config.route == "fabric",
            wanted=config.provider,
            filtered=os.environ.get("FI_PROVIDER", ""),
            mr_basic=config.mr_basic,
            progress=config.progress,
            cpus=len(os.sched_getaffinity(0)),
            **facts,
        )

    def pack(self) -> bytes:
        """Return the payload of a record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Check a record from another rank; KeyRecordError if malformed."""
        try:
            record = json.loads(payload)
            if set(record) != {field.name for field in fields(cls)}:
                raise ValueError("other fields")
            record["candidates"] = [check_candidate(c) for c in record["candidates"]]
            record["opened"] = {k: check_candidate(c) for k, c in record["opened"].items()}
            hello = cls(**record)
            check_types(hello)
            for name, sizes in (
                (hello.secret, (16,)),
                (hello.beacon, (0, 16)),
                (hello.nonce, (0, 16)),
            ):
                if len(bytes.fromhex(name)) not in sizes:
                    raise ValueError("random number")
            for block in hello.arena, hello.board:
                if len(block) != 4 or not all(type(n) is int and -1 <= n < 1 << 63 for n in block):
                    raise ValueError("block")
            return hello
        except (TypeError, ValueError, AttributeError, RecursionError) as exc:
            raise KeyRecordError(errno.EPROTO, f"malformed record: hello: {exc}") from None


class Beacon(lifetime.OfProcess):
    """An abstract socket that only processes of the same network namespace see.

    Boot id and namespace number are not proof: cloned virtual machines share
    both. A name of 128 random bits that can be connected to is. And it goes
    when its owner leaves, also when that lives on in MPI_Finalize.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0rmaext-{self.name}")

    @staticmethod
    def visible(name: str) -> bool | None:
        """Tell whether the owner of that name is in this network namespace; None: unknown."""
        # in C: no signal handler leaves a socket behind
        seen = lib.rmaext_neighbour_visible(f"rmaext-{name}".encode())
        return None if seen < 0 else bool(seen)

    def close(self) -> None:
        """Remove the name."""
        self._socket.close()

    def _forget(self) -> None:
        """In a forked child: leave the name to the parent; it may begin one of its own."""
        self._socket.close()
        super()._forget()


def open_pidfd(own: Hello, peer: Hello) -> int:
    """Return a descriptor that becomes readable when the peer ends, or -1.

    A pid means something only inside one pid namespace of one node, and only
    for the process that started when the peer did.
    """
    if own.pids != peer.pids or own.node != peer.node or own.pid == peer.pid:
        return -1
    try:
        fd = os.pidfd_open(peer.pid)
    except (OSError, OverflowError):
        return -1
    try:
        if _start_time(peer.pid) == peer.started:
            return fd
    except OSError:
        pass  # gone meanwhile; nothing proves that the descriptor is the peer's
    os.close(fd)
    return -1


_pidfds: dict[tuple[str, int, int], int] = {}


def pidfd_of(own: Hello, peer: Hello) -> int:
    """As `open_pidfd`, but opened once for all groups, and never closed."""
    if own.node != peer.node:
        return -1
    key = (peer.pids, peer.pid, peer.started)
    known = _pidfds.get(key)
    if known is None:
        fd = open_pidfd(own, peer)
        if fd < 0:
            return -1
        known = _pidfds.setdefault(key, fd)
        if known != fd:  # another thread was faster
            os.close(fd)
    return known
