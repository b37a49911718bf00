# SPDX-License-Identifier: BSD-3-Clause
"""The requests of operations on many elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._native._lib import lib
from ..typing import Operation, ScalarT
from .arguments import begins
from .core import Array
from .many import GET, Call
from .ranges import RangeOperations
from .request import Request, done_at_once

__all__ = ["ManyRequests"]


class ManyRequests(RangeOperations[ScalarT]):
    """The operations of `ManyOperations` that return a `Request`."""

    @begins()
    def rput_many(self, ranks: Any, offsets: Any, values: Any) -> Request:
        """Begin a put_many.

        Examples
        --------
        >>> win.rput_many(0, [3, 1], [5.0, 6.0]).wait()
        >>> win.get(0, 0, 4)
        array([0., 6., 0., 5.])
        """
        return self._begin_many(*self._putting("rput_many", ranks, offsets, values))

    @begins()
    def rget_many(self, ranks: Any, offsets: Any, out: Array | None = None) -> Request:
        """Begin a get_many.

        Examples
        --------
        >>> win.rget_many(0, [[3, 1]]).wait()
        array([[0., 0.]])
        """
        self._check_open("rget_many")
        out = self._result(out)
        return self._begin_many(GET._replace(name="rget_many"), ranks, offsets, None, out)

    @begins()
    def raccumulate_many(
        self, ranks: Any, offsets: Any, values: Any, op: Operation = "sum"
    ) -> Request:
        """Begin an accumulate_many.

        Examples
        --------
        >>> win.raccumulate_many(0, [3, 3], [5.0, 6.0]).wait()
        >>> win.get(0, 3, 1)
        array([11.])
        """
        given = self._updating("raccumulate_many", op, False, ranks, offsets, values)
        return self._begin_many(*given)

    @begins()
    def rfetch_op_many(
        self, ranks: Any, offsets: Any, values: Any, op: Operation = "sum"
    ) -> Request:
        """Begin a fetch_op_many.

        Examples
        --------
        >>> win.rfetch_op_many(0, [3, 3], [5.0, 6.0]).wait()
        array([0., 5.])
        """
        given = self._updating("rfetch_op_many", op, True, ranks, offsets, values)
        return self._begin_many(*given)

    @begins()
    def rcompare_and_swap_many(
        self, ranks: Any, offsets: Any, compare: Any, values: Any
    ) -> Request:
        """Begin a compare_and_swap_many.

        Examples
        --------
        >>> win.rcompare_and_swap_many(0, [3, 4], 0.0, 1.0).wait()
        array([0., 0.])
        """
        given = self._swapping("rcompare_and_swap_many", ranks, offsets, compare, values)
        return self._begin_many(*given)

    # -- requests of many ------------------------------------------------------------

    def _begin_many(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None = None
    ) -> Request:
        """Begin an operation on many elements; what goes by memory is done here."""
        given = (ranks, offsets, values, out)
        places, values, out = self._arranged(call, *given)
        far = np.broadcast_to(self._far(call, places.ranks), places.shape)
        if self._divided or self._null is not None or not far.any():
            got = self._many_or_none(call, *given)
            return done_at_once(got if call.kind == GET.kind or got is None else got[()])
        request = self._begin_places(call, places, values, out)
        if call.kind == lib.RMAEXT_UPDATE and not far.all():  # C has checked them
            near = ~far.reshape(-1)
            got = self._many(call, *places.some(values, near), None)
            if out is not None:
                out.reshape(-1)[near] = got
        return request

    def _far(self, call: Call, ranks: Array) -> Array:
        """Return which of these ranks a call reaches over the network."""
        if self._fabric is None:
            return np.zeros(ranks.shape, bool)
        routes = np.array([self._routes[rank] for rank in range(len(self._sizes))])
        known = np.where((ranks >= 0) & (ranks < len(routes)), ranks, 0)
        updates = call.kind == lib.RMAEXT_UPDATE
        far: Array = routes != lib.RMAEXT_DIRECT if updates else routes == lib.RMAEXT_FABRIC
        return far[known]
