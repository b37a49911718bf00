# SPDX-License-Identifier: BSD-3-Clause
"""Windows: memory that every rank of a communicator can put to and get from."""

from __future__ import annotations

import errno
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._comm.control import Block, Controls
from .._comm.group import Group
from .._comm.keys import failed, settle, succeeded
from .._comm.records import elements, one_of
from .._comm.region import Region
from .._fabric.endpoint import Fabric
from .._fabric.registration import How, Registration
from .._memory import arrays
from .._native import hot
from .._native._lib import ffi, lib
from .._ops.nonblocking import Beginnings
from .._ops.updates import UpdateOperations
from .._ops.vector import behind
from .._runtime import lifetime
from .._runtime.config import timeout_seconds
from .._runtime.reports import Patience
from .._sync.epochs import Epochs
from .._sync.notify import Notifications
from ..errors import (
    AccessError,
    BoundsError,
    ClosedError,
    GrantError,
    NotLocalError,
    SyncError,
    from_c,
    from_code,
)
from .allocation import Allocations, Memory
from .constructors import MoreWindows
from .indexing import IndexOperations
from .registered import Registered
from .storage import StoredMemory

if TYPE_CHECKING:
    from typing import Self, Unpack  # Python 3.11

__all__ = ["Memory", "Window"]

Array = NDArray[Any]
Place = tuple[int, int, int]  # rank, offset and count, in elements

_PROC_NULL = int(MPI.PROC_NULL)
_PREPARED = {  # name, and rights of origins that it needs
    hot.PUT: ("prepare_put", lib.RMAEXT_WRITE),
    hot.GET: ("prepare_get", lib.RMAEXT_READ),
    hot.FETCH_ADD: ("prepare_fetch_add", lib.RMAEXT_READ | lib.RMAEXT_WRITE),
}


class Window(
    hot.Window,
    IndexOperations,
    UpdateOperations,
    Beginnings,
    Notifications,
    Epochs,
    Registered,
    MoreWindows,
    Allocations,
    StoredMemory,
):
    """One-sided access to an array of every rank (MPI-4.1, chapter 12).

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks take part.
    array : numpy.ndarray or list of these
        This rank's memory: C-contiguous, any shape, any dtype without Python
        objects. Sizes may differ between ranks, zero included; the dtype, byte
        order included, may not. The window keeps the array alive. The elements
        of several arrays are counted one array after another; see `JoinedWindow`.
    access : {"r", "w", "rw"}, optional
        What origins may do; by default what the array allows.
    timeout : float, optional
        Seconds without progress after which an operation raises
        `RmaTimeout`; by default RMAEXT_TIMEOUT, or 60. Here and wherever there is a
        time limit: an integer or float, Python's or NumPy's, not negative and no bool;
        inf, and what is more than 1e9, is no limit.
    proc_null : bool, optional
        MPI.PROC_NULL is taken as a rank, as neighbours of a Cartesian communicator may
        be; see Notes. By default it is BoundsError, as any negative rank.
    **how
        key, auth_key, ordering, kind, device, persistent, counts_writes: see
        `rmaext.Registration`.

    Raises
    ------
    TypeError, ValueError, AccessError, NoKeyError, KeyRejectedError, Unsupported
        On every rank, if any rank's arguments do not fit; the message names
        the ranks at fault.
    SyncError
        On every rank, if the ranks are in different collective calls, or one has given up.

    Notes
    -----
    Collective, blocking; corresponds to MPI_Win_create. Offsets everywhere are
    elements of the dtype, counted in C order from the start of the array.

    `win[rank, key]` reads and assigns what `key` means in the array of that
    rank, as NumPy has it: integers, slices, None, ..., index arrays and masks.
    Reading returns a new array, or an element; assigning takes what `put`
    takes, broadcasts it, and is complete at the target after `flush`. It
    corresponds to MPI_Get and MPI_Put with a derived datatype for the target.
    `win[rank, i] += 1` is a read and a write: `win.at(rank).add(i, 1)` is
    atomic. BoundsError and IndexError, TypeError, ValueError and AccessError are
    raised before anything is sent.

    MPI.PROC_NULL is -1 or -2 or another number, as the MPI has it: so a rank that is
    `rank - 1` at rank 0 by mistake would be an error with one MPI and silently nothing
    with another. Only with `proc_null=True` it is a rank, and then everywhere the one
    that has nothing: what writes, updates, locks, flushes or notifies does nothing; what
    returns values returns an array without elements, or `out` as it was; requests are
    done at once, with that result. Calls on many elements leave those out that are for
    it, whose results are 0, or as they were in `out`. `post` and `start` leave it out of
    their groups. Arguments are checked all the same, but for the offset. Views
    have it from their window. `size`, `route`, `peer_view` and compiled code
    (`rmaext.jit`) know no such rank.

    Ranks, offsets, counts and slots are whatever has `__index__`: of Python, NumPy or
    others, but no floats.

    A window is used after its creation without any further call on the target:
    operations complete while the target computes or sleeps. Memory that is the
    target of concurrent puts is undefined where they overlap; `accumulate` and
    the other updates are atomic against each other, per element.
    """

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """Make one of the kind that the arguments are for."""
        array = keywords.get("array", args[1] if len(args) > 1 else None)
        kind: type[Self] = cls
        if cls is Window and isinstance(array, (list, tuple)):
            kind = cls._joined()  # type: ignore[assignment]
        return super().__new__(kind)

    def __init__(
        self,
        comm: MPI.Comm,
        array: Array | Sequence[Array],
        access: str | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        **how: Unpack[How],
    ) -> None:
        self._create(comm, lambda: arrays.window_array(array), access, timeout, how, proc_null)

    _region: Region
    _array: Array
    _block: Block | None = None  # a hidden window has none
    _views: weakref.WeakValueDictionary[int, Window] | None = None  # that may be open
    _stride: int  # bytes from element to element
    _null: int | None = None  # MPI.PROC_NULL, where it is taken as a rank
    _hint = "; if neighbours may be MPI.PROC_NULL, make the window with proc_null=True"

    # -- creation ----------------------------------------------------------------

    def _create(
        self,
        comm: MPI.Comm,
        make: Callable[[], Array],
        access: str | None,
        timeout: float | None,
        how: How | None = None,
        proc_null: bool = False,
    ) -> None:
        if hasattr(self, "_group"):
            raise RuntimeError("this window was made before; make another one")
        self._closed = True  # until it is whole
        self._null = _PROC_NULL if proc_null else None
        self._comm = comm
        self._group = group = Group.of(comm)
        self._region = region = self._new_region(group)

        def mine() -> tuple[Array, int]:
            array = make()
            if not isinstance(proc_null, bool):
                raise TypeError(f"proc_null={proc_null!r}: must be True or False")
            region.registration = Registration.of(how or {})
            self._timeout = group.timeout if timeout is None else timeout_seconds(timeout)
            return array, arrays.access_bits(access, array.flags.writeable)

        self._name = "not made"  # until all agree
        with group.collective(region.creation, group.windows + 1):
            if group.controls is None:
                group.controls = Controls(group, _hidden_window)
            try:
                region.exchange(mine)
                self._block = block = group.controls.take()
            except Exception as exc:
                # if all ranks have failed, no rank has a window with our key in it
                if group.meetings.all_have(exc):
                    region.release()
                raise
            # If this fails (no memory left), then on this rank only: it is out of
            # step with the others, who may write here, so the memory stays.
            group.meetings.alone()
            self._name = group.next_name()
            region.connect()
            self._adopt(group.token(self._name), block)
            self._begin_storage()
            group.join()
            group.meetings.open(self._name, block)
            group.meetings.together()
        lifetime.on_end(self)
        self._closed = False

    def _new_region(self, group: Group) -> Region:
        return Region(group)

    def _adopt(self, token: bytes, block: Block | None) -> None:
        """Make the C window over the region."""
        region = self._region
        self._fabric = region.fabric
        self._array = region.array
        self._records, self._routes, self._maps = region.records, region.routes, region.maps
        self._handle = region.window(self._timeout, token, block)
        self._dtype = self._array.dtype
        self._stride = self._dtype.itemsize
        self._sizes = elements(self._records.size, self._dtype.itemsize)
        self._atomic_type = arrays.atomic_type(self._dtype)
        self._bind_plain()

    def _bind_plain(self) -> None:
        """Let the C methods carry operations out where they can."""
        self._shapes = one_of(self._records.shape)
        address = int(ffi.cast("uintptr_t", self._handle))
        self._bind(self._handle, address, self._dtype, self._atomic_type, self._fabric)

    # -- what it is ----------------------------------------------------------------

    @property
    def local(self) -> Array:
        """The array of this rank. Local.

        `win.local[i] += 1` is an ordinary access: for an update that is atomic
        against the other ranks', use `win.fetch_add(1, rank, i)` on the own rank.
        """
        return self._array

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements, the same on all ranks."""
        return self._dtype

    @property
    def fabric(self) -> Fabric | None:
        """The endpoint in use; None where all routes are direct."""
        return self._fabric

    @property
    def closed(self) -> bool:
        """Whether operations raise ClosedError."""
        return self._closed

    def size(self, rank: int) -> int:
        """Return the number of elements on a rank. Local."""
        return self._sizes[self._rank(rank, "size")]

    def peer_view(self, rank: int) -> Array:
        """Return the memory of a rank of this node as an array, without a copy.

        Returns
        -------
        numpy.ndarray
            In that rank's shape; read-only where the window allows origins no
            writing. Let go of it before the window is closed: the memory may
            then become part of another array of that rank, which writing through
            the view would change.

        Raises
        ------
        NotLocalError
            The route to that rank is not "direct".
        AccessError
            The window allows origins no reading.

        Notes
        -----
        Local; corresponds to MPI_Win_shared_query. Accesses through it are
        ordinary loads and stores: no atomics, and no order but that which
        `fence` or other synchronisation gives.
        """
        self._check_open("peer_view")
        number = self._rank(rank, "peer_view")
        where = f"peer_view: window {self._name}, rank {number}"
        if self._routes[number] != lib.RMAEXT_DIRECT:
            text = f"{where}: its route is {self.route(number)}, not direct"
            raise NotLocalError(errno.EREMOTE, text, call="peer_view", rank=number)
        record = self._records[number]
        if not record.access & lib.RMAEXT_READ:
            text = f"{where}: the window there allows no reading"
            raise AccessError(errno.EACCES, text, call="peer_view", rank=number)
        writeable = bool(record.access & lib.RMAEXT_WRITE)
        if number == self._group.rank or not record.size:
            view = self._array.view() if record.size else np.empty(record.shape, self._dtype)
        else:
            # stays mapped until the process ends
            data = memoryview(ffi.buffer(ffi.cast("char *", self._maps[number]), record.size))
            data = data if writeable else data.toreadonly()  # which NumPy cannot undo
            view = np.frombuffer(data, self._dtype).reshape(record.shape)
        view.flags.writeable = writeable
        return view

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.dtype}, {len(self._sizes)} ranks"
        return f"<rmaext.Window {self._name} ({state})>"

    # -- operations ----------------------------------------------------------------
    # put, get and flush are those of csrc/python/window.c, which come
    # here with all that is not plain: what needs a conversion, or an error.

    @behind
    def _put(self, origin: Any, rank: int, offset: int = 0) -> None:
        self._check_open("put")
        array = arrays.origin(origin, self._dtype)
        place = self._place("put", rank, offset, array.size)
        if place is not None:
            data = arrays.address(array)
            self._run("put", place, (array,), lib.rmaext_put, data, array.nbytes)

    @behind
    def _get(
        self,
        rank: int,
        offset: int = 0,
        count: int | None = None,
        out: Array | None = None,
    ) -> Array:
        self._check_open("get")
        count = self._count("get", rank, offset, count, out)
        place = self._place("get", rank, offset, count)
        if place is None:
            return np.empty(0, self._dtype) if out is None else out
        if out is None:
            out = np.empty(count, self._dtype)
        data = arrays.address(out)
        self._run("get", place, (out,), lib.rmaext_get, data, out.nbytes)
        return out

    def connect(self, ranks: Iterable[int] | None = None) -> None:
        """Connect to ranks ahead of time, to all by default.

        The first operation on a rank that is reached by the fabric makes a
        connection, which takes 25 to 90 ms; this makes them all at once, for
        all windows of this process. Ranks that are reached by memory need none.

        Raises
        ------
        BoundsError, RmaTimeout, PeerLostError

        Notes
        -----
        Local, blocking.
        """
        self._check_open("connect")
        numbers = range(len(self._sizes)) if ranks is None else map(operator.index, ranks)
        wanted = {self._rank(rank, "connect") for rank in numbers if rank != self._null}
        # cma's atomics go by the fabric
        far = [rank for rank in sorted(wanted) if self._routes[rank] != lib.RMAEXT_DIRECT]
        if far:
            self._group.network().connect(far)

    # -- operations that are repeated ----------------------------------------------

    def register(self, array: Array) -> hot.Buffer:
        """Return a buffer object, for an array that is put or got often.

        Parameters
        ----------
        array : numpy.ndarray
            Of the window's dtype and C-contiguous. It is kept, not copied: each
            operation uses what it holds then, and it cannot be resized.

        Returns
        -------
        Buffer
            With `put(rank, offset=0)`, `get(rank, offset=0)`, which returns the
            array, `fetch_add(rank, offset=0)` and the attribute `array`.

        Notes
        -----
        Local; there is nothing to release.
        """
        self._check_open("register")
        return hot.Buffer(self, arrays.check_origin(array, self._dtype))

    def prepare_put(self, origin: Array, rank: int, offset: int = 0) -> hot.Prepared:
        """Return a function without arguments that puts the array there each time.

        Parameters
        ----------
        origin : numpy.ndarray
            As for `register`; it is read anew in each call.
        rank, offset : int
            As for `put`.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError
            At once, as far as they can be foreseen. A call raises what `put` does.

        Notes
        -----
        Local. The calls correspond to MPI_Put with the same arguments.
        """
        arrays.check_origin(origin, self._dtype)
        return self._prepare(hot.PUT, origin, rank, offset)

    def prepare_get(self, out: Array, rank: int, offset: int = 0) -> hot.Prepared:
        """Return a function without arguments that fills `out`, and returns it.

        As `prepare_put`; `out` must be writeable.
        """
        arrays.check_result(out, self._dtype)
        return self._prepare(hot.GET, out, rank, offset)

    def prepare_fetch_add(self, value: Any, rank: int, offset: int = 0) -> hot.Prepared:
        """Return a function without arguments that adds, and returns the previous values.

        As `prepare_put`; `value` may be a scalar, too.
        """
        if not np.isscalar(value):
            arrays.check_origin(value, self._dtype)
        operand = arrays.origin(value, self._dtype)
        return self._prepare(hot.FETCH_ADD, operand, rank, offset)

    def _prepare(self, kind: int, array: Array, rank: int, offset: int) -> hot.Prepared:
        call, access = _PREPARED[kind]
        self._check_open(call)
        place = self._place(call, rank, offset, array.size)
        rank, offset = operator.index(rank), operator.index(offset)
        if place is not None:
            update = kind == hot.FETCH_ADD
            number = self._atomic_number(call, place, lib.RMAEXT_SUM) if update else -1
            self._foresee(call, place, access, number)
        return hot.Prepared(kind, self, array, rank, offset)

    def _foresee(self, call: str, place: Place, access: int, number: int) -> None:
        """Raise what an operation would be refused for; `number`: of an atomic's type, or -1."""
        rank, first, count = place
        first, nbytes = first * self._stride, count * self._dtype.itemsize
        code = lib.rmaext_window_check(self._handle, rank, first, nbytes, access, number)
        if code:
            raise from_c(code, self._where(call, place))

    def check(self, code: int) -> None:
        """Raise what a code that a function of `rmaext.jit` returned stands for, unless 0.

        In the thread that made the call: the details are kept there.
        """
        if code:
            raise from_code(code, f"window {self._name}")

    # -- synchronisation -------------------------------------------------------------

    @behind
    def _flush(self, rank: int | None = None, *, persist: bool = False) -> None:
        self._check_open("flush")
        if rank is not None and operator.index(rank) == self._null:
            return
        target = -1 if rank is None else self._rank(rank, "flush")
        wait = ffi.new("struct rmaext_wait *", [int(self._timeout * 1e9), 0, 0, 0])
        patience = Patience()
        while True:
            code = lib.rmaext_flush(self._handle, target, wait)
            if not code:
                break
            if code != lib.RMAEXT_PENDING:
                self._flush_failed(code, target)
            patience.look(f"flush: window {self._name}", lambda: [int(wait.rank)])
        if persist:
            self._persist(None if rank is None else target)

    def _flush_failed(self, code: int, target: int) -> NoReturn:
        whom = "all ranks" if target < 0 else f"rank {target}"
        raise from_c(code, f"flush: window {self._name}, {whom}")

    def fence(self) -> None:
        """Flush to all ranks, and wait until all have done so.

        After it every rank sees, in its own memory too, what any rank put
        before. Collective, blocking; corresponds to MPI_Win_fence. If it
        fails on one rank, it raises the same error on all. If a rank is lost,
        or a signal interrupts it, the window is closed on this rank.

        SyncError on all ranks, if they are in different collective calls; nothing else
        has happened then. And if a rank has given up a call of this communicator.
        """
        self._check_open("fence")
        with self._group.collective("fence", self._name):
            self._check_open("fence")
            failure, _ = self._meet(self._try_flush())
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, wait for all ranks, and deregister. Twice is harmless.

        Collective, blocking; corresponds to MPI_Win_free. If it fails on one
        rank, it raises the same error on all; the window is closed all the
        same, but its memory is kept until the process ends, since peers may
        still write there. SyncError if a lock is held, or an epoch is open.
        GrantError, and it stays open, while a grant is not revoked.

        SyncError on all ranks, if they are in different collective calls: it stays open.
        If a rank has given up a call of this communicator, SyncError too, and the window
        is closed on this rank.
        """
        if self._closed:
            return
        try:
            self._close()
        except SyncError:
            if self._group.meetings.over:
                self._shut(keep=True)
            raise

    def _close(self) -> None:
        with self._group.collective("close", self._name):
            if self.closed:  # by a thread that is done by now
                return
            failure = self._unfinished() or self._try_flush() or self._check_grants()
            was_open = [window for window in self._family() if not window._closed]
            # Once all have met, memory is freed: this rank's threads have stopped writing by
            # then. What was given up may still reach its target; then all keep their memory.
            try:
                busy = self._shut_calls() or self._in_doubt()
                busy = any(lib.rmaext_window_pending(w._handle) for w in self._parts()) or busy
                failure, keep = self._meet(failure, busy)
            except BaseException as exc:
                # the ranks are in different calls, or this one had not come to any yet
                if self._group.meetings.all_have(exc) and not self._group.meetings.over:
                    self._reopen(was_open)
                raise
            if isinstance(failure, GrantError):
                self._reopen(was_open)
            else:
                self._shut(keep)
        if failure is not None:
            raise failure

    def _shut_calls(self) -> bool:
        """Let no thread of this rank begin an operation; True if one does not end."""
        codes = [lib.rmaext_window_shut(window._handle) for window in self._mark_closed()]
        return any(codes)

    def _mark_closed(self) -> list[Window]:
        """Refuse operations from now on; return the window with its parts and views."""
        self._closed = True
        # other threads may make more: those see that the window is closed
        windows = self._family()
        for window in windows:
            window._closed = True
        return windows

    def _family(self) -> list[Window]:
        views = [] if self._views is None else [ref() for ref in self._views.valuerefs()]
        return [*self._parts(), *(view for view in views if view is not None)]

    def _parts(self) -> list[Window]:
        """Return those whose C windows this one has."""
        return [self]

    def _try_flush(self) -> Exception | None:
        try:
            self.flush()
        except Exception as exc:
            return exc
        return None

    def _meet(self, failure: Exception | None, busy: bool = False) -> tuple[Exception | None, bool]:
        """Wait for all ranks. Collective.

        Return the error that one of them brings, and whether any has an error
        or is busy: then no rank may free memory. A GrantError only if there is no other.
        """
        group = self._group
        level = 0 if failure is None else 2 if isinstance(failure, GrantError) else 3
        try:
            worst = group.reduce(level or int(busy))
            if worst >= 2:
                record = failed(failure) if failure and level == worst else succeeded()
                received = group.gather(record)
        except SyncError:
            raise
        except BaseException as exc:
            if not group.meetings.all_have(exc):
                self._shut(keep=True)  # this rank is out of step with the others
            raise
        if worst < 2:
            return None, worst == 1
        try:
            settle(received, failure if level == worst else None)
        except Exception as exc:
            return exc, True
        return None, True

    def _shut(self, keep: bool) -> None:
        """End the own calls. Without `keep`, which needs all ranks' consent, peers' too."""
        self._mark_closed()
        self._group.meetings.close(self._name)
        ended = self._end_grants()
        if keep:
            return
        self._end_storage()
        if self._block is not None:
            self._group.controls.give(self._block)
        codes = [lib.rmaext_window_close(part._handle) for part in self._parts()]
        if ended and not any(codes):
            self._region.release()
            self._group.quit()

    def end(self) -> None:
        """End of the communicator, for a hidden window: there is nobody to wait for."""
        self._closed = True
        lib.rmaext_window_close(self._handle)

    def __enter__(self) -> Window:
        self._check_open("with")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            # the other ranks may never come to a collective close
            if error is not None:
                self._group.meetings.leave(self._name, error)
            self._shut(keep=True)

    def __del__(self) -> None:
        if self._block is not None and not getattr(self, "_closed", True):
            warnings.warn(
                f"{self!r} was not closed; its memory is kept until the process ends",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def forget(self) -> None:
        """After the end of MPI, or in a forked child: there is no window."""
        self._closed = True

    # -- helpers -----------------------------------------------------------------------

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ClosedError(errno.ESHUTDOWN, f"{call}: window {self._name} is closed", call=call)

    def _rank(self, rank: Any, call: str) -> int:
        number = operator.index(rank)
        if not 0 <= number < len(self._sizes):
            text = (
                f"{call}: window {self._name} has ranks 0 to {len(self._sizes) - 1}, not {number}"
            )
            raise BoundsError(errno.ERANGE, text + self._hint_for(number), call=call)
        return number

    def _hint_for(self, rank: int) -> str:
        """Return what to say of a rank that is none."""
        return self._hint if rank < 0 and self._null is None else ""

    def _count(
        self, call: str, rank: Any, offset: Any, count: int | None, out: Array | None
    ) -> int:
        """Check what a get is to return; return the number of elements."""
        if out is not None:
            arrays.check_result(out, self._dtype)
        if count is None:
            return self._rest(rank, offset) if out is None else out.size
        count = operator.index(count)
        if count < 0:
            raise ValueError(f"{call}: count {count} is negative")
        if out is not None and out.size != count:
            raise ValueError(f"{call}: out has {out.size} elements, count is {count}")
        return count

    def _rest(self, rank: Any, offset: Any) -> int:
        """Return the number of elements from offset to the end."""
        if operator.index(rank) == self._null:
            return 0
        return max(0, self.size(rank) - operator.index(offset))

    def _place(self, call: str, rank: Any, offset: Any, count: int) -> Place | None:
        """Check rank, offset and count, integers of any size; None: no operation (proc_null)."""
        number, first = operator.index(rank), operator.index(offset)
        if not 0 <= number < len(self._sizes):
            if number == self._null:
                return None
            self._rank(rank, call)
        if first < 0 or first + count > self._sizes[number]:
            text = f"{self._where(call, (number, first, count))}: outside the "
            text += f"{self._sizes[number]} elements there"
            raise BoundsError(errno.ERANGE, text, call=call, rank=number)
        return number, first, count

    def _where(self, call: str, place: Place) -> str:
        rank, offset, count = place
        return f"{call}: window {self._name}, rank {rank}, offset {offset}, length {count}"

    def _run(
        self,
        call: str,
        place: Place,
        buffers: tuple[Array, ...],
        function: Any,
        *arguments: Any,
    ) -> None:
        """Carry out an operation. `buffers` stay alive until C is done with them.

        C returns RMAEXT_PENDING every 100 ms and after a signal, so that a
        signal handler may raise here.
        """
        rank, first, _ = place
        fabric, handle = self._fabric, self._handle
        first *= self._stride
        # without a fabric it may wait for nothing but the guard of updates
        op = ffi.new("rmaext_op **") if fabric is None else fabric.hold(handle, buffers)
        try:
            code = function(handle, rank, first, *arguments, op)
            if code:
                self._continue(call, place, code, op)
        finally:
            if fabric is None:
                lib.rmaext_op_release(op)
            else:
                fabric.release(op)

    _run_whole = _run  # of all kinds of windows: theirs divide it

    def _continue(self, call: str, place: Place, code: int, op: Any) -> None:
        """Wait until an operation has ended, or raise its error. The caller releases it."""
        where, patience = self._where(call, place), Patience()
        while code == lib.RMAEXT_PENDING:
            self._group.watch.check(place[0], where)
            patience.look(where, lambda: None)  # which names the rank
            code = lib.rmaext_op_wait(op[0])
        if code:
            raise from_c(code, where)


def _hidden_window(region: Region, number: int) -> Window:
    """Return a window over control blocks. It has none itself, and no close() of its own."""
    window = Window.__new__(Window)
    window._group, window._region = region.group, region
    window._comm, window._name = region.group.comm, -1 - number
    window._timeout = timeout_seconds(None)
    window._adopt(region.group.token(number, b"control"), None)
    lifetime.on_end(window)
    window._closed = False
    return window
