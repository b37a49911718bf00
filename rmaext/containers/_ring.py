# SPDX-License-Identifier: BSD-3-Clause
"""The tasks of each rank that any rank may take: a ring in a window, and its control word.

The control word is epoch | head | count. It changes by compare_and_swap only: its owner adds
tasks behind the last one (count grows), and whoever takes tasks, the owner too, takes the first
ones (head grows, count shrinks). So an unchanged head means that the tasks from head on are those
that were there; what was read of them is thrown away if head has moved. The head counts modulo
2**32: a thief would have to sleep while exactly so many tasks pass.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import CapacityError, Window

__all__ = ["CONTROL", "EPOCHS", "LARGEST", "Ring", "epoch_and_count"]

CONTROL = 0  # the place of the word
EPOCHS = 8  # epochs are counted modulo this: ranks differ by one at most
LARGEST = (1 << 28) - 1  # tasks
_COUNT, _HEAD = 28, 32  # bits
_HEADS = (1 << _HEAD) - 1
_STEAL = 1 << 18  # bytes that are stolen at once, at most: more is more often in vain
_TRIES = 8

Array = NDArray[Any]


def _pack(epoch: int, head: int, count: int) -> int:
    return (epoch % EPOCHS) << (_HEAD + _COUNT) | (head & _HEADS) << _COUNT | count


def _unpack(word: int) -> tuple[int, int, int]:
    return word >> (_HEAD + _COUNT), word >> _COUNT & _HEADS, word & LARGEST


def epoch_and_count(words: Array) -> tuple[Array, Array]:
    """Return the epochs and counts of several control words."""
    return words >> (_HEAD + _COUNT), words & LARGEST


class Ring:
    """This rank's ring, and its hands on the others'.

    Parameters
    ----------
    words : Window
        Of int64; the control word is at CONTROL.
    tasks : Window
        The rings: a power of two of elements each.
    rank : int
        This one.

    Attributes
    ----------
    claim : tuple or None
        What is being taken: the head, how many tasks, and those that were read of another
        rank. Whoever has put them into safety sets it to
        None. If an exception comes before (Ctrl-C), `claimed` returns them.
    """

    def __init__(self, words: Window[Any], tasks: Window[Any], rank: int) -> None:
        self._words, self._tasks, self._rank = words, tasks, rank
        self._own, self._memory = words.local, tasks.local
        self._most = max(1, _STEAL // max(1, tasks.dtype.itemsize))
        self.claim: tuple[int, int, Array | None] | None = None
        self._expected = -1
        self._swapped: list[Any] = []

    def count(self) -> int:
        """Return how many tasks are in the own ring: others may take some meanwhile."""
        return int(self._own[CONTROL]) & LARGEST

    def push(self, tasks: Array) -> None:
        """Add tasks, for which there is room. If it raises, `swapped` tells whether it did."""
        word = int(self._own[CONTROL])
        _, head, count = _unpack(word)
        size, left = self._memory.size, tasks.size
        if count + left > size:  # by a signal handler that puts while tasks are stolen
            raise CapacityError(errno.ENOSPC, "TaskQueue: this rank holds too many tasks")
        place = (head + count) & (size - 1)  # thieves do not move the end
        first = min(left, size - place)
        self._memory[place : place + first] = tasks[:first]
        self._memory[: left - first] = tasks[first:]
        # The swap orders the tasks before the word.
        while (old := self._swap(self._rank, word, word + left)) != word:
            word = old

    def swapped(self) -> bool:
        """Whether the last swap has happened."""
        return bool(self._swapped) and int(self._swapped[0]) == self._expected

    def take(self, limit: int, parts: int) -> Array | None:
        """Claim the first tasks of the own ring: a part of them, and at most so many."""
        word = int(self._own[CONTROL])
        while True:
            epoch, head, count = _unpack(word)
            if not count:
                return None
            wanted = max(1, min(limit, count // parts))
            new = _pack(epoch, head + wanted, count - wanted)
            old = self._swap(self._rank, word, new, (head, wanted, None))
            if old == word:
                return self._copy(head, wanted)
            word = old

    def _copy(self, head: int, count: int) -> Array:
        """Return a copy of tasks of the own ring."""
        place = head & (self._memory.size - 1)
        tasks = self._memory[place : place + count].copy()
        if tasks.size < count:
            tasks = np.concatenate((tasks, self._memory[: count - tasks.size]))
        return tasks

    def steal(self, victim: int, word: int, room: int, ready: Callable[[], None]) -> Array | None:
        """Claim the first half of another rank's tasks; None if others were faster.

        `ready` is called when they are read, before any is taken.
        """
        epoch, head, count = _unpack(word)
        size = self._tasks.size(victim)
        wanted = min((count + 1) // 2, self._most, room)
        tasks = np.empty(wanted, self._tasks.dtype)
        place = head & (size - 1)
        first = min(wanted, size - place)
        self._tasks.get(victim, place, first, tasks[:first])
        if first < wanted:
            self._tasks.get(victim, 0, wanted - first, tasks[first:])
        ready()
        for _ in range(_TRIES):
            new = _pack(epoch, head + wanted, count - wanted)
            old = self._swap(victim, word, new, (head, wanted, tasks))
            if old == word:
                return tasks
            was, word = (epoch, head), old
            epoch, head, count = _unpack(word)
            if (epoch, head) != was:  # else its owner has only added some
                break
        return None

    def claimed(self) -> Array | None:
        """Return what was taken when an exception ended `take` or `steal`, once."""
        claim, self.claim = self.claim, None
        if claim is None or not self.swapped():
            return None
        head, count, tasks = claim
        return self._copy(head, count) if tasks is None else tasks

    def begin(self, epoch: int) -> None:
        """Let the own ring be of an epoch."""
        word = int(self._own[CONTROL])
        while True:
            _, head, count = _unpack(word)
            old = self._swap(self._rank, word, _pack(epoch, head, count))
            if old == word:
                return
            word = old

    def _swap(
        self,
        rank: int,
        word: int,
        new: int,
        claim: tuple[int, int, Array | None] | None = None,
    ) -> int:
        """Swap a control word if it is `word`; return what it was.

        What it was comes into `_swapped` in no step of Python's, after which a signal handler
        might raise: so it is never in doubt what was taken.
        """
        self.claim = None
        self._swapped.clear()
        self._expected, self.claim = word, claim
        swap = self._words.compare_and_swap
        self._swapped.extend(map(swap, (word,), (new,), (rank,), (CONTROL,)))
        return int(self._swapped[0])
