# SPDX-License-Identifier: BSD-3-Clause
"""The vector clock of this process: what has happened before what it does now."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._runtime import locks

__all__ = ["BUSY", "NEVER", "Clock", "Times", "alone", "clock"]

_Method = TypeVar("_Method", bound=Callable[..., Any])
Times = NDArray[np.int64]
NEVER = (1 << 62) - 1  # the time of what is not complete


class _Busy(threading.local):
    """Whether this thread is inside a call that is followed, or whose accesses are noted."""

    now = False
    noted = False


BUSY = _Busy()


class Clock:
    """A time for each rank of MPI.COMM_WORLD.

    Attributes
    ----------
    me : int
        This process's rank in MPI.COMM_WORLD.
    part : int
        How often it gave its times to others, or took theirs. Within a part of the program
        the others cannot tell when an access began.
    now : numpy.ndarray
        The times that this process knows of. It is never changed in place, so that whoever
        keeps it has the times of that moment.
    """

    def __init__(self) -> None:
        self.me = MPI.COMM_WORLD.rank
        self.lock = locks.lock()
        self.part = 0
        self.now: Times = np.zeros(MPI.COMM_WORLD.size, np.int64)
        self.tick()

    def tick(self) -> int:
        """Let the own time pass; return what it is then."""
        with self.lock:
            now = self.now.copy()
            now[self.me] += 1
            self.now = now
            return int(now[self.me])

    def release(self) -> Times:
        """Return the times to be passed on. What completes later is not among them."""
        with self.lock:
            given = self.now
            self.part += 1
            self.tick()
            return given

    def acquire(self, *times: Any) -> None:
        """Note that what others did before these times has happened."""
        with self.lock:
            self.part += 1
            self.now = np.maximum.reduce([self.now, *times])


def alone(method: _Method) -> _Method:
    """Let one thread at a time be in a method, or in others that are so."""

    @functools.wraps(method)
    def locked(*args: Any, **keywords: Any) -> Any:
        with clock().lock:
            return method(*args, **keywords)

    return locked  # type: ignore[return-value]


_own: list[Clock] = []


def clock() -> Clock:
    """Return the clock of this process."""
    if not _own:
        _own.append(Clock())
    return _own[0]
