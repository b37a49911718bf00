# SPDX-License-Identifier: BSD-3-Clause
"""What MPI's datatypes are: layouts, in the order of the type map."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from .._memory.arrays import atomic_type
from .._native import cmethods
from ..errors import Unsupported
from .layout import NOTHING, Basic, Layout, Longs, blocks, join, loop, place, shift

__all__ = ["is_basic", "layout_of"]

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
# REAL16 is no long double, nor COMPLEX32 two
_KINDS = {
    **dict.fromkeys(_INTEGERS.split(), "i"),
    **dict.fromkeys(_UNSIGNED.split(), "u"),
    **dict.fromkeys(_BOOLS.split(), "b"),
    **dict.fromkeys(_REALS.split(), "f"),
    **dict.fromkeys(_COMPLEX.split(), "c"),
    "LONG_DOUBLE": np.dtype(np.longdouble).str[1:],
    "C_LONG_DOUBLE_COMPLEX": np.dtype(np.clongdouble).str[1:],
    "CXX_LONG_DOUBLE_COMPLEX": np.dtype(np.clongdouble).str[1:],
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
        # no handle: newer than the Open MPI that mpi4py's wheel has been told of
        known = datatype != MPI.DATATYPE_NULL and datatype.handle
        if not known or datatype.Get_size() <= 0:  # Fortran's, in an MPI without Fortran
            continue
        size = datatype.Get_size()
        basic = _pair(*_PAIRS[name]) if name in _PAIRS else _plain(_KINDS[name], size)
        found[datatype.handle] = basic
        told.append((datatype, basic.number, basic.unit, basic.gaps))
    often = (MPI.DOUBLE, MPI.INT, MPI.LONG, MPI.INT64_T, MPI.FLOAT, MPI.BYTE)
    told.sort(key=lambda entry: entry[0] not in often)  # C looks at them in this order
    cmethods.mpi_types(told)
    return found


def _basic_layout(basic: Basic, whole: bool) -> Layout:
    pieces = ((0, basic.unit),) if whole else basic.pieces
    offsets, lengths = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    return Layout((), offsets, lengths, basic, basic.unit)


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
        layout = place(layout, _share(*dim) * step)
        step *= dim[0]
    return layout


def _subarray(layout: Layout, given: dict[str, Any]) -> Layout:
    dims = list(zip(given["sizes"], given["subsizes"], given["starts"], strict=True))
    step, first = layout.extent, 0
    for size, count, start in reversed(dims) if given["order"] == MPI.ORDER_C else dims:
        layout = loop(layout, count, step)
        first += start * step
        step *= size
    return shift(layout, first)


def _derive(combiner: str, old: Layout, given: dict[str, Any]) -> Layout:
    """Return the layout of a type that is made of one other."""
    extent = old.extent
    if combiner in ("DUP", "RESIZED"):
        return old
    if combiner == "CONTIGUOUS":
        return old.repeat(given["count"])
    if combiner in ("VECTOR", "HVECTOR"):
        step = given["stride"] * (extent if combiner == "VECTOR" else 1)
        return loop(old.repeat(given["blocklength"]), given["count"], step)
    if combiner == "SUBARRAY":
        return _subarray(old, given)
    if combiner == "DARRAY":
        return _darray(old, given)
    places = np.array(given["displacements"], np.int64)
    if not combiner.startswith("H"):
        places *= extent
    if combiner.endswith("BLOCK"):
        return place(old.repeat(given["blocklength"]), places)
    return blocks(old, given["blocklengths"], places.tolist())


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
        return _basic_layout(basic, whole) if basic.unit else NOTHING
    parts = given.get("datatypes", [old])
    try:
        if combiner == "STRUCT":
            layout = _struct(given["blocklengths"], given["displacements"], parts, whole)
        else:
            layout = _derive(combiner, _flatten(old, whole), given)
    finally:
        for part in parts:
            _free(part)
    return replace(layout, extent=datatype.Get_extent()[1])


def _struct(
    lengths: Sequence[int], places: Sequence[int], parts: Sequence[MPI.Datatype], whole: bool
) -> Layout:
    blocks = zip(lengths, places, parts, strict=True)
    return join([shift(_flatten(part, whole).repeat(n), at) for n, at, part in blocks if n])


def _free(part: MPI.Datatype) -> None:
    if not part.is_predefined:
        part.Free()  # MPI gave a handle of its own


# -- those that are known --------------------------------------------------------------

_MOST_TOLD = 1 << 12  # runs of a datatype that C knows too

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
    cmethods.mpi_derived(datatype, *known, *runs)


def _forget(datatype: MPI.Datatype, keyval: int, layout: Layout) -> None:
    """Let C forget its object: the datatype was freed."""
    cmethods.mpi_forget()


def is_basic(datatype: MPI.Datatype) -> bool:
    """Return whether it is one of the predefined types whose elements are in a row."""
    return datatype.handle in _basics()
