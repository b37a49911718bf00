# SPDX-License-Identifier: BSD-3-Clause
"""Which epochs of a window are open on this rank, and what may be called in them.

The rules of MPI-4.1, section 12.5. An epoch belongs to the process, not to a thread.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from .._runtime import locks, mpi_progress
from .errors import error

if TYPE_CHECKING:
    from .._window.window import Window
    from .first_locks import FirstLocks

__all__ = ["Epochs"]

_PROC_NULL = int(MPI.PROC_NULL)
_SHARED, _EXCLUSIVE = MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE
_FENCE_MODES = MPI.MODE_NOSTORE | MPI.MODE_NOPUT | MPI.MODE_NOPRECEDE | MPI.MODE_NOSUCCEED
_POST_MODES = MPI.MODE_NOCHECK | MPI.MODE_NOSTORE | MPI.MODE_NOPUT

# what Fence began: nothing; an epoch if an operation follows; an epoch
_NO, _MAYBE, _YES = range(3)


class Epochs:
    """The epochs of one window.

    Shared locks of others, those of Lock_all too, are taken by the first operation or
    flush that needs them: programs that begin by an exclusive lock of themselves, while
    others call Lock_all, do not come too late. Own memory is accessed without an
    operation, and so is all of a shared window: these locks are taken when they are asked
    for, and so are exclusive ones. Ranks are waited for that have not yet called Post by
    the first operation after Start, or Complete, not by Start.

    Attributes
    ----------
    access : set
        Ranks that an operation may name without `enter`.
    passive : set
        Of these, the ones that are locked.
    """

    __slots__ = (
        "_all",
        "_fence",
        "_first_locks",
        "_late",
        "_lazy",
        "_locks",
        "_me",
        "_post",
        "_size",
        "_start",
        "_taking",
        "_untaken",
        "_window",
        "access",
        "passive",
    )

    def __init__(
        self, window: Window[Any], first_locks: FirstLocks | None = None, lazy: bool = True
    ) -> None:
        self._first_locks = first_locks  # None once that is over
        self._lazy = lazy
        self._me = window._group.rank
        self._untaken: set[int] = set()  # whose shared lock is still to be taken
        self._taking: dict[int, threading.RLock] = {}  # a signal handler may take it again
        self.access: set[int] = set()
        self.passive: set[int] = set()
        self._window = window
        self._size = window._group.size
        self._fence = _NO
        self._start: list[int] | None = None  # ranks
        self._late = False  # rmaext's start is still to come
        self._post = False
        self._locks: dict[int, bool] = {}  # rank; whether exclusive
        self._all = False

    # -- operations ------------------------------------------------------------------

    def enter(self, call: str, rank: Any) -> None:
        """Let an operation on a rank begin, or raise ERR_RMA_SYNC."""
        number = self._check_rank(call, rank)
        if number in self.access:
            return
        if self._untaken:
            self._take(number)
        elif self._fence == _MAYBE:
            self._fence = _YES
            self.access.update(range(self._size))
        elif self._late:
            self._begin()
        elif number != _PROC_NULL or not self._is_open():
            _refuse(call, f"there is no epoch in which rank {number} may be accessed")
        if number != _PROC_NULL and number not in self.access:
            among = "Start" if self._start is not None else "Lock"
            _refuse(call, f"rank {number} is not among those of {among}")

    def enter_passive(self, call: str, rank: Any) -> None:
        """Check that a rank is locked."""
        if rank in self.passive:
            return
        number = self._check_rank(call, rank)
        if self._untaken:
            self._take(number)
        if number not in self.passive and not (number == _PROC_NULL and self._locks_any()):
            _refuse(call, f"rank {number} is not locked")

    def enter_passive_all(self, call: str) -> None:
        """Check that a rank is locked, any."""
        if not self._locks_any():
            _refuse(call, "no rank is locked")

    def may_free(self) -> None:
        """Raise ERR_RMA_SYNC if an epoch has yet to be ended by this rank."""
        if self._is_unended():
            _refuse("Free", "an epoch is open")

    # -- fence -----------------------------------------------------------------------

    def fence(self, assertion: int) -> None:
        """Fence."""
        if assertion:
            _check_assertion("Fence", assertion, _FENCE_MODES)
        if self._is_unended():
            _refuse("Fence", "an epoch of another kind is open")
        self._begin_to_use([])
        self._window.fence()
        self.access.clear()
        self._fence = _NO if assertion & MPI.MODE_NOSUCCEED else _MAYBE

    # -- start, complete, post, wait --------------------------------------------------

    def start(self, group: Any, assertion: int) -> None:
        """Start."""
        _check_assertion("Start", assertion, MPI.MODE_NOCHECK)
        ranks = self._members("Start", group)
        self._no_access("Start")
        self._begin_to_use([])
        self._start, self._late = ranks, True

    def complete(self) -> None:
        """Complete."""
        if self._start is None:
            _refuse("Complete", "there was no Start")
        if self._late:
            try:
                self._begin()
            except Exception:  # nobody will ever be able to
                self._start, self._late = None, False
                raise
        try:
            self._window.complete()
        finally:
            # it goes on after Ctrl-C
            if not self._goes_on("access"):
                self._start = None
                self.access.clear()

    def _begin(self) -> None:
        """Wait until all have called Post that Start named."""
        ranks = self._start or []
        self._window.start(ranks)
        self._late = False
        self.access.update(ranks)

    def post(self, group: Any, assertion: int) -> None:
        """Post."""
        _check_assertion("Post", assertion, _POST_MODES)
        ranks = self._members("Post", group)
        if self._post or self._fence == _YES:
            _refuse("Post", "an epoch in which others may access this rank is open")
        self._fence = _NO
        self._begin_to_use([])
        try:
            self._window.post(ranks)
        finally:
            self._post = self._goes_on("exposure")

    def wait(self) -> None:
        """Wait."""
        if not self._post:
            _refuse("Wait", "there was no Post")
        try:
            self._window.wait()
        finally:
            self._post = self._goes_on("exposure")

    def test(self) -> bool:
        """Test."""
        if not self._post:
            _refuse("Test", "there was no Post")
        try:
            return self._window.test()
        finally:
            self._post = self._goes_on("exposure")

    # -- locks -----------------------------------------------------------------------

    def lock(self, rank: Any, kind: int, assertion: int) -> None:
        """Lock."""
        real = True
        if assertion or type(rank) is not int or not 0 <= rank < self._size:
            _check_assertion("Lock", assertion, MPI.MODE_NOCHECK)
            rank = self._check_rank("Lock", rank)
            real = not assertion and rank != _PROC_NULL
        exclusive = kind == _EXCLUSIVE
        if not exclusive and kind != _SHARED:
            raise error(MPI.ERR_LOCKTYPE, f"Lock: {kind} is no type of lock")
        locks = self._locks
        if rank in locks:
            _refuse("Lock", f"rank {rank} is locked already")
        elif not locks and (self._fence or self._start is not None or self._all):
            self._no_access("Lock")
        later = real and not exclusive and self._lazy and rank != self._me
        if self._first_locks is not None:
            self._begin_to_use([] if later else [rank])
        locks[rank] = real and exclusive  # from here on other threads are refused
        try:
            if later:
                self._untaken.add(rank)
                return
            if real:
                self._window.lock(rank, exclusive)
            self.passive.add(rank)
            self.access.add(rank)
        except BaseException:
            self.unlock_anyway(rank)
            raise

    def unlock(self, rank: Any) -> None:
        """Unlock."""
        exclusive = self._locks.get(rank)
        if exclusive is None:
            number = self._check_rank("Unlock", rank)
            _refuse("Unlock", f"rank {number} is not locked")
        self.access.discard(rank)
        self.passive.discard(rank)
        self._untaken.discard(rank)
        if exclusive or self._holds(rank):
            self._window.unlock(rank)
        else:
            self._window.flush(rank)
        del self._locks[rank]

    def lock_all(self, assertion: int) -> None:
        """Lock_all."""
        _check_assertion("Lock_all", assertion, MPI.MODE_NOCHECK)
        self._no_access("Lock_all")
        ranks = range(self._size)
        later = set(ranks) - {self._me} if self._lazy and not assertion else set()
        now = set(ranks) - later
        self._begin_to_use(now)
        self._all = True
        try:
            for rank in [] if assertion else now:
                self._window.lock(rank, False)
            self.passive.update(now)
            self.access.update(now)
            self._untaken = later
        except BaseException:
            self.unlock_all_anyway()
            raise

    def unlock_all(self) -> None:
        """Unlock_all."""
        if not self._all:
            _refuse("Unlock_all", "there was no Lock_all")
        self.access.clear()
        self.passive.clear()
        self._untaken.clear()
        self._window._flush_and_release_all("unlock_all")
        self._all = False

    def unlock_anyway(self, rank: Any) -> None:
        """End what unlock(rank) was to end, if it still goes on."""
        if type(rank) is int and rank in self._locks:
            self._window._release_anyway(rank)
            for ranks in (self.access, self.passive, self._untaken):
                ranks.discard(rank)
            self._locks.pop(rank, None)

    def unlock_all_anyway(self) -> None:
        """End what unlock_all() was to end, if it still goes on."""
        if self._all:
            self._window._release_all_anyway()
            for ranks in (self.access, self.passive, self._untaken):
                ranks.clear()
            self._all = False

    def _take(self, rank: int) -> None:
        """Take a shared lock, if it was asked for and is not taken yet."""
        if rank not in self._untaken:
            return
        taking = self._taking.setdefault(rank, locks.lock())
        try:
            mpi_progress.acquire(taking, None)
            if rank not in self._untaken:
                return  # another thread has taken it
            if self._first_locks is not None:
                self._begin_to_use([rank])
            if not self._holds(rank):  # since before Ctrl-C
                self._window.lock(rank, False)
            self.passive.add(rank)
            self.access.add(rank)
            self._untaken.discard(rank)
        finally:
            with suppress(RuntimeError):  # it was not acquired, as a signal handler raised
                taking.release()

    def _holds(self, rank: int) -> bool:
        """Return whether this process has the shared lock of a rank."""
        state = self._window._sync
        return state is not None and (self._window._holder(), rank) in state.readers

    # -- helpers ---------------------------------------------------------------------

    def _begin_to_use(self, ranks: Iterable[int]) -> None:
        """Tell the others that this rank's memory is ready; wait for theirs, but not long."""
        first_locks = self._first_locks
        if first_locks is not None:
            first_locks.begin()
            first_locks.wait(rank for rank in ranks if rank != _PROC_NULL)
            if first_locks.over:
                self._first_locks = None

    def _is_open(self) -> bool:
        return bool(self.access) or self._accesses()

    def _locks_any(self) -> bool:
        return bool(self._locks) or self._all

    def _goes_on(self, epoch: str) -> bool:
        """Return whether an epoch has not ended below: "access" or "exposure"."""
        state = self._window._sync
        return state is not None and getattr(state, epoch) is not None

    def _accesses(self) -> bool:
        """Whether this rank has begun an epoch of access other than by Fence."""
        return self._locks_any() or self._start is not None

    def _is_unended(self) -> bool:
        return self._accesses() or self._post

    def _no_access(self, call: str) -> None:
        """Check that a new epoch of access may begin."""
        if self._accesses() or self._fence == _YES:
            _refuse(call, "an epoch in which this rank accesses others is open")
        self._fence = _NO

    def _check_rank(self, call: str, rank: Any) -> int:
        number = operator.index(rank)
        if not 0 <= number < self._size and number != _PROC_NULL:
            raise error(MPI.ERR_RANK, f"{call}: there is no rank {number}")
        return number

    def _members(self, call: str, group: Any) -> list[int]:
        if not isinstance(group, MPI.Group):
            raise TypeError(f"{call}: group must be an MPI.Group, not {type(group).__name__}")
        if group == MPI.GROUP_NULL:
            raise error(MPI.ERR_GROUP, f"{call}: group is MPI.GROUP_NULL")
        own = self._window._group.comm.Get_group()
        ranks: list[int] = MPI.Group.Translate_ranks(group, list(range(group.size)), own)
        own.Free()
        if MPI.UNDEFINED in ranks:
            raise error(MPI.ERR_GROUP, f"{call}: a member of the group has no part in the window")
        return ranks


def _refuse(call: str, words: str) -> NoReturn:
    raise error(MPI.ERR_RMA_SYNC, f"{call}: {words}")


def _check_assertion(call: str, assertion: int, allowed: int) -> None:
    if operator.index(assertion) & ~allowed:
        raise error(MPI.ERR_ASSERT, f"{call}: assertion {assertion:#x} does not belong here")
