# SPDX-License-Identifier: BSD-3-Clause
"""Locks that a signal handler may take again, and that are free in a forked child.

The thread that holds a lock when another one forks is not there in the child: without
this nobody would ever release it there. And calls that a signal handler's exception must not
leave half done: see `rmaext._native.cmethods`.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from .._native.cmethods import apart, locked, to_the_end, within
from ..errors import BusyError

__all__ = ["alone", "apart", "forks", "lock", "locked", "to_the_end", "within"]

_T = TypeVar("_T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forks = [0]


def lock() -> threading.RLock:
    """Return a new lock: for what there are few of, as it is entered in a list."""
    made = threading.RLock()
    _locks.add(made)
    return made


def alone(lock: threading.RLock, call: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function, one thread at a time. No interruption leaves the lock locked.

    In a signal handler that has interrupted such a call, of the same lock, it is BusyError:
    what the function changes may be changed halfway.
    """
    return locked(lock, partial(_busy, call), function, *arguments)


def _busy(call: str) -> NoReturn:
    text = f"{call}: called in a signal handler within another call of the same object: "
    text += "note there what is to be done, and do it outside"
    raise BusyError(errno.EBUSY, text, call=call)


def forks() -> int:
    """Return how often this process was forked off since this was imported: for all other locks."""
    return _forks[0]


def _forked() -> None:
    _forks[0] += 1
    for one in list(_locks):
        one._at_fork_reinit()  # as threading and logging do


os.register_at_fork(after_in_child=_forked)
