# SPDX-License-Identifier: BSD-3-Clause
"""Values of a `Dict` as bytes of its records."""

from __future__ import annotations

import errno
import math
import operator
import pickle
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..._runtime.reports import dtype_name
from ...errors import CapacityError
from .._values import taken

__all__ = ["Values"]

Array = NDArray[Any]
Words = NDArray[np.uint64]


class Values:
    """How values of a dtype lie in records, after the words of the key.

    Attributes
    ----------
    dtype : numpy.dtype
        As users see them.
    stored : numpy.dtype
        As they lie in memory: pickled objects are a length and bytes.
    unit : numpy.dtype or None
        Whose atomic updates replace a value as a whole; None if there is no such dtype: then
        the tag of the slot keeps readers from torn values.
    record : int
        Words of a record.
    limit : float or None
        As of `Keys`.
    """

    limit: float | None = None

    def __init__(self, dtype: DTypeLike, max_bytes: int | None, key_words: int) -> None:
        self.dtype = np.dtype(dtype)
        self.pickled = self.dtype == np.dtype(object)
        self.stored = self.dtype
        self.most = 0
        if self.pickled:
            if max_bytes is None:
                raise TypeError("value_dtype=object needs max_bytes=, the longest pickled value")
            self.most = operator.index(max_bytes)
            if not 0 < self.most < 1 << 30:
                raise ValueError(f"max_bytes={max_bytes}: from 1 to 2**30")
            self.stored = np.dtype([("size", "<u8"), ("data", f"V{self.most}")])
        elif max_bytes is not None:
            raise TypeError("max_bytes is for value_dtype=object")
        if not self.pickled and (self.dtype.hasobject or self.dtype.subdtype):
            raise TypeError(
                f"value_dtype={dtype_name(self.dtype)}: no objects within structs, no subarrays"
            )
        size = self.stored.itemsize
        if not size:
            text = f"value_dtype={dtype_name(self.dtype)}: values without bytes"
            raise ValueError(
                text + (": say how many, as 'U24'" if self.dtype.kind in "SUV" else "")
            )
        self.unit: np.dtype[Any] | None = None
        if size in (1, 2, 4, 8):
            plain = self.dtype.kind in "iufb" and self.dtype.isnative
            self.unit = self.dtype if plain else np.dtype(f"u{size}")
        self._key_words = key_words
        self.record = key_words + -(-size // 8)

    def offset(self, slots: Any) -> Any:
        """Return where values of slots are, in elements of `unit`."""
        assert self.unit is not None
        each = 8 // self.unit.itemsize
        return slots * (self.record * each) + self._key_words * each

    def read(self, values: Any, shape: tuple[int, ...]) -> Array:
        """Return values as they are stored, flat, one for each key.

        Raises
        ------
        TypeError, OverflowError, ValueError
            They do not fit the dtype or the shape.
        CapacityError
            A pickled one is too long.
        """
        if self.pickled:
            return self._pickle(values, shape)
        array = taken(values, self.dtype, "value", convert=True, limit=self.limit)
        if array.shape != shape:
            array = np.broadcast_to(array, shape)
        return np.ascontiguousarray(array).reshape(-1)

    def _pickle(self, values: Any, shape: tuple[int, ...]) -> Array:
        if shape == ():
            objects = [values]
        else:
            objects = list(values.flat if isinstance(values, np.ndarray) else values)
            if len(objects) != (count := math.prod(shape)):
                words = f"{len(objects)} values for {count} keys: give each key its object"
                raise ValueError(words)
        data = np.zeros((len(objects), self.stored.itemsize), np.uint8)
        for row, one in enumerate(objects):
            text = pickle.dumps(one, pickle.HIGHEST_PROTOCOL)
            if len(text) > self.most:
                words = f"a value of {len(text)} bytes, pickled: this table takes {self.most}"
                raise CapacityError(errno.EMSGSIZE, f"{words} (max_bytes)", call="Dict")
            data[row, :8] = np.frombuffer(len(text).to_bytes(8, "little"), np.uint8)
            data[row, 8 : 8 + len(text)] = np.frombuffer(text, np.uint8)
        return data.view(self.stored)[:, 0]

    def records(self, words: Words, stored: Array) -> Words:
        """Return records of keys and values."""
        result = np.zeros((len(words), self.record), np.uint64)
        result[:, : self._key_words] = words
        size = self.stored.itemsize
        if size == 8:
            result[:, self._key_words] = stored.view(np.uint64)
            return result
        at = 8 * self._key_words
        result.view(np.uint8)[:, at : at + size] = stored.view(np.uint8).reshape(len(words), size)
        return result

    def of(self, records: Words) -> Array:
        """Return the values of records."""
        size = self.stored.itemsize
        if size == 8 and not self.pickled:
            return np.ascontiguousarray(records[:, self._key_words]).view(self.dtype)
        at = 8 * self._key_words
        data = np.ascontiguousarray(records).view(np.uint8)
        data = np.ascontiguousarray(data[:, at : at + size])
        if not self.pickled:
            return data.view(self.dtype)[:, 0]
        result = np.empty(len(records), object)
        for row, one in enumerate(data):
            length = int.from_bytes(one[:8].tobytes(), "little")
            result[row] = pickle.loads(one[8 : 8 + length].tobytes())
        return result
