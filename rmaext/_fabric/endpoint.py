# SPDX-License-Identifier: BSD-3-Clause
"""The process's endpoints: what all windows share.

There are at most two, opened on first use and closed at exit: one that listens
on the loopback interface, for communicators within one host, and one on the
job's network. A rank's exposure is thus no larger than its communicators need.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .._memory.node import Arena
from .._memory.origins import Origins
from .._native import cmethods
from .._native._lib import ffi, lib
from .._runtime import lifetime, locks
from .._runtime.config import Config
from .._runtime.failures import check, from_c
from ..errors import ClosedError, NoProviderError
from .fabric import Fabric
from .library import Candidate, mr_mode_text
from .registration import KINDS, PLAIN, Registration
from .transport import open_transport

__all__ = ["Endpoint"]

_COUNTS = [name for name, _ in ffi.typeof("struct rmaext_stats").fields]
_LOCAL, _RAW = lib.RMAEXT_MR_LOCAL, lib.RMAEXT_MR_RAW
CONTROL_BYTES = 64
CLIENTS = 1024  # of other jobs that an endpoint answers at a time, see csrc/am/client.c
_KEYS_TRIED = 257  # of one-byte keys, all
# Buffers that only the network uses. Beyond these, the next request waits.
_ORPHANS = 1024
_ORPHAN_BYTES = 64 << 20
_PATIENCE = 3.0  # seconds without progress after which they may be twice as many


class Endpoint(cmethods.Endpoint):
    """An opened endpoint of libfabric; users see it as a `Fabric`.

    The C type it derives from keeps what C still uses of operations that nobody has any more.

    Attributes
    ----------
    provider, domain, address : str
        As libfabric names them; the address is the endpoint's own.
    transport : str
        "libfabric" or "ucx".
    version : str
        Of the library that was opened, e.g. "1.17".
    library : str
        Its path.
    key_size : int
        Bytes of a remote key.
    auth_key_size : int
        Bytes of an authorization key; 0: there are none.
    iov_limit : int
        Pieces of memory that may be registered as one region.
    mr_bits, capabilities : int
        As libfabric has them.
    guarded : bool
        Connections of other users, and from other hosts, are closed unread.
    mr_mode : str
        What the provider demands of registrations, e.g. "VIRT_ADDR|PROV_KEY".
    """

    _opened: ClassVar[dict[str, Endpoint]] = {}
    _opening: ClassVar[Any] = locks.lock()

    def __init__(
        self, scope: str, chosen: Candidate, config: Config, spin: float, processes: int
    ) -> None:
        library = open_transport(config)
        self.candidate, self.transport = chosen, config.transport
        options = ffi.new("struct rmaext_fabric_options *")
        texts = {
            "provider": chosen.provider,
            # an address implies its domain; names differ between versions
            "domain": "" if chosen.address else chosen.domain,
            "address": chosen.address,
        }
        keep = {name: ffi.new("char[]", text.encode()) for name, text in texts.items() if text}
        for name, text in keep.items():
            setattr(options, name, text)
        options.mr_basic, options.hmem = config.mr_basic, config.hmem
        options.cache_count, options.cache_bytes = config.cache_count, config.cache_bytes
        options.progress, options.processes = config.progress, processes
        options.spin_ns = int(spin * 1e9)
        options.arena = Arena.own_handle()
        networks = ffi.new("struct rmaext_network[]", config.admit or ())
        options.networks, options.network_count = networks, len(networks)
        options.everyone = config.admit is None
        options.one_host = scope == "host"
        secret = ffi.from_buffer("uint8_t[]", config.secret)
        options.secret = secret if config.secret else ffi.NULL
        self._handle = ffi.new("rmaext_fabric **")
        check(lib.rmaext_fabric_open(library.handle, options, self._handle))

        info = ffi.new("struct rmaext_fabric_info *")
        lib.rmaext_fabric_describe(self.handle, info)
        self.provider: str = ffi.string(info.provider).decode()
        self.domain: str = ffi.string(info.domain).decode()
        self.address: str = ffi.string(info.address).decode()
        self.version = library.version
        self.library = library.path
        self.mr_bits, self.capabilities = int(info.mr_mode), int(info.caps)
        self.auth_key_size = int(info.auth_key_size)
        self.raw_keys = bool(self.mr_bits & _RAW)
        # a raw key has one base
        self.iov_limit = 1 if self.raw_keys else int(info.mr_iov_limit)
        self.key_size = int(info.key_size)
        self.guarded = bool(info.guarded)

        # arrays that C may keep registered; None where the provider does not want it
        self.origins = Origins(self) if self.mr_bits & _LOCAL else None
        self._lock = locks.lock()
        self._peers: dict[bytes, Any] = {}
        self._secret: bytes | None = None
        self._bind(None if self.origins is None else self.origins.know)
        self._allowance = 1  # how many times as much as usual nobody may wait for
        # what C may still touch until it is deregistered
        self._kept: dict[int, tuple[Any, ...]] = {}
        self.public = Fabric(self)
        self.watcher: Any = None  # of requests that coroutines await
        lifetime.on_exit(self.close)
        lifetime.on_end(self)
        # a word that peers read for a sign of life, until the endpoint is closed
        word = np.ones(CONTROL_BYTES, np.uint8)
        pieces = [(ffi.from_buffer(word), CONTROL_BYTES)]
        held = self.register(pieces, lib.RMAEXT_READ, _random_key())
        self.keep(held, word)
        self.control_key = self.key(held)

    @property
    def handle(self) -> Any:
        """The C object; NULL once closed."""
        return self._handle[0]

    def live(self) -> Any:
        """Return the C object; ClosedError at exit and in forked children."""
        handle = self.handle  # once: another thread may close it meanwhile
        if not handle:
            text = (
                "the endpoint is closed: this process exits, was forked, or has called MPI.Finalize"
            )
            raise ClosedError(errno.ESHUTDOWN, text)
        return handle

    @property
    def mr_mode(self) -> str:
        """Demands of the provider, by name."""
        return mr_mode_text(self.mr_bits)

    @property
    def stats(self) -> dict[str, int]:
        """Counts since it was opened.

        Of operations: posted, completed, failed. Of the progress thread:
        thread_wakeups. Of memory: registrations, deregistrations. Of origins, where
        the provider demands that they are registered (FI_MR_LOCAL): hits, misses,
        evictions, bounced. Of connections: admitted, refused.
        """
        stats = ffi.new("struct rmaext_stats *")
        handle = self.handle
        if handle:
            lib.rmaext_fabric_stats(handle, stats)
        return {name: int(getattr(stats, name)) for name in _COUNTS}

    @classmethod
    def get(cls, scope: str) -> Endpoint | None:
        """Return the endpoint of a scope, "host" or "network", if it is open."""
        fabric = cls._opened.get(scope)
        return fabric if fabric is not None and fabric.handle else None

    @classmethod
    def open(
        cls, scope: str, chosen: Candidate, config: Config, spin: float, processes: int
    ) -> Endpoint:
        """Open the endpoint of a scope, for about so many, or return the one that is open."""
        with cls._opening:
            fabric = cls.get(scope)
            if fabric is None:
                made = cls(scope, chosen, config, spin, processes)
                fabric = cls.get(scope)
                if fabric is None:
                    fabric = cls._opened[scope] = made
                else:  # a signal handler was faster
                    made.close()
        if fabric.provider != chosen.provider:
            text = f"provider {chosen.provider}: this process uses {fabric.provider} already"
            raise NoProviderError(errno.EBUSY, text)
        return fabric

    def name(self) -> bytes:
        """Return the endpoint's address for the peers."""
        buf, size = ffi.new("char[1024]"), ffi.new("size_t *", 1024)  # ucx has long ones
        check(lib.rmaext_fabric_address(self.live(), buf, size))
        return bytes(ffi.buffer(buf, size[0]))

    def secret(self) -> bytes:
        """Return the secret that clients need, processes of other jobs; it admits them."""
        with self._lock:
            if self._secret is None:
                secret = os.urandom(16)
                check(lib.rmaext_clients_admit(self.live(), secret))
                self._secret = secret
            return self._secret

    def peer(self, name: bytes, pidfd: int, which: bytes = b"") -> Any:
        """Return the handle of the peer with that address; owns pidfd.

        `which`: of several processes that have the address one after another.
        """
        with self._lock:
            known = self._peers.get(name + which)
            if known is not None:
                if pidfd >= 0:
                    os.close(pidfd)
                return known
            peer = ffi.new("rmaext_peer **")
            check(lib.rmaext_peer_add(self.live(), name, len(name), pidfd, peer))
            self._peers[name + which] = peer[0]
            return peer[0]

    def register(
        self,
        pieces: Sequence[tuple[Any, int]],
        access: int,
        key: int,
        how: Registration = PLAIN,
    ) -> Any:
        """Register memory, one region; returns a C handle holder for `deregister`.

        Parameters
        ----------
        pieces : sequence of pointer and length
        access : int
            Rights of origins.
        key : int
            To ask for, if the provider lets us choose; one that is taken is replaced
            by another. It counts only if `how` names none.
        how : Registration
        """
        how._check(self)
        array = ffi.new("struct rmaext_piece[]", [*pieces])
        auth_key = ffi.from_buffer(how.auth_key)
        options = ffi.new("struct rmaext_memory_options *")
        options.pieces, options.n_pieces, options.access = array, len(pieces), access
        options.requested_key = key if how.key is None else how.key
        if how.auth_key:
            options.auth_key, options.auth_key_len = auth_key, len(how.auth_key)
        options.iface, options.device = KINDS[how.kind], how.device
        options.persistent, options.counts_writes = how.persistent, how.counts_writes
        memory = ffi.new("rmaext_memory **")
        for i in range(_KEYS_TRIED):
            code = lib.rmaext_memory_register(self.live(), options, memory)
            if code != -lib.RMAEXT_ENOKEY or how.key is not None:
                break
            options.requested_key = (options.requested_key + 1) % 2**64 if i else _random_key()
        if code == -errno.ENOMEM:
            raise MemoryError(f"{from_c(code)}; of locked memory there may be {_lockable()}")
        check(code, "" if how.key is None else f"key={how.key:#x}")
        if how.counts_writes:
            try:
                self.writes(memory)
            except Exception:
                self.deregister(memory)
                raise
        return memory

    def refresh(self, memory: Any, offset: int, nbytes: int, where: str) -> None:
        """Tell the provider that other pages back these bytes of a registered memory."""
        check(lib.rmaext_memory_refresh(memory[0], offset, nbytes), where)

    def writes(self, memory: Any) -> int:
        """Return how often others have written to a registered memory, as far as that counts."""
        count = ffi.new("uint64_t *")
        check(lib.rmaext_memory_writes(memory[0], count), "writes_received")
        return int(count[0])

    def deregister(self, memory: Any) -> None:
        """Deregister; harmless when the fabric is closed or it was done before."""
        if self.handle and memory[0]:
            check(lib.rmaext_memory_close(memory))
        if self._stuck:
            return  # a thread that is still inside the provider may write there
        self._kept.pop(id(memory), None)

    def key(self, memory: Any) -> tuple[bytes, int]:
        """Return the key that lets a peer use the memory, and the base of its addresses."""
        size = ffi.new("size_t *", 0)
        lib.rmaext_memory_key(memory[0], ffi.NULL, size)  # asks for the size
        buf = ffi.new("char[]", size[0])
        check(lib.rmaext_memory_key(memory[0], buf, size))
        return bytes(ffi.buffer(buf, size[0])), int(lib.rmaext_memory_base(memory[0]))

    def serve(self, seconds: float) -> None:
        """Read the completion queue for about so long."""
        handle = self.handle
        if handle:
            lib.rmaext_fabric_progress(handle, int(seconds * 1e9))

    def leave(self) -> None:
        """Let the progress thread take over at once."""
        handle = self.handle
        if handle:
            lib.rmaext_fabric_leave(handle)

    # -- buffers -------------------------------------------------------------

    def settle(self) -> None:
        """Wait while too much is on its way that nobody waits for.

        If none of it moves, its target may have stopped; that must not keep us
        from the others, so then there may be more.
        """
        if not self._orphans:
            self._allowance = 1
        if self._is_within(1):
            return
        seen, since, last = ffi.new("uint64_t *"), time.monotonic(), -1
        while True:
            self._reap(self._orphans)
            handle = self.handle
            if self._is_within(0.5) or not handle:
                return
            now = time.monotonic()
            if seen[0] != last:
                since, last = now, seen[0]
            elif now - since > _PATIENCE:
                self._allowance *= 2
                return
            if lib.rmaext_fabric_wait_ended(handle, seen, lib.RMAEXT_SLICE):
                return  # it is being closed

    def _is_within(self, part: float) -> bool:
        part *= self._allowance
        return self._orphans < part * _ORPHANS and self._orphan_bytes < part * _ORPHAN_BYTES

    def keep(self, memory: Any, array: Any) -> None:
        """Keep an array until it is deregistered, or the endpoint closed."""
        self._kept[id(memory)] = (memory, array)

    def close(self) -> None:
        """Close the endpoint; local. Peers' operations on this rank then fail."""
        held = self._handle  # once: a signal handler may end all of it meanwhile
        if not held[0]:
            return
        self._close()  # whatever is raised from here on: what C uses is kept for ever
        code = lib.rmaext_fabric_close(held)
        if not held[0] and code != lib.RMAEXT_PENDING:
            self._closed()
            self._kept.clear()
        # else a thread is inside a call, or the endpoint has to stay

    def _forget(self) -> None:
        """After the end of MPI, or in a forked child: there is no endpoint to touch."""
        self._close()  # unless it was closed; a child's own memory is not C's anyhow
        self._handle = ffi.new("rmaext_fabric **")
        self.watcher = None


def _random_key() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _lockable() -> str:
    """Return how much memory a provider may lock for this process."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    most = "any number of" if limit == resource.RLIM_INFINITY else str(limit)
    return f"{most} bytes (ulimit -l)"
