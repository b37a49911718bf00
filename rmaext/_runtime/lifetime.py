# SPDX-License-Identifier: BSD-3-Clause
"""Interpreter exit, MPI.Finalize and fork.

Two hooks for the end, because either alone is too late in one case: `atexit`
runs before mpi4py finalizes MPI from Py_AtExit, but after an explicit
MPI.Finalize(); the attribute of COMM_SELF is deleted by an explicit
MPI.Finalize(), but after the interpreter is gone when it comes from Py_AtExit.
"""

from __future__ import annotations

import atexit
import errno
import os
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from mpi4py import MPI

from .._native._lib import lib
from ..errors import ClosedError
from . import locks, mpi_progress

__all__ = [
    *("OfProcess", "check", "ending", "mortal", "on_end", "on_exit", "on_finalize", "on_raised"),
]

T = TypeVar("T", bound="OfProcess")
M = TypeVar("M")

_at_exit: list[Callable[[], None]] = []
_mortal: weakref.WeakSet[Any] = weakref.WeakSet()
_finalizers: list[Callable[[], None]] = []
_tellers: list[Callable[[BaseException], None]] = []
_state = {"keyval": MPI.KEYVAL_INVALID, "pid": os.getpid(), "ending": 0, "child": 0}


def ending() -> bool:
    """Tell whether MPI must not be called any more."""
    return bool(_state["ending"] or _state["child"]) or MPI.Is_finalized()


def check(call: str) -> None:
    """Raise ClosedError, before MPI ends the process for it, where MPI cannot be used."""
    if _state["child"]:
        why = "this process was forked from one that had initialised MPI"
    elif ending():
        why = "MPI is finalized, or this process is about to exit"
    else:
        return
    raise ClosedError(errno.ESHUTDOWN, f"{call}: {why}", call=call)


def _run() -> None:
    if os.getpid() != _state["pid"]:
        return  # a forked child: the endpoints are its parent's
    live = not _state["ending"] and not MPI.Is_finalized()
    raised = _raised() if live else None
    try:
        if raised is not None and not _is_interactive():
            for tell in _tellers:
                with suppress(Exception):  # what ended the program is more important
                    tell(raised)
        lib.rmaext_record_leave(lib.RMAEXT_LEAVES)
        if live and raised is None:
            for finalize in _finalizers:
                finalize()
    except KeyboardInterrupt:
        pass  # it ends all the same
    finally:
        _shut_down()


def _shut_down() -> None:
    _state["ending"] = 1
    mpi_progress.end()
    try:
        while True:
            if not _at_exit:
                break
            _at_exit.pop()()
    finally:  # Ctrl-C in one of them
        if _at_exit:
            _run()
    _forget()


def _raised() -> BaseException | None:
    """Return the exception that ends this program, if one does; pytest leaves traces of others."""
    last: BaseException | None = getattr(sys, "last_value", None)
    return None if isinstance(last, SystemExit) else last


def _is_interactive() -> bool:
    """Tell whether the last exception may be one that a session went on after."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def _forget() -> None:
    for thing in list(_mortal):
        thing._forget()


def _hook() -> None:
    # arrays may be made before MPI is initialised, and after its end
    if _state["keyval"] == MPI.KEYVAL_INVALID and MPI.Is_initialized() and not ending():
        _state["keyval"] = MPI.Comm.Create_keyval(delete_fn=lambda *_: _run())
        MPI.COMM_SELF.Set_attr(_state["keyval"], True)


def on_exit(function: Callable[[], None]) -> None:
    """Run a function before arrays are freed and MPI is finalized; last in, first out."""
    _hook()
    _at_exit.append(function)


def on_finalize(function: Callable[[], None], first: bool = False) -> None:
    """Run a function at the end of the program, before all others; not after an exception.

    `first`: before those that wait for other ranks.
    """
    _finalizers.insert(0 if first else len(_finalizers), function)


def on_raised(function: Callable[[BaseException], None], first: bool = False) -> None:
    """Run a function with the exception that ends the program, before others lose this rank."""
    _tellers.insert(0 if first else len(_tellers), function)


def on_end(thing: Any) -> None:
    """Call thing._forget() after those functions, and in forked children."""
    _hook()
    _mortal.add(thing)


def mortal(kind: type[M]) -> list[M]:
    """Return the things of a kind that `on_end` was called with, and that are still there."""
    return [thing for thing in list(_mortal) if isinstance(thing, kind)]


class OfProcess:
    """What a process has one of. Its `close` is called when the process leaves."""

    _own: ClassVar[Any] = None
    _lock: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        cls._lock = locks.lock()

    @classmethod
    def own(cls: type[T]) -> T:
        """Return this process's, made on first use, there until the process ends."""
        with cls._lock:
            if cls._own is None:
                made = cls()
                on_exit(made.close)
                on_end(made)
                cls._own = cls._own or made  # a signal handler may have been faster
            own: T = cls._own
            return own

    def close(self) -> None:
        """End what others see of it."""
        raise NotImplementedError

    def _forget(self) -> None:
        """After the end, or in a forked child, which may begin one of its own."""
        type(self)._own = None


def _forked() -> None:
    _at_exit.clear()  # what they would close is the parent's
    mpi_progress.forked()
    _state["child"] = MPI.Is_initialized()
    if not _state["child"]:
        _state["pid"] = os.getpid()  # it may initialise MPI itself
    _forget()


# The last in is the first out: what the program registers once this module is imported still
# finds everything, and another rank may wait for what it does.
atexit.register(_run)
os.register_at_fork(after_in_child=_forked)
