# SPDX-License-Identifier: BSD-3-Clause
"""MPI.Win's operations on a window of bytes.

The plain cases are those of csrc/python/compat/win.c; all others, and all errors, are here.
`win` is a `Win`: of it `_window`, a window of bytes, and `_units`, the displacement
unit of each rank, are used. Errors of rmaext are raised as they are. With `begin` a call returns
the requests of what it has begun; if there are none, it is done, as far as MPI has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._native import cmethods
from .._native._lib import lib
from .._native.cmethods import Layout
from .._ops.atomic_ops import OPERATIONS, operation
from .buffers import Part, check_disp, part_of, target_of, unpack
from .errors import error
from .target_elements import Basic, TargetElements, unless_done

if TYPE_CHECKING:
    from .._ops.request import Request

__all__ = ["accumulate", "compare_and_swap", "fetch_and_op", "get", "get_accumulate", "put"]

Bytes = NDArray[np.uint8]

_NO_OP, _CSWAP = lib.RMAEXT_NO_OP, lib.RMAEXT_CSWAP
_PROC_NULL = MPI.PROC_NULL
_SUM = MPI.SUM

# MPI's operations are objects that stay; those by another name are compared
_numbers = {id(getattr(MPI, name.upper())): number for name, number in OPERATIONS.items()}
cmethods.mpi_ops([(getattr(MPI, name.upper()), number) for name, number in OPERATIONS.items()])


def put(win: Any, origin: Any, rank: int, target: Any = None, begin: bool = False) -> list[Request]:
    """Carry out MPI_Put; the origin may be used again at once."""
    if rank == _PROC_NULL:
        return []
    part = part_of(origin, win)
    here = part.layout()
    place = TargetElements(win, "put", rank, target_of(target, part), given=here.nbytes)
    data = part.data(here)
    if begin and here.whole and place.plain:
        return unless_done(place.window.rput(data, place.rank, place.first))
    place.write(data)
    return []


def get(win: Any, origin: Any, rank: int, target: Any = None, begin: bool = False) -> list[Request]:
    """Carry out MPI_Get; complete when it returns."""
    if rank == _PROC_NULL:
        return []
    part = part_of(origin, win, readonly=False)
    place = TargetElements(win, "get", rank, target_of(target, part))
    here = part.layout()
    place.check_fits("the origin", place.layout.nbytes, here.nbytes)
    here = here.head(place.layout.nbytes)
    if not here.whole:
        data = np.empty(here.nbytes, np.uint8)
        place.read(data)
        unpack(here, part.address, data)
        part.land(here)
        return []
    data = part.data(here)
    if begin and place.plain and part.landing is None:
        return unless_done(place.window.rget(place.rank, place.first, out=data))
    place.read(data)
    part.land(here)
    return []


def accumulate(
    win: Any, origin: Any, rank: int, target: Any = None, op: MPI.Op = _SUM, begin: bool = False
) -> list[Request]:
    """Carry out MPI_Accumulate; the origin may be used again at once."""
    return _update(win, origin, None, rank, target, op, False, begin)


def get_accumulate(
    win: Any,
    origin: Any,
    result: Any,
    rank: int,
    target: Any = None,
    op: MPI.Op = _SUM,
    begin: bool = False,
) -> list[Request]:
    """Carry out MPI_Get_accumulate; complete when it returns."""
    return _update(win, origin, result, rank, target, op, True, begin)


def _update(
    win: Any,
    origin: Any,
    result: Any,
    rank: int,
    target: Any,
    op: MPI.Op,
    fetch: bool,
    begin: bool,
) -> list[Request]:
    if rank == _PROC_NULL:
        return []
    call = "get_accumulate" if fetch else "accumulate"
    number = _operation(call, op)
    part = part_of(origin, win)
    place = TargetElements(win, call, rank, target_of(target, part), whole=True)
    basic = place.basic(number)
    operand = None if number == _NO_OP else _elements(place, "origin", part, basic)
    if not fetch:
        return place.update(number, basic, operand, None, begin)
    there = part_of(result, win, readonly=False)
    here = there.layout(whole=True)
    if number == _NO_OP and not place.layout.nbytes:
        return []  # into whatever room, as in MPIs
    if here.whole:
        old = _elements(place, "result", there, basic)
        begun = place.update(number, basic, operand, old, begin and there.landing is None)
        there.land(here)
        return begun
    _check_like(place, "result", here, basic)
    old = np.empty(here.nbytes, np.uint8)
    place.update(number, basic, operand, old)
    unpack(here, there.address, old)
    there.land(here)
    return []


def fetch_and_op(
    win: Any, origin: Any, result: Any, rank: int, disp: int = 0, op: MPI.Op = _SUM
) -> None:
    """Carry out MPI_Fetch_and_op; complete when it returns."""
    disp = check_disp(disp)
    if rank == _PROC_NULL:
        return
    number = _operation("fetch_and_op", op)
    part, there = part_of(origin, win), part_of(result, win, readonly=False)
    _check_single(origin=part, result=there)
    place = TargetElements(win, "fetch_and_op", rank, target_of((disp, 1), part), whole=True)
    basic = place.basic(number)
    operand = _elements(place, "origin", part, basic)
    place.update(number, basic, operand, _elements(place, "result", there, basic))
    there.land(there.layout(whole=True))


def compare_and_swap(
    win: Any, origin: Any, compare: Any, result: Any, rank: int, disp: int = 0
) -> None:
    """Carry out MPI_Compare_and_swap; complete when it returns."""
    disp = check_disp(disp)
    if rank == _PROC_NULL:
        return
    part, wanted = part_of(origin, win), part_of(compare, win)
    there = part_of(result, win, readonly=False)
    _check_single(origin=part, compare=wanted, result=there)
    place = TargetElements(win, "compare_and_swap", rank, target_of((disp, 1), part), whole=True)
    basic = place.basic(_CSWAP)
    operand, compared, old = (_elements(place, "origin", it, basic) for it in (part, wanted, there))
    place.update(_CSWAP, basic, operand, old, compare=compared)
    there.land(there.layout(whole=True))


# -- checks ----------------------------------------------------------------------------


def _operation(call: str, op: Any) -> int:
    number = _numbers.get(id(op))
    if number is not None:
        return number
    if not isinstance(op, MPI.Op):
        raise TypeError(f"{call}: op must be an MPI.Op, not {type(op).__name__}")
    try:
        return operation(op)
    except ValueError:
        raise error(MPI.ERR_OP, f"{call}: only MPI's own operations") from None


def _check_single(**parts: Part) -> None:
    for name, part in parts.items():
        if part.count != 1:
            raise ValueError(f"{name}: expecting a single element, got {part.count}")
    first, *others = parts.items()
    for name, part in others:
        if part.datatype != first[1].datatype:
            raise ValueError(f"mismatch in {first[0]} and {name} MPI datatypes")


def _check_like(place: TargetElements, what: str, layout: Layout, basic: Basic) -> None:
    """Refuse other elements than those of the target."""
    if layout.nbytes and layout.basic != basic:
        raise error(MPI.ERR_TYPE, f"{place.call}: {what} and target are of different types")
    place.check_size(what, layout.nbytes)


def _elements(place: TargetElements, what: str, part: Part, basic: Basic) -> Bytes:
    """Return elements in one piece; see `Part.data`."""
    layout = part.layout(whole=True)
    _check_like(place, what, layout, basic)
    return part.data(layout)
