# SPDX-License-Identifier: BSD-3-Clause
"""What the mode keeps of a window: the accesses, and the clocks of those who synchronise by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .._runtime.reports import container, site
from ..errors import PeerLostError, RmaTimeout
from . import memory as requests
from .clock import NEVER, Times, alone, clock
from .memory import memory
from .races import FLUSH, REQUEST, RETURN, WRITE, Access, Pending, Race, at_once, pair_of, races
from .report import Finding, report
from .spans import Spans, common
from .world import gathered, ranks_of

__all__ = ["Rows", "Shadow"]

_SLOTS, _WORDS = 256, 64
_MOST = 10_000  # accesses that are kept


class Rows:
    """Where in the hidden window the clocks are: a row for each thing to synchronise by."""

    EXCLUSIVE, SHARED = 0, 1  # of those who had the lock
    SLOT = 2
    WORD = SLOT + _SLOTS  # of updates and of single elements that were put
    POST = WORD + _WORDS  # one for each rank
    SIZE = POST

    @staticmethod
    def complete(size: int, rank: int) -> int:
        """Return the row of a rank that has completed an epoch."""
        return Rows.POST + size + rank


class Shadow:
    """What the mode keeps of a window.

    Attributes
    ----------
    quiet : bool
        Whether only the synchronisation is followed: of windows that are the package's own.
    comm : MPI.Intracomm
        A communicator of the same ranks that nobody else uses.
    """

    def __init__(self, window: Any, comm: MPI.Intracomm, rows: Any, quiet: bool) -> None:
        self.name, self.dtype = window._name, window._dtype
        self.unit = self.dtype.itemsize
        self.comm, self.rows, self.quiet = comm, rows, quiet
        self.rank, self.size = comm.rank, comm.size
        self.world = ranks_of(window._comm)  # in MPI.COMM_WORLD
        self.site, self.container = site(), container()
        self.log: list[Access] = []
        self.held: dict[tuple[int, int], bool] = {}  # locks: whether they are exclusive
        self.shut = self.over = False  # no operation is allowed any more; all was compared
        self._index: dict[Any, Access] = {}
        self._part = -1
        self._found: list[Finding] = []  # already, to be told at the next fence
        self._pending: dict[int, Pending] = {}
        self._most = _MOST
        self._signals: list[tuple[Spans, int, Times]] = []
        self._known: set[frozenset[str]] = set()

    # -- accesses ----------------------------------------------------------------------

    @alone
    def note(
        self,
        target: int,
        kind: int,
        spans: Spans,
        what: str,
        *,
        ends: int,
        dtype: str = "",
        since: tuple[Times, int] | None = None,
    ) -> Access | None:
        """Note an access of this rank, which `ends` with its call, a flush or a request.

        `since` is the clock's `now` and `part` when it began. Accesses of one place of the
        program are kept as one where others cannot tell them apart.
        """
        if self.quiet:
            return None
        now = clock()
        issued, part = since or (now.now, now.part)
        words = (what, site())
        if self._part != now.part:
            self._index.clear()
            self._part = now.part
        key = (words, target, kind, dtype, ends) if part == now.part and ends <= FLUSH else None
        access = self._index.get(key)
        whose, complete = (now.me, self.rank), ends == RETURN
        new = access or Access(whose, target, kind, dtype, words, issued, complete)
        waiting = self._pending.get(target)
        for pending in [] if waiting is None else waiting.near(spans):
            if pair_of(pending, new) not in self._known and not self._answered(pending, issued):
                race = at_once(pending, new, spans)
                if race is not None:
                    self._known.add(pair_of(pending, new))
                    self._found.append(self._told(race))
        new.add(spans)
        if access is None:
            if key is not None:
                self._index[key] = new
            self._keep(new)
        if ends in (FLUSH, REQUEST):
            new.near = new.done = NEVER
            self._pending.setdefault(target, Pending()).add(new)
        return new

    def _answered(self, pending: Access, issued: Times) -> bool:
        """Tell whether the target of a notification has said something to this rank since."""
        there = self.world[pending.target]
        return bool(pending.done != NEVER and issued[there] > pending.issued[there])

    def _keep(self, access: Access) -> None:
        self.log.append(access)
        if len(self.log) > self._most:
            half = len(self.log) // 2
            self.log[:half] = [it for it in self.log[:half] if it.done == NEVER]
            self._index.clear()
            self._most = max(_MOST, 2 * len(self.log))
            report.note(
                f"window {self.name}: more than {_MOST} accesses since the last fence; the oldest "
                "are not compared any more"
            )

    @alone
    def flushed(self, ranks: Iterable[int] | None, locally: bool = False) -> None:
        """Note that what was sent to some ranks, or all, is complete; locally: for this rank."""
        ranks = list(self._pending) if ranks is None else ranks
        now = clock().tick()
        for rank in ranks:
            waiting = self._pending.get(rank)
            for access in [] if waiting is None else waiting.accesses:
                access.near = min(access.near, now)
                if not locally:
                    access.done = min(access.done, now)
            if not locally:
                self._pending.pop(rank, None)
        if not locally:
            requests.flushed(self)

    # -- clocks ------------------------------------------------------------------------

    def publish(self, rows: Sequence[tuple[int, int]]) -> None:
        """Leave this rank's clock at ranks, in these rows, for those who learn from them."""
        if self.rows is None or not rows:
            return
        times = clock().release()
        for rank, first, count in _joined(rows):
            self.rows.accumulate(np.tile(times, count), rank, first * times.size, op="max")
        for rank in {rank for rank, _ in rows}:
            self.rows.flush(rank)

    def learn(self, rows: Sequence[tuple[int, int]]) -> Times:
        """Take the clocks over that were left there; return what there was."""
        size = clock().now.size
        learnt = [np.zeros(size, np.int64)]
        if self.rows is not None:
            for rank, first, count in _joined(rows):
                learnt.append(self.rows.load(rank, first * size, count * size).reshape(count, size))
        times: Times = np.vstack(learnt).max(0)
        clock().acquire(times)
        return times

    def words(self, spans: Spans) -> list[int]:
        """Return the rows of places in a rank's memory."""
        found: set[int] = set()
        for first, end in spans:
            last = min(int(end), int(first) + 4 * _WORDS)
            found.update(Rows.WORD + place // 4 % _WORDS for place in range(int(first), last, 4))
            if len(found) == _WORDS:
                break
        return sorted(found)

    def signalled(self, spans: Spans) -> None:
        """Note that this rank has waited for a value in its memory, and found it."""
        learnt = self.learn([(self.rank, row) for row in self.words(spans)])
        self._signals.append((spans, clock().tick(), learnt))

    def _is_signal(self, one: Access, other: Access) -> bool:
        """Tell whether one is the put of a value that this rank had found before the other."""
        me = clock().me
        return one.kind == WRITE and any(
            one.issued[one.origin] <= learnt[one.origin]
            and other.issued[me] >= time
            and common(one.spans, spans) is not None
            and len(one.spans) == 1
            and one.spans[0, 1] - one.spans[0, 0] == spans[0, 1] - spans[0, 0]
            for spans, time, learnt in self._signals
        )

    # -- comparing ---------------------------------------------------------------------

    def exchange(self, ending: bool = False) -> None:
        """Compare what all ranks did since the last time. Collective."""
        if self.over:
            return None
        found, self._found = self._found, []
        found += requests.unwaited(self) if ending else []
        if ending and not self.shut:
            found += self._left_open()
        mine = (clock().release(), [it for it in self.log if it.target != self.rank])
        everyone = self._gathered(mine)
        if everyone is None:
            return report.tell(found)
        everyone[self.rank] = (mine[0], self.log)
        clock().acquire(*(times for times, _ in everyone))
        accesses = [it for _, log in everyone for it in log if it.target == self.rank]
        found += [self._told(race) for race in races(accesses, self._known, self._is_signal)]
        self.log, self._pending, self._signals = [], {}, []
        self._index.clear()
        requests.flushed(self, everything=True)
        told = self._gathered(found)
        if told is None:
            report.tell(found)
        elif self.rank == 0:
            report.tell(finding for findings in told for finding in findings)
        return None

    def _gathered(self, what: Any) -> list[Any] | None:
        """Return what each rank brings; None: the window is not followed any more."""
        if self.size == 1:
            return [what]
        try:
            if self.over:
                return None
            return gathered(self.comm, self.rows._group, what)
        except BaseException as exc:
            self._give_up(exc)
            if not isinstance(exc, (PeerLostError, RmaTimeout)):
                raise
        return None

    def _give_up(self, why: BaseException) -> None:
        """Follow the window no more: some rank does not come to compare."""
        report.note(f"window {self.name} is not followed any more: {why}")
        self.quiet = self.over = True
        memory.remove(self)
        rows, self.rows = self.rows, None
        rows.__exit__(type(why), why, None)  # without the others

    def _left_open(self) -> list[Finding]:
        kind, what = "window", f"window {self.name}"
        if self.container:  # all of its windows are one finding
            kind, what = "container", f"a {self.container}"
        text = f"rmaext check: {what}, made at {self.site}, was never closed: "
        text += "call close(), or make it in a with statement"
        return [Finding(kind, f"{what} {self.site}", text)]

    def end(self) -> None:
        """Compare what is left of a window that was closed, on all ranks. Collective."""
        self.exchange(ending=True)
        self.over = True
        requests.forget(self)
        memory.remove(self)
        if self.rows is not None:
            self.rows.close()

    def _told(self, race: Race) -> Finding:
        one, other = race.one, race.other
        first, end = race.bytes[0] // self.unit, -(-race.bytes[1] // self.unit)
        which = f"element {first}" if end == first + 1 else f"elements {first} to {end - 1}"
        text = (
            f"rmaext check: race: window {self.name}, rank {one.target}, {which} ({self.dtype}): "
        )
        text += f"{_words(one)} and {_words(other)} are not ordered: {_advice(race)}"
        places = sorted(f"{it.what} {it.site}" for it in (one, other))
        return Finding("race", " ".join(["race", *places]), text)


def _words(access: Access) -> str:
    return f"{access.what} by rank {access.rank} at {access.site}"


def _advice(race: Race) -> str:
    one, other = race.one, race.other
    if one.origin == other.origin:
        return f"flush, or wait for the request, after {one.what} at {one.site}"
    if one.dtype and other.dtype:
        return f"updates as {one.dtype} and as {other.dtype} are not atomic against each other"
    open_ = [it for it in (one, other) if it.done == NEVER]
    if open_:
        text = "let a fence come between them; or complete what rank "
        text += f"{open_[0].rank} began (flush or unlock after {open_[0].what} at {open_[0].site}) "
        return f"{text}and then tell the other rank, by a notification, a lock or a message"
    return "let a fence, a lock, a notification or a message come between them"


def _joined(rows: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return rows that follow each other as a rank, the first one and their number."""
    found: list[tuple[int, int, int]] = []
    for rank, row in sorted(set(rows)):
        if found and found[-1][0] == rank and sum(found[-1][1:]) == row:
            found[-1] = (rank, found[-1][1], found[-1][2] + 1)
        else:
            found.append((rank, row, 1))
    return found
