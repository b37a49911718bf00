# SPDX-License-Identifier: BSD-3-Clause
"""Who will not come to a collective call, and how ranks tell one another."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .._native._lib import lib
from .._runtime import lifetime
from .._runtime.failures import advised
from .._runtime.reports import Patience, described
from .._runtime.steps import END, Step
from ..errors import KeyRecordError, PeerLostError, SyncError
from .collective import GRACE
from .network import during

if TYPE_CHECKING:
    from .group import Group
    from .venue import Venue

__all__ = ["ENDED", "MOST", "Abandoned", "LongWait"]

_TAG = 1  # of what ranks tell the others besides; collectives have a space of their own
_CALL = 0  # in the place of a window: a call is abandoned, and with it all later ones
ENDED = -1  # the same: the rank's program has come to its end
_RAISED = -2  # the same, by an exception
_LOST = "lost: "  # begins what a rank says that abandons a call since others are gone
_BY = "ended by "  # begins what a rank says that an exception ends
_TOLD = 64  # ranks that it says it to, by message: all of them may end so at once
_ASK_MOST = 1.0  # seconds between questions for what a broken connection may have lost
MOST = 400  # characters of a text: a slot of a team has 510 bytes


def decoded(data: bytes | bytearray, what: str, *kinds: Callable[[Any], Any]) -> list[Any]:
    """Return three things that a rank has told; KeyRecordError if it is something else."""
    try:
        first, second, third = json.loads(data)
        return [kind(it) for kind, it in zip(kinds, (first, second, third))]  # noqa: B905
    except (ValueError, TypeError):
        raise KeyRecordError(errno.EPROTO, f"malformed {what}") from None


def lost_ranks(reason: PeerLostError) -> str:
    """Return what a rank says that abandons a call since others are gone: as far as it fits."""
    ranks, text = list(reason.ranks), str(reason)
    while len(said := _LOST + json.dumps([ranks, text])) > MOST:
        if text:
            text = text[: -(len(said) - MOST)]
        else:
            ranks.pop()
    return said


def cancelled(why: str) -> Exception:
    """Return the error of a meeting that a rank has abandoned, which says why."""
    if not why.startswith(_LOST):
        return refusal(why)
    ranks, text = [], "a rank is lost"
    with suppress(ValueError, TypeError):
        ranks, text = json.loads(why[len(_LOST) :])
    lost = PeerLostError(errno.ENOTCONN, str(text), rank=ranks[0] if ranks else None)
    lost.ranks = tuple(int(rank) for rank in ranks)
    return lost


def refusal(why: str) -> SyncError:
    """Return the error of all calls from then on."""
    text = f"{why}. No collective call over this communicator can take place any more: "
    error = SyncError(errno.ECANCELED, text + "use a duplicate of it (comm.Dup) for new windows")
    error.why = why  # type: ignore[attr-defined]
    return error


class Abandoned:
    """Who has abandoned a call or a window, or has ended by an exception.

    It owns what this rank has told of that, and what it has heard: as texts in shared memory
    among ranks of one node, else by messages. It knows no calls: `Meetings` and `LongWait` ask it,
    windows and `Group` tell it of exceptions, and `End` sends by it what it has to say.
    """

    def __init__(self, venue: Venue) -> None:
        self.venue = venue
        self.out: SyncError | PeerLostError | None = None  # why there can be no calls any more
        self._out_begun = -1  # meetings that the one has begun who abandoned a call
        self.count = 0  # windows that this rank has abandoned
        self._last, self.why = 0, ""  # the last one
        self._windows: dict[tuple[int, int], str] = {}  # other rank, window: why
        self._raised: dict[int, str] = {}  # others that an exception has ended
        self._ended: set[int] = set()  # others that can meet no more
        self._said = 0  # by the ranks of the team, as far as this one has looked
        self._sent: list[Any] = []  # requests and their buffers
        venue.numbers.fence = Step("fence", 0, 0).word()

    def refuse(self, error: SyncError | PeerLostError) -> SyncError | PeerLostError:
        """Let this rank make no call any more; return the error of those."""
        self.venue.numbers.refused = 1
        self.out = error
        return error

    def abandon_call(self, reason: BaseException, where: str) -> None:
        """Tell the others that this rank abandons a call, and with it all over this communicator.

        But not of lost peers, which each notices for itself, nor of what they have told.
        """
        if self.out is not None or self.venue.size == 1:
            return
        if isinstance(reason, PeerLostError):
            self.refuse(reason)
            # those who come later to this meeting learn the same, as it does not take place
            why = "" if self.venue.team is None else lost_ranks(reason)
        else:
            why = getattr(reason, "why", "")
            why = why or f"rank {self.venue.rank} has given up {where} ({described(reason)})"
            self.refuse(refusal(why))
        if why and not lifetime.ending():
            self.tell(_CALL, why)

    def abandon_window(self, window: Any, reason: BaseException) -> None:
        """Tell those who have not that this rank abandons a window: an exception ends it here."""
        venue, block = self.venue, self.venue.windows.get(window)
        if block is not None and venue.size > 1 and self.out is None and not lifetime.ending():
            if self._last != window:  # else a signal has ended this before
                why = f"rank {venue.rank} has left window {window} ({described(reason)})"
                fence = Step("fence", 0, 0, self.count + 1).word()
                words = None if venue.team is None else venue.words(block)
                # no signal handler runs between these lines
                self.count += 1
                self._last, self.why, venue.numbers.fence = window, why, fence
                if words is not None:
                    words[0] = 1
            self.tell(window, self.why)
        venue.windows.pop(window, None)

    def end_by(self, error: BaseException) -> None:
        """Tell the others which exception ends this rank; they find by themselves that it does."""
        rank, size = self.venue.rank, self.venue.size
        if size == 1 or self.out is not None or self.count or isinstance(error, PeerLostError):
            return  # it has said why already; nor is a message to the dead of use to anybody
        half = min(size, _TOLD) // 2
        near = {(rank + step) % size for step in range(-half, half + 1)} - {rank}
        self.tell(_RAISED, _BY + described(error), sorted(near))

    def tell(self, what: int, why: str, ranks: Iterable[int] | None = None) -> None:
        """Leave a text in shared memory, or send it to all others, or some; nobody waits for it."""
        venue, team, why = self.venue, self.venue.team, why[:MOST]
        if team is not None:
            if what == ENDED:
                lib.rmaext_node_barrier_end(team.handle)
            else:
                (team.give_up if what == _CALL else team.explain)(why)
            return
        self._sent = [sent for sent in self._sent if not sent[0].Test()]
        message = json.dumps([venue.numbers.begun, what, why]).encode()
        for rank in venue.others if ranks is None else ranks:
            self._sent.append((venue.comm.Isend([message, MPI.BYTE], rank, _TAG), message))

    def hear(self) -> None:
        """Take the messages of other ranks that have come."""
        comm, status = self.venue.comm, MPI.Status()
        while comm.Iprobe(MPI.ANY_SOURCE, _TAG, status):
            rank, data = status.source, bytearray(status.Get_count(MPI.BYTE))
            comm.Recv([data, MPI.BYTE], rank, _TAG)
            its, what, why = decoded(data, f"message of {rank}", int, int, str)
            if what == ENDED:
                self._ended.add(rank)
            elif what == _RAISED:
                self._raised[rank] = why
            elif what != _CALL:
                self._windows[rank, what] = why
            elif self.out is None:
                self._out_begun = its
                self.refuse(refusal(why))

    def last_words(self, rank: int) -> str:
        """Return which exception has ended another rank, if it has told and this rank has heard."""
        team = self.venue.team
        said = self._raised.get(rank, "") if team is None else team.reason(rank)
        return said if said.startswith(_BY) else ""

    def ended(self) -> set[int]:
        """Return the ranks that have told that they have ended, where they can meet no more."""
        venue, team = self.venue, self.venue.team
        if team is not None:
            return {r for r in range(venue.size) if lib.rmaext_node_barrier_ended(team.handle, r)}
        self.hear()
        return self._ended

    def look(self, begun: int, late: bool) -> None:
        """Raise if some rank will not come to this step."""
        venue, team = self.venue, self.venue.team
        # one that abandoned a call before it had its place in the team has sent a message
        if team is None or late:
            self.hear()
            # what it has begun before ends yet, if all others come
            if self.out is not None and (begun > self._out_begun or late):
                raise self.out
            for (_, window), why in self._windows.items():
                if late and window in venue.windows:
                    raise refusal(why)
        if team is not None and (said := lib.rmaext_node_barrier_said(team.handle)) != self._said:
            for block in venue.windows.values():
                for rank in venue.others:
                    if venue.words(block, rank)[0]:
                        raise refusal(team.reason(rank))
            self._said = said


class LongWait:
    """What a rank does between the slices of a wait for all others: it looks who will not come.

    `Meetings` has one for each meeting that lasts, number `begun`. It may be of a team that is
    `beside` a collective of MPI's: who abandons that has told the team, which does not meet.
    """

    def __init__(self, group: Group, others: Abandoned, step: Step, beside: bool = False) -> None:
        self._group, self._abandoned, self._step = group, others, step
        self._venue = venue = others.venue
        self._beside = venue.team if beside else None
        self.begun = int(venue.numbers.begun)
        self._gone: PeerLostError | None = None
        self._patience = Patience()
        self._deadline = 0.0
        # when to ask for what may have been lost; at the end the other one may be about to close
        self._ask = time.monotonic() + GRACE if step.call == END else 0.0

    def look(self) -> None:
        """Look whether all others can still come; warn once if it takes long."""
        if self._beside is not None and (why := self._beside.given_up()) is not None:
            raise cancelled(why)
        watch, far, now = self._group.watch, self._venue.far, time.monotonic()
        if self._gone is not None:
            if now > self._deadline:
                # it may have said why
                self._abandoned.look(self.begun, late=True)
                gone = watch.explained(self._gone)
                raise during(str(self._step), gone, str if gone._explained else advised)
            return
        lost: PeerLostError | None = None
        try:
            # those who have abandoned a window may yet come, to find that the calls differ
            late = now > self._patience.since + GRACE
            if late or self._venue.team is None:
                self._abandoned.look(self.begun, late)
            watch.look(self._group._network)
            if far is not None and now > self._ask:
                self._ask = now + min(now - self._patience.since, _ASK_MOST)
                far.ask()
        except PeerLostError as exc:
            lost = exc
        if lost is not None:  # here, as an error that follows is not of the other one's making
            self._abandoned.look(self.begun, late=True)
            # it may have come, and left, before the others
            self._gone = watch.explained(lost)
            self._deadline = now + GRACE
        if self._step.call != END:
            self._patience.look(str(self._step), lambda: self._venue.missing(self._step))
