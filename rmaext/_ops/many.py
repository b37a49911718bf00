# SPDX-License-Identifier: BSD-3-Clause
"""Operations on many elements, anywhere in the window, in one call."""

from __future__ import annotations

import errno
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from .._native._lib import ffi, lib
from .._native.cmethods import Owner
from .._runtime.failures import from_c
from .._runtime.reports import dtype_name
from ..errors import BoundsError, Unsupported
from ..typing import ScalarT
from .arguments import behind, told
from .atomic_ops import operation
from .core import Array, Shape, WindowCore
from .request import Request

__all__ = ["CSWAP", "GET", "PUT", "Call", "ManyOperations", "indices"]

_INT64 = np.dtype(np.int64)
_ONE_RANK, _ONE_OFFSET = lib.RMAEXT_ONE_RANK, lib.RMAEXT_ONE_OFFSET
_ONE_VALUE = lib.RMAEXT_ONE_VALUE
_PENDING = lib.RMAEXT_PENDING
CSWAP = lib.RMAEXT_CSWAP
_NULL = ffi.NULL
_NDARRAY = np.ndarray
_from_buffer = ffi.from_buffer
_LONGS = ffi.typeof("int64_t[]")


class Call(NamedTuple):
    """What a method does: its name, C's kind and operation, and whether it has results."""

    name: str
    kind: int
    op: int
    results: bool


PUT = Call("put_many", lib.RMAEXT_PUT, 0, False)
GET = Call("get_many", lib.RMAEXT_GET, 0, True)


def indices(what: str, given: Any) -> Array:
    """Return ranks or offsets as int64."""
    if not isinstance(given, (np.ndarray, np.generic, list, tuple)) and hasattr(given, "__index__"):
        number = operator.index(given)
        try:
            return np.array(number, _INT64)
        except OverflowError:
            raise BoundsError(errno.ERANGE, f"{what}: {number} is outside any window") from None
    array = np.asarray(given)
    if array.dtype == _INT64:
        return array.astype(_INT64, copy=False)
    if array.dtype.kind not in "iu":
        if not array.size and isinstance(given, list | tuple):
            return array.astype(_INT64)  # [] has no dtype of its own
        if array.dtype.kind == "O":
            # integers beyond int64 and uint64, or objects with __index__
            numbers = [operator.index(one) for one in array.flat]
            try:
                return np.array(numbers, _INT64).reshape(array.shape)
            except OverflowError:
                raise BoundsError(errno.ERANGE, f"{what}: outside any window") from None
        raise TypeError(f"{what} must be integers, not {dtype_name(array.dtype)}")
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise BoundsError(errno.ERANGE, f"{what}: {array.max()} is outside any window")
    return array.astype(_INT64)


def _spread(array: Array, shape: Shape) -> Array:
    """Return the array in a shape; a scalar stays one, as C takes it for all elements."""
    if array.shape == shape or not array.ndim:
        return array
    return np.ascontiguousarray(np.broadcast_to(array, shape))


def _apart(given: Any, out: Array) -> Any:
    """Return indices that do not change when results are written to out."""
    if isinstance(given, _NDARRAY) and np.may_share_memory(given, out):
        return given.copy()
    return given


class ManyOperations(WindowCore[ScalarT]):
    """The vectorised operations of `Window`.

    put_many, get_many and the updates are those of csrc/python/many.c, which come here with
    all that is not plain: what needs a conversion or another route, or an error.
    """

    @behind
    def _put_many(self, ranks: Any, offsets: Any, values: Any) -> None:
        self._check_open("put_many")
        values = arrays.origin(values, self._dtype)
        self._many_or_none(PUT, 0, ranks, offsets, values, None)

    @behind
    def _get_many(self, ranks: Any, offsets: Any, out: Array | None = None) -> Array:
        self._check_open("get_many")
        if out is not None:
            arrays.check_result(out, self._dtype)
            ranks, offsets = _apart(ranks, out), _apart(offsets, out)
        result: Array = self._many_or_none(GET, 0, ranks, offsets, None, out)
        return result

    @behind
    def _accumulate_many(self, ranks: Any, offsets: Any, values: Any, op: Any = "sum") -> None:
        self._update_many("accumulate_many", op, False, ranks, offsets, values)

    @behind
    def _fetch_op_many(self, ranks: Any, offsets: Any, values: Any, op: Any = "sum") -> Any:
        return self._update_many("fetch_op_many", op, True, ranks, offsets, values)[()]

    @behind
    def _fetch_add_many(self, ranks: Any, offsets: Any, values: Any) -> Any:
        return self._update_many("fetch_add_many", "sum", True, ranks, offsets, values)[()]

    @told
    def compare_and_swap_many(
        self, ranks: Any, offsets: Any, compare: Any, values: Any
    ) -> NDArray[ScalarT]:
        """Replace elements that equal `compare`, each at a place of its own, atomically each.

        Parameters
        ----------
        ranks, offsets : int or integer array
            As in `put_many`. A place that is named twice is looked at twice, in that order.
        compare, values : array_like
            Of the window's dtype; broadcast against each other, and against the places.

        Returns
        -------
        numpy.ndarray or NumPy scalar
            The previous values, in the shape to which all arguments broadcast: those that
            equal `compare` were replaced.

        Raises
        ------
        Unsupported, AlignmentError, BoundsError, AccessError, TypeError, ValueError
            Before anything is sent, as `fetch_op_many`.
        RmaTimeout, PeerLostError
            Any of the elements may have been replaced, or may be replaced yet.

        Notes
        -----
        Local, blocking; corresponds to MPI_Compare_and_swap in a loop, and MPI_Win_flush. Bytes
        are compared: 0.0 is not -0.0, and a NaN equals itself.

        Examples
        --------
        >>> win.compare_and_swap_many(0, [2, 3, 2], 0.0, [5.0, 6.0, 7.0])
        array([0., 0., 5.])
        >>> win.local[:5]
        array([0., 0., 5., 6., 0.])
        """
        call = Call("compare_and_swap_many", lib.RMAEXT_UPDATE, CSWAP, True)
        self._check_open(call.name)
        pairs, type_ = self._pairs(compare, values), self._type_for(call, "compare and swap")
        result: NDArray[ScalarT] = self._many_or_none(call, type_, ranks, offsets, pairs, None)
        return result[()]

    # -- helpers -------------------------------------------------------------------

    def _update_many(
        self, name: str, op: Any, fetch: bool, ranks: Any, offsets: Any, values: Any
    ) -> Any:
        self._check_open(name)
        number = operation(op)
        values = arrays.origin(values, self._dtype)
        call = Call(name, lib.RMAEXT_UPDATE, number, fetch)
        return self._many_or_none(call, self._type_for(call, op), ranks, offsets, values, None)

    def _type_for(self, call: Call, op: Any) -> int:
        """Return C's number of the dtype, if there is such an update of it."""
        type_ = self._atomic_type
        if type_ is None or not lib.rmaext_update_valid(call.op, type_):
            text = f"{call.name}: window {self._name}: {arrays.no_update(op, self._dtype)}"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call.name)
        return type_

    def _pairs(self, compare: Any, values: Any) -> Array:
        """Return what to compare with and the new values, as C takes them: in pairs."""
        wanted = arrays.origin(compare, self._dtype)
        new = arrays.origin(values, self._dtype)
        pairs = np.empty((*np.broadcast_shapes(wanted.shape, new.shape), 2), self._dtype)
        pairs[..., 0], pairs[..., 1] = wanted, new
        return pairs.view(f"V{2 * self._dtype.itemsize}")[..., 0]

    def _many_or_none(
        self,
        call: Call,
        type_: int,
        ranks: Any,
        offsets: Any,
        values: Array | None,
        out: Array | None,
    ) -> Any:
        """As `_many`, but elements that go to MPI.PROC_NULL are left out, if it is a rank."""
        try:
            return self._many(call, type_, ranks, offsets, values, out)
        except BoundsError:  # then nothing was sent, and ranks may be MPI.PROC_NULL
            if self._null is None:
                raise
            ranks = indices("ranks", ranks)
            there = ranks != self._null
            if there.all():
                raise
        arrays = [ranks, indices("offsets", offsets)] + ([] if values is None else [values])
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        there = np.broadcast_to(there, shape)
        some = [np.broadcast_to(array, shape)[there] for array in arrays]
        if out is None and call.results:
            out = np.zeros(shape, self._dtype)
        got = self._many(call, type_, some[0], some[1], some[2] if some[2:] else None, None)
        if out is not None:
            out[there] = got
        return out

    def _many(
        self,
        call: Call,
        type_: int,
        ranks: Any,
        offsets: Any,
        values: Array | None,
        out: Array | None,
    ) -> Any:
        """Bring the arguments into shape, and carry the operation out.

        Written for speed where ranks, offsets and values are arrays of one shape.
        """
        if type(ranks) is not _NDARRAY or ranks.dtype is not _INT64:
            ranks = indices("ranks", ranks)
        if type(offsets) is not _NDARRAY or offsets.dtype is not _INT64:
            offsets = indices("offsets", offsets)
        shape, ones = offsets.shape, 0
        if ranks.shape != shape or (values is not None and values.shape != shape):
            shapes = {ranks.shape, shape} | (set() if values is None else {values.shape})
            shapes.discard(())
            # np.broadcast_shapes is slow, and most calls differ in scalars only
            shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
            ranks, offsets = _spread(ranks, shape), _spread(offsets, shape)
            ones = 0 if ranks.ndim else _ONE_RANK
            ones |= 0 if offsets.ndim else _ONE_OFFSET
            if values is not None:
                values = _spread(values, shape)
                ones |= 0 if values.ndim else _ONE_VALUE
        if out is None:
            if call.results:
                out = np.empty(shape, self._dtype)
        elif out.shape != shape:
            raise ValueError(f"{call.name}: out has shape {out.shape}, the elements {shape}")
        try:
            where, at = _from_buffer(_LONGS, ranks), _from_buffer(_LONGS, offsets)
        except (ValueError, BufferError):  # strided
            ranks, offsets = np.ascontiguousarray(ranks), np.ascontiguousarray(offsets)
            return self._many(call, type_, ranks, offsets, values, out)
        asked = {
            "kind": call.kind,
            "op": call.op,
            "type": type_,
            "unit": self._dtype.itemsize,
            "count": math.prod(shape) if ones else offsets.size,
            "ones": ones,
            "ranks": where,
            "offsets": at,
            "values": _NULL if values is None else arrays.address(values),
            "results": _NULL if out is None else arrays.address(out),
        }
        code, bad = self._run_many(call.name, ranks, asked, (ranks, offsets, values, out))
        if code:
            if code == -errno.EINVAL and not (ranks.flags.aligned and offsets.flags.aligned):
                ranks, offsets = np.require(ranks, None, "A"), np.require(offsets, None, "A")
                return self._many(call, type_, ranks, offsets, values, out)
            raise self._many_error(call.name, code, bad, shape, ranks, offsets)
        return out

    def _run_many(
        self,
        call: str,
        ranks: Array,
        asked: dict[str, Any],
        buffers: tuple[Any, ...],
    ) -> tuple[int, int]:
        """Carry the operation out, in slices of time as `_run`.

        Returns C's code, and the index of the element that was refused, or -1.

        `asked` has the fields of `struct rmaext_places_call`.
        """
        places = ffi.new("struct rmaext_places_call *", asked)
        op = Owner(self._fabric, self._handle, buffers)
        try:
            code = op.start_many(places)
            if code == _PENDING:
                where = f"{call}: window {self._name}"
                code = self._group.watch.wait(op, where, lambda: np.unique(ranks).tolist())
        finally:
            op.release()
        return code, op.bad

    def _begin_places(
        self,
        call: str,
        asked: dict[str, Any],
        values: Array | None,
        result: Array | None,
        error: Callable[[int, int], Exception],
        *,
        scalar: bool = False,
    ) -> Request:
        """Begin an operation on many places. The request, or the fabric, keeps the arrays.

        `asked` are the other fields of `struct rmaext_places_call`. `error` returns what to
        raise for C's code and the index of the place at fault, or -1.
        """
        what = ffi.new("struct rmaext_places_call *", asked)
        what.values = _NULL if values is None else arrays.address(values)
        what.results = _NULL if result is None else arrays.address(result)
        places = int(what.count)
        return Request._begun(self, call, places, what, (values, result), error, scalar=scalar)

    def _many_failed(self, call: str, code: int) -> NoReturn:
        raise from_c(code, f"{call}: window {self._name}")

    def _many_error(
        self, call: str, code: int, bad: int, shape: Shape, ranks: Array, offsets: Array
    ) -> Exception:
        if bad < 0:
            return from_c(code, f"{call}: window {self._name}")
        at = np.unravel_index(bad, shape) if shape else ()
        rank = int(np.broadcast_to(ranks, shape)[at])
        offset = int(np.broadcast_to(offsets, shape)[at])
        where = self._where_of(call, at, rank, offset)
        if code == -errno.ERANGE and self._is_outside(rank, offset):
            return self._outside(call, at, rank, offset)
        return from_c(code, where)

    def _where_of(
        self, call: str, at: Any, rank: int, offset: int, length: int = 1, what: str = "element"
    ) -> str:
        """As `_where`, of one place of many; `at` is its index in the arguments."""
        index = f", {what} [{', '.join(map(str, at))}]" if at else ""
        return f"{call}: window {self._name}{index}, rank {rank}, offset {offset}, length {length}"

    def _is_outside(self, rank: int, offset: int) -> bool:
        return not 0 <= rank < len(self._sizes) or not 0 <= offset < self._sizes[rank]

    def _outside(self, call: str, at: Any, rank: int, offset: int) -> BoundsError:
        """Return the error for an element that is not there."""
        where, last = self._where_of(call, at, rank, offset), len(self._sizes) - 1
        if 0 <= rank <= last:
            text = f"{where}: outside the {self._sizes[rank]} elements there"
        else:
            text = f"{where}: there are ranks 0 to {last}{self._hint_for(rank)}"
        known = rank if 0 <= rank <= last else None
        return BoundsError(errno.ERANGE, text, call=call, rank=known)
