# SPDX-License-Identifier: BSD-3-Clause
"""The barrier of ranks that share no memory (csrc/xfer/network_barrier.c)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime.failures import check
from ..errors import RmaError

__all__ = ["NetworkBarrier"]

_SETTLE = 0.05  # seconds


class NetworkBarrier:
    """Where the ranks of a communicator meet by the network.

    `window` is the hidden one over the control blocks; each rank has this barrier's memory in
    it, which is `own` on this one, from byte `at` on.
    """

    def __init__(self, window: Any, own: NDArray[np.int64], at: int, name: int) -> None:
        made = ffi.new("rmaext_network_barrier **")
        pointer = ffi.from_buffer(own)
        check(lib.rmaext_network_barrier_open(window._handle, pointer, at, name, made))
        self.handle, self._window, self._own, self._at = made[0], window, own, at
        self._offset = ffi.new("uint64_t *")
        self._asked: tuple[int, Any] | None = None  # where, and the request

    @staticmethod
    def bytes() -> int:
        """Return the bytes of memory that it takes on each rank."""
        return int(lib.rmaext_network_barrier_bytes())

    def close(self) -> None:
        """After the last meeting, and before the window is closed."""
        lib.rmaext_network_barrier_close(self.handle)

    def ask(self) -> None:
        """Fetch what this rank waits for: a connection that broke may have lost it. Not waiting.

        What came of the question before is looked at first.
        """
        if self._asked is not None and not self._answered():
            return
        rank = lib.rmaext_network_barrier_awaits(self.handle, self._offset)
        if rank >= 0:
            at = int(self._offset[0])
            with suppress(RmaError):
                self._asked = at, self._window.rget(rank, at // 8, 2)

    def _answered(self) -> bool:
        """Take the answer of the question that was asked, if it is there."""
        assert self._asked is not None
        at, request = self._asked
        if not request.test():
            return False
        self._asked = None
        with suppress(RmaError):  # a rank that is lost is noticed elsewhere
            words = ffi.from_buffer("uint64_t[]", request.wait())
            lib.rmaext_network_barrier_heard(self.handle, at, words)
        return True

    def settle(self) -> None:
        """Wait a moment for the answer: the meeting is over, and others may be about to close."""
        end = time.monotonic() + _SETTLE
        while self._asked is not None and not self._answered() and time.monotonic() < end:
            pass

    def missing(self, ranks: Iterable[int]) -> list[int]:
        """Return those of the ranks that have not come to this rank's meeting."""
        number, found = lib.rmaext_network_barrier_came(self.handle), []
        for rank in ranks:
            with suppress(RmaError):
                if self._window.get(rank, self._at // 8, 1)[0] < number:
                    found.append(rank)
        return found
