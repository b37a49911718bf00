# SPDX-License-Identifier: BSD-3-Clause
"""Words of messages; and what a wait says: where the program is, and that it has lasted long."""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .._native._lib import lib
from .log import log

__all__ = [
    *("OF_A_DEVICE", "copying", "until_copied", "windows"),
    *("Patience", "Waiting", "described", "dtype_name", "numbers", "place", "site"),
    *("container", "container_call", "recorded_site", "tell", "waited"),
]

WARN_AFTER = 10.0  # seconds
_WHY = "`python -m rmaext why` shows who waits for whom"
_RECORD_EVERY = 0.1
_HERE = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}{os.sep}"
_CONTAINERS = "rmaext.containers."
OF_A_DEVICE = "a copy from or to an array of "  # begins the words of such a wait
windows: weakref.WeakSet[Any] = weakref.WeakSet()  # C's, those of rmaext's own


def numbers(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return what a program calls a dtype: int64, not <i8; U8; record (x: float64; 8 bytes).

    Fields have their places where these are others than one after another.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{dtype_name(base)}{list(shape)}"
    if dtype.fields is not None:
        parts, end = [], 0
        for name in dtype.names or ():
            field, offset = dtype.fields[name][:2]
            parts.append(f"{name}: {dtype_name(field)}" + (f" at {offset}" * (offset != end)))
            end = offset + field.itemsize
        return f"record ({', '.join(parts)}; {dtype.itemsize} bytes)"
    if not dtype.isnative:
        order = "big" if sys.byteorder == "little" else "little"
        return f"{order}-endian {dtype_name(dtype.newbyteorder('='))} ({dtype.str!r})"
    return dtype.str[1:] if dtype.kind in "SUV" else str(dtype)


def _is_ours(frame: Any) -> bool:
    """Tell whether a frame is of this package, or of what it calls itself by."""
    module = frame.f_globals.get("__name__")
    ours = frame.f_code.co_filename.startswith((_HERE, "<frozen"))
    return ours or module in ("collections", "contextlib")


def place(frame: Any = None) -> tuple[str, int]:
    """Return where the program is, outside of this package: path and line; "" if nowhere."""
    frame = frame or sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def site() -> str:
    """Return the same as "app.py:41"."""
    path, line = place()
    return f"{os.path.basename(path)}:{line}" if path else ""


def container_call() -> str:
    """Return the call of a container that the program is in, as "Dict.len"; "" if it is in none.

    "TaskQueue loop" is what its iterator does.
    """
    frame: Any = sys._getframe(1)
    found = ""
    while frame is not None and _is_ours(frame):
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith(_CONTAINERS) and not kind.__name__.startswith("_"):
            found, call = kind.__name__, frame.f_code.co_name
            if call.startswith("_") and not call.startswith("__"):
                found += " loop"
            elif call != "__init__":
                found += f".{call.strip('_')}"
        frame = frame.f_back
    return found


def container() -> str:
    """Return the container whose call the program is in, as "Dict"; "" if it is in none."""
    return container_call().replace(" ", ".").partition(".")[0]


def recorded_site() -> bytes:
    """Return where the program is, as records have room for: "/home/you/app.py:41"."""
    path, line = place()
    return f"{path}:{line}".encode(errors="replace")[-127:] if path else b""


def record(what: str) -> None:
    """Have the record of a wait that lasts say what it is, and where the program is."""
    lib.rmaext_record_tell(recorded_site(), what.encode(errors="replace")[:63])


def tell(hints: Sequence[str]) -> None:
    """Log hints, which are not worth an error where stderr is closed."""
    if not getattr(sys.stderr, "closed", True):
        for hint in hints:
            log.warning("rmaext: %s (RMAEXT_HINTS=0: no hints)", hint)


def _raised_at(error: BaseException) -> str:
    """Return the last line of the program that an exception came through."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith(_HERE):
            found = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def described(error: BaseException) -> str:
    """Return an exception in words, with the place that raised it."""
    words = type(error).__name__
    with suppress(Exception):
        words = f"{words}: {error}" if str(error) else words
    at = _raised_at(error) or site()
    return f"{words[:200]}, {at}" if at else words[:200]


class Patience:
    """Of one wait: once it lasts, the record says where the program is.

    When it has lasted long it is reported once, to `logging`, unless its limit is shorter: then
    only this process was held up. As a context it has the record say that the wait is over, if
    an exception ends it outside of C.
    """

    __slots__ = ("_next", "_told", "since")

    def __init__(self, limit: float = math.inf) -> None:
        self.since = self._next = time.monotonic()
        self._told = limit < WARN_AFTER

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            lib.rmaext_record_quit()

    def look(self, what: str, whom: Callable[[], Sequence[int] | None], hint: str = "") -> None:
        """Report it, if it is time: the call and its window, and the ranks waited for.

        `hint` says more, where these cannot be known.
        """
        now = time.monotonic()
        if now >= self._next:  # again: it may be another rank now that is waited for
            self._next = now + _RECORD_EVERY
            record(what)
        if self._told or now - self.since < WARN_AFTER:
            return
        self._told = True
        ranks = whom()
        call = container_call()
        text = what if what.startswith(call) else f"{call}, {what}"
        text += f" at {at}" if (at := site()) else ""
        text += f": has waited {WARN_AFTER:g} s"
        text += f" for {numbers(ranks)}" if ranks else ""
        log.warning("%s", f"{text} {hint}" if hint else f"{text}; {_WHY}")


def _unfollowed(what: str) -> None:
    pass


follow_wait: Callable[[str], None] = _unfollowed  # or what traces it; "": the wait is over


class Waiting(Patience):
    """A container's wait of many steps, in its own words: one wait in the record, until `waited`.

    Parameters
    ----------
    window : Window
        One of the container's.
    what : str
        "TaskQueue loop", "Dict.pop, for ...".
    """

    __slots__ = ("_what", "_where")

    def __init__(self, window: Any, what: str) -> None:
        super().__init__()
        self._what, self._where = what, window._root._handle

    def goes_on(self, ranks: Sequence[int] = ()) -> None:
        """Say so, before the next step; for a rank if it is one, else for any."""
        rank = ranks[0] if len(ranks) == 1 else -1
        follow_wait(self._what)
        lib.rmaext_record_waits(self._where, lib.RMAEXT_IN_CONTAINER, rank, 0)
        self.look(self._what, lambda: ranks)


@contextmanager
def copying(number: int) -> Iterator[None]:
    """Have the record say that this thread waits for a copy of a device, if there are windows."""
    window = next(iter(windows), None)  # C wants one, and no reader asks which it is
    if window is None:
        yield
        return
    follow_wait(f"copy of cuda:{number}")
    lib.rmaext_record_waits(window, lib.RMAEXT_IN_CONTAINER, -2, number)
    record(f"{OF_A_DEVICE}cuda:{number}")
    try:
        yield
    finally:
        waited()


def until_copied(number: int, ended: Callable[[], bool]) -> None:
    """Wait until a copy of a device has ended, and have the record say so meanwhile."""
    with copying(number):
        _until(ended)  # a function: see tests/support/jumps.py


def _until(ended: Callable[[], bool]) -> None:
    while not ended():
        pass


def waited() -> None:
    """End the container's wait that this thread is in, if any."""
    lib.rmaext_record_waited(lib.RMAEXT_IN_CONTAINER, 0)
    follow_wait("")
