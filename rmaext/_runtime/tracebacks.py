# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of an error: the program's frames, and at most two of rmaext's at a time.

Nothing is done where exceptions are raised or caught: they are as Python made them, for debuggers
and for whoever logs them. Only the two hooks by which Python itself prints an exception that ends
the program, or a thread, show less of it, and pytest is told which frames to hide, by its own
protocol. A hook that the program has set is the program's.
"""

from __future__ import annotations

import dis
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from .config import whole_tracebacks

__all__ = ["hide", "install"]

_HERE = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}{os.sep}"
_LIBRARY = os.path.dirname(os.__file__)
_PACKAGES = tuple(f"{os.sep}{it}-packages{os.sep}" for it in ("site", "dist"))
_RAISE = dis.opmap["RAISE_VARARGS"]
_MOST = 2  # frames of ours in a row
_HINT = "(frames of rmaext are left out: RMAEXT_TRACEBACK=full shows them)"
_cutting = threading.Lock()  # exceptions that have fewer frames for a moment are of one thread


def install() -> None:
    """Have Python's own hooks show less."""
    if whole_tracebacks():
        return
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _show_of_thread


def _show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    _show_less(value, trace, lambda shown: sys.__excepthook__(kind, value, shown))


def _show_of_thread(report: Any) -> None:
    kind, value, trace, thread = report

    def show(shown: TracebackType | None) -> None:
        threading.__excepthook__(threading.ExceptHookArgs((kind, value, shown, thread)))

    _show_less(value, trace, show)


def _show_less(
    value: BaseException | None,
    trace: TracebackType | None,
    show: Callable[[TracebackType | None], None],
) -> None:
    """Show an exception, once, while it and those that it comes from have fewer frames.

    As it is, where another thread shows one, where its frames are not those that shall be shown,
    and where it is too odd to be looked into.
    """
    if value is None or trace is not value.__traceback__ or not _cutting.acquire(blocking=False):
        show(trace)
        return
    whole: list[tuple[BaseException, TracebackType | None]] = []
    hint = False
    try:
        try:
            for one in _related(value):
                frames, hides = _shown(one, one is not value)
                cut = _linked(frames)
                whole.append((one, one.__traceback__))
                one.__traceback__ = cut
                hint |= hides
        except Exception:
            hint = False
            _restore(whole)
        show(value.__traceback__)
    finally:
        _restore(whole)
        _cutting.release()
    if hint and sys.stderr is not None:
        print(_HINT, file=sys.stderr)


def _restore(whole: list[tuple[BaseException, TracebackType | None]]) -> None:
    for one, trace in whole:
        one.__traceback__ = trace


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


def _related(error: BaseException | None) -> Iterator[BaseException]:
    """Return an exception, its causes, and those of a group."""
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            left += [one.__cause__, one.__context__]
            group = getattr(one, "exceptions", ())  # of a group; or anything of that name
            left += [it for it in group if isinstance(it, BaseException)]
            yield one


def _shown(error: BaseException, related: bool) -> tuple[list[TracebackType], bool]:
    """Return the frames to show of an exception, and whether some would be asked for."""
    frames = list(_frames(error))
    if not related and not any(map(_is_of_program, frames)):  # a command or a thread of ours
        return frames, False
    shown: list[TracebackType] = []
    hides = False
    ours = _of_ours(frames)
    for mine, run in itertools.groupby(frames, key=lambda frame: ours[id(frame)]):
        part = list(run)
        raised = part[-1] is frames[-1] and _is_raised(part[-1])
        if mine and raised and any(map(_is_of_program, shown)):
            break  # the program's line, and our words for what is wrong in it
        hides |= mine and len(part) > _MOST
        shown += part[-_MOST:] if mine else part
    # who has written the last line shown has no use for what lies between
    return shown, hides and not _is_of_program(frames[-1])


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


def _is_of_program(frame: TracebackType) -> bool:
    """Tell whether a frame is neither ours, nor Python's, nor of a package."""
    path = frame.tb_frame.f_code.co_filename
    packaged = path.startswith(("<frozen", _LIBRARY)) or any(it in path for it in _PACKAGES)
    compiled = path.endswith((".pyx", ".pxi", ".pyd"))
    return not (packaged or compiled or _is_ours(frame))


def _is_raised(frame: TracebackType) -> bool:
    """Tell whether we have raised an error here, by the statement, and not met it."""
    return _is_ours(frame) and frame.tb_frame.f_code.co_code[frame.tb_lasti] == _RAISE


def _linked(frames: list[TracebackType]) -> TracebackType | None:
    trace: TracebackType | None = None
    for frame in reversed(frames):
        line = -1 if frame.tb_lineno is None else frame.tb_lineno
        trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, line)
    return trace
