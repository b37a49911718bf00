# SPDX-License-Identifier: BSD-3-Clause
"""Atomic updates of a rank's window, where C does not carry them out by itself."""

from __future__ import annotations

import errno
import operator
from typing import Any

import numpy as np

from .._memory import arrays
from .._native._lib import lib
from .._runtime.failures import from_c
from ..errors import Unsupported
from ..typing import ScalarT
from .arguments import behind, integers
from .atomic_ops import OPERATIONS, operation
from .core import Array, Place, WindowCore
from .request import Request, done_at_once

__all__ = ["UpdateOperations"]

_NAMES = {number: name for name, number in OPERATIONS.items()}
_CSWAP = lib.RMAEXT_CSWAP


class UpdateOperations(WindowCore[ScalarT]):
    """The atomic operations of `Window`.

    accumulate, get_accumulate, fetch_op, fetch_add, compare_and_swap, load and store are those of
    csrc/python/update.c, which come here with all that is not plain: what needs a conversion or
    another route, or an error.
    """

    @behind
    def _get_accumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> Array:
        old: Array = self._update("get_accumulate", operation(op), origin, rank, offset)
        return old

    @behind
    def _fetch_op(self, value: Any, rank: int, offset: int = 0, op: Any = "sum") -> Any:
        return self._update("fetch_op", operation(op), value, rank, offset, scalar=True)[()]

    @behind
    def _fetch_add(self, value: Any, rank: int, offset: int = 0) -> Any:
        return self._update("fetch_add", lib.RMAEXT_SUM, value, rank, offset)[()]

    @behind
    def _compare_and_swap(self, compare: Any, value: Any, rank: int, offset: int = 0) -> Any:
        return self._update("compare_and_swap", _CSWAP, value, rank, offset, compare)[()]

    @behind
    def _load(self, rank: int, offset: int = 0, count: int | None = None) -> Any:
        self._check_open("load")
        number = 1 if count is None else operator.index(count)
        if number < 0:
            raise ValueError(f"load: count {count} is negative")
        if self._place("load", rank, offset, number) is None:
            return np.empty(0, self._dtype)
        # an operand, as messages have one; nobody reads it
        unread = np.zeros(() if count is None else number, self._dtype)
        return self._update("load", lib.RMAEXT_NO_OP, unread, rank, offset)[()]

    @behind
    def _store(self, value: Any, rank: int, offset: int = 0) -> None:
        self._check_open("store")
        # the previous values are the answer that the target has applied it
        answer = self._may_be_read(rank)
        self._update("store", lib.RMAEXT_REPLACE, value, rank, offset, fetch=answer)
        if not answer:
            self.flush(rank)

    # -- helpers -------------------------------------------------------------------

    def _may_be_read(self, rank: Any) -> bool:
        (number,) = integers(rank=rank)
        if self._divided or not 0 <= number < len(self._sizes):
            return False
        return bool(self._records[number].access & lib.RMAEXT_READ)

    def _update(
        self,
        call: str,
        op: int,
        value: Any,
        rank: Any,
        offset: Any,
        compare: Any = None,
        *,
        fetch: bool = True,
        scalar: bool = False,
        begin: bool = False,
    ) -> Any:
        """Carry an update out, or begin it.

        Returns the previous values, None without `fetch`; or the request of that. `scalar`: it
        is of one element, by a call that takes no more. The rank may be MPI.PROC_NULL.
        """
        self._check_open(call)
        wanted = arrays.origin(compare, self._dtype, self._timeout) if op == _CSWAP else None
        operand = arrays.origin(value, self._dtype, self._timeout)
        if scalar and operand.ndim:
            other = f"{'r' * begin}get_accumulate"
            raise ValueError(f"{call}: value has shape {operand.shape}; use {other}")
        if wanted is not None and wanted.shape != operand.shape:
            raise ValueError(f"{call}: shapes {wanted.shape} and {operand.shape} differ")
        place = self._place(call, rank, offset, operand.size)
        if place is None:
            nothing = np.empty(0, self._dtype) if fetch else None
            return done_at_once(nothing) if begin else nothing
        old = np.empty(operand.shape, self._dtype) if fetch else None
        buffers, number = (operand, wanted, old), self._atomic_number(call, place, op)
        what = arrays.call_of(lib.RMAEXT_UPDATE, operand.size, *buffers, op, number)
        if begin:
            return self._begin(call, place, buffers, what, scalar=scalar or op == _CSWAP)
        self._run(call, place, tuple(it for it in buffers if it is not None), what)
        return old

    def _begin(
        self, call: str, place: Place, buffers: tuple[Any, ...], what: Any, *, scalar: bool = False
    ) -> Request:
        """Begin an operation, which is as for `_run`; the last of the buffers is its result."""
        what.rank, what.offset = place[0], self._byte(place[1])

        def error(code: int, _bad: int) -> Exception:
            return from_c(code, self._where(call, place))

        return Request._begun(self, call, place, what, buffers, error, scalar=scalar)

    def _atomic_number(self, call: str, place: Place, op: int) -> int:
        """Return C's number of the dtype, if it has such an operation."""
        number = self._atomic_type
        if number is None or not lib.rmaext_update_valid(op, number):
            what = arrays.no_update(_NAMES.get(op, call), self._dtype)
            text = f"{self._where(call, place)}: {what}"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call, rank=place[0])
        return number
