# SPDX-License-Identifier: BSD-3-Clause
"""When all ranks of a `Published` are done with what all have published: each finds out by itself.

Each rank has these words, of which others write the last one only:

- NEWEST: how often it has published, from BITS on.
- UNDONE: how often it has taken back that it was done.
- DONE: 1 + the sum of both over all ranks, as it was when this rank was done last.
- SETTLED: whether it was told that all are done.

The counts of NEWEST and UNDONE grow only. A rank that is done reads those of all ranks; if the
versions that it has seen are the newest there, it stores DONE. Who then reads DONE of all ranks,
and after that the counts of all ranks once more, and finds each DONE to be of this sum, knows that
every rank has read just these counts: each was at most what it is now, and their sum is the same.
So since then no rank has published, or taken back that it was done; and at the moment between both
reads each was done, and had seen the newest of those whom it reads. It tells all.

A count that is read by all and once more is the four counter method of Mattern, "Algorithms for
distributed termination detection" (Distributed Computing 2, 1987), with versions for messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import Window

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["WORDS", "Settling"]

WORDS = 3

Longs = NDArray[np.int64]


class Settling:
    """What one rank knows of that. One thread at a time looks, which the owner sees to.

    Parameters
    ----------
    words : Window
        Of int64.
    comm : mpi4py.MPI.Comm
    newest, bits : int
        Where NEWEST is in it, and from which bit on it is the version.
    first : int
        Where WORDS words are.
    """

    def __init__(
        self, words: Window[Any], comm: MPI.Comm, newest: int, bits: int, first: int
    ) -> None:
        self._words, self._own, self._bits = words, words.local, bits
        self._undone, self._done, self._settled = range(first, first + WORDS)
        self._ranks = ranks = np.arange(comm.size)
        self._others = np.delete(ranks, comm.rank)
        self._counts = np.repeat(ranks, 2), np.tile([newest, self._undone], comm.size), 0
        self._behind = comm.rank  # of those that may hold up all: the one to be looked at first
        self._is_done = self._found = False

    def look(self, done: bool, ranks: Longs, versions: Longs) -> bool:
        """Say whether this rank is done with some versions of others; return whether all are."""
        own, words = self._own, self._words
        if own[self._settled]:
            return True
        words.flush_local()  # raises if any rank is gone
        if not (self._found or (done and self._all(ranks, versions))):
            if self._is_done and not done:
                own[self._undone] += 1
                words.sync()
                self._is_done = False
            return False
        self._found = True  # whatever others publish from now on
        words.accumulate_many(self._others, self._settled, 1, "replace")
        own[self._settled] = 1  # the last one, so that after an interruption the others are told
        return True

    def _all(self, ranks: Longs, versions: Longs) -> bool:
        own, words = self._own, self._words
        # As long as somebody was not done with what this rank has counted, it counts no more.
        if words.load(self._behind, self._done) < own[self._done]:
            return False
        newest, total = self._count()
        if (newest[ranks] < versions).any():
            at = int(np.argmax(newest[ranks] < versions))
            text = f"settled: rank {ranks[at]} has published no version {versions[at]} yet"
            raise ValueError(text)
        if (newest[ranks] != versions).any():
            return False
        self._is_done = True
        words.sync()  # the counts are read
        own[self._done] = total
        words.sync()
        every = words.fetch_op_many(self._ranks, self._done, 0, "no_op")
        self._behind = int(every.argmin())
        words.sync()
        return bool((every == total).all()) and self._count()[1] == total

    def _count(self) -> tuple[Longs, int]:
        """Return the newest versions of all ranks, and the sum of all counts + 1."""
        counts = self._words.fetch_op_many(*self._counts, "no_op")
        newest = counts[::2] >> self._bits
        return newest, int(newest.sum() + counts[1::2].sum()) + 1
