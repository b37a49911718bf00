# SPDX-License-Identifier: BSD-3-Clause
"""What all ranks have told of their parts of a window: columns, short where all are alike.

A window may have a million ranks. What is kept of each is in C (csrc/win/window.h), and
nothing where all have the same; the sequences here read it from there.
"""

from __future__ import annotations

import errno
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._memory.node import NO_BLOCK
from .._native._lib import ffi, lib
from .._runtime.failures import check, of_all
from ..errors import KeyRecordError
from .agreement import attempt, blame, parse_all, settle
from .window_record import WindowRecord, dtype_words

__all__ = [
    *("Column", "Columns", "Flat", "Numbers", "Records", "Same", "Some", "Told", "Ways"),
    *("Split", "each", "elements", "one_of"),
]

Array = NDArray[Any]
T = TypeVar("T")
_RIGHTS = lib.RMAEXT_READ | lib.RMAEXT_WRITE | lib.RMAEXT_STORED | lib.RMAEXT_DEVICE


class Column(Generic[T]):
    """A value of each rank."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, rank: int) -> T:
        raise NotImplementedError


class Same(Column[T]):
    """One that all have."""

    __slots__ = ("value",)

    def __init__(self, count: int, value: T) -> None:
        self._count, self.value = count, value

    def __getitem__(self, rank: int) -> T:
        return self.value


class Some(Column[T]):
    """One that all have, but for some."""

    __slots__ = ("_other", "known")

    def __init__(self, count: int, known: dict[int, T], other: T) -> None:
        self._count, self.known, self._other = count, known, other

    def __getitem__(self, rank: int) -> T:
        return self.known.get(rank, self._other)


class Here(Column[T]):
    """One that those have who are here, in an array of C; the others all have another."""

    __slots__ = ("_array", "_index", "_other")

    def __init__(self, count: int, index: dict[int, int], array: Any, other: T) -> None:
        self._count, self._index, self._array, self._other = count, index, array, other

    def __getitem__(self, rank: int) -> T:
        i = self._index.get(rank)
        value: T = self._other if i is None else self._array[i]
        return value


class Numbers(Column[int]):
    """Integers, in an array; `unit` of its own make one."""

    __slots__ = ("_unit", "array")

    def __init__(self, array: Array, unit: int = 1) -> None:
        self._count, self.array, self._unit = len(array), array, unit

    def __getitem__(self, rank: int) -> int:
        return int(self.array[rank]) // self._unit


class Rights(Numbers):
    """Rights, with other bits."""

    __slots__ = ()

    def __getitem__(self, rank: int) -> int:
        return int(self.array[rank]) & int(_RIGHTS)


class Shapes(Column[tuple[int, ...]]):
    """Shapes, which rows of an array have, behind their lengths."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Array) -> None:
        self._count, self._rows = len(rows), rows

    def __getitem__(self, rank: int) -> tuple[int, ...]:
        n, *dims = self._rows[rank].tolist()
        return tuple(dims[:n])


class Flat(Column[tuple[int, ...]]):
    """Shapes of one dimension, of sizes in bytes."""

    __slots__ = ("itemsize", "sizes")

    def __init__(self, sizes: Column[int], itemsize: int) -> None:
        self._count, self.sizes, self.itemsize = len(sizes), sizes, itemsize

    def __getitem__(self, rank: int) -> tuple[int, ...]:
        return (self.sizes[rank] // self.itemsize,)


class Changed(Column[T]):
    """What a function makes of another column."""

    __slots__ = ("_change", "_column")

    def __init__(self, column: Column[T], change: Callable[[T], T]) -> None:
        self._count, self._column, self._change = len(column), column, change

    def __getitem__(self, rank: int) -> T:
        return self._change(self._column[rank])


def changed(column: Column[T], change: Callable[[T], T]) -> Column[T]:
    """Return what a function makes of each; it is called anew for each look."""
    if isinstance(column, Same):
        return Same(len(column), change(column.value))
    return Changed(column, change)


def elements(sizes: Column[int], itemsize: int) -> Column[int]:
    """Return sizes in elements."""
    if isinstance(sizes, Same):
        return Same(len(sizes), sizes.value // itemsize)
    return Numbers(sizes.array, itemsize) if isinstance(sizes, Numbers) else sizes


def each(numbers: Column[int], change: Callable[[int], int]) -> Column[int]:
    """Return them changed."""
    count = len(numbers)
    if isinstance(numbers, Same):
        return Same(count, change(numbers.value))
    return Numbers(np.fromiter(map(change, numbers), np.uint64, count))


def one_of(shapes: Column[tuple[int, ...]]) -> Any:
    """Return a shape where all have the same, which C likes better."""
    return shapes.value if isinstance(shapes, Same) else shapes


class Records(Column[WindowRecord]):
    """What is known of each rank for as long as the window lives.

    Attributes
    ----------
    size, access, align, parts : Column of int
    shape : Column of tuple
    """

    def __init__(
        self,
        rank: int,
        own: WindowRecord,
        size: Column[int],
        access: Column[int],
        align: Column[int],
        shape: Column[tuple[int, ...]],
        parts: Column[int],
    ) -> None:
        self._count, self.rank, self.own = len(size), rank, own
        self.size, self.access, self.align = size, access, align
        self.shape, self.parts = shape, parts
        self._keep: Any = None

    def __getitem__(self, rank: int) -> WindowRecord:
        """Return a record; of other ranks its address modulo 64, and no key."""
        if rank == self.rank:
            return self.own
        what = (self.size[rank], 0, self.access[rank], self.own.dtype, b"", self.align[rank])
        return WindowRecord(*what, self.shape[rank], NO_BLOCK, self.parts[rank])

    def lie_in(self, window: Any) -> None:
        """Forget what C has by now, and read it there."""
        if all(isinstance(it, Same) for it in (self.size, self.access, self.align)):
            return
        rows = ffi.new("struct rmaext_rows *")
        lib.rmaext_window_rows(window, rows)
        if not rows.step:
            return
        self._keep = window
        if isinstance(self.size, Numbers):
            sizes, self.size = self.size, Numbers(self._row(rows, rows.size, np.uint64))
            if isinstance(self.shape, Flat) and self.shape.sizes is sizes:
                self.shape = Flat(self.size, self.shape.itemsize)
        if isinstance(self.access, Numbers):
            self.access = Rights(self._row(rows, rows.access, np.uint8))
        if isinstance(self.align, Numbers):
            self.align = Numbers(self._row(rows, rows.align, np.uint8))

    def part(
        self,
        first: int,
        access: int,
        window: Any,
        size: Column[int],
        shape: Column[tuple[int, ...]],
    ) -> Records:
        """Return those of a view, which begins at byte `first`, and has its C window."""
        own = self.own._replace(
            size=size[self.rank],
            address=self.own.address + first,
            access=self.own.access & access,
            shape=shape[self.rank],
        )
        rights = each(self.access, lambda bits: bits & access)
        aligns = each(self.align, lambda align: (align + first) % 64)
        part = Records(self.rank, own, size, rights, aligns, shape, self.parts)
        part.lie_in(window)
        return part

    def _row(self, rows: Any, first: Any, dtype: Any) -> Array:
        nbytes = (self._count - 1) * rows.step + np.dtype(dtype).itemsize
        data = ffi.buffer(ffi.cast("char *", first), nbytes)
        return np.ndarray((self._count,), dtype, data, strides=(rows.step,))


class Ways:
    """How the ranks that are here are reached, in arrays of C; at first by network.

    Attributes
    ----------
    here : list of int
        The ranks, in order.
    route, map, address : C arrays
        As in struct rmaext_targets.
    """

    __slots__ = ("_index", "address", "here", "map", "route")

    def __init__(self, here: Sequence[int]) -> None:
        n = len(here)
        self.here, self._index = here, {rank: i for i, rank in enumerate(here)}
        self.route = ffi.new("uint8_t[]", [lib.RMAEXT_FABRIC] * n)
        self.map, self.address = ffi.new("void *[]", n), ffi.new("uint64_t[]", n)

    def set(self, rank: int, route: int, memory: Any) -> None:
        """Set those of a rank that is here."""
        i = self._index[rank]
        self.route[i], self.map[i] = route, memory

    def look(self, handle: Any) -> None:
        """Take from a C window whether memory of devices is mapped; it may never be, or no more."""
        if lib.RMAEXT_IPC not in bytes(ffi.buffer(self.route)):
            return  # few windows are on devices
        for i, rank in enumerate(self.here):
            if self.route[i] == lib.RMAEXT_IPC:
                self.route[i] = lib.rmaext_window_route(handle, rank)

    def columns(self, count: int) -> tuple[Column[int], Column[Any]]:
        """Return routes and maps of all ranks."""
        routes = Here(count, self._index, self.route, lib.RMAEXT_FABRIC)
        return routes, Here(count, self._index, self.map, ffi.NULL)


class Columns(NamedTuple):
    """What C makes a window of; `same` says which have one entry, for all ranks."""

    same: int
    size: Any
    base: Any
    access: Any
    align: Any
    keys: Any
    key_len: int
    keep: Any  # that the pointers lead into

    @classmethod
    def of(cls, records: Sequence[WindowRecord], key_len: int) -> Columns:
        """Return those of a list of records."""
        columns: list[list[Any]] = [
            [r.size for r in records],
            [r.base for r in records],
            [r.access for r in records],
            [r.address % 64 for r in records],
            [r.key.ljust(key_len, b"\0") for r in records],
        ]
        same = 0
        for k, column in enumerate(columns):
            if column.count(column[0]) == len(column):
                columns[k], same = column[:1], same | 1 << k
        size, base = (ffi.new("uint64_t[]", column) for column in columns[:2])
        access, align = (ffi.new("uint8_t[]", column) for column in columns[2:4])
        keys = ffi.new("uint8_t[]", b"".join(columns[4]))
        return cls(same, size, base, access, align, keys, key_len, None)


_BYTES = {
    lib.RMAEXT_SAME_SIZE: ("size", np.uint64),
    lib.RMAEXT_SAME_BASE: ("base", np.uint64),
    lib.RMAEXT_SAME_ACCESS: ("access", np.uint8),
    lib.RMAEXT_SAME_ALIGN: ("align", np.uint8),
}


class Told:
    """The records of all ranks, one after another, which are in order.

    Attributes
    ----------
    own : WindowRecord
        This rank's.
    all : struct rmaext_records
        What they have in common.
    """

    def __init__(self, where: Any, lengths: Array, own: WindowRecord, all_: Any) -> None:
        self._where, self._lengths, self.own, self.all = where, lengths, own, all_
        self._arrays: dict[int, Array] = {}

    @classmethod
    def by(cls, group: Any, produce: Callable[[], tuple[WindowRecord, int]]) -> Told:
        """Let each rank describe its part, with its itemsize. Collective.

        If something is wrong on one rank, all raise.
        """
        made: list[tuple[WindowRecord, int]] = []

        def mine() -> bytes:
            made.append(produce())
            return made[0][0].pack()

        record, failure = attempt(mine)
        data, lengths = group.gather_whole(record)
        own, itemsize = made[0] if made else (None, 1)
        all_ = ffi.new("struct rmaext_records *")
        where = (ffi.from_buffer("uint8_t[]", data), ffi.from_buffer("int32_t[]", lengths))
        if own is None or lib.rmaext_records_check(*where, len(lengths), itemsize, all_):
            _complain(Split(data, lengths), failure, itemsize)
        return cls(where, lengths, own, all_)

    def find(self, nears: Any, ways: Ways) -> None:
        """Find out how those are reached whose handles are given; map their memory."""
        here = ffi.new("int64_t[]", ways.here)
        found = ffi.new("struct rmaext_ways *", [ways.route, ways.map, ways.address])
        check(lib.rmaext_records_ways(*self._where, here, len(ways.here), nears, found))

    def _array(self, which: int) -> Array:
        if which not in self._arrays:
            count = len(self._lengths)
            if which == lib.RMAEXT_SAME_SHAPE:
                array = np.empty((count, 1 + self.all.dims), np.int64)
            elif which == lib.RMAEXT_SAME_KEY:
                array = np.empty((count, self.all.key_len), np.uint8)
            elif which == lib.RMAEXT_SAME_PARTS:
                array = np.empty(count, np.uint64)
            else:
                array = np.empty(count, _BYTES[which][1])
            to = ffi.from_buffer(array)
            lib.rmaext_records_column(*self._where, count, which, array.strides[0], to)
            self._arrays[which] = array
        return self._arrays[which]

    def _numbers(self, which: int) -> Column[int]:
        name, _ = _BYTES[which]
        if self.all.same & which:
            return Same(len(self._lengths), int(getattr(self.all, name)))
        return Numbers(self._array(which))

    def records(self, rank: int, itemsize: int) -> Records:
        """Return what is kept of them."""
        count, same = len(self._lengths), self.all.same
        size = self._numbers(lib.RMAEXT_SAME_SIZE)
        shape: Column[tuple[int, ...]]
        if same & lib.RMAEXT_SAME_SHAPE:
            shape = Same(count, self.own.shape)
        elif self.all.dims == 1 and not isinstance(size, Same) and self._all_flat():
            shape = Flat(size, itemsize)
        else:
            shape = Shapes(self._array(lib.RMAEXT_SAME_SHAPE))
        parts: Column[int] = Same(count, self.own.parts)
        if not same & lib.RMAEXT_SAME_PARTS:
            parts = Numbers(self._array(lib.RMAEXT_SAME_PARTS))
        access = self._numbers(lib.RMAEXT_SAME_ACCESS)
        align = self._numbers(lib.RMAEXT_SAME_ALIGN)
        return Records(rank, self.own, size, access, align, shape, parts)

    def _all_flat(self) -> bool:
        return bool((self._array(lib.RMAEXT_SAME_SHAPE)[:, 0] == 1).all())

    def columns(self) -> Columns:
        """Return what C needs of them."""
        key_len = self.all.key_len or 8
        if self.all.same & lib.RMAEXT_SAME_KEY or not self.all.key_len:
            keys = ffi.from_buffer("uint8_t[]", self.own.key.ljust(key_len, b"\0"))
        else:
            keys = ffi.from_buffer("uint8_t[]", self._array(lib.RMAEXT_SAME_KEY))
        same = self.all.same & lib.RMAEXT_SAME
        if not self.all.key_len:
            same |= lib.RMAEXT_SAME_KEY
        size, base, access, align = map(self._column, _BYTES)
        return Columns(same, size, base, access, align, keys, key_len, self)

    def _column(self, which: int) -> Any:
        name, dtype = _BYTES[which]
        if self.all.same & which:
            return ffi.addressof(self.all, name)
        kind = "uint64_t[]" if dtype is np.uint64 else "uint8_t[]"
        return ffi.from_buffer(kind, self._array(which))


class Split(Sequence[bytes]):
    """The records that lie one after another, each cut out when asked."""

    def __init__(self, data: Any, lengths: Array) -> None:
        self._data = data
        self._ends = array("q", lengths.cumsum(dtype=np.int64).tobytes() + bytes(8))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < len(self):
            raise IndexError(rank)
        return bytes(self._data[self._ends[rank - 1] : self._ends[rank]])


def _complain(records: Sequence[bytes], own: Exception | None, itemsize: int) -> NoReturn:
    """Raise what is wrong with them, on all ranks alike."""
    parsed = parse_all(WindowRecord.unpack, settle(records, own))
    same_dtype(parsed)
    lists = [rank for rank, record in enumerate(parsed) if record.parts]
    if lists and len(lists) < len(parsed):
        raise blame(lists, TypeError, "a list of arrays, the other ranks have one array")
    odd = [rank for rank, r in enumerate(parsed) if math.prod(r.shape) * itemsize != r.size]
    if odd:
        raise blame(odd, KeyRecordError, "shape and size of the window do not match")
    lengths = {len(r.key) for r in parsed if r.size}
    raise of_all(KeyRecordError(errno.EPROTO, f"remote keys of {sorted(lengths)} bytes"))


def same_dtype(records: Sequence[WindowRecord]) -> None:
    """Raise, on all ranks alike, unless all have the dtype of the most."""
    names = [record.dtype for record in records]
    if len(set(names)) == 1:
        return
    common = max(dict.fromkeys(names), key=names.count)
    odd = [rank for rank, name in enumerate(names) if name != common]
    if odd:
        text = f"dtype {dtype_words(names[odd[0]])}, the other ranks have {dtype_words(common)}"
        raise blame(odd, TypeError, f"{text}: a window has one dtype on all ranks")
