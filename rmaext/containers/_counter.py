# SPDX-License-Identifier: BSD-3-Clause
"""Numbers that ranks draw: each once, whoever is free."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import Window
from .._runtime import locks
from ._agreement import bracketed, common, exchange
from ._windows import Closing

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["counter"]


class _Hand(NamedTuple):
    """What is left of the chunk in hand, and the first number of the next one, once it is drawn."""

    left: Iterator[int]
    drawn: list[Any]


class counter(Closing):  # noqa: N801, as itertools.count
    """The numbers from 0 to n - 1, each for one rank: whoever is free draws the next ones.

    For tasks that all ranks know by a number and that take long or short: files, parameters,
    blocks of a matrix.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks draw.
    n : int
        How many numbers there are, up to 2**62; the same on all ranks.
    chunk : int, optional
        How many a rank draws at once, the same on all ranks. More if what is done with a number
        takes less than some microseconds.
    timeout : float, optional
        Of the window: see `rmaext.Window`.

    Raises
    ------
    TypeError, ValueError
        On every rank, if any rank's arguments do not fit, or they differ.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    The constructor is collective and blocking, as is `close`; a loop is local, and waits for
    nobody. It ends once all numbers are drawn, not once the other ranks are done with theirs.

    To draw is one atomic operation (`Window.fetch_add`) at rank 0, which does nothing for it, so
    each number is had once. The numbers of a rank grow.

    **break**, Ctrl-C, or an exception in the body: the next loop of the rank goes on behind the
    number that this one had. What is left of a chunk is for no other rank.

    **Threads.** Any of a rank's may loop at once: each number goes to one of them. In a signal
    handler that has interrupted a loop while that draws it is BusyError.

    **A rank that is lost** loses the numbers of its chunk, and no others, unless it is rank 0,
    where the word is: then the others get PeerLostError when they draw, and what is not drawn
    is lost.

    Memory: a word on rank 0. Cost: 0.2 us for each chunk on a node, over the network a message
    and its answer in a thread, some 100 us; nothing for the other numbers. It corresponds to
    MPI_Fetch_and_op. `rmaext.containers.TaskQueue` is for tasks that make others.

    Examples
    --------
    >>> from rmaext.containers import counter
    >>> with counter(MPI.COMM_SELF, 10, chunk=4) as numbers:
    ...     sum(numbers)
    45
    """

    @bracketed
    def __init__(
        self, comm: MPI.Comm, n: int, chunk: int = 1, *, timeout: float | None = None
    ) -> None:
        def tell() -> tuple[int, int]:
            count, some = operator.index(n), operator.index(chunk)
            if not 0 <= count <= 1 << 62:
                raise ValueError(f"n={count}: there are 0 to 2**62 numbers")
            if some < 1:
                raise ValueError(f"chunk={some}: at least one number is drawn at once")
            return count, some

        told = exchange(comm, "counter", tell, timeout)
        common(told, ValueError, "arguments differ", "n={0[0]}, chunk={0[1]}".format)
        self._n, chunk = told[0]
        # The word never overflows, although each rank draws once more at the end.
        self._chunk = min(chunk, max(1, self._n), (1 << 62) // comm.size)
        self._word = Window.allocate(comm, int(comm.rank == 0), np.int64, timeout=timeout)
        self._windows = (self._word,)
        self._lock = locks.lock()
        self._hand = _Hand(iter(()), [])

    @property
    def closed(self) -> bool:
        """Whether a loop that has to draw raises ClosedError."""
        return self._word.closed

    def __repr__(self) -> str:
        closed = ", closed" * self.closed
        return f"<rmaext.containers.counter: {self._n} numbers, {self._chunk} at once{closed}>"

    def __iter__(self) -> Iterator[int]:
        # No step of Python's is between a number and the body: no interruption takes one away.
        return chain.from_iterable(iter(self._some, None))

    def _some(self) -> Iterator[int] | None:
        """Return what is left in hand; None if there is nothing more."""
        return locks.alone(self._lock, "counter", self._draw)

    def _draw(self) -> Iterator[int] | None:
        left, drawn = self._hand
        if not operator.length_hint(left):
            if not drawn:  # else an interruption came before it was in hand
                call: Any = self._word.fetch_add
                where = (self._chunk,), (0,), (0,)
                if self._word.route(0) == "direct":
                    drawn.extend(map(call, *where))
                else:
                    drawn.extend(map(locks.apart, (call,), *where))
            first = int(drawn[0])
            if first >= self._n:
                return None
            left = iter(range(first, min(first + self._chunk, self._n)))
            self._hand = _Hand(left, [])
        return left

    def close(self) -> None:
        """Wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. One that is not closed
        keeps its memory until the process ends, as windows do.

        Examples
        --------
        >>> from rmaext.containers import counter
        >>> numbers = counter(MPI.COMM_SELF, 3)
        >>> numbers.close()
        >>> numbers.closed
        True
        """
        self._close()
