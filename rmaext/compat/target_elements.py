# SPDX-License-Identifier: BSD-3-Clause
"""Elements in the window of a rank that a datatype names, and what is done to them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from .._memory.arrays import call_of, part_call
from .._native._lib import ffi, lib
from .._ops.atomic_ops import OPERATIONS
from .._ops.many import Call, Places
from .._window.dynamic import DynamicWindow
from ..errors import AlignmentError, Unsupported
from .buffers import Target, runs_of
from .errors import error

if TYPE_CHECKING:
    from .._ops.request import Request

__all__ = ["TargetElements", "unless_done"]

Bytes = NDArray[np.uint8]
Basic = tuple[int, int, bool]  # see `Layout.basic`

_PUT, _GET, _UPDATE = lib.RMAEXT_PUT, lib.RMAEXT_GET, lib.RMAEXT_UPDATE
_LONG_UPDATE = 1024
_NAMES = {number: name for name, number in OPERATIONS.items()}


def unless_done(request: Request) -> list[Request]:
    """Return the request in a list, unless it is done; if it has failed, raise its error."""
    if not request.done:
        return [request]
    request.wait()
    return []


class TargetElements:
    """Elements in the window of a rank: where they are, checked in full, and operations on them."""

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
            self.layout = self.layout.head(given)
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
        loops = self.layout.loops
        if self.dynamic or loops is None:
            return False
        unit, dims = loops
        turns, steps = dims.T.tolist()
        with_part = part_call(kind, unit, turns, steps, (), ffi.from_buffer(data))
        self.window._run(self.call, self.where(), (data,), with_part[0])
        return True

    def _runs(self, kind: int, data: Bytes) -> None:
        """Carry it out run by run."""
        offsets, lengths = runs_of(self.layout)
        if self.dynamic:
            unit = int(np.gcd.reduce(lengths))
            self._many(kind, unit, data if kind == _PUT else None, data if kind == _GET else None)
        elif kind == _PUT:
            self.window.put_ranges(self.rank, offsets + self.base, lengths, data)
        else:
            self.window.get_ranges(self.rank, offsets + self.base, lengths, data)

    def _each_run(self) -> Iterator[tuple[int, int]]:
        """Return the offset from the base and the length of each run."""
        return zip(*(it.tolist() for it in runs_of(self.layout)), strict=True)

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
        offsets, lengths = runs_of(layout)
        cells = lengths // unit  # of each run
        inside = np.arange(cells.sum()) - np.repeat(np.cumsum(cells) - cells, cells)
        at = (np.repeat(offsets + self.base, cells) + inside * unit) // scale
        call = Call(self.call, kind, op, results is not None, number)
        places = Places(np.array(self.rank), at, None, at.shape, at.size)
        code, _ = self.window._run_many(call, places, values, results, unit=unit, scale=scale)
        if code:
            self.window._many_failed(self.call, code)

    # -- updates

    def basic(self, op: int) -> Basic:
        """Return of what type the elements are, if it has such an operation."""
        basic = self.layout.basic
        if basic is None:
            if self.layout.nbytes:
                raise error(MPI.ERR_TYPE, f"{self.call}: the target is not all of one type")
            return lib.RMAEXT_UINT8, 1, False
        if basic[0] < 0 or not lib.rmaext_update_valid(op, basic[0]):
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
        number, unit, _ = basic
        if not layout.nbytes or (operand is None and old is None):
            return []
        if operand is None:
            operand = old  # of no meaning; C wants memory
        assert operand is not None
        runs = layout.number
        at_once = window._fabric is None or window._divided
        if begin and runs == 1 and not at_once:
            count = operand.size // unit
            what = call_of(_UPDATE, count, operand, None, old, op, number)
            place = (self.rank, self.first, count)
            return unless_done(window._begin(f"r{self.call}", place, (operand, old), what))
        align = lib.rmaext_type_align(number)
        address: int = window._records[self.rank].address
        if layout.grain % align or (address + self.first) % align:
            where = window._where(self.call, self.where())
            text = f"{where}: not aligned to {align}"
            raise AlignmentError(errno.EFAULT, text, call=self.call, rank=self.rank)
        if runs == 1 or layout.nbytes >= _LONG_UPDATE * runs or address % align:
            self._update_runs(op, basic, operand, old, compare)
        else:
            self._many(_UPDATE, unit, operand, old, op, number, align)
        return []

    def _update_runs(
        self,
        op: int,
        basic: Basic,
        operand: Bytes,
        old: Bytes | None,
        compare: Bytes | None,
    ) -> None:
        number, unit, _ = basic
        at = 0
        for offset, length in self._each_run():
            stop = at + length
            count = length // unit
            given = [None if it is None else it[at:stop] for it in (operand, compare, old)]
            place = (self.rank, self.base + offset, count)
            buffers = tuple(it for it in given if it is not None)
            what = call_of(_UPDATE, count, given[0], given[1], given[2], op, number)
            self.window._run(self.call, place, buffers, what)
            at = stop
