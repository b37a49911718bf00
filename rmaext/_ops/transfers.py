# SPDX-License-Identifier: BSD-3-Clause
"""Put and get where C does not carry them out by itself, and operations that are repeated."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._memory import arrays
from .._memory.devices import landed, of_cuda
from .._native import cmethods
from .._native._lib import lib
from ..typing import ScalarT
from .arguments import behind, prepares, told
from .core import Array
from .updates import UpdateOperations

__all__ = ["TransferOperations"]

_PREPARED = {  # name, and rights of origins that it needs
    cmethods.PUT: ("prepare_put", lib.RMAEXT_WRITE),
    cmethods.GET: ("prepare_get", lib.RMAEXT_READ),
    cmethods.FETCH_ADD: ("prepare_fetch_add", lib.RMAEXT_READ | lib.RMAEXT_WRITE),
}


class TransferOperations(UpdateOperations[ScalarT]):
    """The put and get of `Window`, and what prepares them and `fetch_add`.

    put and get are those of csrc/python/put_get.c, which come here with all that is not
    plain: what needs a conversion, or an error.
    """

    @behind
    def _put(self, origin: Any, rank: int, offset: int = 0) -> None:
        self._check_open("put")
        cuda = of_cuda(origin)
        if cuda is not None and cuda.put(self, origin, rank, offset):
            return
        array = arrays.origin(origin, self._dtype, self._timeout)
        place = self._place("put", rank, offset, array.size)
        if place is not None:
            self._run("put", place, (array,), arrays.move_call(lib.RMAEXT_PUT, array))

    @behind
    def _get(
        self, rank: int, offset: int = 0, count: int | None = None, out: Array | None = None
    ) -> Any:
        self._check_open("get")
        cuda = of_cuda(out)
        if cuda is not None and cuda.get(self, out, rank, offset, count):
            return out
        out = self._result(out)
        count = self._count("get", rank, offset, count, out)
        place = self._place("get", rank, offset, count)
        if place is None:
            return np.empty(0, self._dtype) if out is None else landed(out)
        if out is None:
            out = np.empty(count, self._dtype)
        self._run("get", place, (out,), arrays.move_call(lib.RMAEXT_GET, out))
        return landed(out)

    # -- operations that are repeated ----------------------------------------------

    @told
    def register(self, array: NDArray[ScalarT]) -> cmethods.Buffer[ScalarT]:
        """Return a buffer object, for an array that is put or got often.

        Parameters
        ----------
        array : numpy.ndarray
            Of the window's dtype and C-contiguous. It is kept, not copied: each
            operation uses what it holds then, and it cannot be resized.

        Returns
        -------
        Buffer
            With `put(rank, offset=0)`, `get(rank, offset=0)`, which returns the
            array, `fetch_add(rank, offset=0)` and the attribute `array`.

        Notes
        -----
        Local; there is nothing to release.

        Examples
        --------
        >>> edge = win.register(np.ones(2))
        >>> for offset in 0, 4:
        ...     edge.put(0, offset)
        >>> win.get(0, 0, 6)
        array([1., 1., 0., 0., 1., 1.])
        """
        self._check_open("register")
        return cmethods.Buffer(self, arrays.check_origin(array, self._dtype))

    @prepares("The calls correspond to MPI_Put with the same arguments.")
    def prepare_put(
        self, origin: NDArray[ScalarT], rank: int, offset: int = 0
    ) -> cmethods.Prepared[ScalarT]:
        """Return a function without arguments that puts the array there each time.

        Examples
        --------
        >>> edge = np.ones(2)
        >>> send = win.prepare_put(edge, rank=0, offset=4)
        >>> edge[:] = 7
        >>> send()  # what the array holds now
        >>> win.get(0, 4, 2)
        array([7., 7.])
        """
        arrays.check_origin(origin, self._dtype)
        return self._prepare(cmethods.PUT, origin, rank, offset)

    @prepares("The calls block, and correspond to MPI_Get and MPI_Win_flush.")
    def prepare_get(
        self, out: NDArray[ScalarT], rank: int, offset: int = 0
    ) -> cmethods.Prepared[ScalarT]:
        """Return a function without arguments that fills `out`, and returns it.

        Examples
        --------
        >>> poll = win.prepare_get(np.zeros(2), rank=0, offset=4)
        >>> win.local[4] = 7
        >>> poll()
        array([7., 0.])
        """
        arrays.check_result(out, self._dtype)
        return self._prepare(cmethods.GET, out, rank, offset)

    @prepares(
        "The calls block; they correspond to MPI_Fetch_and_op with MPI_SUM and MPI_Win_flush."
    )
    def prepare_fetch_add(
        self, value: Any, rank: int, offset: int = 0
    ) -> cmethods.Prepared[ScalarT]:
        """Return a function without arguments that adds, and returns the previous values.

        Examples
        --------
        >>> ticket = win.prepare_fetch_add(1.0, rank=0)
        >>> ticket(), ticket()
        (np.float64(0.0), np.float64(1.0))
        """
        if not np.isscalar(value):
            arrays.check_origin(value, self._dtype)
        operand = arrays.origin(value, self._dtype, self._timeout)
        return self._prepare(cmethods.FETCH_ADD, operand, rank, offset)

    def _prepare(
        self, kind: int, array: Array, rank: int, offset: int
    ) -> cmethods.Prepared[ScalarT]:
        call, access = _PREPARED[kind]
        self._check_open(call)
        place = self._place(call, rank, offset, array.size)
        rank, offset = operator.index(rank), operator.index(offset)
        if place is not None:
            update = kind == cmethods.FETCH_ADD
            number = self._atomic_number(call, place, lib.RMAEXT_SUM) if update else -1
            self._foresee(call, place, access, number)
        return cmethods.Prepared(kind, self, array, rank, offset)
