# SPDX-License-Identifier: BSD-3-Clause
"""What MPI's datatypes are: runs of bytes, in the order of the type map."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .. import _hot
from .._lib import ffi, lib
from ..errors import Unsupported
from ..memory import atomic_type

__all__ = ["Basic", "Layout", "is_basic", "layout_of", "memory_at", "pack", "unpack"]

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
            layout = known[count] = _loop(self, count, self.extent)
        return layout


_NONE = np.empty(0, np.int64)
_MOST_TOLD = 1 << 12  # runs of a datatype that C knows too
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


def _shift(layout: Layout, by: int) -> Layout:
    return replace(layout, offsets=layout.offsets + by) if by else layout


def _loop(layout: Layout, count: int, step: int) -> Layout:
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


def _place(layout: Layout, places: Longs) -> Layout:
    """Put it at several places, one after another."""
    if not places.size or not layout.lengths.size:
        return _loop(layout, 0, 0)
    steps = np.diff(places)
    if not steps.size or (steps == steps[0]).all():
        step = int(steps[0]) if steps.size else 0
        return _shift(_loop(layout, places.size, step), int(places[0]))
    offsets, lengths = layout.runs
    offsets = np.add.outer(places, offsets).reshape(-1)
    return _make(offsets, np.tile(lengths, places.size), layout)


def _blocks(layout: Layout, counts: Sequence[int], displacements: Sequence[int]) -> Layout:
    """Put so many elements at each displacement, in bytes."""
    number, places = np.array(counts, np.int64), np.array(displacements, np.int64)
    number, places = number[number > 0], places[number > 0]
    if not number.size or not layout.lengths.size:
        return _loop(layout, 0, 0)
    if (number == number[0]).all():
        return _place(layout.repeat(int(number[0])), places)
    if layout.whole and layout.nbytes == layout.extent:
        return _make(places + layout.offsets[0], number * layout.extent, layout)
    before = np.repeat(np.cumsum(number) - number, number)
    inside = np.arange(before.size, dtype=np.int64) - before
    return _place(layout, np.repeat(places, number) + inside * layout.extent)


def _join(layouts: Sequence[Layout]) -> Layout:
    """Put one after another."""
    some = [layout for layout in layouts if layout.lengths.size]
    if not some:
        return replace(layouts[0], loops=(), offsets=_NONE, lengths=_NONE) if layouts else _NOTHING
    basic = some[0].basic if all(layout.basic == some[0].basic for layout in some) else None
    runs = [layout.runs for layout in some]
    offsets, lengths = (np.concatenate(arrays) for arrays in zip(*runs, strict=True))
    return replace(_make(offsets, lengths, some[0]), basic=basic)


# -- predefined types --------------------------------------------------------------

_INTEGERS = """
    CHAR SIGNED_CHAR SHORT INT LONG LONG_LONG INT8_T INT16_T INT32_T INT64_T AINT COUNT OFFSET
    CHARACTER INTEGER INTEGER1 INTEGER2 INTEGER4 INTEGER8
    LOGICAL LOGICAL1 LOGICAL2 LOGICAL4 LOGICAL8
"""
_UNSIGNED = """
    BYTE WCHAR UNSIGNED_CHAR UNSIGNED_SHORT UNSIGNED UNSIGNED_LONG UNSIGNED_LONG_LONG
    UINT8_T UINT16_T UINT32_T UINT64_T
"""
_BOOLS = "C_BOOL CXX_BOOL"
_REALS = "FLOAT DOUBLE REAL DOUBLE_PRECISION REAL2 REAL4 REAL8 FLOAT16_T"
_COMPLEX = """
    C_FLOAT_COMPLEX C_DOUBLE_COMPLEX CXX_FLOAT_COMPLEX CXX_DOUBLE_COMPLEX COMPLEX DOUBLE_COMPLEX
    COMPLEX8 COMPLEX16
"""
# REAL16 is no long double
_KINDS = {
    **dict.fromkeys(_INTEGERS.split(), "i"),
    **dict.fromkeys(_UNSIGNED.split(), "u"),
    **dict.fromkeys(_BOOLS.split(), "b"),
    **dict.fromkeys(_REALS.split(), "f"),
    **dict.fromkeys(_COMPLEX.split(), "c"),
    "LONG_DOUBLE": np.dtype(np.longdouble).str[1:],
}
_PAIRS = {
    "FLOAT_INT": ("f", "i"),
    "DOUBLE_INT": ("d", "i"),
    "LONG_INT": ("l", "i"),
    "TWOINT": ("i", "i"),
    "SHORT_INT": ("h", "i"),
    "LONG_DOUBLE_INT": ("g", "i"),
}


def _number(dtype: np.dtype[Any] | str) -> int:
    number = atomic_type(np.dtype(dtype))
    return -1 if number is None else number


def _pair(value: Any, index: Any) -> Basic:
    dtype = np.dtype([("value", value), ("index", index)], align=True)
    fields = [dtype[name] for name in ("value", "index")]
    assert dtype.fields is not None
    second = dtype.fields["index"][1]
    pieces: tuple[tuple[int, int], ...] = ((0, fields[0].itemsize), (second, fields[1].itemsize))
    if second == fields[0].itemsize:
        pieces = ((0, second + fields[1].itemsize),)
    return Basic(_number(dtype), dtype.itemsize, pieces)


def _plain(kind: str, size: int) -> Basic:
    return Basic(_number(kind if len(kind) > 1 else f"{kind}{size}"), size, ((0, size),))


@cache
def _basics() -> dict[int, Basic]:
    """Return what is known of each predefined type, by handle; and tell C of them.

    MPI must be initialised: until then, nobody has a window or needs them.
    """
    found: dict[int, Basic] = {}
    told = []
    for name in (*_KINDS, *_PAIRS):
        datatype = getattr(MPI, name, MPI.DATATYPE_NULL)
        size = 0 if datatype == MPI.DATATYPE_NULL else datatype.Get_size()
        if size <= 0:  # Fortran's, in an MPI without Fortran
            continue
        basic = _pair(*_PAIRS[name]) if name in _PAIRS else _plain(_KINDS[name], size)
        found[datatype.handle] = basic
        told.append((datatype, basic.number, basic.unit, basic.gaps))
    often = (MPI.DOUBLE, MPI.INT, MPI.LONG, MPI.INT64_T, MPI.FLOAT, MPI.BYTE)
    told.sort(key=lambda entry: entry[0] not in often)  # C looks at them in this order
    _hot.mpi_types(told)
    return found


def _basic_layout(basic: Basic, whole: bool) -> Layout:
    pieces = ((0, basic.unit),) if whole else basic.pieces
    offsets, lengths = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    return Layout((), offsets, lengths, basic, basic.unit)


_NOTHING = Layout((), _NONE, _NONE, None, 0)


# -- derived types -------------------------------------------------------------------


def _block_size(length: int, processes: int, argument: int) -> int:
    return -(-length // processes) if argument == MPI.DISTRIBUTE_DFLT_DARG else argument


def _share(length: int, how: int, argument: int, processes: int, place: int) -> Longs:
    """Return the indices of a dimension that one of so many processes has."""
    if how == MPI.DISTRIBUTE_NONE:
        return np.arange(length, dtype=np.int64)
    if how == MPI.DISTRIBUTE_BLOCK:
        size = _block_size(length, processes, argument)
        return np.arange(min(place * size, length), min((place + 1) * size, length), dtype=np.int64)
    size = 1 if argument == MPI.DISTRIBUTE_DFLT_DARG else argument
    indices = np.arange(length, dtype=np.int64)
    return np.flatnonzero(indices // size % processes == place)


def _darray(layout: Layout, given: dict[str, Any]) -> Layout:
    rank, places = given["rank"], []
    for processes in reversed(given["psizes"]):  # the grid is in C order
        places.append(rank % processes)
        rank //= processes
    columns = zip(
        given["gsizes"],
        given["distribs"],
        given["dargs"],
        given["psizes"],
        reversed(places),
        strict=True,
    )
    dims = list(columns)
    step = layout.extent
    for dim in reversed(dims) if given["order"] == MPI.ORDER_C else dims:
        layout = _place(layout, _share(*dim) * step)
        step *= dim[0]
    return layout


def _subarray(layout: Layout, given: dict[str, Any]) -> Layout:
    dims = list(zip(given["sizes"], given["subsizes"], given["starts"], strict=True))
    step, first = layout.extent, 0
    for size, count, start in reversed(dims) if given["order"] == MPI.ORDER_C else dims:
        layout = _loop(layout, count, step)
        first += start * step
        step *= size
    return _shift(layout, first)


def _derive(combiner: str, old: Layout, given: dict[str, Any]) -> Layout:
    """Return the layout of a type that is made of one other."""
    extent = old.extent
    if combiner in ("DUP", "RESIZED"):
        return old
    if combiner == "CONTIGUOUS":
        return old.repeat(given["count"])
    if combiner in ("VECTOR", "HVECTOR"):
        step = given["stride"] * (extent if combiner == "VECTOR" else 1)
        return _loop(old.repeat(given["blocklength"]), given["count"], step)
    if combiner == "SUBARRAY":
        return _subarray(old, given)
    if combiner == "DARRAY":
        return _darray(old, given)
    places = np.array(given["displacements"], np.int64)
    if not combiner.startswith("H"):
        places *= extent
    if combiner.endswith("BLOCK"):
        return _place(old.repeat(given["blocklength"]), places)
    return _blocks(old, given["blocklengths"], places.tolist())


def _f90(combiner: str, size: int) -> Basic:
    if combiner == "F90_COMPLEX":
        return _plain("c" if size <= 16 else "V", size)
    if combiner == "F90_REAL":
        return _plain("f" if size <= 8 else "V", size)
    return _plain("i", size)


def _flatten(datatype: MPI.Datatype, whole: bool) -> Layout:
    basic = _basics().get(datatype.handle)
    if basic is None:
        old, combiner, given = datatype.decode()
        size = datatype.Get_size()
        if combiner == "NAMED":
            basic = Basic(-1, size, ((0, size),))
        elif combiner.startswith("F90"):
            basic = _f90(combiner, size)
        elif combiner == "VALUE_INDEX":
            text = f"pairs of MPI_Type_get_value_index: {datatype.Get_name()}"
            raise Unsupported(errno.EOPNOTSUPP, text)
    if basic is not None:
        return _basic_layout(basic, whole) if basic.unit else _NOTHING
    parts = given.get("datatypes", [old])
    try:
        if combiner == "STRUCT":
            blocks = zip(given["blocklengths"], given["displacements"], parts, strict=True)
            layout = _join(
                [_shift(_flatten(part, whole).repeat(n), at) for n, at, part in blocks if n]
            )
        else:
            layout = _derive(combiner, _flatten(old, whole), given)
    finally:
        for part in parts:
            if not part.is_predefined:
                part.Free()  # MPI gave handles of its own
    return replace(layout, extent=datatype.Get_extent()[1])


# -- those that are known --------------------------------------------------------------

_known: dict[tuple[int, bool], Layout] = {}


@cache
def _keyvals() -> tuple[int, int]:
    """Return what layouts of derived types are kept by.

    MPI deletes attributes with the datatype: a later one with its handle has none.
    """
    create = MPI.Datatype.Create_keyval
    return create(None, _forget), create()


def layout_of(datatype: MPI.Datatype, whole: bool = False) -> Layout:
    """Return the layout of one element of a datatype.

    Parameters
    ----------
    datatype : MPI.Datatype
        Not DATATYPE_NULL. It need not be committed.
    whole : bool
        Whether elements with gaps, which are pairs, count as a whole: as updates
        need them. Else their bytes count only.

    Notes
    -----
    Corresponds to MPI_Type_get_envelope and MPI_Type_get_contents. It is computed
    once for each datatype.
    """
    layout = _layout_of(datatype, False)
    if whole and (layout.basic is None or layout.basic.gaps):
        layout = _layout_of(datatype, True)
    return layout


def _layout_of(datatype: MPI.Datatype, whole: bool) -> Layout:
    handle = datatype.handle
    layout = _known.get((handle, whole))
    if layout is None and handle in _basics():
        layout = _known[handle, whole] = _flatten(datatype, whole)
    if layout is not None:
        return layout
    kept: Any = datatype.Get_attr(_keyvals()[whole])
    layout = kept
    if layout is None:
        layout = _flatten(datatype, whole)
        datatype.Set_attr(_keyvals()[whole], layout)
    if not whole and 0 < layout.lengths.size <= _MOST_TOLD:
        _tell(datatype, layout)
    return layout


def _tell(datatype: MPI.Datatype, layout: Layout) -> None:
    """Let C put and get elements of it."""
    runs = [array.astype(np.int64).tobytes() for array in (layout.offsets, layout.lengths)]
    known = (layout.extent, layout.nbytes, layout.span, layout.loops)
    _hot.mpi_derived(datatype, *known, *runs)


def _forget(datatype: MPI.Datatype, keyval: int, layout: Layout) -> None:
    """Let C forget its object: the datatype was freed."""
    _hot.mpi_forget()


def is_basic(datatype: MPI.Datatype) -> bool:
    """Return whether it is one of the predefined types whose elements are in a row."""
    return datatype.handle in _basics()


# -- the local side --------------------------------------------------------------------


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
    lib.rmaext_runs_copy(
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
