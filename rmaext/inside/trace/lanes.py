# SPDX-License-Identifier: BSD-3-Clause
"""Distributes the events of a thread over tracks, in each of which they nest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST", "distribute", "shorten"]

MOST = 16  # tracks of a thread


def distribute(
    begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the track of each event, from 0 on, and where it ends in it.

    An operation that goes on while its thread does others takes the first track in which
    it nests. Where all are taken, the last one shows it cut off.
    """
    lane, end = np.zeros(len(begin), np.int64), end.copy()
    order = np.lexsort((-end, begin))
    b, e = begin[order], end[order]
    if not len(b):
        return lane, end
    # those that begin when all before have ended need no other look
    latest = np.maximum.accumulate(e)
    apart = np.append(True, b[1:] >= latest[:-1])
    alone = apart & np.append(apart[1:], True)
    stacks: list[list[int]] = []
    for i in np.flatnonzero(~alone).tolist():
        start, stop = int(b[i]), int(e[i])
        for stack in stacks:
            while stack and stack[-1] <= start:
                stack.pop()
        free = (n for n, stack in enumerate(stacks) if not stack or stop <= stack[-1])
        number = next(free, len(stacks))
        if number == MOST:
            number -= 1
            stop = end[order[i]] = stacks[number][-1]
        elif number == len(stacks):
            stacks.append([])
        stacks[number].append(stop)
        lane[order[i]] = number
    return lane, end


def shorten(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each event ends, at the latest when the next one of all begins."""
    order = np.argsort(begin, kind="stable")
    cut = end.copy()
    cut[order[:-1]] = np.minimum(end[order[:-1]], begin[order[1:]])
    return cut
