# SPDX-License-Identifier: BSD-3-Clause
"""All entries of a `Dict`, or those of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from .hashing import BUSY, FULL, Words
from .memory import SLOTS, Memory, Wait

if TYPE_CHECKING:
    from .slots import Slots

__all__ = ["Items", "collect", "local_entries"]

Array = NDArray[Any]
_PIECE = 1 << 12  # buckets that are read at once


class Items:
    """Entries of a `Dict`, as they were: a sequence of pairs. Keys that are structs are tuples.

    It is a copy: any threads may read it at once.

    Attributes
    ----------
    key_array, value_array : numpy.ndarray
        One-dimensional, of the table's dtypes.

    Examples
    --------
    >>> with rmaext.containers.Dict(MPI.COMM_SELF, "i8", "f8", 100) as table:
    ...     table[2] = 0.5
    ...     items = table.items()
    >>> dict(items), len(items), items.key_array
    ({np.int64(2): np.float64(0.5)}, 1, array([2]))
    """

    def __init__(self, keys: Array, values: Array) -> None:
        self.key_array = keys
        self.value_array = values

    def __len__(self) -> int:
        return len(self.key_array)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Items: ...

    def __getitem__(self, index: int | slice) -> tuple[Any, Any] | Items:
        if isinstance(index, slice):
            return Items(self.key_array[index], self.value_array[index])
        key = self.key_array[index]
        return key.item() if isinstance(key, np.void) else key, self.value_array[index]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        keys = self.key_array
        # records of NumPy cannot be keys of a dictionary
        return zip(keys.tolist() if keys.dtype.names else keys, self.value_array, strict=True)

    def __repr__(self) -> str:
        return f"Items({self.key_array!r}, {self.value_array!r})"


def collect(memory: Memory) -> tuple[Words, Words]:
    """Return keys and records of all ranks, which change nothing meanwhile."""
    found = []
    for rank in range(memory.size):
        for first in range(0, memory.buckets, _PIECE):
            count = min(_PIECE, memory.buckets - first)
            lines = memory.lines.get(rank, first, count).view(np.uint64).reshape(count, -1)
            slots = np.flatnonzero(lines[:, 1:] >= FULL) + first * SLOTS
            if slots.size:
                found.append(memory.records.get_many(rank, slots))
    return _unpack(memory, np.concatenate(found) if found else None)


def local_entries(memory: Memory, slots: Slots) -> tuple[Words, Words]:
    """Return keys and records of this rank, while others change them."""
    wait = Wait(memory, "those who change or remove an entry")
    lines = memory.words.local.reshape(-1, SLOTS + 1)
    records = memory.records.local
    rows = np.arange(memory.buckets)
    kept = []
    while rows.size:
        with memory:
            before = lines[rows]
            full = before[:, 1:] >= FULL
            i, j = full.nonzero()
            memory.words.sync()  # first the tags, then the records, then the tags again
            got = records[rows[i] * SLOTS + j]
            memory.words.sync()
            now = lines[rows]
        # a bucket where a value was written meanwhile is read again
        busy = (before & BUSY) != 0
        again = busy.any(axis=1) | ((before != now)[:, 1:] & full).any(axis=1)
        kept.append(got[~again[i]])
        i, j = busy.nonzero()
        if i.size:
            ranks = np.full(len(i), memory.rank)
            slots.wait(wait, ranks, rows[i] * (SLOTS + 1) + j, before[i, j])
        rows = rows[again]
    words, found = _unpack(memory, np.concatenate(kept))
    if len(kept) > 1:  # an entry may have been removed, and made again elsewhere: the last counts
        last = len(words) - 1 - np.unique(words[::-1], axis=0, return_index=True)[1]
        words, found = words[last], found[last]
    return words, found


def _unpack(memory: Memory, records: Array | None) -> tuple[Words, Words]:
    each = memory.format.record
    if records is None or not len(records):
        empty = np.zeros((0, each), np.uint64)
        return empty[:, : memory.keys.words], empty
    result = records.view(np.uint64).reshape(len(records), each)
    return result[:, : memory.keys.words], result
