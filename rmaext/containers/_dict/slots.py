# SPDX-License-Identifier: BSD-3-Clause
"""The protocol of a `Dict`: how entries are found, and how others' work on them is waited for.

An entry lies in its home bucket or, if that was full, in a later one of the same rank; each
bucket that it passed counts it, so a search ends at a bucket that was not passed. Whoever makes
or removes an entry holds the lock of its home: so no key is there twice. A slot's tag is 0,
then BUSY (written), FULL, BUSY (removed), and 0 again once nobody can look at what was there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._runtime.locks import apart
from .hashing import BUSY, FULL, HASH, Query, Words
from .memory import ROOM, SLOTS, Memory, Wait
from .state import MISSING, UNDECIDED, Found, Index, Now, Removing, room_words

__all__ = ["LOCKED", "OWNER", "PASSED", "Slots"]

Array = NDArray[Any]

_MATCH = FULL | BUSY | HASH
OWNER = (1 << 20) - 1
PASSED = 1 << 32
LOCKED = PASSED - 1
_LINE = SLOTS + 1  # words
_HASH_UNIT = 1 << 38
_BELOW_HASH = np.uint64(_HASH_UNIT)
_FEW = 8  # keys that are faster looked for one by one
_NOTHING = np.zeros(0, np.uint64)


class Looked(NamedTuple):
    """What is in one bucket for each key."""

    lines: Words  # (n, words of a bucket)
    places: Index  # in the line; 0 if there is no such tag
    slots: Index
    records: Words
    same: NDArray[np.bool_]  # the key is there


class Slots:
    """The slots of all ranks. One thread of a rank at a time, which the owner sees to."""

    def __init__(self, memory: Memory) -> None:
        self._m = memory
        self._keys = memory.keys.words
        self._now = Now(np.zeros(memory.size, np.int64))

    # -- search --------------------------------------------------------------------

    def find(self, q: Query, need_tags: bool = True) -> Found:
        """Look for keys. The caller is in an active section."""
        n = len(q.ranks)
        home = self._look(q, q.homes)
        slots, records, same = home.slots, home.records, home.same
        if not need_tags and same.all():
            return Found(slots, _NOTHING, records, _NOTHING.view(np.int64), True)
        lines, places = home.lines, q.homes * _LINE
        places += home.places
        tags = lines[np.arange(n), home.places] if need_tags else np.zeros(n, np.uint64)
        found = Found(slots, tags, records, places, True)
        rows = (~same).nonzero()[0]
        if rows.size > 1:  # nearly all that are not in their home are in the bucket after it
            passed = rows[lines[rows, 0] >= PASSED]
            if passed.size:
                self._find_after_home(q.take(passed), passed, found, same)
                rows = (~same).nonzero()[0]
        if rows.size <= _FEW:
            left = [
                row
                for row in rows.tolist()
                if not self._find_one(q, row, lines[row].tolist(), found)
            ]
            return found._replace(whole=not left)
        rest = self._find_in_chains(q.take(rows), lines[rows])
        slots[rows], tags[rows], places[rows] = rest.slots, rest.tags, rest.places
        records[rows] = rest.records
        return found._replace(whole=rest.whole)

    def _look(self, q: Query, buckets: Index) -> Looked:
        """Look for keys in one bucket each."""
        n = len(q.ranks)
        got = self._m.lines.get_many(q.ranks, buckets).view(np.uint64)
        # A tag that fits is less than one hash above what is looked for; word 0 never is.
        fits = got - q.want.repeat(_LINE) < _BELOW_HASH
        place = fits.reshape(n, _LINE).argmax(axis=1)  # the first; 0 if there is none
        some = place != 0
        slots = buckets * SLOTS
        slots += place
        slots -= some
        records = self.records(q.ranks, slots)
        if self._keys == 1:
            same = records[:, 0] == q.words[:, 0]
        else:
            same = (records[:, : self._keys] == q.words).all(axis=1)
        same &= some
        return Looked(got.reshape(n, _LINE), place, slots, records, same)

    def _find_after_home(
        self, q: Query, rows: Index, found: Found, same: NDArray[np.bool_]
    ) -> None:
        """Look for the keys of some rows in the buckets after their homes; note what is there."""
        buckets = q.homes + 1
        buckets[buckets == self._m.buckets] = 0
        looked = self._look(q, buckets)
        k = looked.same.nonzero()[0]
        rows, place = rows[k], looked.places[k]
        same[rows] = True
        found.slots[rows], found.records[rows] = looked.slots[k], looked.records[k]
        found.tags[rows], found.places[rows] = looked.lines[k, place], buckets[k] * _LINE + place

    def _find_one(self, q: Query, row: int, line: list[int], found: Found) -> bool:
        """Do as `_find_in_chains` for one key, in a third of the time."""
        rank, home, want = int(q.ranks[row]), int(q.homes[row]), int(q.want[row])
        busy, words, buckets = want ^ (FULL | BUSY), q.words[row].tobytes(), self._m.buckets
        found.slots[row], bucket = MISSING, home
        for step in range(1, buckets + 1):
            for place in range(1, _LINE):
                tag = line[place]
                if 0 <= tag - want < _HASH_UNIT:
                    slot = bucket * SLOTS + place - 1
                    record = self._m.records.get(rank, slot, 1).view(np.uint64)
                    if record[: self._keys].tobytes() == words:
                        found.slots[row], found.records[row] = slot, record
                        found.tags[row], found.places[row] = tag, bucket * _LINE + place
                        return True
                elif 0 <= tag - busy < _HASH_UNIT:
                    found.slots[row] = UNDECIDED
                    found.tags[row], found.places[row] = tag, bucket * _LINE + place
            if line[0] < PASSED:
                break
            bucket = (home + step) % buckets
            line = self._m.lines.get(rank, bucket, 1).view(np.uint64).tolist()
        return False

    def _find_in_chains(self, q: Query, lines: Words) -> Found:
        """Look for keys in their homes, which were read, and in the buckets after these."""
        n, buckets = len(q.ranks), self._m.buckets
        slots, places = np.full(n, MISSING), np.zeros(n, np.int64)
        tags, records = np.zeros(n, np.uint64), np.zeros((n, self._m.format.record), np.uint64)
        rows, there = np.arange(n), q.homes
        for step in range(1, buckets + 1):
            match = (lines & _MATCH) ^ q.want[rows, None]  # 0: the tag looked for
            i, j = (match == 0).nonzero()
            if i.size:
                row, slot = rows[i], there[i] * SLOTS + j - 1
                got = self.records(q.ranks[row], slot)
                same = (got[:, : self._keys] == q.words[row]).all(axis=1)
                row, i, j = row[same], i[same], j[same]
                slots[row], records[row] = slot[same], got[same]
                tags[row], places[row] = lines[i, j], there[i] * _LINE + j
            i, j = (match == FULL | BUSY).nonzero()  # BUSY instead of FULL
            if i.size:
                new = slots[rows[i]] < 0
                i, j = i[new], j[new]
                row = rows[i]
                slots[row], tags[row], places[row] = UNDECIDED, lines[i, j], there[i] * _LINE + j
            on = (slots[rows] < 0) & (lines[:, 0] >= PASSED)
            if step == buckets or not on.any():
                break
            rows = rows[on]
            there = (q.homes[rows] + step) % buckets
            lines = self._lines(q.ranks[rows], there)
        return Found(slots, tags, records, places, bool((slots >= 0).all()))

    def _lines(self, ranks: Index, buckets: Index) -> Words:
        return self._m.lines.get_many(ranks, buckets).view(np.uint64).reshape(len(ranks), _LINE)

    def records(self, ranks: Index, slots: Index) -> Words:
        """Return the records of slots."""
        got = self._m.records.get_many(ranks, slots)
        return got.view(np.uint64).reshape(len(got), self._m.format.record)

    def read(self, q: Query) -> tuple[Words, NDArray[np.bool_] | None]:
        """Return the records of keys, never torn, and which there are; None: all."""
        with self._m:
            found = self._find_whole(q)
        if found.whole:
            return found.records, None
        slots, records = found.slots, found.records
        wait = Wait(self._m, "those who change or remove a key")
        rows = left = found.undecided()
        while rows.size:
            some = q.take(rows)
            self.wait_for(wait, some, found.take(left))
            with self._m:
                found = self._find_whole(some)
            slots[rows], records[rows] = found.slots, found.records
            left = found.undecided()
            rows = rows[left]
        there = slots >= 0
        return records, None if there.all() else there

    def _find_whole(self, q: Query) -> Found:
        """As `find`; a value that was changed meanwhile is undecided, if it may be torn."""
        if self._m.values is not None:
            return self.find(q, False)
        found = self.find(q)
        now = self._m.words.get_many(q.ranks, found.places)
        changed = (found.slots >= 0) & (now != found.tags)
        if not changed.any():
            return found
        found.slots[changed], found.tags[changed] = UNDECIDED, now[changed]
        return found._replace(whole=False)

    # -- waiting -------------------------------------------------------------------

    def wait_for(self, wait: Wait, q: Query, found: Found) -> None:
        """Wait for those that are at work on slots that a search has found."""
        rows = found.undecided()
        self.wait(wait, q.ranks[rows], found.places[rows], found.tags[rows])

    def wait(self, wait: Wait, ranks: Index, places: Index, tags: Words) -> None:
        """Wait for those that are at work on slots; finish what dead ranks have left.

        The caller is in no active section, and holds no lock.
        """
        owners = (tags & OWNER).astype(np.int64) - 1
        dead = set(wait.on(owners[owners >= 0].tolist()))
        for rank, place, tag, owner in zip(ranks, places, tags, owners, strict=True):
            if int(owner) in dead:
                self._reclaim(int(rank), int(place), int(tag))

    def _reclaim(self, rank: int, place: int, tag: int) -> None:
        """Free a slot that a rank was at work on when it died: its entry is lost."""
        q = Query(_NOTHING, _NOTHING, np.array([rank]), np.zeros(1, np.int64), _NOTHING)
        removing = Removing(q, place, tag, (tag & ~OWNER) | self._m.me, np.zeros(1, np.int64))
        if self._hold_to_remove(removing):
            self._m.grace()
            removing.free = True
            self._free(removing)

    # -- removal -------------------------------------------------------------------

    def _hold_to_remove(self, it: Removing) -> bool:
        self._now = self._now._replace(removing=it)
        if self._swap_one(int(it.q.ranks[0]), it.place, it.tag, it.busy) == it.tag:
            return True
        self._now = self._now._replace(removing=None)
        return False

    def _free(self, it: Removing) -> None:
        """Free a slot, and count one entry less: again, if that was broken off."""
        rank = it.q.ranks
        self._swap_one(int(rank[0]), it.place, it.busy, 0)
        entries = self._now.entries.copy()
        entries[rank] -= 1
        self._tell_room(rank, entries)
        if it.steps[0] and not it.counted:
            apart(self._uncount, it)
        self._now = self._now._replace(entries=entries, removing=None)

    def _uncount(self, it: Removing) -> None:
        self.count_passing(it.q, it.steps, -PASSED)
        it.counted = True

    def count_passing(self, q: Query, steps: Index, by: int) -> None:
        """Count entries in the buckets that they have passed. Not for a handler to divide."""
        each = np.repeat(np.arange(len(steps)), steps)
        step = np.arange(each.size) - np.repeat(np.cumsum(steps) - steps, steps)
        places = (q.homes[each] + step) % self._m.buckets * 8
        self._m.words.accumulate_many(q.ranks[each], places, np.uint64(by % (1 << 64)))

    def _tell_room(self, ranks: Index, entries: Index, given_back: bool = False) -> None:
        """Write this rank's words of room at some ranks."""
        aside, room = np.zeros(self._m.size, np.int64), self._now.room
        if room is not None and not given_back:
            aside[room.ranks] = room.counts
        words = room_words(entries[ranks], aside[ranks])
        self._m.head.accumulate_many(ranks, ROOM + self._m.rank, words, "replace")

    def _swap_one(self, rank: int, place: int, old: int, new: int) -> int:
        return int(self._m.words.compare_and_swap(old, new, rank, place))

    def _swap(self, ranks: Index, places: Index, old: Any, new: Any) -> Words:
        """Compare and swap words; return what was there."""
        old, new = np.asarray(old, np.uint64), np.asarray(new, np.uint64)
        result: Words = self._m.words.compare_and_swap_many(ranks, places, old, new)
        return result
