# SPDX-License-Identifier: BSD-3-Clause
"""MPI.Win's operations on a window of bytes.

The plain cases are those of csrc/python/compat.c; all others, and all errors, are here.
`win` is a `Win`: of it `_window`, a window of bytes, and `_units`, the displacement
unit of each rank, are used. Errors of rmaext are raised as they are.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._native import cmethods
from .._native._lib import ffi, lib
from .._ops.operations import OPERATIONS, operation
from .._window.dynamic import DynamicWindow
from ..errors import AlignmentError, Unsupported
from .buffers import Part, Target, check_disp, part_of, target_of
from .errors import error
from .layout import Basic, Layout, head, unpack

if TYPE_CHECKING:
    from .._ops.request import Request

__all__ = [
    "accumulate",
    "begin_accumulate",
    "begin_get",
    "begin_get_accumulate",
    "begin_put",
    "compare_and_swap",
    "fetch_and_op",
    "get",
    "get_accumulate",
    "put",
]

Bytes = NDArray[np.uint8]

_PUT, _GET, _UPDATE = lib.RMAEXT_PUT, lib.RMAEXT_GET, lib.RMAEXT_UPDATE
_NO_OP, _CSWAP = lib.RMAEXT_NO_OP, lib.RMAEXT_CSWAP
_NULL = ffi.NULL
_LONGS = ffi.typeof("int64_t[]")
_PROC_NULL = MPI.PROC_NULL
_SUM = MPI.SUM
_MOST_LOOPS = 16  # of one call of C; more are sent as offsets
_LONG_RUN = 4096  # bytes: worth a call of its own
_LONG_UPDATE = 1024
_NAMES = {number: name for name, number in OPERATIONS.items()}

# MPI's operations are objects that stay; those by another name are compared
_numbers = {id(getattr(MPI, name.upper())): number for name, number in OPERATIONS.items()}
cmethods.mpi_ops([(getattr(MPI, name.upper()), number) for name, number in OPERATIONS.items()])
_mpi_put, _mpi_get, _mpi_update, _mpi_swap = (
    cmethods.mpi_put,
    cmethods.mpi_get,
    cmethods.mpi_update,
    cmethods.mpi_swap,
)


def put(win: Any, origin: Any, target_rank: int, target: Any = None) -> None:
    """Carry out MPI_Put; the origin may be used again at once."""
    if not _mpi_put(win._window, win._units, origin, target_rank, target):
        _put(win, origin, target_rank, target)


def get(win: Any, origin: Any, target_rank: int, target: Any = None) -> None:
    """Carry out MPI_Get; complete when it returns."""
    if not _mpi_get(win._window, win._units, origin, target_rank, target):
        _get(win, origin, target_rank, target)


def accumulate(
    win: Any, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = _SUM
) -> None:
    """Carry out MPI_Accumulate; the origin may be used again at once."""
    number = _numbers.get(id(op), -1)
    if not _mpi_update(win._window, win._units, origin, None, target_rank, target, number):
        _accumulate(win, origin, None, target_rank, target, op)


def get_accumulate(
    win: Any, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = _SUM
) -> None:
    """Carry out MPI_Get_accumulate; complete when it returns."""
    number = _numbers.get(id(op), -1)
    if not _mpi_update(win._window, win._units, origin, result, target_rank, target, number):
        _accumulate(win, origin, result, target_rank, target, op, True)


def fetch_and_op(
    win: Any, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: MPI.Op = _SUM
) -> None:
    """Carry out MPI_Fetch_and_op; complete when it returns."""
    number = _numbers.get(id(op), -1)
    target = (target_disp, 1)
    if not _mpi_update(win._window, win._units, origin, result, target_rank, target, number):
        _fetch_and_op(win, origin, result, target_rank, target_disp, op)


def compare_and_swap(
    win: Any, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0
) -> None:
    """Carry out MPI_Compare_and_swap; complete when it returns."""
    where = (target_rank, target_disp)
    if not _mpi_swap(win._window, win._units, origin, compare, result, *where):
        _compare_and_swap(win, origin, compare, result, *where)


def begin_put(win: Any, origin: Any, target_rank: int, target: Any = None) -> list[Request]:
    """Carry out MPI_Rput. No requests: it is done, as far as MPI has it."""
    return _put(win, origin, target_rank, target, begin=True)


def begin_get(win: Any, origin: Any, target_rank: int, target: Any = None) -> list[Request]:
    """Carry out MPI_Rget; as `begin_put`."""
    return _get(win, origin, target_rank, target, begin=True)


def begin_accumulate(
    win: Any, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = _SUM
) -> list[Request]:
    """Carry out MPI_Raccumulate; as `begin_put`."""
    return _accumulate(win, origin, None, target_rank, target, op, begin=True)


def begin_get_accumulate(
    win: Any, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = _SUM
) -> list[Request]:
    """Carry out MPI_Rget_accumulate; as `begin_put`."""
    return _accumulate(win, origin, result, target_rank, target, op, True, begin=True)


# -- what is not plain ---------------------------------------------------------------


def _put(win: Any, origin: Any, rank: int, target: Any, begin: bool = False) -> list[Request]:
    if rank == _PROC_NULL:
        return []
    part = part_of(origin)
    here = part.layout()
    place = _Place(win, "put", rank, target_of(target, part), given=here.nbytes)
    data = part.data(here)
    if begin and here.whole and place.plain:
        return _listed(place.window.rput(data, place.rank, place.first))
    place.write(data)
    return []


def _get(win: Any, origin: Any, rank: int, target: Any, begin: bool = False) -> list[Request]:
    if rank == _PROC_NULL:
        return []
    part = part_of(origin, readonly=False)
    place = _Place(win, "get", rank, target_of(target, part))
    here = part.layout()
    place.check_fits("the origin", place.layout.nbytes, here.nbytes)
    here = head(here, place.layout.nbytes)
    if not here.whole:
        data = np.empty(here.nbytes, np.uint8)
        place.read(data)
        unpack(here, part.address, data)
        return []
    data = part.data(here)
    if begin and place.plain:
        return _listed(place.window.rget(place.rank, place.first, out=data))
    place.read(data)
    return []


def _accumulate(
    win: Any,
    origin: Any,
    result: Any,
    rank: int,
    target: Any,
    op: MPI.Op,
    fetch: bool = False,
    begin: bool = False,
) -> list[Request]:
    if rank == _PROC_NULL:
        return []
    call = "get_accumulate" if fetch else "accumulate"
    number = _operation(call, op)
    part = part_of(origin)
    place = _Place(win, call, rank, target_of(target, part), whole=True)
    basic = place.basic(number)
    operand = None if number == _NO_OP else _elements(place, "origin", part, basic)
    if not fetch:
        return place.update(number, basic, operand, None, begin)
    there = part_of(result, readonly=False)
    here = there.layout(whole=True)
    if number == _NO_OP and not place.layout.nbytes:
        return []  # into whatever room, as in MPIs
    if here.whole:
        old = _elements(place, "result", there, basic)
        return place.update(number, basic, operand, old, begin)
    _check_like(place, "result", here, basic)
    old = np.empty(here.nbytes, np.uint8)
    place.update(number, basic, operand, old)
    unpack(here, there.address, old)
    return []


def _fetch_and_op(win: Any, origin: Any, result: Any, rank: int, disp: int, op: MPI.Op) -> None:
    check_disp(disp)
    if rank == _PROC_NULL:
        return
    number = _operation("fetch_and_op", op)
    part, there = part_of(origin), part_of(result, readonly=False)
    _check_single(origin=part, result=there)
    place = _Place(win, "fetch_and_op", rank, target_of((disp, 1), part), whole=True)
    basic = place.basic(number)
    operand = _elements(place, "origin", part, basic)
    place.update(number, basic, operand, _elements(place, "result", there, basic))


def _compare_and_swap(
    win: Any, origin: Any, compare: Any, result: Any, rank: int, disp: int
) -> None:
    check_disp(disp)
    if rank == _PROC_NULL:
        return
    part, wanted = part_of(origin), part_of(compare)
    there = part_of(result, readonly=False)
    _check_single(origin=part, compare=wanted, result=there)
    place = _Place(win, "compare_and_swap", rank, target_of((disp, 1), part), whole=True)
    basic = place.basic(_CSWAP)
    operand, compared, old = (_elements(place, "origin", it, basic) for it in (part, wanted, there))
    place.update(_CSWAP, basic, operand, old, compare=compared)


def _listed(request: Request) -> list[Request]:
    """Return the request, unless it is done; if it has failed, raise that."""
    if not request.done:
        return [request]
    request.wait()
    return []


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


def _check_like(place: _Place, what: str, layout: Layout, basic: Basic) -> None:
    """Refuse other elements than those of the target."""
    if layout.lengths.size and layout.basic != basic:
        raise error(MPI.ERR_TYPE, f"{place.call}: {what} and target are of different types")
    place.check_size(what, layout.nbytes)


def _elements(place: _Place, what: str, part: Part, basic: Basic) -> Bytes:
    """Return elements in one piece; see `Part.data`."""
    layout = part.layout(whole=True)
    _check_like(place, what, layout, basic)
    return part.data(layout)


# -- the other side --------------------------------------------------------------------


class _Place:
    """Elements in the window of a rank."""

    def __init__(
        self,
        win: Any,
        call: str,
        rank: int,
        target: Target,
        whole: bool = False,
        given: int | None = None,  # bytes, of which the target is as much as they fill
    ) -> None:
        self.window = window = win._window
        self.call = call
        window._check_open(call)
        self.rank = number = window._rank(rank, call)
        self.layout = target.layout(whole)
        if given is not None:
            self.check_fits("the target", given, self.layout.nbytes)
            self.layout = head(self.layout, given)
        layout = self.layout
        self.base: int = target.disp * win._units[number]
        low, high = layout.span
        # bounds of all of it, so that nothing is done by halves
        window._place(call, number, self.base + low, high - low)
        self.dynamic = isinstance(window, DynamicWindow)
        self.plain = layout.whole and not self.dynamic

    @property
    def first(self) -> int:
        """Where the first run begins, in bytes."""
        return self.base + self.layout.first

    def where(self) -> tuple[int, int, int]:
        """Return the place, for messages."""
        return self.rank, self.first, self.layout.nbytes

    def check_fits(self, where: str, given: int, room: int) -> None:
        """Refuse more bytes than there is room for; fewer are all that is moved, as in MPIs."""
        if given > room:
            text = f"{self.call}: {given} bytes are too long for the {room} of {where}"
            raise error(MPI.ERR_TRUNCATE, text)

    def check_size(self, what: str, nbytes: int) -> None:
        """Refuse another length of the target than of the other side."""
        if nbytes != self.layout.nbytes:
            text = f"{self.call}: {what} has {nbytes} bytes, the target {self.layout.nbytes}"
            raise error(MPI.ERR_TRUNCATE, text)

    # -- bytes

    def write(self, data: Bytes) -> None:
        """Put data in one piece there."""
        if not data.size:
            return
        if self.plain:
            self.window.put(data, self.rank, self.first)
        elif not self._loops(_PUT, data):
            self._runs(_PUT, data)

    def read(self, data: Bytes) -> None:
        """Get what is there, in one piece."""
        if not data.size:
            return
        if self.plain:
            self.window.get(self.rank, self.first, out=data)
        elif not self._loops(_GET, data):
            self._runs(_GET, data)

    def _loops(self, kind: int, data: Bytes) -> bool:
        """Carry it out as a part of an array, if it is one."""
        layout, window = self.layout, self.window
        if self.dynamic or not layout.regular or len(layout.loops) > _MOST_LOOPS:
            return False
        unit = int(layout.lengths[0])
        loops = layout.c_loops
        pointer = ffi.from_buffer(data)
        if lib.rmaext_strided_whole(window._handle, self.rank, unit, *loops):
            arguments = (kind, unit, *loops, _NULL, pointer)
            window._run(self.call, self.where(), (data,), lib.rmaext_strided, *arguments)
            return True
        there = (window._handle, self.rank, self.first)
        self._run_many((data,), lib.rmaext_strided_many, (*there, kind, unit, *loops, pointer))
        return True

    def _runs(self, kind: int, data: Bytes) -> None:
        """Carry it out run by run."""
        layout = self.layout
        if not self.dynamic and data.size >= _LONG_RUN * layout.lengths.size * layout.turns:
            offsets, lengths = layout.runs
            at = 0
            for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
                piece, at = data[at : at + length], at + length
                if kind == _PUT:
                    self.window.put(piece, self.rank, self.base + offset)
                else:
                    self.window.get(self.rank, self.base + offset, out=piece)
            return
        unit = int(np.gcd.reduce(layout.runs[1]))
        self._many(kind, unit, data if kind == _PUT else None, data if kind == _GET else None)

    def _many(
        self,
        kind: int,
        unit: int,
        values: Bytes | None,
        results: Bytes | None,
        op: int = 0,
        number: int = 0,
        scale: int = 1,
    ) -> None:
        """Carry out one operation on each `unit` bytes; `scale` divides their places."""
        layout = self.layout
        if not (layout.grain % unit or self.first % unit):
            scale = unit  # which C has loops for
        places = np.ascontiguousarray((layout.cells(unit) + self.base) // scale)
        ranks = np.array([self.rank], np.int64)
        arguments = (
            self.window._handle,
            kind,
            op,
            number,
            unit,
            scale,
            places.size,
            ffi.from_buffer(_LONGS, ranks),
            ffi.from_buffer(_LONGS, places),
            _NULL if values is None else ffi.from_buffer(values),
            _NULL if results is None else ffi.from_buffer(results),
        )
        self._run_many((ranks, places, values, results), lib.rmaext_many_at, arguments)

    def _run_many(
        self, buffers: tuple[Any, ...], function: Any, arguments: tuple[Any, ...]
    ) -> None:
        ranks = np.array([self.rank])
        code, _ = self.window._run_many(self.call, ranks, arguments, buffers, function)
        if code:
            self.window._many_failed(self.call, code)

    # -- updates

    def basic(self, op: int) -> Basic:
        """Return of what type the elements are, if it has such an operation."""
        basic = self.layout.basic
        if basic is None:
            if self.layout.lengths.size:
                raise error(MPI.ERR_TYPE, f"{self.call}: the target is not all of one type")
            return Basic(lib.RMAEXT_UINT8, 1, ((0, 1),))
        if basic.number < 0 or not lib.rmaext_update_valid(op, basic.number):
            text = f"{self.call}: no {_NAMES.get(op, 'compare_and_swap')} on such a datatype"
            raise Unsupported(errno.EOPNOTSUPP, text, call=self.call, rank=self.rank)
        return basic

    def update(
        self,
        op: int,
        basic: Basic,
        operand: Bytes | None,
        old: Bytes | None,
        begin: bool = False,
        compare: Bytes | None = None,
    ) -> list[Request]:
        """Update the elements there; `old` gets what they were."""
        layout, window = self.layout, self.window
        if not layout.lengths.size or (operand is None and old is None):
            return []
        if operand is None:
            operand = old  # of no meaning; C wants memory
        assert operand is not None
        runs = layout.lengths.size * layout.turns
        at_once = window._fabric is None or window._divided
        if begin and runs == 1 and not at_once:
            return _listed(
                window._begin(
                    f"r{self.call}",
                    (self.rank, self.first, operand.size // basic.unit),
                    _UPDATE,
                    op,
                    basic.number,
                    operand=operand,
                    result=old,
                )
            )
        align = lib.rmaext_type_align(basic.number)
        address: int = window._records[self.rank].address
        if layout.grain % align or (address + self.first) % align:
            where = window._where(self.call, self.where())
            text = f"{where}: not aligned to {align}"
            raise AlignmentError(errno.EFAULT, text, call=self.call, rank=self.rank)
        if runs == 1 or layout.nbytes >= _LONG_UPDATE * runs or address % align:
            self._update_runs(op, basic, operand, old, compare)
        else:
            self._many(_UPDATE, basic.unit, operand, old, op, basic.number, align)
        return []

    def _update_runs(
        self,
        op: int,
        basic: Basic,
        operand: Bytes,
        old: Bytes | None,
        compare: Bytes | None,
    ) -> None:
        offsets, lengths = self.layout.runs
        at = 0
        for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            stop = at + length
            count = length // basic.unit
            given = [None if it is None else it[at:stop] for it in (operand, compare, old)]
            data = [_NULL if it is None else ffi.from_buffer(it) for it in given]
            place = (self.rank, self.base + offset, count)
            buffers = tuple(it for it in given if it is not None)
            arguments = (op, basic.number, *data, count)
            self.window._run(self.call, place, buffers, lib.rmaext_update, *arguments)
            at = stop
