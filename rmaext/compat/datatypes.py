# SPDX-License-Identifier: BSD-3-Clause
"""What MPI's datatypes are: layouts, in the order of the type map; see csrc/dtype/layout.c."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from .._memory.arrays import atomic_type
from .._native import cmethods
from .._native.cmethods import Layout
from ..errors import Unsupported

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


def _pair(value: Any, index: Any) -> Layout:
    dtype = np.dtype([("value", value), ("index", index)], align=True)
    fields = dtype.fields
    assert fields is not None
    runs = [(at, it.itemsize) for it, at, *_ in fields.values()]
    gaps = sum(length for _, length in runs) < dtype.itemsize
    return Layout(runs, _number(dtype), dtype.itemsize, gaps)


def _plain(kind: str, size: int) -> Layout:
    if not size:
        return _NOTHING
    number = _number(kind if len(kind) > 1 else f"{kind}{size}") if kind else -1
    return Layout([(0, size)], number, size, False)


_NO_RUNS = np.empty((0, 2), np.int64)
_NOTHING = Layout(_NO_RUNS, -1, 0, False)


@cache
def _basics() -> dict[int, Layout]:
    """Return what is known of each predefined type, by handle; and tell C of them.

    MPI must be initialised: until then, nobody has a window or needs them.
    """
    found: dict[int, Layout] = {}
    told = []
    for name in (*_KINDS, *_PAIRS):
        datatype = getattr(MPI, name, MPI.DATATYPE_NULL)
        # no handle: newer than the Open MPI that mpi4py's wheel has been told of
        known = datatype != MPI.DATATYPE_NULL and datatype.handle
        if not known or datatype.Get_size() <= 0:  # Fortran's, in an MPI without Fortran
            continue
        size = datatype.Get_size()
        layout = _pair(*_PAIRS[name]) if name in _PAIRS else _plain(_KINDS[name], size)
        found[datatype.handle] = layout
        assert layout.basic is not None
        told.append((datatype, *layout.basic))
    often = (MPI.DOUBLE, MPI.INT, MPI.LONG, MPI.INT64_T, MPI.FLOAT, MPI.BYTE)
    told.sort(key=lambda entry: entry[0] not in often)  # C looks at them in this order
    at = MPI._addressof(MPI.BYTE) - id(MPI.BYTE)
    cmethods.mpi_types(told, MPI.Datatype, at, MPI._sizeof(MPI.Datatype), _made)
    return found


def _as_a_whole(layout: Layout) -> Layout:
    """Return the layout of a predefined type with its gaps."""
    number, unit, gaps = layout.basic or (-1, 0, False)
    return Layout([(0, unit)], number, unit, gaps)


# -- derived types -------------------------------------------------------------------


def _block_size(length: int, processes: int, argument: int) -> int:
    return -(-length // processes) if argument == MPI.DISTRIBUTE_DFLT_DARG else argument


def _share(length: int, how: int, argument: int, processes: int, place: int) -> Any:
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
        layout = layout.blocks([1], (_share(*dim) * step).tolist())
        step *= dim[0]
    return layout


def _subarray(layout: Layout, given: dict[str, Any]) -> Layout:
    dims = list(zip(given["sizes"], given["subsizes"], given["starts"], strict=True))
    step, first = layout.extent, 0
    for size, count, start in reversed(dims) if given["order"] == MPI.ORDER_C else dims:
        layout = layout.repeat(count, step)
        first += start * step
        step *= size
    return layout.resize(layout.extent, first)


def _derive(combiner: str, old: Layout, given: dict[str, Any]) -> Layout:
    """Return the layout of a type that is made of one other."""
    if combiner in ("DUP", "RESIZED"):
        return old
    if combiner == "CONTIGUOUS":
        return old.repeat(given["count"])
    if combiner in ("VECTOR", "HVECTOR"):
        step = given["stride"] * (old.extent if combiner == "VECTOR" else 1)
        return old.repeat(given["blocklength"]).repeat(given["count"], step)
    if combiner == "SUBARRAY":
        return _subarray(old, given)
    if combiner == "DARRAY":
        return _darray(old, given)
    places = given["displacements"]
    if not combiner.startswith("H"):
        places = [place * old.extent for place in places]
    if combiner.endswith("BLOCK"):
        return old.blocks([given["blocklength"]], places)
    return old.blocks(given["blocklengths"], places)


def _f90(combiner: str, size: int) -> Layout:
    if combiner == "F90_COMPLEX":
        return _plain("c" if size <= 16 else "", size)
    if combiner == "F90_REAL":
        return _plain("f" if size <= 8 else "", size)
    return _plain("i", size)


def _flatten(datatype: MPI.Datatype, whole: bool) -> Layout:
    basic = _basics().get(datatype.handle)
    if basic is None:
        old, combiner, given = datatype.decode()
        if combiner == "NAMED":
            basic = _plain("", datatype.Get_size())
        elif combiner.startswith("F90"):
            basic = _f90(combiner, datatype.Get_size())
        elif combiner == "VALUE_INDEX":
            text = f"pairs of MPI_Type_get_value_index: {datatype.Get_name()}"
            raise Unsupported(errno.EOPNOTSUPP, text)
    if basic is not None:
        return _as_a_whole(basic) if whole else basic
    parts = given.get("datatypes", [old])
    try:
        if combiner == "STRUCT":
            layout = _struct(given["blocklengths"], given["displacements"], parts, whole)
        else:
            layout = _derive(combiner, _flatten(old, whole), given)
    finally:
        for part in parts:
            _free(part)
    return layout.resize(datatype.Get_extent()[1])


def _struct(
    lengths: Sequence[int], places: Sequence[int], parts: Sequence[MPI.Datatype], whole: bool
) -> Layout:
    blocks = zip(lengths, places, parts, strict=True)
    layouts = [_flatten(part, whole).blocks([n], [at]) for n, at, part in blocks if n]
    filled = [layout for layout in layouts if layout.nbytes]
    if len(filled) == 1:
        return filled[0]
    basics = {layout.basic for layout in filled}
    basic = basics.pop() if len(basics) == 1 else None
    runs = np.concatenate([_NO_RUNS, *(layout.runs() for layout in filled)])
    return Layout(runs, *(basic or (-1, 0, False)))


def _free(part: MPI.Datatype) -> None:
    if not part.is_predefined:
        part.Free()  # MPI gave a handle of its own


# -- those that are known --------------------------------------------------------------


@cache
def _keyval() -> int:
    """Return what layouts are kept by. MPI says when it frees a datatype: C forgets it."""
    return MPI.Datatype.Create_keyval(None, cmethods.mpi_forget)


def _made(datatype: MPI.Datatype) -> Layout | None:
    """Return the layout of a datatype that C does not know; None if it was freed."""
    if datatype == MPI.DATATYPE_NULL:
        return None
    if (basic := _basics().get(datatype.handle)) is not None:
        return basic
    kept: Any = datatype.Get_attr(_keyval())
    if isinstance(kept, Layout):
        return kept
    layout = _flatten(datatype, False)
    datatype.Set_attr(_keyval(), layout)
    return layout


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
    Corresponds to MPI_Type_get_envelope and MPI_Type_get_contents.
    """
    _basics()
    layout = cmethods.mpi_layout(datatype)
    if whole and (layout.basic is None or layout.basic[2]):
        layout = _flatten(datatype, True)
    return layout


def is_basic(datatype: MPI.Datatype) -> bool:
    """Return whether it is one of the predefined types whose elements are in a row."""
    return datatype.handle in _basics()
