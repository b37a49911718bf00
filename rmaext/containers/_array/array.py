# SPDX-License-Identifier: BSD-3-Clause
"""`Array`: an array of N dimensions over all ranks, a block on each, read and written by any."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ... import Request, Window
from ..._comm.group import together
from ..._runtime.failures import of_all
from ..._runtime.reports import dtype_name
from .._agreement import Opening, agreed, bracketed, common, exchange
from .._values import taken
from .._windows import Closing, rank_of
from . import files
from .blocks import Blocks, Plan, Selection
from .ghosts import Ghosts, room

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Array"]

Widths = int | Sequence[int] | None
Splits = Sequence[Sequence[int] | None] | None


class Array(Closing):
    """An array over all ranks: each holds a block of it, and reads, writes and updates any part.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks hold the blocks.
    shape : int or tuple of int
        Of the whole. Any number of axes, and of elements, none included.
    dtype : data-type, optional
        What windows take: all without Python objects, records too.
    grid : int or tuple of int, optional
        How many blocks there are along each axis; 0 is to be chosen. By default as
        MPI_Dims_create chooses, more blocks along longer axes. The product may be less than
        the number of ranks: the last ones have no block then.
    splits : sequence of (sequence of int or None), optional
        For each axis where it is cut, as for numpy.split; None is to be cut evenly. By default
        the lengths of blocks along an axis differ by one at most, as of numpy.array_split.
    ghosts : int or tuple of int, optional
        How many cells of its neighbours each block is surrounded by, along each axis.
    periodic : bool or tuple of bool, optional
        Whether an axis has no ends: its last elements are neighbours of the first.
    timeout : float, optional
        Seconds without progress after which a call raises `RmaTimeout`; by default
        RMAEXT_TIMEOUT, or 60.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank, if any rank's arguments do not fit, or differ; the message names the ranks.
    SyncError, PeerLostError, RmaTimeout
        The ranks are in different collective calls, or one is lost.

    Notes
    -----
    Collective, blocking. The elements are zero. Rank r has the block of the grid that
    `numpy.unravel_index(r, grid)` says. It corresponds to NGA_Create of Global Arrays, and to an
    MPI window with a subarray datatype for each target.

    **Patches.** `field[key]` reads and `field[key] = values` writes what the key means in the whole
    array: integers, slices with any step, ... and None, not index arrays, for which there are
    `points` and `add_points`. Any rank may, at any time, and nobody else does anything for it: it
    is one operation for each rank that holds a part. What is read is a new array, or an element;
    `numpy.asarray(field)` is `field[...]`, on one rank. Values are broadcast. What is written is
    in place after `flush`, and `fence` tells all.

    **Who sees what.** Who reads elements while another rank writes them may see some old and some
    new ones. Nothing is atomic but `add`, `add_points` and `fetch_add`, element by element,
    against each other. An array has no locks.

    **Who waits for whom.** `exchange` waits for the neighbours; `fence`, `sum`, `max`, `min`,
    `redistribute`, `like`, `copy_to`, `save`, `load` and `close` are collective, and wait for
    all. All else waits for nobody. One thread at a time calls `exchange` and what is collective.

    **Memory.** A rank has its block with its ghosts, and room for two times the ghosts. Tables grow
    with the blocks along each axis, not with the ranks.

    **Failure.** What touches elements of a rank that is lost is PeerLostError; other elements are
    read, written and exchanged as before. So is an `exchange` next to that rank; and one next to
    a rank that gave up then, after the time limit. What is collective is PeerLostError on
    all, and the array is closed then.

    Examples
    --------
    >>> from rmaext.containers import Array
    >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
    ...     field[1:3, ::2] = [1, 2, 3]
    ...     field.add((2, slice(4)), 10.0)
    ...     field.fence()
    ...     field[2], field.sum()
    (array([11., 10., 12., 10.,  3.,  0.]), np.float64(52.0))
    """

    _win: Window[Any]

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        shape: int | Sequence[int],
        dtype: DTypeLike = float,
        grid: Widths = None,
        splits: Splits = None,
        ghosts: Widths = None,
        periodic: bool | Sequence[bool] = False,
        timeout: float | None = None,
    ) -> None:
        if hasattr(self, "_win"):
            raise RuntimeError("this array was made before; make another one")

        def tell() -> tuple[Plan, np.dtype[Any]]:
            found = np.dtype(dtype)
            if found.subdtype is not None:
                text = f"Array: dtype {dtype_name(found)} has dimensions: make them axes of the "
                raise TypeError(text + "array, or a field")
            return Plan.make(comm.size, shape, grid, splits, ghosts, periodic), found

        told = exchange(comm, "Array", tell, timeout)
        common([found for _, found in told], TypeError, "Array: the dtypes differ", dtype_name)
        for part in Plan._fields:
            every = [getattr(plan, part) for plan, _ in told]
            what = "where axes are cut" if part == "cuts" else part
            common(every, ValueError, f"Array: the ranks differ in {what}")
        self._open(comm, *told[0], timeout)

    def _open(
        self, comm: MPI.Comm, plan: Plan, dtype: np.dtype[Any], timeout: float | None
    ) -> None:
        """Make the windows. Collective; all ranks say the same."""
        self._comm, self._plan, self._timeout = comm, plan, timeout
        self._blocks = blocks = Blocks(plan)
        self._ghosts: Ghosts | None = None
        nbytes = 2 * room(blocks, comm.rank, dtype.itemsize)  # for what comes for the ghosts
        with Opening() as stack:
            # All pages at once: so a lack of memory is an error, and not a signal.
            padded = blocks.padded(comm.rank)
            win = Window.allocate(comm, padded, dtype, None, timeout, lazy=False)
            stack.enter_context(win)
            rooms = Window.allocate(comm, nbytes, np.uint8, None, timeout, lazy=False)
            stack.enter_context(rooms)
            stack.pop_all()
        self._win, self._windows = win, (win, rooms)

    def _made(self, plan: Plan, dtype: Any) -> Array:
        """Return another array over the same ranks. Collective."""
        made = Array.__new__(Array)
        opened = functools.partial(made._open, self._comm, plan, dtype, self._timeout)
        together(self._comm, "the creation of an Array", opened)
        return made

    # -- what it is ------------------------------------------------------------------

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return (
            f"<rmaext.containers.Array: shape {self.shape}, {dtype_name(self.dtype)}, "
            f"in a grid of {self.grid} blocks on {self._comm.size} ranks{state}>"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an Array without axes")
        return self.shape[0]

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return self._plan.shape

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self._plan.shape)

    @property
    def size(self) -> int:
        """How many elements it has, on all ranks together."""
        return math.prod(self._plan.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self._win.dtype

    @property
    def grid(self) -> tuple[int, ...]:
        """How many blocks there are along each axis."""
        return self._blocks.grid

    @property
    def closed(self) -> bool:
        """Whether reading raises ClosedError."""
        return self._win.closed

    @property
    def padded(self) -> NDArray[Any]:
        """This rank's block with its ghosts: its own memory, not a copy. Local.

        Ghosts beyond an end of the array are the program's: nothing else writes to them. A
        block without elements has no ghosts.
        """
        return self._win.local

    @property
    def local(self) -> NDArray[Any]:
        """This rank's block: its own memory, not a copy. Local.

        It is `field[field.where]`, and has no elements on a rank without a block. What is stored
        in it is an ordinary store, which `fence` orders.
        """
        return self._win.local[self._blocks.inside(self._comm.rank)]

    @property
    def where(self) -> tuple[slice, ...]:
        """Which slices of the whole array this rank's block is. Local."""
        return self._blocks.where(self._comm.rank)

    def where_of(self, rank: int) -> tuple[slice, ...]:
        """Return which slices of the whole array a rank's block is.

        Parameters
        ----------
        rank : int

        Returns
        -------
        tuple of slice
            One for each axis; empty ones of a rank without a block.

        Raises
        ------
        BoundsError
            The communicator does not have that rank.

        Notes
        -----
        Local.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.where_of(0)
        (slice(0, 4, None), slice(0, 6, None))
        """
        return self._blocks.where(rank_of(self._comm, rank, "Array.where_of"))

    def owner(self, index: int | Sequence[int]) -> int:
        """Return which rank holds an element.

        Parameters
        ----------
        index : int or tuple of int
            One for each axis; negative ones count from the end.

        Raises
        ------
        BoundsError, IndexError

        Notes
        -----
        Local.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.owner((3, -1))
        0
        """
        rank: int = self._element("Array.owner", index)[0]
        return rank

    # -- patches ---------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        some = self._patch("Array", key)
        if not isinstance(some, Selection):
            return self._win[some]
        out = np.empty(some.shape, self.dtype)
        parts = out[some.back]
        pieces = self._blocks.pieces(some.ranges)
        begun = [(self._win.rget(it.rank, key=it.key), it.place) for it in pieces]
        for request, place in begun:
            parts[place] = request.wait()
        return out

    def __setitem__(self, key: Any, values: Any) -> None:
        some = self._patch("Array", key)
        if not isinstance(some, Selection):
            self._win[some] = values
            return
        parts = self._fitted("Array", values, some.shape)[some.back]
        for rank, inside, place in self._blocks.pieces(some.ranges):
            self._win[(rank, *inside)] = parts[place]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an Array lies on all ranks: numpy.asarray copies it to this one")
        return np.asarray(self[...], dtype)

    def rget(self, key: Any) -> Request:
        """Begin to read a patch.

        Parameters
        ----------
        key : index
            As in `field[key]`.

        Returns
        -------
        Request
            Its result, which `wait()` returns, is what `field[key]` is.

        Raises
        ------
        BoundsError, IndexError, PeerLostError, ClosedError
            At once, if the operation can be refused; else from the request.

        Notes
        -----
        Local, not blocking: data of other nodes comes while this rank computes. A patch of one
        rank's elements is one operation, others are ranges of `Window.rget_ranges`.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     request = field.rget((slice(2), 5))
        ...     request.wait()
        array([0., 0.])
        """
        some = self._patch("Array.rget", key)
        if not isinstance(some, Selection):
            return self._win.rget(some[0], key=some[1:])
        out = np.empty(some.shape, self.dtype)
        return self._win.rget_ranges(*self._blocks.runs(some.ranges), out)

    def rput(self, values: ArrayLike, key: Any) -> Request:
        """Begin to write a patch.

        Parameters
        ----------
        values : array_like
            Broadcast to the shape of the patch; an array may not be changed before the request
            is done.
        key : index
            As in `field[key] = values`.

        Returns
        -------
        Request
            Done once all is in place.

        Raises
        ------
        BoundsError, IndexError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused; else from the request.

        Notes
        -----
        Local, not blocking; as `rget`.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.rput([1.0, 2.0], (slice(2), 5)).wait()
        ...     field[:, 5]
        array([1., 2., 0., 0.])
        """
        some = self._patch("Array.rput", key)
        if not isinstance(some, Selection):
            return self._win.rput(values, some[0], key=some[1:])
        parts = self._fitted("Array.rput", values, some.shape)
        return self._win.rput_ranges(*self._blocks.runs(some.ranges), parts)

    def add(self, key: Any, values: ArrayLike) -> None:
        """Add to a patch, each element atomically.

        Parameters
        ----------
        key : index
            As in `field[key]`.
        values : array_like
            Broadcast to the shape of the patch.

        Raises
        ------
        BoundsError, IndexError, TypeError, ValueError, Unsupported
            Before anything is added; Unsupported where the dtype has no sum.
        PeerLostError, RmaTimeout, ClosedError
            Any of the elements may have been added to.

        Notes
        -----
        Local, blocking: all is added when it returns. `field[key] += values` reads and writes,
        and loses what others write in between. Corresponds to MPI_Accumulate with MPI_SUM, and
        to NGA_Acc.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
        ...     field.add((slice(2), 5), [1.0, 2.0])
        ...     field[:, 5]
        array([1., 2., 0., 0.])
        """
        some = self._patch("Array.add", key)
        if not isinstance(some, Selection):
            shape = tuple(it.stop - it.start for it in some if type(it) is slice)
            self._win.accumulate(self._fitted("Array.add", values, shape), some[0], key=some[1:])
            self._win.flush(some[0])
            return
        parts = self._fitted("Array.add", values, some.shape)[some.back]
        pieces = self._blocks.pieces(some.ranges)
        for rank, inside, place in pieces:
            self._win.accumulate(parts[place], rank, key=inside)
        for piece in pieces:
            self._win.flush(piece.rank)

    def fetch_add(self, index: int | Sequence[int], value: Any) -> Any:
        """Add to an element atomically, and return what it was.

        Parameters
        ----------
        index : int or tuple of int
            One for each axis.
        value : scalar

        Returns
        -------
        NumPy scalar

        Raises
        ------
        BoundsError, IndexError, TypeError, OverflowError, Unsupported
        PeerLostError, RmaTimeout, ClosedError

        Notes
        -----
        Local, blocking; `Window.fetch_add`. Corresponds to MPI_Fetch_and_op, and NGA_Read_inc.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 3, int) as counters:
        ...     counters.fetch_add(2, 5), counters.fetch_add(2, 1), counters[2]
        (np.int64(0), np.int64(5), np.int64(6))
        """
        one = self._blocks.one(index if isinstance(index, tuple) else (index,))
        if one is not None and slice not in map(type, one):
            return self._win.fetch_add(value, one[0], self._blocks.offset(one))
        rank, offset = self._element("Array.fetch_add", index)
        return self._win.fetch_add(value, rank, offset)

    def points(self, indices: ArrayLike) -> NDArray[Any]:
        """Read elements anywhere.

        Parameters
        ----------
        indices : array_like of int
            Of shape (..., ndim): the last axis has an index for each axis of the array, as
            numpy.argwhere returns them; negative ones count from the end.

        Returns
        -------
        numpy.ndarray
            Of shape (...).

        Raises
        ------
        BoundsError, TypeError, ValueError
            Before anything is read.
        PeerLostError, RmaTimeout, ClosedError

        Notes
        -----
        Local, blocking: `Window.get_many`, a message or so for each rank of another node that
        holds some. Corresponds to NGA_Gather.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6), int) as field:
        ...     field[:] = np.arange(24).reshape(4, 6)
        ...     field.points([[0, 5], [3, -6]])
        array([ 5, 18])
        """
        got: NDArray[Any] = self._win.get_many(*self._points("Array.points", indices))
        return got

    def add_points(self, indices: ArrayLike, values: ArrayLike) -> None:
        """Add to elements anywhere, each atomically, as often as it is named.

        Parameters
        ----------
        indices : array_like of int
            As for `points`.
        values : array_like
            Broadcast to the shape of the indices without their last axis.

        Raises
        ------
        BoundsError, TypeError, ValueError, Unsupported
            Before anything is added.
        PeerLostError, RmaTimeout, ClosedError
            Any of the elements may have been added to.

        Notes
        -----
        Local, blocking: `Window.accumulate_many`, the counterpart of numpy.add.at. Corresponds
        to NGA_Scatter_acc.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4, int) as counts:
        ...     counts.add_points([[2], [0], [2]], 1)
        ...     counts[:]
        array([1, 0, 2, 0])
        """
        ranks, offsets = self._points("Array.add_points", indices)
        values = self._fitted("Array.add_points", values, offsets.shape)
        self._win.accumulate_many(ranks, offsets, values)

    def _patch(self, call: str, key: Any) -> Any:
        """Return rank and key of the window if one rank holds all of it; else a `Selection`."""
        one = self._blocks.one(key)
        if one is not None:
            return one
        some = self._blocks.select(call, key)
        # an element, which NumPy and the window return as one
        return self._blocks.one(tuple(it.start for it in some.ranges)) if some.scalar else some

    def _fitted(self, call: str, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return values in the shape of a patch, as numpy.ndarray.__setitem__ takes them."""
        array = given = taken(values, self.dtype, call)
        while array.ndim > len(shape) and array.shape[0] == 1:
            array = array[0]
        try:
            return np.broadcast_to(array, shape)
        except ValueError:
            text = f"{call}: values of shape {given.shape} do not fit a patch of shape {shape}"
            raise ValueError(text) from None

    def _element(self, call: str, index: Any) -> tuple[int, int]:
        """Return rank and offset of an element."""
        key = tuple(index) if np.iterable(index) else (index,)
        if len(key) != self.ndim:
            text = f"{call}: {index!r} has {len(key)} indices, for shape {self.shape}"
            raise IndexError(f"{text}: one for each axis")
        key = tuple(self._blocks.index(call, it, axis) for axis, it in enumerate(key))
        rank, offset = self._blocks.places(key)
        return int(rank), int(offset)

    def _points(self, call: str, indices: ArrayLike) -> tuple[Any, Any]:
        """Return ranks and offsets of elements."""
        given = np.asarray(indices)
        given = given.astype(np.int64) if not given.size else given
        if given.dtype.kind not in "iu":
            raise TypeError(f"{call}: indices must be integers, not {dtype_name(given.dtype)}")
        if given.shape[-1:] != (self.ndim,):
            text = f"{call}: indices of shape {given.shape} for an array of {self.ndim} axes"
            raise ValueError(f"{text}: the last axis has one for each, (..., {self.ndim})")
        columns = []
        for axis, n in enumerate(self.shape):
            column = given[..., axis]
            wrong = (column < -n) | (column >= n)
            if wrong.any():
                raise self._blocks.outside(call, int(column[wrong][0]), axis)
            column = column.astype(np.int64)  # the sum may be none of its dtype's
            columns.append(np.where(column < 0, column + n, column))
        ranks, offsets = self._blocks.places(columns)
        shape = given.shape[:-1]
        return np.broadcast_to(ranks, shape), np.broadcast_to(offsets, shape)

    # -- ghosts ----------------------------------------------------------------------

    def exchange(self) -> None:
        """Fill the ghosts with what the neighbours have, corners too.

        Raises
        ------
        PeerLostError
            A neighbour is lost, or one does not come within the time limit after any rank was.
        RmaTimeout, ClosedError

        Notes
        -----
        All ranks call it, equally often. It waits for the ranks that have some of this rank's
        ghosts, each until it has begun its own call, and is no barrier: others may be far behind.
        A neighbour gets what `local` holds when this rank calls it, corners with it: in one
        message, or if it is more than 32 KiB, by one write and a message. The ghosts of this rank
        change within its own call only, so there is nothing to be done before the next one, nor
        before `local` is changed again. Interrupted by Ctrl-C it may be called again: it goes on.

        Corresponds to MPI_Neighbor_alltoallw, and GA_Update_ghosts.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4, ghosts=1, periodic=True) as field:
        ...     field.local[:] = [1, 2, 3, 4]
        ...     field.exchange()
        ...     field.padded
        array([4., 1., 2., 3., 4., 1.])
        """
        ghosts = self._exchanges()
        ghosts.begin(apart=False)
        ghosts.end()

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Begin an `exchange`, which ends where the block does: compute what needs no ghosts there.

        Raises
        ------
        PeerLostError, RmaTimeout, ClosedError
            At the end of the block, as `exchange`.

        Notes
        -----
        As `exchange`; it waits for nobody at its beginning, so over the network what is more than
        32 KiB goes in messages of 16 KiB, which takes some two times as long. What is sent is what
        `local` holds there; the block may change it. The ghosts may be read after the block only.
        After an exception in the block the exchange has not ended: the next call ends it, and does
        not send again.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4, ghosts=1, periodic=True) as field:
        ...     field.local[:] = [1, 2, 3, 4]
        ...     with field.exchanging():
        ...         inner = field.local[:-2] + field.local[2:]
        ...     inner, field.padded[[0, -1]]
        (array([4., 6.]), array([4., 1.]))
        """
        ghosts = self._exchanges()
        ghosts.begin(apart=True)
        yield
        ghosts.end()

    def _exchanges(self) -> Ghosts:
        if self._ghosts is None or self.closed:
            self._win.sync()  # raises if it is closed
            self._ghosts = Ghosts(self.padded, self._windows[1], self._blocks)
        return self._ghosts

    # -- collective ------------------------------------------------------------------

    def fence(self) -> None:
        """Wait for all ranks: what any has written before is in place then, for all to see.

        Raises
        ------
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking; `Window.fence`. Corresponds to MPI_Win_fence, and GA_Sync.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4) as field:
        ...     field[2:] = 1
        ...     field.fence()
        ...     field.local
        array([0., 0., 1., 1.])
        """
        self._win.fence()

    def flush(self) -> None:
        """Wait until what this rank has written is in place.

        Raises
        ------
        PeerLostError, RmaTimeout, ClosedError

        Notes
        -----
        Local, blocking; `Window.flush`. It tells nobody: others know by `fence`, or by what
        this rank then writes or sends.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4) as field:
        ...     field[2:] = 1
        ...     field.flush()
        """
        self._win.flush()

    def sum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Any:
        """Return the sum of all elements, or an array of sums along an axis.

        Parameters
        ----------
        axis : int, optional
            By default all elements are added.
        dtype : data-type, optional
            To add in; by default what numpy.sum adds in.
        out : None
            There for `numpy.sum(field)`, which is this call.

        Returns
        -------
        NumPy scalar or Array
            The same scalar on all ranks; or a new array
            without that axis and without ghosts, cut where this one is, to be closed.

        Raises
        ------
        TypeError
            NumPy has no such sum of the dtype, or there is an `out`.
        ValueError
            The ranks differ in axis or dtype; numpy.exceptions.AxisError if there is no such axis.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking. What any rank has written before its call counts. Each rank adds its
        own block, then the sums of all in the order of the ranks: the result is the same on each,
        and each time, though rounded otherwise than on one process. Along an axis it is the ranks
        that hold the result who add.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[:] = [[1, 2, 3], [4, 5, 6]]
        ...     with field.sum(axis=0) as sums:
        ...         field.sum(), sums[:]
        (np.int64(21), array([5, 7, 9]))
        """
        return self._reduced("Array.sum", np.add, axis, dtype, out)

    def mean(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Any:
        """Return the mean of all elements, or an array of means along an axis.

        Parameters, results, errors and notes are those of `sum`; `numpy.mean(field)` is this call.
        The dtype is by default float64 of integers, float32 of float16, else the array's.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     with field.mean(axis=1) as means:
        ...         field.mean(), means[:]
        (np.float64(2.5), array([0., 5.]))
        """
        if dtype is None and self.dtype.kind in "iub":
            dtype = np.float64
        elif dtype is None and self.dtype == np.float16:
            dtype = np.float32  # as numpy.mean adds, or large sums would be infinite

        def divided() -> Any:
            total = self._reduced("Array.mean", np.add, axis, dtype, out)
            if axis is None:
                return total.dtype.type(total / self.size)
            total.local[...] = total.local / self.shape[axis]
            total.fence()
            return total

        return together(self._comm, "Array.mean", divided)

    def max(self, axis: int | None = None, out: None = None) -> Any:
        """Return the largest of all elements, or an array of the largest along an axis.

        Parameters, results, errors and notes are those of `sum`.

        Raises
        ------
        ValueError
            There are no elements.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     field.max()
        np.int64(6)
        """
        return self._reduced("Array.max", np.maximum, axis, None, out)

    def min(self, axis: int | None = None, out: None = None) -> Any:
        """Return the smallest of all elements, or an array of the smallest along an axis.

        Parameters, results, errors and notes are those of `sum`.

        Raises
        ------
        ValueError
            There are no elements.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     field.min()
        np.int64(0)
        """
        return self._reduced("Array.min", np.minimum, axis, None, out)

    def _reduced(
        self, call: str, ufunc: np.ufunc, axis: int | None, dtype: DTypeLike | None, out: None
    ) -> Any:
        def part() -> tuple[str, bytes]:
            """Return how it is asked for; without an axis what this block comes to, too."""
            if out is not None:
                raise TypeError(f"{call}: takes no out=, but returns a scalar or a new Array")
            how = "" if dtype is None else f", dtype {np.dtype(dtype)}"
            if axis is not None:
                return f"axis {operator.index(axis) + self.ndim * (axis < 0)}{how}", b""
            local = self.local
            whole = ufunc.reduce(local, axis=None, dtype=dtype).tobytes() if local.size else b""
            return f"no axis{how}", whole

        def reduced() -> Any:
            self._win.fence()
            parts = agreed(self._comm, call, part)
            common([it for it, _ in parts], ValueError, f"{call}: the ranks differ")
            try:  # TypeError where NumPy has no such thing, ValueError where nothing is to compare
                number = None if axis is None else self._axis(axis)
                count = self.size if number is None else self.shape[number]
                found = ufunc.reduce(np.zeros(min(count, 1), self.dtype), dtype=dtype).dtype
            except (TypeError, ValueError) as exc:
                of_all(exc)
                raise
            if number is not None:
                return self._along(functools.partial(ufunc.reduce, dtype=dtype), found, number)
            # on each rank, in the order of the ranks: so all have the same
            return ufunc.reduce(np.frombuffer(b"".join(it for _, it in parts), found), dtype=dtype)

        return together(self._comm, call, reduced)

    def _axis(self, axis: int) -> int:
        number = operator.index(axis)
        if not -self.ndim <= number < self.ndim:
            raise np.exceptions.AxisError(number, self.ndim)
        return number % self.ndim

    def _along(self, reduce: Callable[..., Any], dtype: np.dtype[Any], axis: int) -> Array:
        """Return results along an axis, by way of an array with an element for each block."""
        plan, none = self._plan, (0,) * self.ndim
        ends = np.cumsum(np.diff([0, *plan.cuts[axis]]) > 0).tolist()
        cuts = _with(plan.cuts, axis, tuple(ends))
        parts = Plan(_with(plan.shape, axis, ends[-1]), cuts, none, (False,) * self.ndim)
        rest = Plan(*(_with(some, axis) for some in (plan.shape, plan.cuts, none, parts.periodic)))
        with self._made(parts, dtype) as partial:
            local = partial.local
            if local.size:
                local[...] = reduce(self.local, axis=axis, keepdims=True)
            partial.fence()
            result = self._made(rest, dtype)
            if result.local.size:
                where = _with(result.where, axis, slice(None), insert=True)
                result.local[...] = reduce(partial[where], axis=axis)
            result.fence()
        return result

    def redistribute(self, grid: Widths = None, splits: Splits = None) -> Array:
        """Return the same array in other blocks.

        Parameters
        ----------
        grid, splits
            As for `Array`.

        Returns
        -------
        Array
            New, with the same ghosts, which are zero; to be closed.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As `Array`, on every rank.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking: a new array, and `copy_to`. As between pencils for a Fourier
        transform. Corresponds to MPI_Alltoallw.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6), grid=(0, 1)) as rows:
        ...     with rows.redistribute(grid=(1, 0)) as columns:
        ...         columns.where
        (slice(0, 4, None), slice(0, 6, None))
        """
        self._win.sync()  # raises if it is closed
        how = (grid, splits, *self._plan[2:], self._timeout)

        def make() -> Array:
            made = Array(self._comm, self.shape, self.dtype, *how)
            self.copy_to(made)
            return made

        return together(self._comm, "Array.redistribute", make)

    @classmethod
    def like(cls, field: Array) -> Array:
        """Return a new array of zeros with the shape, dtype, blocks and ghosts of another.

        Parameters
        ----------
        field : Array

        Returns
        -------
        Array

        Raises
        ------
        TypeError
            It is no Array.
        ValueError, MemoryError, PeerLostError, SyncError, RmaTimeout
            As `Array`, on every rank, as when the ranks name different fields.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field, Array.like(field) as new:
        ...     new
        <rmaext.containers.Array: shape (4, 6), float64, in a grid of (1, 1) blocks on 1 ranks>
        """
        if not isinstance(field, Array):
            raise TypeError(f"Array.like: {field!r:.60} is no Array")
        splits = [cut[:-1] for cut in field._plan.cuts]
        how = (None, splits, *field._plan[2:], field._timeout)
        return cls(field.comm, field.shape, field.dtype, *how)

    def copy_to(self, other: Array) -> None:
        """Copy all elements to another array of the same shape, whatever its blocks are.

        Parameters
        ----------
        other : Array
            Of the same shape and dtype, over the same ranks.

        Raises
        ------
        TypeError, ValueError
            It is no such array.
        SyncError
            It is one on some ranks only, or not the same array on all. Nothing is copied.
        PeerLostError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking: each rank puts its block, an operation for each block there that it
        meets. What any rank has written before its call is copied, and all of it is in place when
        a rank returns; ghosts stay as they are.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 3) as field, Array.like(field) as new:
        ...     field[:] = [1, 2, 3]
        ...     field.copy_to(new)
        ...     new.local
        array([1., 2., 3.])
        """
        try:
            self._compare(other)
        except (TypeError, ValueError):  # of all ranks; SyncError where others begin to copy
            agreed(self._comm, "Array.copy_to", lambda: self._compare(other))

        def copy() -> None:
            self.fence()
            other.fence()  # the same one on all ranks; nothing that was written there comes late
            if self.local.size:
                other[self.where] = self.local
            other.fence()

        together(self._comm, "Array.copy_to", copy)

    def _compare(self, other: Array) -> None:
        """Raise what `copy_to` does of an array that does not fit."""
        if not isinstance(other, Array):
            raise TypeError(f"Array.copy_to: {other!r:.60} is no Array")
        other._win.sync()  # raises if it is closed
        if (other.shape, other.dtype) != (self.shape, self.dtype):
            text = f"Array.copy_to: {other!r} is no array of shape {self.shape} and "
            raise ValueError(text + dtype_name(self.dtype))
        if MPI.Comm.Compare(other.comm, self._comm) not in (MPI.IDENT, MPI.CONGRUENT):
            raise ValueError("Array.copy_to: the other array is over other ranks")

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the array to a file, from which any number of ranks may load it.

        Parameters
        ----------
        path : path
            Ending in .npy, .zarr, .h5 or .hdf5, which says what is written; the same on all ranks,
            which see the same files. A .npy is what numpy.load reads. HDF5 has a dataset "array".

        Raises
        ------
        ValueError, ImportError
            There is no such kind of file, or its package is missing (zarr, h5py), on every rank.
        OSError
            As when a disk is full: on every rank, which ones have failed in its message.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking. What any rank has written before its call is in the file. Each rank
        reads and writes pieces of 16 MiB or less, one after another, each in one piece of the
        file: so no rank holds the whole. h5py writes a file from one process, rank 0. The name is
        that of the old file, if there is one, until all is written. Where stderr is a
        terminal rank 0 shows how far it is.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 3) as field:
        ...     field.save("/tmp/field.npy")
        >>> np.load("/tmp/field.npy")
        array([0., 0., 0.])
        """

        def saved() -> None:
            self.fence()
            files.save(self, path, self._timeout)

        together(self._comm, "Array.save", saved)

    @classmethod
    def load(
        cls,
        comm: MPI.Comm,
        path: str | PathLike[str],
        grid: Widths = None,
        splits: Splits = None,
        ghosts: Widths = None,
        periodic: bool | Sequence[bool] = False,
        timeout: float | None = None,
    ) -> Array:
        """Return a new array with what a file holds.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
        path : path
            Of a file that `save` or another program has written: .npy in C or Fortran order, .zarr
            that is an array, .h5 or .hdf5 with a dataset "array", or only one.
        grid, splits, ghosts, periodic, timeout
            As for `Array`.

        Returns
        -------
        Array
            Of the shape and dtype of what the file holds.

        Raises
        ------
        ValueError, ImportError, OSError
            As `save`, on every rank.
        TypeError, MemoryError, PeerLostError, SyncError, RmaTimeout
            As `Array`.

        Notes
        -----
        Collective, blocking. As for `save`: each rank reads its pieces of the file, and no rank
        holds the whole.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> np.save("/tmp/field.npy", np.arange(3))
        >>> with Array.load(MPI.COMM_SELF, "/tmp/field.npy", ghosts=1) as field:
        ...     field.padded
        array([0, 0, 1, 2, 0])
        """

        def make() -> Array:
            shape, dtype = files.header(comm, path, timeout)
            made = cls(comm, shape, dtype, grid, splits, ghosts, periodic, timeout)
            with ExitStack() as stack:  # after an error no rank waits for others at its end
                stack.enter_context(made)
                files.load(made, path, timeout)
                stack.pop_all()
            return made

        return together(comm, "Array.load", make)

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """Wait for all ranks, and free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError, RmaTimeout
            As `rmaext.Window.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block. What was taken of `local`
        and `padded` stays.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> field = Array(MPI.COMM_SELF, 3)
        >>> field.close()
        >>> field.closed
        True
        """
        self.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self.closed:
                self._ghosts = None  # which has arrays over the memory


def _with(some: Sequence[Any], at: int, *new: Any, insert: bool = False) -> tuple[Any, ...]:
    """Return entries of which one is another one, or left out, or inserted."""
    return (*some[:at], *new, *some[at + (not insert) :])
