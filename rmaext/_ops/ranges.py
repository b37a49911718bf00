# SPDX-License-Identifier: BSD-3-Clause
"""Operations on many ranges of elements, and how operations on many places begin."""

from __future__ import annotations

import errno
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from ..typing import ScalarT
from .arguments import begins, told
from .core import Array
from .many import GET, PUT, Call, ManyOperations, Places, indices, spread
from .request import Request, done_at_once

__all__ = ["RangeOperations"]

_LARGE = 1 << 24  # elements, from which on an array for results is made after the checks only


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
        request = self._begin_ranges("get_ranges", GET, ranks, offsets, counts, out)
        result: NDArray[ScalarT] = request.wait()
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
        self._begin_ranges("put_ranges", PUT, ranks, offsets, counts, values).wait()

    @begins("Corresponds to MPI_Rget of each range.")
    def rget_ranges(
        self, ranks: Any, offsets: Any, counts: Any, out: Array | None = None
    ) -> Request:
        """Begin a get_ranges.

        Examples
        --------
        >>> win.rget_ranges(0, [7, 0], [3, 2]).wait()
        array([0., 0., 0., 0., 0.])
        """
        return self._begin_ranges("rget_ranges", GET, ranks, offsets, counts, out)

    @begins("Corresponds to MPI_Rput of each range.")
    def rput_ranges(self, ranks: Any, offsets: Any, counts: Any, values: Any) -> Request:
        """Begin a put_ranges.

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
        given = indices("ranks", ranks), indices("offsets", offsets), indices("counts", counts)
        shape, (ranks, offsets, counts) = spread(*given)
        elements = int(counts.sum() if counts.ndim else counts * math.prod(shape))
        places = Places(ranks, offsets, counts, shape, elements)
        if elements < 0 or elements > _LARGE:
            self._check_ranges(call, places)  # before an array for them is made
        return places

    def _check_ranges(self, call: str, places: Places) -> None:
        """Raise BoundsError for the first range that is not in the window."""
        lists = (array.tolist() for array in places.broadcast())
        for i, (rank, offset, count) in enumerate(zip(*lists, strict=True)):
            nowhere = rank == self._null and count >= 0
            known = 0 <= rank < len(self._sizes)
            if not nowhere and not (known and self._has(rank, offset, count)):
                raise self._place_error(call, -errno.ERANGE, i, places)

    def _many_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        if code == -errno.ERANGE and places.counts is not None:
            self._check_ranges(call, places)  # C may have refused one before it, for their sum
        return super()._many_error(call, code, bad, places)

    def _range_arrays(
        self, call: Call, places: Places, given: Any
    ) -> tuple[Array | None, Array | None]:
        """Return values and results, one of them."""
        if call.kind == PUT.kind:
            values = arrays.origin(given, self._dtype, self._timeout)
            have, values = values.size, np.ascontiguousarray(values)
        elif given is None:
            # those of MPI.PROC_NULL stay as they are
            make = np.empty if self._null is None else np.zeros
            return None, make(places.elements, self._dtype)
        else:
            given = self._result(given)
            have, values = given.size, None
        if have != places.elements:
            what = "values" if values is not None else "out"
            raise ValueError(
                f"{call.name}: {what} has {have} elements, the ranges have {places.elements}"
            )
        return values, None if values is not None else given

    def _begin_ranges(
        self, name: str, call: Call, ranks: Any, offsets: Any, counts: Any, given: Any
    ) -> Request:
        call = call._replace(name=name)
        places = self._range_places(name, ranks, offsets, counts)
        values, out = self._range_arrays(call, places, given)
        if self._divided or (self._null is not None and (places.ranks == self._null).any()):
            self._by_elements(call, places, values, out)
            return done_at_once(out)
        return self._begin_places(call, places, values, out)

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
        self._many_or_none(call, np.repeat(ranks, counts), at, values, flat)
