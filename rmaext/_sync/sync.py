# SPDX-License-Identifier: BSD-3-Clause
"""Synchronisation of ranks over a window: flushes and locks.

How a lock is had is in entering.py, epochs are in epochs.py, fences in _window/.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .._native._lib import lib
from .._native.cmethods import Locks, With, to_the_end
from .._ops.arguments import behind, told
from .._record import tracing
from .._runtime.config import deadline
from .._runtime.copies import Unique
from ..errors import SyncError
from ..typing import ScalarT
from .entering import PROCESS, Entering, State, held_locks
from .messages import FAILURES
from .ticket_lock import FarLock, NearLock, NodeLock

__all__ = ["LockGuard", "Synchronisation"]


class LockGuard(With, Unique):
    """The end of a lock: what `Window.lock` and `Window.lock_all` return.

    The lock is held already. `with` gives the window, and releases the lock at the end of the
    block; who uses no `with` calls `unlock` or `unlock_all`. The lock is its thread's: another one
    cannot release it (SyncError).

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


class Synchronisation(Locks, Entering[ScalarT]):
    """The synchronisation of `Window`, besides `flush` and `fence`."""

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
        guard = lock.guard if self._root is self else LockGuard(self, lock.rank)
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
        if any(lock.key in held_locks.get(me, ()) for lock in locks):
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
        if me in state.everywhere or me == PROCESS:
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

    def _nobody(self, call: str, rank: Any) -> bool:
        self._check_open(call)
        return operator.index(rank) == self._null

    def _target(self, call: str, rank: Any) -> NearLock | FarLock:
        """Return this rank's part in a target's lock."""
        state, number = self._state(call), self._rank(rank, call)
        lock = state.locks.get(number)
        if lock is None:
            block, guard = state.block, LockGuard(self._root, number)
            made = self._group, number, state.places, guard
            if not block.maps[number]:
                lock = FarLock(*made, state.messages)
            elif self._group.all_direct:
                lock = NearLock(*made, block.maps[number], block.base)
            else:
                lock = NodeLock(*made, block)
            lock.state.window = lib.rmaext_record_id(self._root._handle)
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
        for held in list(held_locks.values()):
            held.difference_update(keys)

    def _in_doubt(self) -> bool:
        """Whether this rank may still change control blocks of others."""
        state = self._sync
        locks = [] if state is None else [*state.locks.values(), *state.joiners.values()]
        return any(lock.state.owner or lock.broken for lock in locks)
