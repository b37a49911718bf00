# SPDX-License-Identifier: BSD-3-Clause
"""Which epochs of a window are open on this rank, and what may be called in them.

The rules of MPI-4.1, section 12.5. An epoch belongs to the process, not to a thread.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from .errors import error

if TYPE_CHECKING:
    from ..window import Window
    from .young import Young

__all__ = ["Epochs"]

_PROC_NULL = int(MPI.PROC_NULL)
_SHARED, _EXCLUSIVE = MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE
_FENCE_MODES = MPI.MODE_NOSTORE | MPI.MODE_NOPUT | MPI.MODE_NOPRECEDE | MPI.MODE_NOSUCCEED
_POST_MODES = MPI.MODE_NOCHECK | MPI.MODE_NOSTORE | MPI.MODE_NOPUT

# what Fence began: nothing; an epoch if an operation follows; an epoch
_NO, _MAYBE, _YES = range(3)


class Epochs:
    """The epochs of one window.

    A lock is taken when it is asked for; ranks are waited for that have not yet
    called Post by the first operation after Start, or Complete, not by Start.

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
        "_late",
        "_locks",
        "_post",
        "_size",
        "_start",
        "_window",
        "_young",
        "access",
        "passive",
    )

    def __init__(self, window: Window, young: Young | None = None) -> None:
        self._young = young  # None once that is over
        self.access: set[int] = set()
        self.passive: set[int] = set()
        self._window = window
        self._size = window._group.size
        self._fence = _NO
        self._start: list[int] | None = None  # ranks
        self._late = False  # rmaext's start is still to come
        self._post = False
        self._locks: dict[int, bool] = {}  # rank; whether there is a lock below
        self._all: bool | None = None  # likewise; None: no Lock_all

    # -- operations ------------------------------------------------------------------

    def enter(self, call: str, rank: Any) -> None:
        """Let an operation on a rank begin, or raise ERR_RMA_SYNC."""
        number = self._check_rank(call, rank)
        if number in self.access:
            return
        if self._fence == _MAYBE:
            self._fence = _YES
            self.access.update(range(self._size))
        elif self._late:
            self._begin()
        elif number != _PROC_NULL or not self._is_open():
            _refuse(call, f"there is no epoch in which rank {number} may be accessed")
        if number != _PROC_NULL and number not in self.access:
            _refuse(call, f"rank {number} is not among those of Start")

    def enter_passive(self, call: str, rank: Any) -> None:
        """Check that a rank is locked."""
        if rank in self.passive:
            return
        number = self._check_rank(call, rank)
        if number not in self.passive and not (number == _PROC_NULL and self.passive):
            _refuse(call, f"rank {number} is not locked")

    def enter_passive_all(self, call: str) -> None:
        """Check that a rank is locked, any."""
        if not self.passive:
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
            self._begin()
        try:
            self._window.complete()
        finally:
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
        self._window.post(ranks)
        self._post = True

    def wait(self) -> None:
        """Wait."""
        if not self._post:
            _refuse("Wait", "there was no Post")
        self._window.wait()
        self._post = False

    def test(self) -> bool:
        """Test."""
        if not self._post:
            _refuse("Test", "there was no Post")
        done = self._window.test()
        self._post = not done
        return done

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
        elif not locks and (self._fence or self._start is not None or self._all is not None):
            self._no_access("Lock")
        if self._young is not None:
            self._begin_to_use([rank])
        locks[rank] = real  # from here on other threads are refused
        if real:
            try:
                self._window.lock(rank, exclusive)
            except BaseException:
                del locks[rank]
                raise
        self.passive.add(rank)
        self.access.add(rank)

    def unlock(self, rank: Any) -> None:
        """Unlock."""
        real = self._locks.get(rank)
        if real is None:
            number = self._check_rank("Unlock", rank)
            _refuse("Unlock", f"rank {number} is not locked")
        self.access.discard(rank)
        self.passive.discard(rank)
        try:
            if real:
                self._window.unlock(rank)
            else:
                self._window.flush(rank)
        finally:
            del self._locks[rank]

    def lock_all(self, assertion: int) -> None:
        """Lock_all."""
        _check_assertion("Lock_all", assertion, MPI.MODE_NOCHECK)
        self._no_access("Lock_all")
        self._begin_to_use(range(self._size))
        if not assertion:
            self._window.lock_all()
        self._all = not assertion
        self.passive.update(range(self._size))
        self.access.update(self.passive)

    def unlock_all(self) -> None:
        """Unlock_all."""
        if self._all is None:
            _refuse("Unlock_all", "there was no Lock_all")
        self.access.clear()
        self.passive.clear()
        try:
            if self._all:
                self._window.unlock_all()
            else:
                self._window.flush()
        finally:
            self._all = None

    # -- helpers ---------------------------------------------------------------------

    def _begin_to_use(self, ranks: Iterable[int]) -> None:
        """Tell the others that this rank's memory is ready; wait for theirs, but not long."""
        young = self._young
        if young is not None:
            young.begin()
            young.wait(rank for rank in ranks if rank != _PROC_NULL)
            if young.over:
                self._young = None

    def _is_open(self) -> bool:
        return bool(self.access) or self._start is not None

    def _accesses(self) -> bool:
        """Whether this rank has begun an epoch of access other than by Fence."""
        return bool(self._locks) or self._start is not None or self._all is not None

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
