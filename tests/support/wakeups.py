# SPDX-License-Identifier: BSD-3-Clause
"""Waits for locks that end only if the waiter is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rmaext._sync import entering

LATE = 40  # s


def only_told(change: Callable[[Any, str, Any], None]) -> None:
    """Let nobody who waits for a lock look by himself for LATE seconds; `change` is setattr."""
    once = entering.Entering._await_wakeup

    def until_told(self: Any, state: entering.State, told: int, seconds: float) -> None:
        if seconds == entering._FAR_JOINS:  # a writer that only tries keeps it out for a moment
            return once(self, state, told, seconds)
        end = time.monotonic() + LATE
        while state.wakeups() == told and time.monotonic() < end:
            once(self, state, told, 0.1)

    change(entering.Entering, "_await_wakeup", until_told)
    change(entering, "_NAP", LATE * entering.NS)
