# SPDX-License-Identifier: BSD-3-Clause
"""Objects whose elements lie in the memory of a device, which no process reads or writes."""

from __future__ import annotations

import errno
import math
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from .._native._lib import lib
from .._runtime import config
from .._runtime.locks import locked
from .._runtime.reports import until_copied
from ..errors import RmaError, RmaTimeout, Unsupported

__all__ = [
    *("DeviceArray", "Landing", "check_reachable", "device_of", "is_mapped", "landed"),
    *("of_cuda", "out_of_reach"),
]

# Copies that looks at requests have begun, and that have not ended. Of the streams that are
# prepared (csrc/memory/stream.c) they leave two: no look pins memory, nor has others pin it.
_MOST = 2
_CUDA = "__cuda_array_interface__"
# of __dlpack_device__; None: the host can access it
_DEVICES = {1: None, 2: "cuda", 3: None, 10: "rocr", 11: None, 13: None, 14: "ze"}


def device_of(it: Any) -> str | None:
    """Return whose memory an object lies in; None: the host's, or it is no array.

    Only attributes are looked at, the memory is not: what a device has behind an address is
    something else of this process, or nothing, and reading it ends the process.
    """
    if isinstance(it, (np.ndarray, np.generic)):
        return None
    if hasattr(type(it), "__dlpack_device__"):  # first: PyTorch's arrays on the host have both
        number = int(it.__dlpack_device__()[0])
        return _DEVICES.get(number, f"DLPack's number {number}")
    has = hasattr(type(it), _CUDA) or hasattr(it, _CUDA)  # asked of the object only if need be
    return "cuda" if has else None


def is_mapped(it: Any) -> bool:
    """Return whether this process can read an array that is said to be on a device.

    So it is with CUDA's managed memory. What cudaMalloc returns is none of this process's
    mappings, or one that may not be read.
    """
    facts = getattr(it, _CUDA, None)
    if not isinstance(facts, dict):
        return False
    start = facts["data"][0]
    end = start + np.dtype(facts["typestr"]).itemsize * math.prod(facts["shape"])
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    for line in lines:
        where, rights, _ = line.split(maxsplit=2)
        first, last = (int(part, 16) for part in where.split("-"))
        if first <= start < last and rights[0] == "r":
            start = last
        if first >= end:
            break
    return bool(start >= end)


def out_of_reach(it: Any) -> str:
    """Return why an object cannot be used that lies on a device, and how to go on; or ""."""
    kind = device_of(it)
    if kind is None:
        return ""
    name = f"{type(it).__module__}.{type(it).__qualname__}"
    text = f"a {name} lies in the memory of a device ({kind}), which is not reached here: "
    text += "copy it to the host (cupy.asnumpy(a), a.get(), a.cpu()), or take memory "
    return text + "that the host can access, too"


def check_reachable(it: Any) -> None:
    """Raise Unsupported for what lies on a device."""
    if text := out_of_reach(it):
        raise Unsupported(errno.EOPNOTSUPP, text)


def of_cuda(it: Any) -> Any:
    """Return what handles arrays in CUDA's memory, if one is given; None: the host's.

    Raises
    ------
    Unsupported
        It lies on a device of another kind.
    """
    kind = device_of(it)
    if kind is None:
        return None
    if kind != "cuda":
        check_reachable(it)
    from . import cuda  # late: most programs have none

    return cuda


class DeviceArray(np.ndarray):
    """Where an array lies, for what asks addresses and shapes; nobody may read its elements.

    Attributes
    ----------
    given : object
        The array itself, of CuPy, PyTorch or others.
    number : int
        Of its device.
    handle : cdata
        C's, of the device.
    """

    given: Any = None
    number = -1
    handle: Any = None

    def __array_finalize__(self, of: Any) -> None:
        if isinstance(of, DeviceArray):
            self.given, self.number, self.handle = of.given, of.number, of.handle


def _in_time(lock: Any, seconds: float) -> Any:
    """Return a lock for `locked`, which has StopIteration if it is not to be had in that time."""
    # no line of Python, at which a signal handler might raise, has the lock in its hands
    acquire = filter(None, map(lock.acquire, [True], [seconds])).__next__
    return SimpleNamespace(acquire=acquire, release=lock.release, _is_owned=lock._is_owned)


class Landing(np.ndarray):
    """Where a result comes to that is for an array on a device.

    Attributes
    ----------
    given : object
        The array on the device; None: this is a part of another one.
    number : int
        Of its device.
    limit : float or None
        The time limit of the window, in seconds; None: RMAEXT_TIMEOUT.
    lock : threading.RLock
        Of those who copy it there, one at a time.
    way : cuda.Passage or None
        By which it is copied just now.
    is_there : bool
        Whether nobody is to copy it any more.
    begun : float
        When somebody has had the lock last.
    asked : float or None
        When a look wanted it to be copied, and there were too many others; or when the last of
        these was begun, if that was later.
    late : RmaTimeout or None
        Of a copy that was late when it was looked at, by whomever: see `overdue`.
    """

    given: Any = None
    number: int
    limit: float | None
    lock: Any
    way: Any = None
    is_there = False
    begun: float
    asked: float | None = None
    late: RmaTimeout | None = None
    # what looks have begun to copy, by its id; and when the last of them was
    looked: ClassVar[weakref.WeakValueDictionary[int, Landing]] = weakref.WeakValueDictionary()
    newest: ClassVar[float] = 0.0

    @classmethod
    def of(cls, given: Any, number: int, host: Any, limit: float | None) -> Landing:
        """Return an array of the host as one for an array on a device."""
        made: Landing = host.view(cls)
        made.given, made.number, made.limit = given, number, limit
        made.lock = threading.RLock()  # a forked child has no use for it
        made.begun = time.monotonic()
        return made

    def copy_there(self, ns: int) -> bool:
        """Go on with copying it for so long at most; return whether it is there.

        Several threads, and a signal handler at any line here, may call this: none copies it when
        it is already there, where the program may have written to the array since. After an error
        it begins anew.
        """
        copy = partial(self._copy, ns)
        try:
            return locked(_in_time(self.lock, ns / 1e9), copy, copy)
        except StopIteration:
            limit = config.timeout_seconds(self.limit)
        if time.monotonic() - self.begun < limit:
            return False
        text = f"the result for an array of device {self.number}: another thread has been in its "
        text += f"copy for {limit:g} s: is it in a signal handler, or in the array's __dlpack__?"
        raise RmaTimeout(errno.ETIMEDOUT, text)

    def _copy(self, ns: int) -> bool:
        self.begun = time.monotonic()
        way = self.way
        if not self.is_there and (way is None or way.stream is None):
            from . import cuda

            if not ns and not self._may_begin():
                return False
            way = self.way = cuda.Passage(self.given, self.limit)
            if not ns:
                Landing.looked[id(self)], Landing.newest = self, time.monotonic()
        # a handler amid this has had it copied by its own passage, or goes on with this one
        if not self.is_there and way.begin(ns) and not self.is_there:
            way.copy(True, self)
            if way.wait(ns):
                self.is_there = True
        if self.is_there:
            self.way = None
            Landing.looked.pop(id(self), None)
        return self.is_there

    def _may_begin(self) -> bool:
        """Let a look begin the copy, unless too many are under way that others have begun.

        Each has pinned memory of its own. Whoever waits may always.
        """
        if len(Landing.looked) >= _MOST:
            for found in Landing.looked.valuerefs():  # a list: other threads change it meanwhile
                other = found()
                if other is None:
                    continue
                way = other.way
                if way is None or way.stream is None:
                    Landing.looked.pop(id(other), None)
                    continue
                try:
                    other.copy_there(0)
                except RmaTimeout as exc:  # whose limit begins anew: none but this look has it
                    other.late = exc.with_traceback(None)
                except RmaError:
                    pass  # which is the other's, and comes again
        now = time.monotonic()
        if len(Landing.looked) < _MOST:
            self.asked = None
            return True
        self.asked = now if self.asked is None else max(self.asked, Landing.newest)
        limit = config.timeout_seconds(self.limit)
        if now - self.asked < limit:
            return False
        self.asked = None
        text = f"the result for an array of device {self.number}: {_MOST} others are copied since "
        text += f"{limit:g} s: are kernels still at work there? Wait for their requests"
        raise RmaTimeout(errno.ETIMEDOUT, text)

    def overdue(self) -> RmaTimeout | None:
        """Return, once, the RmaTimeout of a copy that was late at any look: for who waits."""
        late, self.late = self.late, None
        return late

    def give_up(self, end: Callable[[], object]) -> bool:
        """End the request that it is for, and copy no more; False: it is copied just now."""
        try:
            return locked(_in_time(self.lock, 0), bool, self._give_up, end)
        except StopIteration:
            return False

    def _give_up(self, end: Callable[[], object]) -> bool:
        end()
        self.is_there = True  # for others, who wait yet
        way, self.way = self.way, None
        Landing.looked.pop(id(self), None)
        if way is not None:
            way.close()
        return True


def landed(result: Any, end: float = math.inf) -> Any:
    """Return a result, or the array on a device that has it then; RmaTimeout at `end`. Blocking."""
    if type(result) is not Landing:
        return result
    result.overdue()  # at an earlier look
    if not result.copy_there(0):
        until_copied(result.number, partial(_is_there, result, end))
    return result.given


def _is_there(result: Landing, end: float) -> bool:
    """Go on with a copy until signal handlers may run, or the end."""
    left = max(0, min(lib.RMAEXT_SLICE, (end - time.monotonic()) * 1e9))
    if result.copy_there(int(left)):
        return True
    late = result.overdue()
    if late is not None:
        raise late
    if time.monotonic() >= end:
        text = f"the result is not on cuda:{result.number} yet: is a kernel still at work there? "
        raise RmaTimeout(errno.ETIMEDOUT, text + "It goes on: wait for it again")
    return False
