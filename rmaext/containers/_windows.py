# SPDX-License-Identifier: BSD-3-Clause
"""How containers name ranks of their windows, wait, and leave a `with`."""

from __future__ import annotations

import errno
import math
import operator
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import BoundsError, PeerLostError, RmaTimeout, Window
from .._comm.group import Group
from .._runtime.copies import Unique
from .._runtime.reports import Waiting, waited

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self  # Python 3.11

    from mpi4py import MPI

__all__ = ["MESSAGE", "Closing", "Pause", "deadline", "lost_error", "rank_of"]

MESSAGE = 1 << 15  # bytes that the network carries together with their notification
_FIRST, _LONGEST = 5e-5, 1e-3  # seconds of a pause


def rank_of(comm: MPI.Comm, rank: Any, call: str) -> int:
    """Return a rank as an int; BoundsError if the communicator does not have it."""
    number = operator.index(rank)
    if not 0 <= number < comm.size:
        text = f"{call}: there are ranks 0 to {comm.size - 1}, not {number}"
        raise BoundsError(errno.ERANGE, text, call=call)
    return number


def deadline(window: Window[Any], timeout: Any) -> float:
    """Return when a time limit ends, by time.monotonic(); inf if there is none.

    What a time limit may be is the window's rule: it raises TypeError or ValueError.
    """
    if timeout is None:
        return math.inf
    window.wait_until(0, ">=", window.local[0], timeout=timeout)  # which holds
    return time.monotonic() + min(float(min(timeout, 1e9)), 1e9)


def lost_error(comm: MPI.Comm, ranks: Sequence[int], call: str, text: str) -> PeerLostError:
    """Return the error of ranks that are lost, with their last words."""
    if (group := Group.known(comm)) is not None:
        text = "; ".join([text, *group.watch.last_words(ranks)])
    error = PeerLostError(errno.ENOTCONN, text, call=call, rank=ranks[0])
    error.ranks = tuple(ranks)
    return error


class Closing(Unique):
    """What `close` and `with` do with a container of several windows.

    They are closed in the same order on all ranks, each collectively. After an exception (Ctrl-C)
    before the first is closed all are open. After one between them this rank's part of all the
    others ends: no rank waits for it there.
    """

    _windows: tuple[Window[Any], ...]

    def _close(self) -> None:
        # not those that this call, which a signal handler has interrupted, is closing
        ours = [window for window in self._windows if not window.closed]
        try:
            for window in ours:
                window.close()
        except BaseException as exc:
            if any(map(operator.attrgetter("closed"), ours)):
                self.__exit__(type(exc), exc, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._close()
        else:
            for window in self._windows:
                window.__exit__(kind, error, trace)


class Pause:
    """Pauses of somebody who polls, each twice as long as the one before.

    The first lasts `seconds`, none longer than `longest`: what its owner sets, if anything. All of
    them are one wait in the record, which says `what`, for these ranks, from the first one to the
    end of the context. MPI and the network make progress meanwhile: a pause waits for a word of
    this rank's own window. A rank that is lost ends no pause; who polls it learns so by the next
    operation.
    """

    def __init__(self, window: Window[Any], what: str, *ranks: int) -> None:
        self._window, self.longest = window, _LONGEST
        self._waiting, self._ranks = Waiting(window, what), ranks
        self.seconds = _FIRST

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        waited()

    def over(self, end: float) -> bool:
        """Whether a time limit has ended."""
        return time.monotonic() >= end

    def wait(self, offset: int, value: Any, end: float = math.inf) -> None:
        """Pause, until `end` at most, or until an own word is no longer what it was."""
        seconds = self.next(end)
        with suppress(RmaTimeout, PeerLostError):
            self._window.wait_until(offset, "!=", value, timeout=seconds)

    def next(self, end: float = math.inf) -> float:
        """Begin a pause, until `end` at most, which the caller waits for; return its seconds."""
        seconds = max(0.0, min(self.seconds, end - time.monotonic()))
        self.seconds = min(2 * self.seconds, self.longest)
        self._waiting.goes_on(self._ranks)
        return seconds
