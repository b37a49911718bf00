# SPDX-License-Identifier: BSD-3-Clause
"""The protocol of a `Dict`: how entries are made, changed and removed."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CapacityError, PeerLostError, RmaError
from .hashing import BUSY, FULL, Query, Words
from .memory import ASIDE, SLOTS, USED, Memory, Wait
from .slots import LOCKED, MISSING, PASSED, UNDECIDED, Found, Index, Slots

__all__ = ["Entries"]

_OTHER = np.uint64(FULL | BUSY)  # from FULL to BUSY, and back
_VERSION_UNIT, _VERSIONS = 1 << 20, ((1 << 18) - 1) << 20


@dataclass
class Room:
    """What a call has set aside at some ranks.

    Attributes
    ----------
    ranks, counts : numpy.ndarray
        Where, and for how many entries.
    unused : numpy.ndarray
        How many of these it has not made.
    counted : bool
        It is in the ranks' `USED`.
    """

    ranks: Index
    counts: Index
    unused: Index = field(init=False)
    counted: bool = False

    def __post_init__(self) -> None:
        self.unused = self.counts


class Entries(Slots):
    """What changes the slots of all ranks."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._room: Room | None = None  # that the call under way has set aside

    # -- locks of home buckets -----------------------------------------------------

    def _lock(self, q: Query) -> tuple[NDArray[np.bool_], list[int]]:
        """Try to take the locks of homes, which differ; return which, and who has the others."""
        places = q.homes * 8
        old = self._m.words.get_many(q.ranks, places) & ~np.uint64(LOCKED)
        got = np.zeros(len(places), bool)
        rows = np.arange(len(places))
        holders: list[int] = []
        while rows.size:
            mine = (old[rows] & ~np.uint64(LOCKED)) | np.uint64(self._m.me)
            before = self._swap(q.ranks[rows], places[rows], old[rows], mine)
            owner = before & LOCKED
            got[rows] = (before == old[rows]) | (owner == self._m.me)
            old[rows] = before
            again = ~got[rows] & (owner == 0)  # another entry has passed the bucket
            for k in np.flatnonzero(~got[rows] & (owner != 0)):
                holder = int(owner[k]) - 1
                if holder in self._m.gone:
                    again[k] = True  # its lock is taken over
                else:
                    holders.append(holder)
            rows = rows[again]
        return got, holders

    def _unlock(self, q: Query) -> None:
        """Give back the locks that this rank has."""
        places = q.homes * 8
        old = self._m.words.get_many(q.ranks, places)
        rows = np.flatnonzero(old & LOCKED == self._m.me)
        while rows.size:
            free = old[rows] & ~np.uint64(LOCKED)
            before = self._swap(q.ranks[rows], places[rows], old[rows], free)
            again = (before != old[rows]) & (before & LOCKED == self._m.me)
            old[rows] = before
            rows = rows[again]

    @contextlib.contextmanager
    def _locked(self, q: Query) -> Iterator[None]:
        """Give the locks back at the end, whatever happens, and slots that are still BUSY."""
        try:
            yield
        except BaseException:
            for rank in set(q.ranks.tolist()) - set(self._m.gone):
                some = q.take(q.ranks == rank)
                with contextlib.suppress(RmaError):
                    self._drop(some)
                    self._unlock(some)
            raise
        self._unlock(q)

    def _drop(self, q: Query) -> None:
        """Free the slots that this rank was about to fill when it was interrupted."""
        rows, there = np.arange(len(q.ranks)), q.homes
        for step in range(1, self._m.buckets + 1):
            lines = self._lines(q.ranks[rows], there)
            mine = (
                lines & ~np.uint64(_VERSIONS) == (q.want[rows, None] ^ (FULL | BUSY)) | self._m.me
            )
            for i, j in zip(*mine.nonzero(), strict=True):
                place = int(there[i]) * 8 + int(j)
                self._swap_one(int(q.ranks[rows[i]]), place, int(lines[i, j]), 0)
            on = lines[:, 0] >= PASSED
            rows = rows[on]
            if not rows.size:
                return
            there = (q.homes[rows] + step) % self._m.buckets

    # -- new entries ---------------------------------------------------------------

    def insert(self, q: Query, records: Words, wait: Wait) -> NDArray[np.bool_]:
        """Make entries for keys that are not there.

        Parameters
        ----------
        q : Query
            No key is in it twice.
        records : numpy.ndarray
            Of the keys.
        wait : Wait
            Of the call.

        Returns
        -------
        numpy.ndarray
            Of bool: which are made. The caller has to look for the others again: they are
            there, by other ranks; or others had set room aside that they may not need.

        Raises
        ------
        CapacityError
            None is made, as there is no room for all.
        RmaTimeout, PeerLostError
            Some may have been made.
        """
        made = np.zeros(len(q.ranks), bool)
        ranks, counts = np.unique(q.ranks, return_counts=True)
        self._give_back()  # what a call that was interrupted has left
        self._room = room = Room(ranks, counts)
        there = False
        try:
            there = self._reserve(room)
            rows = np.arange(len(q.ranks) if there else 0)
            while rows.size:
                rows = self._insert_some(q, records, rows, made, wait)
        finally:
            room.unused = np.bincount(q.ranks[~made], minlength=self._m.size)[ranks]
            self._give_back()
        if not there:
            self._wait_for_room(ranks, counts, wait)
        return made

    def _insert_some(
        self, q: Query, records: Words, rows: Index, made: NDArray[np.bool_], wait: Wait
    ) -> Index:
        """Make entries where the locks are free; return the rows that have to wait."""
        homes = q.ranks[rows] * self._m.buckets + q.homes[rows]
        first = rows[np.unique(homes, return_index=True)[1]]
        with self._locked(q.take(first)):
            got, holders = self._lock(q.take(first))
            mine = first[got]
            if mine.size:
                here = q.take(mine)
                with self._m:
                    found = self.find(here)
                new = mine[found.slots == MISSING]
                if new.size:
                    made[new] = self._fill(q.take(new), records[new])
        if not mine.size:
            wait.on(holders)
            return rows
        if found.undecided().size:
            self.wait_for(wait, here, found)
        done = made.copy()
        done[mine[found.slots >= 0]] = True
        return rows[~done[rows]]

    # The word `USED` of a rank counts its entries, and what ranks have set aside; the latter
    # also stands in a word for each, so that it can be told from entries. This word
    # changes first: if its rank dies in between, one entry too many is let in, and there are
    # more slots than entries.

    def _reserve(self, room: Room) -> bool:
        """Set room aside; return whether it was there. It is taken in any case."""
        counts = _word(room.counts)
        self._set_aside(room, counts)
        before = self._m.head.fetch_add_many(room.ranks, USED, counts).astype(np.int64)
        room.counted = True
        return bool((before + room.counts <= self._m.limit).all())

    def _give_back(self) -> None:
        """End what `_reserve` has begun, at the ranks that live."""
        room = self._room
        if room is None:
            return
        living = [not self._m.is_gone(rank) for rank in room.ranks.tolist()]
        if not all(living):
            room.ranks, room.unused = room.ranks[living], room.unused[living]
        # a rank that is lost amid an update keeps it from no other
        if room.counted:
            with contextlib.suppress(PeerLostError):
                self._m.head.accumulate_many(room.ranks, USED, _word(-room.unused))
            room.counted = False
        with contextlib.suppress(PeerLostError):
            self._set_aside(room, np.zeros(len(room.ranks), np.uint64))
        self._room = None

    def _set_aside(self, room: Room, counts: Words) -> None:
        """Say how much this rank has set aside: set, not added, so it may be said again."""
        self._m.head.accumulate_many(room.ranks, ASIDE + self._m.rank, counts, "replace")

    def _wait_for_room(self, ranks: Index, counts: Index, wait: Wait) -> None:
        """Wait for those who have set room aside, or raise: there is none but for entries."""
        head, full = self._m.head, None
        for _ in range(3):  # the words do not change at once
            aside = [head.get(rank, ASIDE, self._m.size) for rank in ranks.tolist()]
            used = head.get_many(ranks, USED).astype(np.int64)
            entries = used - [int(words.sum()) for words in aside]
            over = np.flatnonzero(entries + counts > self._m.limit)
            if not over.size:
                holders = {int(k) for words in aside for k in words.nonzero()[0]}
                for dead in wait.on(holders):
                    self._take_back(ranks, dead)
                return
            full = int(ranks[over[0]])
            self._m.nap(100e-6)
        text = f"Dict: rank {full} has its {self._m.limit} entries: nothing was changed. Make the "
        raise CapacityError(errno.ENOSPC, text + "table with a larger capacity", rank=full)

    def _take_back(self, ranks: Index, dead: int) -> None:
        """Free what a dead rank had set aside."""
        head = self._m.head
        for rank in ranks.tolist():
            count = int(head.get(rank, ASIDE + dead, 1)[0])
            if count and int(head.compare_and_swap(count, 0, rank, ASIDE + dead)) == count:
                head.fetch_add(-count % (1 << 64), rank, USED)

    def _fill(self, q: Query, records: Words) -> NDArray[np.bool_]:
        """Write new entries, whose locks this rank has; return which are there then."""
        busy = (q.want ^ _OTHER) | np.uint64(self._m.me)
        steps, places = self._take_slots(q, busy)
        passed = np.flatnonzero(steps)
        if passed.size:  # before anybody can look for it there
            self._count_passing(q.take(passed), steps[passed], PASSED)
        slots = (places >> 3) * SLOTS + (places & 7) - 1
        self._m.records.put_many(q.ranks, slots, _opaque(records))
        # this fails where others take this rank for dead
        made: NDArray[np.bool_] = self._swap(q.ranks, places, busy, q.want) == busy
        return made

    def _take_slots(self, q: Query, busy: Words) -> tuple[Index, Index]:
        """Take a free slot for each; return how many buckets it is from home, and its tag."""
        n = len(q.ranks)
        steps, places = np.zeros(n, np.int64), np.zeros(n, np.int64)
        rows = np.arange(n)
        while rows.size:
            there = (q.homes[rows] + steps[rows]) % self._m.buckets
            free = self._lines(q.ranks[rows], there)[:, 1:] == 0
            some = free.any(axis=1)
            place = there * 8 + 1 + free.argmax(axis=1)
            taken = np.zeros(len(rows), bool)
            k = np.flatnonzero(some)
            taken[k] = self._swap(q.ranks[rows[k]], place[k], 0, busy[rows[k]]) == 0
            places[rows[taken]] = place[taken]
            steps[rows[~some]] += 1
            if steps.max() >= self._m.buckets:  # dead ranks have kept what they did not fill
                rank = int(q.ranks[steps.argmax()])
                text = f"Dict: rank {rank} has no free slot: what dead ranks had taken is lost"
                raise CapacityError(errno.ENOSPC, text, rank=rank)
            rows = rows[~taken]
        return steps, places

    def _count_passing(self, q: Query, steps: Index, by: int) -> None:
        """Count entries in the buckets that they have passed."""
        each = np.repeat(np.arange(len(steps)), steps)
        step = np.arange(each.size) - np.repeat(np.cumsum(steps) - steps, steps)
        places = (q.homes[each] + step) % self._m.buckets * 8
        self._m.words.accumulate_many(q.ranks[each], places, np.uint64(by % (1 << 64)))

    # -- changes -------------------------------------------------------------------

    def hold(self, q: Query, found: Found) -> NDArray[np.bool_]:
        """Take slots, each once, to write their values; in the section that has found them."""
        before = self._swap(q.ranks, found.places, found.tags, self._held(found))
        held: NDArray[np.bool_] = before == found.tags
        return held

    def write(self, q: Query, found: Found, records: Words) -> None:
        """Write the values of slots that this rank holds, and let go of them."""
        version = (found.tags + np.uint64(_VERSION_UNIT)) & _VERSIONS
        new = (found.tags & ~np.uint64(_VERSIONS)) | version
        self._m.records.put_many(q.ranks, found.slots, _opaque(records))
        self._swap(q.ranks, found.places, self._held(found), new)

    def finish(self, q: Query, found: Found, records: Words) -> None:
        """After an interruption: write the values of those slots that this rank still holds."""
        for rank in set(q.ranks.tolist()) - set(self._m.gone):
            rows = np.flatnonzero(q.ranks == rank)
            with contextlib.suppress(RmaError):
                now = self._m.words.get_many(q.ranks[rows], found.places[rows])
                rows = rows[now == self._held(found)[rows]]
                self.write(q.take(rows), found.take(rows), records[rows])

    def _held(self, found: Found) -> Words:
        return (found.tags ^ _OTHER) | np.uint64(self._m.me)

    # -- removal -------------------------------------------------------------------

    def remove(self, q: Query) -> Words | None:
        """Remove one key, and return its record; None if it is not there."""
        wait = Wait(self._m, "others that use the key, or its bucket")
        while True:
            with self._m:
                found = self.find(q)
            if found.slots[0] == MISSING:
                return None
            if found.slots[0] == UNDECIDED:
                self.wait_for(wait, q, found)
                continue
            with self._locked(q):
                got, holders = self._lock(q)
                record = self._remove_locked(q) if got[0] else None
            if record is not None:
                return record
            wait.on(holders)

    def _remove_locked(self, q: Query) -> Words | None:
        """Remove a key whose lock this rank has; None: it cannot be removed right now."""
        with self._m:
            found = self.find(q)
        if not found.whole and found.slots[0] < 0:
            return None
        rank, place, tag = int(q.ranks[0]), int(found.places[0]), int(found.tags[0])
        busy = (tag ^ (FULL | BUSY)) | self._m.me
        try:
            if self._swap_one(rank, place, tag, busy) != tag:
                return None
            self._m.grace()
            record = self.records(q.ranks, found.slots)
        except BaseException:
            self._swap_one(rank, place, busy, tag)  # it stays
            raise
        steps = (found.slots // SLOTS - q.homes) % self._m.buckets
        self._free(rank, place, busy)
        if steps[0]:
            self._count_passing(q, steps, -PASSED)
        return record


def _opaque(records: Words) -> NDArray[Any]:
    """Return records as elements of their window."""
    return records.view(f"V{8 * records.shape[1]}")[:, 0]


def _word(counts: Index) -> Words:
    """Return signed counts as words that are added."""
    return counts.astype(np.int64).view(np.uint64)
