# SPDX-License-Identifier: BSD-3-Clause
"""Atomic updates of a rank's window, where C does not carry them out by itself."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np

from .._memory import arrays
from .._native._lib import ffi, lib
from ..errors import Unsupported
from ..typing import ScalarT
from .atomic_ops import OPERATIONS, operation
from .core import Array, Place, WindowCore, behind

__all__ = ["UpdateOperations"]

_NAMES = {number: name for name, number in OPERATIONS.items()}
_CSWAP = lib.RMAEXT_CSWAP


class UpdateOperations(WindowCore[ScalarT]):
    """The atomic operations of `Window`.

    accumulate, get_accumulate, fetch_op, fetch_add and compare_and_swap are those of
    csrc/python/update.c and csrc/python/window.c, which come here with all that is not plain: what
    needs a conversion or another route, or an error.
    """

    @behind
    def _accumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> None:
        self._check_open("accumulate")
        self._update("accumulate", operation(op), origin, rank, offset, fetch=False)

    @behind
    def _get_accumulate(self, origin: Any, rank: int, offset: int = 0, op: Any = "sum") -> Array:
        self._check_open("get_accumulate")
        old = self._update("get_accumulate", operation(op), origin, rank, offset)
        return np.empty(0, self._dtype) if old is None else old

    @behind
    def _fetch_op(self, value: Any, rank: int, offset: int = 0, op: Any = "sum") -> Any:
        self._check_open("fetch_op")
        if np.ndim(value):
            raise ValueError(f"fetch_op: value has shape {np.shape(value)}; use get_accumulate")
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

    # -- helpers -------------------------------------------------------------------

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
        given = (operand, compare, old)
        data = [ffi.NULL if array is None else arrays.address(array) for array in given]
        buffers = tuple(array for array in given if array is not None)
        self._run(call, place, buffers, lib.rmaext_update, op, number, *data, operand.size)

    def _atomic_number(self, call: str, place: Place, op: int) -> int:
        """Return C's number of the dtype, if it has such an operation."""
        number = self._atomic_type
        if number is None or not lib.rmaext_update_valid(op, number):
            text = f"{self._where(call, place)}: no {_NAMES.get(op, call)} on dtype {self._dtype}"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call, rank=place[0])
        return number
