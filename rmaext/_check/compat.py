# SPDX-License-Identifier: BSD-3-Clause
"""The operations of `rmaext.compat.Win`, by the rules of MPI: a flush completes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .._memory import arrays
from ..compat.buffers import check_disp, part_of, runs_of, target_of
from ..compat.target_elements import TargetElements
from ..compat.win import Win
from . import memory as requests
from . import messages
from .clock import BUSY
from .races import FLUSH, READ, REQUEST, UPDATE, WRITE
from .shadow import Shadow
from .spans import Spans, runs

__all__ = ["follow"]

_NOTED = {  # where the target is among the arguments, what it does, and whether it returns values
    "Put": (1, WRITE),
    "Get": (1, READ),
    "Accumulate": (1, UPDATE),
    "Get_accumulate": (2, UPDATE),
    "Fetch_and_op": (2, UPDATE),
    "Compare_and_swap": (3, UPDATE),
    "Rput": (1, WRITE),
    "Rget": (1, READ),
    "Raccumulate": (1, UPDATE),
    "Rget_accumulate": (2, UPDATE),
}
_TYPES = {arrays.atomic_type(dtype): str(dtype) for dtype in arrays.atomic_dtypes()}
_FLUSHES = ("Flush", "Flush_all", "Flush_local", "Flush_local_all")


def _elements(win: Any, origin: Any, rank: int, target: Any, kind: int) -> tuple[Spans, str]:
    """Return the bytes that an operation touches, and the type of its elements."""
    part = part_of(origin, win)
    given = part.layout().nbytes if kind == WRITE else None
    place = TargetElements(win, "check", rank, target_of(target, part), given=given)
    offsets, lengths = runs_of(place.layout)
    basic = place.layout.basic
    return runs(place.base + offsets, lengths), _TYPES.get(basic[0], str(basic)) if basic else ""


def _noting(name: str, original: Callable[..., Any]) -> Any:
    at, kind = _NOTED[name]
    lone = name in ("Fetch_and_op", "Compare_and_swap")

    @functools.wraps(original)
    def method(self: Any, origin: Any, *args: Any, **keywords: Any) -> Any:
        shadow: Shadow | None = getattr(self._window, "_shadow", None)
        if BUSY.now or shadow is None:
            return original(self, origin, *args, **keywords)
        BUSY.noted = True
        try:  # it may take a lock, which is followed
            result = original(self, origin, *args, **keywords)
        finally:
            BUSY.noted = False
        BUSY.now = True
        try:
            rank = keywords.get("target_rank", args[at - 1] if len(args) >= at else None)
            target = args[at] if len(args) > at else None
            target = keywords.get("target_disp" if lone else "target", target)
            target = (check_disp(target or 0), 1) if lone else target
            if rank is None or rank == MPI.PROC_NULL:
                return result
            op = keywords.get("op", args[-1] if args else None)
            does = kind
            if kind == UPDATE and isinstance(op, MPI.Op) and op == MPI.NO_OP:
                does |= READ
            shape = args[0] if name == "Get_accumulate" and does & READ else origin
            spans, dtype = _elements(self, shape, int(rank), target, kind)
            dtype = dtype if kind & UPDATE else ""
            ends = REQUEST if name.startswith("R") else FLUSH
            access = shadow.note(int(rank), does, spans, name, ends=ends, dtype=dtype)
            if access is not None and name.startswith("R"):
                begun = requests.Begun(shadow, (name, access.site), kind == READ)
                begun.accesses, begun.remote = [access], [access]
                requests.keep(begun)
                messages.await_end(result, begun)
            return result
        finally:
            BUSY.now = False

    return method


def _flushing(name: str, original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        result = original(self, *args, **keywords)
        shadow: Shadow | None = getattr(self._window, "_shadow", None)
        if shadow is not None and not BUSY.now:
            rank = keywords.get("rank", args[0] if args else None)
            shadow.flushed(None if rank is None else [int(rank)], locally="local" in name)
        return result

    return method


def follow() -> None:
    """Follow the windows of rmaext.compat from now on."""
    for name in _NOTED:
        setattr(Win, name, _noting(name, getattr(Win, name)))
    for name in _FLUSHES:
        setattr(Win, name, _flushing(name, getattr(Win, name)))
