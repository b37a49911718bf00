# SPDX-License-Identifier: BSD-3-Clause
"""The lock of one target: a ticket lock for readers and writers in its control block.

See csrc/shm/ticket_lock.c, which serves where the block is mapped here. Here are the same
steps as messages, and what a waiter does when the queue does not move.
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
    from .._comm.group import Group

__all__ = ["FarLock", "Look", "NearLock", "Places", "judge"]

_ACTIVE, _QUEUED = lib.RMAEXT_SLOT_ACTIVE, lib.RMAEXT_SLOT_QUEUED
_ABANDONED, _KINDS = lib.RMAEXT_SLOT_ABANDONED, lib.RMAEXT_SLOT_KINDS
_READER, _READERS = lib.RMAEXT_SLOT_READER, lib.RMAEXT_SLOT_READERS
_SHIFT = lib.RMAEXT_SLOT_TICKET

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
        words = ffi.cast("int64_t *", block)
        self.state.words = words + (places.next - base)
        self.state.slots = words + (places.slots - base)
        self.take = functools.partial(lib.rmaext_lock_take, self.state)

    def wait(self, exclusive: bool, spin: int, sleep: int) -> int:
        """Wait for the turn, for so many ns, spinning and asleep; 1 if inside."""
        return int(lib.rmaext_lock_wait(self.state, exclusive, spin, sleep))

    def leave(self, exclusive: bool, done: list[bool]) -> None:
        """Give back what take or wait gave; done[0] is set by then, whatever raises."""
        done[0] = True  # no signal handler runs between these lines
        lib.rmaext_lock_leave(self.state, exclusive)

    def undo(self, thread: int, exclusive: bool) -> None:
        """Stop waiting, or leave, if this thread is the owner; at any time, and twice."""
        lib.rmaext_lock_undo(self.state, thread, exclusive)

    def pass_on(self, rank: int, slot: int) -> None:
        """Let those behind a rank go on."""
        lib.rmaext_lock_pass(self.state, rank, slot)

    def look(self) -> Look | None:
        """Return what there is to see; None if it moves."""
        words, slots = self.state.words, self.state.slots
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
        self._messages = messages

    def take(self, thread: int, exclusive: bool) -> int:
        """As NearLock.take."""
        state = self.state
        if self.broken is not None:
            kind, number, why = self.broken
            text = f"lock: rank {self.rank}: an earlier call failed halfway: {why}"
            raise kind(number, text, call="lock", rank=self.rank)
        if state.owner:
            return -errno.EBUSY
        state.owner = thread
        return self._run_as_owner(lambda: take_steps(state, self._places, exclusive))

    def wait(self, exclusive: bool, spin: int, sleep: int) -> int:
        """Look once whether it is this one's turn. The caller sleeps."""
        return self._run_as_owner(lambda: try_steps(self.state, self._places, exclusive))

    def leave(self, exclusive: bool, done: list[bool]) -> None:
        """Give back what take or wait gave; done[0] is set once that is so."""
        state = self.state
        try:
            self._run(lambda: leave_steps(state, self._places, exclusive, done))
        except FAILURES:
            done[0] = True
            if exclusive:
                state.kind = state.inside = state.owner = 0
            raise

    def undo(self, thread: int, exclusive: bool) -> None:
        """As NearLock.undo."""
        state = self.state
        if state.owner != thread:
            return
        try:
            if state.inside:
                self._run(lambda: leave_steps(state, self._places, exclusive, [False], True))
            elif state.kind == _QUEUED and self.broken is None:
                self._run_as_owner(lambda: abandon_steps(state, self._places))
        except FAILURES:
            state.kind = state.inside = state.owner = 0
            raise
        state.inside = state.owner = 0

    def pass_on(self, rank: int, slot: int) -> None:
        """As NearLock.pass_on."""
        self._run(lambda: pass_steps(self._places, rank, slot))

    def look(self) -> Look | None:
        """As NearLock.look."""
        p = self._places
        turns = [p.readers, p.writers]
        places = [*turns, *range(p.slots, p.slots + self._size), *turns]
        found, interrupt = self._messages.run([self.rank], lambda: _look_steps(places))
        if interrupt is not None:
            raise interrupt
        return Look(found[0], found[1], found[2:-2]) if found[:2] == found[-2:] else None

    def _run_as_owner(self, steps: Callable[[], Steps]) -> int:
        """Carry out steps that change kind, ticket and inside."""
        state = self.state
        before = state.kind, state.ticket, state.inside

        def again() -> Steps:
            state.kind, state.ticket, state.inside = before
            return steps()

        return self._run(again)

    def _run(self, steps: Callable[[], Steps]) -> int:
        try:
            result, interrupt = self._messages.run([self.rank], steps)
        except FAILURES as exc:  # it may have been carried out, or not
            kind = type(exc) if isinstance(exc, RmaError) else RmaError
            self.broken = kind, getattr(exc, "errno", None) or errno.ENOMEM, str(exc)
            raise
        if interrupt is not None:
            raise interrupt
        return int(result)


def _look_steps(places: list[int]) -> Generator[Add, list[int], list[int]]:
    return (yield [(place, 0) for place in places])


def _ticket(state: Any, kind: int) -> int:
    return kind if kind in (0, _ACTIVE) else int(state.ticket) << _SHIFT | kind


def _change(state: Any, p: Places, kind: int, more: int = 0) -> tuple[int, int]:
    return p.slots + state.rank, _ticket(state, kind) + more - _ticket(state, state.kind)


def take_steps(state: Any, p: Places, exclusive: bool) -> Steps:
    """Draw a ticket, or take up one that this rank abandoned."""
    slot = p.slots + state.rank
    if state.kind == _ABANDONED:
        before = _ticket(state, _ABANDONED)
        state.kind = 0
        while True:
            (value,) = yield [(slot, 0)]
            if value & ~_READERS != before:
                break  # somebody has passed it on
            (old,) = yield slot, value, value - _ABANDONED + _QUEUED
            if old == value:
                state.kind = _QUEUED
                return (yield from try_steps(state, p, exclusive))
    _, ticket, readers, writers = yield [
        *((slot, _ACTIVE), (p.next, 1)),
        *((p.readers, 0), (p.writers, 0)),
    ]
    state.kind, state.ticket = _ACTIVE, ticket
    if ticket == (writers if exclusive else readers):
        yield from _enter_steps(state, p, exclusive)
        return 1
    yield [_change(state, p, _QUEUED)]
    state.kind = _QUEUED
    return 0


def try_steps(state: Any, p: Places, exclusive: bool) -> Steps:
    """Enter, if it is the turn of this rank."""
    (turn,) = yield [(p.writers if exclusive else p.readers, 0)]
    if turn != state.ticket:
        return 0
    yield from _enter_steps(state, p, exclusive)
    return 1


def _enter_steps(state: Any, p: Places, exclusive: bool) -> Generator[Add | Swap, list[int], None]:
    if exclusive:
        if state.kind != _ACTIVE:
            yield [_change(state, p, _ACTIVE)]
        state.kind = _ACTIVE
    elif state.kind == _ACTIVE:
        yield [(p.readers, 1), _change(state, p, 0, _READER)]
        state.kind = 0
    else:
        # no addition: who finds a queued rank dead may do it for that one
        yield p.readers, state.ticket, state.ticket + 1
        yield [_change(state, p, 0, _READER)]
        state.kind = 0
    state.inside = 1


def leave_steps(
    state: Any, p: Places, exclusive: bool, done: list[bool], undone: bool = False
) -> Steps:
    """Leave; the slot last, so that each ticket is always accounted for.

    `undone`: what `take` gave to a reader who has not noted it.
    """
    if exclusive:
        yield [(p.readers, 1), (p.writers, 1), (p.slots + state.rank, -_ACTIVE)]
        state.kind = state.inside = state.owner = 0
    else:
        yield [(p.writers, 1), (p.slots + state.rank, -_READER)]
        if undone:
            state.inside = state.owner = 0
    done[0] = True
    return 0


def abandon_steps(state: Any, p: Places) -> Steps:
    """Leave the ticket to whoever waits behind it."""
    yield [_change(state, p, _ABANDONED)]
    state.kind = _ABANDONED
    return 0


def pass_steps(p: Places, rank: int, seen: int) -> Steps:
    """Pass on a ticket in a rank's slot, if it is still as seen."""
    slot, ticket = p.slots + rank, seen >> _SHIFT
    while True:
        (value,) = yield [(slot, 0)]
        if (value ^ seen) & ~_READERS:
            return 0
        (old,) = yield slot, value, value & _READERS
        if old == value:
            break
    yield p.readers, ticket, ticket + 1
    yield [(p.writers, 1)]
    return 1
