# SPDX-License-Identifier: BSD-3-Clause
"""Atomic updates of a rank's window, where C does not carry them out by itself."""

from __future__ import annotations

import errno
import operator
from typing import Any

import numpy as np

from .._memory import arrays
from .._native._lib import lib
from ..errors import Unsupported
from ..typing import ScalarT
from .arguments import behind, no_integer
from .atomic_ops import OPERATIONS, operation
from .core import Array, Place, WindowCore

__all__ = ["UpdateOperations"]

_NAMES = {number: name for name, number in OPERATIONS.items()}
_CSWAP = lib.RMAEXT_CSWAP


class UpdateOperations(WindowCore[ScalarT]):
    """The atomic operations of `Window`.

    accumulate, get_accumulate, fetch_op, fetch_add and compare_and_swap are those of
    csrc/python/update.c, load and store those of csrc/python/load_store.c, which come here with
    all that is not plain: what needs a conversion or another route, or an error.
    """

    @behind
    def _get_accumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> Array:
        self._check_open("get_accumulate")
        old = self._update("get_accumulate", operation(op), origin, rank, offset)
        return np.empty(0, self._dtype) if old is None else old

    @behind
    def _fetch_op(self, value: Any, rank: int, offset: int = 0, op: Any = "sum") -> Any:
        self._check_open("fetch_op")
        value = arrays.origin(value, self._dtype)
        if value.ndim:
            raise ValueError(f"fetch_op: value has shape {value.shape}; use get_accumulate")
        old = self._update("fetch_op", operation(op), value, rank, offset)
        return np.empty(0, self._dtype) if old is None else old[()]

    @behind
    def _fetch_add(self, value: Any, rank: int, offset: int = 0) -> Any:
        self._check_open("fetch_add")
        old = self._update("fetch_add", lib.RMAEXT_SUM, value, rank, offset)
        return np.empty(0, self._dtype) if old is None else old[()]

    @behind
    def _compare_and_swap(self, compare: Any, value: Any, rank: int, offset: int = 0) -> Any:
        call = "compare_and_swap"
        self._check_open(call)
        wanted = arrays.origin(compare, self._dtype)
        new = arrays.origin(value, self._dtype)
        if wanted.shape != new.shape:
            raise ValueError(f"{call}: shapes {wanted.shape} and {new.shape} differ")
        place = self._place(call, rank, offset, wanted.size)
        if place is None:
            return np.empty(0, self._dtype)
        old = np.empty(wanted.shape, self._dtype)
        self._run_update(call, _CSWAP, place, new, wanted, old)
        return old[()]

    @behind
    def _load(self, rank: int, offset: int = 0, count: int | None = None) -> Any:
        self._check_open("load")
        number = 1 if count is None else operator.index(count)
        if number < 0:
            raise ValueError(f"load: count {count} is negative")
        place = self._place("load", rank, offset, number)
        if place is None:
            return np.empty(0, self._dtype)
        old = np.empty(() if count is None else number, self._dtype)
        # an operand, as messages have one; nobody reads it
        self._run_update("load", lib.RMAEXT_NO_OP, place, np.zeros_like(old), None, old)
        return old[()]

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
        try:
            number = operator.index(rank)
        except TypeError:
            raise no_integer(rank=rank) from None
        if self._divided or not 0 <= number < len(self._sizes):
            return False
        return bool(self._records[number].access & lib.RMAEXT_READ)

    def _update(
        self, call: str, op: int, value: Any, rank: Any, offset: Any, fetch: bool = True
    ) -> Array | None:
        """Return the previous values; None without `fetch`, or if the rank is MPI.PROC_NULL."""
        operand = arrays.origin(value, self._dtype)
        place = self._place(call, rank, offset, operand.size)
        if place is None:
            return None
        old = np.empty(operand.shape, self._dtype) if fetch else None
        self._run_update(call, op, place, operand, None, old)
        return old

    def _run_update(
        self,
        call: str,
        op: int,
        place: Place,
        operand: Array,
        compare: Array | None,
        old: Array | None,
    ) -> None:
        number = self._atomic_number(call, place, op)
        buffers = tuple(array for array in (operand, compare, old) if array is not None)
        what = arrays.call_of(lib.RMAEXT_UPDATE, operand.size, operand, compare, old, op, number)
        self._run(call, place, buffers, what)

    def _atomic_number(self, call: str, place: Place, op: int) -> int:
        """Return C's number of the dtype, if it has such an operation."""
        number = self._atomic_type
        if number is None or not lib.rmaext_update_valid(op, number):
            what = arrays.no_update(_NAMES.get(op, call), self._dtype)
            text = f"{self._where(call, place)}: {what}"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call, rank=place[0])
        return number
