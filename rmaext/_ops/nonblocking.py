# SPDX-License-Identifier: BSD-3-Clause
"""The operations of a window that return a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._memory import arrays
from .._native._lib import lib
from ..typing import Operation, ScalarT
from .arguments import begins, behind, integers
from .atomic_ops import operation
from .core import Array
from .keyed import KeyedRequests, check_alone
from .request import Request, done_at_once
from .updates import UpdateOperations

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["NonblockingOperations"]

_CSWAP = lib.RMAEXT_CSWAP
_COPIED = lib.RMAEXT_DIRECT, lib.RMAEXT_CMA  # what is "ipc" may come to be "fabric"
_LONG_RUN = 128  # elements, from which on a run costs less as an update of its own


class NonblockingOperations(UpdateOperations[ScalarT], KeyedRequests[ScalarT]):
    """The operations of `Window` that return a `Request`.

    On the routes direct and cma the request is done when it is returned, and so it is where
    one operation is several in C. rput and rget are those of csrc/python/request.c, which come
    here with all that is not plain, short and by memory.
    """

    @behind
    def _rput(self, origin: Any, rank: int, offset: int = 0, *, key: Any = None) -> Request:
        if key is not None:
            check_alone("rput", offset)
            return self._rput_key("rput", origin, rank, key)
        if self._divided or self._by_memory(rank):
            self.put(origin, rank, offset)
            if self._divided:
                self.flush(rank)
            return done_at_once(None)
        self._check_open("rput")
        array = arrays.origin(origin, self._dtype, self._timeout)
        place = self._place("rput", rank, offset, array.size)
        if place is None:
            return done_at_once(None)
        return self._begin("rput", place, (array, None), arrays.move_call(lib.RMAEXT_PUT, array))

    @behind
    def _rget(
        self,
        rank: int,
        offset: int = 0,
        count: int | None = None,
        out: Array | None = None,
        *,
        key: Any = None,
    ) -> Request:
        if key is not None:
            check_alone("rget", offset, count)
            return self._rget_key("rget", rank, key, out)
        if self._divided or self._by_memory(rank):
            return done_at_once(self.get(rank, offset, count, out))
        self._check_open("rget")
        out = self._result(out)
        count = self._count("rget", rank, offset, count, out)
        place = self._place("rget", rank, offset, count)
        if out is None:
            out = np.empty(0 if place is None else count, self._dtype)
        if place is None:
            return done_at_once(out)
        return self._begin("rget", place, (out,), arrays.move_call(lib.RMAEXT_GET, out))

    @behind
    def _accumulate(
        self, origin: Any, rank: int, offset: int = 0, op: Any = "sum", *, key: Any = None
    ) -> None:
        self._check_open("accumulate")
        number = operation(op)
        if key is None:
            self._update("accumulate", number, origin, rank, offset, fetch=False)
            return
        check_alone("accumulate", offset)
        target, part, array = self._part_to_put("accumulate", origin, rank, key)
        if part is None or not array.size:
            return
        unit = self._stride
        if unit == self._dtype.itemsize:  # else elements lie apart
            unit = part.take_runs(unit)
        run = unit // self._stride
        starts = self._indices(part.offsets(unit) * run).reshape(-1)
        rows = array.reshape(-1, run)
        if run < _LONG_RUN:
            self.accumulate_many(target, starts[:, None] + np.arange(run), rows, op)
            return
        for start, row in zip(starts.tolist(), rows, strict=True):
            self.accumulate(row, target, start, op)

    @begins(
        "Corresponds to MPI_Raccumulate. "
        "Updates of one origin apply in the order in which they are begun, whatever they are."
    )
    def raccumulate(
        self, origin: Any, rank: int, offset: int = 0, op: Operation | MPI.Op = "sum"
    ) -> Request:
        """Begin an accumulate.

        Examples
        --------
        >>> win.raccumulate([1.0, 2.0], rank=0, offset=3).wait()
        >>> win.local[2:6]
        array([0., 1., 2., 0.])
        """
        if self._fabric is None or self._divided:
            self.accumulate(origin, rank, offset, op)
            self.flush(rank)
            return done_at_once(None)
        return self._begin_update("raccumulate", operation(op), origin, rank, offset, fetch=False)

    @begins("Corresponds to MPI_Rget_accumulate.")
    def rget_accumulate(
        self, origin: Any, rank: int, offset: int = 0, op: Operation | MPI.Op = "sum"
    ) -> Request:
        """Begin a get_accumulate.

        Examples
        --------
        >>> request = win.rget_accumulate([1.0, 2.0], rank=0)
        >>> request.wait()
        array([0., 0.])
        """
        if self._fabric is None or self._divided:
            return done_at_once(self.get_accumulate(origin, rank, offset, op))
        return self._begin_update("rget_accumulate", operation(op), origin, rank, offset)

    @begins("MPI_Fetch_and_op has no request-based form.")
    def rfetch_op(
        self, value: Any, rank: int, offset: int = 0, op: Operation | MPI.Op = "sum"
    ) -> Request:
        """Begin a fetch_op.

        Examples
        --------
        >>> win.rfetch_op(1.0, rank=0).wait()
        np.float64(0.0)
        """
        if self._fabric is None or self._divided:
            return done_at_once(self.fetch_op(value, rank, offset, op))
        return self._begin_update("rfetch_op", operation(op), value, rank, offset, scalar=True)

    @begins("MPI_Compare_and_swap has no request-based form.")
    def rcompare_and_swap(self, compare: Any, value: Any, rank: int, offset: int = 0) -> Request:
        """Begin a compare_and_swap.

        Examples
        --------
        >>> win.rcompare_and_swap(0.0, 5.0, rank=0).wait()
        np.float64(0.0)
        """
        if self._fabric is None or self._divided:
            return done_at_once(self.compare_and_swap(compare, value, rank, offset))
        return self._begin_update("rcompare_and_swap", _CSWAP, value, rank, offset, compare)

    # -- helpers -------------------------------------------------------------------

    def _by_memory(self, rank: Any) -> bool:
        """Whether a put or get to a rank is done when it returns. The bounds are checked later."""
        (number,) = integers(rank=rank)
        return self._routes[number] in _COPIED

    def _begin_update(self, *given: Any, **how: Any) -> Request:
        request: Request = self._update(*given, begin=True, **how)
        return request
