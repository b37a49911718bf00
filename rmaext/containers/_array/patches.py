# SPDX-License-Identifier: BSD-3-Clause
"""How parts of an `Array` are read, written and added to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ... import Request
from ..._runtime.reports import dtype_name
from .._values import taken
from .blocks import Selection
from .held import Held

__all__ = ["Patches"]


class Patches(Held):
    """An `Array` as any rank uses it, without the others."""

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
        array = given = taken(values, self.dtype, call, limit=self._win.timeout)
        while array.ndim > len(shape) and array.shape[0] == 1:
            array = array[0]
        if array.shape == shape:
            return array
        try:
            return np.broadcast_to(array, shape)
        except ValueError:
            text = f"{call}: values of shape {given.shape} do not fit a patch of shape {shape}"
            raise ValueError(text) from None

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
