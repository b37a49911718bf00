# SPDX-License-Identifier: BSD-3-Clause
"""The tasks of a rank: a ring in a window, of which any rank may take, and what it holds beside.

The control word is epoch | head | count. It changes by compare_and_swap only: its owner adds
tasks behind the last one (count grows), and whoever takes tasks, the owner too, takes the first
ones (head grows, count shrinks). So an unchanged head means that the tasks from head on are those
that were there; what was read of them is thrown away if head has moved. The head counts modulo
2**32: a thief would have to sleep while exactly so many tasks pass.

Interruptions. A signal handler may raise after any step. What this rank holds beside the ring is
changed as a whole, by one store. A swap is noted there before it happens, with what is held if it
does, and its answer comes into a list by no step of Python's: so whoever looks knows whether it
has happened, and `now` reckons with it. A swap by message is made in a thread where no handler
raises.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import Window
from .._runtime.locks import apart

__all__ = ["CONTROL", "EPOCHS", "LARGEST", "Held", "Ring", "epoch_and_count"]

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


class Swap:
    """A swap of a control word: what it expects, and what is held if it happens.

    Attributes
    ----------
    old : list
        What the word was: empty until there is an answer.
    """

    __slots__ = ("after", "expected", "old")

    def __init__(self, expected: int, after: Held) -> None:
        self.expected, self.after = expected, after
        self.old: list[Any] = []

    @property
    def happened(self) -> bool:
        """Whether it has."""
        return bool(self.old) and int(self.old[0]) == self.expected


class Held(NamedTuple):
    """What a rank holds beside its ring, and what it has done.

    Only this rank's loop takes tasks of the stack: those between low and high, the oldest first.
    Those of the chunk are in hand: the loop gets next what is left of them.
    """

    stack: Array
    low: int
    high: int
    chunk: Array
    left: Iterator[Any]
    done: int = 0
    stolen: int = 0
    put: int = 0
    swap: Swap | None = None  # not reckoned with yet

    @property
    def in_hand(self) -> int:
        """How many tasks are left of the chunk."""
        return operator.length_hint(self.left)


class Ring:
    """This rank's tasks, and its hands on the others' rings.

    One thread at a time calls what changes anything.

    Parameters
    ----------
    words : Window
        Of int64; the control word is at CONTROL.
    tasks : Window
        The rings: a power of two of elements each.
    rank : int
        This one.
    capacity : int
        How many tasks this rank holds at most.
    """

    def __init__(self, words: Window[Any], tasks: Window[Any], rank: int, capacity: int) -> None:
        self._words, self._tasks, self._rank = words, tasks, rank
        self._own = words.local  # the tasks' memory is asked for: a closed window keeps none
        self._capacity = capacity
        self._most = max(1, _STEAL // max(1, tasks.dtype.itemsize))
        none = np.empty(0, tasks.dtype)
        self._held = Held(none, 0, 0, none, iter(()))

    # -- what there is -----------------------------------------------------------------

    def now(self) -> Held:
        """Return what this rank holds, whatever an exception has ended halfway."""
        held = self._held
        if held.swap is None:
            return held
        return held.swap.after if held.swap.happened else held._replace(swap=None)

    def _settled(self) -> Held:
        self._held = held = self.now()
        return held

    def count(self) -> int:
        """Return how many tasks are in the own ring: others may take some meanwhile."""
        return int(self._own[CONTROL]) & LARGEST

    def holds(self) -> int:
        """Return how many tasks this rank has: others may take some meanwhile."""
        held = self.now()
        return self.count() + held.high - held.low + held.in_hand

    # -- putting -----------------------------------------------------------------------

    def put(self, tasks: Array) -> None:
        """Put new tasks, for which there is room, to where others can take them."""
        held = self._settled()
        self._push(tasks, held._replace(put=held.put + tasks.size))

    def append(self, tasks: Array) -> None:
        """Put new tasks to this rank's own."""
        held = self._settled()
        self._held = self._with(held, tasks)._replace(put=held.put + tasks.size)

    def share(self, count: int) -> None:
        """Let others take so many of this rank's own tasks, the oldest."""
        held = self._settled()
        if count > 0:
            end = held.low + count
            self._push(held.stack[held.low : end], held._replace(low=end))

    def _with(self, held: Held, tasks: Array) -> Held:
        """Return what is held with newer tasks in the stack: nobody has looked behind its end."""
        count, stack, low, high = tasks.size, held.stack, held.low, held.high
        if high + count > stack.size:
            there = high - low
            least = there + count
            larger = np.empty(max(64, least, min(2 * least, self._capacity)), stack.dtype)
            larger[:there] = stack[low:high]
            stack, low, high = larger, 0, there
        stack[high : high + count] = tasks
        return held._replace(stack=stack, low=low, high=high + count)

    def _push(self, tasks: Array, after: Held) -> None:
        """Add tasks to the own ring."""
        word = int(self._own[CONTROL])
        _, head, count = _unpack(word)
        memory, left = self._tasks.local, tasks.size
        size = memory.size
        place = (head + count) & (size - 1)  # thieves do not move the end
        first = min(left, size - place)
        memory[place : place + first] = tasks[:first]
        memory[: left - first] = tasks[first:]
        # The swap orders the tasks before the word.
        while (old := self._swap(self._rank, word, word + left, after)) != word:
            word = old

    # -- taking ------------------------------------------------------------------------

    def take(self, limit: int, parts: int) -> Iterator[Any] | None:
        """Take some tasks in hand, so many at most; None if there are none.

        From the stack the newest first, but few: their bodies may put newer ones. Else a part of
        those in the ring.
        """
        held = self._settled()
        own = held.high - held.low
        if own:
            count = min(limit, (own + 3) // 4)
            chunk = held.stack[held.high - count : held.high][::-1].copy()
            self._held = self._in_hand(held, chunk)._replace(high=held.high - count)
            return self._held.left
        word = int(self._own[CONTROL])
        while True:
            epoch, head, count = _unpack(word)
            if not count:
                return None
            wanted = max(1, min(limit, count // parts))
            after = self._in_hand(held, self._copy(head, wanted))
            new = _pack(epoch, head + wanted, count - wanted)
            old = self._swap(self._rank, word, new, after)
            if old == word:
                return after.left
            word = old

    @staticmethod
    def _in_hand(held: Held, chunk: Array) -> Held:
        return held._replace(chunk=chunk, left=iter(chunk), done=held.done + chunk.size)

    def put_back(self) -> None:
        """Put what is left in hand to the own tasks."""
        held = self._settled()
        left = held.in_hand
        if left:
            some = self._with(held, held.chunk[held.chunk.size - left :])
            self._held = some._replace(left=iter(()), done=held.done - left)

    def _copy(self, head: int, count: int) -> Array:
        """Return a copy of tasks of the own ring."""
        memory = self._tasks.local
        place = head & (memory.size - 1)
        tasks = memory[place : place + count].copy()
        if tasks.size < count:
            tasks = np.concatenate((tasks, memory[: count - tasks.size]))
        return tasks

    def read(self, victim: int, word: int) -> Array:
        """Return the first half of another rank's tasks, of which none is taken yet."""
        _, head, count = _unpack(word)
        size = self._tasks.size(victim)
        wanted = min((count + 1) // 2, self._most, self._capacity)
        tasks = np.empty(wanted, self._tasks.dtype)
        place = head & (size - 1)
        first = min(wanted, size - place)
        self._tasks.get(victim, place, first, tasks[:first])
        if first < wanted:
            self._tasks.get(victim, 0, wanted - first, tasks[first:])
        return tasks

    def steal(self, victim: int, word: int, tasks: Array) -> bool:
        """Take what was read when the control word was `word`; False if others were faster."""
        held = self._settled()
        after = self._with(held, tasks)._replace(stolen=held.stolen + tasks.size)
        for _ in range(_TRIES):
            epoch, head, count = _unpack(word)
            new = _pack(epoch, head + tasks.size, count - tasks.size)
            old = self._swap(victim, word, new, after)
            if old == word:
                return True
            if _unpack(old)[:2] != (epoch, head):  # else its owner has only added some
                break
            word = old
        return False

    def begin(self, epoch: int) -> None:
        """Let the own ring be of an epoch."""
        held = self._settled()
        word = int(self._own[CONTROL])
        while True:
            _, head, count = _unpack(word)
            old = self._swap(self._rank, word, _pack(epoch, head, count), held)
            if old == word:
                return
            word = old

    def _swap(self, rank: int, word: int, new: int, after: Held) -> int:
        """Swap a control word if it is `word`; return what it was.

        `after` is what this rank holds if it has happened.
        """
        held = self._held
        swap = Swap(word, after)
        self._held = held._replace(swap=swap)
        where = (word,), (new,), (rank,), (CONTROL,)
        call: Any = self._words.compare_and_swap
        if self._words.route(rank) == "direct":
            swap.old.extend(map(call, *where))
        else:
            swap.old.extend(map(apart, (call,), *where))
        self._held = after if swap.happened else held
        return int(swap.old[0])
