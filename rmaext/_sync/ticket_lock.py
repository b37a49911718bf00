# SPDX-License-Identifier: BSD-3-Clause
"""The lock of one target: a ticket lock for readers and writers in its control block.

Its steps are in csrc/shm/ticket_lock.c, which takes them by itself where the block is mapped
here. Here are the messages that take them elsewhere, and what a waiter does when the queue
does not move.
"""

from __future__ import annotations

import errno
import functools
from collections import deque
from collections.abc import Container, Generator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from .._native._lib import ffi, lib
from ..errors import RmaError
from .messages import FAILURES, Add, Messages, Swap

if TYPE_CHECKING:
    from .._comm.group import Group

__all__ = ["FarLock", "Look", "NearLock", "Places", "exchange", "judge", "steps"]

_ACTIVE, _QUEUED = lib.RMAEXT_SLOT_ACTIVE, lib.RMAEXT_SLOT_QUEUED
_ABANDONED, _KINDS = lib.RMAEXT_SLOT_ABANDONED, lib.RMAEXT_SLOT_KINDS
_READER, _READERS = lib.RMAEXT_SLOT_READER, lib.RMAEXT_SLOT_READERS
_SHIFT, _PENDING = lib.RMAEXT_SLOT_TICKET, lib.RMAEXT_PENDING
_NULL = ffi.NULL

Steps = Generator[Add | Swap, list[int], int]


class Places(NamedTuple):
    """Where things are in the hidden window, for one user window."""

    next: int
    readers: int
    writers: int
    sleepers: int
    slots: int
    posted: int
    completed: int

    @classmethod
    def of(cls, base: int, size: int) -> Places:
        """Return those of the block that begins at `base`, for so many ranks."""
        found = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(size, found)
        lock = base + int(found.lock)
        rest = (base + int(n) for n in (found.slots, found.posted, found.completed))
        return cls(lock, lock + 1, lock + 2, lock + 3, *rest)


class Look(NamedTuple):
    """What a waiter sees of a lock."""

    readers: int
    writers: int
    slots: Sequence[int]


def judge(
    ticket: int, exclusive: bool, me: int, look: Look, gone: Container[int]
) -> tuple[str, int]:
    """Say what to do when the queue does not move.

    Parameters
    ----------
    ticket, exclusive : int, bool
        The waiter's.
    me : int
        Its rank.
    look : Look
        Taken while the turns did not change, and after `gone` was.
    gone : container of int
        Ranks that will do nothing more.

    Returns
    -------
    action : {"wait", "pass", "lost", "unknown"}
        "wait": for somebody alive. "pass": let those behind that rank go on.
        "lost": that rank had the lock when it was lost. "unknown": nobody alive
        and nobody dead accounts for the ticket whose turn it is.
    rank : int
    """
    serving = look.readers
    busy = False  # somebody alive may have the ticket, and not say so yet
    for rank, slot in enumerate(look.slots):
        kind = slot & _KINDS
        if kind == _ACTIVE:
            busy = busy or rank not in gone
        elif kind and slot >> _SHIFT == serving and serving != ticket:
            if kind == _ABANDONED or rank in gone:
                return "pass", rank
            return "wait", rank
    dead = [rank for rank, slot in enumerate(look.slots) if slot and rank in gone]
    if serving == ticket:
        # all before have entered: a writer waits for readers to leave
        alive = [s for rank, s in enumerate(look.slots) if rank not in gone]
        inside = serving - look.writers
        readers = sum((s & _READERS) // _READER for s in alive)
        if busy or not exclusive or readers >= inside:
            return "wait", me
        return ("lost", dead[0]) if dead else ("unknown", me)
    if busy:
        return "wait", me
    dead = [rank for rank in dead if look.slots[rank] & _KINDS == _ACTIVE]
    return ("lost", dead[0]) if dead else ("unknown", me)


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
    """

    near: bool

    def __init__(self, group: Group, rank: int, places: Places, guard: Any) -> None:
        self.rank, self.guard = rank, guard
        self._me, self._size, self._places = group.rank, group.size, places
        self.state = ffi.new("struct rmaext_lock *")
        self.state.rank = group.rank
        self.threads: deque[Any] = deque()
        self.broken: tuple[type[RmaError], int, str] | None = None

    def join(self) -> Any:
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

    def __init__(
        self, group: Group, rank: int, places: Places, guard: Any, block: Any, base: int
    ) -> None:
        super().__init__(group, rank, places, guard)
        self.state.block = ffi.cast("int64_t *", block)
        self.state.words, self.state.slots = places.next - base, places.slots - base
        self.take = functools.partial(lib.rmaext_lock_take, self.state, _NULL)

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
        self._messages = messages

    def take(self, thread: int, exclusive: bool) -> int:
        """As NearLock.take."""
        if self.broken is not None:
            kind, number, why = self.broken
            text = f"lock: rank {self.rank}: an earlier call failed halfway: {why}"
            raise kind(number, text, call="lock", rank=self.rank)
        return self._run(lib.rmaext_lock_take, thread, exclusive)

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
        turns = [p.readers, p.writers]
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
