# SPDX-License-Identifier: BSD-3-Clause
"""The lock of one target: a fair queue for readers and writers in its control block.

Its steps are in csrc/shm/ticket_lock.c, which takes them by itself where the block is mapped
here. Here are the messages that take them elsewhere, and what a waiter does when the queue
does not move.
"""

from __future__ import annotations

import errno
import functools
from collections import deque
from collections.abc import Callable, Container, Generator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from .._native._lib import ffi, lib
from ..errors import RmaError
from .messages import FAILURES, Add, Messages, Swap

if TYPE_CHECKING:
    from typing_extensions import Self

    from .._comm.control import Block
    from .._comm.group import Group

__all__ = [
    "WRITER",
    "FarLock",
    "Look",
    "NearLock",
    "NodeLock",
    "Places",
    "exchange",
    "judge",
    "steps",
]

WRITER = 1 << 32  # what a writer adds to the count of those inside, which readers add 1 to

_ACTIVE, _QUEUED = lib.RMAEXT_SLOT_ACTIVE, lib.RMAEXT_SLOT_QUEUED
_KINDS, _READERS = lib.RMAEXT_SLOT_KINDS, lib.RMAEXT_SLOT_READERS
_SHIFT, _PENDING = lib.RMAEXT_SLOT_TICKET, lib.RMAEXT_PENDING
_NULL = ffi.NULL

Steps = Generator[Add | Swap, list[int], int]


class Places(NamedTuple):
    """Where things are in the hidden window, for one user window."""

    next: int
    turn: int
    inside: int
    sleepers: int
    wakeups: int
    slots: int
    posted: int
    completed: int

    @classmethod
    def of(cls, base: int, size: int) -> Places:
        """Return those of the block that begins at `base`, for so many ranks."""
        found = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(size, found)
        lock = base + int(found.lock)
        rest = (found.wakeups, found.slots, found.posted, found.completed)
        return cls(lock, lock + 1, lock + 2, lock + 3, *(base + int(n) for n in rest))


class Look(NamedTuple):
    """What a waiter sees of a lock: whose turn it is, and the count of those inside."""

    turn: int
    inside: int
    slots: Sequence[int]

    def holders(self, ticket: int | None) -> list[int]:
        """Return the ranks that have the lock, or wait for it before a ticket; None: writers."""
        before = []
        for rank, slot in enumerate(self.slots):
            kind, its = slot & _KINDS, slot >> _SHIFT
            inside = kind == _ACTIVE or (ticket is not None and slot & _READERS)
            if inside or (ticket is not None and kind == _QUEUED and its < ticket):
                before.append(rank)
        return before


def judge(ticket: int | None, exclusive: bool, look: Look, gone: Container[int]) -> tuple[str, int]:
    """Say what to do when the lock does not move (csrc/shm/lock_judge.c).

    Parameters
    ----------
    ticket, exclusive : int or None, bool
        The waiter's; None if it joins.
    look : Look
        Taken while the lock did not change, and after `gone` was.
    gone : container of int
        Ranks that will do nothing more.

    Returns
    -------
    action : {"wait", "pass", "lost", "unknown"}
        "wait": for somebody alive. "pass": let those behind that rank go on.
        "lost": that rank had the lock when it was lost. "unknown": nobody alive
        and nobody dead accounts for the ticket whose turn it is.
    rank : int
        -1: none.
    """
    size = len(look.slots)
    slots = ffi.new("int64_t[]", look.slots)
    dead = ffi.new("uint8_t[]", [rank in gone for rank in range(size)])
    waits = -1 if ticket is None else ticket, exclusive, look.turn, look.inside, size, slots, dead
    rank = ffi.new("int64_t *")
    action = lib.rmaext_lock_judge(ffi.new("struct rmaext_lock_look *", waits), rank)
    return ("wait", "pass", "lost", "unknown")[action], int(rank[0])


class _TargetLock:
    """This rank's part in one target's lock.

    Attributes
    ----------
    rank : int
        The target.
    state : cdata
        struct rmaext_lock; `owner` is the thread that queues or is inside alone.
    threads : deque
        Those of this rank that wait for the owner to be done, each with a lock.
    passed : tuple of int and float, or None
        The turn of the last waiter that this rank passed, and for how many seconds it gives
        way to that one before it does so again.
    """

    near: bool
    key: tuple[int, int]  # of what synchronises its window, and the target
    _again: tuple[Any, ...]  # the arguments that made it

    def __init__(self, group: Group, rank: int, places: Places, guard: Any) -> None:
        self.rank, self.guard = rank, guard
        self._me, self._size, self._places = group.rank, group.size, places
        self.state = ffi.new("struct rmaext_lock *")
        self.state.rank = group.rank
        self.threads: deque[Any] = deque()
        self.passed: tuple[int, float] | None = None
        self.broken: tuple[type[RmaError], int, str] | None = None

    @property
    def ticket(self) -> int | None:
        """The ticket of the owner; None if it joins."""
        return None if self.state.inside == lib.RMAEXT_LOCK_JOINS else int(self.state.ticket)

    def joiner(self) -> Self:
        """Return this rank's part of one thread that joins, and joins alone."""
        other = type(self)(*self._again)
        other.state.window, other.state.target = self.state.window, self.state.target
        other.broken, other.key = self.broken, self.key
        return other

    def queue(self) -> Any:
        """Queue up among the threads of this rank; return what to acquire."""
        place = Lock()
        place.acquire()
        self.threads.append(place)
        return place

    def next_thread(self) -> None:
        """Let the next thread try, as the owner is done."""
        try:
            self.threads.popleft().release()
        except IndexError:
            return


class NearLock(_TargetLock):
    """Where the control block is mapped here.

    Attributes
    ----------
    take : callable
        Of thread and exclusive. Draws a ticket: 1 if this thread is inside, 0 if
        queued, -EBUSY if another owns it. C's, as a call from Python takes longer.
    """

    near = True
    take: Callable[[int, bool], int]

    def __init__(
        self, group: Group, rank: int, places: Places, guard: Any, block: Any, base: int
    ) -> None:
        super().__init__(group, rank, places, guard)
        self.state.block = ffi.cast("int64_t *", block)
        self.state.words, self.state.slots = places.next - base, places.slots - base
        self.take = functools.partial(lib.rmaext_lock_take, self.state, _NULL)
        self._again = group, rank, places, guard, block, base

    def join(self, thread: int) -> int:
        """Enter as a reader, past those who are queued: 1 if inside, 0 if a writer is."""
        return int(lib.rmaext_lock_join(self.state, _NULL, thread))

    def wait(self, exclusive: bool, spin: int, sleep: int) -> int:
        """Wait for the turn, for so many ns, spinning and asleep; 1 if inside."""
        return int(lib.rmaext_lock_wait(self.state, _NULL, exclusive, spin, sleep))

    def leave(self, exclusive: bool, done: list[bool]) -> None:
        """Give back what take or wait gave; done[0] is set by then, whatever raises."""
        done[0] = True  # no signal handler runs between these lines
        lib.rmaext_lock_leave(self.state, _NULL, exclusive)

    def undo(self, thread: int, exclusive: bool) -> None:
        """Stop waiting, or leave, if this thread is the owner; at any time, and twice."""
        lib.rmaext_lock_undo(self.state, _NULL, thread, exclusive)

    def pass_on(self, rank: int, slot: int) -> None:
        """Let those behind a rank go on."""
        lib.rmaext_lock_pass(self.state, _NULL, rank, slot)

    def look(self) -> Look | None:
        """Return what there is to see; None if it moves."""
        state = self.state
        words, slots = state.block + state.words, state.block + state.slots
        turns = words[1], words[2]
        found = slots[0 : self._size]
        return Look(*turns, list(found)) if (words[1], words[2]) == turns else None


class NodeLock(NearLock):
    """Where the control block is mapped here, and others may not map it: this rank tells them."""

    def __init__(self, group: Group, rank: int, places: Places, guard: Any, block: Block) -> None:
        super().__init__(group, rank, places, guard, block.maps[rank], block.base)
        self._controls, self._at = block.window._handle, 8 * block.base
        self._block = block.maps[rank]
        self._draw, self.take = self.take, self._take
        self._again = group, rank, places, guard, block

    def _tell(self, exclusive: bool = False) -> None:
        """Others may enter by now."""
        lib.rmaext_lock_tell(self._controls, self._block, self._at, exclusive)

    def _take(self, thread: int, exclusive: bool) -> int:
        code = int(self._draw(thread, exclusive))
        if code == 1 and not exclusive:
            self._tell()
        return code

    def wait(self, exclusive: bool, spin: int, sleep: int) -> int:
        """As NearLock.wait."""
        code = super().wait(exclusive, spin, sleep)
        if code and not exclusive:
            self._tell()
        return code

    def leave(self, exclusive: bool, done: list[bool]) -> None:
        """As NearLock.leave."""
        super().leave(exclusive, done)
        self._tell(exclusive)

    def undo(self, thread: int, exclusive: bool) -> None:
        """As NearLock.undo."""
        super().undo(thread, exclusive)
        self._tell(exclusive)

    def pass_on(self, rank: int, slot: int) -> None:
        """As NearLock.pass_on."""
        super().pass_on(rank, slot)
        self._tell()


class FarLock(_TargetLock):
    """Where the control block is reached by messages.

    A sequence of them always ends, whatever signal handlers raise meanwhile:
    they are raised after it.
    """

    near = False

    def __init__(
        self, group: Group, rank: int, places: Places, guard: Any, messages: Messages
    ) -> None:
        super().__init__(group, rank, places, guard)
        self.state.words, self.state.slots = places.next, places.slots
        self.state.far = lib.RMAEXT_SLOT_FAR
        self._messages = messages
        self._again = group, rank, places, guard, messages

    def take(self, thread: int, exclusive: bool) -> int:
        """As NearLock.take."""
        self._check()
        return self._run(lib.rmaext_lock_take, thread, exclusive)

    def join(self, thread: int) -> int:
        """As NearLock.join."""
        self._check()
        return self._run(lib.rmaext_lock_join, thread)

    def _check(self) -> None:
        if self.broken is not None:
            kind, number, why = self.broken
            text = f"lock: rank {self.rank}: an earlier call failed halfway: {why}"
            raise kind(number, text, call="lock", rank=self.rank)

    def wait(self, exclusive: bool, spin: int, sleep: int) -> int:
        """Look once whether it is this one's turn. The caller sleeps."""
        return self._run(lib.rmaext_lock_wait, exclusive, 0, 0)

    def leave(self, exclusive: bool, done: list[bool]) -> None:
        """Give back what take or wait gave; done[0] is set once that is so."""
        try:
            self._run(lib.rmaext_lock_leave, exclusive, done=done)
        except FAILURES:
            done[0] = True
            if exclusive:
                self._forget()
            raise

    def undo(self, thread: int, exclusive: bool) -> None:
        """As NearLock.undo."""
        state = self.state
        if state.owner != thread:
            return
        try:
            if state.inside or self.broken is None:
                self._run(lib.rmaext_lock_undo, thread, exclusive)
            else:
                self._forget()
        except FAILURES:
            self._forget()
            raise

    def pass_on(self, rank: int, slot: int) -> None:
        """As NearLock.pass_on."""
        self._run(lib.rmaext_lock_pass, rank, slot)

    def _forget(self) -> None:
        """Own nothing any more, though the target's block may say otherwise."""
        state = self.state
        state.kind = state.inside = state.owner = 0

    def look(self) -> Look | None:
        """As NearLock.look."""
        p = self._places
        turns = [p.turn, p.inside]
        places = [*turns, *range(p.slots, p.slots + self._size), *turns]
        found, interrupt = self._messages.run([self.rank], lambda: _look_steps(places))
        if interrupt is not None:
            raise interrupt
        return Look(found[0], found[1], found[2:-2]) if found[:2] == found[-2:] else None

    def _run(self, call: Any, *arguments: Any, done: list[bool] | None = None) -> int:
        made = exchange()
        try:
            result, interrupt = self._messages.run(
                [self.rank], lambda: steps(call, made, self.state, *arguments, done=done)
            )
        except FAILURES as exc:  # it may have been carried out, or not
            kind = type(exc) if isinstance(exc, RmaError) else RmaError
            self.broken = kind, getattr(exc, "errno", None) or errno.ENOMEM, str(exc)
            raise
        if interrupt is not None:
            raise interrupt
        return int(result)


def _look_steps(places: list[int]) -> Generator[Add, list[int], list[int]]:
    return (yield [(place, 0) for place in places])


def exchange() -> Any:
    """Return a new struct rmaext_exchange, of one call."""
    return ffi.new("struct rmaext_exchange *", {"result": _PENDING})


def steps(
    call: Any, exchange: Any, lock: Any, *arguments: Any, done: list[bool] | None = None
) -> Steps:
    """Make a call of C by messages; done[0] is set when it has ended.

    C goes through the call from its start with each answer. One that has ended is not made
    again, whatever signal handlers raise meanwhile.
    """
    answers: list[int] = []
    while exchange.result == _PENDING:
        exchange.answers = kept = ffi.new("int64_t[]", answers)
        exchange.answered = len(kept)
        if call(lock, exchange, *arguments) == _PENDING:
            changes = [(c.place, c.value) for c in exchange.changes[0 : exchange.count]]
            answers += yield (*changes[0], exchange.to) if exchange.swap else changes
    if done is not None:
        done[0] = True
    return int(exchange.result)
