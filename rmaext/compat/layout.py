# SPDX-License-Identifier: BSD-3-Clause
"""Where data lies: runs of bytes in nested loops, made of others, read and written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib

__all__ = [
    "NOTHING",
    *("Basic", "Layout", "blocks", "head", "join", "loop", "memory_at", "pack", "place", "shift"),
    "unpack",
]

Longs = NDArray[np.int64]
Loop = tuple[int, int]  # turns, and bytes from one to the next


@dataclass(frozen=True)
class Basic:
    """A predefined datatype.

    Attributes
    ----------
    number : int
        C's number of the type for updates, or -1: there are none.
    unit : int
        Bytes from one element to the next.
    pieces : tuple of (int, int)
        Where its bytes are, and how many; more than one if it has gaps.
    """

    number: int
    unit: int
    pieces: tuple[tuple[int, int], ...]

    @property
    def gaps(self) -> bool:
        """Whether there are bytes that belong to no element."""
        return self.pieces != ((0, self.unit),)


@dataclass(frozen=True)
class Layout:
    """Where the data of a number of elements of a datatype lies.

    Runs of bytes, gone through again at the steps of nested loops.

    Attributes
    ----------
    loops : tuple of (int, int)
        Turns and step in bytes; the outermost first.
    offsets, lengths : numpy.ndarray
        Of the runs within the innermost loop, int64. None is empty.
    basic : Basic or None
        What all of it consists of; None if that differs.
    extent : int
        Bytes from one element of the datatype to the next.
    """

    loops: tuple[Loop, ...]
    offsets: Longs
    lengths: Longs
    basic: Basic | None
    extent: int

    @cached_property
    def turns(self) -> int:
        """How often the loops go through the runs."""
        return math.prod(count for count, _ in self.loops)

    @cached_property
    def nbytes(self) -> int:
        """Of the data."""
        return int(self.lengths.sum()) * self.turns

    @cached_property
    def span(self) -> tuple[int, int]:
        """The bytes between which all of it lies: [low, high)."""
        if not self.lengths.size:
            return 0, 0
        low, high = int(self.offsets.min()), int((self.offsets + self.lengths).max())
        for count, step in self.loops:
            reach = (count - 1) * step
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    @cached_property
    def first(self) -> int:
        """Where the first run begins; 0 if there is none."""
        start: int = sum(self.offsets[:1].tolist())
        return start

    @cached_property
    def whole(self) -> bool:
        """Whether it is a single run, or nothing."""
        return self.lengths.size <= 1 and not self.loops

    @cached_property
    def regular(self) -> bool:
        """Whether all runs are of the same length, at the steps of the loops."""
        return self.lengths.size == 1

    @cached_property
    def runs(self) -> tuple[Longs, Longs]:
        """Offset and length of each run, without loops."""
        offsets, lengths = self.offsets, self.lengths
        for count, step in reversed(self.loops):
            offsets = np.add.outer(np.arange(count, dtype=np.int64) * step, offsets).reshape(-1)
        return _merge(offsets, np.tile(lengths, self.turns))

    @cached_property
    def grain(self) -> int:
        """What divides all lengths, and all distances between runs."""
        steps = math.gcd(*(step for _, step in self.loops))
        return math.gcd(
            steps, int(np.gcd.reduce(np.append(self.lengths, self.offsets - self.first)))
        )

    @cached_property
    def _cells(self) -> dict[int, Longs]:
        return {}

    def cells(self, unit: int) -> Longs:
        """Return where each `unit` bytes of the runs are, which it divides."""
        places = self._cells.get(unit)
        if places is None:
            places = _cut(*self.runs, unit)
            if places.size <= _MOST_CELLS:
                self._cells[unit] = places
        return places

    @cached_property
    def c_loops(self) -> tuple[int, Any, Any]:
        """The loops as C wants them: how many, turns, steps."""
        turns, steps = ([loop[k] for loop in self.loops] for k in (0, 1))
        return len(turns), ffi.new("int64_t[]", turns), ffi.new("int64_t[]", steps)

    @cached_property
    def _repeated(self) -> dict[int, Layout]:
        return {}

    def repeat(self, count: int) -> Layout:
        """Return that of so many elements of the datatype."""
        known = self._repeated
        layout = known.get(count)
        if layout is None:
            if len(known) >= _MOST_REPEATED:
                known.clear()
            layout = known[count] = loop(self, count, self.extent)
        return layout


_NONE = np.empty(0, np.int64)
_MOST_CELLS = 1 << 16  # that are remembered, of a layout and unit
_MOST_REPEATED = 4  # counts of a datatype whose layouts are remembered


def _merge(offsets: Longs, lengths: Longs) -> tuple[Longs, Longs]:
    """Make one run of those that follow each other without a gap."""
    if lengths.size < 2:
        return offsets, lengths
    starts = np.empty(lengths.size, bool)
    starts[0] = True
    np.not_equal(offsets[1:], (offsets + lengths)[:-1], out=starts[1:])
    first = np.flatnonzero(starts)
    if first.size == lengths.size:
        return offsets, lengths
    return offsets[first], np.add.reduceat(lengths, first)


def _cut(offsets: Longs, lengths: Longs, unit: int) -> Longs:
    """Return where the elements of runs are."""
    if (lengths == unit).all():
        return offsets
    counts = lengths // unit
    before = np.repeat(np.cumsum(counts) - counts, counts)
    inside = np.arange(before.size, dtype=np.int64) - before
    places: Longs = np.repeat(offsets, counts) + inside * unit
    return places


def _make(offsets: Longs, lengths: Longs, like: Layout) -> Layout:
    some = lengths > 0
    if not some.all():
        offsets, lengths = offsets[some], lengths[some]
    offsets, lengths = _merge(offsets, lengths)
    return replace(like, loops=(), offsets=offsets, lengths=lengths)


def shift(layout: Layout, by: int) -> Layout:
    return replace(layout, offsets=layout.offsets + by) if by else layout


def loop(layout: Layout, count: int, step: int) -> Layout:
    """Put a loop around it."""
    if count == 1 or not layout.lengths.size:
        return layout
    if not count:
        return replace(layout, loops=(), offsets=_NONE, lengths=_NONE)
    if not layout.loops and layout.whole and layout.lengths[0] == step:
        return replace(layout, lengths=layout.lengths * count)
    outer = layout.loops[:1]
    if outer and outer[0][0] * outer[0][1] == step:
        loops = ((outer[0][0] * count, outer[0][1]), *layout.loops[1:])
    else:
        loops = ((count, step), *layout.loops)
    return replace(layout, loops=loops)


def place(layout: Layout, places: Longs) -> Layout:
    """Put it at several places, one after another."""
    if not places.size or not layout.lengths.size:
        return loop(layout, 0, 0)
    steps = np.diff(places)
    if not steps.size or (steps == steps[0]).all():
        step = int(steps[0]) if steps.size else 0
        return shift(loop(layout, places.size, step), int(places[0]))
    offsets, lengths = layout.runs
    offsets = np.add.outer(places, offsets).reshape(-1)
    return _make(offsets, np.tile(lengths, places.size), layout)


def blocks(layout: Layout, counts: Sequence[int], displacements: Sequence[int]) -> Layout:
    """Put so many elements at each displacement, in bytes."""
    number, places = np.array(counts, np.int64), np.array(displacements, np.int64)
    number, places = number[number > 0], places[number > 0]
    if not number.size or not layout.lengths.size:
        return loop(layout, 0, 0)
    if (number == number[0]).all():
        return place(layout.repeat(int(number[0])), places)
    if layout.whole and layout.nbytes == layout.extent:
        return _make(places + layout.offsets[0], number * layout.extent, layout)
    before = np.repeat(np.cumsum(number) - number, number)
    inside = np.arange(before.size, dtype=np.int64) - before
    return place(layout, np.repeat(places, number) + inside * layout.extent)


def join(layouts: Sequence[Layout]) -> Layout:
    """Put one after another."""
    some = [layout for layout in layouts if layout.lengths.size]
    if not some:
        return replace(layouts[0], loops=(), offsets=_NONE, lengths=_NONE) if layouts else NOTHING
    basic = some[0].basic if all(layout.basic == some[0].basic for layout in some) else None
    runs = [layout.runs for layout in some]
    offsets, lengths = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    return replace(_make(offsets, lengths, some[0]), basic=basic)


def head(layout: Layout, nbytes: int) -> Layout:
    """Return the part that its first bytes make up."""
    if nbytes >= layout.nbytes:
        return layout
    offsets, lengths = layout.runs
    before = np.cumsum(lengths) - lengths
    some = before < nbytes
    return _make(offsets[some], np.minimum(lengths, nbytes - before)[some], layout)


NOTHING = Layout((), _NONE, _NONE, None, 0)


# -- from there, and to there ----------------------------------------------------------


def memory_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Return memory of this process, which the caller keeps, as an array."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(ffi.buffer(ffi.cast("char *", address), nbytes), np.uint8)


def _strided(layout: Layout, base: int) -> NDArray[Any]:
    """Return the data of a regular layout at an address, as an array in that memory."""
    low, high = layout.span
    first, run = layout.first, int(layout.lengths[0])
    item = math.gcd(run, 8)
    memory = memory_at(base + low, high - low)
    counts, steps = zip(*layout.loops, strict=True) if layout.loops else ((), ())
    return np.ndarray((*counts, run // item), f"u{item}", memory, first - low, (*steps, item))


def _copy_runs(kind: int, layout: Layout, base: int, data: NDArray[np.uint8]) -> None:
    offsets, lengths = (np.ascontiguousarray(array) for array in layout.runs)
    longs = ffi.typeof("int64_t[]")
    lib.rmaext_pack(
        kind,
        ffi.cast("void *", base),
        ffi.from_buffer(longs, offsets),
        ffi.from_buffer(longs, lengths),
        lengths.size,
        ffi.from_buffer(data),
    )


def pack(layout: Layout, base: int) -> NDArray[np.uint8]:
    """Return the data at an address in one piece; a copy, unless it is in one there.

    Corresponds to MPI_Pack.
    """
    if not layout.nbytes:
        return np.empty(0, np.uint8)
    if layout.whole:
        return memory_at(base + layout.first, layout.nbytes)
    if layout.regular:
        return np.ascontiguousarray(_strided(layout, base)).reshape(-1).view(np.uint8)
    data = np.empty(layout.nbytes, np.uint8)
    _copy_runs(lib.RMAEXT_PUT, layout, base, data)
    return data


def unpack(layout: Layout, base: int, data: NDArray[np.uint8]) -> None:
    """Write data in one piece to where the layout at an address has it.

    Corresponds to MPI_Unpack.
    """
    if not layout.nbytes:
        return
    if layout.whole:
        memory_at(base + layout.first, layout.nbytes)[:] = data
    elif layout.regular:
        target = _strided(layout, base)
        target[...] = data.view(target.dtype).reshape(target.shape)
    else:
        _copy_runs(lib.RMAEXT_GET, layout, base, data)
