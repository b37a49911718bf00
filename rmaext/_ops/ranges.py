# SPDX-License-Identifier: BSD-3-Clause
"""Operations on many ranges of elements, and how operations on many places begin."""

from __future__ import annotations

import errno
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from .._native._lib import ffi, lib
from .._runtime.failures import from_c
from ..errors import BoundsError
from ..typing import ScalarT
from .arguments import told
from .core import Array, Shape
from .many import GET, PUT, Call, ManyOperations, indices
from .request import Request, done_at_once

__all__ = ["Places", "RangeOperations"]

_NULL = ffi.NULL
_PENDING = lib.RMAEXT_PENDING
_from_buffer = ffi.from_buffer
_INT64 = np.dtype(np.int64)
_LONGS = ffi.typeof("int64_t[]")
_LARGE = 1 << 24  # elements, from which on an array for results is made after the checks only


class Places(NamedTuple):
    """Where a call goes: arrays of int64, of one dimension, or none where one stands for all."""

    ranks: Array
    offsets: Array
    counts: Array | None  # None: one element each
    shape: Shape  # in which the program gave them
    elements: int

    @property
    def number(self) -> int:
        """How many places there are."""
        return math.prod(self.shape)

    def broadcast(self) -> list[Array]:
        """Return ranks, offsets and counts, each of the whole length."""
        counts = np.array(1) if self.counts is None else self.counts
        return [np.broadcast_to(it, self.number) for it in (self.ranks, self.offsets, counts)]


class RangeOperations(ManyOperations[ScalarT]):
    """The operations of `Window` on many ranges."""

    @told
    def get_ranges(
        self, ranks: Any, offsets: Any, counts: Any, out: Array | None = None
    ) -> NDArray[ScalarT]:
        """Read ranges of elements, which may differ in length, from any ranks.

        Parameters
        ----------
        ranks, offsets, counts : int or integer array
            Range i is `counts[i]` elements from element `offsets[i]` on, at `ranks[i]`. They
            are broadcast against each other, as NumPy does it. int64 is taken as it is.
        out : numpy.ndarray, optional
            C-contiguous and writeable, of the window's dtype, with as many elements as all
            ranges together; by default a new array of one dimension.

        Returns
        -------
        numpy.ndarray
            `out`, or the new array: the ranges, one after another.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError
            Before anything is sent; BoundsError names the first range at fault.
        RmaTimeout, PeerLostError
            Then `out` is undefined, and late data may still come to it.

        Notes
        -----
        Local, blocking; corresponds to MPI_Get of each range and MPI_Win_flush, or to one
        MPI_Get with an indexed datatype for each target. By memory it is a copy of each range;
        over the network short ranges of a target share messages, which its progress thread
        answers, and those of more than 8 KiB are a read each.

        Examples
        --------
        >>> win.local[:] = np.arange(10)
        >>> win.get_ranges(0, [7, 0], [3, 2])
        array([7., 8., 9., 0., 1.])
        """
        result: NDArray[ScalarT] = self._ranges("get_ranges", GET, ranks, offsets, counts, out)
        return result

    @told
    def put_ranges(self, ranks: Any, offsets: Any, counts: Any, values: Any) -> None:
        """Write ranges of elements, which may differ in length, to any ranks.

        Parameters
        ----------
        ranks, offsets, counts
            As in `get_ranges`.
        values : array_like
            Of the window's dtype: the ranges, one after another.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError
            Before anything is sent; BoundsError names the first range at fault.
        RmaTimeout, PeerLostError
            Any of the ranges may have been written, or may be written yet.

        Notes
        -----
        Local, blocking; all is in the targets' memory when it returns, without a `flush`.
        Corresponds to MPI_Put of each range and MPI_Win_flush. Which of two ranges that overlap
        is there in the end is not defined.

        Examples
        --------
        >>> win.put_ranges(0, [7, 0], [1, 2], [5.0, 6.0, 7.0])
        >>> win.local[:3]
        array([6., 7., 0.])
        """
        self._ranges("put_ranges", PUT, ranks, offsets, counts, values)

    @told
    def rget_ranges(
        self, ranks: Any, offsets: Any, counts: Any, out: Array | None = None
    ) -> Request:
        """Begin a get_ranges.

        Parameters
        ----------
        ranks, offsets, counts, out
            As for `get_ranges`; `out` may not be used before the request is done.

        Returns
        -------
        Request
            Its result is the array.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local, not blocking; waits as `rput` does. What is reached by memory is done when it
        returns. Corresponds to MPI_Rget of each range.

        Examples
        --------
        >>> win.rget_ranges(0, [7, 0], [3, 2]).wait()
        array([0., 0., 0., 0., 0.])
        """
        return self._begin_ranges("rget_ranges", GET, ranks, offsets, counts, out)

    @told
    def rput_ranges(self, ranks: Any, offsets: Any, counts: Any, values: Any) -> Request:
        """Begin a put_ranges.

        Parameters
        ----------
        ranks, offsets, counts, values
            As for `put_ranges`; an array of values may not be changed before the request is
            done.

        Returns
        -------
        Request
            Done once all is in the targets' memory. Its result is None.

        Raises
        ------
        BoundsError, AccessError, TypeError, ValueError, PeerLostError, ClosedError
            At once, if the operation can be refused.

        Notes
        -----
        Local, not blocking; waits as `rput` does. Corresponds to MPI_Rput of each range.

        Examples
        --------
        >>> win.rput_ranges(0, [7, 0], 1, [5.0, 6.0]).wait()
        >>> win.get(0, 0, 1)
        array([6.])
        """
        return self._begin_ranges("rput_ranges", PUT, ranks, offsets, counts, values)

    # -- ranges --------------------------------------------------------------------

    def _range_places(self, call: str, ranks: Any, offsets: Any, counts: Any) -> Places:
        self._check_open(call)
        ranks, offsets = _index("ranks", ranks), _index("offsets", offsets)
        counts = _index("counts", counts)
        shapes = {ranks.shape, offsets.shape, counts.shape} - {()}
        shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
        number = math.prod(shape)
        ranks, offsets, counts = _flat(ranks, shape), _flat(offsets, shape), _flat(counts, shape)
        elements = int(counts.sum() if counts.ndim else counts * number)
        places = Places(ranks, offsets, counts, shape, elements)
        if elements < 0 or elements > _LARGE:
            self._check_ranges(call, places)  # before an array for them is made
        return places

    def _check_ranges(self, call: str, places: Places) -> None:
        """Raise BoundsError for the first range that is not in the window."""
        lists = (array.tolist() for array in places.broadcast())
        for i, (rank, offset, count) in enumerate(zip(*lists, strict=True)):
            if rank == self._null and count >= 0:
                continue
            if not 0 <= rank < len(self._sizes):
                why = f"there are ranks 0 to {len(self._sizes) - 1}{self._hint_for(rank)}"
            elif offset < 0 or count < 0 or offset + count > self._sizes[rank]:
                why = f"outside the {self._sizes[rank]} elements there"
            else:
                continue
            text = f"{self._range(call, places, i)}: {why}"
            raise BoundsError(errno.ERANGE, text, call=call, rank=rank)

    def _range(self, call: str, places: Places, i: int) -> str:
        """Return the words with which an error of a range begins."""
        rank, offset, count = (int(array[i]) for array in places.broadcast())
        at = np.unravel_index(i, places.shape) if places.shape else ()
        what = "element" if places.counts is None else "range"
        return self._where_of(call, at, rank, offset, count, what)

    def _range_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        if code == -errno.ERANGE:
            self._check_ranges(call, places)
        return from_c(code, self._range(call, places, bad) if bad >= 0 else call)

    def _range_arrays(
        self, call: Call, places: Places, given: Any
    ) -> tuple[Array | None, Array | None]:
        """Return values and results, one of them."""
        if call.kind == PUT.kind:
            values = arrays.origin(given, self._dtype)
            have, values = values.size, np.ascontiguousarray(values)
        elif given is None:
            # those of MPI.PROC_NULL stay as they are
            make = np.empty if self._null is None else np.zeros
            return None, make(places.elements, self._dtype)
        else:
            arrays.check_result(given, self._dtype)
            have, values = given.size, None
        if have != places.elements:
            what = "values" if values is not None else "out"
            raise ValueError(
                f"{call.name}: {what} has {have} elements, the ranges have {places.elements}"
            )
        return values, None if values is not None else given

    def _ranges(
        self, name: str, call: Call, ranks: Any, offsets: Any, counts: Any, given: Any
    ) -> Any:
        request = self._begin_ranges(name, call, ranks, offsets, counts, given)
        return request.wait()

    def _begin_ranges(
        self, name: str, call: Call, ranks: Any, offsets: Any, counts: Any, given: Any
    ) -> Request:
        call = call._replace(name=name)
        places = self._range_places(name, ranks, offsets, counts)
        values, out = self._range_arrays(call, places, given)
        if self._divided or (self._null is not None and (places.ranks == self._null).any()):
            self._by_elements(call, places, values, out)
            return done_at_once(out)
        return self._begin_at(call, 0, places, values, out)

    def _by_elements(
        self, call: Call, places: Places, values: Array | None, out: Array | None
    ) -> None:
        """Do it one element after another: they may not lie one after another, or go nowhere."""
        self._check_ranges(call.name, places)
        ranks, offsets, counts = places.broadcast()
        first = np.cumsum(counts) - counts
        inside = np.arange(places.elements) - np.repeat(first, counts)
        at = np.repeat(offsets, counts) + inside
        flat = None if out is None else out.reshape(-1)
        values = None if values is None else values.reshape(-1)
        self._many_or_none(call, 0, np.repeat(ranks, counts), at, values, flat)

    # -- one call of C ---------------------------------------------------------------

    def _begin_at(
        self, call: Call, type_: int, places: Places, values: Array | None, out: Array | None
    ) -> Request:
        """Begin an operation on many places. The request, or the fabric, keeps the arrays."""
        ranks, offsets, counts = places.ranks, places.offsets, places.counts
        ones = 0 if ranks.ndim else lib.RMAEXT_ONE_RANK
        ones |= 0 if offsets.ndim else lib.RMAEXT_ONE_OFFSET
        ones |= 0 if counts is None or counts.ndim else lib.RMAEXT_ONE_COUNT
        ranks, offsets = _plain(ranks), _plain(offsets)
        counts = None if counts is None else _plain(counts)
        if values is not None:
            values = np.ascontiguousarray(values)
        what = {
            "kind": call.kind,
            "op": call.op,
            "type": type_,
            "ones": ones,
            "unit": self._dtype.itemsize,
            "count": places.number,
            "ranks": _from_buffer(_LONGS, ranks),
            "offsets": _from_buffer(_LONGS, offsets),
            "counts": _NULL if counts is None else _from_buffer(_LONGS, counts),
            "elements": places.elements,
        }

        def error(code: int, bad: int) -> Exception:
            return self._range_error(call.name, code, bad, places)

        return self._begin_places(call.name, what, values, out, error)


def _index(what: str, given: Any) -> Array:
    """Return ranks, offsets or counts as int64; most are that already."""
    if type(given) is np.ndarray and given.dtype is _INT64:
        return given
    return indices(what, given)


def _flat(array: Array, shape: Shape) -> Array:
    """Return indices in one dimension; one that stands for all as it is."""
    if array.ndim == 0 or (array.ndim == 1 and array.shape == shape):
        return array
    return np.broadcast_to(array, shape).reshape(-1)


def _plain(array: Array) -> Array:
    """Return indices as C reads them: one after another, each aligned."""
    return array if array.flags.carray else np.require(array, None, ["C", "A"])
