# SPDX-License-Identifier: BSD-3-Clause
"""Where each record of a `Store` lies: from global indices to ranks, offsets and lengths."""

from __future__ import annotations

import bisect
import errno
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .. import BoundsError, Request, Window
from .._runtime.reports import dtype_name
from ._agreement import common
from ._samples import Brought, Samples, Shape

__all__ = ["Layout", "Places", "agreed", "checked", "out_of_range"]

Longs = NDArray[np.int64]

_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


class Places(NamedTuple):
    """Where the records of a batch lie, and how they are told apart in it."""

    ranks: Longs
    offsets: Longs  # bytes
    nbytes: Longs | int  # of each; a number if all are as long
    starts: Longs | None  # of each in the batch, and the end, in elements; None: all are as long
    shapes: Longs | None  # of each, or first dimensions; None: elements in one dimension


class Layout:
    """Where the records of all ranks lie.

    Three cases: all records have one `shape`, and arithmetic does; or their first dimensions
    differ, and a table says in which *row* of all rows each begins; or others differ too,
    and a second table has their shapes, a row being one element. The tables are those of
    all ranks' records, in their order.

    Parameters
    ----------
    counts : array of int64
        Records of each rank.
    dtype : numpy.dtype
        Of all records.
    ndim : int
        Of each record.
    shape : tuple of int or None
        Of all records, if they have one.
    tail : tuple of int or None
        The same without the first dimension.
    """

    def __init__(
        self,
        counts: Longs,
        dtype: np.dtype[Any],
        ndim: int,
        shape: Shape | None,
        tail: Shape | None,
    ) -> None:
        self.counts, self.dtype, self.ndim = counts, dtype, ndim
        self.shape = shape
        self.tail = tail if tail is not None else ()
        self.count = int(counts.sum())
        self.ends = np.cumsum(counts)  # of each rank's records
        self._ends = self.ends.tolist()
        self._first = self.ends - counts
        # the elements and bytes of a record, or of a row of one
        self.unit = math.prod(shape if shape is not None else self.tail)
        self.unit_bytes = self.unit * dtype.itemsize
        self._columns = 0 if shape is not None else 1 if tail is not None else ndim
        self._starts = np.zeros(1, np.int64)
        self._shapes: Longs | None = None
        self._base = self._first  # of each rank, in records or rows

    def read_tables(self, comm: MPI.Comm, samples: Samples, timeout: float | None) -> None:
        """Learn the lengths of all ranks' records, where they differ. Collective."""
        columns = self._columns
        if not columns:
            return
        table = np.empty((self.count, columns), np.int64)
        own = samples.shapes(self.ndim)[:, :columns]
        with Window.allocate(comm, own.shape, np.int64, "r", timeout) as win:
            win.local[:] = own
            win.fence()
            begun = []
            for turn in range(comm.size):  # not all at the same rank
                rank = (comm.rank + turn) % comm.size
                end = self._ends[rank]
                rows = table[end - int(self.counts[rank]) : end].reshape(-1)
                begun.append(win.rget(rank, out=rows))
            Request.waitall(begun)
        self._starts = np.zeros(self.count + 1, np.int64)
        np.cumsum(table.prod(axis=1), out=self._starts[1:])
        if columns > 1:
            self._shapes = table
        self._base = self._starts[self._first]

    # -- many records --------------------------------------------------------------

    def places(self, indices: Longs) -> Places:
        """Return where records are, whose indices are in range and not negative."""
        ranks: Longs = self.ends.searchsorted(indices, "right")
        if self.shape is not None:
            offsets = indices - self._base.take(ranks)
            offsets *= self.unit_bytes
            return Places(ranks, offsets, self.unit_bytes, None, None)
        offsets = self._starts.take(indices)
        lengths = self._starts.take(indices + 1)
        lengths -= offsets
        offsets -= self._base.take(ranks)
        offsets *= self.unit_bytes
        starts = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=starts[1:])
        starts *= self.unit
        shapes = None
        if self._shapes is not None:
            shapes = self._shapes.take(indices, axis=0)
        elif self.tail:
            shapes = lengths
        return Places(ranks, offsets, lengths * self.unit_bytes, starts, shapes)

    def elements(self, places: Places) -> int:
        """Return how many elements a batch has."""
        if places.starts is None:
            return self.unit * len(places.ranks)
        return int(places.starts[-1])

    def starts(self, places: Places) -> Longs:
        """Return where each record of a batch begins, and the end, in elements."""
        if places.starts is None:
            return np.arange(len(places.ranks) + 1) * self.unit
        return places.starts

    def cut(self, values: NDArray[Any], places: Places) -> Any:
        """Return the records of a batch: one array, or a list of views, of their shapes."""
        if self.shape is not None or places.starts is None:
            return values.reshape(len(places.ranks), *(self.shape or ()))
        pairs = itertools.pairwise(places.starts.tolist())
        if places.shapes is None:
            return [values[a:b] for a, b in pairs]
        shapes: list[Any] = places.shapes.tolist()
        if places.shapes.ndim == 1:
            shapes = [(length, *self.tail) for length in shapes]
        return [values[a:b].reshape(shape) for (a, b), shape in zip(pairs, shapes, strict=True)]

    # -- one record ----------------------------------------------------------------

    def place(self, index: int) -> tuple[int, int, int, Shape]:
        """Return rank, offset and length in bytes, and shape of a record."""
        rank = bisect.bisect_right(self._ends, index)
        base = int(self._base[rank])
        if self.shape is not None:
            return rank, (index - base) * self.unit_bytes, self.unit_bytes, self.shape
        start, stop = self._starts[index : index + 2].tolist()
        shape = (stop - start, *self.tail)
        if self._shapes is not None:
            shape = tuple(self._shapes[index].tolist())
        return rank, (start - base) * self.unit_bytes, (stop - start) * self.unit_bytes, shape


def agreed(told: Sequence[Brought]) -> Layout:
    """Return the layout of what ranks have brought; all raise the same if it does not fit."""
    dtypes = [each.dtype for each in told]
    ndims = [each.ndim if each.records else None for each in told]
    dtype = common(dtypes, TypeError, "samples are of several dtypes")
    ndim = common(ndims, ValueError, "samples are of several kinds", "{} dimensions".format)
    # who has no records has a word in their shape only if nobody has any
    some = [each for each in told if each.records]
    shapes = {each.shape for each in some or told if each.dtype is not None}
    tails = {each.tail for each in some}
    shape = shapes.pop() if len(shapes) == 1 else None
    return Layout(
        np.array([each.records for each in told], np.int64),
        np.dtype(float) if dtype is None else dtype,
        ndim if ndim is not None else 1 if shape is None else len(shape),
        shape,
        tails.pop() if len(tails) == 1 else None if tails else (),
    )


# -- indices -------------------------------------------------------------------------


def checked(call: str, given: Any, count: int) -> Longs:
    """Return indices of records as int64, none of them negative; raise if one is out of range.

    Parameters
    ----------
    call : str
        For the words of errors.
    given : slice, range, or array_like of int or bool
        Of one dimension; negative ones count from the end, as Python has it.
    count : int
        Of the records that there are.
    """
    if type(given) is np.ndarray and given.dtype is _INT64 and given.ndim == 1 and given.size:
        unsigned = given.view(_UINT64)  # in which what is negative is large
        if unsigned.item(unsigned.argmax()) < count:
            return given
    if isinstance(given, slice):
        given = range(count)[given]
    if isinstance(given, range):
        if given and not -count <= min(given[0], given[-1]) <= max(given[0], given[-1]) < count:
            at = 0 if not -count <= given[0] < count else len(given) - 1
            raise _wrong(call, given[at], at, count)
        array: Longs = np.arange(given.start, given.stop, given.step, dtype=np.int64)
    else:
        array = _integers(call, given, count)
    if not array.size:
        return array
    if array.min() < 0:
        array = array + count * (array < 0)
    if array.min() < 0 or array.max() >= count:
        at = int(np.argmax((array < 0) | (array >= count)))
        asked = given[at] if isinstance(given, (list, tuple, np.ndarray)) else array[at]
        raise _wrong(call, int(asked), at, count)
    return array


def _integers(call: str, given: Any, count: int) -> Longs:
    """Return integers in one dimension; those that do not fit int64 are out of range."""
    array = np.asarray(given)
    if array.ndim != 1:
        text = "use store[i] for one record" if not array.ndim else "ravel() them"
        raise ValueError(f"{call}: indices have {array.ndim} dimensions, not one: {text}")
    if array.dtype.kind == "b":
        if array.size != count:
            text = f"{call}: a mask of {array.size} elements for {count} records"
            raise BoundsError(errno.EINVAL, text, call=call)
        return np.flatnonzero(array)
    if not array.size and isinstance(given, (list, tuple)):
        return np.empty(0, np.int64)  # [] has no dtype of its own
    if array.dtype.kind == "O":
        numbers = [operator.index(one) for one in array]
        for at, number in enumerate(numbers):
            if not -count <= number < count:
                raise _wrong(call, number, at, count)
        return np.array(numbers, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{call}: indices must be integers, not {dtype_name(array.dtype)}")
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        at = int(array.argmax())
        raise _wrong(call, int(array[at]), at, count)
    return array.astype(np.int64, copy=False)


def out_of_range(call: str, what: str, count: int) -> BoundsError:
    """Return the error of an index for which there is no record."""
    text = f"{call}: {what} is out of range: there are {count} records"
    return BoundsError(errno.ERANGE, text, call=call)


def _wrong(call: str, index: int, at: int, count: int) -> BoundsError:
    return out_of_range(call, f"indices[{at}], which is {index},", count)
