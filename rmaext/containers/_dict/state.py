# SPDX-License-Identifier: BSD-3-Clause
"""What a call of a `Dict` has begun in the memory of all ranks, and not ended.

A signal handler may raise between any two steps of Python, and other ranks wait for a lock, a
slot or room as long as it is this rank's. So a call notes each thing before it begins it, and
`Entries.settle` carries all of it to its end, or undoes it, before the exception goes on. Whether
a step was taken the memory itself tells: nobody else changes a lock or a tag that names this
rank. What cannot be told afterwards, whether something was added to a word, is done by `apart`,
where no handler raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .hashing import Query, Words

__all__ = [
    "MISSING",
    "UNDECIDED",
    "Filling",
    "Found",
    "Index",
    "Now",
    "Removing",
    "Room",
    "Writing",
    "entries_and_aside",
    "room_words",
]

Index = NDArray[np.int64]

MISSING, UNDECIDED = -1, -2  # in place of slots

# A rank's word of room at another: below, how many entries it has made there, less those that it
# has removed; above, how many it has set room aside for. In one word both change at once; and as
# each rank alone knows its own, it may write it again.
_ENTRIES = 34  # bits, with the sign
_BELOW, _ABOVE = np.uint64((1 << _ENTRIES) - 1), np.uint64(_ENTRIES)
_SIGN = np.uint64(64 - _ENTRIES)


def room_words(entries: Index, aside: Index) -> Words:
    """Return words of room."""
    words: Words = aside.astype(np.uint64) << _ABOVE | (entries.view(np.uint64) & _BELOW)
    return words


def entries_and_aside(words: Words) -> tuple[Index, Index]:
    """Return what words of room say."""
    entries = (words << _SIGN).view(np.int64) >> np.int64(64 - _ENTRIES)
    return entries, (words >> _ABOVE).view(np.int64)


class Found(NamedTuple):
    """What a search has found, a row for each key."""

    slots: Index  # on the key's rank; or MISSING, or UNDECIDED: a rank is at work on it
    tags: Words  # as they were seen; of an undecided key, that of its BUSY slot
    records: Words
    places: Index  # words of the tags
    whole: bool  # all were found; tags and places are left out then, if not needed

    def undecided(self) -> Index:
        """Return the rows of keys on whose slots a rank is at work."""
        return np.flatnonzero(self.slots == UNDECIDED)

    def take(self, rows: Index) -> Found:
        """Return some of the rows."""
        slots, tags, records, places, _ = self
        return Found(slots[rows], tags[rows], records[rows], places[rows], False)


@dataclass
class Room:
    """Room that is set aside for new entries, at some ranks."""

    q: Query
    ranks: Index
    counts: Index  # at each of them
    made: NDArray[np.bool_]  # which of the keys have their entries


@dataclass
class Filling:
    """New entries, whose locks this rank has."""

    q: Query
    records: Words
    busy: Words  # the tags meanwhile
    steps: Index  # how many buckets each is from home
    places: Index  # of the tags; until all are taken, where one may have been
    rows: Index  # in the room that was set aside
    made: NDArray[np.bool_]  # of that
    taken: bool = False
    counted: bool = False  # in the buckets that they pass


@dataclass
class Removing:
    """An entry whose slot this rank is about to free."""

    q: Query
    place: int
    tag: int  # as it was
    busy: int  # as it is meanwhile
    steps: Index  # how many buckets it is from home; none if they do not count it
    free: bool = False  # it is not to be undone any more
    counted: bool = False


@dataclass
class Writing:
    """Values that are written to slots that this rank holds."""

    q: Query
    found: Found
    records: Words


class Now(NamedTuple):
    """All of it. A new one takes the place of the last at once."""

    entries: Index  # that this rank has made at each, less those that it has removed
    room: Room | None = None
    locks: Query | None = None  # of homes
    filling: Filling | None = None
    removing: Removing | None = None
    writing: Writing | None = None

    def ranks(self) -> set[int]:
        """Return the ranks where something was begun, but room."""
        begun: list[Any] = [self.filling, self.removing, self.writing]
        queries = [self.locks, *(one.q for one in begun if one is not None)]
        return {rank for q in queries if q is not None for rank in q.ranks.tolist()}
