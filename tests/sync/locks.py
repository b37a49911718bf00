# SPDX-License-Identifier: BSD-3-Clause
"""What tests of locks and epochs share."""

from __future__ import annotations

import time


def until(condition, limit=20):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.001)


def add_one(win, rank):
    """Not atomic."""
    value = win.get(rank, 0, 1)
    win.put(value + 1, rank, 0)
