# SPDX-License-Identifier: BSD-3-Clause
"""Waiting until words of memory have certain values (csrc/shm/doorbell.c)."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._comm import collective
from .._native._lib import ffi, lib
from .._ops.core import WindowCore
from .._runtime.config import seconds
from .._runtime.failures import advised, from_c
from .._runtime.reports import Patience
from ..errors import PeerLostError, RmaTimeout
from ..typing import Comparison, ScalarT

__all__ = ["Waits", "bits", "block_words"]

COMPARISONS: dict[Comparison, int] = {
    "==": lib.RMAEXT_EQ,
    "!=": lib.RMAEXT_NE,
    "<": lib.RMAEXT_LT,
    "<=": lib.RMAEXT_LE,
    ">": lib.RMAEXT_GT,
    ">=": lib.RMAEXT_GE,
}
_CONDITIONS = ffi.typeof("struct rmaext_condition[]")
_SLICE = int(100e6)  # ns in C, at most


def bits(value: Any) -> int:
    """Return a NumPy scalar of up to 8 bytes as the C side compares it."""
    return int.from_bytes(np.asarray(value).tobytes().ljust(8, b"\0"), sys.byteorder)


def block_words(words: Iterable[tuple[int, Comparison, int]]) -> Any:
    """Return conditions on a control block: (place, comparison, value), of int64 words."""
    return ffi.new(
        _CONDITIONS,
        [
            (8 * place, value % 2**64, 0, 1, lib.RMAEXT_INT64, COMPARISONS[comparison])
            for place, comparison, value in words
        ],
    )


def memory_word(offset: int, comparison: Comparison, value: Any, type_: int) -> Any:
    """Return a condition on window memory, at so many bytes; the value is a NumPy scalar."""
    return ffi.new(_CONDITIONS, [(offset, bits(value), 0, 0, type_, COMPARISONS[comparison])])


class Waits(WindowCore[ScalarT]):
    """How windows wait for changes of memory that is mapped here."""

    _lost: set[int] | None = None  # ranks that a wait has found gone

    def _wait(
        self,
        where: str,
        conditions: Any,
        *,
        rank: int | None = None,
        every: bool = True,
        timeout: float | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Wait until conditions hold.

        Parameters
        ----------
        where : str
            The call and what it is about, for errors.
        conditions : struct rmaext_condition[]
            `holds` and `seen` of each are as they were at the end.
        rank : int, optional
            Whose memory it is; by default this rank's.
        every : bool
            Wait for all of them, else for any.
        timeout : float, optional
            Seconds; by default there is no limit while the peers live.
        look : callable, optional
            Called every 100 ms; raises PeerLostError if it is in vain to wait on. By
            default, if any rank of the communicator is lost, see `_look_out`.

        Raises
        ------
        RmaTimeout, PeerLostError, ClosedError
        """
        self._wait_on(Wait(self, where, timeout, look), conditions, rank, every)

    def _wait_on(
        self, wait: Wait, conditions: Any, rank: int | None = None, every: bool = True
    ) -> None:
        """As `_wait`, which may be one of several waits within one limit."""
        target = self._group.rank if rank is None else rank
        count = len(conditions)
        call = lib.rmaext_wait_until
        with wait.patience:
            while True:
                code = call(self._handle, target, conditions, count, every, wait.slice())
                if not code:
                    break
                wait.go_on(code)

    def _look_out(self, since: float) -> None:
        """Raise PeerLostError once for each rank that is found lost.

        So the survivors can go on among themselves; but a wait that may be for a lost
        rank ends after the window's time limit.
        """
        if self._lost is None:
            self._lost = set()
        if self._lost and time.monotonic() - since > self._timeout:
            ranks = ", ".join(map(str, sorted(self._lost)))
            text = f"nothing within {self._timeout:g} s, and lost before: rank {ranks}"
            raise PeerLostError(errno.ENOTCONN, text, rank=min(self._lost))
        self._group.watch.look_out(self._group._network, self._lost)


class Wait:
    """What a wait knows between its slices."""

    def __init__(
        self,
        window: Waits[Any],
        where: str,
        timeout: float | None,
        look: Callable[[], None] | None,
    ) -> None:
        self._where = where
        self._limit = (
            math.inf if timeout is None else seconds(timeout, f"{where}: timeout={timeout!r}")
        )
        self._start = time.monotonic()
        self._look = look or (lambda: window._look_out(self._start))
        self._end = self._start + self._limit
        self._gone: PeerLostError | None = None
        self.patience = Patience(self._limit)

    def slice(self) -> int:
        """Return the nanoseconds that C may wait now."""
        if math.isinf(self._end):
            return _SLICE
        return max(0, min(_SLICE, math.ceil((self._end - time.monotonic()) * 1e9)))

    def go_on(self, code: int) -> None:
        """After a slice: raise unless the wait goes on."""
        if code != lib.RMAEXT_PENDING:
            raise from_c(code, self._where)
        now = time.monotonic()
        self.patience.look(self._where, lambda: None)
        if self._gone is None:
            try:
                self._look()
            except PeerLostError as exc:
                # What that rank sent before it was lost may still be on its way.
                self._gone, self._end = exc, min(self._end, now + collective.GRACE)
        if now < self._end:
            return
        if self._gone is not None:
            text = f"{self._where}: {self._gone}"
            text = text if self._gone._explained else advised(text)
            raise PeerLostError(
                self._gone.errno or errno.ENOTCONN, text, rank=self._gone.rank
            ) from self._gone
        text = advised(f"{self._where}: not within {self._limit:g} s", late=True)
        raise RmaTimeout(errno.ETIMEDOUT, text, call=self._where.partition(":")[0])
