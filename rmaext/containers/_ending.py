# SPDX-License-Identifier: BSD-3-Clause
"""When no task is left or running anywhere: how the ranks of a TaskQueue find out, each by itself.

Each rank has a state word, generation | epoch | idle, which it alone writes. It is idle only if
it has no task of its own, has none in its ring and runs none; and before it takes tasks of another
rank it becomes busy, in a new generation.

A rank reads the state and control words of all ranks twice. If each rank is idle, each ring is
empty, and no word has changed from the first time to the second, then each word was so when the
first time was over: at that moment nobody had a task, so nobody could ever get one. It then tells
all ranks, in their word DONE. A rank that dies before it has told all of them is no matter: the
others find out as it did, or see that somebody is in the next epoch.

A rank that is lost is left out: it cannot take tasks any more.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import PeerLostError, Window
from ._agreement import named
from ._ring import CONTROL, EPOCHS, epoch_and_count
from ._windows import Pause, lost_error

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["WORDS", "Ending"]

WORDS = 3
_STATE, _DONE = 1, 2  # behind CONTROL
_LOOK_EVERY = 0.01  # seconds between looks for lost ranks
_SAMPLE = 24  # ranks that are looked at for tasks, before all are
_SHARE = 20  # a look at the others is so many times shorter than the pause after it
_LONGEST, _SLOWEST = 1e-3, 0.1  # seconds of a pause, and if looks are slow
_LOST = 32  # bits of DONE for the number of a lost rank + 1; above is the epoch that has begun

Array = NDArray[Any]
Places = tuple[Array, Array, Array]


def _places(ranks: list[int]) -> Places:
    """Return ranks and offsets of state and control words, and operands for them."""
    both = np.array([[_STATE, CONTROL]] * len(ranks)).reshape(-1)
    return np.repeat(np.array(ranks), 2), both, np.zeros_like(both)


class _Ranks(NamedTuple):
    """Which ranks are lost, which are not, and the places of these: changed by one store."""

    lost: frozenset[int]
    living: list[int]
    places: Places

    @classmethod
    def without(cls, lost: frozenset[int], size: int) -> _Ranks:
        living = [rank for rank in range(size) if rank not in lost]
        return cls(lost, living, _places(living))


class Ending:
    """This rank's state, and what it knows of the others'.

    Parameters
    ----------
    words : Window
        Of int64: WORDS on each rank.
    comm : mpi4py.MPI.Comm

    Attributes
    ----------
    epoch : int
        How many have ended before this one.
    told : frozenset of int
        The lost ranks that `report` has told of.
    """

    def __init__(self, words: Window[Any], comm: MPI.Comm) -> None:
        self._words, self._own = words, words.local
        self._comm, self._rank, self._size = comm, comm.rank, comm.size
        self.epoch = 0
        self.told: frozenset[int] = frozenset()
        self._looked = 0.0
        self._wide = False
        self._ranks = _Ranks.without(frozenset(), self._size)

    # -- the own state ---------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """What the others see."""
        return bool(self._own[_STATE] & 1)

    def be(self, idle: bool) -> None:
        """Become idle, or busy, for all to see before anything that follows."""
        generation = (int(self._own[_STATE]) >> 4) + (not idle)
        self._own[_STATE] = generation << 4 | (self.epoch % EPOCHS) << 1 | idle
        self._words.sync()

    def begin(self, epoch: int) -> None:
        """Go over to an epoch, busy until the loop begins."""
        self.epoch = epoch
        self.be(idle=False)

    def over(self) -> bool:
        """Whether this rank was told that the epoch has ended."""
        return int(self._own[_DONE]) >> _LOST > self.epoch

    # -- the others ------------------------------------------------------------------

    def look(self) -> tuple[bool, list[tuple[int, int]]]:
        """Look at the others, once.

        Returns
        -------
        ended : bool
            The epoch has; then all are told.
        victims : list of (int, int)
            Ranks that have tasks to steal, and their control words, in random order.
        """
        self.look_for_lost()
        living, places = self._ranks.living, self._ranks.places
        wide = self._wide or len(living) <= _SAMPLE
        if not wide:
            places = _places(random.sample(living, _SAMPLE))
        words = self._fetch(places)
        if words is None:
            return False, []
        states, controls = words[::2], words[1::2]
        epochs, counts = epoch_and_count(controls)
        of_states = states >> 1 & (EPOCHS - 1)
        now = self.epoch % EPOCHS
        if (of_states == (now + 1) % EPOCHS).any():
            return True, []
        quiet = bool(((states & 1 == 1) & (of_states == now) & (counts == 0)).all())
        if quiet and wide:
            again = self._fetch(places)
            ended = again is not None and np.array_equal(words, again)
            if ended:
                self._tell()
            return ended, []
        self._wide = quiet
        full = np.flatnonzero((epochs == now) & (counts > 0)).tolist()
        random.shuffle(full)
        ranks = places[0][::2]
        return False, [(int(ranks[i]), int(controls[i])) for i in full if ranks[i] != self._rank]

    def _fetch(self, places: Places) -> Array | None:
        """Return the words at some places; None if a rank of them is lost, who is left out now."""
        try:
            words: Array = self._words.fetch_op_many(*places, "no_op")
        except PeerLostError as exc:
            self.lose(exc)
            return None
        return words

    def _tell(self) -> None:
        """Tell all ranks that the epoch has ended, and the first rank that was lost in it.

        It waits for nobody: whom the message does not reach finds out by itself.
        """
        news = min(self._ranks.lost - self.told, default=-1) + 1
        value = self.epoch + 1 << _LOST | news
        try:
            self._words.accumulate_many(self._ranks.living, _DONE, value, "max")
        except PeerLostError:
            for rank in self._ranks.living:
                with suppress(PeerLostError):
                    self._words.accumulate(value, rank, _DONE, "max")

    def pause(self) -> Pause:
        """Return pauses between looks, which end when this rank is told."""
        return Pause(self._words, "TaskQueue loop")

    def wait(self, pause: Pause, took: float) -> None:
        """Pause after a look that took so many seconds: the more ranks, the longer."""
        pause.longest = min(max(_LONGEST, _SHARE * took), _SLOWEST)
        pause.wait(_DONE, self._own[_DONE])

    # -- lost ranks ------------------------------------------------------------------

    def look_for_lost(self) -> None:
        """Leave out those that are gone, as far as it is time to look."""
        now = time.monotonic()
        if now < self._looked + _LOOK_EVERY * max(1, self._size / 16):
            return
        self._looked = now
        if not self._ranks.lost:
            with suppress(PeerLostError):
                self._words.flush_local()  # raises if any is known to be gone
                return
        for rank in self._ranks.living:
            if rank != self._rank:
                try:
                    self._words.flush_local(rank)
                except PeerLostError:
                    self._leave_out(rank)

    def lose(self, error: PeerLostError) -> None:
        """Leave out those that are gone, after an operation has failed."""
        before = len(self._ranks.lost)
        self._looked = 0.0
        self.look_for_lost()
        if len(self._ranks.lost) == before:
            if error.rank is None or error.rank in self._ranks.lost or error.rank == self._rank:
                raise error
            self._leave_out(error.rank)

    def _leave_out(self, rank: int) -> None:
        self._ranks = _Ranks.without(self._ranks.lost | {rank}, self._size)

    def report(self) -> PeerLostError | None:
        """Return an error for the ranks that were lost since the last one that was raised."""
        news = int(self._own[_DONE]) & ((1 << _LOST) - 1)
        if news and news - 1 not in self._ranks.lost:
            self._leave_out(news - 1)
        lost = sorted(self._ranks.lost - self.told)
        if not lost:
            return None
        text = f"TaskQueue: {named(lost)} lost: so are the tasks that were there; "
        text += "all others are done"
        return lost_error(self._comm, lost, "TaskQueue", text)
