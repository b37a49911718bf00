# SPDX-License-Identifier: BSD-3-Clause
"""Records for other ranks: many writers, one reader each.

Each rank has a ring of bytes for each writer, which that one alone writes. A message is a word,
then records: the word is its number | how many records, turned by a key of the writer's, so that
no other bytes are like it. Writing it and counting one up in the writer's slot are one step
(`put_notify`), after the records are there: so what the slot counts is whole.

Places count on and on; a place is in the ring modulo its size. Where less than a message of one
record is left up to the end, both sides go on at the start. The reader puts the place up to which
it has read into the writer's words, not at once: the ring has room for what the writer does not
know of.

A reader sleeps on its slots, and takes all that is there off them, or the next wait would end at
once. What is taken off is counted in a dictionary in the same step of Python's. A writer sleeps on
the word that the reader writes, and looks for what comes to its own rank in between.

Interruptions. A signal handler may raise after any step. What this rank knows of a ring is one
tuple, changed by one store. Whether a message went, its word at the reader tells; whether records
came to the inbox, a list which is filled by no step of Python's.
"""

from __future__ import annotations

import errno
import math
import operator
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Set
from contextlib import suppress
from itertools import chain, compress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import ClosedError, PeerLostError, RmaError, RmaTimeout, Window, empty
from .._comm.group import Group
from .._runtime import locks
from .._runtime.failures import advised
from .._runtime.reports import dtype_name, numbers
from ..typing import ScalarT
from ._agreement import Opening, bracketed, common, exchange
from ._device import checked, copied
from ._values import taken
from ._windows import MESSAGE, Closing, Pause, deadline, lost_error, rank_of

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py import MPI

__all__ = ["Channel"]

_WORD = 8  # bytes in front of the records
_SLOTS = 256  # of a window
_COUNTS = (1 << 32) - 1
_DONE, _LEFT = 0, _COUNTS  # instead of a count: the writer is done; an exception has ended it
_MOST = 1 << 30  # bytes of a message: a count has 32 bits
_BATCH = 1 << 18  # bytes of several messages that are handed out as one
_LONGEST = 0.1  # seconds of a pause

_Got = tuple[int, NDArray[Any]]


class _To(NamedTuple):
    """What this rank has sent to another one."""

    place: int = 0
    messages: int = 0
    records: int = 0
    ended: bool = False


class _From(NamedTuple):
    """What this rank has read of another one."""

    place: int = 0
    messages: int = 0
    freed: int = 0  # the place that the writer knows
    end: int | None = None  # how the writer has ended


class Channel(Closing, Generic[ScalarT]):
    """Records that ranks send to each other, as many as there are, whenever there are any.

    For what has another owner now: particles that have left a rank's part, requests, edges of a
    graph. A reader need not know who sends, or how much; a writer waits only for readers that are
    far behind.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks take part.
    dtype : data-type
        Of a record, the same on all ranks; as for `rmaext.Window`, and without dimensions of its
        own.
    capacity : int
        How many records of one rank wait at another one, at least, before `send` has to
        wait; up to 2**31, the same on all ranks.
    timeout : float, optional
        Of the windows, and of a `send` whose reader takes nothing: see `rmaext.Window`.
    device : str, optional
        "cuda:0", for one: what this rank receives are arrays on that device; ranks may differ.

    Raises
    ------
    TypeError, ValueError, MemoryError, Unsupported, LibraryError, RmaError
        On every rank, if any rank's arguments do not fit, or they differ, but for `device`.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    The constructor is collective and blocking, as is `close`; all else is local. A rank may send
    to itself.

    **Order.** The records of a writer come in the order in which it has sent them, if one thread
    did; those of several writers as they come. What was sent by several calls may be received as
    one array, and by one call as several.

    **Who waits for whom.** `send` waits while there is no room at its reader, and takes in what
    comes for its own rank meanwhile: so ranks that send to each other all go on, however full
    they are. What it took in lies in this rank's memory until it is received. `receive` and a
    loop wait for records, without limit while a writer lives that is not done.

    **Ctrl-C**, or any exception of a signal handler: no record is lost, or received twice, and no
    other rank waits for this one. A `send` that it ends has sent the first records, or none, or
    all: `sent` tells. A loop that it ends has got what its body had.

    **Threads.** Any threads of a rank may send and receive at once: records are received by one
    of them. In a signal handler that has interrupted a call halfway it is BusyError, and nothing
    was sent or received.

    **A rank that is lost**, or has left by an exception, sends nothing more: what it had sent is
    received, so is what the others send, and then PeerLostError is raised, once, which names it.
    A `send` to it is PeerLostError; to others all is as before.

    **Devices.** `send` takes arrays on any device: it waits for the work of their stream, and
    copies them to the host. With `device` each array that `receive`, `try_receive` or a loop
    returns is new memory there, of CuPy or PyTorch if the program has imported one of them, ready
    for the next kernel. What is on its way lies in the host's memory all the same, as readers look
    for it there: so send large arrays, as each call allocates, which may wait for the device.
    Where that fails, nothing is lost: the next call returns the records.

    Memory: on each rank `capacity` records of each rank, 8 bytes for each of them, and a third
    of that, up to 256 KiB. Cost: two copies of the records, and on one node some 5 us a call of
    `send` and 10 us a call of `receive`, so send arrays. Over the network a message for each call
    of `send`, and for what is longer than 32 KiB a write besides.

    MPI: MPI_Isend, MPI_Iprobe and MPI_Recv, with a protocol for the end.

    Examples
    --------
    >>> from rmaext.containers import Channel
    >>> with Channel(MPI.COMM_SELF, float, capacity=100) as channel:
    ...     channel.send([1.0, 2.0], 0)
    ...     channel.send(3.0, 0)
    ...     channel.done()
    ...     for source, records in channel:
    ...         print(source, records)
    0 [1. 2. 3.]
    """

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        dtype: DTypeLike,
        capacity: int,
        *,
        timeout: float | None = None,
        device: str | None = None,
    ) -> None:
        def tell() -> tuple[Any, int, int]:
            count, kind = operator.index(capacity), np.dtype(dtype)
            if not 1 <= count <= 1 << 31:
                raise ValueError(f"capacity={count}: there are 1 to 2**31 records")
            if kind.shape:
                text = f"dtype {dtype_name(kind)} has dimensions: make it a field, "
                raise TypeError(text + f"as in [('record', {kind.base}, ...)]")
            empty(0, kind)  # raises what a window would
            if device is not None:
                checked(device)
            return kind, count, int.from_bytes(os.urandom(8), "little")

        told = exchange(comm, "Channel", tell, timeout)
        common([kind for kind, _, _ in told], TypeError, "dtypes differ", dtype_name)
        common(
            [count for _, count, _ in told], ValueError, "arguments differ", "capacity={}".format
        )
        self._comm, self._me, size = comm, comm.rank, comm.size
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._capacity, self._keys = told[0][1], [key for _, _, key in told]
        self._device = device
        self._least = -(-(_WORD + self._dtype.itemsize) // 8) * 8  # bytes of a message
        # and what is left free at the end of the ring, room for that, and for the last word
        self._size = (self._capacity + 2) * self._least + _WORD
        self._late = min(self._size // 24 * 8, _BATCH)  # bytes read that the writer may not know of
        self._size += self._late
        self._others = [rank for rank in range(size) if rank != self._me]
        with Opening() as stack:
            enter = stack.enter_context
            self._words = enter(Window.allocate(comm, size, np.int64, timeout=timeout))
            self._rings: list[Window[np.uint8]] = []
            for first in range(0, size, _SLOTS):
                length = min(_SLOTS, size - first) * self._size
                self._rings.append(enter(Window.allocate(comm, length, np.uint8, timeout=timeout)))
            self._windows = (self._words, *self._rings)
            group = Group.known(comm)
            self._limit = math.inf if group is None else group.timeout
            self._limit = self._limit if timeout is None else float(timeout)
            self._own = self._words.local
            # of the writer
            self._sending = locks.lock()
            self._to = [_To()] * size
            self._done = False
            self._word = np.empty(_WORD, np.uint8)
            self._direct: dict[int, bool] = {}
            # of the reader
            self._receiving = locks.lock()
            self._from = [_From()] * size
            self._inbox: deque[_Got] = deque()
            self._come = Counter(dict.fromkeys(range(size), 0))  # messages, by writer
            self._slots = range(min(size, _SLOTS))
            self._coming: tuple[int, _From, list[None]] = (0, _From(), [])
            self._told: frozenset[int] = frozenset()  # lost ranks that were told of
            stack.pop_all()  # it is whole

    # -- what it is ------------------------------------------------------------------

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """Of a record."""
        return self._dtype

    @property
    def capacity(self) -> int:
        """How many records of one rank wait at another one, at least."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether calls raise ClosedError."""
        return self._words.closed

    @property
    def sent(self) -> NDArray[np.int64]:
        """How many records this rank has sent to each rank. Local."""
        return np.array([to.records for to in self._to], np.int64)

    @property
    def ended(self) -> bool:
        """Whether `receive` returns None from now on. Local.

        All other ranks are done, or lost, which was told; and all is received.
        """
        return (
            not (self._inbox or self._own_comes())
            and {rank for rank in self._others if self._from[rank].end != _DONE} <= self._told
        )

    def __repr__(self) -> str:
        what = f"{self._dtype}, {self._capacity} records of each of {self._comm.size} ranks"
        state = ", done" * self._done + ", closed" * self.closed
        return f"<rmaext.containers.Channel: {what}{state}>"

    # -- rings -----------------------------------------------------------------------

    def _behind(self, place: int, nbytes: int) -> int:
        """Return the place behind a message."""
        place += -(-nbytes // 8) * 8
        left = -place % self._size
        return place + left if left < self._least else place

    def _ring(self, writer: int) -> tuple[Window[np.uint8], int, int]:
        """Return the window in which each rank has the ring of a writer, where, and the slot."""
        window, slot = divmod(writer, _SLOTS)
        return self._rings[window], slot * self._size, slot

    # -- the writer ------------------------------------------------------------------

    def send(self, records: Any, rank: int) -> None:
        """Send records to a rank.

        Parameters
        ----------
        records : array_like or array on a device
            Of the dtype, any shape, any number, none included; scalars and tuples as
            `rmaext.elements` takes them. Nothing is cast. More than `capacity` go in pieces.
        rank : int
            Who gets them; this rank is one, too.

        Raises
        ------
        BoundsError, TypeError, ValueError, OverflowError
            Before anything is sent.
        RmaTimeout
            The rank has taken nothing for the time limit: it has to receive. The first records
            may be sent: see `sent`.
        PeerLostError
            The rank is gone.
        BusyError
            This is a signal handler, which has interrupted a call.
        ClosedError
            The channel is closed, or this rank has said that it is done.

        Notes
        -----
        Local; blocking while there is no room at the rank. When it returns, the records are on
        their way, and the array may be used again.

        Examples
        --------
        >>> from rmaext.containers import Channel
        >>> with Channel(MPI.COMM_SELF, [("x", float), ("id", int)], capacity=10) as channel:
        ...     channel.send((0.5, 7), 0)
        ...     channel.receive()
        (0, array([(0.5, 7)], dtype=[('x', '<f8'), ('id', '<i8')]))
        """
        number = rank_of(self._comm, rank, "send")
        array = taken(records, self._dtype, "send", limit=self._words.timeout)
        data: NDArray[Any] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        went = self._put(number, data, None)  # none does, too, if it is closed or done
        while went < data.size:
            data = data[went:]
            went = self._put(number, data, None) or self._put_later(number, data)

    def done(self) -> None:
        """Say that this rank sends nothing more. Twice is harmless.

        Raises
        ------
        RmaTimeout, BusyError, ClosedError
            Some ranks may not know it: call it again.

        Notes
        -----
        Local, not blocking: a message to each rank. `close` does it, too.

        Examples
        --------
        >>> from rmaext.containers import Channel
        >>> with Channel(MPI.COMM_SELF, int, capacity=10) as channel:
        ...     channel.done()
        ...     list(channel)
        []
        """
        self._end(_DONE)

    def _end(self, mark: int) -> None:
        self._done = True
        for rank in self._others:
            with suppress(PeerLostError):
                self._put(rank, self._word[:0], mark)

    def _put(self, rank: int, data: NDArray[Any], mark: int | None) -> int:
        """Send a message, if there is room; return how many bytes of the data went."""
        lock, put = self._sending, self._put_one
        went: int = locks.alone(
            lock, "Channel", locks.within, lock, put, self._put_settled, rank, data, mark
        )
        return went

    def _put_one(self, rank: int, data: NDArray[Any], mark: int | None) -> int:
        if self._words.closed:
            raise ClosedError(errno.ESHUTDOWN, "the channel is closed", call="Channel")
        if self._done and mark is None:
            text = "send: this rank has said that it is done, which is for good: make a channel "
            text += "for each round, or tell the ranks beforehand how much comes in one"
            raise ClosedError(errno.ESHUTDOWN, text, call="send")
        if self._from[rank].end == _LEFT:
            text = f"send: rank {rank} has left by an exception"
            raise lost_error(self._comm, [rank], "send", text)
        to, size, unit, count = self._to[rank], self._size, self._dtype.itemsize, 0
        at = to.place % size
        ring, first, slot = self._ring(self._me)
        first += at
        direct = self._direct.get(rank)
        if direct is None:
            direct = self._direct[rank] = ring.route(rank) == "direct"
        if mark is None:
            # Besides, there is always room for what the ring's end wastes, and the last word.
            room = size - _WORD - self._least - (to.place - int(self._own[rank]))
            half = min(size // 2, _MOST)  # so both sides are at work
            room = min(room, size - at, max(self._least, half))
            count = min((room - _WORD) // unit, data.size // unit)
        if count <= 0 and (mark is None or to.ended):
            return 0
        nbytes, word = count * unit, self._word
        word.view(np.uint64)[0] = self._named(to, count if mark is None else mark)
        if direct and nbytes:
            ring.put(data[:nbytes], rank, first + _WORD)
            ring.put_notify(word, rank, first, slot)
        else:
            if not direct and self._is_lost(rank):
                raise lost_error(self._comm, [rank], "send", f"send: rank {rank} is lost")
            message = np.concatenate((word, data[:nbytes]))
            # The request keeps the copy; what becomes of it the look above tells the next one.
            put: Any = ring.rput_notify if message.size > MESSAGE else ring.put_notify
            put(message, rank, first, slot)
        self._to[rank] = self._after(to, count, mark is not None)
        return nbytes

    def _named(self, to: _To, count: int) -> int:
        """Return the word of the next message."""
        return self._keys[self._me] ^ ((to.messages + 1 & _COUNTS) << 32 | count)

    def _after(self, to: _To, count: int, ended: bool) -> _To:
        place = self._behind(to.place, _WORD + count * self._dtype.itemsize)
        return _To(place, to.messages + 1, to.records + count, ended)

    def _put_settled(self, rank: int, data: NDArray[Any], mark: int | None) -> None:
        """Find out whether a message went that an exception may have ended."""
        to, (ring, first, _) = self._to[rank], self._ring(self._me)
        with suppress(RmaError):
            ring.flush(rank)
            found = ring.get(rank, first + to.place % self._size, _WORD).view(np.uint64)
            number, count = divmod(int(found[0]) ^ self._keys[self._me], 1 << 32)
            if number == to.messages + 1 & _COUNTS and not to.ended:
                self._to[rank] = self._after(to, count if mark is None else 0, mark is not None)

    def _put_later(self, rank: int, data: NDArray[Any]) -> int:
        """Send a message once there is room; take in what comes meanwhile."""
        with Pause(self._words, "Channel.send", rank) as pause:
            return self._put_paused(rank, data, pause)

    def _put_paused(self, rank: int, data: NDArray[Any], pause: Pause) -> int:
        end = time.monotonic() + self._limit
        while True:
            seen = self._own[rank]
            self._take_in()
            went = self._put(rank, data, None)
            if went:
                return went
            if rank in self._lost():
                raise lost_error(self._comm, [rank], "send", f"send: rank {rank} is lost")
            if pause.over(end):
                text = f"send: rank {rank} has taken nothing for {self._limit:g} s, and has "
                text += f"{self._capacity} records of this rank: it has to receive"
                raise RmaTimeout(errno.ETIMEDOUT, advised(text, late=True), call="send", rank=rank)
            pause.wait(rank, seen, end)

    # -- the reader ------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> tuple[int, NDArray[ScalarT]] | None:
        """Wait for records, and take them.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; by default there is no limit while a writer lives. 0 looks once.

        Returns
        -------
        source : int
            Who has sent them.
        records : numpy.ndarray or array on a device
            Of one dimension, one at least, in the order in which they were sent; new memory, of
            the channel's `device` if it has one.

        None instead of both if all other ranks are done, and nothing is left.

        Raises
        ------
        TypeError, ValueError
            Of a timeout that is none.
        RmaTimeout
            Nothing came in time.
        PeerLostError
            All other writers are done, and nothing is left. Once for each rank that is lost.
        BusyError
            This is a signal handler, which has interrupted a call.
        ClosedError

        Notes
        -----
        Local, blocking. A loop over the channel calls it until it returns None.

        Examples
        --------
        >>> from rmaext.containers import Channel
        >>> with Channel(MPI.COMM_SELF, int, capacity=10) as channel:
        ...     channel.send([1, 2], 0)
        ...     channel.receive(timeout=1)
        ...     channel.receive()
        (0, array([1, 2]))
        """
        end = deadline(self._words, timeout)
        return self._received(lambda got: self._await(got, end, timeout), end)

    def try_receive(self) -> tuple[int, NDArray[ScalarT]] | None:
        """Take records if some are there.

        Returns
        -------
        source, records
            As `receive`; None if there is nothing now. Then `ended` tells whether there may be
            later.

        Raises
        ------
        PeerLostError, BusyError, ClosedError
            As `receive`.

        Notes
        -----
        Local, not blocking.

        Examples
        --------
        >>> from rmaext.containers import Channel
        >>> with Channel(MPI.COMM_SELF, int, capacity=10) as channel:
        ...     channel.try_receive()
        ...     channel.send(5, 0)
        ...     channel.try_receive()
        (0, array([5]))
        """
        return self._received(self._look)

    def __iter__(self) -> Iterator[tuple[int, NDArray[ScalarT]]]:
        return iter(self.receive, None)

    def _received(self, fetch: Any, end: float = math.inf) -> _Got | None:
        got: list[_Got] = []
        try:
            if not self._pop(got):
                fetch(got)
            if not got or self._device is None:
                return got[0] if got else None
            source, records = got[0]
            # what came in the last moment is copied all the same
            limit = min(self._words.timeout, max(end - time.monotonic(), _LONGEST))
            return source, copied(records, self._device, limit)
        except BaseException:
            self._inbox.extendleft(got)  # it is not handed out
            raise

    def _pop(self, got: list[_Got]) -> bool:
        """Take from the inbox, which is filled first if it is empty; whether there was any."""
        if not self._inbox or self.closed:  # which taking in says
            self._take_in()
        with suppress(IndexError):  # empty, or another thread was faster
            got.extend(map(deque.popleft, (self._inbox,)))  # by no step of Python's
        return bool(got)

    def _look(self, got: list[_Got]) -> bool:
        """Whether something was taken, or nothing more comes."""
        lost = self._lost()  # before the look at what has come: theirs is all there
        return self._pop(got) or self._over(lost)

    def _await(self, got: list[_Got], end: float, timeout: float | None) -> None:
        with Pause(self._words, "Channel.receive") as pause:
            if len(self._rings) == 1:  # else there is something else to look at
                pause.seconds = pause.longest = _LONGEST
            self._await_paused(got, end, timeout, pause)

    def _await_paused(
        self, got: list[_Got], end: float, timeout: float | None, pause: Pause
    ) -> None:
        lost: Set[int] = self._told
        while not (self._pop(got) or self._over(lost)):
            if math.isfinite(end) and pause.over(end):
                ranks = [rank for rank in self._others if self._from[rank].end is None]
                text = f"receive: nothing within {timeout} s; not done: {numbers(ranks)}"
                raise RmaTimeout(errno.ETIMEDOUT, advised(text, late=True), call="receive")
            wait: Any = self._rings[0].wait_any
            try:
                self._come.update(map(wait, (self._slots,), (pause.next(end),)))
            except (RmaTimeout, PeerLostError):
                lost = self._lost()  # before the look at what has come: theirs is all there

    def _lost(self) -> set[int]:
        """Return the ranks that are known to be gone."""
        with suppress(PeerLostError):
            self._words.flush_local()  # raises if any is
            return set()
        return {rank for rank in self._others if self._is_lost(rank)}

    def _is_lost(self, rank: int) -> bool:
        try:
            self._words.flush_local(rank)
        except PeerLostError:
            return True
        return False

    def _over(self, lost: Set[int]) -> bool:
        """Whether nothing more comes; raise if that is so since ranks are lost."""
        undone = {rank for rank in self._others if self._from[rank].end != _DONE}
        left = {rank for rank in undone if self._from[rank].end == _LEFT}
        if undone - lost - left or self._own_comes() or self._inbox:
            return False  # another thread may have taken the last into the inbox
        news = sorted(undone - self._told)
        if news:
            text = f"Channel: {numbers(news)} lost, or left by an exception, and not done: all "
            error = lost_error(self._comm, news, "Channel", text + "that came is received")
            # No signal handler is called between these lines.
            self._told |= {*news}
            raise error
        return True

    def _own_comes(self) -> bool:
        """Whether this rank has sent itself what has not come yet, as by the network."""
        return self._from[self._me].messages < self._to[self._me].messages

    def _take_in(self) -> None:
        """Take what has come for this rank into the inbox."""
        lock, take = self._receiving, self._take_all
        locks.alone(lock, "Channel", locks.within, lock, take, self._take_settled)

    def _take_all(self) -> None:
        for window, ring in enumerate(self._rings):
            counts, take = ring.notify_counts(), ring.test_notify
            for slot in counts.nonzero()[0].tolist():
                number, source = int(counts[slot]), window * _SLOTS + slot
                taken = compress(((source,) * number,), map(take, (slot,), (number,)))
                self._come.update(chain.from_iterable(taken))
        for source, come in enumerate(self._come.values()):
            if come > self._from[source].messages:
                self._take_of(source, come)

    def _take_of(self, source: int, count: int) -> None:
        """Take messages of a writer, of whom so many have come, to the inbox."""
        self._words.sync()  # behind the count, before the records
        place, messages, freed, end = self._from[source]
        ring, first, _ = self._ring(source)
        memory = ring.local[first : first + self._size]
        words, unit, parts, total = memory.view(np.uint64), self._dtype.itemsize, [], 0
        key = self._keys[source]
        while messages < count and total < _BATCH:
            at = place % self._size
            name, number = divmod(int(words[at // 8]) ^ key, 1 << 32)
            if name != messages + 1 & _COUNTS:  # the count of a later one has overtaken it
                break
            if number in (_DONE, _LEFT):
                end, number = number, 0
            else:
                parts.append(memory[at + _WORD : at + _WORD + number * unit])
            total += number * unit
            place = self._behind(place, _WORD + number * unit)
            messages += 1
        done: list[None] = []
        self._coming = coming = source, _From(place, messages, freed, end), done
        if parts:
            records = np.concatenate(parts).view(self._dtype)
            done.extend(map(self._inbox.append, ((source, records),)))  # by no step of Python's
        self._from[source] = coming[1]
        self._free(source)

    def _take_settled(self) -> None:
        """Note what has come to the inbox, whatever an exception has ended."""
        source, come, done = self._coming
        if done and self._from[source].messages < come.messages:
            self._from[source] = come
        self._free(source)

    def _free(self, source: int) -> None:
        """Tell a writer how far its records were taken, if that is far enough."""
        come = self._from[source]
        if come.place - come.freed >= self._late:
            with suppress(PeerLostError):
                self._words.accumulate(come.place, source, self._me, "replace")
            self._from[source] = come._replace(freed=come.place)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Say that this rank is done, wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. What is not received is
        gone; who still sends to a rank that is here waits up to its time limit.

        Examples
        --------
        >>> from rmaext.containers import Channel
        >>> channel = Channel(MPI.COMM_SELF, int, capacity=10)
        >>> channel.close()
        >>> channel.closed
        True
        """
        self._close()

    def _close(self) -> None:
        if not self.closed:
            self._end(_DONE)
        super()._close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None and not self.closed:
                with suppress(RmaError):
                    self._end(_LEFT)
        finally:  # another exception may have come
            super().__exit__(kind, error, trace)
