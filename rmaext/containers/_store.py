# SPDX-License-Identifier: BSD-3-Clause
"""`Store`: the records of all ranks, read at random by any of them."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, overload

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from .. import Request, RmaError, RmaTimeout, Window
from .._runtime.copies import Unique
from .._runtime.reports import dtype_name
from ..typing import ScalarT
from ._agreement import Opening, bracketed, exchange
from ._device import Landing, fill, landed, of_cuda, parts
from ._layout import Layout, Places, agreed, checked, out_of_range
from ._samples import Brought, Samples

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

__all__ = ["Prefetch", "Store"]

Array = NDArray[Any]
Indices = ArrayLike | slice | range
_NAP = 1e-3  # seconds between looks at what a device copies


class Batch(NamedTuple):
    """A `get` or `prefetch`: what is read, to where, and how it is handed out."""

    places: Places
    values: Array  # flat, of the records' dtype
    flat: bool
    out: Any
    landing: Landing | None = None  # of an `out` on a device, to which it is copied at the end

    def result(self, layout: Layout, end: float = math.inf) -> Any:
        """Return what the caller asked for, once it is read; RmaTimeout at `end`."""
        values = self.values if self.landing is None else landed(self.landing, end)
        if self.out is not None and layout.shape is not None and not self.flat:
            return self.out

        def taken(array: Any) -> Any:
            return array[: self.values.size] if self.flat else layout.cut(array, self.places)

        # what only has a protocol has no parts
        if self.landing is None or hasattr(type(values), "__getitem__"):
            found = taken(values)
        else:
            found = parts(values, layout.dtype, taken, self.landing.limit)
        return (found, layout.starts(self.places)) if self.flat else found

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of `Window.get_ranges`."""
        return *self.places[:3], self.values.view(np.uint8)


class Prefetch(Unique):
    """Records that are on their way: `Store.prefetch` returns it.

    The operation goes on by itself, also when this object is dropped. The batch is kept until
    then: nothing has to be waited for. Any threads may wait for one at once.

    ``await future`` waits in a coroutine of asyncio, without a busy loop, and returns
    the result.

    Examples
    --------
    >>> from rmaext.containers import Store
    >>> with Store(MPI.COMM_SELF, np.arange(8.0).reshape(4, 2)) as store:
    ...     store.prefetch([3, 0]).result()
    array([[6., 7.],
           [0., 1.]])
    """

    __slots__ = ("_batch", "_layout", "_request")

    def __init__(self, layout: Layout, batch: Batch, request: Request) -> None:
        self._layout, self._batch, self._request = layout, batch, request

    def __repr__(self) -> str:
        state = "done" if self._request.done else "goes on"
        return f"<rmaext.containers.Prefetch of {len(self._batch.places.ranks)} records: {state}>"

    def done(self) -> bool:
        """Return whether it has ended, by an error too: `result` does not block then.

        Returns
        -------
        bool

        Notes
        -----
        Local, not blocking; makes progress, as `Request.test`.

        Examples
        --------
        >>> from rmaext.containers import Store
        >>> with Store(MPI.COMM_SELF, np.zeros((4, 2))) as store:
        ...     store.prefetch([3, 0]).done()  # by memory it is done at once
        True
        """
        landing = self._batch.landing
        if not self._request.test():
            return False
        if landing is None or self._request._error is not None:
            return True
        try:
            return landing.copy_there(0)
        except RmaTimeout as exc:
            landing.late = exc.with_traceback(None)  # for who waits meanwhile: it goes on
            return False
        except RmaError:
            return True

    def result(self, timeout: float | None = None) -> Any:
        """Wait until it is done, and return what `Store.get` returns.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait, 0 included. By default the time limit of the store.

        Returns
        -------
        numpy.ndarray, list or tuple
            As `Store.get`: the same memory each time.

        Raises
        ------
        RmaTimeout
            It is not done yet, goes on, and may be waited for again.
        PeerLostError
            A rank that holds some of the records is lost. Each call raises it.
        ClosedError
            The store was closed before it was done.

        Notes
        -----
        Local, blocking; corresponds to MPI_Waitall.

        Examples
        --------
        >>> from rmaext.containers import Store
        >>> with Store(MPI.COMM_SELF, [np.arange(3), np.arange(2)]) as store:
        ...     store.prefetch([1, 0, 1]).result(timeout=10)
        [array([0, 1]), array([0, 1, 2]), array([0, 1])]
        """
        began = time.monotonic()
        self._request.wait(timeout)  # which raises if it is no number of seconds
        end = math.inf if timeout is None else began + timeout
        return self._batch.result(self._layout, end)

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._request.__await__()
        landing = self._batch.landing
        if landing is not None:
            import asyncio  # late: most programs have none

            landing.overdue()  # at an earlier look
            while not landing.copy_there(0):
                late = landing.overdue()
                if late is not None:
                    raise late
                yield from asyncio.sleep(_NAP).__await__()
        return self._batch.result(self._layout)


class Store(Unique, Generic[ScalarT]):
    """Records of all ranks, which any rank reads by their global indices.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks bring records.
    samples : numpy.ndarray or sequence of array_like
        This rank's records. An array of n dimensions has the records `samples[i]`, of n - 1.
        Arrays in a sequence all have one dtype and as many dimensions; their shapes may
        differ. A rank may have none. They are copied, and may be freed then. Arrays on a device
        are samples, too: a whole one, or each of a sequence.
    timeout : float, optional
        Seconds without progress after which a call raises `RmaTimeout`; by default
        RMAEXT_TIMEOUT, or 60.
    device : str, optional
        "cuda:0", for one: the records of this rank lie on that device, as of
        `rmaext.Window.allocate`; ranks may differ.

    Raises
    ------
    TypeError, ValueError, MemoryError, Unsupported, LibraryError, RmaError
        On every rank, if any rank's samples or device do not fit, or the ranks' dtypes or
        dimensions differ; the message names the ranks. What a sequence raises when it is read,
        too.
    SyncError, PeerLostError, RmaTimeout
        The ranks are in different collective calls, or one is lost.

    Notes
    -----
    Collective, blocking. The global index of a record counts rank 0's records first, then
    rank 1's, and so on. After creation records do not change, and reading them needs nothing
    of the rank that holds them: it may compute or sleep.

    **Results.** If all records of all ranks have one `shape`, a batch is one array, its
    records along the first dimension. Else it is a list of arrays, all of them views of
    one: each keeps the whole batch in memory, which `copy()` of one does not. All is new
    memory, or `out`.

    **Memory and cost.** The records lie in memory that the ranks of a node map: reading
    those is a copy. Those of other nodes come in a message or two for each rank that has some,
    not one for each record. Where lengths differ, each rank keeps a table of 8 bytes
    for each record of all ranks, and if more than the first dimension differs, 8 more for each
    dimension; where all are equal, there is none. Creation copies the samples once, and reads
    the tables of all ranks.

    **Devices.** With `device` the records lie there, and the tables of lengths on the host. They
    come there by this process's memory, once; `local` is of CuPy or PyTorch if the program has
    imported one of them. A batch comes to the host's memory unless `out` is on a device, which is
    filled from there, wherever the records lie.

    **Threads and signal handlers.** Any may read at once, and wait for any `Prefetch`: nothing
    of a store changes until `close`. A read that is interrupted (Ctrl-C) can be made again.

    **Failure.** A batch with records of a rank that is lost is PeerLostError; others go on.
    A store cannot be pickled or copied, nor used in a forked process, as a DataLoader's workers
    are: ClosedError there. Use `prefetch` instead.

    What is used today is MPI_Win_lock, MPI_Get and MPI_Win_unlock for each record (ORNL's
    DDStore).

    Examples
    --------
    >>> from rmaext.containers import Store
    >>> with Store(MPI.COMM_SELF, np.arange(8.0).reshape(4, 2)) as store:
    ...     store.get([3, 0])
    array([[6., 7.],
           [0., 1.]])
    >>> with Store(MPI.COMM_SELF, [np.arange(3), np.arange(2)]) as store:
    ...     len(store), store[1], store.get([1, 0])
    (2, array([0, 1]), [array([0, 1]), array([0, 1, 2])])
    """

    _layout: Layout
    _win: Window[np.uint8]

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        samples: NDArray[ScalarT] | Sequence[ArrayLike],
        timeout: float | None = None,
        *,
        device: str | None = None,
    ) -> None:
        if hasattr(self, "_win"):
            raise RuntimeError("this store was made before; make another one")
        own = Samples()

        def tell() -> Brought:
            nonlocal own
            own = Samples(samples, timeout)
            return own.brought

        self._comm = comm
        self._layout = layout = agreed(exchange(comm, "Store", tell, timeout))
        layout.read_tables(comm, own, timeout)
        with Opening() as stack:
            # All pages at once: so a lack of memory is an error, and not a signal.
            how: dict[str, Any] = {"lazy": False} if device is None else {"device": str(device)}
            win = Window.allocate(comm, own.nbytes, np.uint8, "r", timeout, **how)
            stack.enter_context(win)
            exchange(
                comm, "Store", lambda: fill(win.local, layout.dtype, own.copy_to, timeout), timeout
            )
            win.fence()
            stack.pop_all()
        self._win = win

    # -- what it is ------------------------------------------------------------------

    def __repr__(self) -> str:
        layout = self._layout
        shape = "several shapes" if layout.shape is None else f"shape {layout.shape}"
        state = ", closed" if self.closed else ""
        return (
            f"<rmaext.containers.Store: {layout.count} records of {shape}, {layout.dtype}, "
            f"on {len(layout.counts)} ranks{state}>"
        )

    def __len__(self) -> int:
        return self._layout.count

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """Of the elements of all records."""
        return self._layout.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of each record; None if they differ."""
        return self._layout.shape

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many records each rank holds. Local."""
        return self._layout.counts.copy()

    @property
    def local(self) -> Any:
        """This rank's records, as `get` returns a batch, but read-only and not copied. Local.

        On a device they are arrays there, which nothing keeps from being written to: do not.
        """
        own, layout = self.local_indices, self._layout
        places = layout.places(np.arange(own.start, own.stop))
        return parts(
            self._win.local,
            layout.dtype,
            lambda array: layout.cut(array, places),
            self._win.timeout,
        )

    @property
    def local_indices(self) -> range:
        """The global indices of this rank's records. Local."""
        layout, rank = self._layout, self._comm.rank
        end = int(layout.ends[rank])
        return range(end - int(layout.counts[rank]), end)

    @property
    def closed(self) -> bool:
        """Whether reading raises ClosedError."""
        return self._win.closed

    # -- reading -----------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        try:
            index = operator.index(key)
        except TypeError:
            if key is None or key is Ellipsis or isinstance(key, tuple):
                text = "is no index of records: use an integer, a slice or an array"
                raise TypeError(f"store[{key!r}] {text}") from None
            return self.get(key)
        layout = self._layout
        if not -layout.count <= index < layout.count:
            raise out_of_range("Store", f"index {index}", layout.count)
        rank, offset, nbytes, shape = layout.place(index % layout.count)
        out = np.empty(shape, layout.dtype)
        self._win.get(rank, offset, nbytes, out=out.reshape(-1).view(np.uint8))
        return out[()]

    @overload
    def get(
        self, indices: Indices, *, flat: Literal[True], out: NDArray[ScalarT] | None = None
    ) -> tuple[NDArray[ScalarT], NDArray[np.int64]]: ...

    @overload
    def get(
        self, indices: Indices, *, flat: bool = False, out: NDArray[ScalarT] | None = None
    ) -> Any: ...

    def get(
        self, indices: Indices, *, flat: bool = False, out: NDArray[ScalarT] | None = None
    ) -> Any:
        """Read a batch of records, in the order asked.

        Parameters
        ----------
        indices : array_like of int, slice, range, or array_like of bool
            Global indices in one dimension, in any order, also several times; negative
            ones count from the end. Or a mask of all records.
        flat : bool, optional
            Return the elements of all records one after another.
        out : numpy.ndarray or array on a device, optional
            C-contiguous memory to read into, of the store's dtype. If records have one shape
            and `flat` is False, of the shape of the result; else of one dimension, with as
            many elements as the batch has, or more.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            Where records have one shape, an array of shape (number of indices, `*shape`).
            Else a list of arrays, which are views of one.
        values, starts : numpy.ndarray
            With `flat`: `values[starts[k]:starts[k + 1]]` are the elements of the k-th record of
            the batch, in C order; `starts` is int64, and its last element how many there
            are. `values` begins where `out` does.

        Raises
        ------
        BoundsError
            An index is out of range. Nothing was read.
        TypeError, ValueError
            The indices are no integers, or `out` does not fit.
        PeerLostError, RmaTimeout
            From a rank that holds some of the records. `out` may have others already.
        ClosedError

        Notes
        -----
        Local, blocking: one operation for all records, `Window.get_ranges`.

        Examples
        --------
        >>> from rmaext.containers import Store
        >>> with Store(MPI.COMM_SELF, [np.arange(3), np.arange(2)]) as store:
        ...     values, starts = store.get([1, 0, -1], flat=True)
        >>> values, starts
        (array([0, 1, 0, 1, 2, 0, 1]), array([0, 2, 5, 7]))
        """
        batch = self._batch("Store.get", indices, flat, out)
        self._win.get_ranges(*batch.arguments)
        return batch.result(self._layout)

    def prefetch(
        self, indices: Indices, *, flat: bool = False, out: NDArray[ScalarT] | None = None
    ) -> Prefetch:
        """Begin to read a batch of records, which are needed later.

        Parameters
        ----------
        indices, flat, out
            As for `get`. `out` may not be used before it is done; the indices may.

        Returns
        -------
        Prefetch
            With `result(timeout=None)`, which returns what `get` does, and `done()`; also
            awaitable. Several may be open.

        Raises
        ------
        BoundsError, TypeError, ValueError, ClosedError
            At once, as `get`.
        PeerLostError
            At once, or from the result.

        Notes
        -----
        Local. Does not wait for the records of other nodes, which come while this
        rank computes: `Window.rget_ranges`. Those of this node are copied at once.

        Examples
        --------
        >>> from rmaext.containers import Store
        >>> with Store(MPI.COMM_SELF, np.arange(8.0).reshape(4, 2)) as store:
        ...     future = store.prefetch([3, 0])
        ...     total = 0.0  # compute
        ...     future.result()
        array([[6., 7.],
               [0., 1.]])
        """
        batch = self._batch("Store.prefetch", indices, flat, out)
        request = self._win.rget_ranges(*batch.arguments)
        return Prefetch(self._layout, batch, request)

    def _batch(self, call: str, given: Indices, flat: bool, out: Any) -> Batch:
        layout = self._layout
        places = layout.places(checked(call, given, layout.count))
        count = layout.elements(places)
        if out is None:
            return Batch(places, np.empty(count, layout.dtype), flat, None)
        shape: tuple[int, ...] = (count,)
        exact = layout.shape is not None and not flat
        if layout.shape is not None and exact:
            shape = (len(places.ranks), *layout.shape)
        host, landing = out, None
        if (cuda := of_cuda(out)) is not None:
            host = landing = cuda.landing(out, False, self._win.timeout)
        if not isinstance(host, np.ndarray) or host.dtype != layout.dtype:
            what = dtype_name(host.dtype) if isinstance(host, np.ndarray) else type(out).__name__
            raise TypeError(
                f"{call}: out must be an array of {dtype_name(layout.dtype)}, not {what}"
            )
        if host.shape != shape and (exact or host.ndim != 1 or host.size < count):
            least = "" if exact else ", or longer"
            raise ValueError(f"{call}: out has shape {host.shape}, and must have {shape}{least}")
        if not host.flags.c_contiguous or not host.flags.writeable:
            raise ValueError(f"{call}: out must be C-contiguous and writeable")
        values = np.asarray(host).reshape(-1)[:count]
        if landing is not None:  # of the batch alone: what lies behind it stays the program's
            landing = Landing.of(out, landing.number, values, landing.limit)
        return Batch(places, values, flat, out, landing)

    # -- the end -----------------------------------------------------------------------

    def close(self) -> None:
        """Wait for all ranks, and free the records. Twice is harmless.

        Raises
        ------
        RmaTimeout, PeerLostError, SyncError
            As `Window.close`. The store is closed all the same, unless the ranks are in
            different collective calls.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. Batches that were read, and
        what was taken of `local`, stay; `local` itself then raises ClosedError.

        Examples
        --------
        >>> from rmaext.containers import Store
        >>> store = Store(MPI.COMM_SELF, np.zeros((4, 2)))
        >>> store.close()
        >>> store.closed
        True
        """
        self._win.close()

    def __enter__(self) -> Self:
        self._win.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._win.__exit__(kind, error, trace)
