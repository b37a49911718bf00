# SPDX-License-Identifier: BSD-3-Clause
"""How the ranks of a communicator meet in collective calls, and stay in step.

Each collective call says what it is: its name, its window and its number in the sequence.
Where these differ, the call fails on all ranks, which then tell one another what they
called; nothing else has happened, and they may go on. A rank that gives a call up tells
the others, whose calls fail from then on: nobody could know any more who is where.

The ranks of one node meet in shared memory (csrc/shm/node_barrier.c), those that share none by
puts over the network (csrc/xfer/network_barrier.c) once they have a window, others by MPI's
collectives.
"""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .._memory.node import Team
from .._native._lib import ffi, lib
from .._runtime import lifetime
from .._runtime.failures import advised, from_c, is_of_all, of_all
from .._runtime.reports import Patience, container_call, described, numbers, site, tell
from .._runtime.steps import END, EXPLAIN, FIRST, Step
from ..errors import BusyError, KeyRecordError, PeerLostError, SyncError
from . import collective
from .columns import Split
from .liveness import Living
from .network import during
from .network_barrier import NetworkBarrier

if TYPE_CHECKING:
    from types import TracebackType

    from .control import Block
    from .group import Group

__all__ = ["BID_BITS", "Meetings"]

BID_BITS = 28  # of a value: see Meetings.bid
_PENDING = lib.RMAEXT_PENDING
_TAG = 1  # of what ranks tell the others besides; collectives have a space of their own
_LOST = "lost: "  # begins what a rank says that gives up since others are gone
_ENDED = -1  # in the place of a window: the rank's program has come to its end
_RAISED = -2  # the same, by an exception
_BY = "ended by "  # begins what a rank says then
_TOLD = 64  # ranks that it says it to, by message: all of them may end so at once
_ASK_MOST = 1.0  # seconds between questions for what a broken connection may have lost
_MOST = 400  # characters of a text: a slot of a team has 510 bytes


def _three(rank: int, record: bytes) -> tuple[str, int, str]:
    """Decode what a rank has told of its call."""
    try:
        text, left, why = json.loads(record)
        return str(text), int(left), str(why)
    except (ValueError, TypeError):
        error = KeyRecordError(errno.EPROTO, f"malformed record of rank {rank}")
        raise of_all(error) from None


def _lost(reason: PeerLostError) -> str:
    """Return what a rank says that gives up since others are gone: as many as there is room for."""
    ranks, text = list(reason.ranks), str(reason)
    while len(said := _LOST + json.dumps([ranks, text])) > _MOST:
        if text:
            text = text[: -(len(said) - _MOST)]
        else:
            ranks.pop()
    return said


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._meetings.finish(error)
        self._inside = False


class Meetings:
    """The collective calls over one communicator.

    Attributes
    ----------
    place : Team or NetworkBarrier or None
        Where they meet; None: by MPI's collectives.
    team, far
        The same, if it is that.
    """

    def __init__(self, group: Group, comm: MPI.Comm) -> None:
        self._group, self.comm = group, comm
        self.rank, self.size = comm.rank, comm.size
        self.team: Team | None = None
        self.far: NetworkBarrier | None = None
        self.place: Team | NetworkBarrier | None = None
        # what C's fence needs, which makes a call of its own: their numbers, and whose turn it is
        self._numbers = ffi.new("struct rmaext_meetings *")
        self.address = int(ffi.cast("uintptr_t", self._numbers))
        self._met = self._numbers.met
        self._out: Exception | None = None
        self._out_begun = -1  # MPI's collectives that the one has begun who gave up
        self._step: Step | None = Step(FIRST, 0, 0)
        self._numbers.stepping = 1
        self._owner = 0  # of that call: who brackets it,
        self._frame: Any = None  # and where
        self._announced = True  # to duplicate the communicator was a collective of MPI
        # In a step, between the moment when the others may count on this rank and that
        # when all have come: an error then is this rank's alone.
        self._cut = False
        self._stepped = True  # in the call that it is in: the duplication was a step
        self._has_come = False  # to the next meeting of that call
        self._windows: dict[int, Block] = {}  # those that are open here
        self._leaves = 0  # windows that this rank has left by exceptions
        self._leaving = 0  # the last one
        self._why = ""  # the last one
        self._ended = ""  # ranks that have come to their end: they are in no other call any more
        self._left: dict[tuple[int, int], str] = {}  # other rank, window: why it left that
        self._said = 0  # by the ranks of the team, as far as this one has looked
        self._sent: list[Any] = []  # requests and their buffers
        places = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(self.size, places)
        self._calls = int(places.calls)  # the place of those words in a block
        self._ending = False
        self._ended_ranks: set[int] = set()  # of those that can meet no more
        self._raised: dict[int, str] = {}  # others that an exception has ended, as they have told
        self._living: Living | None = None  # once this rank has told that it has ended
        self._vigil: Vigil | None = None  # of the wait that goes on, once it lasts
        # of MPI's reductions: whose buffers they stay if one is interrupted, which is the last
        self._own, self._largest = np.zeros(3, np.int64), np.zeros(3, np.int64)
        self._bid = 0  # at the end
        self._end: Any = None  # the request of the reduction at the end
        self.meet_at(None)

    def meet_at(self, place: Team | NetworkBarrier | None) -> None:
        """Meet there from the next meeting on; all ranks do."""
        self.place, calls = place, self._numbers
        self.team = place if isinstance(place, Team) else None
        self.far = place if isinstance(place, NetworkBarrier) else None
        calls.team = ffi.NULL if self.team is None else self.team.handle
        calls.far = ffi.NULL if self.far is None else self.far.handle
        calls.fence = Step("fence", 0, 0, self._leaves).word()
        calls.meets = place is not None or self.size == 1

    @property
    def out(self) -> Exception | None:
        """SyncError or PeerLostError: why there can be no calls any more, as far as known here."""
        return self._out

    @out.setter
    def out(self, error: Exception) -> None:
        self._numbers.refused = 1
        self._out = error

    @property
    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self.size) if rank != self.rank)

    # -- calls -----------------------------------------------------------------

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
            if self.out is not None or (self._ended and call != END):
                self._refuse(call)
            number = window if isinstance(window, int) else 0
            step = Step(call, number, self._numbers.number + 1, self._leaves)
            self._frame, self._owner = sys._getframe(2), owner
        except BaseException:
            if self._numbers.turn == me and not handed:
                self._numbers.turn = 0
            raise
        # no signal handler runs between these lines
        self._announced = False
        self._stepped = self._cut = self._has_come = handed
        self._step = step
        self._numbers.stepping = 1

    def finish(self, error: BaseException | None) -> None:
        """End it."""
        step = self._step
        try:
            if error is not None and not self.all_have(error):
                self._cut = False
                self.give_up(error, str(step))
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
        """Give up a call that has ended, but not by `finish`."""
        if self._step is not None and self._owner == owner:
            self._cut = True
            self.finish(InterruptedError(errno.EINTR, "an exception of a signal handler"))

    def abandon_fence(self, window: Any) -> None:
        """Give up a fence that C has begun, as it cannot hand it over: a signal handler raised."""
        self._step = Step("fence", window._name, self._numbers.number + 1, self._leaves)
        self._numbers.stepping = 1
        self.abandon(self._owner)

    @property
    def over(self) -> bool:
        """Whether no collective call can take place any more, but for that of the end."""
        return bool(self._numbers.refused)

    @property
    def busy(self) -> bool:
        """Whether a thread of this rank is in a collective call."""
        return bool(self._numbers.turn)

    def all_have(self, error: BaseException) -> bool:
        """Tell whether the others are where this rank is, which this error has got there.

        So they are where all raise it, and where nobody could count on this rank yet.
        """
        if self._cut or not isinstance(error, Exception):
            return self.size == 1
        return not self._stepped or is_of_all(error) or self.size == 1

    def opened(self) -> None:
        """End the opening of the group, which is a call without a bracket."""
        self._step = None
        self._numbers.stepping = 0
        self._cut = False

    def alone(self) -> None:
        """Begin what this rank does by itself in this call: an error there is a give-up."""
        self._cut = True

    def together(self) -> None:
        """End what `alone` began."""
        self._cut = False

    def _refuse(self, call: str) -> None:
        try:
            self._group.watch.look_for_the_dead()
            self._group.watch.look_for_beacons()
        except PeerLostError as exc:
            raise during(call, exc) from None
        raise SyncError(errno.ECANCELED, f"{call}: {self.out or self._ended}", call=call)

    # -- steps -----------------------------------------------------------------

    def reduce(self, value: int) -> int:
        """Return the largest of the ranks' values; also a barrier. Collective."""
        if self.size == 1:
            return value
        self._cut = True
        worst, differ = self._announce(value) if self.place is None else self._meet(value)
        self._cut = False
        if differ:
            self._explain()
        return worst

    def bid(self, wants: bool) -> int:
        """Return what makes the largest value that of the first rank that wants to speak."""
        return self.size - self.rank if wants and self.size < 1 << BID_BITS else 0

    def gather(self, record: bytes) -> Sequence[bytes]:
        """Return every rank's record. Collective."""
        whole = self.gather_whole(record)
        self._cut = True
        records = Split(*whole)
        self._cut = False
        return records

    def gather_whole(self, record: bytes) -> tuple[Any, Any]:
        """As `gather`: return the records one after another, and their lengths."""
        if self.size == 1:
            return record, np.array([len(record)], np.int32)
        self._cut = True
        whole: tuple[Any, Any] | None = None
        if self.team is not None:
            too_long, differ = self._meet(not self.team.write(record))
            whole = None if too_long or differ else self.team.read()
        else:
            meet = self._announce if self.place is None else self._meet
            differ = not self._announced and meet(0)[1]
        if whole is None and not differ:
            self._numbers.begun += 1
            self._vigil = None
            with collective.recorded(self._group.record_id, self._now()):
                waiter = self if self.team is None else _BesideTeam(self, self.team)
                whole = collective.allgather(self.comm, record, waiter)
        self._cut = False
        if differ:
            self._explain()
        assert whole is not None
        return whole

    def _announce(self, value: int) -> tuple[int, bool]:
        """Meet by MPI: return the largest value, and whether the ranks are in different calls."""
        step = self._now()
        first = self._first()
        if first is not None:
            self._words(first)[1] = step.number
        buffers = self._reduction(step, value)
        self._vigil = None
        with collective.recorded(self._group.record_id, step):
            collective.complete(self.comm.Iallreduce, self, *buffers, MPI.MAX)
        return self._reduced()

    def _reduction(self, step: Step, value: int) -> tuple[Any, Any]:
        """Return the buffers of a reduction by MPI, which is about to begin."""
        own, word = self._own, step.word()
        own[0], own[1], own[2] = value, word, -word
        self._numbers.begun += 1
        return own, self._largest

    def _reduced(self) -> tuple[int, bool]:
        """Return what has come of it, as `_announce`."""
        self._announced = True
        worst, most, least = map(int, self._largest)
        return worst, most != -least

    def _meet(self, value: int) -> tuple[int, bool]:
        """As `_announce`, where the ranks have a place to meet."""
        self._vigil, met = None, self._met
        if not self._has_come:
            self._numbers.begun += 1
        self._has_come = False
        try:
            while True:
                if self._come(value, collective.SLICE):
                    break
                self.look()
        except BaseException:
            lib.rmaext_record_quit()
            raise
        self._announced = True
        return met.worst, met.differ != 0

    def _come(self, value: int, ns: int) -> bool:
        """Come to a meeting, and wait for so long; return whether all have come."""
        code = lib.rmaext_meet(self._numbers, self._now().word(), value, ns)
        if not code:
            if self.far is not None:
                self.far.settle()
            return True
        if code == -errno.ECANCELED and self.team is not None:
            raise self._cancelled(self.team.given_up() or "")
        if code != _PENDING:
            raise from_c(code)
        return False

    def _now(self) -> Step:
        step = self._step
        if step is None:
            raise RuntimeError("a step outside of a collective call")
        if step.number > self._numbers.number:  # a call without steps does not count
            self._numbers.number = step.number
        self._stepped = True
        return step

    # Of a wait for all others, see `collective.Waiter`.

    def fabric(self) -> Any:
        """Return the C endpoint to serve meanwhile."""
        network = self._group._network
        return ffi.NULL if network is None else network.fabric.handle

    def look(self) -> None:
        """Look whether all others can still come."""
        if self._vigil is None:
            self._vigil = Vigil(self, self._group, self._now(), self._numbers.begun)
        self._vigil.look()

    # -- what does not match ---------------------------------------------------

    def _explain(self) -> None:
        """Raise the error of calls that do not match; all ranks do."""
        mine = self._now()
        at = [text for text in (container_call(), site()) if text]
        said = f"{mine} ({', '.join(at)})" if at else str(mine)
        self._step = Step(EXPLAIN, 0, 0)
        told = self.gather(json.dumps([said[:_MOST], mine.left, self._why[:_MOST]]).encode())
        by_text: dict[str, list[int]] = {}
        last: tuple[int, str] = (0, "")
        lefts = set()
        for rank, record in enumerate(told):
            text, left, why = _three(rank, record)
            by_text.setdefault(text, []).append(rank)
            lefts.add(left)
            last = max(last, (left, why))
        if len(lefts) > 1:  # some have left a window by an exception, others have not
            self.out = error = of_all(self._given_up(last[1]))
            raise error
        calls = "; ".join(f"{numbers(ranks)}: {text}" for text, ranks in by_text.items())
        ended = [rank for said, ranks in by_text.items() if said.startswith(END) for rank in ranks]
        if ended:
            self._ended = f"{numbers(sorted(ended))}: {END}"
            self._numbers.refused = 1
        text = f"the ranks are in different collective calls: {calls}. All ranks of a "
        text += "communicator must make the same calls in the same order; nothing was done"
        raise of_all(SyncError(errno.EINVAL, text, call=mine.call))

    @property
    def number(self) -> int:
        """Of the last collective call over this communicator."""
        return int(self._numbers.number)

    def give_up(self, reason: BaseException, where: str) -> None:
        """Tell the others that no collective call over this communicator is possible any more.

        But not of lost peers, which each notices for itself, nor of what they have told.
        """
        if self.out is not None or self.size == 1:
            return
        if isinstance(reason, PeerLostError):
            self.out = reason
            # those who come later to this meeting learn the same, as it does not take place
            if self.team is not None and not lifetime.ending():
                self.team.give_up(_lost(reason))
            return
        why = getattr(reason, "why", "")
        if not why:
            why = f"rank {self.rank} has given up {where} ({described(reason)})"
        self.out = self._given_up(why)
        if not lifetime.ending():
            if self.team is not None:
                self.team.give_up(why[:_MOST])
            else:
                self._tell(0, why)

    def open(self, window: int, block: Block) -> None:
        """Note a window that all ranks have made."""
        self._windows[window] = block

    def close(self, window: Any) -> None:
        """Forget one that is closed here."""
        self._windows.pop(window, None)

    def leave(self, window: Any, reason: BaseException) -> None:
        """Tell those who have not that this rank has left a window by an exception."""
        block = self._windows.get(window)
        if block is None or self.size == 1 or self.out is not None or lifetime.ending():
            self.close(window)
            return
        if self._leaving != window:  # else a signal has ended this before
            why = f"rank {self.rank} has left window {window} ({described(reason)})"
            fence = Step("fence", 0, 0, self._leaves + 1).word()
            words = None if self.team is None else self._words(block)
            # no signal handler runs between these lines
            self._leaves += 1
            self._leaving, self._why, self._numbers.fence = window, why, fence
            if words is not None:
                words[0] = 1
        if self.team is None:
            self._tell(window, self._why)
        else:
            self.team.explain(self._why[:_MOST])
        self.close(window)

    def end_by(self, error: BaseException) -> None:
        """Tell the others which exception ends this rank; they find by themselves that it does."""
        if self.size == 1 or self.out is not None or self._leaves:
            return  # they know more: who gives up a call, or a window, says why
        if isinstance(error, PeerLostError):
            return  # nor is a message to the dead of use to anybody
        why = _BY + described(error)
        if self.team is not None:
            self.team.explain(why[:_MOST])
            return
        steps = range(1, min(self.size, _TOLD) // 2 + 1)
        near = {(self.rank + sign * step) % self.size for step in steps for sign in (1, -1)}
        self._tell(_RAISED, why, sorted(near))

    def last_words(self, rank: int) -> str:
        """Return which exception has ended another rank, if it has told that and this rank knows.

        What comes by messages is known once they were heard, which `Vigil` does.
        """
        said = self._raised.get(rank, "") if self.team is None else self.team.reason(rank)
        return said if said.startswith(_BY) else ""

    def _tell(self, window: int, why: str, ranks: Sequence[int] | None = None) -> None:
        """Send a message to all others, or some; nobody waits for it to arrive."""
        self._sent = [sent for sent in self._sent if not sent[0].Test()]
        message = json.dumps([self._numbers.begun, window, why[:_MOST]]).encode()
        for rank in self._others if ranks is None else ranks:
            self._sent.append((self.comm.Isend([message, MPI.BYTE], rank, _TAG), message))

    def hear(self) -> tuple[int, int, int, str] | None:
        """Return what another rank has told: rank, collectives it has begun, window and why."""
        status = MPI.Status()
        if not self.comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            return None
        data = bytearray(status.Get_count(MPI.BYTE))
        self.comm.Recv([data, MPI.BYTE], status.source, _TAG)
        try:
            begun, window, why = json.loads(data)
            return status.source, int(begun), int(window), str(why)
        except (ValueError, TypeError):
            raise KeyRecordError(errno.EPROTO, f"malformed message of {status.source}") from None

    def _cancelled(self, why: str) -> Exception:
        """Return the error of a meeting that a rank has given up, which says why."""
        if not why.startswith(_LOST):
            return self._given_up(why)
        ranks, text = [], "a rank is lost"
        with suppress(ValueError, TypeError):
            ranks, text = json.loads(why[len(_LOST) :])
        lost = PeerLostError(errno.ENOTCONN, str(text), rank=ranks[0] if ranks else None)
        lost.ranks = tuple(int(rank) for rank in ranks)
        return lost

    def _given_up(self, why: str) -> SyncError:
        text = f"{why}. No collective call over this communicator can take place any more: "
        text += "use a duplicate of it (comm.Dup) for new windows"
        error = SyncError(errno.ECANCELED, text)
        error.why = why  # type: ignore[attr-defined]
        return error

    def _hear_all(self) -> None:
        while (heard := self.hear()) is not None:
            rank, its, window, why = heard
            if window == _ENDED:
                self._ended_ranks.add(rank)
            elif window == _RAISED:
                self._raised[rank] = why
            elif window:
                self._left[rank, window] = why
            elif self.out is None:
                self.out, self._out_begun = self._given_up(why), its

    def look_for_leavers(self, begun: int, late: bool) -> None:
        """Raise if some rank will not come to this step."""
        # one that gave up before it had its place in the team has sent a message
        if self.team is None or late:
            self._hear_all()
            # what it has begun before ends yet, if all others come
            if self.out is not None and (begun > self._out_begun or late):
                raise self.out
            for (_, window), why in self._left.items():
                if late and window in self._windows:
                    raise self._given_up(why)
        if self.team is None:
            return
        if (said := lib.rmaext_node_barrier_said(self.team.handle)) != self._said:
            for block in self._windows.values():
                for rank in self._others:
                    if self._words(block, rank)[0]:
                        raise self._given_up(self.team.reason(rank))
            self._said = said

    # -- who is where ------------------------------------------------------------

    def _words(self, block: Block, rank: int | None = None) -> Any:
        """Return two words of a window's control block: has left it, number of its last call."""
        mapped = block.maps[self.rank if rank is None else rank]
        return ffi.cast("int64_t *", mapped) + self._calls

    def _first(self) -> Block | None:
        """Return the block of the first open window, the same on all ranks: it has that number."""
        return next(iter(self._windows.values()), None)

    def missing(self, step: Step) -> list[int] | None:
        """Return the ranks that have not come to a step; None if that cannot be known."""
        if self.team is not None:
            return [r for r in self._others if lib.rmaext_node_barrier_awaits(self.team.handle, r)]
        if self.far is not None:
            return self.far.missing(self._others)
        block = self._first()
        if block is None:
            return None
        offset = block.base + self._calls + 1
        found = []
        for rank in self._others:
            with suppress(Exception):  # one that is lost is noticed elsewhere
                if block.window.get(rank, offset, 1)[0] < step.number:
                    found.append(rank)
        return found

    # -- end ---------------------------------------------------------------------

    def at_end(self) -> bool:
        """Come to the end of the program; return whether all have. Without waiting.

        To be called again and again. Raises what ends the wait for the others, and
        SyncError if they are in another call; then it may be called again, too.
        """
        if self.out is not None:
            return self._at_end_apart()
        hints = self._group.last_hints
        if not self._ending:
            self._bid = self.bid(bool(hints))
            self.begin(END, 0)
            self._ending = True
            self._vigil = None
            if self.place is None:
                lib.rmaext_record_meets(self._group.record_id, self._now().word())
                buffers = self._reduction(self._now(), self._bid)
                self._end = self.comm.Iallreduce(*buffers, MPI.MAX)
            else:
                self._numbers.begun += 1
        try:
            self._cut = True
            by_mpi = self.place is None
            if not (self._end.Test() if by_mpi else self._come(self._bid, 0)):
                self.look()
                return False
            met = self._met
            most, differ = self._reduced() if by_mpi else (met.worst, met.differ)
            self._announced = True
            if by_mpi:
                lib.rmaext_record_met(0)
            self._cut = False
            if differ:
                self._explain()
        except BaseException as exc:
            self._ending = False
            lib.rmaext_record_quit()
            self.finish(exc)
            raise
        self._ending = False
        self.finish(None)
        if self._bid and self._bid == most:
            tell(hints)
        return True

    def at_end_of_comm(self) -> bool:
        """Come to the end of the communicator, which is that of the program for it; as `at_end`.

        The program goes on meanwhile, and so waits in nothing between the calls.
        """
        if self.size == 1:
            return True
        try:
            return self.at_end()
        finally:
            self._vigil = None
            lib.rmaext_record_quit()

    def _at_end_apart(self) -> bool:
        """As `at_end`, where the ranks can meet no more: each tells that it has ended."""
        if self._living is None:
            self._living = Living(self._group)
            if self.team is None:
                self._tell(_ENDED, "")
            else:
                lib.rmaext_node_barrier_end(self.team.handle)
        if self.team is None:
            self._hear_all()
            ended = self._ended_ranks
        else:
            handle = self.team.handle
            ended = {r for r in range(self.size) if lib.rmaext_node_barrier_ended(handle, r)}
        return ended | self._living.gone() | {self.rank} == set(range(self.size))


class _BesideTeam:
    """Looks as `Meetings` does, while a team waits in a collective of MPI's.

    Who gave up before it began that has told the team so, which does not meet meanwhile.
    """

    def __init__(self, meetings: Meetings, team: Team) -> None:
        self._meetings, self._team = meetings, team
        self.fabric = meetings.fabric

    def look(self) -> None:
        """Look whether all others can still come."""
        if (why := self._team.given_up()) is not None:
            raise self._meetings._cancelled(why)
        self._meetings.look()


class Vigil:
    """What a rank does between the slices of a wait for all others."""

    def __init__(self, meetings: Meetings, group: Group, step: Step, begun: int) -> None:
        self._meetings, self._group, self._step = meetings, group, step
        self._begun = begun
        self._gone: PeerLostError | None = None
        self._patience = Patience()
        self._deadline = 0.0
        # when to ask for what may have been lost; at the end the other one may be about to close
        self._ask = time.monotonic() + collective.GRACE if step.call == END else 0.0

    def look(self) -> None:
        """Look whether all others can still come; warn once if it takes long."""
        now = time.monotonic()
        if self._gone is not None:
            if now > self._deadline:
                # it may have said why meanwhile
                self._meetings.look_for_leavers(self._begun, late=True)
                gone = self._group.watch.explained(self._gone)
                raise during(str(self._step), gone, str if gone._explained else advised)
            return
        lost: PeerLostError | None = None
        try:
            # those who have left a window may yet come, to find that the calls differ
            if now > self._patience.since + collective.GRACE:
                self._meetings.look_for_leavers(self._begun, late=True)
            elif self._meetings.team is None:
                self._meetings.look_for_leavers(self._begun, late=False)
            self._group.watch.look(self._group._network)
            if self._meetings.far is not None and now > self._ask:
                self._ask = now + min(now - self._patience.since, _ASK_MOST)
                self._meetings.far.ask()
        except PeerLostError as exc:
            lost = exc
        if lost is not None:  # here, as an error that follows is not of the other one's making
            # it may have said why
            self._meetings.look_for_leavers(self._begun, late=True)
            # it may have come, and left, before the others
            self._gone = self._group.watch.explained(lost)
            self._deadline = now + collective.GRACE
        if self._step.call != END:
            self._patience.look(str(self._step), lambda: self._meetings.missing(self._step))
