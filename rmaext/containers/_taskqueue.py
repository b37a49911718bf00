# SPDX-License-Identifier: BSD-3-Clause
"""Tasks that all ranks share, by work stealing."""

from __future__ import annotations

import errno
import operator
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import CapacityError, ClosedError, PeerLostError, RmaError, SyncError, Window
from .._runtime import locks
from .._runtime.locks import locked, to_the_end
from .._runtime.reports import dtype_name
from ..typing import ScalarT
from ._agreement import Opening, bracketed, exchange
from ._ending import WORDS, Ending
from ._ring import LARGEST, Ring
from ._values import taken
from ._windows import Closing

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["TaskQueue", "TaskStats"]

_CHUNK = 1e-3  # seconds that the tasks take which a rank has in hand, about
_WORTH, _LONGEST = 20, 0.05  # but so many times what it takes to get them, up to so many seconds
_MOST = 1024  # tasks in hand
_FAILURES = RmaError, MemoryError  # of windows: other exceptions are signal handlers'
_T = TypeVar("_T")


@dataclass(frozen=True)
class TaskStats:
    """What a rank has done, as `TaskQueue.stats` returns it.

    It does not change: any threads may read it at once.

    Attributes
    ----------
    done : int
        Tasks that its loops have got.
    stolen : int
        Tasks that it took from other ranks.
    waited : float
        Seconds in which its loops had no task.
    put : int
        Tasks that were put here: so after Ctrl-C in a `put` one sees whether it was done.
    loops : int
        Loops that came to their end here: so after Ctrl-C one sees whether another has to follow.

    Examples
    --------
    >>> from rmaext.containers import TaskStats
    >>> TaskStats(done=3, stolen=1, waited=0.5).done
    3
    """

    done: int
    stolen: int
    waited: float
    put: int = 0
    loops: int = 0


class _Loop:
    """A loop of this rank's.

    Attributes
    ----------
    thread, epoch : int
        The thread that is in it, and how many epochs had ended when it began.
    ended : bool
        Whether its own has ended.
    left : bool
        It was left within a step of the queue: by a signal handler, or the garbage collector.
    """

    __slots__ = ("ended", "epoch", "left", "thread")

    def __init__(self) -> None:
        self.thread, self.epoch = get_ident(), 0
        self.ended = self.left = False

    def leave(self) -> None:
        """Have the next step of the queue end it."""
        self.left = True


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

    **Ctrl-C**, or any exception of a signal handler: wherever it comes, no task is lost or got
    twice, and no other rank waits for this one. What it has interrupted, `put` or a step of a
    loop, is done or is not: `stats` tells. A loop that it has ended is left as by **break**; that
    goes for its last step, too: unless `stats().loops` has grown, another loop has to follow.

    **Threads and signal handlers.** Any threads of a rank may put at once, as long as none of
    them is in a loop; then only that one may. A rank is in one loop at a time. A signal handler
    may put within a loop of the main thread. In one that has interrupted `put`, or the loop while
    that moves tasks, it is BusyError, and nothing was put: note the tasks, and put them later.

    **A rank that is lost** takes the tasks with it that it held. The others do the rest; then
    each gets PeerLostError at the end of its loop, once, and may use the queue further.

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

    @bracketed
    def __init__(
        self, comm: MPI.Comm, dtype: DTypeLike, capacity: int, *, timeout: float | None = None
    ) -> None:
        def slots() -> int:
            count = operator.index(capacity)
            if not 1 <= count <= LARGEST:
                raise ValueError(f"capacity={count}: a rank holds 1 to {LARGEST} tasks")
            if np.dtype(dtype).shape:
                text = f"dtype {dtype_name(np.dtype(dtype))} has dimensions: make it a field, "
                raise TypeError(text + f"as in [('task', {np.dtype(dtype).base}, ...)]")
            return 1 << (count - 1).bit_length()

        length = exchange(comm, "TaskQueue", slots, timeout)[comm.rank]
        with Opening() as stack:
            tasks = stack.enter_context(Window.allocate(comm, length, dtype, timeout=timeout))
            words = stack.enter_context(Window.allocate(comm, WORDS, np.int64, timeout=timeout))
            self._windows = (words, tasks)
            self._comm, self._words = comm, words
            self._dtype: np.dtype[Any] = tasks.dtype
            self._capacity = operator.index(capacity)
            self._ring = Ring(words, tasks, comm.rank, self._capacity)
            self._ending = Ending(words, comm)
            self._lock = locks.lock()
            self._grain = 1  # how many tasks are to be in hand
            self._loop: _Loop | None = None
            # Not empty: a loop has ended, but an exception came instead of its end. The next one
            # ends at once.
            self._untold: list[bool] = []
            self._waited = 0.0
            stack.pop_all()  # it is whole

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
        what = f"{self._dtype}, {self._ring.holds()} of {self._capacity} tasks here"
        closed = ", closed" * self.closed
        return f"<rmaext.containers.TaskQueue: {what}, {self._comm.size} ranks{closed}>"

    def stats(self) -> TaskStats:
        """Return what this rank has done so far.

        Returns
        -------
        TaskStats
            done, stolen, waited, put, loops.

        Notes
        -----
        Local, not blocking; any thread, and any signal handler, may call it at any time.

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
        held, loops = self._ring.now(), self._ending.epoch - len(self._untold)
        return TaskStats(held.done - held.in_hand, held.stolen, self._waited, held.put, loops)

    # -- putting ---------------------------------------------------------------------

    def put(self, tasks: Any) -> None:
        """Put a task, or an array of tasks.

        Parameters
        ----------
        tasks : array_like
            Of the dtype, any shape; scalars and tuples as `rmaext.elements` takes them. Nothing
            is cast.

        Raises
        ------
        TypeError, OverflowError, ValueError
            The tasks do not fit the dtype.
        CapacityError
            This rank cannot hold so many. None of them was put.
        SyncError
            Another thread of this rank is in a loop over the queue.
        BusyError
            This is a signal handler, which has interrupted a step of the queue. Nothing was put.
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
        array = taken(tasks, self._dtype, "put", limit=self._words.timeout).reshape(-1)
        locks.alone(self._lock, "put", self._put, array)

    def _put(self, array: NDArray[Any]) -> None:
        self._end_left()
        loop, count, held = self._loop, array.size, self._ring.holds()
        if self._words.closed:
            raise ClosedError(errno.ESHUTDOWN, "put: the queue is closed", call="put")
        if loop is not None and loop.thread != get_ident():
            text = "put: another thread is in a loop over the queue: let it put them"
            raise SyncError(errno.EPERM, text, call="put")
        if held + count > self._capacity:
            text = f"put: {count} tasks beside the {held} that this rank holds: more than its "
            text += f"capacity={self._capacity}; make the queue with a larger one"
            raise CapacityError(errno.ENOSPC, text, call="put")
        if not count:
            return
        if loop is None:
            self._ring.put(array)
            return
        if self._ending.idle:  # in a signal handler
            self._ending.be(idle=False)
        self._ring.append(array)
        self._share(0)

    def _share(self, keep: int) -> None:
        """Put the oldest of this rank's own tasks where others can take them.

        As many are to lie there as here, and enough for each rank to get some. `keep` stay here.
        """
        held, few = self._ring.now(), self._comm.size
        own, there = held.high - held.low, self._ring.count()
        if few == 1 or (there >= few and there >= own // 2):
            return
        self._ring.share(min(own - keep, max((own - there) // 2, 2 * few - there)))

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
        BusyError
            It begins in a signal handler, which has interrupted a step of the queue.
        RmaTimeout
            A rank that has tasks to be stolen does not answer.
        ClosedError
        """
        # No step of Python's lies between a task's going out of hand and the body, nor between
        # the end of the loop and what notes that it was told.
        told: Any = iter(self._untold.clear, None)
        return chain(chain.from_iterable(self._chunks()), told)

    def _chunks(self) -> Generator[Iterator[ScalarT], None, None]:
        """Yield what is left in hand, again and again."""
        loop, came = _Loop(), None
        try:
            try:
                self._step(self._enter, loop)
                while True:
                    if loop.ended:
                        break
                    began = perf_counter()
                    left = self._step(self._take)
                    if left is None:
                        loop.ended = self._search()
                        continue
                    count, start = operator.length_hint(left), perf_counter()
                    yield left
                    self._adapt(count, start - began, perf_counter() - start)
            finally:
                # Whatever signal handlers raise meanwhile: none comes in between before it.
                came = locked(self._lock, loop.leave, to_the_end, _FAILURES, self._end, loop)
        except BaseException as exc:
            if came is None:
                came = locked(self._lock, loop.leave, to_the_end, _FAILURES, self._end, loop)
            again = None if came is None else came[1]
            if again is not None and isinstance(exc, Exception | GeneratorExit):
                raise again from exc  # Ctrl-C outweighs an error
            raise
        if came is not None and came[1] is not None:
            raise came[1]
        error = self._ending.report()
        if error is not None:
            # No signal handler is called between these lines.
            self._ending.told |= {*error.ranks}
            del self._untold[:]
            raise error

    def _adapt(self, count: int, getting: float, doing: float) -> None:
        """Choose how many tasks are to be in hand, by what the last ones took, in seconds."""
        # Where even the own memory is reached by the network, more at a time.
        aim = min(max(_CHUNK, _WORTH * getting), _LONGEST)
        if doing > 2 * aim:
            self._grain = max(1, int(self._grain * aim / doing))
        elif doing < aim / 2 and count == self._grain:
            self._grain = min(2 * self._grain, _MOST)

    def _step(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return locks.alone(self._lock, "TaskQueue", function, *arguments)

    def _enter(self, loop: _Loop) -> None:
        if self._words.closed:
            raise ClosedError(errno.ESHUTDOWN, "the queue is closed", call="TaskQueue")
        self._end_left()
        if self._loop is not None:
            text = "a loop over the queue is under way on this rank: end it first"
            raise SyncError(errno.EPERM, text, call="TaskQueue")
        ending = self._ending
        loop.epoch = ending.epoch
        self._loop = loop
        # It may have ended while this rank had left the loop.
        loop.ended = bool(self._untold) or ending.over()
        if not loop.ended:
            ending.be(idle=False)

    def _take(self) -> Iterator[Any] | None:
        """Take in hand some of the tasks that this rank has; idle if it has none."""
        held = self._ring.now()
        self._share(min(self._grain, (held.high - held.low + 3) // 4))
        left = self._ring.take(self._grain, self._comm.size)
        if left is None:
            self._ending.be(idle=True)
        return left

    def _search(self) -> bool:
        """Wait until this rank has tasks again; return whether the epoch has ended instead."""
        start = perf_counter()
        pause = self._ending.pause()
        try:
            return self._look_for_tasks(pause)
        finally:
            pause.__exit__()
            self._waited += perf_counter() - start

    def _look_for_tasks(self, pause: Any) -> bool:
        ending = self._ending
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

    def _steal(self, victim: int, word: int) -> bool:
        """Take tasks of another rank; whether this one has any now."""
        try:
            return self._step(self._claim, victim, word, self._ring.read(victim, word))
        except PeerLostError as exc:
            self._ending.lose(exc)
            return False

    def _claim(self, victim: int, word: int, tasks: NDArray[Any]) -> bool:
        if self._ring.holds():  # a signal handler has put some
            return True
        self._ending.be(idle=False)
        try:
            return self._ring.steal(victim, word, tasks)
        finally:
            if not self._ring.holds():
                self._ending.be(idle=True)

    def _end_left(self) -> None:
        if self._loop is not None and self._loop.left:
            self._end(self._loop)

    def _end(self, loop: _Loop) -> None:
        """Bring this rank's tasks to where others can take them. It may be gone through twice."""
        if self._loop is not loop:
            return
        if not self._untold:
            ring, ending = self._ring, self._ending
            ring.put_back()
            with suppress(ClosedError):  # by the body
                if loop.ended:
                    ending.begin(loop.epoch + 1)
                    ring.begin(loop.epoch + 1)
                held = ring.now()
                ring.share(held.high - held.low)
                if loop.ended:
                    self._untold.append(True)
                else:
                    ending.be(idle=True)
        self._loop = None

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
        self._close()
