# SPDX-License-Identifier: BSD-3-Clause
"""Requests of parts of an array that a key of NumPy's indexing names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._memory.values import made_of
from .._native._lib import lib
from .._runtime.failures import from_c
from ..typing import ScalarT
from .core import Array
from .index_key import Part
from .indexing import IndexOperations, fit
from .many import Call, Places
from .request import Request, done_at_once

__all__ = ["KeyedRequests", "check_alone"]

_PUT, _GET = lib.RMAEXT_PUT, lib.RMAEXT_GET


def check_alone(call: str, offset: Any, count: Any = None) -> None:
    """Refuse an offset beside a key."""
    if offset != 0 or count is not None:
        raise ValueError(f"{call}: the key says which elements: leave out offset and count")


class KeyedRequests(IndexOperations[ScalarT]):
    """What `rput`, `rget`, `put_notify` and `rput_notify` have in common, given a key."""

    def _rput_key(self, call: str, values: Any, rank: Any, key: Any) -> Request:
        """As `win[rank, key] = values`, begun."""
        number, part, array = self._part_to_put(call, values, rank, key)
        if part is None or not array.size:
            return done_at_once(None)
        if self._is_far(number):
            return self._begin_part(call, _PUT, number, part, array)
        self._put_part(number, part, array)
        if self._divided:
            self.flush(number)
        return done_at_once(None)

    def _rget_key(self, call: str, rank: Any, key: Any, out: Array | None) -> Request:
        """As `win[rank, key]`, begun."""
        number, part = self._part_of(call, rank, key)
        shape = (0,) if part is None else part.result
        out = self._result(out)
        if out is not None and part is not None and out.shape != shape:
            raise ValueError(f"{call}: out has shape {out.shape}, the key {shape}")
        if part is not None and 0 not in shape and self._is_far(number):
            scalar = part.scalar and out is None
            out = np.empty(shape, self._dtype) if out is None else out
            return self._begin_part(call, _GET, number, part, out, scalar=scalar)
        got = self._get_part(number, part)
        if out is None:
            return done_at_once(got)
        if part is not None:
            out[...] = got
        return done_at_once(out)

    def _part_to_put(
        self, call: str, values: Any, rank: Any, key: Any
    ) -> tuple[int, Part | None, Array]:
        """Return what `_part_of` does, and an array in the shape of the part."""
        number, part = self._part_of(call, rank, key)
        array = np.asarray(made_of(values, self._dtype, limit=self._timeout))
        return number, part, array if part is None else fit(array, part.result)

    def _is_far(self, rank: int) -> bool:
        """Whether a part of a rank's array is read or written by a request that goes on."""
        return self._routes[rank] == lib.RMAEXT_FABRIC and not self._divided

    def _begin_part(
        self,
        call: str,
        kind: int,
        rank: int,
        part: Part,
        array: Array,
        notify: int = 0,
        *,
        scalar: bool = False,
    ) -> Request:
        """Begin a put from an array, or a get into one, of the shape of the part."""
        unit = part.take_runs(self._dtype.itemsize)
        # an origin that lies in pieces is packed
        local = np.ascontiguousarray(array) if kind == _PUT else array
        return self._begin_runs(
            call, kind, rank, part.offsets(unit), unit, local, notify, scalar=scalar
        )

    def _begin_runs(
        self,
        call: str,
        kind: int,
        rank: int,
        offsets: Array,
        unit: int,
        local: Array,
        notify: int = 0,
        count: int = 1,
        *,
        scalar: bool = False,
    ) -> Request:
        """Begin a put or get of runs of `count` times `unit` bytes of a rank that is far.

        The offsets are multiples of the unit. `notify` is 1 + a slot of the target, or 0. The
        request, or the fabric, keeps the arrays.
        """
        offsets = np.ascontiguousarray(offsets, np.int64)
        counts = None if count == 1 else np.array(count)
        places = Places(np.array(rank), offsets, counts, offsets.shape, offsets.size * count)

        def error(code: int, _bad: int) -> Exception:
            at = self._index(int(offsets.flat[0]) * unit)
            return from_c(code, self._where(call, (rank, at, local.size)))

        values, result = (local, None) if kind == _PUT else (None, local)
        made = Call(call, kind, 0, kind == _GET)
        more = {"unit": unit, "notify": notify}
        return self._begin_places(made, places, values, result, error, scalar=scalar, **more)
