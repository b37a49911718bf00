# SPDX-License-Identifier: BSD-3-Clause
"""Interpreter exit, MPI.Finalize and fork.

Two hooks for the end, because either alone is too late in one case: `atexit`
runs before mpi4py finalizes MPI from Py_AtExit, but after an explicit
MPI.Finalize(); the attribute of COMM_SELF is deleted by an explicit
MPI.Finalize(), but after the interpreter is gone when it comes from Py_AtExit.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

__all__ = ["ending", "on_exit", "on_fork"]

_at_exit: list[Callable[[], None]] = []
_at_fork: weakref.WeakSet[Any] = weakref.WeakSet()
_state = {"keyval": MPI.KEYVAL_INVALID, "pid": os.getpid(), "ending": 0}


def ending() -> bool:
    """Tell whether MPI must not be called any more."""
    return bool(_state["ending"]) or MPI.Is_finalized()


def _run() -> None:
    if os.getpid() != _state["pid"]:
        return  # a forked child: the endpoints are its parent's
    _state["ending"] = 1
    while _at_exit:
        _at_exit.pop()()


def on_exit(function: Callable[[], None]) -> None:
    """Run a function before arrays are freed and MPI is finalized; last in, first out."""
    if _state["keyval"] == MPI.KEYVAL_INVALID:
        _state["keyval"] = MPI.Comm.Create_keyval(delete_fn=lambda *_: _run())
        MPI.COMM_SELF.Set_attr(_state["keyval"], True)
        atexit.register(_run)
    _at_exit.append(function)


def on_fork(thing: Any) -> None:
    """Call thing.forget() in forked children."""
    _at_fork.add(thing)


def _forked() -> None:
    for thing in list(_at_fork):
        thing.forget()


os.register_at_fork(after_in_child=_forked)
