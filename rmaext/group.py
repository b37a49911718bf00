# SPDX-License-Identifier: BSD-3-Clause
"""The ranks of one communicator: their endpoints, and whether they live.

Made once per communicator, kept by an attribute of it, and shared by all
windows over it.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _lifetime, collective, memory
from ._lib import ffi, lib
from .config import Config
from .errors import ClosedError, KeyRecordError, PeerLostError, from_c
from .fabric import Fabric
from .host import Beacon, Hello, choose, open_pidfd, wanted_interface
from .keys import WindowRecord, agree, parse_all
from .library import open_library

__all__ = ["Group"]

_CONTROL_BYTES = 64
_LOOK_EVERY = 0.01  # seconds between looks at the pidfds
_PROBE_EVERY = 1.0  # seconds between small reads from peers
_PROBES = 4  # peers read at a time: all p are covered in p/4 seconds


def check_comm(comm: Any) -> MPI.Comm:
    """Refuse what is no intracommunicator; nothing can be agreed over it."""
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm must be an mpi4py communicator, not {type(comm).__name__}")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm is MPI.COMM_NULL")
    if comm.Is_inter():
        raise ValueError("comm is an intercommunicator; merge it first")
    return comm


class Group:
    """Endpoints of a communicator's ranks.

    Attributes
    ----------
    comm : MPI.Comm
        A private duplicate.
    fabric : Fabric or None
        None where the only rank is this one and no route is forced.
    """

    _keyval = MPI.KEYVAL_INVALID

    def __init__(self, comm: MPI.Comm) -> None:
        self._users = 1  # the attribute
        self._count = 0
        self._windows = 0
        self._secret = b""
        self._next_look = 0.0
        self._next_probe = 0.0
        self._broken = False
        self._near: list[int] = []  # ranks whose beacons can be seen
        self._far: Iterator[int] = itertools.cycle([])
        self._probes: dict[int, tuple[Any, Any]] = {}
        self._control_window: Any = None
        self.fabric: Fabric | None = None
        self.comm = collective.duplicate(comm)
        self.rank, self.size = self.comm.rank, self.comm.size
        self.peers: list[Any] = [ffi.NULL] * self.size
        self._pidfds = select.poll()
        self._rank_of_fd: dict[int, int] = {}
        try:
            self._open()
        except BaseException:
            self.comm.Free()
            raise

    @classmethod
    def of(cls, comm: MPI.Comm) -> Group:
        """Return the communicator's group, made on first use. Collective."""
        _lifetime.check("window")
        check_comm(comm)
        if cls._keyval == MPI.KEYVAL_INVALID:
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=cls._comm_freed, nopython=False)
        group = comm.Get_attr(cls._keyval)
        if not isinstance(group, Group):
            group = cls(comm)
            comm.Set_attr(cls._keyval, group)
        return group

    @staticmethod
    def _comm_freed(_comm: MPI.Comm, _keyval: int, group: Group) -> None:
        group.quit()

    def join(self) -> None:
        """Count a window in."""
        self._users += 1

    def quit(self) -> None:
        """Count a window, or the communicator, out; the last frees the duplicate."""
        self._users -= 1
        if self._users or _lifetime.ending():
            return
        for fd in self._rank_of_fd:
            os.close(fd)
        self._rank_of_fd.clear()
        self.comm.Free()

    # -- set-up ----------------------------------------------------------------

    def gather(self, record: bytes) -> list[bytes]:
        """Return every rank's record. Collective."""
        if self._broken:
            self._look()
            text = "an earlier collective call over this communicator was interrupted"
            raise ClosedError(errno.ESHUTDOWN, text)
        self._broken = True  # of its two steps the others may be in the second
        records = collective.allgather(self.comm, record, self)
        self._broken = False
        return records

    def _open(self) -> None:
        config = None

        def hello() -> bytes:
            nonlocal config
            config = Config.read()
            return self._hello(config).pack()

        hellos = parse_all(Hello.parse, agree(self.gather, hello))
        self.hellos = hellos
        self._secret = bytes.fromhex(hellos[0].secret)
        self.forced = any(h.forced for h in hellos)
        if self.size == 1 and not self.forced:
            return
        assert config is not None
        self._near = [r for r, h in enumerate(hellos) if self._sees(h)]
        self._far = itertools.cycle(r for r in range(self.size) if r not in self._near)
        scope = "host" if self._one_host() else "network"
        chosen = choose(hellos, scope)[self.rank]
        self._connect(lambda: self._open_fabric(scope, chosen, config), config.timeout)

    def _hello(self, config: Config) -> Hello:
        if self.size == 1 and config.route != "fabric":
            return Hello.make(config, "", version="", candidates=[], opened={})
        library = open_library(config.library)
        found = library.candidates(config.provider, config.mr_basic)
        # what there is instead, for the error message
        found = found or library.candidates("", config.mr_basic)
        opened = {}
        for scope in ("host", "network"):
            fabric = Fabric.get(scope)
            if fabric:
                opened[scope] = fabric.candidate
        return Hello.make(
            config,
            Beacon.own().name,
            version=library.version,
            candidates=wanted_interface(found, config.iface) if found else found,
            opened=opened,
        )

    def _sees(self, hello: Hello) -> bool:
        return hello.net == self.hellos[self.rank].net and Beacon.visible(hello.beacon)

    def _one_host(self) -> bool:
        """Tell whether all ranks share one loopback interface. Collective."""
        return not collective.allreduce_max(self.comm, len(self._near) < self.size, self)

    def _open_fabric(self, scope: str, chosen: Any, config: Config) -> Fabric:
        local = sum(h.pids == self.hellos[self.rank].pids for h in self.hellos)
        cpus = self.hellos[self.rank].cpus
        # a spinning origin starves its target's thread when no core is idle
        spin = float(os.environ.get("XSPIN", 20e-6)) if local <= cpus else 2e-6
        fabric = Fabric.open(scope, chosen, config, spin)
        fabric.serve(0)
        return fabric

    def _connect(self, opener: Callable[[], Fabric], timeout: float) -> None:
        """Open the fabric; exchange its address and a word to read for a sign of life."""

        def mine() -> bytes:
            fabric = self.fabric = opener()
            self._control = np.ones(_CONTROL_BYTES, np.uint8)
            pointer = memory.address(self._control)
            held = fabric.register(pointer, _CONTROL_BYTES, lib.RMAEXT_READ, self.next_key())
            # peers may read it until this process closes its endpoint
            fabric.keep(held, self._control)
            key, base = fabric.key(held)
            record = WindowRecord(_CONTROL_BYTES, base, 0, lib.RMAEXT_READ, "", key)
            name: bytes = fabric.name()
            return len(name).to_bytes(2, "little") + name + record.pack()

        def theirs() -> bytes:
            assert self.fabric is not None
            own = self.hellos[self.rank]
            for rank, hello in enumerate(self.hellos):
                fd = open_pidfd(own, hello)
                if fd >= 0:
                    # a descriptor of its own: the peer's may serve older groups
                    watch = os.dup(fd)
                    self._rank_of_fd[watch] = rank
                    self._pidfds.register(watch, select.POLLIN)
                self.peers[rank] = self.fabric.peer(names[rank], fd)
            return b""

        def named(payload: bytes) -> tuple[bytes, WindowRecord]:
            n = int.from_bytes(payload[:2], "little")
            return payload[2 : 2 + n], WindowRecord.unpack(payload[2 + n :])

        parsed = parse_all(named, agree(self.gather, mine))
        names = [name for name, _ in parsed]
        records = [record for _, record in parsed]
        agree(self.gather, theirs)
        self._control_window, _ = self.window(
            records, memory.address(self._control), timeout, force=True
        )

    def next_name(self) -> int:
        """Return a number for a window, the same on all ranks."""
        self._windows += 1
        return self._windows

    def next_key(self) -> int:
        """Return the next key that all ranks derive: 64 bits nobody else can guess."""
        self._count += 1
        number = self._count.to_bytes(8, "little")
        digest = hashlib.blake2b(number, key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def window(
        self, records: list[WindowRecord], local: Any, timeout: float, force: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the C window over what the ranks registered, and its routes."""
        fabric = self.fabric
        n = self.size
        routes = np.full(n, lib.RMAEXT_FABRIC, np.uint8)
        if fabric is None or (fabric.cpu_atomics and not self.forced and not force):
            routes[self.rank] = lib.RMAEXT_DIRECT
        lengths = {len(r.key) for r in records if r.size} if fabric else set()
        key_len = max(lengths, default=8)
        if len(lengths) > 1 or (fabric and not fabric.raw_keys and key_len != 8):
            raise KeyRecordError(errno.EPROTO, f"remote keys of {sorted(lengths)} bytes")
        columns = [
            ffi.new("rmaext_peer *[]", self.peers),
            ffi.new("uint64_t[]", [r.size for r in records]),
            ffi.new("uint64_t[]", [r.base for r in records]),
            ffi.new("uint8_t[]", [r.access for r in records]),
            ffi.new("uint8_t[]", [r.align for r in records]),
            ffi.from_buffer("uint8_t[]", routes),
            ffi.new("uint8_t[]", b"".join(r.key.ljust(key_len, b"\0") for r in records)),
        ]
        targets = ffi.new("struct rmaext_targets *", [n, *columns, key_len])
        handle = ffi.new("rmaext_window **")
        own = fabric.live() if fabric else ffi.NULL
        code = lib.rmaext_window_create(own, local, targets, int(timeout * 1e9), handle)
        if code:
            raise from_c(code)
        # the struct outlives close: another thread may still be inside a call
        return ffi.gc(handle[0], lib.rmaext_window_free), routes.tolist()

    # -- life ------------------------------------------------------------------

    def serve(self, seconds: float) -> None:
        """Pass a moment of a collective wait; PeerLostError if a peer is gone."""
        if self.fabric is None:
            collective.Nap().serve(seconds)
            return
        self.fabric.serve(seconds)
        if not seconds:
            os.sched_yield()
            return
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY
            self._look()
        # the first probe only after a while: most waits are short
        if seconds >= _LOOK_EVERY and now >= self._next_probe and self._control_window:
            self._next_probe = now + _PROBE_EVERY
            self._probe()

    def leave(self) -> None:
        """End a collective wait."""
        if self.fabric is not None and self.fabric.handle:
            lib.rmaext_fabric_leave(self.fabric.handle)

    def _look(self) -> None:
        gone = [self._rank_of_fd[fd] for fd, _ in self._pidfds.poll(0)]
        if gone:
            raise lost(sorted(gone), "the process is gone")

    def _probe(self) -> None:
        """Look at the beacons of this host, and read a word from the next few other peers.

        A process that lives may have left: an exception took it out of the
        program, and it waits in MPI_Finalize. Then its endpoint is closed, and
        its beacon. One that does not answer but has a pidfd which says that it
        lives is only stopped; without a pidfd it counts as lost after the time
        limit.
        """
        assert self.fabric is not None
        self.fabric.live()
        left = [rank for rank in self._near if not Beacon.visible(self.hellos[rank].beacon)]
        if left:
            raise lost(left, "has left")
        for rank in itertools.islice(self._far, min(_PROBES, self.size - len(self._near))):
            if rank not in self._probes:
                self._start_probe(rank)
        for rank in list(self._probes):
            op, word = self._probes[rank]
            self._end_probe(rank, op, lib.rmaext_op_wait(op[0]), word)

    def check(self, rank: int, where: str) -> None:
        """Raise PeerLostError if a rank has left without dying, which C does not notice."""
        if rank in self._near and not Beacon.visible(self.hellos[rank].beacon):
            raise PeerLostError(errno.ENOTCONN, f"{where}: the rank has left", rank=rank)

    def _start_probe(self, rank: int) -> None:
        assert self.fabric is not None
        word = np.zeros(1, np.uint8)
        op = self.fabric.hold(self._control_window, (word,))
        code = lib.rmaext_get(self._control_window, rank, 0, memory.address(word), 1, op)
        self._end_probe(rank, op, code, word)

    def _end_probe(self, rank: int, op: Any, code: int, word: Any) -> None:
        assert self.fabric is not None
        if code == lib.RMAEXT_PENDING:
            self._probes[rank] = (op, word)
            return
        error = from_c(code) if code else None
        self._probes.pop(rank, None)
        self.fabric.release(op)
        watched = rank in self._rank_of_fd.values()
        if error is not None and not (watched and isinstance(error, TimeoutError)):
            raise lost([rank], f"no answer: {error}") from error


def lost(ranks: list[int], why: str) -> PeerLostError:
    """Return the error for ranks that will never come."""
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    return PeerLostError(errno.ENOTCONN, f"{text}: {why}", rank=ranks[0])
