from collections.abc import Callable, Sequence
from threading import RLock
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import SUM
from numpy.typing import NDArray
from typing_extensions import Self

from .._ops import request
from ..typing import Operation, ScalarT

_S = TypeVar("_S")
_T = TypeVar("_T")

PUT: int
GET: int
FETCH_ADD: int
BUILD: int

class Layout:
    """Where the data of an element of a datatype lies: runs of bytes, of a basic type."""

    nbytes: int
    """Bytes of the data."""
    extent: int
    """Bytes from one element of the datatype to the next."""
    grain: int
    """What divides all lengths, and all distances of runs."""
    first: int
    """Where the first run begins; 0 if there is none."""
    span: tuple[int, int]
    """The bytes between which all of it lies: [low, high)."""
    number: int
    """How many runs there are, loops written out."""
    whole: bool
    """Whether it is a single run, or nothing."""
    basic: tuple[int, int, bool] | None
    """What all of it consists of: C's number of the type for updates or -1, bytes
    from one to the next, whether some of these are none of its data. None if that
    differs.
    """
    loops: tuple[int, NDArray[np.int64]] | None
    """Bytes of a run, and turns and step of each loop, the outermost first; None if
    there are several runs in a turn.
    """
    def __init__(
        self,
        runs: Sequence[tuple[int, int]] | NDArray[np.int64],
        number: int,
        unit: int,
        gaps: bool,
        /,
    ) -> None: ...
    def repeat(self, count: int, step: int = ..., /) -> Layout:
        """Return that of so many elements, one after another, or every so many bytes."""
    def blocks(self, counts: Sequence[int], places: Sequence[int], /) -> Layout:
        """Put so many elements at each place, in bytes. One count may stand for all."""
    def resize(self, extent: int, by: int = 0, /) -> Layout:
        """Return it with another extent, further on by so many bytes."""
    def head(self, nbytes: int, /) -> Layout:
        """Return the part that its first bytes make up."""
    def copy(self, address: int, piece: NDArray[np.uint8], pack: bool, /) -> None:
        """Copy the data at an address to a piece of memory; without `pack` from there."""
    def runs(self) -> NDArray[np.int64]:
        """Return offset and length of each run, loops written out."""

def mpi_types(
    types: list[Any],
    datatype: type,
    at: int,
    nbytes: int,
    make: Callable[[Any], Layout | None],
    /,
) -> None:
    """Tell of predefined types, and of the class Datatype.

    Of each type: the Datatype, the number of an update's type or -1, the extent, whether it
    has gaps. Of the class: where its objects have their handle, and what returns the Layout of
    one, or None.
    """

def mpi_forget(datatype: Any, keyval: int, layout: Any, /) -> None:
    """Forget the layout of a datatype that is being freed; what MPI calls for a keyval."""

def mpi_layout(datatype: Any, /) -> Layout:
    """Return the Layout of a datatype, which is made once."""

def mpi_ops(ops: list[Any], /) -> None:
    """Tell of operations: a list of (Op, its number)."""

def mpi_done(make: Callable[[], Any], /) -> None:
    """Tell of what makes a request of MPI that is done."""

def mpi_request_functions() -> tuple[int, int, int, int, int]:
    """Return the addresses of what MPI is to call: query, free, cancel, poll, wait."""

def mpi_request_new(status: bytes, /) -> int:
    """Return the address of a new request's state; MPI and mpi_request_end let go of it."""

def mpi_request_end(state: int, code: int, /) -> None:
    """Say with what error the request ends, 0 for none; before MPI is told that it has."""

def to_the_end(
    failures: type[BaseException] | tuple[type[BaseException], ...],
    function: Callable[..., _T],
    /,
    *arguments: Any,
) -> tuple[_T, BaseException | None]:
    """Call a function; if it raises, call it to its end.

    That is in another thread, where no signal handler raises, and
    the function must go on where it was. Returns its result, and the
    first exception or None. After one of `failures`, which it raises
    itself, it is not called again.
    """

def apart(function: Callable[..., _T], /, *arguments: Any) -> _T:
    """Call a function in another thread, and wait for it.

    No signal handler raises there, nor while this one waits.
    """

def locked(
    lock: RLock, nested: Callable[[], _S], function: Callable[..., _T], /, *arguments: Any
) -> _S | _T:
    """Call a function with an RLock held.

    Wherever a signal handler raises, it is released. Where this thread
    holds it already, `nested` is called instead.
    """

def within(
    lock: Any, function: Callable[..., _T], end: Callable[..., object], /, *arguments: Any
) -> _T:
    """Call a function with a lock held; if it raises, call `end`.

    Both get the arguments. `end` runs in another thread, where no
    signal handler raises, before the lock is given back and the
    exception goes on.
    """

class Endpoint:
    """What an endpoint keeps for C."""

    _in_flight: int
    """Operations that somebody has."""
    _orphans: int
    """Those that nobody has, and C still uses."""
    _orphan_bytes: int
    """The size of their buffers."""
    def _bind(self, know: Callable[[NDArray[Any]], object] | None, /) -> None:
        """Belong to this process; call `know`, if any, with each array that C is to use."""
    def _close(self) -> None:
        """Keep for ever what C may use, until `_closed` is called."""
    def _closed(self) -> None:
        """C uses nothing any more."""
    @property
    def _stuck(self) -> bool:
        """Whether C may use buffers, and will not say when it is done."""
    def _reap(self, most: int, /) -> None:
        """Free the buffers of operations that were given up and have ended since.

        Only the first few are looked at.
        """

class Owner:
    """What C is about to do, on the window of a handle, with the objects in a tuple.

    Whatever is raised after this: the buffers live until C is done with them.
    Of a request, C sets `ended`.
    """

    bad: int
    """The index of the place that was refused, or -1."""
    def __new__(
        cls,
        endpoint: Endpoint | None,
        handle: Any,
        buffers: tuple[Any, ...],
        request: bool = False,
        /,
    ) -> Self: ...
    @property
    def rank(self) -> int:
        """The rank that it waits for; -1: none in particular."""
    @property
    def ended(self) -> bool:
        """Whether a request has ended."""
    @property
    def busy(self) -> bool:
        """Whether a thread is in one of these calls."""
    @property
    def goes_on(self) -> bool:
        """Whether C has something that is to be waited for, or released."""
    def start(self, call: Any, /) -> int:
        """Begin a struct rmaext_call; return C's code, again if it was begun before."""
    def start_many(self, call: Any, /) -> int:
        """Begin a struct rmaext_places_call; see also `bad`."""
    def wait(self, slice: int, /) -> int:
        """Wait for so many ns, or a tenth of a second, at most; return C's code.

        That is RMAEXT_PENDING at once while it is `busy`. Once it is over it may be called
        again, with the same result.
        """
    def cancel(self) -> bool:
        """End a request of which nothing was sent; return whether it was one."""
    def release(self) -> None:
        """Let go of it and of its buffers, now or when C is done with them; once or more."""

class Request:
    """A request that is done, until Python says else."""

    _error: Exception | None
    _op: Any  # an Owner; None once it is released
    _result: Any
    _state: int
    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it is done, and return the result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, 0 included. By default the time limit of the window,
            which counts from the last progress.

        Returns
        -------
        numpy.ndarray, scalar or None
            What the operation without r returns.

        Raises
        ------
        RmaTimeout
            It is not done yet, goes on, and may be waited for again.
        PeerLostError, RmaError
            The operation failed.
        SyncError
            The request was cancelled or freed.
        ClosedError
            The window was closed before it was done, after an error.

        Notes
        -----
        Local, blocking; corresponds to MPI_Wait. May be called again.

        Examples
        --------
        >>> win.rget(0, 0, 3).wait(timeout=10)
        array([0., 0., 0.])
        """

class Locks:
    """Calls _unlock() and _unlock_all(), and _release_anyway() if one raises."""

    def unlock(self, rank: int) -> None:
        """Flush to a rank, and release its lock.

        The lock is released even if the flush fails, or is interrupted, wherever
        that is.

        Raises
        ------
        SyncError
            This thread does not hold that lock, or holds it by `lock_all`.
        RmaTimeout, PeerLostError
            As `flush`.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_unlock.

        Examples
        --------
        >>> guard = win.lock(0, exclusive=False)
        >>> win.unlock(0)
        """
    def unlock_all(self) -> None:
        """Flush to all ranks, and release what `lock_all` took.

        Raises
        ------
        SyncError
            This thread has not called `lock_all`.
        RmaTimeout, PeerLostError
            As `flush`; the locks are released all the same, as `unlock` does.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_unlock_all.

        Examples
        --------
        >>> guard = win.lock_all()
        >>> win.put(1.0, 0)
        >>> win.unlock_all()
        """

class With:
    """Calls _enter() and _exit(); _forsake(error) if one raises."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class Window(Generic[ScalarT]):
    """The operations of rmaext.Window."""

    _closed: bool
    @property
    def numba(self) -> int:
        """The window as an integer, for the functions of `rmaext.jit`.

        Once the window is closed, or gone, they return the code of ClosedError.
        """
    def put(self, origin: Any, rank: int, offset: int = 0) -> None:
        """Write to a rank's window.

        Parameters
        ----------
        origin : array_like
            Of the window's dtype, any shape; its elements go to consecutive
            positions in C order. It may be reused when the call returns.
            Nothing is cast: an array of another dtype is a TypeError, and so is
            what offers one (memoryview, array.array, `__array__`). Scalars,
            tuples for records, and lists of them are taken if each is an
            element of the dtype: `rmaext.elements` has the rule, which the
            values of all calls follow.
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, OverflowError
            Before anything is sent.
        RmaTimeout, PeerLostError
            Here or in the next `flush`.

        Notes
        -----
        Local. Complete at the target after `flush`; corresponds to MPI_Put.

        Examples
        --------
        >>> win.put([1.0, 2.0], rank=0, offset=4)
        >>> win.flush()
        >>> win.local[3:7]
        array([0., 1., 2., 0.])
        """
    def get(
        self,
        rank: int,
        offset: int = 0,
        count: int | None = None,
        out: NDArray[ScalarT] | None = None,
    ) -> NDArray[ScalarT]:
        """Read from a rank's window.

        Parameters
        ----------
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.
        count : int, optional
            Elements; by default out.size, else the rest of the window.
        out : numpy.ndarray, optional
            C-contiguous and writeable, of the window's dtype, of `count`
            elements; by default a new 1-D array.

        Returns
        -------
        numpy.ndarray
            `out`, or the new array: flat, also if the window has several
            dimensions. `win[rank]` is a rank's whole, in its shape.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError
            Before anything is sent.
        RmaTimeout, PeerLostError
            Then `out` is undefined, and kept until no late answer can come.

        Notes
        -----
        Local, blocking; corresponds to MPI_Get and MPI_Win_flush.

        Examples
        --------
        >>> win.local[:] = np.arange(10)
        >>> win.get(0, offset=2, count=3)
        array([2., 3., 4.])
        """
    def fetch_add(self, value: Any, rank: int, offset: int = 0) -> Any:
        """Add to elements of a rank's window, atomically each.

        Parameters
        ----------
        value : array_like
            Of the window's dtype.
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.

        Returns
        -------
        NumPy scalar or numpy.ndarray
            The previous values, in the shape of `value`.

        Raises
        ------
        Unsupported
            There is no sum of this dtype.
        AlignmentError
            The place is not aligned as `accumulate` needs it.
        BoundsError, AccessError, TypeError, OverflowError
            As `put`.

        Notes
        -----
        Local, blocking; corresponds to MPI_Fetch_and_op with MPI_SUM and
        MPI_Win_flush. It is `get_accumulate` of a sum; what `accumulate` says
        of updates holds here too.

        Examples
        --------
        >>> win.fetch_add(1.0, rank=0)
        np.float64(0.0)
        >>> win.fetch_add(1.0, rank=0)
        np.float64(1.0)
        """
    def compare_and_swap(self, compare: Any, value: Any, rank: int, offset: int = 0) -> Any:
        """Replace elements that equal `compare` by `value`, atomically each.

        Parameters
        ----------
        compare, value : array_like
            Of the window's dtype, in one shape. Floats are compared by their
            bits: -0.0 is not 0.0, and a NaN equals itself. Padding does not
            count.
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.

        Returns
        -------
        NumPy scalar or numpy.ndarray
            The previous values: those that equal `compare` were replaced.

        Notes
        -----
        Local, blocking; corresponds to MPI_Compare_and_swap and
        MPI_Win_flush. Raises what `fetch_add` raises, and ValueError for
        different shapes.

        Examples
        --------
        >>> win.compare_and_swap(0.0, 5.0, rank=0)
        np.float64(0.0)
        >>> win.compare_and_swap(0.0, 7.0, rank=0)  # it is 5.0 by now
        np.float64(5.0)
        """
    def accumulate(
        self,
        origin: Any,
        rank: int,
        offset: int = 0,
        op: Operation | MPI.Op = "sum",
        *,
        key: Any = None,
    ) -> None:
        """Combine elements of a rank's window with others, atomically each.

        Parameters
        ----------
        origin : array_like
            Of the window's dtype, any shape; its elements meet consecutive
            ones of the target in C order. It may be reused when the call
            returns.
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.
        op : str or mpi4py.MPI.Op
            'sum', 'prod', 'min', 'max': numbers and bool, complex ones only
            the first two; 'land', 'lor', 'lxor': the same and all complex, they
            give 0 or 1; 'band', 'bor', 'bxor': integers and bool; 'minloc',
            'maxloc': pairs; 'replace', 'no_op': all of these.
        key : index, optional
            In place of the offset: what `win[rank, key]` takes. The origin is then broadcast.

        Raises
        ------
        Unsupported
            There is no such operation on this dtype.
        AlignmentError
            The place is not aligned: to the item size up to 8 bytes, else as
            C aligns the type.
        BoundsError, AccessError, TypeError, OverflowError, ValueError
            Before anything is sent.
        RmaTimeout, PeerLostError
            Here or in the next `flush`.

        Notes
        -----
        Local. Complete at the target after `flush`; corresponds to
        MPI_Accumulate. Updates of one rank to one place are applied in their
        order. All updates of a window, of whatever size and route, and the
        target's own, are atomic against each other; not against `put`, nor
        against updates through another window over the same memory.

        Dtypes: bool, integers, float16, float32, float64, longdouble,
        complex64, complex128, in native byte order, and pairs: two fields,
        value and index, aligned as in C (numpy.dtype(..., align=True)).
        Results are those of NumPy's ufuncs: integers wrap around, the minimum
        of a NaN and a number is NaN, the sum of bools is their or. Of pairs
        with equal values 'minloc' and 'maxloc' take the smaller index; a
        comparison with NaN is false.

        Examples
        --------
        >>> win.accumulate([1.0, 5.0], rank=0, offset=8)
        >>> win.accumulate([3.0, 3.0], rank=0, offset=8, op="max")
        >>> win.flush()
        >>> win.local[8:]
        array([3., 5.])
        >>> win.accumulate(1.0, rank=0, key=slice(0, 6, 2))
        >>> win.get(0, count=6)
        array([1., 0., 1., 0., 1., 0.])
        """
    def get_accumulate(
        self, origin: Any, rank: int, offset: int = 0, op: Operation | MPI.Op = "sum"
    ) -> NDArray[ScalarT]:
        """Combine elements as `accumulate`, and return what was there before.

        Parameters are those of `accumulate`. With op='no_op' the values of
        `origin` do not matter, and the window needs no right to be written.

        Returns
        -------
        numpy.ndarray
            The previous values, in the shape of `origin`.

        Raises
        ------
        What `accumulate` raises. After RmaTimeout and PeerLostError it may
        have been applied, or may be applied yet.

        Notes
        -----
        Local, blocking; corresponds to MPI_Get_accumulate and MPI_Win_flush.
        It is atomic per element, not as a whole.

        Examples
        --------
        >>> win.get_accumulate([1.0, 2.0], rank=0)
        array([0., 0.])
        >>> win.get_accumulate([0.0, 0.0], rank=0, op="no_op")
        array([1., 2.])
        """
    def fetch_op(
        self, value: Any, rank: int, offset: int = 0, op: Operation | MPI.Op = "sum"
    ) -> Any:
        """Combine one element as `accumulate`, and return what was there.

        Parameters
        ----------
        value : scalar
            Of the window's dtype, or an array of it without dimensions.
        rank, offset, op
            As in `accumulate`. op='replace' swaps, 'no_op' reads.

        Returns
        -------
        NumPy scalar
            The previous value.

        Raises
        ------
        What `get_accumulate` raises.

        Notes
        -----
        Local, blocking; corresponds to MPI_Fetch_and_op and MPI_Win_flush.

        Examples
        --------
        >>> win.fetch_op(3.0, rank=0, op="max")
        np.float64(0.0)
        >>> win.fetch_op(0.0, rank=0, op="no_op")
        np.float64(3.0)
        """
    def load(self, rank: int, offset: int = 0, count: int | None = None) -> Any:
        """Read elements of a rank's window, atomically each.

        Parameters
        ----------
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.
        count : int, optional
            Elements; by default one, as a scalar.

        Returns
        -------
        NumPy scalar or numpy.ndarray
            The element; with `count` an array of so many.

        Raises
        ------
        Unsupported
            The dtype has no updates.
        AlignmentError
            The place is not aligned as `accumulate` needs it.
        BoundsError, AccessError, TypeError, ValueError
            Before anything is sent.
        RmaTimeout, PeerLostError

        Notes
        -----
        Local, blocking. It is `fetch_op` with 'no_op': an element is never
        seen half written by a `store` or another update, as a `get` may see
        it. Loads, stores and the updates that return values are sequentially
        consistent: all ranks see them in one order, in which each rank's own
        stand as its program has them. What a rank had flushed before it stored
        a value is there for who has loaded that. Corresponds to
        MPI_Fetch_and_op with MPI_NO_OP and MPI_Win_flush, and to
        shmem_atomic_fetch.

        Examples
        --------
        >>> win.store(3.0, rank=0, offset=4)
        >>> win.load(0, 4)
        np.float64(3.0)
        >>> win.load(0, 3, count=2)
        array([0., 3.])
        """
    def store(self, value: Any, rank: int, offset: int = 0) -> None:
        """Write elements of a rank's window, atomically each.

        Parameters
        ----------
        value : array_like
            Of the window's dtype, any shape; its elements go to consecutive
            ones of the target in C order.
        rank : int
            Target; for MPI.PROC_NULL see `Window`.
        offset : int
            Element of the target's window to begin at.

        Raises
        ------
        What `load` raises, and OverflowError. After RmaTimeout and
        PeerLostError it may have been applied, or may be applied yet.

        Notes
        -----
        Local, blocking: the value is in the target's memory when it returns,
        which `accumulate` with 'replace' leaves to a flush. `load` says how
        both are ordered. The window needs no right to be read. Corresponds
        to MPI_Accumulate with MPI_REPLACE and MPI_Win_flush, and to
        shmem_atomic_set and shmem_quiet.

        Examples
        --------
        >>> win.store([1.0, 2.0], rank=0, offset=4)
        >>> win.local[3:7]
        array([0., 1., 2., 0.])
        """
    def fence(self) -> None:
        """Flush to all ranks, and wait until all have done so.

        After it every rank sees, in its own memory too, what any rank put before.

        Raises
        ------
        RmaTimeout, PeerLostError
            As `flush`. If it fails on one rank, it raises the same error on all. If
            a rank is lost, or a signal interrupts it, the window is closed on this
            rank.
        SyncError
            On all ranks, if they are in different collective calls; nothing else
            has happened then. And if a rank has given up a call of this
            communicator.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_fence.

        Examples
        --------
        >>> win.put([1.0, 2.0], 0)
        >>> win.fence()  # all ranks come here
        >>> win.local[:3]
        array([1., 2., 0.])
        """
    def flush(self, rank: int | None = None, *, persist: bool = False) -> None:
        """Wait until every put to a rank, or to all, is applied there.

        After it the data is in the target's memory, and visible to any rank
        that is told so. (`get` and the atomics are complete when they return.)

        Parameters
        ----------
        rank : int, optional
        persist : bool, optional
            Wait until it is in the file, too, that the memory is mapped from: of
            windows over np.memmap. A thread of the target writes it there (msync),
            whatever its program does. What the target itself and other ranks have
            written before is written with it.

        Raises
        ------
        RmaTimeout, PeerLostError
            The fate of the operations in flight is unknown.
        Unsupported
            persist, and that memory is not mapped from a file, or mapped privately
            (mode "c").
        RmaError
            persist, and the target's system could not write; errno says why.

        Notes
        -----
        Local, blocking; corresponds to MPI_Win_flush and MPI_Win_flush_all.
        Writing to a file has no time limit while the target lives.

        Examples
        --------
        >>> win.put(1.0, 0)
        >>> win.flush(0)  # now rank 0 may be told of it
        >>> win.local[0]
        np.float64(1.0)
        """
    def put_many(self, ranks: Any, offsets: Any, values: Any) -> None:
        """Write elements, each to a place of its own.

        Parameters
        ----------
        ranks, offsets : int or integer array
            Targets, and elements of their windows. They are broadcast against
            each other and `values`, as NumPy does it. int64 is taken as it is,
            other integers are converted. For MPI.PROC_NULL see `Window`.
        values : array_like
            Of the window's dtype.

        Raises
        ------
        BoundsError
            Naming the first element at fault, counted without those that
            are left out. Nothing was sent then, nor after
            AccessError, TypeError, ValueError, OverflowError and Unsupported.
        RmaTimeout, PeerLostError
            Any of the elements may have been written, or may be written yet.

        Notes
        -----
        Local, blocking; all is in the targets' memory when it returns, without
        a `flush`. Corresponds to MPI_Put of one element in a loop, and
        MPI_Win_flush. Elements for one place are written in their order. One of
        1, 2, 4 or 8 bytes is written at once where it is aligned.

        Over the network many elements travel in one message to the target's
        progress thread, several messages at a time; contiguous data is better
        sent with `put`.

        Examples
        --------
        >>> win.put_many(0, [1, 5, 7], [1.0, 2.0, 3.0])
        >>> win.put_many(0, [2, 3], -1.0)
        >>> win.local[:8]
        array([ 0.,  1., -1., -1.,  0.,  2.,  0.,  3.])
        """
    def get_many(
        self, ranks: Any, offsets: Any, out: NDArray[ScalarT] | None = None
    ) -> NDArray[ScalarT]:
        """Read elements, each from a place of its own.

        Parameters
        ----------
        ranks, offsets : int or integer array
            As in `put_many`.
        out : numpy.ndarray, optional
            C-contiguous and writeable, of the window's dtype and of the shape
            to which ranks and offsets broadcast; by default a new array.

        Returns
        -------
        numpy.ndarray
            `out`, or the new array.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError
            Before anything is sent.
        RmaTimeout, PeerLostError
            Then `out` is undefined; nothing writes to it any more.

        Notes
        -----
        Local, blocking; corresponds to MPI_Get of one element in a loop, and
        MPI_Win_flush. What `put_many` says of routes and sizes holds here too.

        Examples
        --------
        >>> win.local[:] = np.arange(10)
        >>> win.get_many(0, [[7, 1], [1, 3]])
        array([[7., 1.],
               [1., 3.]])
        """
    def fetch_add_many(self, ranks: Any, offsets: Any, values: Any) -> Any:
        """Add to elements, each at a place of its own, and return what was there.

        As `fetch_op_many` with op='sum'. Local, blocking; corresponds to
        MPI_Fetch_and_op with MPI_SUM in a loop, and MPI_Win_flush.

        Examples
        --------
        >>> win.fetch_add_many(0, [2, 3, 2], 1.0)
        array([0., 0., 1.])
        """
    def accumulate_many(
        self, ranks: Any, offsets: Any, values: Any, op: Operation | MPI.Op = "sum"
    ) -> None:
        """Combine elements, each at a place of its own, atomically each.

        Parameters
        ----------
        ranks, offsets : int or integer array
            As in `put_many`. A place that is named twice is updated twice.
        values : array_like
            Of the window's dtype.
        op : str or mpi4py.MPI.Op
            As in `accumulate`.

        Raises
        ------
        Unsupported
            There is no such operation on this dtype.
        AlignmentError
            The target's memory is not aligned as `accumulate` needs it.
        BoundsError, AccessError, TypeError, OverflowError, ValueError
            Before anything is sent, as in `put_many`.
        RmaTimeout, PeerLostError
            Any of the elements may have been updated, or may be updated yet.

        Notes
        -----
        Local, blocking; corresponds to MPI_Accumulate of one element in a loop,
        and MPI_Win_flush. Atomic against all other updates of the window, as
        `accumulate` is.

        Examples
        --------
        >>> win.accumulate_many(0, [2, 3, 2], 1.0)
        >>> win.local[:5]
        array([0., 0., 2., 1., 0.])
        """
    def fetch_op_many(
        self, ranks: Any, offsets: Any, values: Any, op: Operation | MPI.Op = "sum"
    ) -> Any:
        """Combine elements as `accumulate_many`, and return what was there.

        Parameters are those of `accumulate_many`, and so is what is raised.

        Returns
        -------
        numpy.ndarray or NumPy scalar
            The previous values, in the shape to which all arguments broadcast.

        Notes
        -----
        Local, blocking; corresponds to MPI_Fetch_and_op in a loop, and
        MPI_Win_flush.

        Examples
        --------
        >>> win.fetch_op_many(0, [2, 2], [4.0, 3.0], op="max")
        array([0., 4.])
        """
    def rput(self, origin: Any, rank: int, offset: int = 0, *, key: Any = None) -> request.Request:
        """Begin a put.

        Parameters
        ----------
        origin, rank, offset
            As for `put`. The origin is used where it lies, also if it is small: it may not be
            changed before the request is done. One that is a temporary is kept by the
            request.
        key : index, optional
            In place of the offset: what `win[rank, key] = origin` takes. The origin is then
            broadcast; one that lies in pieces is packed.

        Returns
        -------
        Request
            Done once the data is in the target's memory. Its result is None.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local. Does not wait, but for this: while a thousand requests, or 64 MiB, that
        were dropped (`del`, `free`) are on their way, the next one waits for some of
        them. Corresponds to MPI_Rput, whose completion only says that the origin
        may be used again.

        Examples
        --------
        >>> request = win.rput(np.ones(2), rank=0, offset=4)
        >>> request.wait()  # the data is in the target's memory
        >>> win.local[4:6]
        array([1., 1.])
        """
    def rget(
        self,
        rank: int,
        offset: int = 0,
        count: int | None = None,
        out: NDArray[Any] | None = None,
        *,
        key: Any = None,
    ) -> request.Request:
        """Begin a get.

        Parameters
        ----------
        rank, offset, count, out
            As for `get`; `out` may not be used before the request is done.
        key : index, optional
            In place of offset and count: what `win[rank, key]` takes. The result, and `out`,
            have the shape that it selects.

        Returns
        -------
        Request
            Its result is the array: `out`, if that was given.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local; waits as `rput` does. Corresponds to MPI_Rget.

        Examples
        --------
        >>> request = win.rget(rank=0, offset=0, count=2)
        >>> request.wait()
        array([0., 0.])
        """
    def put_notify(
        self, origin: Any, rank: int, offset: int = 0, slot: int = 0, *, key: Any = None
    ) -> None:
        """Write to a rank's window, then count one up in one of its slots.

        The target, once `wait_notify` or the like tells it of the count,
        finds the data in its memory. That is said of this call's data only:
        earlier puts are covered if they were flushed before.

        Parameters
        ----------
        origin : array_like
            As for `put`; an empty array only notifies.
        rank, offset : int
            As for `put`.
        slot : int
            0 to 255; each rank has so many counters in each window.
        key : index, optional
            In place of the offset: what `win[rank, key] = origin` takes, which
            comes first. Over the network this waits until the data is there;
            `rput_notify` does not.

        Raises
        ------
        BoundsError, IndexError, AccessError, TypeError, ValueError, OverflowError
            Before anything is sent.
        RmaTimeout, PeerLostError
            Here or in the next `flush`.

        Notes
        -----
        Local; complete at the target after `flush`. Corresponds to
        gaspi_write_notify, shmem_put_signal, and in MPI to MPI_Put,
        MPI_Win_flush and a message.

        Examples
        --------
        >>> win.put_notify([1.0, 2.0], rank=0, offset=4, slot=7)
        >>> win.wait_notify(7)  # the target does this
        1
        >>> win.local[4:6]
        array([1., 2.])
        """
    def rput_notify(
        self, origin: Any, rank: int, offset: int = 0, slot: int = 0, *, key: Any = None
    ) -> request.Request:
        """Begin a put that notifies: `put_notify` of any length, without waiting.

        Parameters
        ----------
        origin, rank, offset
            As for `put`. The origin may not be changed before the request is done.
        slot : int
            0 to 255, of the target.
        key : index, optional
            In place of the offset: what `win[rank, key] = origin` takes. The origin is then
            broadcast; one that lies in pieces is packed.

        Returns
        -------
        Request
            Done once the data is in the target's memory and the slot has counted. Its result
            is None.

        Raises
        ------
        BoundsError, IndexError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused; then nobody is notified.

        Notes
        -----
        Local, not blocking; waits as `rput` does. The target, once it is told of the count,
        finds all of the data. What is reached by memory is done when it returns. Over the
        network what lies in one piece of more than 32 KiB is a write, and a message once that
        is there; several may be on their way. All else goes as messages, which the target's
        progress thread carries out in their order: an element costs 32 bytes more where it
        lies by itself in the target's array, long runs next to nothing. An empty origin only
        notifies. The notifications of one rank to another come in the order of its calls.
        Corresponds to gaspi_write_list_notify, and shmem_put_signal_nbi.

        Examples
        --------
        >>> requests = [win.rput_notify(np.ones(2), 0, key=slice(4, 8, 2), slot=7)]
        >>> win.wait_notify(7)  # the target does this
        1
        >>> win.local[3:8]
        array([0., 1., 0., 1., 0.])
        >>> requests[0].wait()
        """
    def wait_notify(self, slot: int, count: int = 1, timeout: float | None = None) -> int:
        """Wait until a slot of this rank has counted so many, and take them.

        Parameters
        ----------
        slot : int
            0 to 255.
        count : int
            Taken off the counter, at once; the rest stays for later waits.
        timeout : float, optional
            Seconds; by default there is no limit while the peers live.

        Returns
        -------
        int
            What the counter was before: at least `count`.

        Raises
        ------
        RmaTimeout
            Then nothing was taken.
        PeerLostError
            A rank of the communicator is gone, whether or not it was to
            notify. Each loss is reported once by a window's waits, so that the
            others can go on; later ones end after the window's time limit.

        Notes
        -----
        Local, blocking; sleeps, and serves Ctrl-C. Several threads may wait
        for one slot: each count is taken by one. Corresponds to
        gaspi_notify_waitsome with gaspi_notify_reset, and
        shmem_signal_wait_until.

        Examples
        --------
        >>> win.put_notify([], rank=0, slot=3)
        >>> win.put_notify([], rank=0, slot=3)
        >>> win.wait_notify(3, count=2)
        2
        """
    def test_notify(self, slot: int, count: int = 1) -> bool:
        """Take so many off a slot's counter of this rank, if it has them.

        Returns
        -------
        bool
            Whether they were there.

        Notes
        -----
        Local, not blocking; as `wait_notify` else. Corresponds to
        gaspi_notify_reset, and shmem_signal_fetch.

        Examples
        --------
        >>> win.test_notify(3)
        False
        >>> win.put_notify([], rank=0, slot=3)
        >>> win.test_notify(3)
        True
        """
    def __getitem__(self, key: Any) -> Any: ...
    def __setitem__(self, key: Any, values: Any) -> None: ...
    def _bind_arrays(self, arrays: tuple[Window[Any], ...], bounds: NDArray[np.int64], /) -> None:
        """Be the windows of several arrays.

        bounds[r, k] is the offset at which array k of rank r begins, int64 in C order, and its
        last column the end.
        """
    def _bind(
        self,
        handle: Any,
        address: int,
        dtype: np.dtype[Any],
        atomic_type: int | None,
        fabric: Any,
        meetings: Any,
        calls: int,
        name: int,
        /,
    ) -> None:
        """Take over the C window at an address, which `handle` keeps.

        The collective calls of its communicator are `meetings`, with a struct at `calls`;
        `name` is its number.
        """

class Buffer(Generic[ScalarT]):
    """An array that is put or got again and again; made by `Window.register`.

    Notes
    -----
    There is nothing to release. It keeps the window and the array. Any threads may use one at
    once; what the array has while another thread changes it is what may be sent.

    Examples
    --------
    >>> edge = win.register(np.ones(2))
    >>> edge.put(0, offset=4)
    >>> edge.array[:] = 7
    >>> edge.get(0, offset=3)
    array([0., 1.])
    """

    def __init__(self, window: Window[ScalarT], array: NDArray[ScalarT], /) -> None: ...
    @property
    def window(self) -> Any:
        """The window that it was made by."""
    @property
    def array(self) -> NDArray[ScalarT]:
        """The array that is used, looked at anew in each call."""
    def put(self, rank: int, offset: int = 0) -> None:
        """Write the array to a rank's window, as `Window.put` does.

        Parameters
        ----------
        rank, offset : int
            As for `Window.put`, which says what is raised.

        Notes
        -----
        Local. Complete at the target after `flush`; corresponds to MPI_Put.

        Examples
        --------
        >>> edge = win.register(np.ones(2))
        >>> edge.put(0, offset=4)
        >>> win.get(0, 3, 4)
        array([0., 1., 1., 0.])
        """
    def get(self, rank: int, offset: int = 0) -> NDArray[ScalarT]:
        """Fill the array from a rank's window, as `Window.get` does, and return it.

        Parameters
        ----------
        rank, offset : int
            As for `Window.get`, which says what is raised.

        Notes
        -----
        Local, blocking; corresponds to MPI_Get and MPI_Win_flush.

        Examples
        --------
        >>> win.local[:] = np.arange(10)
        >>> win.register(np.zeros(3)).get(0, offset=5)
        array([5., 6., 7.])
        """
    def fetch_add(self, rank: int, offset: int = 0) -> Any:
        """Add the array to a rank's window, and return what was there: `Window.fetch_add`.

        Parameters
        ----------
        rank, offset : int
            As for `Window.fetch_add`, which says what is raised.

        Notes
        -----
        Local, blocking; corresponds to MPI_Fetch_and_op with MPI_SUM and
        MPI_Win_flush.

        Examples
        --------
        >>> ones = win.register(np.ones(2))
        >>> ones.fetch_add(0), ones.fetch_add(0)
        (array([0., 0.]), array([1., 1.]))
        """

class Prepared(Generic[ScalarT]):
    """An operation with its arguments: a call carries it out.

    It is made by `Window.prepare_put`, `prepare_get` or `prepare_fetch_add`.

    Notes
    -----
    There is nothing to release. It keeps the window and the array. Any threads may use one at
    once; what the array has while another thread changes it is what may be sent.

    Examples
    --------
    >>> halo = win.prepare_put(np.ones(2), rank=0, offset=4)
    >>> halo()
    >>> win.get(0, 3, 4)
    array([0., 1., 1., 0.])
    """

    def __init__(
        self,
        kind: int,
        window: Window[ScalarT],
        array: NDArray[ScalarT],
        rank: int,
        offset: int,
        /,
    ) -> None: ...
    @property
    def window(self) -> Any:
        """The window that it was made by."""
    @property
    def array(self) -> NDArray[ScalarT]:
        """The array that is used, looked at anew in each call."""
    def __call__(self) -> Any: ...

class Win:
    """The plain operations of rmaext.compat.Win."""

    def Unlock(self, rank: int) -> None:
        """End what `Lock` began."""
    def Unlock_all(self) -> None:
        """End what `Lock_all` began."""
    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Write to a rank's memory."""
    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Read from a rank's memory."""
    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Any = SUM) -> None:
        """Update a rank's memory."""
    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Any = SUM
    ) -> None:
        """Update a rank's memory, and return what was there."""
    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Any = SUM
    ) -> None:
        """Update one element of a rank's memory, and return what was there."""
    def Compare_and_swap(
        self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0
    ) -> None:
        """Replace one element of a rank's memory if it equals another."""
    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """As `Put`, with a request."""
    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """As `Get`, with a request."""
    def Raccumulate(
        self, origin: Any, target_rank: int, target: Any = None, op: Any = SUM
    ) -> MPI.Request:
        """As `Accumulate`, with a request."""
    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Any = SUM
    ) -> MPI.Request:
        """As `Get_accumulate`, with a request."""
    def Flush(self, rank: int) -> None:
        """Wait until all operations on a rank are complete there."""
    def _be(
        self,
        shows: bool,
        window: Window[Any],
        units: Any,
        access: set[int],
        passive: set[int],
        /,
    ) -> None:
        """Stand for a window of bytes, which shows its memory as a buffer, or does not.

        The sets are those of ranks that may be accessed, and are locked.
        """
    def _end(self) -> None:
        """Stand for nothing."""
