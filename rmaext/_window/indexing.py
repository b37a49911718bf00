# SPDX-License-Identifier: BSD-3-Clause
"""Windows are indexed as NumPy arrays are: win[rank, 3:9], win.at(rank).add(...)."""

from __future__ import annotations

import errno
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from .._memory import arrays
from .._native._lib import ffi, lib
from .._ops.vector import ManyOperations, indices
from ..errors import BoundsError, Unsupported

if TYPE_CHECKING:
    from .._comm.records import Column
    from .window import Place, Window

__all__ = ["At", "IndexOperations"]

Array = NDArray[Any]
Shape = tuple[int, ...]

_PUT, _GET = lib.RMAEXT_PUT, lib.RMAEXT_GET
_DIRECT = lib.RMAEXT_DIRECT
_ONE_RANK, _ONE_VALUE = lib.RMAEXT_ONE_RANK, lib.RMAEXT_ONE_VALUE
_NULL = ffi.NULL
_LONGS = ffi.typeof("int64_t[]")
_NAMES = {_PUT: "__setitem__", _GET: "__getitem__"}


@dataclass
class _Part:
    """The part of an array that a key means, in bytes.

    Attributes
    ----------
    first : int
        Where the slices begin.
    shape, steps : list of int
        Of the dimensions that slices and None make.
    indices : list of numpy.ndarray
        Index arrays, int64 and not negative; none for a view of NumPy's.
    grains : list of int
        What they count.
    picked : tuple of int
        The shape that they broadcast to.
    at : int
        How many dimensions of `shape` come before theirs.
    scalar : bool
        NumPy returns an element, not an array.
    """

    first: int = 0
    shape: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    indices: list[Array] = field(default_factory=list)
    grains: list[int] = field(default_factory=list)
    picked: Shape = ()
    at: int = -1
    scalar: bool = False

    def offsets(self, unit: int) -> Array:
        """Return where each element is: int64, in the shape of NumPy's result."""
        scaled = [
            index if grain == unit else index * (grain // unit)
            for index, grain in zip(self.indices, self.grains, strict=True)
        ]
        total = sum(scaled[1:], scaled[0]) if scaled else np.zeros((), np.int64)
        if self.first:
            total = total + self.first // unit
        ndim, dims, at = len(self.picked), len(self.shape), max(self.at, 0)
        total = total.reshape(self.picked + (1,) * (dims - at))
        for k, (count, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            ramp = np.arange(count, dtype=np.int64) * (step // unit)
            inner = dims - 1 - k + (ndim if k < at else 0)
            total = total + ramp.reshape((count,) + (1,) * inner)
        return np.asarray(total, order="C")

    def take_runs(self, unit: int) -> int:
        """Make the last dimensions longer elements where they are in one piece.

        Returns the bytes of an element, which divide all places.
        """
        run = unit
        while len(self.shape) > self.at and (
            self.shape[-1] == 1 or (self.shape[-1] and self.steps[-1] == run)
        ):
            run *= self.shape.pop()
            self.steps.pop()
        element = math.gcd(run, self.first, *self.grains, *self.steps)
        if element < run:
            self.shape.append(run // element)
            self.steps.append(element)
        return element


def _item(given: Any) -> Any:
    """Return a part of a key as None, Ellipsis, a slice, an int or an array."""
    if given is None or given is Ellipsis or isinstance(given, slice):
        return given
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given)
    array = np.asarray(given)
    if array.dtype.kind == "b":
        return array
    if not array.size and not isinstance(given, np.ndarray | np.generic):
        return array.astype(np.int64)  # [] has no dtype of its own
    if array.dtype.kind in "iu":
        return array if array.ndim else int(array)
    try:
        return operator.index(given)
    except TypeError:
        text = "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean arrays"
        raise IndexError(f"{text} are indices, not {given!r}") from None


class _Parser:
    """Understands keys as numpy.ndarray.__getitem__ does."""

    def __init__(self, shape: Shape, unit: int, where: str) -> None:
        self.shape = shape
        self.where = where
        self.steps = [unit * math.prod(shape[k + 1 :]) for k in range(len(shape))]
        self.axis = 0
        self.part = _Part()
        self.wrong: BoundsError | None = None

    def error(self, text: str) -> BoundsError:
        return BoundsError(errno.ERANGE, f"{self.where}: {text}")

    def parse(self, key: tuple[Any, ...]) -> _Part:
        """Return what a key means."""
        items = [_item(given) for given in key]
        arrays = [it for it in items if isinstance(it, np.ndarray)]
        dots = sum(it is Ellipsis for it in items)
        used = sum(it is not None and it is not Ellipsis for it in items)
        used += sum(array.ndim - 1 for array in arrays if array.dtype.kind == "b")
        if dots > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        whole = len(self.shape) - used
        if whole < 0:
            raise self.error(f"too many indices: {len(self.shape)} dimensions, {used} indices")
        self.part.scalar = not dots
        if not dots:
            items.append(Ellipsis)
        apart = False  # is there anything between index arrays?
        for it in items:
            if isinstance(it, np.ndarray) or (arrays and isinstance(it, int)):
                if self.part.at < 0:
                    self.part.at = len(self.part.shape)
                elif apart:
                    self.part.at = 0
                self.pick(it)
                continue
            apart = apart or self.part.at >= 0
            if it is None:
                self.add(1, 0)
            elif it is Ellipsis:
                for k in range(self.axis, self.axis + whole):
                    self.add(self.shape[k], self.steps[k])
                self.axis += whole
            else:
                self.slice_or_integer(it)
        self.part.scalar = self.part.scalar and not self.part.shape and not arrays
        self.broadcast()
        return self.part

    def add(self, count: int, step: int) -> None:
        self.part.shape.append(count)
        self.part.steps.append(step)

    def slice_or_integer(self, it: slice | int) -> None:
        count, step = self.shape[self.axis], self.steps[self.axis]
        if isinstance(it, slice):
            places = range(count)[it]
            self.part.first += places.start * step if places else 0
            self.add(len(places), places.step * step if len(places) > 1 else 0)
        else:
            if not -count <= it < count:
                raise self.outside(it)
            self.part.first += (it + count if it < 0 else it) * step
        self.axis += 1

    def outside(self, index: int) -> BoundsError:
        text = f"index {index} is out of bounds for axis {self.axis}"
        return self.error(f"{text} with size {self.shape[self.axis]}")

    def pick(self, it: Array | int) -> None:
        """Take an index array, a mask, or an integer beside them."""
        if isinstance(it, int):
            it = np.array(it)
            if not -self.shape[self.axis] <= it < self.shape[self.axis]:
                raise self.outside(int(it))
        if it.dtype.kind != "b":
            self.choose(it)
        elif not it.ndim:  # True and False use no dimension, and make one
            self.part.indices.append(np.zeros(int(it), np.int64))
            self.part.grains.append(0)
        else:
            for k, count in enumerate(it.shape):
                if count != self.shape[self.axis + k]:
                    text = f"the mask has {count} elements along axis {self.axis + k}, the array"
                    raise self.error(f"{text} {self.shape[self.axis + k]}")
            for index in it.nonzero():
                self.choose(index)

    def choose(self, index: Array) -> None:
        count, step = self.shape[self.axis], self.steps[self.axis]
        if index.dtype != np.int64:
            index = indices("index", index)
        # negative ones are large
        if index.size and index.view(np.uint64).max() >= count:
            low, high = int(index.min()), int(index.max())
            if low < -count or high >= count:
                self.wrong = self.wrong or self.outside(low if low < -count else high)
            index = np.where(index < 0, index + count, index)
        self.part.indices.append(index)
        self.part.grains.append(step)
        self.axis += 1

    def broadcast(self) -> None:
        part = self.part
        if len(part.indices) == 1:
            part.picked = part.indices[0].shape
        elif part.indices:
            shapes = [index.shape for index in part.indices]
            try:
                part.picked = np.broadcast_shapes(*shapes)
            except ValueError:
                text = " ".join(map(str, shapes))
                raise IndexError(f"index arrays could not be broadcast together: {text}") from None
        # as NumPy: what names no element may name any
        if self.wrong and 0 not in part.picked:
            raise self.wrong


def _fit(values: Array, shape: Shape) -> Array:
    """Return values as numpy.ndarray.__setitem__ takes them, without a copy."""
    given = values.shape
    while values.ndim > len(shape) and values.shape[0] == 1:
        values = values[0]
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        text = f"could not broadcast input array from shape {given} into shape {shape}"
        raise ValueError(text) from None


class IndexOperations(ManyOperations):
    """win[rank, key], to read and to assign, and win.at(rank).

    Short transfers by memory, of a key without arrays, are carried out by
    csrc/python/index.c; what it leaves comes here.
    """

    __iter__ = None  # else Python would take window[0], window[1], ... for its elements

    _array: Array
    _routes: Column[int]
    # of windows that are one array on each rank; a tuple: all have that
    _shapes: Column[Shape] | Shape | None = None
    _stride: int

    def _rank(self, rank: Any, call: str) -> int:
        raise NotImplementedError

    def _run(
        self, call: str, place: Place, buffers: tuple[Array, ...], function: Any, *arguments: Any
    ) -> None:
        raise NotImplementedError

    def at(self, rank: int) -> At:
        """Return what updates elements of a rank's window, each atomically.

        Parameters
        ----------
        rank : int
            Target.

        Returns
        -------
        At
            With `add(index, values)` and `update(index, values, op="sum")`; the
            index is one of NumPy's into the array of that rank.

        Notes
        -----
        Local. The counterpart of numpy.add.at: an element that is named twice is
        updated twice. `win[rank, i] += 1` reads, adds and writes, as if it were
        an array: what others write in between is lost.

        Examples
        --------
        >>> win.at(1).add(([0, 0, 3], 2), 1.0)  # win[1, 0, 2] += 2, win[1, 3, 2] += 1
        """
        self._check_open("at")
        number = operator.index(rank)
        return At(
            cast("Window", self), number if number == self._null else self._rank(number, "at")
        )

    def _getitem(self, key: Any) -> Any:
        number, part = self._select("__getitem__", key)
        if part is None:
            return np.empty(0, self._dtype)
        if part.indices:
            return self._pick(_GET, number, part, None)
        out = np.empty(part.shape, self._dtype)
        self._transfer(_GET, number, part.first, part.shape, part.steps, out)
        return out[()] if part.scalar else out

    def _setitem(self, key: Any, values: Any) -> None:
        number, part = self._select("__setitem__", key)
        if isinstance(values, np.ndarray) and values.dtype == self._dtype:
            array = np.asarray(values)
        else:
            array = arrays.origin(values, self._dtype)
        if part is None:
            return
        if part.indices:
            self._pick(_PUT, number, part, array)
        else:
            array = _fit(array, tuple(part.shape))
            self._transfer(_PUT, number, part.first, part.shape, part.steps, array)

    def _select(self, call: str, key: Any) -> tuple[int, _Part | None]:
        """Return the rank, and the part of its array; None: no operation (proc_null)."""
        self._check_open(call)
        key = key if isinstance(key, tuple) else (key,)
        try:
            number = operator.index(*key[:1])
        except TypeError:
            raise TypeError(f"the first index is the rank, an integer: {key[:1]}") from None
        if number == self._null:
            return number, None
        return number, self._parse(call, number, key[1:])

    def _parse(self, call: str, rank: int, key: tuple[Any, ...]) -> _Part:
        shapes = self._shapes
        if shapes is None:
            text = f"{call}: window {self._name} is no array of one shape"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call)
        number = self._rank(rank, call)
        where = f"{call}: window {self._name}, rank {number}"
        shape = shapes if isinstance(shapes, tuple) else shapes[number]
        return _Parser(shape, self._stride, where).parse(key)

    def _transfer(
        self,
        kind: int,
        rank: int,
        first: int,
        shape: list[int] | Shape,
        steps: list[int] | Shape,
        array: Array,
    ) -> None:
        """Read or write a part whose elements are at the steps of slices, in bytes."""
        unit = self._dtype.itemsize
        place = (rank, first // self._stride if array.size else 0, array.size)
        direct = self._routes[rank] == _DIRECT
        if kind == _PUT:
            array = self._apart(rank, array)
        if not direct:
            array = np.asarray(array, order="C")
        data, ndim = arrays.address(array), len(shape)
        if direct or lib.rmaext_strided_whole(self._handle, rank, unit, ndim, shape, steps):
            own = array.strides if direct else _NULL
            arguments = (kind, unit, ndim, shape, steps, own, data)
            return self._run(_NAMES[kind], place, (array,), lib.rmaext_strided, *arguments)
        more = (self._handle, rank, first, kind, unit, ndim, shape, steps, data)
        ranks = np.array(rank)
        name = _NAMES[kind]
        code, _ = self._run_many(name, ranks, more, (array,), lib.rmaext_strided_many)
        if code:
            self._many_failed(name, code)

    def _apart(self, rank: int, array: Array) -> Array:
        """Return the array, or a copy if it is a part of the window that is written to."""
        if rank == self._group.rank:  # of any route
            first, end = byte_bounds(self._array)
        elif self._routes[rank] == _DIRECT:
            root: Any = getattr(self, "_root", self)  # of a view
            first = int(ffi.cast("uintptr_t", root._maps[rank]))
            end = first + root._records[rank].size
        else:
            return array
        low, high = byte_bounds(array)
        return array.copy() if low < end and first < high else array

    def _pick(self, kind: int, rank: int, part: _Part, values: Array | None) -> Array:
        """Read or write the elements that index arrays name."""
        shape = (*part.shape[: part.at], *part.picked, *part.shape[part.at :])
        if values is not None:
            values = _fit(values, shape)
        unit, ones = self._dtype.itemsize, _ONE_RANK
        if self._stride == unit:
            unit = part.take_runs(unit)
            offsets = part.offsets(unit)
        else:  # a field of records
            offsets = part.offsets(self._stride)
        out = np.empty(shape, self._dtype) if values is None else None
        if values is not None and unit == self._dtype.itemsize and not any(values.strides):
            values, ones = values[(slice(1),) * values.ndim], ones | _ONE_VALUE
        if values is not None:
            values = self._apart(rank, np.asarray(values, order="C"))
            offsets = self._apart(rank, offsets)
        ranks = np.array(rank, np.int64)
        arguments = (
            self._handle,
            kind,
            0,
            0,
            unit,
            offsets.size,
            ones,
            ffi.from_buffer(_LONGS, ranks),
            ffi.from_buffer(_LONGS, offsets),
            _NULL if values is None else arrays.address(values),
            _NULL if out is None else arrays.address(out),
        )
        name = _NAMES[kind]
        code, many = self._run_many(name, ranks, arguments, (ranks, offsets, values, out))
        if code:
            raise self._many_error(name, code, many, offsets.shape, ranks, offsets)
        return offsets if out is None else out


class At:
    """Atomic updates of elements of a rank's window: `win.at(rank)`."""

    __slots__ = ("_rank", "_window")

    def __init__(self, window: Window, rank: int) -> None:
        self._window = window
        self._rank = rank

    def add(self, index: Any, values: Any) -> None:
        """Add values to the elements of an index; `update` with op="sum"."""
        self.update(index, values)

    def update(self, index: Any, values: Any, op: Any = "sum") -> None:
        """Update the elements of an index, each atomically.

        Parameters
        ----------
        index : index
            What may stand in the brackets of an array of that rank's shape.
            Elements that are named several times are updated as often.
        values : array or scalar
            Of the window's dtype; broadcast to the shape that the index makes.
        op : str or mpi4py.MPI.Op, optional
            The operation, as for `Window.accumulate`.

        Raises
        ------
        BoundsError, IndexError, TypeError, ValueError, Unsupported
            Before anything is sent.
        RmaTimeout, PeerLostError
            Any of the elements may have been updated.

        Notes
        -----
        Local, blocking; complete at the target when it returns. Corresponds to
        numpy.ufunc.at, and to MPI_Accumulate with a derived datatype.
        """
        window, rank = self._window, self._rank
        operand = arrays.origin(values, window.dtype)
        window._check_open("at")
        if rank == window._null:
            return
        part = window._parse("at", rank, index if isinstance(index, tuple) else (index,))
        offsets = window._apart(rank, part.offsets(window._stride))
        operand = window._apart(rank, np.asarray(_fit(operand, offsets.shape), order="C"))
        window.accumulate_many(rank, offsets, operand, op)
