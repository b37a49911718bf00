# SPDX-License-Identifier: BSD-3-Clause
"""What a wait says of itself: where the program is, and that it has lasted long."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Patience", "described", "numbers", "site"]

WARN_AFTER = 10.0  # seconds
_HERE = f"{Path(__file__).parent.parent}{os.sep}"
_log = logging.getLogger("rmaext")


def numbers(ranks: Sequence[int]) -> str:
    """Return ranks in words."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def site() -> str:
    """Return where the program is, outside of this package: "app.py:41"; "" if nowhere."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
        if not path.startswith((_HERE, "<frozen")) and module != "contextlib":
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _raised_at(error: BaseException) -> str:
    """Return the last line of the program that an exception came through."""
    found, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not path.startswith(_HERE):
            found = f"{Path(path).name}:{trace.tb_lineno}"
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
    """Of one wait: it is reported once, to `logging`, when it has lasted long."""

    __slots__ = ("_told", "since")

    def __init__(self) -> None:
        self.since, self._told = time.monotonic(), False

    def look(self, what: str, whom: Callable[[], Sequence[int] | None]) -> None:
        """Report it, if it is time: the call and its window, and the ranks waited for."""
        if self._told or time.monotonic() - self.since < WARN_AFTER:
            return
        self._told = True
        ranks = whom()
        text = f"{what}: has waited {WARN_AFTER:g} s"
        text += f" for {numbers(ranks)}" if ranks else ""
        _log.warning("%s", f"{text} at {at}" if (at := site()) else text)
