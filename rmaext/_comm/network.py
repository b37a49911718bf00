# SPDX-License-Identifier: BSD-3-Clause
"""The endpoints of a communicator's ranks, opened when a window first needs them."""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .._fabric.endpoint import CONTROL_BYTES, Endpoint
from .._fabric.library import Candidate
from .._fabric.transport import open_transport
from .._memory.arrays import move_call
from .._native._lib import ffi, lib
from .._native.cmethods import Owner
from .._record import writer
from .._runtime.config import PROVIDERS, Config
from .._runtime.failures import check, from_c, from_code, of_all
from .._runtime.log import log
from .._runtime.reports import numbers
from ..errors import KeyRecordError, PeerLostError, RmaError
from .agreement import agree, blame, parse_all
from .columns import Columns, Ways
from .host import Hello
from .provider_choice import choose, usable, wanted_interface
from .window_record import WindowRecord

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Network", "check_keys", "offers"]

_PROBES = 4  # peers read at a time: all p are covered in p/4 seconds


def offers(config: Config) -> dict[str, Any]:
    """Return what this process could open, for its `Hello`."""
    import ipaddress  # noqa: F401 - here, where all fail if one does; others' offers need it

    library = open_transport(config)
    found = library.candidates(config.provider, config.mr_basic)
    # what there is instead, for the error message
    found = found or library.candidates("", config.mr_basic)
    # only what may be chosen: a host can have hundreds of addresses
    likely = (
        {config.provider}
        if config.provider
        else {*PROVIDERS, config.transport, os.environ.get("FI_PROVIDER", "")}
    )
    found = [c for c in found if c.provider in likely and usable(c)] or found[:100]
    opened = {}
    for scope in ("host", "network"):
        fabric = Endpoint.get(scope)
        if fabric:
            opened[scope] = fabric.candidate
    return {
        "version": library.version,
        "candidates": wanted_interface(found, config.iface) if found else found,
        "opened": opened,
    }


class Network:
    """Endpoint, peers and signs of life of one communicator. Made collectively.

    Attributes
    ----------
    fabric : Endpoint
        This process's endpoint.
    """

    def __init__(self, group: Group, hellos: Sequence[Hello], config: Config) -> None:
        self._group = group
        # no lock, as a signal handler that raises would leave it taken: whoever takes a
        # probe out of here looks at it, and puts it back
        self._probes: deque[tuple[int, Owner]] = deque()
        self._far = itertools.count()
        scope = "host" if group.one_host else "network"
        chosen = choose(hellos, scope)[group.rank]
        others = [rank for rank, it in enumerate(hellos) if it.version != hellos[0].version]
        if others and not group.rank:
            text = "rank 0 has %s %s, but %s another, such as %s: let RMAEXT_%s name the same one "
            text += "everywhere, if anything is strange"
            first, other = hellos[0], hellos[others[0]].version
            what = first.transport, first.version, numbers(others), other, first.transport.upper()
            log.warning(text, *what)
        where = f"{chosen.iface or chosen.domain} {chosen.address}".strip()
        log.info("endpoint for one %s: provider %s, %s", scope, chosen.provider, where)
        self._connect(scope, chosen, config)
        writer.network(f"{chosen.provider} {chosen.iface or chosen.domain}".strip())

    def _open(self, scope: str, chosen: Candidate, config: Config) -> Endpoint:
        # later communicators use it, too
        most = max(self._group.size, MPI.COMM_WORLD.size)
        fabric = Endpoint.open(scope, chosen, config, self._group.spin, most)
        fabric.serve(0)
        return fabric

    def _connect(self, scope: str, chosen: Candidate, config: Config) -> None:
        """Open the fabric; exchange its address and a word to read for a sign of life."""
        group = self._group

        def mine() -> bytes:
            fabric = self.fabric = self._open(scope, chosen, config)
            key, base = fabric.control_key
            record = WindowRecord(CONTROL_BYTES, base, lib.RMAEXT_READ, "", key)
            name: bytes = fabric.name()
            return len(name).to_bytes(2, "little") + name + record.pack()

        def theirs() -> bytes:
            longest = max(map(len, names))
            if self.fabric.transport == "ucx":  # longer with more devices
                names[:] = [name.ljust(longest, b"\0") for name in names]
            if odd := next((name for name in names if len(name) != len(names[0])), None):
                self.fabric.peer(odd, -1)  # which says what is wrong with it
            self._addresses = b"".join(names), longest
            ways = Ways(group.here)
            token = os.urandom(16)  # no message is meant for it
            columns = Columns.of(records, key_len)
            self.control_window = group.window(self, columns, ways, config.timeout, token)
            return b""

        def named(payload: bytes) -> tuple[bytes, WindowRecord]:
            n = int.from_bytes(payload[:2], "little")
            return payload[2 : 2 + n], WindowRecord.unpack(payload[2 + n :])

        parsed = parse_all(named, agree(group.gather, mine))
        names = [name for name, _ in parsed]
        records = [record for _, record in parsed]
        key_len = len(records[0].key)
        odd = [rank for rank, record in enumerate(records) if len(record.key) != key_len]
        if odd:
            raise blame(odd, KeyRecordError, "remote keys of different lengths")
        check_keys(self.fabric, key_len)
        agree(group.gather, theirs)
        del self._addresses  # C has them

    def introduce(self, members: Any) -> None:
        """Tell C the addresses of a communicator's ranks, for its table of them."""
        group = self._group
        addresses, length = self._addresses
        pidfds = group.watch.pidfds
        keep = (
            ffi.from_buffer("uint8_t[]", addresses),
            ffi.from_buffer("uint8_t[]", group.hellos.progress),
            ffi.new("int64_t[]", sorted(pidfds)),
            ffi.new("int32_t[]", [pidfds[rank] for rank in sorted(pidfds)]),
        )
        told = ffi.new("struct rmaext_addresses *")
        told.address, told.serves, told.ranks, told.pidfds = keep
        told.len, told.pidfd_count = length, len(pidfds)
        check(lib.rmaext_members_connect(members, self.fabric.live(), told))

    def end(self) -> None:
        """End of the communicator."""
        if not self._probes:
            lib.rmaext_window_close(self.control_window)

    def connect(self, ranks: list[int]) -> None:
        """Connect to ranks, all at once, by reading from them."""
        begun: list[tuple[int, Owner, int]] = []
        try:
            for rank in ranks:
                op, what = self._reading(rank, CONTROL_BYTES, True)
                begun.append((rank, op, op.start(what)))
            for rank, op, code in begun:
                self._await(rank, op, code)
        finally:
            for _, op, _ in begun:
                op.release()

    def _await(self, rank: int, op: Owner, code: int) -> None:
        where = f"connect: rank {rank}"
        if code == lib.RMAEXT_PENDING:
            code = self._group.watch.wait(op, where, lambda: (rank,))
        if code:
            error = from_code(code, where)
            if isinstance(error, RmaError) and error.call == "get":
                error.call = "connect"
            raise error

    def _reading(self, rank: int, nbytes: int, begin: bool = False) -> tuple[Owner, Any]:
        """Return what is to read bytes of a rank's word, and its call."""
        word = np.zeros(nbytes, np.uint8)
        what = move_call(lib.RMAEXT_GET, word)
        what.rank = rank
        return Owner(self.fabric, self.control_window, (word,), begin), what

    # -- signs of life ---------------------------------------------------------

    def probe(self) -> None:
        """Read a word from the next few peers of other hosts.

        One that does not answer but has a pidfd which says that it lives is only
        stopped; without a pidfd it counts as lost after the time limit.
        """
        self.fabric.live()
        group = self._group
        far = group.size - len(group.watch.near)
        for turn in itertools.islice(self._far, min(_PROBES, far)):
            rank = turn % far
            for near in group.watch.near:  # in order
                rank += near <= rank
            if not any(rank == other for other, _ in list(self._probes)):
                self._start_probe(rank)
        for _ in range(len(self._probes)):
            try:
                rank, op = self._probes.popleft()
            except IndexError:  # another thread looks at it
                return
            self._end_probe(rank, op, op.wait(lib.RMAEXT_SLICE))

    def _start_probe(self, rank: int) -> None:
        op, what = self._reading(rank, 1)
        self._end_probe(rank, op, op.start(what))

    def _end_probe(self, rank: int, op: Owner, code: int) -> None:
        if code == lib.RMAEXT_PENDING:
            self._probes.append((rank, op))
            return
        error = from_c(code) if code else None
        op.release()
        # without its thread it answers only when it calls the library itself
        watched = rank in self._group.watch.pidfds or not self._group.hellos.progress[rank]
        if error is not None and not (watched and isinstance(error, TimeoutError)):
            raise lost([rank], f"no answer: {error}") from error


def during(what: str, error: PeerLostError, worded: Callable[[str], str] = str) -> PeerLostError:
    """Return an error of lost ranks that also says which call they were waited for in.

    `worded` is what its text is put through: `advised`, where the call has waited.
    """
    told = PeerLostError(errno.ENOTCONN, worded(f"{what}: {error}"), rank=error.rank)
    told.call, told.ranks = what.partition(" ")[0], error.ranks
    return told


def lost(ranks: list[int], why: str) -> PeerLostError:
    """Return the error for ranks that will never come."""
    log.info("lost: %s: %s", numbers(ranks), why)
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    error = PeerLostError(errno.ENOTCONN, f"{text}: {why}", rank=ranks[0])
    error.ranks = tuple(ranks)
    return error


def check_keys(fabric: Endpoint, length: int) -> None:
    """Raise KeyRecordError, on all ranks, unless their keys have a length that can be."""
    if not fabric.raw_keys and length != 8:
        raise of_all(KeyRecordError(errno.EPROTO, f"remote keys of {length} bytes"))
