# SPDX-License-Identifier: BSD-3-Clause
"""The arithmetic of an `Array`: blocks of ranks, and which elements of which a key means."""

from __future__ import annotations

import errno
import itertools
import math
import operator
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ... import BoundsError

__all__ = ["Blocks", "Piece", "Plan", "Selection", "per_axis"]

_MOST = 1 << 60  # what numbers of elements are less than: so their sums are 64-bit integers
_AXES = 20  # as many as MPICH's MPI_Dims_create takes

Shape = tuple[int, ...]
Key = tuple[Any, ...]
Span = tuple[int, slice, slice]  # of an axis: a block, which of it, and where that belongs


class Plan(NamedTuple):
    """How an array is divided: what all ranks must say alike."""

    shape: Shape
    cuts: tuple[Shape, ...]  # of each axis, the end of each block
    ghosts: Shape
    periodic: tuple[bool, ...]

    @classmethod
    def make(
        cls, size: int, shape: Any, grid: Any, splits: Any, ghosts: Any, periodic: Any
    ) -> Plan:
        """Check what a program says of an array on so many ranks, and fill in what it does not."""
        shape = per_axis("shape", shape, None, operator.index)
        ndim = len(shape)
        wide = per_axis("ghosts", 0 if ghosts is None else ghosts, ndim, operator.index)
        for what, numbers in ("shape", shape), ("ghosts", wide):
            if any(not 0 <= number < _MOST for number in numbers):
                raise ValueError(f"{what}={numbers}: no number may be negative, or 2**60")
        splits = [None] * ndim if splits is None else splits
        if not all(
            it is None or np.iterable(it) for it in (splits if np.iterable(splits) else [0])
        ):
            text = "for each axis a sequence of where it is cut, or None, as [[10, 20], None]"
            raise TypeError(f"splits={splits!r}: must have {text}")
        cuts = [None if it is None else [*map(operator.index, it)] for it in splits]
        if len(cuts) != ndim:
            raise ValueError(f"splits has {len(cuts)} entries, for {ndim} axes: one for each")
        given = list(per_axis("grid", 0 if grid is None else grid, ndim, operator.index))
        for axis, (cut, n) in enumerate(zip(cuts, shape, strict=True)):
            if cut is not None and [0, *cut, n] != sorted([0, *cut, n]):
                raise ValueError(f"splits of axis {axis}, {cut}, are not from 0 to {n}, in order")
            if cut is not None and given[axis] not in (0, len(cut) + 1):
                text = f"grid has {given[axis]} blocks along axis {axis}, splits {len(cut) + 1}"
                raise ValueError(f"{text}: leave one of them out")
            given[axis] = given[axis] if cut is None else len(cut) + 1
        found = _chosen(size, shape, given)
        ends = [
            (*cut, n) if cut is not None else _even(n, count)
            for cut, n, count in zip(cuts, shape, found, strict=True)
        ]
        return cls(shape, tuple(ends), wide, per_axis("periodic", periodic, ndim, bool))


def per_axis(what: str, given: Any, ndim: int | None, kind: Any) -> tuple[Any, ...]:
    """Return an entry for each axis; one number stands for all."""
    try:
        entries = (
            tuple(map(kind, given))
            if np.iterable(given)
            else (kind(given),) * (1 if ndim is None else ndim)
        )
    except TypeError:
        raise TypeError(f"{what}={given!r}: must be an integer, or one for each axis") from None
    if ndim is not None and len(entries) != ndim:
        raise ValueError(f"{what}={given!r} has {len(entries)} entries, for {ndim} axes")
    return entries


def _even(n: int, count: int) -> Shape:
    """Return the ends of blocks that differ by one at most, as numpy.array_split has them."""
    each, more = divmod(n, count)
    return tuple(each * (i + 1) + min(i + 1, more) for i in range(count))


def _chosen(size: int, shape: Shape, grid: list[int]) -> Shape:
    """Fill in the zeros of a grid: MPI_Dims_create, more blocks along longer axes."""
    fixed = math.prod(count for count in grid if count)
    if min(grid, default=0) < 0 or not 0 < fixed <= size:
        text = f"grid={tuple(grid)}: {fixed} blocks, and {size} ranks: at most one for each rank"
        raise ValueError(text)
    left = size // fixed
    free = sorted((k for k, count in enumerate(grid) if not count), key=lambda k: -shape[k])
    for k in free[_AXES:]:
        grid[k] = 1
    del free[_AXES:]
    while free:
        counts = MPI.Compute_dims(left, len(free))
        short = [k for k, count in zip(free, counts, strict=True) if count > max(1, shape[k])]
        if not short:
            for k, count in zip(free, counts, strict=True):
                grid[k] = count
            break
        grid[short[-1]] = max(1, shape[short[-1]])
        left //= grid[short[-1]]
        free.remove(short[-1])
    return tuple(grid)


class Piece(NamedTuple):
    """What of a selection one rank holds."""

    rank: int
    key: Key  # slices of its padded block
    place: Key  # slices of the selection


class Selection(NamedTuple):
    """The elements that a key means."""

    ranges: tuple[range, ...]  # of each axis of the array
    shape: Shape  # of NumPy's result
    back: Key  # makes an array of one dimension for each range of one of that shape
    scalar: bool  # NumPy returns an element


class Axis(NamedTuple):
    """The blocks along an axis."""

    ends: list[int]
    begins: list[int]
    shifts: list[int]  # of a block: what makes an index of the whole one of the padded block
    size: int
    blocks: int


class Blocks:
    """Where each element of an array lies: on which rank, and where in its padded block.

    Rank r has block `numpy.unravel_index(r, grid)`; ranks behind the grid have none, which is
    one of no elements.
    """

    def __init__(self, plan: Plan) -> None:
        self.shape, self.ghosts, self.periodic = plan.shape, plan.ghosts, plan.periodic
        self.grid = tuple(map(len, plan.cuts))
        self.axes = []
        for ends, n, width in zip(plan.cuts, plan.shape, plan.ghosts, strict=True):
            begins = [0, *ends[:-1]]
            self.axes.append(
                Axis([*ends], begins, [width - begin for begin in begins], n, len(ends))
            )
        self._tables = [
            (np.array(axis.ends), np.array(axis.shifts), np.diff([0, *axis.ends]) + 2 * width)
            for axis, width in zip(self.axes, self.ghosts, strict=True)
        ]
        self.count = math.prod(self.grid)

    # -- blocks ----------------------------------------------------------------------

    def block(self, rank: int) -> Shape | None:
        """Return which block a rank has along each axis."""
        if rank >= self.count:
            return None
        found = []
        for count in reversed(self.grid):
            rank, k = divmod(rank, count)
            found.append(k)
        return tuple(reversed(found))

    def where(self, rank: int) -> tuple[slice, ...]:
        """Return the slices of a rank's block in the whole."""
        block = self.block(rank)
        if block is None:
            return (slice(0, 0),) * len(self.shape)
        return tuple(
            slice(ax.begins[k], ax.ends[k]) for ax, k in zip(self.axes, block, strict=True)
        )

    def lengths(self, rank: int) -> Shape:
        """Return the shape of a rank's block; (0,) for none of an array without axes."""
        if not self.shape and rank:
            return (0,)
        return tuple(it.stop - it.start for it in self.where(rank))

    def padded(self, rank: int) -> Shape:
        """Return the same with ghosts, which a block without elements has not."""
        lengths = self.lengths(rank)
        if 0 in lengths:
            return lengths
        return tuple(n + 2 * width for n, width in zip(lengths, self.ghosts, strict=True))

    def inside(self, rank: int) -> Key:
        """Return the slices of the block in the padded one."""
        lengths = self.lengths(rank)
        if 0 in lengths or not self.shape:
            return (...,)
        return tuple(slice(w, w + n) for n, w in zip(lengths, self.ghosts, strict=True))

    # -- keys ------------------------------------------------------------------------

    def one(self, key: Any) -> Key | None:
        """Return rank and key of a window, if a plain key means elements of one block; else None.

        Plain: a tuple of an integer or a slice for each axis, whose bounds count from the start.
        """
        if type(key) is not tuple or len(key) != len(self.shape):
            return None
        rank = 0
        found: list[Any] = [0]
        for it, (ends, _, shifts, n, count) in zip(key, self.axes):  # noqa: B905 - speed
            if type(it) is slice:
                if it.step is not None:
                    return None
                first = 0 if it.start is None else operator.index(it.start)
                last = n if it.stop is None else operator.index(it.stop)
                if not 0 <= first < last <= n:
                    return None
                k = bisect_right(ends, first)
                if last > ends[k]:
                    return None
                found.append(slice(first + shifts[k], last + shifts[k]))
            elif type(it) is int and 0 <= it < n:
                k = bisect_right(ends, it)
                found.append(it + shifts[k])
            else:
                return None
            rank = rank * count + k
        found[0] = rank
        return tuple(found)

    def offset(self, one: Key) -> int:
        """Return where the element is that a key of a window means, rank first."""
        rank, *indices = one
        offset: int = 0
        for index, n in zip(indices, self.padded(rank), strict=True):
            offset = offset * n + index
        return offset

    def select(self, call: str, key: Any) -> Selection:
        """Return what a key means, as NumPy has it, without index arrays."""
        items = [*key] if isinstance(key, tuple) else [key]
        dots = sum(it is Ellipsis for it in items)
        if dots > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        more = len(self.shape) - sum(it is not None and it is not Ellipsis for it in items)
        if more < 0:
            text = f"{call}: too many indices, {len(self.shape) - more}, for shape {self.shape}"
            raise BoundsError(errno.ERANGE, text, call=call)
        at = next((i for i, it in enumerate(items) if it is Ellipsis), len(items))
        items[at : at + 1] = [slice(None)] * more
        ranges: list[range] = []
        shape: list[int] = []
        back: list[Any] = [...]  # an array, and no element, where there are no axes
        for it in items:
            if it is None:
                shape.append(1)
                back.append(0)
                continue
            n = self.shape[len(ranges)]
            if isinstance(it, slice):
                ranges.append(range(n)[it])
                shape.append(len(ranges[-1]))
                back.append(slice(None))
            else:
                i = self.index(call, it, len(ranges))
                ranges.append(range(i, i + 1))
                back.append(None)
        return Selection(tuple(ranges), tuple(shape), tuple(back), not (shape or dots))

    def index(self, call: str, given: Any, axis: int) -> int:
        """Return an index along an axis, counted from the start."""
        if isinstance(given, bool | np.bool_) or np.ndim(given):
            text = "takes integers, slices, None and ...: of index arrays and masks, points() reads"
            raise IndexError(f"{call}: the key {text} the elements")
        try:
            i = operator.index(given)
        except TypeError:
            raise IndexError(f"{call}: {given!r} is no index: use integers and slices") from None
        n = self.shape[axis]
        if not -n <= i < n:
            raise self.outside(call, i, axis)
        return i % n

    def outside(self, call: str, index: int, axis: int) -> BoundsError:
        """Return the error for an index that the array does not have."""
        text = f"{call}: index {index} is out of bounds for axis {axis} of shape {self.shape}"
        return BoundsError(errno.ERANGE, text, call=call)

    def pieces(self, ranges: tuple[range, ...]) -> list[Piece]:
        """Return the parts of a selection that lie on one rank each."""
        spans = [_cut(axis, along) for axis, along in zip(self.axes, ranges, strict=True)]
        return [self._piece(parts) for parts in itertools.product(*spans)]

    def _piece(self, parts: Sequence[Span]) -> Piece:
        rank = 0
        for (block, _, _), count in zip(parts, self.grid, strict=True):
            rank = rank * count + block
        return Piece(rank, tuple(it[1] for it in parts), tuple(it[2] for it in parts))

    # -- elements --------------------------------------------------------------------

    def places(self, indices: Sequence[Any]) -> tuple[Any, Any]:
        """Return ranks and offsets of elements, whose indices along each axis are broadcast."""
        ranks: Any = np.zeros((), np.int64)
        offsets: Any = ranks
        for index, (ends, shifts, lengths) in zip(indices, self._tables, strict=True):
            block = np.searchsorted(ends, index, "right")
            ranks = ranks * len(ends) + block
            offsets = offsets * lengths[block] + (index + shifts[block])
        return ranks, offsets

    def every(self, ranges: tuple[range, ...]) -> tuple[Any, Any]:
        """Return ranks and offsets of the elements of a selection, in C order."""
        ranks, offsets = self.places(np.ix_(*map(_indices, ranges)))
        return np.broadcast_to(ranks, offsets.shape), offsets

    def runs(self, ranges: tuple[range, ...]) -> tuple[Any, Any, Any]:
        """Return ranks, offsets and counts of runs of elements, one run after another in C order.

        Elements of a run are neighbours in the memory of a rank.
        """
        counts: Any = np.ones((), np.int64)
        if ranges and ranges[-1] and ranges[-1].step == 1:
            first, last = ranges[-1].start, ranges[-1].stop
            starts = np.unique([first, *(e for e in self.axes[-1].ends if first < e < last)])
            counts = np.diff([*starts, last])
            ranks, offsets = self.places(np.ix_(*map(_indices, ranges[:-1]), starts))
        else:
            ranks, offsets = self.every(ranges)
        return (
            np.broadcast_to(ranks, offsets.shape),
            offsets,
            np.broadcast_to(counts, offsets.shape),
        )

    # -- ghosts ----------------------------------------------------------------------

    def halo(self, rank: int) -> list[Piece]:
        """Return what the ghosts of a rank's block hold: each piece a part of a block.

        Ranks, slices of their padded blocks, and slices of that of `rank`.
        """
        block = self.block(rank)
        if block is None or 0 in self.lengths(rank) or not any(self.ghosts):
            return []
        every = zip(self.axes, self.ghosts, self.periodic, block, strict=True)
        spans = [_around(*along) for along in every]
        pieces = map(self._piece, itertools.product(*spans))
        inside = self.inside(rank)
        return [piece for piece in pieces if piece.place != inside]


def _indices(along: range) -> NDArray[np.int64]:
    return np.arange(along.start, along.stop, along.step)


def _cut(axis: Axis, along: range) -> list[Span]:
    """Return the parts of a range of indices that lie in one block each."""
    if not along:
        return []
    start, step = along.start, along.step
    low, high = sorted((start, along[-1]))
    found = []
    for k in range(bisect_right(axis.ends, low), bisect_right(axis.ends, high) + 1):
        begin, end = axis.begins[k], axis.ends[k]
        if step > 0:
            i, j = -((start - begin) // step), -((start - end) // step)
        else:
            i, j = (start - end) // -step + 1, (start - begin) // -step + 1
        i, j = max(i, 0), min(j, len(along))
        if i < j:
            inside, shift = along[i:j], axis.shifts[k]
            stop = inside.stop + shift
            key = slice(inside.start + shift, None if stop < 0 else stop, step)
            found.append((k, key, slice(i, j)))
    return found


def _around(axis: Axis, width: int, periodic: bool, block: int) -> list[Span]:
    """Return what lies along an axis of a block and its ghosts, the block itself in one part."""
    begin, end = axis.begins[block], axis.ends[block]
    found = []
    for first, last in (begin - width, begin), (begin, end), (end, end + width):
        if not periodic:
            first, last = max(first, 0), min(last, axis.size)
        while first < last:
            index = first % axis.size
            k = bisect_right(axis.ends, index)
            length = min(last - first, axis.ends[k] - index)
            there, here = index + axis.shifts[k], first + axis.shifts[block]
            found.append((k, slice(there, there + length), slice(here, here + length)))
            first += length
    return found
