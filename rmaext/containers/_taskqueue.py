# SPDX-License-Identifier: BSD-3-Clause
"""Tasks that all ranks share, by work stealing."""

from __future__ import annotations

import errno
import operator
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import CapacityError, ClosedError, PeerLostError, SyncError, Window
from ..typing import ScalarT
from ._agreement import Opening, exchange
from ._ending import WORDS, Ending
from ._ring import LARGEST, Ring
from ._windows import Closing

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["TaskQueue", "TaskStats"]

_CHUNK = 1e-3  # seconds that the tasks take which a rank has in hand, about
_WORTH, _LONGEST = 20, 0.05  # but so many times what it takes to get them, up to so many seconds
_MOST = 1024  # tasks in hand
_NUMBERS = "biufc"


@dataclass(frozen=True)
class TaskStats:
    """What a rank has done, as `TaskQueue.stats` returns it.

    Attributes
    ----------
    done : int
        Tasks that its loops have got.
    stolen : int
        Tasks that it took from other ranks.
    waited : float
        Seconds in which its loops had no task.

    Examples
    --------
    >>> from rmaext.containers import TaskStats
    >>> TaskStats(done=3, stolen=1, waited=0.5).done
    3
    """

    done: int
    stolen: int
    waited: float


class TaskQueue(Closing, Generic[ScalarT]):
    """Tasks that all ranks share: who has none takes half of what another rank has.

    A loop over the queue gets tasks until none is left or running on any rank; its body may put
    more. For work whose parts take different times, or are not known before: a search in a
    tree, refinement, parameter studies.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks take part.
    dtype : data-type
        Of a task, the same on all ranks; as for `rmaext.Window`, and without dimensions of its
        own. For tasks that are Python objects, let all ranks have a list of them, and put
        indices.
    capacity : int
        How many tasks this rank can hold at a time, in all: up to 2**28 - 1. Ranks may differ.
    timeout : float, optional
        Of the windows: see `rmaext.Window`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank, if any rank's arguments do not fit.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    The constructor is collective and blocking, as is `close`; `put` and `stats` are local. A
    loop is local, too, but it waits for tasks: it ends once all ranks are in theirs, and all
    have run out of tasks. So each rank has to loop as often as any other. There is no collective
    call in it, and it waits without limit for a rank that lives.

    Each task is got exactly once. In which order, and where, is not said; a rank takes rather
    the newest of those that its own loop has put, so that a search in a tree goes to the depth,
    and gives others the oldest. A task that was put before the loop has ended on any rank
    belongs to that loop; others to the next one, which can begin at once.

    **break**, or an exception in the body: the rank's tasks are kept for the others, but for
    the one that the body had, which counts as done. The others do not wait for the rank any
    more. It has to go on, by another loop, which ends at once if the others have done the rest
    meanwhile.

    **A rank that is lost** takes the tasks with it that it held. The others do the rest; then
    each gets PeerLostError at the end of its loop, once, and may use the queue further. Ctrl-C
    loses no task, unless it interrupts a message to another rank.

    Memory: three times `capacity` tasks a rank at most. Cost: 0.2 microseconds for each task
    that a loop gets, and some for each call of `put`, so put arrays. A rank without tasks takes
    up to 64 KiB of them by three messages, and looks for them with pauses of a millisecond, or
    longer where there are many ranks to look at.

    Examples
    --------
    >>> from rmaext.containers import TaskQueue
    >>> with TaskQueue(MPI.COMM_SELF, int, capacity=100) as queue:
    ...     queue.put([3, 5])
    ...     total = 0
    ...     for number in queue:
    ...         total += number
    ...         if number > 1:
    ...             queue.put(number - 1)
    >>> total == (3 + 2 + 1) + (5 + 4 + 3 + 2 + 1)
    np.True_
    """

    def __init__(
        self, comm: MPI.Comm, dtype: DTypeLike, capacity: int, *, timeout: float | None = None
    ) -> None:
        def slots() -> int:
            count = operator.index(capacity)
            if not 1 <= count <= LARGEST:
                raise ValueError(f"capacity={count}: a rank holds 1 to {LARGEST} tasks")
            if np.dtype(dtype).shape:
                text = f"dtype {np.dtype(dtype)} has dimensions: make it a field, "
                raise TypeError(text + f"as in [('task', {np.dtype(dtype).base}, ...)]")
            return 1 << (count - 1).bit_length()

        length = exchange(comm, "TaskQueue", slots, timeout)[comm.rank]
        with Opening() as stack:
            tasks = stack.enter_context(Window.allocate(comm, length, dtype, timeout=timeout))
            words = stack.enter_context(Window.allocate(comm, WORDS, np.int64, timeout=timeout))
            self._closing = stack.pop_all()
        self._comm, self._words = comm, words
        self._dtype: np.dtype[Any] = tasks.dtype
        self._capacity = operator.index(capacity)
        self._ring = Ring(words, tasks, comm.rank)
        self._ending = Ending(words, comm)
        # Tasks that only this rank's loop can take: those between low and high, the oldest first.
        self._stack: NDArray[Any] = np.empty(0, self._dtype)
        self._low = self._high = 0
        # Those in hand, which the loop gets next.
        self._chunk: NDArray[Any] = self._stack
        self._left: Iterator[Any] = iter(())
        self._grain = 1  # how many these are to be
        self._thread = 0  # that is in a loop
        self._done = self._stolen = 0
        self._waited = 0.0

    # -- what it is ------------------------------------------------------------------

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """Of a task."""
        return self._dtype

    @property
    def capacity(self) -> int:
        """How many tasks this rank can hold."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether calls raise ClosedError."""
        return self._words.closed

    def __repr__(self) -> str:
        what = f"{self._dtype}, {self._held()} of {self._capacity} tasks here"
        closed = ", closed" * self.closed
        return f"<rmaext.containers.TaskQueue: {what}, {self._comm.size} ranks{closed}>"

    def _held(self) -> int:
        """Return how many tasks this rank holds: others may take some of them meanwhile."""
        in_hand = operator.length_hint(self._left)
        return self._ring.count() + self._high - self._low + in_hand

    def stats(self) -> TaskStats:
        """Return what this rank has done so far.

        Returns
        -------
        TaskStats
            done, stolen, waited.

        Notes
        -----
        Local, not blocking.

        Examples
        --------
        >>> from rmaext.containers import TaskQueue
        >>> with TaskQueue(MPI.COMM_SELF, int, capacity=10) as queue:
        ...     queue.put(range(10))
        ...     for task in queue:
        ...         pass
        ...     queue.stats().done
        10
        """
        return TaskStats(self._done - operator.length_hint(self._left), self._stolen, self._waited)

    # -- putting ---------------------------------------------------------------------

    def put(self, tasks: Any) -> None:
        """Put a task, or an array of tasks.

        Parameters
        ----------
        tasks : array_like
            Of the dtype, any shape. Nothing is cast, but Python's numbers, alone or in lists,
            are taken if they fit.

        Raises
        ------
        TypeError, OverflowError, ValueError
            The tasks do not fit the dtype.
        CapacityError
            This rank cannot hold so many. None of them was put.
        SyncError
            Another thread of this rank is in a loop over the queue.
        ClosedError

        Notes
        -----
        Local, not blocking, to this rank's own memory. From the next moment on other ranks may
        take what is put before a loop; of what is put within one, the older half, when this rank
        gets to its next tasks.

        Examples
        --------
        >>> from rmaext.containers import TaskQueue
        >>> edge = np.dtype([("node", "i8"), ("cost", "f8")])
        >>> with TaskQueue(MPI.COMM_SELF, edge, capacity=10) as queue:
        ...     queue.put((7, 0.5))
        ...     queue.put(np.zeros(3, edge))
        ...     len(list(queue))
        4
        """
        array = self._array(tasks)
        count = array.size
        if self._words.closed:
            raise ClosedError(errno.ESHUTDOWN, "put: the queue is closed", call="put")
        if self._thread and self._thread != get_ident():
            text = "put: another thread is in a loop over the queue: let it put them"
            raise SyncError(errno.EPERM, text, call="put")
        held = self._held()
        if held + count > self._capacity:
            text = f"put: {count} tasks beside the {held} that this rank holds: more than its "
            text += f"capacity={self._capacity}; make the queue with a larger one"
            raise CapacityError(errno.ENOSPC, text, call="put")
        if not self._thread:
            if count:
                self._ring.push(array)
            return
        if self._ending.idle:  # in a signal handler
            self._ending.be(idle=False)
        self._append(array)
        if self._comm.size > 1:
            self._share(0)

    def _array(self, tasks: Any) -> NDArray[Any]:
        """Return tasks as an array of one dimension, by the rules of what is put to windows."""
        dtype = self._dtype
        if isinstance(tasks, np.ndarray | np.generic):
            if tasks.dtype != dtype:
                text = f"put: tasks of {tasks.dtype}, not {dtype}, and nothing is cast"
                raise TypeError(f"{text}: use tasks.astype({str(dtype)!r})")
            return np.asarray(tasks).reshape(-1)
        if dtype.kind in _NUMBERS and not isinstance(tasks, int | float):
            kind = np.array(tasks).dtype.kind
            fits = kind in _NUMBERS and _NUMBERS.index(kind) <= _NUMBERS.index(dtype.kind)
            if not (fits or (kind in "iu" and dtype.kind in "iu")) and np.size(tasks):
                raise TypeError(f"put: {str(tasks)[:60]} is no task of {dtype}")
        elif isinstance(tasks, float) and dtype.kind not in "fc":
            raise TypeError(f"put: {tasks!r} is no task of {dtype}")
        return np.array(tasks, dtype).reshape(-1)

    def _append(self, array: NDArray[Any]) -> None:
        """Add the newest tasks of this rank's own; what was claimed in a ring is among them."""
        count, low, high = array.size, self._low, self._high
        if high + count > self._stack.size:
            there = high - low
            least = there + count
            room = max(64, least, min(2 * least, self._capacity))
            larger = np.empty(room, self._dtype)
            larger[:there] = self._stack[low:high]
            self._stack, self._low, self._high = larger, 0, there
            high = there
        self._stack[high : high + count] = array
        self._high = high + count
        self._ring.claim = None

    def _share(self, keep: int) -> None:
        """Put the oldest of this rank's own tasks where others can take them.

        As many are to lie there as here, and enough for each rank to get some. `keep` stay here.
        """
        own, there = self._high - self._low, self._ring.count()
        few = self._comm.size
        if there >= few and there >= own // 2:
            return
        count = min(own - keep, max((own - there) // 2, 2 * few - there))
        if count <= 0:
            return
        try:
            self._ring.push(self._stack[self._low : self._low + count])
        except BaseException:  # a signal handler's, too
            if self._ring.swapped():
                self._low += count
            raise
        self._low += count

    # -- getting ---------------------------------------------------------------------

    def __iter__(self) -> Iterator[ScalarT]:
        """Return an iterator that gets tasks until none is left or running anywhere.

        Yields
        ------
        NumPy scalar
            A task: as an element of an array of the dtype.

        Raises
        ------
        PeerLostError
            At the end: a rank was lost, and the tasks that it held.
        SyncError
            This rank is in a loop over the queue already.
        RmaTimeout
            A rank that has tasks to be stolen does not answer.
        ClosedError
        """
        return self._tasks()

    def _tasks(self) -> Generator[ScalarT, None, None]:
        ending, ended = self._ending, False
        # No signal handler and, with the GIL, no thread comes in between these two lines.
        if self._thread:
            text = "a loop over the queue is under way on this rank: end it first"
            raise SyncError(errno.EPERM, text, call="TaskQueue")
        self._thread = get_ident()
        try:
            ended = ending.over()  # while this rank had left the loop
            if not ended:
                ending.be(idle=False)
            while not ended:
                began = perf_counter()
                chunk, own = self._next()
                if chunk is None:
                    ended = self._search()
                    continue
                left, count, start = iter(chunk), chunk.size, perf_counter()
                # Between these lines no signal handler is called: each task is in one place.
                self._left, self._chunk = left, chunk
                self._high -= own
                self._ring.claim = None
                self._done += count
                yield from left
                took = perf_counter() - start
                # Where even the own memory is reached by the network, more at a time.
                aim = min(max(_CHUNK, _WORTH * (start - began)), _LONGEST)
                if took > 2 * aim:
                    self._grain = max(1, int(self._grain * aim / took))
                elif took < aim / 2 and count == self._grain:
                    self._grain = min(2 * self._grain, _MOST)
        finally:
            try:
                self._leave(ended)
            finally:
                self._thread = 0
        ending.report()

    def _next(self) -> tuple[NDArray[Any] | None, int]:
        """Return some of the tasks that this rank holds, or None, and how many are its own.

        The caller takes these off. Others are claimed in the ring.
        """
        size = self._comm.size
        own = self._high - self._low
        if not own:
            return self._ring.take(self._grain, size), 0
        # The newest first, but few: their bodies may put newer ones.
        count = min(self._grain, (own + 3) // 4)
        if size > 1:
            self._share(count)
        return self._stack[self._high - count : self._high][::-1].copy(), count

    def _search(self) -> bool:
        """Wait until this rank has tasks again; return whether the epoch has ended instead."""
        ending = self._ending
        start = perf_counter()
        pause = ending.pause()
        ending.be(idle=True)
        try:
            while not ending.over():
                began = perf_counter()
                ended, victims = ending.look()
                if ended:
                    return True
                for victim, word in victims:
                    if self._steal(victim, word):
                        return False
                if not victims:
                    ending.wait(pause, perf_counter() - began)
                if not ending.idle:  # a signal handler has put some
                    return False
            return True
        finally:
            pause.__exit__()
            self._waited += perf_counter() - start

    def _steal(self, victim: int, word: int) -> bool:
        """Take tasks of another rank; whether there were any left."""
        ending = self._ending
        try:
            tasks = self._ring.steal(victim, word, self._capacity, lambda: ending.be(idle=False))
        except PeerLostError as exc:
            self._ring.claim = None
            ending.lose(exc)
            tasks = None
        if tasks is None:
            if not self._high - self._low:
                ending.be(idle=True)
            return False
        self._append(tasks)  # whose last step takes them over
        self._stolen += tasks.size
        return True

    def _leave(self, ended: bool) -> None:
        """End a loop: this rank's tasks come to where others can take them."""
        claimed = self._ring.claimed()  # if an exception has come in between
        left = operator.length_hint(self._left)
        if left:
            self._append(self._chunk[self._chunk.size - left :])
            self._done -= left
        self._left = iter(())
        if claimed is not None:
            self._append(claimed)
        with suppress(ClosedError):  # by the body
            if ended:
                self._ending.begin_next()
                self._ring.begin(self._ending.epoch)
            own = self._stack[self._low : self._high]
            if own.size:
                self._ring.push(own)
                self._low = self._high = 0
            if not ended:
                self._ending.be(idle=True)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. Tasks that are left are
        gone.

        Examples
        --------
        >>> from rmaext.containers import TaskQueue
        >>> queue = TaskQueue(MPI.COMM_SELF, int, 10)
        >>> queue.close()
        >>> queue.closed
        True
        """
        self._closing.close()
