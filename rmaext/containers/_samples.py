# SPDX-License-Identifier: BSD-3-Clause
"""The records that a rank brings to a `Store`: looked at, and copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._runtime.reports import dtype_name
from ._device import of_cuda
from ._values import taken

__all__ = ["Brought", "Samples"]

Array = NDArray[Any]
Shape = tuple[int, ...]


class Brought(NamedTuple):
    """What a rank tells the others of its records; None where there is nothing to tell."""

    records: int = 0
    dtype: np.dtype[Any] | None = None
    ndim: int | None = None
    shape: Shape | None = None  # that all its records have
    tail: Shape | None = None  # the same without the first dimension


class Samples:
    """The records of this rank: one array, or several of one dtype.

    Parameters
    ----------
    given : numpy.ndarray or sequence of array_like
        As for `Store`. Nothing is copied but what is no array, or lies on a device.
    limit : float or None
        Seconds that a device may take.
    """

    def __init__(self, given: Any = (), limit: float | None = None) -> None:
        self.whole: Array | None = None
        self.records: Sequence[Array] = ()
        if isinstance(given, (str, bytes, dict, set, np.generic)):
            raise TypeError(f"samples must be a sequence of arrays, not {type(given).__name__}")
        if isinstance(given, np.ndarray) or of_cuda(given) is not None:
            self.whole = array = _plain(given, limit)
            if not array.ndim:
                raise TypeError("samples are one number: give an array of at least one dimension")
            shape = array.shape[1:]
            self.brought = Brought(len(array), array.dtype, len(shape), shape, shape[1:])
            return
        self.records = records = [_plain(record, limit) for record in given]
        if not records:
            self.brought = Brought()
            return
        dtypes = {record.dtype for record in records}
        if len(dtypes) > 1:
            raise TypeError(f"samples are of several dtypes ({_some(dtypes)}): convert them to one")
        dimensions = {record.ndim for record in records}
        if len(dimensions) > 1:
            raise ValueError(f"samples have {_some(dimensions)} dimensions: all need as many")
        shapes = {record.shape for record in records}
        tails = {shape[1:] for shape in shapes}
        self.brought = Brought(
            len(records),
            records[0].dtype,
            records[0].ndim,
            shapes.pop() if len(shapes) == 1 else None,
            tails.pop() if len(tails) == 1 else None,
        )

    @property
    def nbytes(self) -> int:
        """Of all records."""
        if self.whole is not None:
            return self.whole.nbytes
        return sum(record.nbytes for record in self.records)

    def shapes(self, ndim: int) -> NDArray[np.int64]:
        """Return the shape of each record: a row of `ndim` numbers."""
        if self.whole is not None:
            return np.tile(np.array(self.whole.shape[1:], np.int64), (len(self.whole), 1))
        listed = [record.shape for record in self.records]
        return np.array(listed, np.int64).reshape(len(listed), ndim)

    def copy_to(self, memory: Array) -> None:
        """Write all records, one after another, to an array of their dtype and one dimension."""
        if self.whole is not None:
            memory.reshape(self.whole.shape)[...] = self.whole
        at = 0
        for record in self.records:
            memory[at : at + record.size].reshape(record.shape)[...] = record
            at += record.size


def _some(things: set[Any]) -> str:
    return ", ".join(sorted(map(str, things))[:3])


def _plain(given: Any, limit: float | None) -> Array:
    """Return an array that other ranks can read, or raise."""
    if _is_masked(given):
        raise TypeError("samples are masked arrays, whose masks would be lost: use filled()")
    cuda = of_cuda(given)
    array = np.asarray(given) if cuda is None else cuda.fetch(given, limit)
    if array.dtype.hasobject:
        raise TypeError(
            f"samples of dtype {dtype_name(array.dtype)} hold Python objects: convert them"
        )
    if not array.dtype.itemsize:
        raise TypeError(f"samples of dtype {dtype_name(array.dtype)} have no bytes")
    if isinstance(given, (list, tuple)) and array.size:  # NumPy has chosen a dtype for all
        taken(given, array.dtype, "samples", convert=True, limit=limit)
    return array


def _is_masked(given: Any) -> bool:
    if isinstance(given, (list, tuple)):
        return any(map(_is_masked, given))
    return isinstance(given, np.ma.MaskedArray)
