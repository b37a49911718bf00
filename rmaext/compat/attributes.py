# SPDX-License-Identifier: BSD-3-Clause
"""What a window has beside memory: attributes, hints, a name, an error handler."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import mpi4py
from mpi4py import MPI

from .errors import Error, error
from .numbers import integer

if TYPE_CHECKING:
    from .win import Win

__all__ = ["Attributes", "Keyval", "MpiWin", "create_errhandler", "create_keyval", "free_keyval"]

T = TypeVar("T")

MpiWin = MPI.Win  # before anybody replaces it

# of the hints that MPI-4.1 gives a meaning
_HINTS = {
    "no_locks": "false",
    "accumulate_ordering": "rar,raw,war,waw",
    "accumulate_ops": "same_op_no_op",
    "mpi_accumulate_granularity": "0",
    "same_size": "false",
    "same_disp_unit": "false",
}
_ERRORS = {  # of mpi4py.rc.errors
    "exception": MPI.ERRORS_RETURN,
    "default": MPI.ERRORS_ARE_FATAL,
    "abort": MPI.ERRORS_ABORT,
    "fatal": MPI.ERRORS_ARE_FATAL,
}


class Keyval(NamedTuple):
    """A key of attributes."""

    delete: Callable[[Win, int, Any], object] | None
    nopython: bool


_keyvals: dict[int, Keyval] = {}
_failed = threading.local()  # .win: whose error handler is being called


def create_keyval(delete: Callable[[Win, int, Any], object] | None, nopython: bool) -> int:
    """Return a new key, which MPI uses for nothing else."""
    keyval = MpiWin.Create_keyval()
    _keyvals[keyval] = Keyval(delete, nopython)
    return keyval


def free_keyval(keyval: int) -> int:
    """Forget a key; attributes with it stay until they are deleted."""
    number = integer(keyval)
    _keyval(number)
    del _keyvals[number]
    return MpiWin.Free_keyval(number)


def _keyval(keyval: int) -> Keyval:
    found = _keyvals.get(integer(keyval))
    if found is None:
        raise error(MPI.ERR_KEYVAL, f"{keyval} is no key of a window's attributes")
    return found


def create_errhandler(function: Callable[[Win, int], None]) -> MPI.Errhandler:
    """Return a new error handler."""
    # MPI knows who has it, and when nobody has any more; it is called through a window of MPI
    return MpiWin.Create_errhandler(lambda _, code: function(_failed.win, code))


class Attributes:
    """What a window has beside memory.

    Attributes
    ----------
    fixed : dict
        Predefined attributes, by key.
    hints : dict
    name : str
    group : MPI.Group
    """

    __slots__ = ("_comm", "_handler", "_values", "fixed", "group", "hints", "name", "rank", "size")

    def __init__(self, comm: MPI.Comm, info: MPI.Info, fixed: dict[int, int]) -> None:
        self.fixed = fixed
        self.hints = dict(_HINTS)
        self.set_info(info)
        self.name = ""
        self.group = comm.Get_group()
        self.rank, self.size = comm.rank, comm.size
        self._handler = _ERRORS[mpi4py.rc.errors]
        self._values: dict[int, tuple[Keyval, Any]] = {}

    def end(self, win: Win) -> None:
        """Call what is to be called when a window goes, the last attribute first."""
        for keyval in reversed(list(self._values)):
            self.delete(win, keyval)

    def release(self) -> None:
        """Let go of what MPI has."""
        if self.group:
            self.group.Free()
        if self._handler and not _predefined(self._handler):
            self._handler.Free()

    # -- attributes --------------------------------------------------------------------

    def get(self, keyval: int) -> Any:
        """Return an attribute; None: not set."""
        number = integer(keyval)
        if number in self.fixed:
            return self.fixed[number]
        if number not in self._values:
            _keyval(number)
            return None
        return self._values[number][1]

    def set(self, win: Win, keyval: int, value: Any) -> None:
        """Set an attribute."""
        keyval, record = integer(keyval), _keyval(keyval)
        if record.nopython and not isinstance(value, int):
            raise TypeError(f"an integer is required, not {value!r}")
        if keyval in self._values:
            self.delete(win, keyval)
        self._values[keyval] = record, value

    def delete(self, win: Win, keyval: int) -> None:
        """Delete an attribute; it is gone even if that fails."""
        keyval = integer(keyval)
        if keyval not in self._values:
            _keyval(keyval)
            raise error(MPI.ERR_OTHER, f"there is no attribute with key {keyval}")
        record, value = self._values.pop(keyval)
        if record.delete is not None:
            try:
                record.delete(win, keyval, value)
            except BaseException as exc:
                # as mpi4py, whose callbacks cannot raise
                traceback.print_exc()
                code = exc.error_code if isinstance(exc, MPI.Exception) else MPI.ERR_OTHER
                raise Error.of(code, exc) from exc

    # -- hints ---------------------------------------------------------------------------

    def set_info(self, info: MPI.Info) -> None:
        """Take over hints."""
        if info != MPI.INFO_NULL:
            self.hints.update((key, value) for key, value in info.items() if key in _HINTS)

    def get_info(self) -> MPI.Info:
        """Return a new object with the hints in use."""
        return MPI.Info.Create(self.hints)

    # -- errors --------------------------------------------------------------------------

    def get_errhandler(self) -> MPI.Errhandler:
        """Return a new reference to the error handler."""
        return _another(self._handler)

    def set_errhandler(self, handler: MPI.Errhandler) -> None:
        """Replace the error handler."""
        if not isinstance(handler, MPI.Errhandler):
            raise TypeError(f"not an MPI.Errhandler: {type(handler).__name__}")
        if handler == MPI.ERRHANDLER_NULL:
            raise error(MPI.ERR_ARG, "the error handler is MPI.ERRHANDLER_NULL")
        new = MPI.Errhandler(handler) if _predefined(handler) else _another(handler)
        old, self._handler = self._handler, new
        if not _predefined(old):
            old.Free()

    def handle(self, win: Win, code: int, words: str = "") -> None:
        """Do with an error code what the error handler does."""
        handler = self._handler
        if handler in (MPI.ERRORS_ARE_FATAL, MPI.ERRORS_ABORT):
            words = words or MPI.Get_error_string(code)
            text = f"Fatal error of {win.name or 'a window'}: {words}"
            print(text, file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(code)
        elif handler != MPI.ERRORS_RETURN:

            def call(real: MPI.Win) -> None:
                real.Set_errhandler(handler)
                _failed.win = win
                real.Call_errhandler(code)

            _with_real(call)


def _predefined(handler: MPI.Errhandler) -> bool:
    return handler in (MPI.ERRORS_RETURN, MPI.ERRORS_ABORT, MPI.ERRORS_ARE_FATAL)


def _another(handler: MPI.Errhandler) -> MPI.Errhandler:
    """Return a further reference; MPI counts them, of predefined ones too."""

    def through(real: MPI.Win) -> MPI.Errhandler:
        real.Set_errhandler(handler)
        return real.Get_errhandler()

    return _with_real(through)


def _with_real(use: Callable[[MPI.Win], T]) -> T:
    """Call a function with a window of MPI."""
    real = MpiWin.Create_dynamic(MPI.INFO_NULL, MPI.COMM_SELF)
    try:
        return use(real)
    finally:
        real.Free()
