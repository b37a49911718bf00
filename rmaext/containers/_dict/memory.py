# SPDX-License-Identifier: BSD-3-Clause
"""The windows of a `Dict`, who is alive, and the sections that keep a slot from being used anew."""

from __future__ import annotations

import contextlib
import errno
import math
import operator
import random
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ... import Window
from ..._runtime.failures import advised
from ..._runtime.reports import Waiting, numbers
from ...errors import PeerLostError, RmaTimeout, Unsupported
from .hashing import Keys
from .values import Values

__all__ = ["ACTIVE", "COUNT", "ROOM", "SLOTS", "Memory", "Wait", "settings"]

Array = NDArray[Any]

SLOTS = 7  # of a bucket, which is a cache line: a word of its own, and their tags
# How many of the slots are filled at most: fewer, where they are short, so that nearly all
# entries are in their home buckets.
FILL, FILL_LONG, LONG = 0.5, 0.7, 4  # words
# words of the head, in cache lines of their own
ACTIVE, COUNT, _NEVER, ROOM = 0, 8, 16, 24
_WORD = np.dtype(np.uint64)
_LINGER = 1.0  # s after a rank's death, until nothing of its is in the network any more
_LOOK_EVERY = 0.01  # s


class Memory:
    """What a rank needs of all ranks' memory.

    Attributes
    ----------
    buckets, limit : int
        Of one rank: buckets, and the entries that it takes.
    gate : Window
        For fences only: when a rank is lost it closes, and the others stay open.
    head : Window
        A few words of each rank: the count of its active sections, odd within one; and for each
        rank what that has there, see state.py.
    rooms : Window
        The last of them, in one element.
    words, lines : Window
        The buckets, as words and as elements of 64 bytes. Word 0 of a bucket: from bit 32,
        how many entries passed it on the way to a later bucket, as it was full; below, the
        rank + 1 that holds its lock. Words 1 to 7: the tags of its slots.
    records : Window
        Keys and values of the slots, in their order.
    values : Window or None
        The same memory, in elements of the values, for atomic updates.
    sums : bool
        Whether values can be added to.
    call : str
        The one under way.
    gone : dict
        Ranks that are dead, and when that was noticed.
    """

    def __init__(
        self, comm: MPI.Comm, keys: Keys, values: Values, capacity: int, timeout: float | None
    ) -> None:
        self.keys, self.format = keys, values
        self.rank, self.size = comm.rank, comm.size
        self.me = self.rank + 1
        self.timeout = timeout
        each = capacity / self.size
        self.limit = min(capacity, math.ceil(each + 6 * math.sqrt(each) + 6))
        fill = FILL if values.record <= LONG else FILL_LONG
        self.buckets = math.ceil(self.limit / (fill * SLOTS))
        self.call = ""
        self.gone: dict[int, float] = {}
        self.values: Window[Any] | None = None
        self.sums = False

    def open(self, comm: MPI.Comm, stack: contextlib.ExitStack) -> None:
        """Make the windows. Collective."""
        words, enter = self.buckets * (SLOTS + 1), stack.enter_context
        slots, record = self.buckets * SLOTS, self.format.record
        self.gate = enter(Window.allocate(comm, 0, np.uint8, timeout=self.timeout))
        end = ROOM + comm.size
        self.head = enter(Window.allocate(comm, end, _WORD, timeout=self.timeout))
        self.keys.limit = self.format.limit = self.head.timeout
        self.rooms = self.head.subwindow(ROOM, end).view(f"V{8 * comm.size}")
        self.words = enter(Window.allocate(comm, words, _WORD, timeout=self.timeout))
        memory = enter(Window.allocate(comm, slots * record, _WORD, timeout=self.timeout))
        self._memory = memory
        self.lines = self.words.view("V64")
        self.records = memory.view(f"V{8 * record}")
        if self.format.unit is not None:
            self.values = memory.view(self.format.unit)
            try:  # is it defined? Of nothing, so nothing is sent.
                self.values.fetch_add_many(0, np.zeros(0, np.int64), np.zeros(0, self.format.unit))
                self.sums = self.format.unit == self.format.dtype
            except Unsupported:
                pass
        self._own = self.head.local
        self._add = self.head.fetch_add

    def windows(self) -> tuple[Window[Any], ...]:
        """Return those to close, in the order for that."""
        return self._memory, self.words, self.head, self.gate

    # -- active sections -----------------------------------------------------------
    # Whoever looks at a slot and then uses it does so in one. The count is an update of the
    # rank's own memory, which no later access overtakes: either a rank that has marked a slot
    # as BUSY sees this section and waits for its end, or the section sees the mark.

    def __enter__(self) -> None:
        self._add(1, self.rank, ACTIVE)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else `Entries.settle` leaves it, when nothing is on its way any more
            self._add(1, self.rank, ACTIVE)

    def leave(self) -> None:
        """End the section that an exception has ended."""
        if self._own[ACTIVE] & 1:
            self._add(1, self.rank, ACTIVE)

    def grace(self) -> None:
        """Wait until all sections have ended that were active when it was called.

        Raises
        ------
        RmaTimeout
            A rank that lives does not leave its own.
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        ranks = np.array([rank for rank in others if rank not in self.gone], np.int64)
        wait = Wait(self, "a rank that reads the table, to do so no longer")
        before: Array | None = None
        while ranks.size:
            try:
                now = self.head.get_many(ranks, ACTIVE)
            except PeerLostError as exc:
                self._find_gone(exc, ranks)
            else:
                if before is None:
                    before = now
                inside = (before & 1 == 1) & (before == now)
                ranks, before = ranks[inside], before[inside]
            if ranks.size:
                wait.on(ranks.tolist())
            kept = np.array([rank not in self.gone for rank in ranks.tolist()], bool)
            if not kept.all():
                ranks, before = ranks[kept], None if before is None else before[kept]
        for noticed in self.gone.values():  # updates of a dead rank may still come in
            while (left := noticed + _LINGER - time.monotonic()) > 0:
                self.nap(min(left, 0.05))

    def _find_gone(self, exc: PeerLostError, ranks: Array) -> None:
        """Find out who is gone after all of them were asked."""
        found = [rank for rank in ranks.tolist() if self.is_gone(rank)]
        if not found and exc.rank is not None:
            self.gone[exc.rank] = time.monotonic()

    # -- who lives -----------------------------------------------------------------

    def is_gone(self, rank: int) -> bool:
        """Tell whether a rank will do nothing more, as far as that is known."""
        if rank == self.rank:
            return False
        if rank not in self.gone:
            try:
                self.head.flush_local(rank)
            except PeerLostError:
                self.gone[rank] = time.monotonic()
        return rank in self.gone

    def nap(self, seconds: float) -> None:
        """Sleep a little, while MPI and rmaext make progress."""
        try:
            self.head.wait_until(_NEVER, "==", 1, timeout=seconds)
        except RmaTimeout:
            pass
        except PeerLostError:
            time.sleep(seconds)

    # -- together ------------------------------------------------------------------

    def together(self, call: str) -> None:
        """Wait for all ranks. Collective.

        Raises
        ------
        PeerLostError, SyncError
        """
        if self.gate.closed:
            text = f"Dict.{call}: a rank was lost, or an exception ended such a call on one: "
            text += "all have to come to it; the calls that are not collective go on"
            raise PeerLostError(errno.ENOTCONN, text, call=call)
        self.gate.fence()


def settings(
    key_dtype: Any, value_dtype: Any, capacity: Any, max_bytes: int | None
) -> tuple[Keys, Values, int]:
    """Return the formats of keys and values, and the capacity, or refuse them."""
    keys = Keys(key_dtype)
    values = Values(value_dtype, max_bytes, keys.words)
    count = operator.index(capacity)
    if not 0 < count < 1 << 32:
        raise ValueError(f"capacity={count}: entries of all ranks together, 1 or more")
    return keys, values, count


class Wait:
    """One wait for what other ranks do: it spins, then sleeps, and looks for the dead.

    Parameters
    ----------
    memory : Memory
    what : str
        That is waited for, for the error.
    """

    def __init__(self, memory: Memory, what: str) -> None:
        self._memory, self._what = memory, what
        self._waiting: Waiting | None = None
        self._turns = 0
        self._since = self._looked = time.monotonic()

    def on(self, ranks: Iterable[int]) -> list[int]:
        """Wait a little for some ranks; return those of them that are dead.

        Raises
        ------
        RmaTimeout
            After the time limit of the table.
        """
        self._turns += 1
        if self._turns <= 3:
            time.sleep(0)
            return []
        if self._waiting is None:
            text = f"Dict.{self._memory.call}, for {self._what}"
            self._waiting = Waiting(self._memory.head, text)
        ranks = list(set(ranks))
        self._waiting.goes_on(ranks)
        # of random length: so two that are in each other's way come apart
        longest = min(20e-6 * 2 ** min(self._turns - 3, 8), 2e-3)
        self._memory.nap(longest * random.uniform(0.5, 1))
        now = time.monotonic()
        if now < self._looked + _LOOK_EVERY:
            return []
        self._looked = now
        dead = [rank for rank in ranks if self._memory.is_gone(rank)]
        limit = self._memory.head.timeout
        if not dead and now > self._since + limit:
            text = f"Dict: {self._what}: not within {limit:g} s"
            text += f"; {numbers(sorted(ranks))} may be stopped" if ranks else ""
            text = advised(text, late=True)
            raise RmaTimeout(errno.ETIMEDOUT, text, call="Dict")
        return dead
