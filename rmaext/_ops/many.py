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
from .._memory.devices import landed
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

__all__ = ["GET", "PUT", "Call", "ManyOperations", "Places", "indices", "spread"]

_INT64 = np.dtype(np.int64)
_ONE_RANK, _ONE_OFFSET = lib.RMAEXT_ONE_RANK, lib.RMAEXT_ONE_OFFSET
_ONE_VALUE, _ONE_COUNT = lib.RMAEXT_ONE_VALUE, lib.RMAEXT_ONE_COUNT
_PENDING = lib.RMAEXT_PENDING
_CSWAP = lib.RMAEXT_CSWAP
_NULL = ffi.NULL
_from_buffer = ffi.from_buffer
_LONGS, _CALL = ffi.typeof("int64_t[]"), ffi.typeof("struct rmaext_places_call *")


class Call(NamedTuple):
    """What a method does: its name, C's kind and operation, and whether it has results."""

    name: str
    kind: int
    op: int
    results: bool
    type: int = 0  # C's number of an update's dtype


class Places(NamedTuple):
    """Where a call goes: arrays of int64 in one shape, or scalars that stand for all places."""

    ranks: Array
    offsets: Array
    counts: Array | None  # None: one element each
    shape: Shape
    elements: int

    @property
    def number(self) -> int:
        """How many places there are."""
        return math.prod(self.shape)

    def broadcast(self) -> list[Array]:
        """Return ranks, offsets and counts, each of the whole length."""
        counts = np.array(1) if self.counts is None else self.counts
        every = self.ranks, self.offsets, counts
        return [np.broadcast_to(it, self.shape).reshape(-1) for it in every]

    def some(self, values: Array | None, which: Array) -> tuple[Array, Array, Array | None]:
        """Return ranks, offsets and values of those that a mask or indices choose."""
        ranks, offsets, _ = self.broadcast()
        if values is not None:
            values = np.broadcast_to(values, self.shape).reshape(-1)[which]
        return ranks[which], offsets[which], values


_Given = tuple[Call, Any, Any, Array]  # ranks, offsets and values
PUT = Call("put_many", lib.RMAEXT_PUT, 0, False)
GET = Call("get_many", lib.RMAEXT_GET, 0, True)


def indices(what: str, given: Any) -> Array:
    """Return ranks, offsets or counts as int64; most are that already."""
    if type(given) is np.ndarray and given.dtype is _INT64:
        return given
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


def spread(*given: Array) -> tuple[Shape, list[Array]]:
    """Return the shape that arrays broadcast to, and each in it as C reads it.

    A scalar stays one, as C takes it for all elements.
    """
    shapes = {array.shape for array in given}
    shapes.discard(())
    # np.broadcast_shapes is slow, and most calls differ in scalars only
    shape = shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes)
    return shape, [_plain(array, shape if array.ndim else ()) for array in given]


def _plain(array: Array, shape: Shape) -> Array:
    if array.shape == shape and array.flags.carray:
        return array
    return np.require(np.broadcast_to(array, shape), None, ["C", "A"])


def _apart(given: Any, out: Array) -> Any:
    """Return indices that do not change when results are written to out."""
    if isinstance(given, np.ndarray) and np.may_share_memory(given, out):
        return given.copy()
    return given


class ManyOperations(WindowCore[ScalarT]):
    """The vectorised operations of `Window`.

    put_many, get_many and the updates are those of csrc/python/many.c, which come here with
    all that is not plain: what needs a conversion or another route, or an error.
    """

    @behind
    def _put_many(self, ranks: Any, offsets: Any, values: Any) -> None:
        self._many_or_none(*self._putting("put_many", ranks, offsets, values))

    @behind
    def _get_many(self, ranks: Any, offsets: Any, out: Array | None = None) -> Any:
        self._check_open("get_many")
        out = self._result(out)
        if out is not None:
            ranks, offsets = _apart(ranks, out), _apart(offsets, out)
        return landed(self._many_or_none(GET, ranks, offsets, None, out))

    @behind
    def _accumulate_many(self, ranks: Any, offsets: Any, values: Any, op: Any = "sum") -> None:
        self._many_or_none(*self._updating("accumulate_many", op, False, ranks, offsets, values))

    @behind
    def _fetch_op_many(self, ranks: Any, offsets: Any, values: Any, op: Any = "sum") -> Any:
        given = self._updating("fetch_op_many", op, True, ranks, offsets, values)
        return self._many_or_none(*given)[()]

    @behind
    def _fetch_add_many(self, ranks: Any, offsets: Any, values: Any) -> Any:
        given = self._updating("fetch_add_many", "sum", True, ranks, offsets, values)
        return self._many_or_none(*given)[()]

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
        given = self._swapping("compare_and_swap_many", ranks, offsets, compare, values)
        result: NDArray[ScalarT] = self._many_or_none(*given)
        return result[()]

    # -- helpers -------------------------------------------------------------------

    # These check what takes values, and return what `_many_or_none` is called with.

    def _putting(self, name: str, ranks: Any, offsets: Any, values: Any) -> _Given:
        self._check_open(name)
        values = arrays.origin(values, self._dtype, self._timeout)
        return PUT._replace(name=name), ranks, offsets, values

    def _updating(
        self, name: str, op: Any, fetch: bool, ranks: Any, offsets: Any, values: Any
    ) -> _Given:
        self._check_open(name)
        number = operation(op)
        values = arrays.origin(values, self._dtype, self._timeout)
        return self._update_call(name, number, op, fetch), ranks, offsets, values

    def _swapping(self, name: str, ranks: Any, offsets: Any, compare: Any, values: Any) -> _Given:
        self._check_open(name)
        wanted = arrays.origin(compare, self._dtype, self._timeout)
        new = arrays.origin(values, self._dtype, self._timeout)
        pairs = np.empty((*np.broadcast_shapes(wanted.shape, new.shape), 2), self._dtype)
        pairs[..., 0], pairs[..., 1] = wanted, new  # as C takes them
        pairs = pairs.view(f"V{2 * self._dtype.itemsize}")[..., 0]
        return self._update_call(name, _CSWAP, "compare and swap", True), ranks, offsets, pairs

    def _update_call(self, name: str, number: int, op: Any, fetch: bool) -> Call:
        type_ = self._atomic_type
        if type_ is None or not lib.rmaext_update_valid(number, type_):
            text = f"{name}: window {self._name}: {arrays.no_update(op, self._dtype)}"
            raise Unsupported(errno.EOPNOTSUPP, text, call=name)
        return Call(name, lib.RMAEXT_UPDATE, number, fetch, type_)

    def _many_or_none(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None = None
    ) -> Any:
        """As `_many`, but elements that go to MPI.PROC_NULL are left out, if it is a rank."""
        try:
            return self._many(call, ranks, offsets, values, out)
        except BoundsError:  # then nothing was sent, and ranks may be MPI.PROC_NULL
            if self._null is None:
                raise
            ranks = indices("ranks", ranks)
            there = ranks != self._null
            if there.all():
                raise
        places, values, made = self._arranged(call, ranks, offsets, values, out)
        if out is None and made is not None:
            made[...] = 0
        there = np.broadcast_to(there, places.shape)
        got = self._many(call, *places.some(values, there.reshape(-1)), None)
        if made is not None:
            made[there] = got
        return made

    def _many(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None
    ) -> Any:
        """Bring the arguments into shape, and carry the operation out."""
        places, values, out = self._arranged(call, ranks, offsets, values, out)
        code, bad = self._run_many(call, places, values, out)
        if code:
            raise self._many_error(call.name, code, bad, places)
        return out

    def _arranged(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None
    ) -> tuple[Places, Array | None, Array | None]:
        """Return the places, and the values and an array for the results in their shape."""
        given = [indices("ranks", ranks), indices("offsets", offsets)]
        shape, given = spread(*given, *([] if values is None else [values]))
        if out is None:
            out = np.empty(shape, self._dtype) if call.results else None
        elif out.shape != shape:
            raise ValueError(f"{call.name}: out has shape {out.shape}, the elements {shape}")
        places = Places(given[0], given[1], None, shape, math.prod(shape))
        return places, None if values is None else given[2], out

    def _places_call(
        self, call: Call, places: Places, values: Array | None, out: Array | None, **more: int
    ) -> Any:
        """Return the `struct rmaext_places_call`; `more` are other fields of it."""
        ranks, offsets, counts, _, elements = places
        ones = (0 if ranks.ndim else _ONE_RANK) | (0 if offsets.ndim else _ONE_OFFSET)
        if counts is not None:
            ones |= 0 if counts.ndim else _ONE_COUNT
        elif values is not None:
            ones |= 0 if values.ndim else _ONE_VALUE
        asked = {
            "kind": call.kind,
            "op": call.op,
            "type": call.type,
            "ones": ones,
            "unit": self._dtype.itemsize,
            "count": elements if counts is None else places.number,
            "ranks": _from_buffer(_LONGS, ranks),
            "offsets": _from_buffer(_LONGS, offsets),
            "counts": _NULL if counts is None else _from_buffer(_LONGS, counts),
            "values": _NULL if values is None else arrays.address(values),
            "results": _NULL if out is None else arrays.address(out),
            "elements": elements,
        }
        asked.update(more)
        return ffi.new(_CALL, asked)

    def _run_many(
        self, call: Call, places: Places, values: Array | None, out: Array | None, **more: int
    ) -> tuple[int, int]:
        """Carry the operation out, in slices of time as `_run`; `more` as of `_places_call`.

        Returns C's code, and the index of the element that was refused, or -1.
        """
        what, ranks = self._places_call(call, places, values, out, **more), places.ranks
        op = Owner(self._fabric, self._handle, (ranks, places.offsets, values, out))
        try:
            code = op.start_many(what)
            if code == _PENDING:
                where = f"{call.name}: window {self._name}"
                code = self._group.watch.wait(op, where, lambda: np.unique(ranks).tolist())
        finally:
            op.release()
        return code, op.bad

    def _begin_places(
        self,
        call: Call,
        places: Places,
        values: Array | None,
        out: Array | None,
        error: Callable[[int, int], Exception] | None = None,
        *,
        scalar: bool = False,
        **more: int,
    ) -> Request:
        """Begin an operation on many places. The request, or the fabric, keeps the arrays.

        `error` returns what to raise for C's code and the index of the place at fault, or -1.
        """
        what = self._places_call(call, places, values, out, **more)

        def of_place(code: int, bad: int) -> Exception:
            return self._many_error(call.name, code, bad, places)

        given = what, (values, out), error or of_place
        return Request._begun(self, call.name, places.number, *given, scalar=scalar)

    def _many_failed(self, call: str, code: int) -> NoReturn:
        raise from_c(code, f"{call}: window {self._name}")

    def _many_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        if bad < 0:
            return from_c(code, f"{call}: window {self._name}")
        return self._place_error(call, code, bad, places)

    def _place_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        """Return the error of one of many places, by its index."""
        rank, offset, count = (int(array[bad]) for array in places.broadcast())
        at = ", ".join(map(str, np.unravel_index(bad, places.shape))) if places.shape else ""
        what = "element" if places.counts is None else "range"
        where = f"{call}: window {self._name}{f', {what} [{at}]' if at else ''}, rank {rank}, "
        where += f"offset {offset}, length {count}"
        known = 0 <= rank < len(self._sizes)
        if code != -errno.ERANGE or (known and self._has(rank, offset, count)):
            return from_c(code, where)
        if known:
            text = f"{where}: outside the {self._sizes[rank]} elements there"
        else:
            text = f"{where}: there are ranks 0 to {len(self._sizes) - 1}{self._hint_for(rank)}"
        return BoundsError(errno.ERANGE, text, call=call, rank=rank)

    def _has(self, rank: int, offset: int, count: int) -> bool:
        return count >= 0 <= offset and offset + count <= self._sizes[rank]
