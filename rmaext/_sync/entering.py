# SPDX-License-Identifier: BSD-3-Clause
"""How a thread gets a lock and leaves it: turns, queues, those who died, signal handlers."""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from .._comm.liveness import Living
from .._native._lib import ffi, lib
from .._native.cmethods import to_the_end
from .._ops.core import WindowCore
from .._runtime import mpi_progress
from .._runtime.failures import advised
from .._runtime.reports import Patience
from ..errors import PeerLostError, RmaTimeout, SyncError
from ..typing import ScalarT
from .messages import FAILURES, Messages
from .ticket_lock import WRITER, FarLock, Look, NearLock, Places, judge
from .waiting import block_words

if TYPE_CHECKING:
    from .._comm.control import Block
    from .._comm.group import Group

__all__ = ["NS", "PROCESS", "Entering", "State", "held_locks"]

NS = 1_000_000_000
_SPIN, _SPIN_CROWDED = 30_000, 2_000  # ns awake before sleeping
_NAP = 10_000_000  # ns asleep, until one looks whether others have died
_NAP_FAR = 1_000_000  # the same, for a word of an epoch that a message may raise
# Who waits for a lock over the network is told when to look. Seconds until it looks by itself:
# for each ticket before its own, at most, and without a ticket.
_FAR_STEP, _FAR_MOST, _FAR_JOINS = 0.02, 0.1, 0.002
_TURN = 0.001  # seconds between looks of a thread behind others of its rank
_LOOK_EVERY = 0.01  # seconds without a turn until a waiter looks for the reason
_STUCK = 1.0  # seconds without a change until a reader does not queue any more
_GIVE_WAY, _GIVE_WAY_MOST = 1e-4, 1e-2  # seconds, the first time, and any

# The locks that a thread holds or asks for, each once; 1 stands for the process, in the drop-in.
held_locks: dict[int, set[tuple[int, int]]] = {}
PROCESS = 1


class State:
    """What a window's synchronisation keeps on this rank.

    Attributes
    ----------
    locks : dict
        Of the targets that were locked before.
    readers : dict
        Thread and rank of each shared lock that is held.
    joiners : dict
        Of threads that enter a lock past its queue.
    everywhere : set
        Threads that hold all.
    access, exposure : list of int or None
        Ranks of the epochs that `start` and `post` began.
    started, waited : dict
        How many epochs were counted, of each rank.
    """

    def __init__(self, group: Group, block: Block) -> None:
        self.block, self._me = block, group.rank
        self.places = Places.of(block.base, group.size)
        self.living = Living(group)
        self.messages = Messages(group, block.window)
        self.locks: dict[int, NearLock | FarLock] = {}
        self.readers: dict[tuple[int, int], bool] = {}
        self.joiners: dict[int, NearLock | FarLock] = {}
        self.everywhere: set[int] = set()
        self.access: list[int] | None = None
        self.exposure: list[int] | None = None
        self.started: dict[int, int] = {}
        self.waited: dict[int, int] = {}
        self.spin = _SPIN_CROWDED if group.crowded else _SPIN
        self.nap = _NAP if group.all_direct else _NAP_FAR

    def expose(self, ranks: list[int]) -> None:
        """Begin the epoch of `post`."""
        self.exposure = ranks

    def end_access(self) -> None:
        """End the epoch of `start`."""
        self.access = None

    def wakeups(self) -> int:
        """Return how often this rank was told to look at a lock."""
        return int(self.words(self._me, self.places.wakeups)[0])

    def words(self, rank: int, place: int) -> Any:
        """Return a pointer to a word of a rank's block; None if it is not mapped here."""
        block = self.block.maps[rank]
        return ffi.cast("int64_t *", block) + (place - self.block.base) if block else None


class _Stuck(Exception):  # noqa: N818 (no error: the reader joins)
    """A queue does not move, as a writer waits for readers in it."""


class _Still:
    """For how long a lock's queue has not moved, as far as was looked.

    Who passes the queue comes and goes meanwhile, so how many are inside tells nothing.
    """

    def __init__(self) -> None:
        self._turn, self._since = -1, time.monotonic()

    def seconds(self, look: Look | None, now: float) -> float:
        """Return it, after one more look; None: it moves."""
        turn = -1 if look is None else look.turn
        if look is None or turn != self._turn:
            self._turn, self._since = turn, now
        return now - self._since


def _holds(me: int) -> bool:
    """Return whether this thread holds a lock, of any window."""
    return bool(held_locks.get(me) or held_locks.get(PROCESS) or held_locks.get(get_ident()))


class Entering(WindowCore[ScalarT]):
    """Entering and leaving one rank's lock; nothing of it is public."""

    _sync: State | None = None
    _holder: Callable[[], int] = staticmethod(get_ident)  # of a lock; not 0

    def _release(self, state: State, lock: NearLock | FarLock, me: int, exclusive: bool) -> None:
        """Leave, and note that, however many signal handlers raise."""
        _, again = to_the_end(FAILURES, self._leave, state, lock, me, exclusive)
        if again is not None:
            raise again

    def _leave(self, state: State, lock: NearLock | FarLock, me: int, exclusive: bool) -> None:
        """Leave, unless that is done; no signal handler runs before it is noted."""
        if lock.state.owner == me if exclusive else (me, lock.rank) in state.readers:
            done = [False]
            try:
                lock.leave(exclusive, done)
            finally:
                if done[0] and not exclusive:
                    state.readers.pop((me, lock.rank), None)
                self._left_lock(lock, me)
        else:  # it was done before a handler raised
            self._left_lock(lock, me)

    def _left_lock(self, lock: NearLock | FarLock, me: int) -> None:
        if held := held_locks.get(me):
            held.discard(lock.key)
        if lock.threads:
            lock.next_thread()

    def _acquire(
        self,
        call: str,
        state: State,
        lock: NearLock | FarLock,
        me: int,
        exclusive: bool,
        end: float | None,
    ) -> None:
        """Enter a lock, through its queue; a reader that holds a lock already joins."""
        joins = not exclusive and _holds(me)
        held = held_locks.get(me) or held_locks.setdefault(me, set())
        if lock.key in held:
            # or asks for it, and this is a signal handler
            self._misused(call, f"this thread holds the lock of rank {lock.rank}")
        try:
            held.add(lock.key)  # no signal handler runs between these lines
            if joins:
                self._join(call, state, lock, me, end)
                return
            try:
                self._enter_lock(call, state, lock, me, exclusive, end)
            except _Stuck:
                self._join(call, state, lock, me, end)
        except BaseException:
            # a signal handler may have raised after the lock was had
            try:
                _, again = to_the_end(FAILURES, self._leave, state, lock, me, exclusive)
            except FAILURES:
                again = None
            if again is not None:
                raise again from None
            raise

    def _enter_lock(
        self,
        call: str,
        state: State,
        lock: NearLock | FarLock,
        me: int,
        exclusive: bool,
        end: float | None,
        joins: bool = False,
    ) -> None:
        """Enter a lock in turn, or a joiner past its queue; undo it after an exception."""
        if not lock.near:  # each message may be a wait
            where = self._root._handle, lib.RMAEXT_IN_LOCK, lock.rank, exclusive
            lib.rmaext_record_waits(*where)
        try:
            if joins:
                code = lock.join(me)
            else:
                code = -errno.EBUSY if lock.threads else lock.take(me, exclusive)
                if code == -errno.EBUSY:
                    code = self._after_threads(call, lock, me, exclusive, end)
            if code != 1:
                self._await_turn(call, lock, exclusive, end)
            if not exclusive:
                # no signal handler runs between these lines
                state.readers[me, lock.rank] = True
                lib.rmaext_lock_disown(lock.state)
        except BaseException:
            _, again = to_the_end(FAILURES, self._undo, state, lock, me, exclusive)
            lib.rmaext_record_quit()
            if again is not None:
                raise again from None
            raise
        if not exclusive and lock.threads:
            lock.next_thread()

    def _join(
        self, call: str, state: State, lock: NearLock | FarLock, me: int, end: float | None
    ) -> None:
        """Enter as a reader without queueing: only a writer that is inside is waited for."""
        self._give_way(call, state, lock, end)
        joiner = lock.joiner()
        key = id(joiner)
        state.joiners[key] = joiner
        try:
            self._enter_lock(call, state, joiner, me, False, end, True)
        finally:
            lock.broken = lock.broken or joiner.broken
            del state.joiners[key]
        passed = joiner.state.ticket
        if passed >= 0:  # the turn of one who waits on
            turn, pause = lock.passed or (-1, 0.0)
            pause = min(2 * pause, _GIVE_WAY_MOST) if turn == passed else _GIVE_WAY
            lock.passed = passed, pause

    def _give_way(
        self, call: str, state: State, lock: NearLock | FarLock, end: float | None
    ) -> None:
        """Let one who waits go first, if this rank has passed it before."""
        if lock.passed is None:
            return
        turn, pause = lock.passed
        until = time.monotonic() + pause
        if end is not None:
            until = min(until, end)
        with Patience(pause) as patience:
            self._await_other(call, state, lock, turn, until, patience)

    def _await_other(
        self,
        call: str,
        state: State,
        lock: NearLock | FarLock,
        turn: int,
        until: float,
        patience: Patience,
    ) -> None:
        """Wait until that turn is over, its holder has given up, or for so long."""
        what = f"{call}: window {self._name}, rank {lock.rank}"
        while (look := lock.look()) is None or look.turn == turn:
            left = until - time.monotonic()
            if left <= 0:
                return
            if look is not None:
                gone = state.living.gone()
                action, rank = judge(turn + 1, False, look, gone)
                if action == "pass":  # it has given up, or is dead
                    lock.pass_on(rank, look.slots[rank])
                if action != "wait":
                    return
            lib.rmaext_record_waits(self._root._handle, lib.RMAEXT_IN_LOCK, lock.rank, 0)
            mpi_progress.nap(min(left, _TURN))
            self._check_open(call)
            if look is not None:
                patience.look(what, functools.partial(look.holders, turn + 1))

    def _undo(self, state: State, lock: NearLock | FarLock, me: int, exclusive: bool) -> None:
        """End an `_enter_lock` that failed, wherever it was."""
        if lock.state.owner == me:
            try:
                lock.undo(me, exclusive)
            finally:
                if lock.state.owner != me:
                    state.readers.pop((me, lock.rank), None)
        lock.next_thread()

    def _after_threads(
        self, call: str, lock: NearLock | FarLock, me: int, exclusive: bool, end: float | None
    ) -> int:
        """Wait for this rank's other threads, then draw a ticket; return what `take` does."""
        place = lock.queue()
        try:
            with Patience() as patience:
                return self._await_threads(call, lock, me, exclusive, end, place, patience)
        finally:
            try:
                lock.threads.remove(place)
            except ValueError:  # woken in vain
                lock.next_thread()

    def _await_threads(
        self,
        call: str,
        lock: NearLock | FarLock,
        me: int,
        exclusive: bool,
        end: float | None,
        place: Any,
        patience: Patience,
    ) -> int:
        """Wait until that place is the first, and draw a ticket; return what `take` does."""
        still, looked = _Still(), time.monotonic()
        where = self._root._handle, lib.RMAEXT_IN_LOCK, lock.rank, exclusive
        what = f"{call}: window {self._name}, rank {lock.rank}"
        while True:
            if lock.threads and lock.threads[0] is place:
                code = lock.take(me, exclusive)
                if code != -errno.EBUSY:
                    return code
            lib.rmaext_record_waits(*where)
            turn = time.monotonic() + _TURN
            if mpi_progress.acquire(place, turn if end is None else min(turn, end)):
                lock.threads.appendleft(place)  # others may be faster
                continue
            self._check_open(call)
            if end is not None and end <= turn:
                self._timed_out(call, lock.rank)
            patience.look(what, lambda: [self._group.rank])
            if not exclusive and turn > looked + _LOOK_EVERY:
                looked, look = turn, lock.look()
                quiet = still.seconds(look, turn)
                if look is not None and look.inside < WRITER and quiet > _STUCK:
                    raise _Stuck

    def _await_turn(
        self, call: str, lock: NearLock | FarLock, exclusive: bool, end: float | None
    ) -> None:
        with Patience() as patience:
            self._await_turn_patiently(call, lock, exclusive, end, patience)

    def _await_turn_patiently(
        self,
        call: str,
        lock: NearLock | FarLock,
        exclusive: bool,
        end: float | None,
        patience: Patience,
    ) -> None:
        state, ticket, still = self._state(call), lock.ticket, _Still()
        # a look reads a word of each rank: not for a lock that only changes hands
        spin, looked, told, before = state.spin, time.monotonic(), None, 1
        while True:
            now = time.monotonic()
            nap = _NAP if end is None else min(_NAP, int((end - now) * NS))
            if not lock.near:
                if told is not None:
                    pause = min(before * _FAR_STEP, _FAR_MOST) if ticket is not None else _FAR_JOINS
                    self._await_wakeup(state, told, pause if end is None else min(pause, end - now))
                told = state.wakeups()
            if lock.wait(exclusive, spin, max(0, nap)):
                return
            spin = 0
            self._check_open(call)
            now = time.monotonic()
            if end is not None and now >= end:
                self._timed_out(call, lock.rank)
            if now < looked + _LOOK_EVERY:
                continue
            looked = now
            gone = state.living.gone()
            look = lock.look()
            quiet = still.seconds(look, now)
            if look is None:
                continue
            if ticket is not None:
                before = max(1, ticket - look.turn)
            if lock.rank in gone:
                self._raise_lost(call, lock.rank, "the target is gone")
            action, rank = judge(ticket, exclusive, look, gone)
            what = f"{call}: window {self._name}, rank {lock.rank}"
            patience.look(what, functools.partial(look.holders, ticket))
            if action == "pass":
                lock.pass_on(rank, look.slots[rank])
                looked, told = 0.0, None
            elif action == "lost":
                self._raise_lost(call, rank, f"lost while it had the lock of rank {lock.rank}")
            elif action == "unknown" and gone and quiet > self._timeout:
                self._raise_lost(call, min(gone), f"nobody has the lock of rank {lock.rank}")
            elif not exclusive and ticket is not None and quiet > _STUCK and look.inside < WRITER:
                raise _Stuck

    def _await_wakeup(self, state: State, told: int, seconds: float) -> None:
        """Wait until another node's rank says that a lock is to be looked at, or for so long."""
        place = state.places.wakeups - state.block.base
        changed = block_words([(place, "!=", told)])
        root, rank = self._root._handle, self._group.rank
        lib.rmaext_wait_until(root, rank, changed, 1, True, max(0, int(seconds * NS)))

    # -- state and errors ----------------------------------------------------------------

    def _state(self, call: str) -> State:
        state = self._sync
        if state is None or self._closed:
            self._check_open(call)
            if self._block is None:
                raise TypeError(f"{call}: a hidden window has no control block")
            root = self._root
            state = root._sync or State(self._group, self._block)
            # another thread may do so too
            self._sync = state = root.__dict__.setdefault("_sync", state)
        return state

    def _sync_error(self, call: str, text: str) -> SyncError:
        return SyncError(errno.EPERM, f"{call}: window {self._name}: {text}", call=call)

    def _misused(self, call: str, text: str) -> NoReturn:
        raise self._sync_error(call, text)

    def _raise_lost(self, call: str, rank: int, why: str) -> NoReturn:
        text = advised(f"{call}: window {self._name}: rank {rank}: {why}")
        raise PeerLostError(errno.ENOTCONN, text, call=call, rank=rank)

    def _timed_out(self, call: str, rank: int) -> NoReturn:
        text = f"{call}: window {self._name}, rank {rank}: not within the time limit given"
        text = advised(text, late=True)
        raise RmaTimeout(errno.ETIMEDOUT, text, call=call, rank=rank)
