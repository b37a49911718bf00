# SPDX-License-Identifier: BSD-3-Clause
"""Which epochs of a window are open on this rank, and what may be called in them.

The rules of MPI-4.1, section 12.5. An epoch belongs to the process, not to a thread.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

from mpi4py import MPI

from .errors import error

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

    __slots__ = ("_all", "_fence", "_late", "_locks", "_post", "_start", "access", "passive")

    def __init__(self) -> None:
        self.access: set[int] = set()
        self.passive: set[int] = set()
        self._fence = _NO
        self._start: list[int] | None = None  # ranks
        self._late = False  # rmaext's start is still to come
        self._post = False
        self._locks: dict[int, bool] = {}  # rank; whether there is a lock below
        self._all: bool | None = None  # likewise; None: no Lock_all

    # -- operations ------------------------------------------------------------------

    def enter(self, window: Any, call: str, rank: Any) -> None:
        """Let an operation on a rank begin, or raise ERR_RMA_SYNC."""
        number = _check_rank(window, call, rank)
        if number in self.access:
            return
        if self._fence == _MAYBE:
            self._fence = _YES
            self.access.update(range(_size(window)))
        elif self._late:
            self._begin(window)
        elif number != _PROC_NULL or not self._is_open():
            _refuse(call, f"there is no epoch in which rank {number} may be accessed")
        if number != _PROC_NULL and number not in self.access:
            _refuse(call, f"rank {number} is not among those of Start")

    def flushing(self, window: Any, call: str, rank: Any) -> int:
        """Check that a rank is locked; return its number."""
        number = _check_rank(window, call, rank)
        if number not in self.passive and not (number == _PROC_NULL and self.passive):
            _refuse(call, f"rank {number} is not locked")
        return number

    def flushing_all(self, call: str) -> None:
        """Check that a rank is locked."""
        if not self.passive:
            _refuse(call, "no rank is locked")

    def may_free(self) -> None:
        """Raise ERR_RMA_SYNC if an epoch has yet to be ended by this rank."""
        if self._locks or self._all is not None or self._start is not None or self._post:
            _refuse("Free", "an epoch is open")

    # -- fence -----------------------------------------------------------------------

    def fence(self, window: Any, assertion: int) -> None:
        """Fence."""
        _check_assertion("Fence", assertion, _FENCE_MODES)
        if self._locks or self._all is not None or self._start is not None or self._post:
            _refuse("Fence", "an epoch of another kind is open")
        window.fence()
        self.access.clear()
        self._fence = _NO if assertion & MPI.MODE_NOSUCCEED else _MAYBE

    # -- start, complete, post, wait --------------------------------------------------

    def start(self, window: Any, group: Any, assertion: int) -> None:
        """Start."""
        _check_assertion("Start", assertion, MPI.MODE_NOCHECK)
        ranks = _members(window, "Start", group)
        self._no_access("Start")
        self._start, self._late = ranks, True

    def complete(self, window: Any) -> None:
        """Complete."""
        if self._start is None:
            _refuse("Complete", "there was no Start")
        if self._late:
            self._begin(window)
        try:
            window.complete()
        finally:
            self._start = None
            self.access.clear()

    def _begin(self, window: Any) -> None:
        """Wait until all have called Post that Start named."""
        ranks = self._start or []
        window.start(ranks)
        self._late = False
        self.access.update(ranks)

    def post(self, window: Any, group: Any, assertion: int) -> None:
        """Post."""
        _check_assertion("Post", assertion, _POST_MODES)
        ranks = _members(window, "Post", group)
        if self._post or self._fence == _YES:
            _refuse("Post", "an epoch in which others may access this rank is open")
        self._fence = _NO
        window.post(ranks)
        self._post = True

    def wait(self, window: Any) -> None:
        """Wait."""
        if not self._post:
            _refuse("Wait", "there was no Post")
        window.wait()
        self._post = False

    def test(self, window: Any) -> bool:
        """Test."""
        if not self._post:
            _refuse("Test", "there was no Post")
        done = bool(window.test())
        self._post = not done
        return done

    # -- locks -----------------------------------------------------------------------

    def lock(self, window: Any, rank: Any, kind: int, assertion: int) -> None:
        """Lock."""
        if kind not in (_SHARED, _EXCLUSIVE):
            raise error(MPI.ERR_LOCKTYPE, f"Lock: {kind} is no type of lock")
        _check_assertion("Lock", assertion, MPI.MODE_NOCHECK)
        number = _check_rank(window, "Lock", rank)
        if number in self._locks:
            _refuse("Lock", f"rank {number} is locked already")
        if not self._locks:
            self._no_access("Lock")
        real = not assertion and number != _PROC_NULL
        if self._locks.setdefault(number, real) is not real:
            _refuse("Lock", f"rank {number} is locked already")
        if real:
            try:
                window.lock(number, kind == _EXCLUSIVE)
            except BaseException:
                self._locks.pop(number, None)
                raise
        self.passive.add(number)
        self.access.add(number)

    def unlock(self, window: Any, rank: Any) -> None:
        """Unlock."""
        number = _check_rank(window, "Unlock", rank)
        real = self._locks.get(number)
        if real is None:
            _refuse("Unlock", f"rank {number} is not locked")
        self.access.discard(number)
        self.passive.discard(number)
        try:
            if real:
                window.unlock(number)
            else:
                window.flush(number)
        finally:
            self._locks.pop(number, None)

    def lock_all(self, window: Any, assertion: int) -> None:
        """Lock_all."""
        _check_assertion("Lock_all", assertion, MPI.MODE_NOCHECK)
        self._no_access("Lock_all")
        if not assertion:
            window.lock_all()
        self._all = not assertion
        self.passive.update(range(_size(window)))
        self.access.update(self.passive)

    def unlock_all(self, window: Any) -> None:
        """Unlock_all."""
        if self._all is None:
            _refuse("Unlock_all", "there was no Lock_all")
        self.access.clear()
        self.passive.clear()
        try:
            if self._all:
                window.unlock_all()
            else:
                window.flush()
        finally:
            self._all = None

    # -- helpers ---------------------------------------------------------------------

    def _is_open(self) -> bool:
        return bool(self.access) or self._start is not None or bool(self._locks)

    def _no_access(self, call: str) -> None:
        """Check that a new epoch of access may begin."""
        open_ = self._locks or self._all is not None or self._start is not None
        if open_ or self._fence == _YES:
            _refuse(call, "an epoch in which this rank accesses others is open")
        self._fence = _NO


def _size(window: Any) -> int:
    return int(window._group.size)


def _refuse(call: str, words: str) -> NoReturn:
    raise error(MPI.ERR_RMA_SYNC, f"{call}: {words}")


def _check_rank(window: Any, call: str, rank: Any) -> int:
    number = operator.index(rank)
    if not 0 <= number < _size(window) and number != _PROC_NULL:
        raise error(MPI.ERR_RANK, f"{call}: there is no rank {number}")
    return number


def _check_assertion(call: str, assertion: int, allowed: int) -> None:
    if operator.index(assertion) & ~allowed:
        raise error(MPI.ERR_ASSERT, f"{call}: assertion {assertion:#x} does not belong here")


def _members(window: Any, call: str, group: Any) -> list[int]:
    if not isinstance(group, MPI.Group):
        raise TypeError(f"{call}: group must be an MPI.Group, not {type(group).__name__}")
    if group == MPI.GROUP_NULL:
        raise error(MPI.ERR_GROUP, f"{call}: group is MPI.GROUP_NULL")
    own = window._group.comm.Get_group()
    ranks: list[int] = MPI.Group.Translate_ranks(group, list(range(group.size)), own)
    own.Free()
    if MPI.UNDEFINED in ranks:
        raise error(MPI.ERR_GROUP, f"{call}: a member of the group has no part in the window")
    return ranks
