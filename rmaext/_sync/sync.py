# SPDX-License-Identifier: BSD-3-Clause
"""Synchronisation of ranks over a window: locks. Epochs are in epochs.py, fences in _window/."""

from __future__ import annotations

import errno
import functools
import operator
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

from .._comm.liveness import Living
from .._native._lib import ffi, lib
from .._native.cmethods import Locks, With, to_the_end
from .._ops.arguments import behind, told
from .._ops.core import WindowCore
from .._record import tracing
from .._runtime import mpi_progress
from .._runtime.config import deadline
from .._runtime.copies import Unique
from .._runtime.failures import advised
from .._runtime.reports import Patience
from ..errors import PeerLostError, RmaTimeout, SyncError
from ..typing import ScalarT
from .messages import FAILURES, Messages
from .ticket_lock import WRITER, FarLock, Look, NearLock, Places, judge

if TYPE_CHECKING:
    from .._comm.control import Block
    from .._comm.group import Group

__all__ = ["NS", "LockGuard", "State", "Synchronisation"]

NS = 1_000_000_000
_SPIN, _SPIN_CROWDED = 30_000, 2_000  # ns awake before sleeping
_NAP = 10_000_000  # ns asleep, where all who could wake this rank do so
_NAP_FAR = 1_000_000  # the same, where the network may bring what is waited for
_FAR_STEP, _FAR_MOST = 2e-4, 1e-2  # seconds between questions: for each ticket before, at most
_TURN = 0.001  # seconds between looks of a thread behind others of its rank
_LOOK_EVERY = 0.01  # seconds without a turn until a waiter looks for the reason
_STUCK = 1.0  # seconds without a change until a reader does not queue any more
_GIVE_WAY, _GIVE_WAY_MOST = 1e-4, 1e-2  # seconds, the first time, and any

# The locks that a thread holds or asks for, each once; 1 stands for the process, in the drop-in.
_held: dict[int, set[tuple[int, int]]] = {}
_PROCESS = 1


class LockGuard(With, Unique):
    """The end of a lock: what `Window.lock` and `Window.lock_all` return.

    The lock is held already. `with` gives the window, and releases the lock at the end of the
    block; who uses no `with` calls `unlock` or `unlock_all`.

    Examples
    --------
    >>> with win.lock(0) as locked:
    ...     locked is win
    True
    """

    __slots__ = ("_rank", "_window")

    def __init__(self, window: Synchronisation[Any], rank: int | None) -> None:
        self._window, self._rank = window, rank

    def __repr__(self) -> str:
        whose = "all ranks" if self._rank is None else f"rank {self._rank}"
        return f"<rmaext.LockGuard of {whose} of {self._window!r}>"

    # What `with` calls, see csrc/python/with.c.

    def _enter(self) -> Any:
        return self._window

    def _exit(self, *_: object) -> None:
        if self._rank is None:
            self._window.unlock_all()
        else:
            self._window.unlock(self._rank)

    def _forsake(self, _: BaseException) -> None:
        """After an exception of the two: one of a signal handler may have come too early."""
        if self._window._has_lock(self._rank):
            self._exit()


tracing.follow(LockGuard)


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

    def __init__(self, window: Synchronisation[Any], group: Group, block: Block) -> None:
        self.window, self.block = window, block
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

    def words(self, rank: int, place: int) -> Any:
        """Return a pointer to a word of a rank's block; None if it is not mapped here."""
        block = self.block.maps[rank]
        return ffi.cast("int64_t *", block) + (place - self.block.base) if block else None


class _Stuck(Exception):  # noqa: N818 (no error: the reader joins)
    """A queue does not move, as a writer waits for readers in it."""


class _Still:
    """For how long nothing has changed in a lock, as far as was looked."""

    def __init__(self) -> None:
        self._last, self._since = (-1, -1), time.monotonic()

    def seconds(self, look: Look | None, now: float) -> float:
        """Return it, after one more look; None: it moves."""
        if look is None or look[:2] != self._last:
            self._last, self._since = (-1, -1) if look is None else look[:2], now
        return now - self._since


def _holds(me: int) -> bool:
    """Return whether this thread holds a lock, of any window."""
    return bool(_held.get(me) or _held.get(_PROCESS) or _held.get(get_ident()))


class Synchronisation(Locks, WindowCore[ScalarT]):
    """The synchronisation of `Window`, besides `flush` and `fence`."""

    _sync: State | None = None
    _holder: Callable[[], int] = staticmethod(get_ident)  # of a lock; not 0

    # -- flush -----------------------------------------------------------------------

    def flush_all(self) -> None:
        """Wait until every put to every rank is applied there; `flush()`.

        Notes
        -----
        Local, blocking; raises what `flush` does. Corresponds to MPI_Win_flush_all.

        Examples
        --------
        >>> win.put(1.0, 0)
        >>> win.flush_all()
        """
        self.flush()

    @told
    def flush_local(self, rank: int | None = None) -> None:
        """Wait until this rank reads what it wrote to a rank, or to all.

        Parameters
        ----------
        rank : int, optional
            Target; all by default.

        Raises
        ------
        PeerLostError
            The rank is known to be gone.
        RmaTimeout
            As `flush`.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_flush_local and MPI_Win_flush_local_all. It takes
        as long as `flush`: a get may overtake an accumulate that went by message. Buffers may be
        reused before, when `put` and its kin return.

        Examples
        --------
        >>> win.accumulate(1.0, 0)
        >>> win.flush_local(0)
        >>> win.get(0, 0, 1)
        array([1.])
        """
        self._check_open("flush_local")
        ranks: Iterable[int] = range(self._group.size)
        if rank is not None:
            if operator.index(rank) == self._null:
                return
            ranks = (self._rank(rank, "flush_local"),)
        gone = self._state("flush_local").living.gone()
        for number in ranks:
            if number in gone:
                self._raise_lost("flush_local", number, "the rank is gone")
        self.flush(rank)

    def flush_local_all(self) -> None:
        """Wait until this rank reads what it wrote to all ranks; `flush_local()`.

        Notes
        -----
        Local, blocking; raises what `flush_local` does. Corresponds to MPI_Win_flush_local_all.

        Examples
        --------
        >>> win.accumulate(1.0, 0)
        >>> win.flush_local_all()
        """
        self.flush_local()

    def sync(self) -> None:
        """Order this rank's accesses to its own memory before and after.

        A memory barrier: what this rank stored in `win.local`, or in a `peer_view`, before it
        is seen by others before what it stores after.

        Notes
        -----
        Local, not blocking; corresponds to MPI_Win_sync.

        Examples
        --------
        >>> win.local[1:] = 7  # the data
        >>> win.sync()
        >>> win.local[0] = 1  # the flag that others wait for
        """
        self._check_open("sync")
        lib.rmaext_barrier()

    # -- locks -----------------------------------------------------------------------

    def lock(self, rank: int, exclusive: bool = True, timeout: float | None = None) -> LockGuard:
        """Wait for the lock of a rank's window, alone or shared with others.

        Parameters
        ----------
        rank : int
        exclusive : bool
            Nobody else may hold the lock, shared or not. False, MPI.LOCK_SHARED: others
            may, who ask for the same. As in MPI the exclusive one is the default.
        timeout : float, optional
            Seconds; by default as long as those live who hold it. 0 asks once. See
            `Window` for what is a number of seconds.

        Returns
        -------
        LockGuard
            Calls `unlock(rank)` at the end of a `with`.

        Raises
        ------
        BoundsError
        SyncError
            This thread holds the lock, or all of them.
        RmaTimeout
            The lock is not taken.
        PeerLostError
            A rank was lost while it held the lock, or the target was lost.

        Notes
        -----
        Local, blocking, without the target. Corresponds to MPI_Win_lock. No
        operation of rmaext needs a lock; those who want one agree on that. Windows
        that look at the memory of one another (`subwindow`, `dup`) share their
        locks and epochs.

        Locks are fair: ranks get it in the order in which they asked, and so do
        readers and writers. Threads hold it each for themselves; those of one
        rank queue up as one. Who holds a lock already and asks for a shared one
        does not queue behind writers that wait, but gives way to one that it has
        passed before, for 10 ms at most. So several targets may be
        locked one after another: only who asks for an exclusive lock while it
        holds another one, or for any while it holds an exclusive one, may wait
        in a circle for ever.

        A rank that is reached by memory waits asleep, and is woken. Others ask
        the target by messages, at most every 0.2 ms for each one before them and
        every 10 ms. Ctrl-C ends the wait: the others go on, after some 10 ms.

        Examples
        --------
        >>> with win.lock(0):
        ...     win.put(win.get(0, 0, 1) + 1, rank=0)
        >>> win.local[0]
        np.float64(1.0)
        """
        end = deadline(timeout)
        state = self._sync or self._state("lock")
        lock = state.locks.get(rank) if type(rank) is int else None  # 1.0 is no rank
        if lock is None or self._closed:
            if self._nobody("lock", rank):
                return LockGuard(self, rank)
            lock = self._target("lock", rank)
        guard = lock.guard if state.window is self else LockGuard(self, lock.rank)
        self._acquire("lock", state, lock, self._holder(), exclusive, end)
        return guard

    # unlock and unlock_all are those of csrc/python/with.c, which calls these.

    @behind
    def _unlock(self, rank: int) -> None:
        state = self._sync
        lock = state.locks.get(rank) if state is not None and type(rank) is int else None
        if state is None or lock is None or self._closed:
            if self._nobody("unlock", rank):
                return
            lock = self._target("unlock", rank)
            state = self._state("unlock")
        me, cell = self._holder(), lock.state
        exclusive = cell.owner == me
        if not exclusive and ((me, lock.rank) not in state.readers or me in state.everywhere):
            self._misused("unlock", f"this thread has not locked rank {lock.rank}")
        try:
            self.flush(lock.rank)
        except BaseException as exc:
            # no signal handler runs before the lock is released
            try:
                _, again = to_the_end(FAILURES, self._leave, state, lock, me, exclusive)
            except FAILURES:  # of the same rank, for the same reason
                again = None
            if again is not None and isinstance(exc, Exception):
                raise again from exc  # Ctrl-C outweighs an error
            raise
        _, again = to_the_end(FAILURES, self._leave, state, lock, me, exclusive)
        if again is not None:
            raise again

    def lock_all(self, timeout: float | None = None) -> LockGuard:
        """Wait for the locks of all ranks, shared with others.

        As `lock(rank, exclusive=False)` for each rank in turn; returns a context manager that
        calls `unlock_all`. Local, blocking; corresponds to MPI_Win_lock_all.

        Raises
        ------
        SyncError
            This thread holds a lock.
        RmaTimeout, PeerLostError
            As `lock`; none is held then.

        Examples
        --------
        >>> with win.lock_all():
        ...     win.put(1.0, rank=0)
        >>> win.local[0]
        np.float64(1.0)
        """
        self._check_open("lock_all")
        state = self._state("lock_all")
        me = self._holder()
        locks = [self._target("lock_all", rank) for rank in range(self._group.size)]
        if any(lock.key in _held.get(me, ()) for lock in locks):
            self._misused("lock_all", "this thread holds a lock")
        end, guard = deadline(timeout), LockGuard(self, None)
        try:
            for lock in locks:
                self._acquire("lock_all", state, lock, me, False, end)
            state.everywhere.add(me)
        except BaseException:
            _, again = to_the_end(FAILURES, self._release_all, state, me)
            if again is not None:
                raise again from None
            raise
        return guard

    @behind
    def _unlock_all(self) -> None:
        self._check_open("unlock_all")
        if self._holder() not in self._state("unlock_all").everywhere:
            self._misused("unlock_all", "this thread has not called lock_all")
        self._flush_and_release_all("unlock_all")

    def _release_anyway(self, *args: Any, **keywords: Any) -> None:
        """Release what unlock(rank) was to release, if it is still held."""
        state, me = self._sync, self._holder()
        given = [*args, *keywords.values()]
        if state is None or len(given) != 1 or me in state.everywhere:
            return
        with suppress(TypeError):
            rank = operator.index(given[0])
            if self._has_lock(rank):
                lock = state.locks[rank]
                to_the_end(FAILURES, self._leave, state, lock, me, lock.state.owner == me)

    def _release_all_anyway(self, *args: Any, **keywords: Any) -> None:
        """Release what unlock_all() was to release, if it is still held."""
        state, me = self._sync, self._holder()
        if state is None or self._closed or args or keywords:
            return
        if me in state.everywhere or me == _PROCESS:
            to_the_end(FAILURES, self._release_all, state, me)

    def _flush_and_release_all(self, call: str) -> None:
        """Release the shared locks that this thread holds; also if the flush fails."""
        state, me = self._state(call), self._holder()
        try:
            self.flush()
        except BaseException as exc:
            try:
                _, again = to_the_end(FAILURES, self._release_all, state, me)
            except FAILURES:
                again = None
            if again is not None and isinstance(exc, Exception):
                raise again from exc  # Ctrl-C outweighs an error
            raise
        _, again = to_the_end(FAILURES, self._release_all, state, me)
        if again is not None:
            raise again

    def _release_all(self, state: State, me: int) -> None:
        failure: Exception | None = None
        state.everywhere.discard(me)
        for lock in list(state.locks.values()):
            if (me, lock.rank) in state.readers:
                try:
                    self._release(state, lock, me, False)
                except FAILURES as exc:
                    failure = failure or exc
        if failure is not None:
            raise failure

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
        if held := _held.get(me):
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
        held = _held.get(me) or _held.setdefault(me, set())
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
        what = f"{call}: window {self._name}, rank {lock.rank}"
        with Patience() as patience:
            while (look := lock.look()) is None or look.turn == turn:
                left = until - time.monotonic()
                if left <= 0:
                    return
                if look is not None:
                    gone = state.living.gone()
                    action, rank = judge(turn + 1, False, self._group.rank, look, gone)
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
        place, still, looked = lock.queue(), _Still(), time.monotonic()
        where = self._root._handle, lib.RMAEXT_IN_LOCK, lock.rank, exclusive
        what = f"{call}: window {self._name}, rank {lock.rank}"
        try:
            with Patience() as patience:
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
        finally:
            try:
                lock.threads.remove(place)
            except ValueError:  # woken in vain
                lock.next_thread()

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
        state, ticket = self._state(call), lock.ticket
        start, still = time.monotonic(), _Still()
        spin, looked, before = state.spin, 0.0, 1
        while True:
            now = time.monotonic()
            nap = state.nap if end is None else min(state.nap, int((end - now) * NS))
            if not lock.near:
                pause = min((now - start) / 4, before * _FAR_STEP, _FAR_MOST, nap / 1e6)
                mpi_progress.nap(pause if end is None else min(pause, end - now))
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
            action, rank = judge(ticket, exclusive, self._group.rank, look, gone)
            what = f"{call}: window {self._name}, rank {lock.rank}"
            patience.look(what, functools.partial(look.holders, ticket))
            if action == "pass":
                lock.pass_on(rank, look.slots[rank])
                looked = 0.0
            elif action == "lost":
                self._raise_lost(call, rank, f"lost while it had the lock of rank {lock.rank}")
            elif action == "unknown" and gone and quiet > self._timeout:
                self._raise_lost(call, min(gone), f"nobody has the lock of rank {lock.rank}")
            elif not exclusive and ticket is not None and quiet > _STUCK and look.inside < WRITER:
                raise _Stuck

    # -- helpers ---------------------------------------------------------------------

    def _has_lock(self, rank: int | None) -> bool:
        """Return whether this thread holds a lock, or with None those of lock_all."""
        state, me = self._sync, self._holder()
        if state is None or self._closed:
            return False
        if rank is None:
            return me in state.everywhere
        lock = state.locks.get(rank) if type(rank) is int else None
        return lock is not None and (lock.state.owner == me or (me, rank) in state.readers)

    def _serve(self) -> None:
        """Read the network, if no thread does."""
        if not self._group.all_direct and not self._group.hellos.own.progress:
            self._group.network().fabric.serve(0)

    def _state(self, call: str) -> State:
        state = self._sync
        if state is None or self._closed:
            self._check_open(call)
            if self._block is None:
                raise TypeError(f"{call}: a hidden window has no control block")
            root = self._root
            state = root._sync or State(root, self._group, self._block)
            # another thread may do so too
            self._sync = state = root.__dict__.setdefault("_sync", state)
        return state

    def _nobody(self, call: str, rank: Any) -> bool:
        self._check_open(call)
        return operator.index(rank) == self._null

    def _target(self, call: str, rank: Any) -> NearLock | FarLock:
        """Return this rank's part in a target's lock."""
        state, number = self._state(call), self._rank(rank, call)
        lock = state.locks.get(number)
        if lock is None:
            block, made = (
                state.block,
                (self._group, number, state.places, LockGuard(state.window, number)),
            )
            if block.maps[number]:
                lock = NearLock(*made, block.maps[number], block.base)
            else:
                lock = FarLock(*made, state.messages)
            lock.state.window = lib.rmaext_record_id(state.window._root._handle)
            lock.state.target = number
            lock.key = id(state), number
            lock = state.locks.setdefault(number, lock)
        return lock

    def _unfinished(self) -> SyncError | None:
        """Return the error of closing the window now."""
        state = self._sync
        if state is None:
            return None
        open_ = [lock.rank for lock in state.locks.values() if lock.state.inside]
        open_ += [rank for _, rank in state.readers]
        if open_:
            what = f"locks are held, of rank {', '.join(map(str, sorted(set(open_))))}: unlock them"
        elif state.access is not None:
            what = "a start has no complete yet: call complete first"
        elif state.exposure is not None:
            what = "a post has no wait yet: call wait first"
        else:
            return None
        return self._sync_error("close", what)

    def _forget_locks(self) -> None:
        """Hold none any more, as the window is closed."""
        state = self._sync
        keys = [] if state is None else [lock.key for lock in state.locks.values()]
        for held in list(_held.values()):
            held.difference_update(keys)

    def _in_doubt(self) -> bool:
        """Whether this rank may still change control blocks of others."""
        state = self._sync
        locks = [] if state is None else [*state.locks.values(), *state.joiners.values()]
        return any(lock.state.owner or lock.broken for lock in locks)

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
