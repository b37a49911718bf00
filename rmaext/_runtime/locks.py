# SPDX-License-Identifier: BSD-3-Clause
"""Locks that a signal handler may take again, and that are free in a forked child.

The thread that holds a lock when another one forks is not there in the child: without
this nobody would ever release it there. `within` and `apart` are for what a signal handler's
exception must not leave half done.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from .._native.cmethods import apart, within

__all__ = ["apart", "forks", "lock", "within"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forks = [0]


def lock() -> threading.RLock:
    """Return a new lock: for what there are few of, as it is entered in a list."""
    made = threading.RLock()
    _locks.add(made)
    return made


def forks() -> int:
    """Return how often this process was forked off since this was imported: for all other locks."""
    return _forks[0]


def _forked() -> None:
    _forks[0] += 1
    for one in list(_locks):
        one._at_fork_reinit()  # as threading and logging do


os.register_at_fork(after_in_child=_forked)
