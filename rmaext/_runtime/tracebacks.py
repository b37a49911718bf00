# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of an error: the program's frames, and at most two of rmaext's at a time.

Nothing is done where exceptions are raised or caught: they are as Python made them, for debuggers
and for whoever logs them. Only the two hooks by which Python shows an exception that ends the
program, or a thread, show less of it, and pytest is told which frames to hide, by its own protocol.
"""

from __future__ import annotations

import dis
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from .config import whole_tracebacks

__all__ = ["hide", "install"]

_HERE = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}{os.sep}"
_RAISE = dis.opmap["RAISE_VARARGS"]
_MOST = 2  # frames of ours in a row
_HINT = "(frames of rmaext are left out: RMAEXT_TRACEBACK=full shows them)"


def install() -> None:
    """Have the hooks of Python, and those that the program has set by now, show less."""
    if whole_tracebacks():
        return
    shown, shown_of_thread = sys.excepthook, threading.excepthook

    def excepthook(
        kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        with _cut(value) as hint:
            shown(kind, value, None if value is None else value.__traceback__)
        _tell(hint)

    def thread_excepthook(report: Any) -> None:
        value = report.exc_value
        with _cut(value) as hint:
            trace = None if value is None else value.__traceback__
            report = (report.exc_type, value, trace, report.thread)
            shown_of_thread(threading.ExceptHookArgs(report))
        _tell(hint)

    sys.excepthook, threading.excepthook = excepthook, thread_excepthook


def hide() -> None:
    """Have pytest hide the frames of the modules that are loaded, of errors that we raise."""
    if whole_tracebacks():
        return
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "rmaext":
            vars(module)["__tracebackhide__"] = _hidden


def _hidden(excinfo: Any) -> bool:
    frames = [] if excinfo is None else list(_frames(excinfo.value))
    return not all(map(_is_ours, frames)) and _is_raised(frames[-1])


def _tell(hint: bool) -> None:
    if hint and sys.stderr is not None:
        print(_HINT, file=sys.stderr)


@contextmanager
def _cut(error: BaseException | None) -> Iterator[bool]:
    """Let an exception, and those that it comes from, have fewer frames.

    Gives whether that hides where something has failed that we do not raise ourselves.
    """
    whole: list[tuple[BaseException, TracebackType | None]] = []
    hint = False
    try:
        for one in _related(error):
            whole.append((one, one.__traceback__))
            shown, hides = _shown(one, one is not error)
            one.__traceback__ = _linked(shown)
            hint |= hides
        yield hint
    finally:
        for one, trace in whole:
            one.__traceback__ = trace


def _related(error: BaseException | None) -> Iterator[BaseException]:
    """Return an exception, its causes, and those of a group."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            left += [one.__cause__, one.__context__]
            left += [it for it in getattr(one, "exceptions", ()) if isinstance(it, BaseException)]
            yield one


def _shown(error: BaseException, related: bool) -> tuple[list[TracebackType], bool]:
    """Return the frames to show of an exception, and whether some would be asked for."""
    frames = list(_frames(error))
    if all(map(_is_ours, frames)) and not related:  # a command of ours, which has failed
        return frames, False
    shown: list[TracebackType] = []
    hides = False
    ours = _of_ours(frames)
    for mine, run in itertools.groupby(frames, key=lambda frame: ours[id(frame)]):
        part = list(run)
        at_end = part[-1] is frames[-1]
        if mine and at_end and shown and _is_raised(part[-1]):
            break  # the program's line, and our words for what is wrong in it
        hides |= mine and at_end and len(part) > _MOST and not _is_raised(part[-1])
        shown += part[-_MOST:] if mine else part
    return shown, hides


def _of_ours(frames: list[TracebackType]) -> dict[int, bool]:
    """Tell which frames are ours: those of contextlib within ours are, too."""
    found: dict[int, bool] = {}
    mine = False
    for frame in frames:
        inside = mine and frame.tb_frame.f_globals.get("__name__") == "contextlib"
        mine = inside or _is_ours(frame)
        found[id(frame)] = mine
    return found


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_HERE)


def _is_raised(frame: TracebackType) -> bool:
    """Tell whether we have raised an error here, by the statement, and not met it."""
    return _is_ours(frame) and frame.tb_frame.f_code.co_code[frame.tb_lasti] == _RAISE


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for frame in reversed(frames):
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return trace
