# SPDX-License-Identifier: BSD-3-Clause
"""Keys of a `Dict` as words of 64 bits, and where they belong."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib import recfunctions
from numpy.typing import DTypeLike, NDArray

from ..._runtime.reports import dtype_name
from .._values import taken

__all__ = ["BUSY", "FULL", "HASH", "Keys", "Query"]

Array = NDArray[Any]
Words = NDArray[np.uint64]

# The tag of a slot. 0: it is free. Else, from the top: two bits of state, 24 bits of the key's
# hash, 18 bits of version (sets of a wide value), 20 bits: the rank that works on it.
FULL = 1 << 63  # the entry is there
BUSY = 1 << 62  # a rank makes, changes or removes it
HASH = 0xFFFFFF << 38

_WORD = np.dtype(np.uint64)
# NumPy takes its own integers faster than Python's.
_HALF, _LOW, _FULL = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(FULL)
_WANTED = np.uint64(FULL | HASH)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_MOST_KEY = 256  # bytes


class Query(NamedTuple):
    """Keys that are looked for, one a row."""

    words: Words  # (n, words of a key)
    hashes: Words
    ranks: NDArray[np.int64]  # which rank has them
    homes: NDArray[np.int64]  # the bucket there where the search begins
    want: Words  # FULL with the bits of the hash: what their slots' tags are

    def take(self, rows: Any) -> Query:
        """Return some of them."""
        return Query(*(column[rows] for column in self))


class Keys:
    """How keys of a dtype become words, and words homes: the same in all processes.

    Attributes
    ----------
    dtype : numpy.dtype
        Of keys: native, and without padding, so that equal keys have equal bytes.
    words : int
        Of one key.
    limit : float or None
        Seconds for keys that lie on a device; None: RMAEXT_TIMEOUT.
    """

    limit: float | None = None

    def __init__(self, dtype: DTypeLike) -> None:
        given = np.dtype(dtype)
        if given.names:
            given = recfunctions.repack_fields(given, recurse=True)
        if given.hasobject or given.kind not in "iubSUVMm" or given.subdtype:
            text = (
                f"key_dtype={dtype_name(given)}: keys are integers, text ('U24') or bytes ('S16') "
            )
            text += "of a fixed length, or small structs"
            raise TypeError(text + (": round floats to integers" if given.kind == "f" else ""))
        if not 0 < given.itemsize <= _MOST_KEY:
            text = (
                f"key_dtype={dtype_name(given)}: {given.itemsize} bytes; keys have 1 to {_MOST_KEY}"
            )
            if not given.itemsize:
                text += ": say how long the longest is, as in key_dtype='U24' or 'S16'"
            raise ValueError(text)
        self.dtype: np.dtype[Any] = given if given.names else given.newbyteorder("=")
        self.words = -(-given.itemsize // 8)
        # integers up to 8 bytes are words already, but for their width
        self._unsigned = np.dtype(f"u{given.itemsize}") if given.kind in "iu" else None

    def read(self, keys: Any) -> tuple[tuple[int, ...], Words]:
        """Return the shape of what was given, and the keys as words."""
        try:
            array = taken(keys, self.dtype, "key", exact=True, convert=True, limit=self.limit)
        except (TypeError, ValueError) as exc:
            if self.dtype.kind not in "SU":
                raise
            raise type(exc)(f"{exc} (the table's key_dtype)") from None
        flat = np.ascontiguousarray(array).reshape(-1)
        if self._unsigned is not None:
            words = flat.view(self._unsigned).astype(_WORD, copy=False)
            return array.shape, words[:, None]
        padded = np.zeros((flat.size, 8 * self.words), np.uint8)
        size = self.dtype.itemsize
        padded[:, :size] = flat.view(np.uint8).reshape(flat.size, size)
        return array.shape, padded.view(_WORD)

    def back(self, words: Words) -> Array:
        """Return words as keys."""
        if self._unsigned is not None:
            return words[:, 0].astype(self._unsigned).view(self.dtype)
        size = self.dtype.itemsize
        data = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 8 * self.words)
        return np.ascontiguousarray(data[:, :size]).view(self.dtype)[:, 0]

    def query(self, words: Words, ranks: int, buckets: int) -> Query:
        """Tell where keys belong, on so many ranks with so many buckets each."""
        x = _mixed(words[:, 0])
        for column in range(1, self.words):
            x = _mixed(x ^ words[:, column])
        if ranks == 1:
            rank = np.zeros(len(x), _WORD)
        else:
            rank = x >> _HALF
            rank *= ranks
            rank >>= _HALF
        home = x & _LOW
        home *= buckets
        home >>= _HALF
        want = x | _FULL
        want &= _WANTED
        return Query(words, x, rank.view(np.int64), home.view(np.int64), want)


def _mixed(x: Words) -> Words:
    """Return words of which every bit depends on all bits of x, the highest ones most.

    Two rounds of an exclusive or and a multiplication by an odd number: no two words become
    the same.
    """
    y = x >> _HALF
    y ^= x
    y *= _ODD
    z = y >> _HALF
    y ^= z
    y *= _ODD
    return y
