# SPDX-License-Identifier: BSD-3-Clause
"""The first locks of a window of new memory wait for the target to have initialised it.

Programs write into such memory right after Allocate, and others lock the window without a
barrier in between (mpi4py's demo nxtval-mpi3 is one). With MPI that works: MPI grants a
lock when the target calls MPI again. rmaext needs no call of the target, so a lock would
come too early: it waits until the target begins its first epoch, or until the window is
GRACE seconds old.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._native._lib import ffi

if TYPE_CHECKING:
    from .._window.window import Window

__all__ = ["FirstLocks"]

GRACE = 0.1
_NAP = 1e-4


class FirstLocks:
    """Which ranks have begun to use a window.

    Each rank says so in its own notification counter 0, which no window of
    this package uses otherwise.
    """

    def __init__(self, window: Window[Any]) -> None:
        self._window = window
        self._until = time.monotonic() + GRACE
        self._place = window._notify_place()
        self._own = window._counters()
        self._begun = {window._group.rank}

    def begin(self) -> None:
        """Say that this rank has initialised its memory."""
        self._own[0] = 1

    @property
    def over(self) -> bool:
        """Whether no rank need be waited for any more."""
        return time.monotonic() > self._until

    def wait(self, ranks: Iterable[int]) -> None:
        """Wait for ranks to begin, but not long."""
        for rank in ranks:
            while not self.over and not self._has_begun(rank):
                time.sleep(_NAP)

    def _has_begun(self, rank: int) -> bool:
        if rank not in self._begun:
            block: Any = self._window._block
            here = block.maps[rank]
            if here:
                word = ffi.cast("int64_t *", here)[self._place]
            else:
                word = block.window.get(rank, block.base + self._place, 1)[0]
            if word:
                self._begun.add(rank)
        return rank in self._begun
