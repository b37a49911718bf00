# SPDX-License-Identifier: BSD-3-Clause
"""What MPI says to errors: the classes of rmaext's exceptions, and who is told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from mpi4py import MPI

from .. import errors

if TYPE_CHECKING:
    from .win import Win

__all__ = ["RAISED", "error", "report", "translated", "translation"]

P = ParamSpec("P")
T = TypeVar("T")

_LOST = MPI.ERR_PROC_FAILED if MPI.ERR_PROC_FAILED > 0 else MPI.ERR_OTHER

# the first that fits counts
_CLASSES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ClosedError, MPI.ERR_WIN),
    (errors.SyncError, MPI.ERR_RMA_SYNC),
    (errors.BoundsError, MPI.ERR_RMA_RANGE),
    (errors.AttachError, MPI.ERR_RMA_ATTACH),
    (errors.NotLocalError, MPI.ERR_RMA_SHARED),
    (errors.AlignmentError, MPI.ERR_DISP),
    (errors.AccessError, MPI.ERR_RMA_RANGE),
    (errors.Unsupported, MPI.ERR_OP),
    (errors.PeerLostError, _LOST),
    (errors.RmaError, MPI.ERR_OTHER),
    (MemoryError, MPI.ERR_NO_MEM),
)

RAISED: tuple[type[BaseException], ...] = (MPI.Exception, errors.RmaError, MemoryError)


def error(code: int, words: str) -> MPI.Exception:
    """Return an error of MPI, with words of our own beside those of its class."""
    exception = MPI.Exception(code)
    exception.__cause__ = errors.RmaError(code, words)
    return exception


def translation(cause: BaseException) -> MPI.Exception | None:
    """Return what MPI raises in place of an exception of rmaext; None: the same."""
    if isinstance(cause, MPI.Exception):
        return cause
    for kind, code in _CLASSES:
        if isinstance(cause, kind):
            exception = MPI.Exception(code)
            exception.__cause__ = cause
            return exception
    return None


def translated(
    method: Callable[Concatenate[Win, P], T],
) -> Callable[Concatenate[Win, P], T]:
    """Let a method of Win report the errors of rmaext as MPI does."""

    @functools.wraps(method)
    def call(self: Win, /, *args: P.args, **keywords: P.kwargs) -> T:
        try:
            return method(self, *args, **keywords)
        except RAISED as exc:
            report(self, exc)

    return call


def report(win: Win, cause: BaseException) -> NoReturn:
    """Tell the window's error handler, and raise."""
    exception = translation(cause)
    if exception is None:
        raise cause
    if win:
        win._attributes.handle(win, exception.error_code)
    raise exception
