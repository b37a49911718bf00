# SPDX-License-Identifier: BSD-3-Clause
"""The protocol of a `Dict`: how entries are made, changed and removed."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._runtime.locks import apart
from ...errors import CapacityError, PeerLostError, RmaError
from .hashing import BUSY, FULL, Query, Words
from .memory import ROOM, SLOTS, Memory, Wait
from .slots import LOCKED, PASSED, Slots
from .state import (
    MISSING,
    UNDECIDED,
    Filling,
    Found,
    Index,
    Now,
    Removing,
    Room,
    Writing,
    entries_and_aside,
    room_words,
)

__all__ = ["Entries"]

_OTHER = np.uint64(FULL | BUSY)  # from FULL to BUSY, and back
_VERSION_UNIT, _VERSIONS = 1 << 20, ((1 << 18) - 1) << 20
_MOST = 1 << 30  # new entries of one call at a rank, see state.py


class Entries(Slots):
    """What changes the slots of all ranks."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._sent: Index | None = None  # ranks where values were changed, in the section

    def cleared(self) -> None:
        """There are no entries any more."""
        self._now = Now(np.zeros(self._m.size, np.int64))

    # -- after an exception --------------------------------------------------------

    def settle(self) -> None:
        """Carry to its end what the call has begun, or undo it. No signal handler raises here.

        At a rank that does not answer, or is lost, it is left.
        """
        sent = [] if self._sent is None else self._sent.tolist()
        for rank in (self._now.ranks() | set(sent)) - set(self._m.gone):
            with contextlib.suppress(RmaError):
                # messages to a rank arrive in their order: what was on its way has come
                self._m.words.get_many(rank, [0])
                self._settle_at(rank)
        with contextlib.suppress(RmaError):
            self._m.leave()
            self._give_back()
        self._now, self._sent = Now(self._now.entries), None

    def _settle_at(self, rank: int) -> None:
        now = self._now
        if now.writing is not None:
            self._finish(now.writing, np.flatnonzero(now.writing.q.ranks == rank))
        if now.filling is not None:
            self._settle_filling(now.filling, np.flatnonzero(now.filling.q.ranks == rank))
        if now.removing is not None and rank == now.removing.q.ranks[0]:
            if now.removing.free:
                self._free(now.removing)
            else:  # it stays
                self._swap_one(rank, now.removing.place, now.removing.busy, now.removing.tag)
        if now.locks is not None:
            self._unlock(now.locks.take(now.locks.ranks == rank))

    def _settle_filling(self, it: Filling, rows: Index) -> None:
        """Make the entries at a rank if all have their slots, else free these."""
        q = it.q.take(rows)
        if not it.taken:
            self._swap(q.ranks, it.places[rows], it.busy[rows], 0)
            return
        if not it.counted:
            self.count_passing(q, it.steps[rows], PASSED)
        now = self._m.words.get_many(q.ranks, it.places[rows])
        self._publish(it, rows[now == it.busy[rows]])
        it.made[it.rows[rows]] = True  # before, or now

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
        room = Room(q, ranks, counts, made)
        self._now = self._now._replace(room=room)
        there = self._reserve(room)
        rows = np.arange(len(q.ranks) if there else 0)
        while rows.size:
            rows = self._insert_some(q, records, rows, made, wait)
        self._give_back()
        if not there:
            self._wait_for_room(ranks, counts, wait)
        return made

    def read_or_insert(self, q: Query, record: Words) -> Words:
        """Return the record of a key that is there, or make the entry with this one."""
        wait = Wait(self._m, "room for a new key")
        while True:
            found, there = self.read(q)
            if there is None:
                return found
            if self.insert(q, record, wait)[0]:
                return record

    def _insert_some(
        self, q: Query, records: Words, rows: Index, made: NDArray[np.bool_], wait: Wait
    ) -> Index:
        """Make entries where the locks are free; return the rows that have to wait."""
        homes = q.ranks[rows] * self._m.buckets + q.homes[rows]
        first = rows[np.unique(homes, return_index=True)[1]]
        locks = q.take(first)
        self._now = self._now._replace(locks=locks)
        got, holders = self._lock(locks)
        mine = first[got]
        if mine.size:
            here = q.take(mine)
            with self._m:
                found = self.find(here)
            new = mine[found.slots == MISSING]
            if new.size:
                self._fill(q.take(new), records[new], new, made)
        self._unlock(locks)
        self._now = self._now._replace(locks=None)
        if not mine.size:
            wait.on(holders)
            return rows
        if found.undecided().size:
            self.wait_for(wait, here, found)
        done = made.copy()
        done[mine[found.slots >= 0]] = True
        return rows[~done[rows]]

    # A rank first says what it sets aside, and then looks at what all have said: of two that
    # do so at a time, one at least sees the other.

    def _reserve(self, room: Room) -> bool:
        """Set room aside; return whether it was there. It is taken in any case."""
        if room.counts.max() >= _MOST:
            raise CapacityError(errno.ENOSPC, f"Dict: {room.counts.max()} new keys in one call")
        self._tell_room(room.ranks, self._now.entries)
        entries, aside = self._look_at_room(room.ranks)
        return bool(((entries + aside).sum(axis=1) <= self._m.limit).all())

    def _look_at_room(self, ranks: Index) -> tuple[Index, Index]:
        """Return what all ranks have at some: a row for each of these."""
        words = self._m.rooms.get_many(ranks, 0).view(np.uint64)
        return entries_and_aside(words.reshape(len(ranks), -1))

    def _give_back(self) -> None:
        """End what `_reserve` has begun, at the ranks that live; again, if that was broken off."""
        room = self._now.room
        if room is None:
            return
        made = np.bincount(room.q.ranks[room.made], minlength=self._m.size)
        after = self._now._replace(entries=self._now.entries + made, room=None)
        living = room.ranks[[not self._m.is_gone(rank) for rank in room.ranks.tolist()]]
        # a rank that is lost amid an update keeps it from no other
        with contextlib.suppress(PeerLostError):
            self._tell_room(living, after.entries, given_back=True)
        self._now = after

    def _wait_for_room(self, ranks: Index, counts: Index, wait: Wait) -> None:
        """Wait for those who have set room aside, or raise: there is none but for entries."""
        full = None
        for _ in range(3):  # the words are not looked at all at once
            entries, aside = self._look_at_room(ranks)
            over = np.flatnonzero(entries.sum(axis=1) + counts > self._m.limit)
            if not over.size:
                for dead in wait.on(np.flatnonzero(aside.any(axis=0)).tolist()):
                    self._take_back(ranks, dead)
                return
            full = int(ranks[over[0]])
            self._m.nap(100e-6)
        text = f"Dict: rank {full} has its {self._m.limit} entries: nothing was changed. Make the "
        raise CapacityError(errno.ENOSPC, text + "table with a larger capacity", rank=full)

    def _take_back(self, ranks: Index, dead: int) -> None:
        """Free what a dead rank had set aside."""
        words = self._m.head.get_many(ranks, ROOM + dead)
        entries, aside = entries_and_aside(words)
        some = np.flatnonzero(aside)
        kept = room_words(entries[some], 0 * some)
        self._m.head.compare_and_swap_many(ranks[some], ROOM + dead, words[some], kept)

    def _fill(self, q: Query, records: Words, rows: Index, made: NDArray[np.bool_]) -> None:
        """Write new entries, whose locks this rank has, and note which are there then."""
        busy = (q.want ^ _OTHER) | np.uint64(self._m.me)
        it = Filling(q, records, busy, np.zeros(len(rows), np.int64), q.homes * 8, rows, made)
        self._now = self._now._replace(filling=it)
        self._take_slots(it)
        it.taken = True
        if it.steps.any():  # before anybody can look for it there
            apart(self._count, it)
        self._publish(it, np.arange(len(rows)))
        self._now = self._now._replace(filling=None)

    def _count(self, it: Filling) -> None:
        self.count_passing(it.q, it.steps, PASSED)
        it.counted = True

    def _publish(self, it: Filling, rows: Index) -> None:
        """Let all see new entries, or those of them that they do not see yet."""
        q, places, busy = it.q.take(rows), it.places[rows], it.busy[rows]
        slots = (places >> 3) * SLOTS + (places & 7) - 1
        self._m.records.put_many(q.ranks, slots, _opaque(it.records[rows]))
        # this fails where others take this rank for dead
        it.made[it.rows[rows]] = self._swap(q.ranks, places, busy, q.want) == busy

    def _take_slots(self, it: Filling) -> None:
        """Take a free slot for each; note how many buckets it is from home, and its tag."""
        q, steps = it.q, it.steps
        rows = np.arange(len(q.ranks))
        while rows.size:
            there = (q.homes[rows] + steps[rows]) % self._m.buckets
            free = self._lines(q.ranks[rows], there)[:, 1:] == 0
            some = free.any(axis=1)
            it.places[rows] = place = there * 8 + 1 + free.argmax(axis=1)
            taken = np.zeros(len(rows), bool)
            k = np.flatnonzero(some)
            taken[k] = self._swap(q.ranks[rows[k]], place[k], 0, it.busy[rows[k]]) == 0
            steps[rows[~some]] += 1
            if steps.max() >= self._m.buckets:  # dead ranks have kept what they did not fill
                rank = int(q.ranks[steps.argmax()])
                text = f"Dict: rank {rank} has no free slot: what dead ranks had taken is lost"
                raise CapacityError(errno.ENOSPC, text, rank=rank)
            rows = rows[~taken]

    # -- changes -------------------------------------------------------------------

    def hold(self, q: Query, found: Found) -> NDArray[np.bool_]:
        """Take slots, each once, to write their values; in the section that has found them."""
        before = self._swap(q.ranks, found.places, found.tags, self._held(found))
        held: NDArray[np.bool_] = before == found.tags
        return held

    def write(self, it: Writing, rows: Index) -> None:
        """Write the values of slots that this rank holds, and let go of them."""
        q, found = it.q.take(rows), it.found.take(rows)
        version = (found.tags + np.uint64(_VERSION_UNIT)) & _VERSIONS
        new = (found.tags & ~np.uint64(_VERSIONS)) | version
        self._m.records.put_many(q.ranks, found.slots, _opaque(it.records[rows]))
        self._swap(q.ranks, found.places, self._held(found), new)

    def _finish(self, it: Writing, rows: Index) -> None:
        """After an exception: write the values of those slots that this rank still holds."""
        now = self._m.words.get_many(it.q.ranks[rows], it.found.places[rows])
        self.write(it, rows[now == self._held(it.found)[rows]])

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
            self._now = self._now._replace(locks=q)
            got, holders = self._lock(q)
            record = self._remove_locked(q) if got[0] else None
            self._unlock(q)
            self._now = self._now._replace(locks=None)
            if record is not None:
                return record
            wait.on(holders)

    def _remove_locked(self, q: Query) -> Words | None:
        """Remove a key whose lock this rank has; None: it cannot be removed right now."""
        with self._m:
            found = self.find(q)
        if not found.whole and found.slots[0] < 0:
            return None
        tag = int(found.tags[0])
        steps = (found.slots // SLOTS - q.homes) % self._m.buckets
        busy = (tag ^ (FULL | BUSY)) | self._m.me
        removing = Removing(q, int(found.places[0]), tag, busy, steps)
        if not self._hold_to_remove(removing):
            return None
        self._m.grace()
        record = self.records(q.ranks, found.slots)
        removing.free = True
        self._free(removing)
        return record


def _opaque(records: Words) -> NDArray[Any]:
    """Return records as elements of their window."""
    return records.view(f"V{8 * records.shape[1]}")[:, 0]
