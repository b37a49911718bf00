# SPDX-License-Identifier: BSD-3-Clause
"""Requests of operations on many places, which may be of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._memory import arrays
from .._native._lib import ffi, lib
from .._native.cmethods import Owner
from .core import Array
from .request import Request, done_at_once

if TYPE_CHECKING:
    from .core import WindowCore

__all__ = ["BundleRequest"]


class BundleRequest(Request):
    """A `Request` whose operations, a bundle in C, are one for its owner."""

    __slots__ = ("_ranks",)

    _ranks: Array

    @classmethod
    def begin(
        cls,
        window: WindowCore[Any],
        call: str,
        ranks: Array,
        what: dict[str, Any],
        values: Array | None,
        result: Array | None,
        error: Callable[[int, int], Exception],
        scalar: bool = False,
    ) -> Request:
        """Begin a bundle. The request, or the fabric, keeps values and result.

        `what` are the other fields of `struct rmaext_places_call`. `error` returns what to
        raise for C's code and the index of the place at fault, or -1.
        """
        fabric = window._fabric
        request = None
        if fabric is not None:
            fabric.settle()
            request = cls._begun(window, call, (-1, 0, 0), result, scalar)
            request._ranks = ranks
        ended = ffi.new("int *") if request is None else request._flag
        given = {
            "values": ffi.NULL if values is None else arrays.address(values),
            "results": ffi.NULL if result is None else arrays.address(result),
            "ended": ended,
        }
        asked = ffi.new("struct rmaext_places_call *", what | given)
        bad, op = ffi.new("int64_t *"), Owner(fabric, window._handle, (values, result, ended))
        if request is not None:
            request._op = op
        code = lib.rmaext_start_many(window._handle, asked, op.slot, bad)
        if code == lib.RMAEXT_PENDING and request is not None:
            return request
        if request is not None:
            request._end()
        if code:
            raise error(code, bad[0])
        return done_at_once(result[()] if scalar and result is not None else result)

    def cancel(self) -> bool:
        """Return False: some of it may have been sent, so it is done or goes on."""
        self._check_not_freed("cancel")
        return False

    def _rank(self) -> int:
        op = self._op
        return -1 if op is None or not op.slot[0] else int(lib.rmaext_op_rank(op.slot[0]))

    def _target(self) -> tuple[int, int]:
        return id(self), -1  # its ranks are looked at by itself

    def _where(self) -> str:
        rank = self._rank()
        place = f", rank {rank}" if rank >= 0 else ""
        return f"{self._call}: window {self._window._name}{place}, {self._ranks.size} places"
