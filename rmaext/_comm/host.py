# SPDX-License-Identifier: BSD-3-Clause
"""What a rank tells of its host and process, and how others find it there."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._fabric.library import Candidate
from .._native import cmethods
from .._native._lib import ffi, lib
from .._runtime import lifetime
from .._runtime.config import Config
from .._runtime.failures import check
from .._runtime.files import text_of
from ..errors import KeyRecordError
from .agreement import parse_all

__all__ = ["Beacon", "Hello", "Hellos", "check_candidate", "check_types", "open_pidfd", "pidfd_of"]


_HERE = os.path.dirname(os.path.dirname(__file__))


def _build() -> str:
    """Return what tells this rmaext from others: between them nothing is understood."""
    return f"{sys.modules['rmaext'].__version__}-{cmethods.BUILD:08x}"


def _boot_id() -> str:
    return text_of("/proc/sys/kernel/random/boot_id").strip()


def _namespace(kind: str) -> str:
    """Return an identifier that two processes share only inside one namespace."""
    return f"{_boot_id()}/{os.readlink(f'/proc/self/ns/{kind}')}"


def _start_time(pid: int | str) -> int:
    """Return when a process started, in clock ticks since boot."""
    # of its first thread: qemu-user makes up what a process reads at /proc/self/stat
    text = text_of(f"/proc/{pid}/task/{pid}/stat")
    return int(text.rpartition(")")[2].split()[19])  # field 22; the name may hold spaces


def check_types(thing: Any) -> None:
    """Raise ValueError where a field that came over the wire is not what it should be."""
    types: dict[Any, type] = {"str": str, "int": int, "bool": bool}
    for (name, hint), value in zip(type(thing).__annotations__.items(), thing, strict=True):
        wanted = types.get(getattr(hint, "__forward_arg__", hint), type(value))
        in_range = not isinstance(value, int) or 0 <= value < 1 << 63
        if not in_range or type(value) is not wanted:
            raise ValueError(name)


def check_candidate(record: dict[str, Any]) -> Candidate:
    """Return the candidate that came over the wire; TypeError or ValueError if it is none."""
    return _candidate(**record)


@functools.lru_cache(4096, typed=True)  # the ranks of a node all have the same
def _candidate(**record: Any) -> Candidate:
    candidate = Candidate(**record)
    check_types(candidate)
    if candidate.address:
        import ipaddress

        ipaddress.ip_network(f"{candidate.address}/{candidate.prefix}", strict=False)
    return candidate


class Hello(NamedTuple):
    """One rank's part of the first exchange on a communicator."""

    build: str  # of rmaext
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
    transport: str  # RMAEXT_TRANSPORT
    wanted: str  # RMAEXT_PROVIDER
    filtered: str  # FI_PROVIDER, which restricts what libfabric offers
    mr_basic: bool  # RMAEXT_MR_MODE=basic
    signature: str  # digest of what RMAEXT_SECRET names
    progress: bool  # RMAEXT_PROGRESS
    version: str  # of libfabric, or UCX
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
            build=_build(),
            net=_namespace("net"),
            pids=_namespace("pid"),
            pid=os.getpid(),
            # in a /proc of another pid namespace the own number is somebody else's
            started=_start_time(os.readlink("/proc/self")),
            node=config.node,
            beacon=beacon,
            secret=os.urandom(16).hex(),
            forced=config.route == "fabric",
            transport=config.transport,
            wanted=config.provider,
            filtered=os.environ.get("FI_PROVIDER", ""),
            mr_basic=config.mr_basic,
            signature=config.signature,
            progress=config.progress,
            cpus=len(os.sched_getaffinity(0)),
            **facts,
        )

    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        candidates = [one._asdict() for one in self.candidates]
        opened = {scope: one._asdict() for scope, one in self.opened.items()}
        return self._asdict() | {"candidates": candidates, "opened": opened}

    def pack(self) -> bytes:
        """Return the payload of a record."""
        return json.dumps(self.facts()).encode()

    def offer(self) -> tuple[Any, ...]:
        """Return what the choice of endpoints depends on, which the ranks of a node share."""
        where = self.net, self.node, self.transport, self.wanted, self.filtered, self.mr_basic
        return self.signature, self.version, *where, *self.candidates, *sorted(self.opened.items())

    @classmethod
    def parse(cls, payload: bytes) -> Hello:
        """Check a record from another rank; KeyRecordError if malformed."""
        try:
            record = json.loads(payload)
            theirs = record.get("build", _build())
            if theirs != _build() and type(theirs) is str:
                text = f"runs rmaext {theirs[:40]}, this rank {_build()} at {_HERE}: "
                raise KeyRecordError(errno.EPROTO, text + "install the same one for all ranks")
            if set(record) != set(cls._fields):
                raise ValueError("other fields; do all ranks run the same rmaext?")
            record["candidates"] = [check_candidate(c) for c in record["candidates"]]
            record["opened"] = {k: check_candidate(c) for k, c in record["opened"].items()}
            hello = cls(**record)
            check_types(hello)
            hello._check()
            return hello
        except KeyRecordError:
            raise
        except (TypeError, ValueError, AttributeError, RecursionError) as exc:
            raise KeyRecordError(errno.EPROTO, f"malformed record: hello: {exc}") from None

    def _check(self) -> None:
        """Raise ValueError, or TypeError, for what cannot be."""
        for name, sizes in (self.secret, (16,)), (self.beacon, (0, 32)), (self.nonce, (0, 16)):
            if len(bytes.fromhex(name)) not in sizes:
                raise ValueError("random number")
        for block in self.arena, self.board:
            if len(block) != 4 or not all(type(n) is int and -1 <= n < 1 << 63 for n in block):
                raise ValueError("block")


class Hellos:
    """What a communicator keeps of its ranks' hellos: all of few, and one byte of each.

    Attributes
    ----------
    own, first : Hello
        This rank's, and rank 0's.
    near : dict
        Rank to hello, of those that name the same network or pid namespace: all that may be
        on this node, and this rank.
    progress : numpy.ndarray of uint8
        Whether a rank has a progress thread.
    forced : bool
        Some rank wants the fabric.
    apart : bool
        No two ranks share memory.
    """

    def __init__(self, payloads: Sequence[bytes], own: Hello) -> None:
        self.own = own
        self.progress = np.zeros(len(payloads), np.uint8)
        self.near: dict[int, Hello] = {}
        self.forced = False
        places: set[tuple[str, str]] = set()
        ranks = iter(range(len(payloads)))

        def take(payload: bytes) -> None:
            rank, hello = next(ranks), Hello.parse(payload)
            self.progress[rank] = hello.progress
            self.forced |= hello.forced
            places.add((hello.pids, hello.node))
            if hello.net == own.net or hello.pids == own.pids:
                self.near[rank] = hello
            if not rank:
                self.first = hello

        parse_all(take, payloads)
        self.apart = self.forced or len(places) == len(payloads)


class Beacon(lifetime.OfProcess):
    """An abstract socket that only processes of the same network namespace see.

    Boot id and namespace number are not proof: cloned virtual machines share
    both. A name of 128 random bits that can be connected to is. And it goes
    when its owner leaves, also when that lives on in MPI_Finalize. Whoever takes
    the name then is another socket, which the name tells (csrc/shm/beacon.c).
    """

    def __init__(self) -> None:
        name, opened = ffi.new("char[65]"), ffi.new("int *")
        check(lib.rmaext_beacon_open(os.urandom(16), name, opened))
        self.name = ffi.string(name).decode()
        self._fd = int(opened[0])

    @classmethod
    def visible(cls, name: str) -> bool | None:
        """Tell whether the owner of that name is in this network namespace; None: unknown."""
        return cls.visible_of([name])[0]

    @staticmethod
    def visible_of(names: Sequence[str]) -> list[bool | None]:
        """Tell the same of many names, at about the price of one."""
        proper = [name.isascii() and len(name) == 64 for name in names]
        asked = list(itertools.compress(names, proper))
        seen = ffi.new("int8_t[]", len(asked))
        # in C: no signal handler leaves a socket behind
        lib.rmaext_beacons_visible("".join(asked).encode(), len(asked), seen)
        answers = iter(seen)
        told = (next(answers) if one else 0 for one in proper)
        return [None if one < 0 else bool(one) for one in told]

    def close(self) -> None:
        """Remove the name."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _forget(self) -> None:
        """In a forked child: leave the name to the parent; it may begin one of its own."""
        self.close()
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
