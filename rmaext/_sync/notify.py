# SPDX-License-Identifier: BSD-3-Clause
"""Notified access, and waiting for changes of this rank's own memory."""

from __future__ import annotations

import errno
import math
import operator
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from .._native._lib import ffi, lib
from .._ops.arguments import behind, named, no_integer, told
from .._ops.core import Array, Place
from .._ops.index_key import Part
from .._ops.keyed import KeyedRequests, check_alone
from .._ops.request import Request, done_at_once
from .._runtime.failures import from_c, not_for
from .._runtime.reports import dtype_name, recorded_site
from ..errors import BoundsError, Unsupported
from ..typing import Comparison, ScalarT
from .waiting import COMPARISONS, Wait, Waits, block_words, memory_word

__all__ = ["Notifications"]

_SLOTS = int(lib.RMAEXT_NOTIFY)
_MOST = 2**63 - 1


class Notifications(KeyedRequests[ScalarT], Waits[ScalarT]):
    """Notified access of `Window`.

    Each rank has 256 counters in each window. Origins count them up, each time
    after their data; the rank itself takes off what it has waited for.
    put_notify, wait_notify and test_notify are those of csrc/python/notify.c, which come
    here with all that is not plain or not there yet.
    """

    _counted: Array | None = None  # the counters of this rank, once they were asked for

    # -- origins -------------------------------------------------------------------

    @behind
    def _put_notify(
        self, origin: Any, rank: int, offset: int = 0, slot: int = 0, *, key: Any = None
    ) -> None:
        notified = self._notified("put_notify", origin, rank, offset, slot, key)
        if notified is not None:
            self._put_then_notify("put_notify", *notified)

    @behind
    def _rput_notify(
        self, origin: Any, rank: int, offset: int = 0, slot: int = 0, *, key: Any = None
    ) -> Request:
        call = "rput_notify"
        notified = self._notified(call, origin, rank, offset, slot, key)
        if notified is None:
            return done_at_once(None)
        (target, first, count), part, array, number = notified
        if not count or not self._is_far(target):
            self._put_then_notify(call, *notified)
            if self._routes[target] != lib.RMAEXT_DIRECT:
                self.flush(target)
            return done_at_once(None)
        self._sends(target, number)
        if part is not None:
            return self._begin_part(call, lib.RMAEXT_PUT, target, part, array, number + 1)
        where, unit = np.array([first]), self._dtype.itemsize
        return self._begin_runs(call, lib.RMAEXT_PUT, target, where, unit, array, number + 1, count)

    def _notified(
        self, call: str, origin: Any, rank: Any, offset: Any, slot: Any, key: Any
    ) -> tuple[Place, Part | None, Array, int] | None:
        """Check the arguments of a put that notifies; None: nobody is to be notified.

        Returns the place, or the part that a key names, what goes there, and the slot.
        """
        self._check_open(call)
        number = self._slot(call, slot)
        if key is None:
            array = arrays.origin(origin, self._dtype, self._timeout)
            place = self._place(call, rank, offset, array.size)
            return None if place is None else (place, None, array, number)
        check_alone(call, offset)
        target, part, array = self._part_to_put(call, origin, rank, key)
        return None if part is None else ((target, 0, array.size), part, array, number)

    def _put_then_notify(
        self, call: str, place: Place, part: Part | None, array: Array, slot: int
    ) -> None:
        """Put, and notify in the same step if one can do both, else once the data is there."""
        target, first, count = place
        alone = part is not None or self._divided
        if count and part is not None:
            self._put_part(target, part, array)
        elif count and alone:
            self.put(array, target, first)
        if count and alone:
            self.flush(target)  # a notification by itself could overtake it
        self._notify(call, place, slot, np.empty(0, self._dtype) if alone else array)

    @told
    def get_notify(
        self,
        rank: int,
        offset: int = 0,
        count: int | None = None,
        slot: int = 0,
        out: NDArray[ScalarT] | None = None,
    ) -> NDArray[ScalarT]:
        """Read from a rank's window, then count one up in one of its slots.

        So the target learns that its data was read, and may be overwritten.

        Parameters
        ----------
        rank, offset, count, out
            As for `get`.
        slot : int
            0 to 255, of the target.

        Returns
        -------
        numpy.ndarray
            As `get`.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, RmaTimeout, PeerLostError
            As `get`; then nobody is notified.

        Notes
        -----
        Local, blocking; the notification is complete at the target after `flush`.
        Corresponds to gaspi_read_notify, told to the other side.

        Examples
        --------
        >>> win.get_notify(0, 0, 3, slot=1)
        array([0., 0., 0.])
        >>> win.wait_notify(1)  # the target knows that it was read
        1
        """
        self._check_open("get_notify")
        number = self._slot("get_notify", slot)
        result = self.get(rank, offset, count, out)
        place = self._place("get_notify", rank, offset, math.prod(result.shape))
        if place is not None:
            self._notify("get_notify", place, number, np.empty(0, self._dtype))
        return result

    def _sends(self, rank: int, slot: int) -> None:
        """Have the record say from where a slot is notified first. What comes later is C's."""
        if lib.rmaext_record_sends(self._handle, rank, slot, ffi.NULL):
            lib.rmaext_record_sends(self._handle, rank, slot, recorded_site())

    def _notify(self, call: str, place: Place, slot: int, array: Array) -> None:
        """Put the array, if it has elements, and count one up."""
        if not array.size:
            place = (place[0], 0, 0)  # a notification alone needs no place
        self._sends(place[0], slot)
        what = arrays.move_call(lib.RMAEXT_PUT, array)
        what.notify = 1 + slot
        self._run_whole(call, place, (array,), what)

    # -- the target ----------------------------------------------------------------

    @named
    def _wait_notify(self, slot: int, count: int = 1, timeout: float | None = None) -> int:
        self._check_open("wait_notify")
        number = self._slot("wait_notify", slot)
        where = f"wait_notify: window {self._name}, slot {number}"
        wanted = _count(where, count)
        wait = Wait(self, where, timeout, None)
        taking = _Taking(self)
        try:
            with wait.patience:
                while True:
                    if taking.take(number, wanted, wait.slice()):
                        return taking.seen()
                    wait.go_on(lib.RMAEXT_PENDING)
        except BaseException:
            taking.give_back()
            raise

    @named
    def _test_notify(self, slot: int, count: int = 1) -> bool:
        self._check_open("test_notify")
        number = self._slot("test_notify", slot)
        wanted = _count(f"test_notify: window {self._name}, slot {number}", count)
        if self._fabric is not None:
            self._fabric.serve(0)
        taking = _Taking(self)
        try:
            return taking.take(number, wanted)
        except BaseException:
            taking.give_back()
            raise

    def wait_any(self, slots: Iterable[int], timeout: float | None = None) -> int:
        """Wait until one of several slots of this rank has counted, and take one off.

        Parameters
        ----------
        slots : iterable of int
            0 to 255. Of those that have counted the first is taken.
        timeout : float, optional
            Seconds; by default there is no limit while the peers live.

        Returns
        -------
        int
            The slot.

        Raises
        ------
        RmaTimeout, PeerLostError
            As `wait_notify`; nothing was taken.

        Notes
        -----
        Local, blocking. Corresponds to gaspi_notify_waitsome with
        gaspi_notify_reset, and to shmem_wait_until_any.

        Examples
        --------
        >>> win.put_notify([], rank=0, slot=5)
        >>> win.wait_any([4, 5])
        5
        """
        wanted = self._slots("wait_any", slots)
        wait = self._waiter("wait_any", wanted, timeout)
        taking = _Taking(self)
        try:
            while True:
                found = taking.take_any(wanted)
                if found is not None:
                    return found
                wait(False)
        except BaseException:
            taking.give_back()
            raise

    def wait_some(self, slots: Iterable[int], timeout: float | None = None) -> list[int]:
        """Wait until any of several slots of this rank has counted; take one off each that has.

        Parameters and errors are those of `wait_any`.

        Returns
        -------
        list of int
            The slots, at least one, in the order given.

        Notes
        -----
        Local, blocking. Corresponds to shmem_wait_until_some.

        Examples
        --------
        >>> for slot in 2, 5:
        ...     win.put_notify([], rank=0, slot=slot)
        >>> win.wait_some([5, 4, 2])
        [5, 2]
        """
        wanted = self._slots("wait_some", slots)
        wait = self._waiter("wait_some", wanted, timeout)
        taking = _Taking(self)
        try:
            while True:
                taken = taking.take_some(wanted)
                if taken:
                    return taken
                wait(False)
        except BaseException:
            taking.give_back()
            raise

    def wait_all(self, slots: Iterable[int], timeout: float | None = None) -> None:
        """Wait until each of several slots of this rank has counted, and take one off each.

        Parameters and errors are those of `wait_any`. A slot that is named twice must
        have counted twice.

        Notes
        -----
        Local, blocking. Corresponds to shmem_wait_until_all.

        Examples
        --------
        >>> for slot in 2, 5:
        ...     win.put_notify([], rank=0, slot=slot)
        >>> win.wait_all([2, 5])
        """
        wanted = self._slots("wait_all", slots)
        wait = self._waiter("wait_all", wanted, timeout)
        taking = _Taking(self)
        try:
            # Another thread may have taken some meanwhile: then wait again for all.
            while True:
                if taking.take_all(wanted):
                    return
                taking.give_back()
                wait(True)
        except BaseException:
            taking.give_back()
            raise

    def notify_counts(self) -> Array:
        """Return what the slots of this rank have counted, and no wait has taken.

        Returns
        -------
        numpy.ndarray
            256 elements of int64; a copy.

        Notes
        -----
        Local, not blocking.

        Examples
        --------
        >>> win.put_notify([], rank=0, slot=2)
        >>> win.notify_counts()[:4]
        array([0, 0, 1, 0])
        """
        self._check_open("notify_counts")
        if self._fabric is not None:
            self._fabric.serve(0)
        return self._counters().copy()

    @told
    def wait_until(
        self, offset: int, comparison: Comparison, value: Any, timeout: float | None = None
    ) -> Any:
        """Wait until an element of this rank's window has a certain value.

        Parameters
        ----------
        offset : int
            The element.
        comparison : {"==", "!=", "<", "<=", ">", ">="}
            Of the element with the value.
        value : scalar
            Of the window's dtype: bool, integer or real, of 8 bytes at most.
        timeout : float, optional
            Seconds; by default there is no limit while the peers live.

        Returns
        -------
        NumPy scalar
            What was there when the comparison held.

        Raises
        ------
        BoundsError, TypeError, OverflowError, ValueError
            On arguments that do not fit.
        Unsupported
            The dtype is no such word.
        AlignmentError
            The window's memory is not aligned to the item size.
        RmaTimeout, PeerLostError
            As `wait_notify`.

        Notes
        -----
        Local, blocking. It spins for some 50 microseconds, then it sleeps; updates,
        flushes and notifications by others wake it, and what came by the network.
        What changes unseen, as a put of this node before its flush or a store through
        `peer_view`, is noticed within a millisecond. To look once, use `local`.
        Corresponds to shmem_wait_until.

        Only the element itself is waited for: other data is there for sure if its
        origin flushed it before it changed the element.

        Examples
        --------
        >>> win.put(3.0, rank=0, offset=1)
        >>> win.flush()
        >>> win.wait_until(1, ">=", 2.0)
        np.float64(3.0)
        """
        self._check_open("wait_until")
        if comparison not in COMPARISONS:
            raise ValueError(f"wait_until: {comparison!r} is none of {', '.join(COMPARISONS)}")
        if self._in_pieces:
            raise not_for(self, "wait_until")
        place: Any = self._place("wait_until", self._group.rank, offset, 1)
        where = self._where("wait_until", place)
        dtype = self._dtype
        type_ = arrays.atomic_type(dtype)
        if type_ is None or dtype.kind not in "biuf" or dtype.itemsize > 8:
            raise Unsupported(errno.EOPNOTSUPP, f"{where}: no word of dtype {dtype_name(dtype)}")
        wanted = arrays.origin(value, dtype)
        if wanted.size != 1:
            raise ValueError(f"{where}: one value, not {wanted.size}")
        first = self._byte(place[1])
        conditions = memory_word(first, comparison, wanted, type_)
        self._wait(where, conditions, timeout=timeout)
        raw = int(conditions[0].seen).to_bytes(8, sys.byteorder)
        return np.frombuffer(raw, dtype, 1)[0]

    # -- helpers -------------------------------------------------------------------

    def _slot(self, call: str, slot: Any) -> int:
        try:
            number = operator.index(slot)
        except TypeError:
            raise TypeError(f"{call}: window {self._name}: {no_integer(slot=slot)}") from None
        if not 0 <= number < _SLOTS:
            text = f"{call}: window {self._name} has slots 0 to {_SLOTS - 1}, not {slot}"
            raise BoundsError(errno.ERANGE, text, call=call)
        return number

    def _slots(self, call: str, slots: Iterable[int]) -> list[int]:
        self._check_open(call)
        numbers = [self._slot(call, slot) for slot in slots]
        if not numbers:
            raise ValueError(f"{call}: window {self._name}: no slots")
        return numbers

    def _notify_place(self) -> int:
        places = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(self._group.size, places)
        return int(places.notify)

    def _counters(self) -> Array:
        if self._counted is None:
            assert self._block is not None, "only hidden windows have none"
            own = ffi.cast("int64_t *", self._block.maps[self._group.rank])
            data = ffi.buffer(own + self._notify_place(), 8 * _SLOTS)
            self._counted = np.frombuffer(data, np.int64)
        return self._counted

    def _waiter(self, call: str, slots: list[int], timeout: float | None) -> Any:
        """Return a function that waits until any, or every, slot has counted as often as named."""
        place = self._notify_place()
        wanted = Counter(slots)
        every = block_words((place + slot, ">=", n) for slot, n in wanted.items())
        some = block_words((place + slot, ">=", 1) for slot in wanted)
        names = ", ".join(map(str, wanted))
        wait = Wait(self, f"{call}: window {self._name}, slots {names}", timeout, None)

        def go(all_of_them: bool) -> None:
            self._wait_on(wait, every if all_of_them else some, every=all_of_them)

        return go


class _Taking:
    """What a wait takes off the slots, to be given back if it ends by an exception.

    A signal handler may raise between any two lines. A wait returns what it took
    from within the `try` whose `except` gives back.
    """

    def __init__(self, window: Notifications[Any]) -> None:
        self._handle, self._name = window._handle, window._name
        self._taken: list[tuple[int, int, Any]] = []

    def take(self, slot: int, count: int, ns: int = 0) -> bool:
        """Take so many off a slot, after waiting for so long; or nothing."""
        seen = ffi.new("int64_t *")  # C sets it when it has taken them
        self._taken.append((slot, count, seen))
        code = lib.rmaext_notify_wait(self._handle, slot, count, ns, seen)
        if not code:
            return True
        self._taken.pop()
        if code != lib.RMAEXT_PENDING:
            raise from_c(code, f"notifications of window {self._name}, slot {slot}")
        return False

    def take_any(self, slots: Iterable[int]) -> int | None:
        """Take one off the first slot that has any, and return that slot."""
        for slot in slots:
            if self.take(slot, 1):
                return slot
        return None

    def take_some(self, slots: Iterable[int]) -> list[int]:
        """Take one off each slot that has any, and return those slots."""
        return [slot for slot in slots if self.take(slot, 1)]

    def take_all(self, slots: Iterable[int]) -> bool:
        """Take one off each slot; return whether all had one. If not, some may be taken."""
        return all(self.take(slot, n) for slot, n in Counter(slots).items())

    def seen(self) -> int:
        """Return what the slot had that was taken from last."""
        return int(self._taken[-1][2][0])

    def give_back(self) -> None:
        """Give all back, once."""
        try:
            self._return()
        except BaseException:  # the next signal
            self._return()
            raise

    def _return(self) -> None:
        for taken in self._taken:
            lib.rmaext_notify_return(self._handle, *taken)
        self._taken.clear()


def _count(where: str, count: Any) -> int:
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"{where}: {no_integer(count=count)}") from None
    if not 0 < number <= _MOST:
        raise ValueError(f"{where}: count {count} is not positive")
    return number
