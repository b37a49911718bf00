# SPDX-License-Identifier: BSD-3-Clause
"""Windows are indexed as NumPy arrays are: win[rank, 3:9], win.at(rank).add(...)."""

from __future__ import annotations

import errno
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from .._memory import arrays
from .._memory.values import made_of
from .._native._lib import ffi, lib
from .._runtime.copies import Unique
from ..errors import Unsupported
from ..typing import Operation, ScalarT
from .arguments import behind, told, told_as
from .core import Array, Shape
from .index_key import Parser, Part
from .many import Call, ManyOperations, Places

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["ElementUpdates", "IndexOperations", "fit"]

_PUT, _GET = lib.RMAEXT_PUT, lib.RMAEXT_GET
_DIRECT = lib.RMAEXT_DIRECT
_NAMES = {_PUT: "__setitem__", _GET: "__getitem__"}


def fit(values: Array, shape: Shape) -> Array:
    """Return values as numpy.ndarray.__setitem__ takes them, without a copy."""
    given = values.shape
    while values.ndim > len(shape) and values.shape[0] == 1:
        values = values[0]
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        text = f"could not broadcast input array from shape {given} into shape {shape}"
        raise ValueError(text) from None


class IndexOperations(ManyOperations[ScalarT]):
    """win[rank, key], to read and to assign, and win.at(rank).

    Short transfers by memory, of a key without arrays, are carried out by
    csrc/python/index.c; what it leaves comes here.
    """

    __iter__ = None  # else Python would iterate over window[0], window[1], ...

    @told
    def at(self, rank: int) -> ElementUpdates:
        """Return what updates elements of a rank's window, each atomically.

        Parameters
        ----------
        rank : int
            Target.

        Returns
        -------
        ElementUpdates
            With `add(index, values)` and `update(index, values, op="sum")`; the
            index is one of NumPy's into the array of that rank.

        Notes
        -----
        Local. The counterpart of numpy.add.at: an element that is named twice is
        updated twice. `win[rank, i] += 1` reads, adds and writes, as if it were
        an array: what others write in between is lost.

        Examples
        --------
        >>> win.at(0).add([2, 2, 5], 1.0)  # element 2 is named twice
        >>> win.local[:6]
        array([0., 0., 2., 0., 0., 1.])
        """
        self._check_open("at")
        number = operator.index(rank)
        known = number == self._null
        return ElementUpdates(self, number if known else self._rank(number, "at"))

    @behind
    def _getitem(self, key: Any) -> Any:
        return self._get_part(*self._select("__getitem__", key))

    def _get_part(self, number: int, part: Part | None) -> Any:
        """Return a part of a rank's array; an empty array for MPI.PROC_NULL."""
        if part is None:
            return np.empty(0, self._dtype)
        if part.indices:
            return self._pick(_GET, number, part, None)
        out = np.empty(part.shape, self._dtype)
        self._transfer(_GET, number, part, out)
        return out[()] if part.scalar else out

    @behind
    def _setitem(self, key: Any, values: Any) -> None:
        number, part = self._select("__setitem__", key)
        array = np.asarray(made_of(values, self._dtype, limit=self._timeout))
        if part is not None:
            self._put_part(number, part, fit(array, part.result))

    def _put_part(self, number: int, part: Part, array: Array) -> None:
        """Write a part from an array of its shape."""
        if part.indices:
            self._pick(_PUT, number, part, array)
        else:
            self._transfer(_PUT, number, part, array)

    def _select(self, call: str, key: Any) -> tuple[int, Part | None]:
        """Return the rank, and the part of its array; None if the rank is MPI.PROC_NULL."""
        self._check_open(call)
        key = key if isinstance(key, tuple) else (key,)
        try:
            number = operator.index(*key[:1])
        except TypeError:
            raise TypeError(f"the first index is the rank, an integer: {key[:1]}") from None
        return self._part_of(call, number, key[1:])

    def _part_of(self, call: str, rank: Any, key: Any) -> tuple[int, Part | None]:
        """Return the same, of a rank and the rest of the key."""
        self._check_open(call)
        number = operator.index(rank)
        items = key if isinstance(key, tuple) else (key,)
        return number, None if number == self._null else self._parse(call, number, items)

    def _parse(self, call: str, rank: int, key: tuple[Any, ...]) -> Part:
        shapes = self._shapes
        if shapes is None:
            text = f"{call}: window {self._name} is no array of one shape"
            raise Unsupported(errno.EOPNOTSUPP, text, call=call)
        number = self._rank(rank, call)
        where = f"{call}: window {self._name}, rank {number}"
        shape = shapes if isinstance(shapes, tuple) else shapes[number]
        return Parser(shape, self._steps(shape), where).parse(key)

    def _transfer(self, kind: int, rank: int, part: Part, array: Array) -> None:
        """Read or write a part whose elements are at the steps of slices, in bytes."""
        unit = self._dtype.itemsize
        place = (rank, self._index(part.first) if array.size else 0, array.size)
        direct = self._routes[rank] == _DIRECT
        if kind == _PUT:
            array = self._apart(rank, array)
        if not direct:
            array = np.asarray(array, order="C")
        own = array.strides if direct else ()
        data = arrays.address(array)
        with_part = arrays.part_call(kind, unit, part.shape, part.steps, own, data)
        self._run(_NAMES[kind], place, (array,), with_part[0])

    def _apart(self, rank: int, array: Array) -> Array:
        """Return the array, or a copy if it overlaps the memory that is written to."""
        if rank == self._group.rank:  # by whatever route it is reached
            first, end = byte_bounds(self._array)
        elif self._routes[rank] == _DIRECT:
            root = self._root
            first = int(ffi.cast("uintptr_t", root._maps[rank]))
            end = first + root._records[rank].size
        else:
            return array
        low, high = byte_bounds(array)
        return array.copy() if low < end and first < high else array

    def _pick(self, kind: int, rank: int, part: Part, values: Array | None) -> Array:
        """Read or write the elements that index arrays name."""
        out = np.empty(part.result, self._dtype) if values is None else None
        unit = self._dtype.itemsize
        if self._stride == unit:
            unit = part.take_runs(unit)
            offsets = part.offsets(unit)
        else:  # of a field, whose records C knows
            offsets = part.offsets(self._stride)
        if values is not None:
            if unit == self._dtype.itemsize and values.size and not any(values.strides):
                values = values[(slice(1),) * values.ndim].reshape(())  # it stands for all
            values = self._apart(rank, np.asarray(values, order="C"))
            offsets = self._apart(rank, offsets)
        call = Call(_NAMES[kind], kind, 0, out is not None)
        places = Places(np.array(rank), offsets, None, offsets.shape, offsets.size)
        code, bad = self._run_many(call, places, values, out, unit=unit)
        if code:
            raise self._many_error(call.name, code, bad, places)
        return offsets if out is None else out


class ElementUpdates(Unique):
    """Atomic updates of elements of a rank's window; made by `Window.at`.

    Any threads may use one at once, as they may the window.

    Examples
    --------
    >>> here = win.at(0)
    >>> here.add([2, 2, 5], 1.0)
    >>> win.local[:6]
    array([0., 0., 2., 0., 0., 1.])
    """

    __slots__ = ("_rank", "_window")

    def __init__(self, window: IndexOperations[Any], rank: int) -> None:
        self._window = window
        self._rank = rank

    def __repr__(self) -> str:
        return f"<rmaext.ElementUpdates of rank {self._rank} of {self._window!r}>"

    @told_as("at")
    def add(self, index: Any, values: Any) -> None:
        """Add values to the elements of an index, each atomically.

        Parameters
        ----------
        index : index
            What may stand in the brackets of an array of that rank's shape.
        values : array_like
            Of the window's dtype; broadcast to the shape that the index makes.

        Notes
        -----
        Local, blocking; `update` with op="sum", and raises what that does. Corresponds to
        numpy.add.at, and to MPI_Accumulate with MPI_SUM and a derived datatype.

        Examples
        --------
        >>> win.at(0).add([2, 2, 5], 1.0)  # element 2 is named twice
        >>> win.local[:6]
        array([0., 0., 2., 0., 0., 1.])
        """
        self.update(index, values)

    @told_as("at")
    def update(self, index: Any, values: Any, op: Operation | MPI.Op = "sum") -> None:
        """Update the elements of an index, each atomically.

        Parameters
        ----------
        index : index
            What may stand in the brackets of an array of that rank's shape.
            Elements that are named several times are updated as often.
        values : array_like
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

        Examples
        --------
        >>> win.at(0).update(slice(2, 5), [1.0, 2.0, 3.0], op="max")
        >>> win.local[1:6]
        array([0., 1., 2., 3., 0.])
        """
        window, rank = self._window, self._rank
        operand = arrays.origin(values, window._dtype, window._timeout)
        window._check_open("at")
        if rank == window._null:
            return
        part = window._parse("at", rank, index if isinstance(index, tuple) else (index,))
        offsets = window._apart(rank, window._indices(part.offsets(window._stride)))
        operand = window._apart(rank, np.asarray(fit(operand, offsets.shape), order="C"))
        window.accumulate_many(rank, offsets, operand, op)
