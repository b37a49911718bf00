# SPDX-License-Identifier: BSD-3-Clause
"""Windows over one field of the records of another."""

from __future__ import annotations

import errno
import math
from typing import Any

import numpy as np

from .._comm.columns import changed, each
from .._native._lib import lib
from .._ops.core import Array, Place, Shape
from .._ops.many import Call, Places, indices
from .._runtime.failures import not_for
from .._runtime.reports import dtype_name
from ..errors import AlignmentError
from ..typing import ScalarT
from .views import Layout, View, layout_of

__all__ = ["FieldView", "field"]


class FieldView(View[ScalarT]):
    """A window over one field of records; made by `Window.field`.

    Notes
    -----
    An offset counts records; of a field with dimensions it counts elements of the field, all
    those of a record before those of the next. There are no functions for compiled code: these
    count elements that follow each other. Threads may do what they may with the window.

    Examples
    --------
    >>> records = np.zeros(3, [("mass", "f8"), ("count", "i8")])
    >>> with rmaext.Window(MPI.COMM_SELF, records) as other:
    ...     other.field("mass").get(0)
    array([0., 0., 0.])
    """

    _divided = True
    _made_by = "field(name) of a window"

    @property
    def numba(self) -> int:
        """There is none: compiled code counts elements that follow each other."""
        raise not_for(self, "numba")

    def _byte(self, index: int) -> int:
        record, inner = divmod(index, len(self._within))
        return record * self._layout.record + int(self._within[inner])

    def _index(self, byte: int) -> int:
        record, rest = divmod(byte, self._layout.record)
        return record * len(self._within) + int(np.searchsorted(self._within, rest))

    def _indices(self, offsets: Array) -> Array:
        if not self._layout.shape:
            return offsets
        records, rest = np.divmod(offsets * self._stride, self._layout.record)
        return np.asarray(records * len(self._within) + np.searchsorted(self._within, rest))

    def _steps(self, shape: Shape) -> list[int]:
        _, inner, steps = self._layout
        outer = shape[: len(shape) - len(inner)]
        record = self._layout.record
        return [record * math.prod(outer[k + 1 :]) for k in range(len(outer))] + list(steps)

    def _many(
        self, call: Call, ranks: Any, offsets: Any, values: Array | None, out: Array | None
    ) -> Any:
        if self._layout.shape:  # C counts offsets in the bytes that divide all distances
            records, inner = np.divmod(indices("offsets", offsets), len(self._within))
            offsets = (records * self._layout.record + self._within[inner]) // self._stride
        return super()._many(call, ranks, offsets, values, out)

    def _many_error(self, call: str, code: int, bad: int, places: Places) -> Exception:
        places = places._replace(offsets=self._indices(places.offsets))
        return super()._many_error(call, code, bad, places)

    def _run(self, call: str, place: Place, buffers: tuple[Array, ...], what: Any) -> None:
        rank, first, count = place
        if what.part:  # which says where the elements are
            return super()._run(call, place, buffers, what)
        if what.kind == lib.RMAEXT_UPDATE:
            self._check_aligned(call, place)
        if count == 1:
            super()._run(call, place, buffers, what)
        elif count:
            values = buffers[0].reshape(-1) if what.operand else None
            out = buffers[-1].reshape(-1) if what.result else None
            how = Call(call, what.kind, what.op, out is not None, what.type)
            given = how, rank, np.arange(first, first + count), values
            if what.compare:
                given = self._swapping(call, *given[1:3], buffers[1].reshape(-1), values)
            self._many(*given, out)

    def _check_aligned(self, call: str, place: Place) -> None:
        unit = self._dtype.itemsize
        if unit > 8:  # longer ones are as C aligns them
            unit = self._dtype.alignment
        if (self._records[place[0]].address | self._stride) % unit:
            record = self._layout.record
            text = f"{self._where(call, place)}: records of {record} bytes are not all "
            text += f"aligned to the {unit} of the field: numpy.dtype(..., align=True) aligns them"
            raise AlignmentError(errno.EFAULT, text, call=call, rank=place[0])


def field(parent: Any, name: str) -> FieldView[Any]:
    """See `Window.field`."""
    parent._check_open("field")
    fields = parent._dtype.fields
    if not fields:
        raise TypeError(
            f"field: window {parent._name} has dtype {dtype_name(parent._dtype)}, without fields"
        )
    if name not in fields:
        raise KeyError(f"field: window {parent._name} has {', '.join(fields)}, not {name!r}")
    whole, at = fields[name][:2]
    if not whole.itemsize:
        raise TypeError(
            f"field {name!r} has elements of dtype {dtype_name(whole)}, which have no size"
        )
    dtype, inner = whole.base, whole.shape
    steps = tuple(dtype.itemsize * math.prod(inner[k + 1 :]) for k in range(len(inner)))
    record, shape, before = layout_of(parent, parent._dtype.itemsize)
    layout = Layout(record, (*shape, *inner), (*before, *steps))
    made: FieldView[Any] = FieldView.__new__(FieldView)
    return made._look(
        parent,
        f"{parent._name}.{name}",
        lambda a: a[name],
        first=at,
        counts=each(parent._sizes, lambda n: n * math.prod(inner)),
        shape=changed(parent._records.shape, lambda outer: (*outer, *inner)),
        dtype=dtype,
        layout=layout,
    )
