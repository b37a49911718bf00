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
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _lifetime, collective, memory
from ._lib import ffi, lib
from .config import PROVIDERS, Config
from .errors import ClosedError, KeyRecordError, PeerLostError, from_c
from .fabric import CONTROL_BYTES, Fabric
from .host import Beacon, Hello, choose, open_pidfd, usable, wanted_interface
from .keys import WindowRecord, agree, parse_all
from .library import open_library

__all__ = ["Group"]

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
        except BaseException as exc:
            self._unwatch()
            if isinstance(exc, Exception):  # on all ranks
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
        if group is _UNFINISHED:
            raise _out_of_step()
        if not isinstance(group, Group):
            # stays there when a signal interrupts what follows
            comm.Set_attr(cls._keyval, _UNFINISHED)
            try:
                group = cls(comm)
            except Exception:
                comm.Delete_attr(cls._keyval)
                raise
            comm.Set_attr(cls._keyval, group)
        return group

    @staticmethod
    def _comm_freed(_comm: MPI.Comm, _keyval: int, group: Any) -> None:
        if isinstance(group, Group):
            group.quit()

    def join(self) -> None:
        """Count a window in."""
        self._users += 1

    def quit(self) -> None:
        """Count a window, or the communicator, out; the last frees the duplicate."""
        self._users -= 1
        if self._users or _lifetime.ending():
            return
        self._unwatch()
        if self._control_window and not self._probes:
            lib.rmaext_window_close(self._control_window)
        self.comm.Free()

    def _unwatch(self) -> None:
        for fd in self._rank_of_fd:
            os.close(fd)
        self._rank_of_fd.clear()

    # -- set-up ----------------------------------------------------------------

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Bracket collective calls that belong together.

        If a signal or a lost peer ends them half-way, this rank no longer
        knows which collective the others are in: all later ones are refused.
        Errors that are the same on all ranks are raised outside.
        """
        if self._broken:
            self._look()
            raise _out_of_step()
        self._broken = True
        yield
        self._broken = False

    def gather(self, record: bytes) -> list[bytes]:
        """Return every rank's record. Collective."""
        with self.in_step():
            return collective.allgather(self.comm, record, self)

    def reduce(self, value: int) -> int:
        """Return the largest of the ranks' values. Collective."""
        with self.in_step():
            return collective.allreduce_max(self.comm, value, self)

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
        for rank, peer in enumerate(hellos):  # from here on the dead are noticed
            fd = open_pidfd(hellos[self.rank], peer)
            if fd >= 0:
                self._rank_of_fd[fd] = rank
                self._pidfds.register(fd, select.POLLIN)
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
        # only what may be chosen: a host can have hundreds of addresses
        likely = (
            {config.provider}
            if config.provider
            else {*PROVIDERS, os.environ.get("FI_PROVIDER", "")}
        )
        found = [c for c in found if c.provider in likely and usable(c)] or found[:100]
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
        return hello.net == self.hellos[self.rank].net and bool(Beacon.visible(hello.beacon))

    def _one_host(self) -> bool:
        """Tell whether all ranks share one loopback interface. Collective."""
        return not self.reduce(len(self._near) < self.size)

    def _open_fabric(self, scope: str, chosen: Any, config: Config) -> Fabric:
        local = sum(h.pids == self.hellos[self.rank].pids for h in self.hellos)
        cpus = self.hellos[self.rank].cpus
        # a spinning origin starves its target's thread when no core is idle
        spin = 50e-6 if local <= cpus else 2e-6
        fabric = Fabric.open(scope, chosen, config, spin)
        fabric.serve(0)
        return fabric

    def _connect(self, opener: Callable[[], Fabric], timeout: float) -> None:
        """Open the fabric; exchange its address and a word to read for a sign of life."""

        def mine() -> bytes:
            fabric = self.fabric = opener()
            key, base = fabric.control_key
            record = WindowRecord(CONTROL_BYTES, base, 0, lib.RMAEXT_READ, "", key)
            name: bytes = fabric.name()
            return len(name).to_bytes(2, "little") + name + record.pack()

        def theirs() -> bytes:
            assert self.fabric is not None
            fds = {rank: fd for fd, rank in self._rank_of_fd.items()}
            for rank, name in enumerate(names):
                # a descriptor of its own: the peer may serve later groups too
                fd = os.dup(fds[rank]) if rank in fds else -1
                self.peers[rank] = self.fabric.peer(name, fd)
            return b""

        def named(payload: bytes) -> tuple[bytes, WindowRecord]:
            n = int.from_bytes(payload[:2], "little")
            return payload[2 : 2 + n], WindowRecord.unpack(payload[2 + n :])

        parsed = parse_all(named, agree(self.gather, mine))
        names = [name for name, _ in parsed]
        records = [record for _, record in parsed]
        agree(self.gather, theirs)
        self._control_window, _ = self.window(
            records, self.key_length(records), ffi.NULL, timeout, force=True
        )

    def next_name(self) -> int:
        """Return a number for a window, the same on all ranks."""
        self._windows += 1
        return self._windows

    def next_key(self) -> int:
        """Return the next key that all ranks derive: 64 bits nobody else can guess."""
        self._count += 1
        return int.from_bytes(self._derive(b"key", self._count, 8), "little")

    def _derive(self, what: bytes, number: int, size: int) -> bytes:
        data = number.to_bytes(8, "little")
        return hashlib.blake2b(data, key=self._secret, person=what, digest_size=size).digest()

    def key_length(self, records: list[WindowRecord]) -> int:
        """Return the bytes of a key, the same for all; KeyRecordError if they differ."""
        lengths = {len(r.key) for r in records if r.size} if self.fabric else set()
        length = max(lengths, default=8)
        if len(lengths) > 1 or (self.fabric and not self.fabric.raw_keys and length != 8):
            raise KeyRecordError(errno.EPROTO, f"remote keys of {sorted(lengths)} bytes")
        return length

    def window(
        self,
        records: list[WindowRecord],
        key_len: int,
        local: Any,
        timeout: float,
        force: bool = False,
    ) -> tuple[Any, list[int]]:
        """Return the C window over what the ranks registered, and its routes."""
        fabric = self.fabric
        n = self.size
        routes = np.full(n, lib.RMAEXT_FABRIC, np.uint8)
        if fabric is None or (fabric.cpu_atomics and not self.forced and not force):
            routes[self.rank] = lib.RMAEXT_DIRECT
        maps = [ffi.NULL] * n
        maps[self.rank] = local
        columns = [
            ffi.new("rmaext_peer *[]", self.peers),
            ffi.NULL,  # near
            ffi.new("void *[]", maps),
            ffi.NULL,  # address
            ffi.new("uint64_t[]", [r.size for r in records]),
            ffi.new("uint64_t[]", [r.base for r in records]),
            ffi.new("uint8_t[]", [r.access for r in records]),
            ffi.new("uint8_t[]", [r.align for r in records]),
            ffi.from_buffer("uint8_t[]", routes),
            ffi.new("uint8_t[]", b"".join(r.key.ljust(key_len, b"\0") for r in records)),
        ]
        token = ffi.new("uint8_t[]", self._derive(b"window", self._windows, 16))
        targets = ffi.new("struct rmaext_targets *", [n, self.rank, token, *columns, key_len])
        handle = ffi.new("rmaext_window **")
        own = fabric.live() if fabric else ffi.NULL
        code = lib.rmaext_window_create(own, targets, int(timeout * 1e9), handle)
        if code:
            raise from_c(code)
        # the struct outlives close: another thread may still be inside a call
        return ffi.gc(handle[0], lib.rmaext_window_free), routes.tolist()

    # -- life ------------------------------------------------------------------

    def serve(self, seconds: float) -> None:
        """Pass a moment of a collective wait; PeerLostError if a peer is gone."""
        if self.fabric is None:
            collective.Nap().serve(seconds)
        else:
            self.fabric.serve(seconds)
            if not seconds:
                os.sched_yield()
        if not seconds:
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
        if self.fabric is not None:
            self.fabric.leave()

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
        left = [r for r in self._near if Beacon.visible(self.hellos[r].beacon) is False]
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
        if rank in self._near and Beacon.visible(self.hellos[rank].beacon) is False:
            raise PeerLostError(errno.ENOTCONN, f"{where}: the rank has left", rank=rank)

    def connect(self, ranks: list[int]) -> None:
        """Connect to ranks by the fabric, all at once."""
        fabric, window = self.fabric, self._control_window
        assert fabric is not None
        begun: list[tuple[int, Any, int]] = []
        try:
            for rank in ranks:
                op = fabric.hold(window, ())
                begun.append((rank, op, lib.rmaext_connect(window, rank, op)))
            for rank, op, code in begun:
                while code == lib.RMAEXT_PENDING:
                    self.check(rank, f"connect: rank {rank}")
                    code = lib.rmaext_op_wait(op[0])
                if code:
                    raise from_c(code, f"connect: rank {rank}")
        finally:
            for _, op, _ in begun:
                fabric.release(op)

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
        # without its thread it answers only when it calls the library itself
        watched = rank in self._rank_of_fd.values() or not self.hellos[rank].progress
        if error is not None and not (watched and isinstance(error, TimeoutError)):
            raise lost([rank], f"no answer: {error}") from error


_UNFINISHED = object()  # in place of a group whose creation was interrupted


def _out_of_step() -> ClosedError:
    text = "an earlier collective call over this communicator was interrupted"
    return ClosedError(errno.ESHUTDOWN, text)


def lost(ranks: list[int], why: str) -> PeerLostError:
    """Return the error for ranks that will never come."""
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    return PeerLostError(errno.ENOTCONN, f"{text}: {why}", rank=ranks[0])
