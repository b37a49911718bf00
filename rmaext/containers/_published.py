# SPDX-License-Identifier: BSD-3-Clause
"""The newest complete version of an array of each rank.

Each rank has several buffers, and these words, each of which one rank alone writes:

- NEWEST: the version that was completed last, and its buffer.
- BEGUN, of each buffer: the version that is in it, or is being copied into it.
- WANTED, of each reader: the number of its request for a buffer to be kept; 0 for none.
- KEPT, of each reader: as NEWEST, the version that is kept for it; above, the number of the
  request, modulo NUMBERS.
- and those of `_settling.py`.

A version's buffer is whole and as it was if BEGUN of that buffer is still that version after the
data was read: that alone decides whether a read is good. Requests only let a reader succeed whose
reads last longer than the owner takes to come round to a buffer again. The owner looks at them,
but waits for nobody.

Order. The owner stores BEGUN, then data, then NEWEST, with a full barrier (`sync`) between each
two. A reader loads NEWEST (an acquire, or a message that is answered), reads the data, passes a
full barrier, and loads BEGUN. If it has read any of the data of a later version, it thus finds
that version, or a later one, in BEGUN. The words are aligned and of 8 bytes, so that NumPy stores
them in one instruction.
"""

from __future__ import annotations

import errno
import itertools
import math
import operator
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .. import ClosedError, RmaError, RmaTimeout, SyncError, Window
from .._runtime import locks
from .._runtime.failures import advised
from .._runtime.reports import dtype_name
from ..typing import ScalarT
from ._agreement import Opening, bracketed, common, exchange
from ._settling import WORDS, Settling
from ._values import taken
from ._windows import Closing, Pause, deadline, rank_of

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Published"]

_NEWEST, _BEGUN = 0, 1
_BITS, _VERSIONS = 8, 52  # of a word: from which on it is the version, and the request's number
_NUMBERS = 1 << 11
_MOST = 1 << _BITS
_LEAST = 2
_TRIES = 16  # for each request
_LONG = 8  # reads for which an owner is taken for a fast one after it was seen to be
_LOOKS = 4  # of them for the answer alone, if the owner publishes faster than this rank can read


def _nested() -> NoReturn:
    text = "publish: another call is in it already, which this signal handler has interrupted"
    raise SyncError(errno.EPERM, text, call="publish")


class Published(Closing, Generic[ScalarT]):
    """The newest complete version of an array of each rank, without anybody waiting.

    For asynchronous iterations: each rank publishes its part whenever it has a new one, and reads
    the newest of the others whenever it wants to.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks take part.
    shape : int or tuple of int
        Of the array, the same on all ranks; () and dimensions of 0 are shapes, too.
    dtype : data-type, optional
        Of the array, the same on all ranks; as for `rmaext.Window.allocate`.
    buffers : int, optional
        How many versions a rank has memory for: 2 to 256, the same on all ranks. With two
        more than ranks read it at a time, no read begins anew more often than twice; threads
        of a rank that are overtaken take turns. With 2 it may do so until the owner pauses.
    timeout : float, optional
        Of the windows: see `rmaext.Window`.
    device : str, optional
        "cuda:0", for one: the versions of this rank lie on that device, as of
        `rmaext.Window.allocate`; ranks may differ.

    Raises
    ------
    TypeError, ValueError, MemoryError, Unsupported, LibraryError, RmaError
        On every rank, if any rank's arguments do not fit, or its device.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    The constructor is collective and blocking, as is `close`; `publish`, `read` and `settled`
    are local.

    What is published is atomic as a whole: a read returns one version, never parts of two, and
    versions count from 1. It is linearizable: a read returns the version that was the newest at
    some moment during the call, so those that a rank reads of another never go back, also if
    the ranks tell each other of versions.

    Threads and signal handlers: any threads may read, and publish, at once; versions of several
    threads come one after the other. A signal handler may read at any time, and publish unless it
    has interrupted `publish`. A `publish` that is interrupted by an exception (Ctrl-C) is done or
    is not: `read(comm.rank)` tells. Nobody waits for it.

    Memory: `buffers` arrays on each rank, and two words a rank. Cost: `publish` is one copy and
    about two microseconds, and reads nothing of another rank. `read` is a get between two
    fetches of a word; a read that the owner has overtaken, by `buffers` - 1 versions, asks it to
    keep a version, and begins anew.

    Failure: a rank that is stopped, or dies in a read, holds up nobody. What a lost rank has
    published cannot be read any more: PeerLostError.

    Examples
    --------
    >>> from rmaext.containers import Published
    >>> with Published(MPI.COMM_SELF, 3) as state:
    ...     state.read(0)  # nothing is published yet
    ...     state.publish([1.0, 2.0, 3.0])
    ...     state.read(0)
    (0, array([0., 0., 0.]))
    1
    (1, array([1., 2., 3.]))
    """

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        *,
        buffers: int = 4,
        timeout: float | None = None,
        device: str | None = None,
    ) -> None:
        def tell() -> tuple[int, tuple[int, ...]]:
            count = operator.index(buffers)
            if not _LEAST <= count <= _MOST:
                raise ValueError(f"buffers={count}: there are {_LEAST} to {_MOST}")
            dims = shape if isinstance(shape, tuple | list) else (shape,)
            dims = tuple(map(operator.index, dims))
            if min(dims, default=0) < 0:
                raise ValueError(f"shape {dims} has a negative dimension")
            return count, dims

        told = exchange(comm, "Published", tell, timeout)
        common(told, ValueError, "arguments differ", "{0[0]} buffers of shape {0[1]}".format)
        (count, dims), size = told[0], comm.size
        with Opening() as stack:
            enter = stack.enter_context
            how: dict[str, Any] = {} if device is None else {"device": str(device)}
            length = count * math.prod(dims)
            data = enter(Window.allocate(comm, length, dtype, timeout=timeout, **how))
            words = 1 + count + 2 * size + WORDS
            control = enter(Window.allocate(comm, words, np.int64, timeout=timeout))
            self._windows = (control, data)
            self._comm, self._rank = comm, comm.rank
            self._data, self._control = data, control
            self._shape = dims + np.dtype(dtype).shape
            self._size = math.prod(self._shape)
            self._dtype: np.dtype[Any] = data.dtype
            self._buffers = count
            self._near = device is None
            self._wanted_at, self._kept_at = _BEGUN + count, _BEGUN + count + size
            self._words = control.local
            self._wanted = self._words[self._wanted_at : self._kept_at]
            self._nobody = bytes(self._wanted.nbytes)
            # of the owner
            self._lock = locks.lock()
            self._version = 0  # that was begun last
            self._keeping: dict[int, tuple[int, int]] = {}  # reader: number of its request, buffer
            # of the reader, for the ranks that it reads: the numbers of its requests, KEPT as it
            # was seen last, and who publishes faster than it can read
            self._requests: dict[int, itertools.count[int]] = {}
            self._answers: dict[int, int] = {}
            self._turns: dict[int, threading.RLock] = {}
            self._overtaken: dict[int, int] = {}  # for so many reads more
            self._settling = Settling(control, comm, _NEWEST, _BITS, words - WORDS)
            self._looking = locks.lock()
            stack.pop_all()  # it is whole

    # -- what it is ------------------------------------------------------------------

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """Of the array's elements."""
        return self._dtype

    @property
    def closed(self) -> bool:
        """Whether calls raise ClosedError."""
        return self._control.closed

    def __repr__(self) -> str:
        what = f"shape {self._shape}, {self._dtype}, {self._comm.size} ranks"
        closed = ", closed" * self.closed
        return f"<rmaext.containers.Published: {what}, {self._buffers} buffers{closed}>"

    # -- the owner -------------------------------------------------------------------

    def publish(self, array: Any) -> int:
        """Make an array the newest version of this rank's.

        Parameters
        ----------
        array : array_like
            Of the shape and the dtype; it is copied. Nothing is cast; scalars, tuples and lists
            of them are taken as `rmaext.elements` does.

        Returns
        -------
        int
            The number of the version: more than that of any before.

        Raises
        ------
        TypeError, ValueError, OverflowError
            The array does not fit; the newest version is as before.
        SyncError
            This is a signal handler, which has interrupted `publish`.
        ClosedError

        Notes
        -----
        Local, and wait-free: whatever readers do, it is one copy and a bounded number of steps,
        behind those of other threads of this rank.

        Examples
        --------
        >>> from rmaext.containers import Published
        >>> with Published(MPI.COMM_SELF, (), "i8") as state:
        ...     state.publish(7), state.publish(8)
        (1, 2)
        """
        array = taken(array, self._dtype, "publish", limit=self._data.timeout)
        if array.shape != self._shape:
            raise ValueError(f"publish: the array has shape {array.shape}, not {self._shape}")
        if self._control.closed:
            raise ClosedError(errno.ESHUTDOWN, "publish: it is closed", call="publish")
        return locks.locked(self._lock, _nested, self._publish, array)

    def _publish(self, array: Any) -> int:
        words, sync = self._words, self._control.sync
        if self._keeping or self._wanted.tobytes() != self._nobody:
            buffer = self._free(self._wanted.tolist())
        else:
            buffer = (self._newest() + 1) % self._buffers
        self._version = version = self._version + 1
        words[_BEGUN + buffer] = version
        sync()  # who reads any of the new data finds that it was begun
        if self._near:
            np.copyto(self._slot(buffer), array)
        else:
            self._data.put(array, self._rank, buffer * self._size)
            self._data.flush(self._rank)
        sync()  # who finds the version finds all of its data
        # By this store it is published, for this rank too: a signal handler raises before or after.
        words[_NEWEST] = word = version << _BITS | buffer
        if self._wanted.tobytes() != self._nobody:
            self._keep(word, buffer)
        return version

    def _slot(self, buffer: int) -> NDArray[ScalarT]:
        """Return this rank's memory of a version; of a closed window there is none."""
        first = buffer * self._size
        flat: NDArray[ScalarT] = self._data.local.reshape(-1)
        return flat[first : first + self._size].reshape(self._shape)

    def _newest(self) -> int:
        """Return the buffer of the newest version."""
        return int(self._words[_NEWEST]) & (_MOST - 1)

    def _free(self, wanted: list[int]) -> int:
        """Return the buffer for the next version: never the newest.

        It is the next one in turn that is not kept for a reader; if all are, the one whose
        version is the oldest, so that nobody ever waits for a reader.
        """
        count = self._buffers
        newest = self._newest()
        turn = [(newest + step) % count for step in range(1, count)]
        keeping = self._keeping
        for reader, (number, _) in list(keeping.items()):
            if wanted[reader] != number:
                del keeping[reader]  # it has read, or asks anew
        kept = {buffer for _, buffer in keeping.values()}
        for buffer in turn:
            if buffer not in kept:
                return buffer
        begun = self._words[_BEGUN : _BEGUN + count]
        oldest = min(turn, key=begun.__getitem__)
        for reader, (number, buffer) in keeping.items():
            if buffer == oldest:
                keeping[reader] = (number, -1)  # had its turn
        return oldest

    def _keep(self, word: int, buffer: int) -> None:
        """Keep the newest version for those who have asked since the last one."""
        for reader, number in enumerate(self._wanted.tolist()):
            if number and self._keeping.get(reader, (0, 0))[0] != number:
                self._keeping[reader] = (number, buffer)
                self._words[self._kept_at + reader] = number % _NUMBERS << _VERSIONS | word

    # -- the reader ------------------------------------------------------------------

    def read(
        self,
        rank: int,
        *,
        newer_than: int | None = None,
        timeout: float | None = None,
        out: NDArray[ScalarT] | None = None,
    ) -> tuple[int, NDArray[ScalarT]]:
        """Return the newest version of a rank's array.

        Parameters
        ----------
        rank : int
            Whose; this rank is one, too.
        newer_than : int, optional
            Wait for a version with a higher number.
        timeout : float, optional
            Seconds to wait for that; by default there is no limit while the rank lives. 0
            looks once.
        out : numpy.ndarray or array on a device, optional
            To be filled, of the shape and the dtype, C-contiguous and writeable; by default a
            new array.

        Returns
        -------
        version : int
            0, with an array of zeros, if the rank has published nothing.
        array : numpy.ndarray
            `out`, or the new array.

        Raises
        ------
        BoundsError, TypeError, ValueError
            Before anything is sent.
        RmaTimeout
            There is no such version in time, or the rank does not answer. Then `out` is
            undefined.
        PeerLostError
            The rank is gone.
        ClosedError

        Notes
        -----
        Local. It never holds up the owner. Without `newer_than` it waits for nobody either: it
        begins anew only if the owner has published several versions meanwhile; the reads after
        that ask the owner beforehand to keep one. With it, it looks again after pauses of up
        to a millisecond, in which MPI makes progress.

        Examples
        --------
        >>> from rmaext.containers import Published
        >>> with Published(MPI.COMM_SELF, 2) as state:
        ...     version = state.publish(np.ones(2))
        ...     state.read(0, newer_than=0)
        (1, array([1., 1.]))
        """
        number = rank_of(self._comm, rank, "read")
        if out is None:
            out = np.empty(self._shape, self._dtype)
        elif out.dtype != self._dtype if isinstance(out, np.ndarray) else not hasattr(out, "shape"):
            raise TypeError(f"read: out must be an array of {dtype_name(self._dtype)}")
        elif tuple(out.shape) != self._shape:
            raise ValueError(f"read: out has shape {tuple(out.shape)}, not {self._shape}")
        word = None
        if newer_than is not None:
            word = self._await(number, operator.index(newer_than), timeout)
        if not self._overtaken.get(number):
            if word is None:
                word = int(self._control.load(number, _NEWEST))
            if self._get(number, word, out):
                return word >> _BITS, out
        return self._read_kept(number, out)

    def _await(self, rank: int, newer_than: int, timeout: float | None) -> int:
        """Return NEWEST of a rank once its version is a newer one."""
        control = self._control
        end = deadline(control, timeout)
        with Pause(control, "Published.read", rank) as pause:
            return self._await_paused(rank, newer_than, timeout, end, pause)

    def _await_paused(
        self, rank: int, newer_than: int, timeout: float | None, end: float, pause: Pause
    ) -> int:
        control = self._control
        while True:
            own = self._words[_NEWEST]
            word = int(control.load(rank, _NEWEST))
            if word >> _BITS > newer_than:
                return word
            if math.isfinite(end) and pause.over(end):
                text = f"read: rank {rank}: no version newer than {newer_than} within {timeout} s"
                text = advised(text, late=True)
                raise RmaTimeout(errno.ETIMEDOUT, text, call="read", rank=rank)
            pause.wait(_NEWEST, own, end)

    def _get(self, rank: int, word: int, out: NDArray[Any]) -> bool:
        """Read the version that a word names; whether it was still there, and whole."""
        version, buffer = word >> _BITS, word & (_MOST - 1)
        if self._size:
            self._data.get(rank, buffer * self._size, self._size, out)
        self._control.sync()
        return int(self._control.load(rank, _BEGUN + buffer)) == version

    def _read_kept(self, rank: int, out: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """Ask a rank to keep a version, and read that one, or the newest if it lasts.

        There is one request of this rank, so one thread at a time; a signal handler that reads
        takes the request of the read that it has interrupted away, which asks anew then.
        """
        turn = self._turns.get(rank) or self._turns.setdefault(rank, locks.lock())
        ask = partial(self._ask_in_turn, rank, out)
        return locks.locked(turn, ask, ask)

    def _ask_in_turn(self, rank: int, out: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        try:
            try:
                return self._ask_and_read(rank, out)
            finally:
                with suppress(RmaError):  # then the rank is gone, or it is closed
                    wanted = self._wanted_at + self._rank
                    self._control.accumulate(0, rank, wanted, "replace")
        except BaseException:
            self._overtaken[rank] = _LONG  # the next read comes here, and ends the request
            raise

    def _ask_and_read(self, rank: int, out: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        control, wanted = self._control, self._wanted_at + self._rank
        places = np.array([_NEWEST, self._kept_at + self._rank])
        none = np.zeros(2, np.int64)
        # What was kept when this call began is no answer to its requests.
        old = self._answers.get(rank, 0)
        numbers = self._requests.setdefault(rank, itertools.count(1))
        while True:
            number = next(numbers)
            control.accumulate(number, rank, wanted, "replace")
            looks = _LOOKS if self._overtaken.get(rank) else 0
            for step in range(_TRIES):
                word, keep = control.fetch_op_many(rank, places, none, "no_op").tolist()
                self._answers[rank] = keep
                # Of this request, or of a later one by a signal handler. Late answers to
                # earlier ones may be older than this call.
                later = (keep >> _VERSIONS) - number & (_NUMBERS - 1)
                ours = keep != old and later < _NUMBERS // 2
                if not ours and step < looks:
                    continue  # rather than read the newest version in vain
                word = keep & (1 << _VERSIONS) - 1 if ours else word
                if self._get(rank, word, out):
                    self._overtaken[rank] = _LONG if ours else self._overtaken.get(rank, 1) - 1
                    return word >> _BITS, out
                if ours:  # it was overwritten all the same
                    old = keep
                    break

    # -- all ranks -------------------------------------------------------------------

    def settled(self, done: bool, seen: Mapping[int, int]) -> bool:
        """Return whether all ranks are done, with nothing published that somebody has not seen.

        For the end of an asynchronous iteration: `while not state.settled(done, seen)`.

        Parameters
        ----------
        done : bool
            Whether this rank has nothing to publish while the others do not. It may take that
            back in a later call, as when it has read something new.
        seen : mapping of int to int
            The ranks that this one reads, each with the version that it has used: if they have
            newer ones by now, it is not done yet.

        Returns
        -------
        bool
            From then on True in each call, on all ranks, whatever is said or published.

        Raises
        ------
        BoundsError, TypeError, ValueError
            There is no such rank, or version.
        PeerLostError
            A rank is lost, and not all were told before that all are done; in each call. All else
            goes on.
        RmaTimeout
            A rank does not answer; call it again.
        BusyError
            This is a signal handler, which has interrupted a call.
        ClosedError

        Notes
        -----
        Local, and waits for nobody. It returns True after a moment at which each rank was done, as
        it had said in its last call, had published nothing since, and had seen the newest versions
        of those in its `seen`. The ranks find it out one by one, each in a later call.

        A rank that goes on publishing is never done: publish what has changed enough. Leaving out
        of `seen` a rank that is read may end all of it while that one's last version is not used.

        Cost: nothing of another rank while this one is not done, or knows of one that was not; else
        two words or four of each rank. Three words a rank.

        The count is that of Mattern's four counter method (Distributed Computing 2, 1987), with
        versions for messages; that ranks publish only what has changed by more than a tolerance
        makes an asynchronous iteration end: Bertsekas and Tsitsiklis, Parallel and Distributed
        Computation (1989), section 8.1.

        Examples
        --------
        >>> from rmaext.containers import Published
        >>> with Published(MPI.COMM_SELF, ()) as state:
        ...     x, done, seen = 1.0, False, {}
        ...     while not state.settled(done, seen):
        ...         seen[0], _ = state.read(0)
        ...         new = np.cos(x)
        ...         done = abs(new - x) < 1e-3
        ...         if not done:
        ...             x = new
        ...             version = state.publish(x)
        ...     round(x, 2)
        np.float64(0.74)
        """
        if not isinstance(seen, Mapping):
            raise TypeError(f"settled: seen={seen!r:.60} is no mapping of ranks to versions")
        ranks = [rank_of(self._comm, rank, "settled") for rank in seen]
        versions = list(map(operator.index, seen.values()))
        if self._control.closed:
            raise ClosedError(errno.ESHUTDOWN, "settled: it is closed", call="settled")
        both = np.array([ranks, versions], np.int64)
        return locks.alone(self._looking, "settled", self._settling.look, bool(done), *both)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block.

        Examples
        --------
        >>> from rmaext.containers import Published
        >>> state = Published(MPI.COMM_SELF, 3)
        >>> state.close()
        >>> state.closed
        True
        """
        self._close()
