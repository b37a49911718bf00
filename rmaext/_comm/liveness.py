# SPDX-License-Identifier: BSD-3-Clause
"""Which ranks of a communicator are gone."""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .._native._lib import lib
from .._runtime.reports import Patience
from ..errors import PeerLostError
from .host import Beacon, Hellos, pidfd_of
from .network import lost

if TYPE_CHECKING:
    from .._memory.node import Process
    from .._native.cmethods import Owner
    from .group import Group
    from .network import Network

__all__ = ["LOOK_EVERY", "Living", "Waits", "Watch"]

LOOK_EVERY = 0.01  # seconds between looks at the pidfds
PROBE_EVERY = 1.0  # seconds between looks for those that live but have left
_MOST = 4  # lost ranks of which a text says what ended them


class Waits:
    """Waits for what C has begun; `check` notices that a rank is gone."""

    def check(self, rank: int, where: str) -> None:
        """Raise PeerLostError if a rank has left without dying, which C does not notice."""
        raise NotImplementedError

    def wait(
        self,
        op: Owner,
        where: str,
        ranks: Callable[[], Iterable[int]],
        told: Callable[[], Sequence[int] | None] = lambda: None,
    ) -> int:
        """Wait until what C has begun has ended, for any of these ranks; return C's code.

        C returns every 100 ms and after a signal, so that a signal handler may raise here. It may
        be waited for again, also if it has ended by then. `told` are the ranks that a report of a
        long wait names, unless `where` does.
        """
        code: int = lib.RMAEXT_PENDING
        with Patience() as patience:
            # 3.15 leaves the jump back of another loop unguarded: tests/support/jumps.py
            while True:
                if code != lib.RMAEXT_PENDING:
                    break
                for rank in ranks():
                    self.check(rank, where)
                patience.look(where, told)
                code = op.wait(lib.RMAEXT_SLICE)
        return code


class Watch(Waits):
    """Raises PeerLostError when a rank is gone, for those who wait for all.

    Attributes
    ----------
    pidfds : dict
        Rank to descriptor.
    near : list of int
        Ranks whose beacons can be seen.
    processes : dict of Process
        Those proven to be on this node, by rank.
    told : callable
        What a rank has told of its end; "" if nothing.
    """

    def __init__(self, hellos: Hellos | None = None) -> None:
        self._hellos = {} if hellos is None else hellos.near
        self.pidfds: dict[int, int] = {}
        self._poll = select.poll()
        self._next_look = self._next_probe = 0.0
        self.near: list[int] = []
        self.told: Callable[[int], str] = lambda rank: ""
        self.processes: dict[int, Process] = {}
        if hellos is None:
            return
        for other, hello in self._hellos.items():
            fd = pidfd_of(hellos.own, hello)
            if fd >= 0:
                self.pidfds[other] = fd
                self._poll.register(fd, select.POLLIN)
        ours = [rank for rank, hello in self._hellos.items() if hello.net == hellos.own.net]
        seen = self._visible(ours)
        self.near = [rank for rank in ours if seen[rank]]

    def _visible(self, ranks: list[int]) -> dict[int, bool | None]:
        beacons = [self._hellos[rank].beacon for rank in ranks]
        return dict(zip(ranks, Beacon.visible_of(beacons), strict=True))

    def look(self, network: Network | None, beacons: bool = True) -> None:
        """Raise if a peer is gone, as far as it is time to look."""
        for look in self._due(network, beacons):
            look()

    def look_out(self, network: Network | None, known: set[int]) -> None:
        """Raise if a peer is gone that is not among the known, and add it there."""
        for look in self._due(network, beacons=True):
            try:
                look()
            except PeerLostError as exc:
                if known.issuperset(exc.ranks):
                    continue
                known.update(exc.ranks)
                raise

    def _due(self, network: Network | None, beacons: bool) -> list[Callable[[], None]]:
        """Return the looks that it is time for."""
        due: list[Callable[[], None]] = []
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            due.append(self.look_for_the_dead)
        if beacons and now >= self._next_probe and self.near:
            self._next_probe = now + PROBE_EVERY
            due.append(self.look_for_beacons)
            if network is not None:
                due.append(network.probe)
        return due

    def look_for_the_dead(self) -> None:
        """Raise if a process has ended."""
        try:
            gone = {fd for fd, _ in self._poll.poll(0)}
        except RuntimeError:  # another thread is in poll
            return
        if gone:
            ranks = [rank for rank, fd in self.pidfds.items() if fd in gone]
            raise self.explained(lost(sorted(ranks), "the process is gone"))

    def ended(self) -> list[int]:
        """Return those of this host that live but have left.

        An exception took them out of the program, and they wait in
        MPI_Finalize: their endpoints are closed, and their beacons. Their own
        mark says so too, where their memory is mapped.
        """
        return self._ended_of(self.near)

    def _ended_of(self, ranks: list[int]) -> list[int]:
        seen = self._visible(ranks)
        return [rank for rank in ranks if seen[rank] is False or self._marked_ended(rank)]

    def _marked_ended(self, rank: int) -> bool:
        process = self.processes.get(rank)
        return process is not None and process.ended()

    def look_for_beacons(self) -> None:
        """Raise if one has left."""
        ended = self.ended()
        if ended:
            raise self.explained(lost(ended, "has left"))

    def last_words(self, ranks: Sequence[int]) -> list[str]:
        """Return what has ended ranks, as far as they have told: "rank 3 ended by ..."."""
        return [f"rank {rank} {told}" for rank in ranks[:_MOST] if (told := self.told(rank))]

    def explained(self, error: PeerLostError) -> PeerLostError:
        """Return the error of lost ranks with what ended them, as far as they have told."""
        ranks = error.ranks or ([] if error.rank is None else [error.rank])
        words = self.last_words(ranks)
        if error._explained or not words:
            return error
        text = "; ".join(words) if len(words) == len(ranks) else f"{error}; {'; '.join(words)}"
        found = PeerLostError(error.errno or errno.ENOTCONN, text, rank=error.rank)
        found.ranks, found._explained = error.ranks, True
        return found

    def check(self, rank: int, where: str) -> None:
        """Raise if a rank has left without dying, which C does not notice."""
        if rank in self.near and self._ended_of([rank]):
            text = f"{where}: rank {rank} {self.told(rank) or 'has left'}"
            raise PeerLostError(errno.ENOTCONN, text, rank=rank)


class Living:
    """Knows the ranks that will do nothing more, for those who wait for some; for any thread."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._poll = select.poll()
        self._ranks = {fd: rank for rank, fd in group.watch.pidfds.items()}
        for fd in self._ranks:
            self._poll.register(fd, select.POLLIN)
        self._gone: set[int] = set()
        self._next_look = self._next_probe = 0.0

    def gone(self) -> set[int]:
        """Return the ranks that are gone, as far as it is time to look."""
        # no lock: a signal handler that raises would leave it taken
        now = time.monotonic()
        if now < self._next_look:
            return self._gone
        self._next_look = now + LOOK_EVERY
        try:
            found = {self._ranks[fd] for fd, _ in self._poll.poll(0)}
        except RuntimeError:  # another thread is in poll
            return self._gone
        if now >= self._next_probe:
            first, self._next_probe = not self._next_probe, now + PROBE_EVERY
            if not first:  # not in the first moment of a wait
                found |= self._ended()
        self._gone = self._gone | found  # what two threads lose so is found again
        return self._gone

    def _ended(self) -> set[int]:
        """Return those that were taken out of the program by an exception, or do not answer."""
        group = self._group
        found = set(group.watch.ended())
        # never opened here: that is collective
        network = group._network
        if network is not None and 1 < group.size > len(group.watch.near):
            try:
                network.probe()
            except PeerLostError as exc:
                found |= set() if exc.rank is None else {exc.rank}
        return found
