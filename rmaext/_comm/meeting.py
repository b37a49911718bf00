# SPDX-License-Identifier: BSD-3-Clause
"""How the ranks of a communicator meet in collective calls, and stay in step.

Each collective call says what it is: its name, its window and its number in the sequence.
Where these differ, the call fails on all ranks, which then tell one another what they
called; nothing else has happened, and they may go on. A rank that abandons a call tells
the others, whose calls fail from then on: nobody could know any more who is where.
"""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .._native._lib import ffi, lib
from .._runtime.failures import from_c, is_of_all, of_all
from .._runtime.reports import container_call, numbers, site
from .._runtime.steps import END, EXPLAIN, FIRST, Step
from ..errors import BusyError, PeerLostError, SyncError
from . import collective
from .abandoned import MOST, Abandoned, LongWait, cancelled, decoded, refusal
from .columns import Split
from .end import End
from .network import during
from .venue import Venue

if TYPE_CHECKING:
    from .group import Group

__all__ = ["BID_BITS", "Meetings"]

BID_BITS = 28  # of a value: see Meetings.bid


class _Bracket:
    """Brackets a collective call; see `Meetings.collective`."""

    __slots__ = ("_call", "_handed", "_inside", "_meetings", "_window")

    def __init__(self, meetings: Meetings, call: str, window: Any, handed: bool) -> None:
        self._meetings, self._call, self._window = meetings, call, window
        self._handed, self._inside = handed, False

    def __enter__(self) -> None:
        self._inside = True
        self._meetings.begin(self._call, self._window, id(self), self._handed)

    def __del__(self) -> None:
        # a signal handler has raised where __exit__ was about to begin
        if self._inside:
            self._meetings.abandon(id(self))

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._meetings.finish(error)
        self._inside = False


class Meetings:
    """The collective calls over one communicator, and their steps.

    It owns the call that this rank is in: how far that has come, who brackets it, and whether
    the others count on this rank. Windows and `Group` bracket their calls by it, `End` makes one,
    and csrc/python/fence.c hands over those that it has begun.
    """

    def __init__(self, group: Group, comm: MPI.Comm) -> None:
        self._group = group
        self.venue = venue = Venue(comm)
        self.abandoned = Abandoned(venue)
        self.end = End(self, group)
        self.wait: LongWait | None = None  # of the last meeting that has lasted
        self.size, self._numbers, self._met = venue.size, venue.numbers, venue.numbers.met
        self._step: Step | None = Step(FIRST, 0, 0)
        self._numbers.stepping = 1
        self._owner = 0  # of that call: who brackets it,
        self._frame: Any = None  # and where
        # In a step, between the moment when the others may count on this rank and that when all
        # have come, and in what this rank does by itself: an error then abandons the call.
        self.alone = False
        self._stepped = True  # in that call: to duplicate the communicator was a step
        self._has_come = False  # to the next meeting of that call
        self._ended = ""  # ranks that have come to their end: they are in no other call any more
        # of MPI's reductions: whose buffers they stay if one is interrupted, which is the last
        self._own, self._largest = np.zeros(3, np.int64), np.zeros(3, np.int64)
        self._request: Any = None  # of one that nobody waits in

    def collective(self, call: str, window: Any = 0, handed: bool = False) -> _Bracket:
        """Bracket a collective call, from before it does anything; `window`: its number.

        `handed`: C has begun it in this thread, and has come to its meeting.

        If it ends by an error that is this rank's alone (a signal, a lost peer), this
        rank no longer knows which call the others are in: all later ones fail, on all
        ranks. Nothing orders the calls of two threads in the same way on all ranks: the
        second one is refused.
        """
        return _Bracket(self, call, window, handed)

    def begin(self, call: str, window: Any, owner: int = 0, handed: bool = False) -> None:
        """Begin a collective call; `owner`: of the bracket, a number of its own.

        Of one that C has handed over the turn stays C's until the call has a step.
        """
        me = threading.get_ident()
        if self._numbers.turn == me and not handed:
            if self._step is None or self._is_inside():
                text = f"{call}: inside another collective call, in a signal handler for example"
                raise SyncError(errno.EDEADLK, text, call=call)
            self.abandon(self._owner)
        try:
            if lib.rmaext_meetings_turn(self._numbers, me) != me:
                text = f"{call}: another thread is in a collective call over this communicator; "
                text += "let the threads take turns, or give each a duplicate of the communicator"
                raise BusyError(errno.EBUSY, text)
            if self.abandoned.out is not None or (self._ended and call != END):
                self._refuse(call)
            number = window if isinstance(window, int) else 0
            step = Step(call, number, self._numbers.number + 1, self.abandoned.count)
            self._frame, self._owner = sys._getframe(2), owner
        except BaseException:
            if self._numbers.turn == me and not handed:
                self._numbers.turn = 0
            raise
        # no signal handler runs between these lines
        self._stepped = self.alone = self._has_come = handed
        self._step = step
        self._numbers.stepping = 1

    def finish(self, error: BaseException | None) -> None:
        """End it."""
        step = self._step
        try:
            if error is not None and not self.all_have(error):
                self.alone = False
                self.abandoned.abandon_call(error, str(step))
        finally:
            self._step = self._frame = None
            self._numbers.stepping = 0
            self._numbers.turn = 0

    def _is_inside(self) -> bool:
        """Tell whether the call that was begun is one that this one is in."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None

    def abandon(self, owner: int) -> None:
        """Abandon a call that has ended, but not by `finish`."""
        if self._step is not None and self._owner == owner:
            self.alone = True
            self.finish(InterruptedError(errno.EINTR, "an exception of a signal handler"))

    def abandon_fence(self, window: Any) -> None:
        """Abandon a fence that C has begun, as it cannot hand it over: a signal handler raised."""
        self._step = Step("fence", window._name, self._numbers.number + 1, self.abandoned.count)
        self._numbers.stepping = 1
        self.abandon(self._owner)

    @property
    def over(self) -> bool:
        """Whether no collective call can take place any more, but for that of the end."""
        return bool(self._numbers.refused)

    def all_have(self, error: BaseException) -> bool:
        """Tell whether all raise this error, or nobody could count on this rank yet."""
        if self.alone or not isinstance(error, Exception):
            return self.size == 1
        return not self._stepped or is_of_all(error) or self.size == 1

    def _refuse(self, call: str) -> None:
        try:
            self._group.watch.look_for_the_dead()
            self._group.watch.look_for_beacons()
        except PeerLostError as exc:
            raise during(call, exc) from None
        raise SyncError(errno.ECANCELED, f"{call}: {self.abandoned.out or self._ended}", call=call)

    # -- steps -----------------------------------------------------------------

    def reduce(self, value: int) -> int:
        """Return the largest of the ranks' values; also a barrier. Collective."""
        if self.size == 1:
            return value
        self.alone = True
        worst, differ = self._announce(value) if self.venue.barrier is None else self._meet(value)
        self.alone = False
        if differ:
            self._explain()
        return worst

    def bid(self, wants: bool) -> int:
        """Return what makes the largest value that of the first rank that wants to speak."""
        return self.size - self.venue.rank if wants and self.size < 1 << BID_BITS else 0

    def gather(self, record: bytes) -> Sequence[bytes]:
        """Return every rank's record. Collective."""
        whole = self.gather_whole(record)
        self.alone = True
        records = Split(*whole)
        self.alone = False
        return records

    def gather_whole(self, record: bytes) -> tuple[Any, Any]:
        """As `gather`: return the records one after another, and their lengths."""
        if self.size == 1:
            return record, np.array([len(record)], np.int32)
        self.alone = True
        whole: tuple[Any, Any] | None = None
        venue = self.venue
        if venue.team is not None:
            too_long, differ = self._meet(not venue.team.write(record))
            whole = None if too_long or differ else venue.team.read()
        else:
            meet = self._announce if venue.barrier is None else self._meet
            differ = not self._stepped and meet(0)[1]
        if whole is None and not differ:
            self._numbers.begun += 1
            self.wait = LongWait(self._group, self.abandoned, self._now(), beside=True)
            with collective.recorded(self._group.record_id, self._now()):
                whole = collective.allgather(venue.comm, record, self)
        self.alone = False
        if differ:
            self._explain()
        assert whole is not None
        return whole

    def _announce(self, value: int) -> tuple[int, bool]:
        """Meet by MPI: return the largest value, and whether the ranks are in different calls."""
        step, venue = self._now(), self.venue
        if (first := venue.first()) is not None:
            venue.words(first)[1] = step.number
        buffers = self._reduction(step, value)
        with collective.recorded(self._group.record_id, step):
            collective.complete(venue.comm.Iallreduce, self, *buffers)
        return self._reduced()

    def _reduction(self, step: Step, value: int) -> tuple[Any, ...]:
        """Return what is reduced by MPI, which is about to begin."""
        own, word = self._own, step.word()
        own[0], own[1], own[2] = value, word, -word
        self._numbers.begun += 1
        return own, self._largest, MPI.MAX

    def _reduced(self) -> tuple[int, bool]:
        """Return what has come of it, as `_announce`."""
        worst, most, least = map(int, self._largest)
        return worst, most != -least

    def _meet(self, value: int) -> tuple[int, bool]:
        """As `_announce`, where the ranks have a place to meet."""
        if not self._has_come:
            self._numbers.begun += 1
        self._has_come = False
        try:
            while True:
                if (met := self._come(value, collective.SLICE)) is not None:
                    return met
                self.look()
        except BaseException:
            lib.rmaext_record_quit()
            raise

    def _come(self, value: int, ns: int) -> tuple[int, bool] | None:
        """As `_meet`, but wait for so long; None: not all have come."""
        code = lib.rmaext_meet(self._numbers, self._now().word(), value, ns)
        if code == lib.RMAEXT_PENDING:
            return None
        if code == -errno.ECANCELED and self.venue.team is not None:
            raise cancelled(self.venue.team.given_up() or "")
        if code:
            raise from_c(code)
        if self.venue.far is not None:
            self.venue.far.settle()
        return self._met.worst, self._met.differ != 0

    def start(self, value: int) -> None:
        """Begin a meeting that nobody waits in; `test` it until all have come."""
        self.alone = True
        if self.venue.barrier is None:
            lib.rmaext_record_meets(self._group.record_id, self._now().word())
            self._request = self.venue.comm.Iallreduce(*self._reduction(self._now(), value))
        else:
            self._numbers.begun += 1

    def test(self, value: int) -> int | None:
        """As `reduce`, without waiting: None if a rank has not come. `value` is that of `start`."""
        if self.venue.barrier is not None:
            met = self._come(value, 0)
        elif met := self._reduced() if self._request.Test() else None:
            lib.rmaext_record_met(0)
        if met is None:
            self.look()
            return None
        self.alone = False
        if met[1]:
            self._explain()
        return met[0]

    def _now(self) -> Step:
        step = self._step
        if step is None:
            raise RuntimeError("a step outside of a collective call")
        if step.number > self._numbers.number:  # a call without steps does not count
            self._numbers.number = step.number
        self._stepped = True
        return step

    # A wait for all others, see `collective.Waiter`.

    def fabric(self) -> Any:
        """Return the C endpoint to serve meanwhile."""
        network = self._group._network
        return ffi.NULL if network is None else network.fabric.handle

    def look(self) -> None:
        """Look whether all others can still come."""
        if self.wait is None or self.wait.begun != self._numbers.begun:
            self.wait = LongWait(self._group, self.abandoned, self._now())
        self.wait.look()

    def _explain(self) -> None:
        """Raise the error of calls that do not match; all ranks do."""
        mine = self._now()
        at = [text for text in (container_call(), site()) if text]
        said = f"{mine} ({', '.join(at)})" if at else str(mine)
        self._step = Step(EXPLAIN, 0, 0)
        record = [said[:MOST], mine.abandoned, self.abandoned.why[:MOST]]
        told = self.gather(json.dumps(record).encode())
        by_text: dict[str, list[int]] = {}
        counts = set()
        for rank, its in enumerate(told):
            text, count, why = decoded(its, f"record of rank {rank}", str, int, str)
            by_text.setdefault(text, []).append(rank)
            counts.add((count, why))
        if len({count for count, _ in counts}) > 1:  # some have abandoned a window
            raise self.abandoned.refuse(of_all(refusal(max(counts)[1])))
        calls = "; ".join(f"{numbers(ranks)}: {text}" for text, ranks in by_text.items())
        ended = [rank for said, ranks in by_text.items() if said.startswith(END) for rank in ranks]
        if ended:
            self._ended = f"{numbers(sorted(ended))}: {END}"
            self._numbers.refused = 1
        text = f"the ranks are in different collective calls: {calls}. All ranks of a "
        text += "communicator must make the same calls in the same order; nothing was done"
        raise of_all(SyncError(errno.EINVAL, text, call=mine.call))
