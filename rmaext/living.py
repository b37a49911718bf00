# SPDX-License-Identifier: BSD-3-Clause
"""Which ranks of a communicator are gone, for those who wait for some of them only."""

from __future__ import annotations

import select
import time

from .errors import PeerLostError
from .group import LOOK_EVERY, PROBE_EVERY, Group

__all__ = ["Living"]


class Living:
    """Knows the ranks that will do nothing more; for any thread."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._poll = select.poll()
        self._ranks = {fd: rank for rank, fd in group.pidfds.items()}
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
                found |= self._left()
        self._gone = self._gone | found  # what two threads lose so is found again
        return self._gone

    def _left(self) -> set[int]:
        """Return those that were taken out of the program by an exception, or do not answer."""
        group = self._group
        found = set(group.left())
        # never opened here: that is collective
        network = group._network
        if network is not None and 1 < group.size > len(group.near):
            try:
                network.probe()
            except PeerLostError as exc:
                found |= set() if exc.rank is None else {exc.rank}
        return found
