# SPDX-License-Identifier: BSD-3-Clause
"""RMAEXT_COMPAT=warn: a line on stderr for each place that calls what differs from MPI's."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["DIFFERENCES", "report_differences"]

_HANDLE = "the number stands for the window in this process only; MPI, C and Fortran do not know it"
_HINTS = "hints are checked and kept, and change nothing"
_REQUEST = (
    "the request is done when the data is at the target; with less than MPI_THREAD_MULTIPLE "
    "the call waits for that"
)
_SHARED = "the memory is in one piece, the ranks' parts one after another, whatever info says"

# The lines of docs/guides/drop-in.md that a correct program might notice.
DIFFERENCES = {
    "handle": _HANDLE,
    "fromhandle": _HANDLE,
    "toint": _HANDLE,
    "fromint": _HANDLE,
    "py2f": _HANDLE,
    "f2py": _HANDLE,
    "Set_info": _HINTS,
    "info": _HINTS,
    "Rput": _REQUEST,
    "Rget": _REQUEST,
    "Raccumulate": _REQUEST,
    "Rget_accumulate": _REQUEST,
    "Allocate_shared": _SHARED,
}

_seen: set[tuple[str, int, str]] = set()


def report_differences(win: type) -> None:
    """Let a class Win report, once a place, the calls in DIFFERENCES."""
    for name, text in DIFFERENCES.items():
        its = inspect.getattr_static(win, name)  # some are those of C, which it inherits
        if isinstance(its, property):
            setter = its.fset and _reporting(its.fset, name, text)
            new: Any = property(_reporting(its.fget, name, text), setter, doc=its.__doc__)
        elif isinstance(its, classmethod):
            new = classmethod(_reporting(its.__func__, name, text))
        else:
            new = _reporting(its, name, text)
        setattr(win, name, new)


def _reporting(function: Any, name: str, text: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        caller = sys._getframe(1)
        place = (caller.f_code.co_filename, caller.f_lineno, name)
        own = caller.f_globals.get("__name__", "").startswith("rmaext.")
        if not own and place not in _seen:
            _seen.add(place)
            print(f"{place[0]}:{place[1]}: MPI.Win.{name}: {text}", file=sys.stderr, flush=True)
        return function(*args, **keywords)

    return call
