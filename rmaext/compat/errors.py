# SPDX-License-Identifier: BSD-3-Clause
"""What MPI says to errors: the classes of rmaext's exceptions, and who is told."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from mpi4py import MPI

from .. import errors
from .._runtime import locks

if TYPE_CHECKING:
    from .win import Win

__all__ = [
    *("RAISED", "Error", "checked", "code_of", "error", "library", "report"),
    *("translated", "translation"),
]

P = ParamSpec("P")
T = TypeVar("T")

# mpi4py gives classes that the MPI lacks the number of ERR_UNKNOWN
_HAS_LOST = MPI.ERR_PROC_FAILED > 0 and MPI.ERR_PROC_FAILED != MPI.ERR_UNKNOWN
_LOST = MPI.ERR_PROC_FAILED if _HAS_LOST else MPI.ERR_OTHER

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


class Error(MPI.Exception):
    """An MPI.Exception with words of rmaext's in place of those of its class."""

    words: str

    @classmethod
    def of(cls, code: int, cause: BaseException) -> Error:
        """Return that of an error class, with the words of an exception."""
        self = cls(code)
        self.words = getattr(cause, "strerror", None) or str(cause) or MPI.Get_error_string(code)
        self.__cause__ = cause
        return self

    def __str__(self) -> str:
        return self.words

    def Get_error_string(self) -> str:  # noqa: N802
        """Return the words."""
        return self.words

    @property
    def error_string(self) -> str:
        """Error string."""
        return self.words


def error(code: int, words: str) -> MPI.Exception:
    """Return an error of MPI, with words of our own."""
    return Error.of(code, errors.RmaError(code, words))


def translation(cause: BaseException) -> MPI.Exception | None:
    """Return what MPI raises in place of an exception of rmaext; None: the same."""
    if isinstance(cause, MPI.Exception):
        return cause
    for kind, code in _CLASSES:
        if isinstance(cause, kind):
            return Error.of(code, cause)
    return None


@functools.cache
def library() -> ctypes.CDLL:
    """Return MPI's functions, to be called without the GIL.

    A thread that is inside MPI may hold a lock of it, and call a function of the program.
    """
    return ctypes.CDLL(MPI.__file__)


_MOST = 64  # codes of a class: MPI has few, and keeps them
_codes: dict[int, list[int]] = {}  # by class, the one that is used next first
_coding = locks.lock()


def code_of(cause: BaseException) -> int:
    """Return a code for MPI to raise in place of an exception, with its words.

    The 64th exception of a class from this one on takes the code for its own.
    """
    found = translation(cause) or Error.of(MPI.ERR_OTHER, cause)
    words = str(found).encode(errors="replace")[: MPI.MAX_ERROR_STRING - 1]
    words = words.decode(errors="ignore").encode()  # no half of a character
    kind: Any = found.error_class
    with _coding:
        codes = _codes.setdefault(kind, [])
        if len(codes) < _MOST:
            made = ctypes.c_int()
            checked(library().MPI_Add_error_code(kind, ctypes.byref(made)))
            code = made.value
        else:
            code = codes.pop(0)
        codes.append(code)
        checked(library().MPI_Add_error_string(code, words))
    return code


def checked(code: int) -> None:
    """Raise the error of a function of MPI, if it returned one."""
    if code:
        raise MPI.Exception(code)


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
        win._attributes.handle(win, exception.error_code, str(exception))
    raise exception
