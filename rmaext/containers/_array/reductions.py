# SPDX-License-Identifier: BSD-3-Clause
"""Sums of an `Array` and the like: collective."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ..._comm.group import together
from ..._runtime.failures import of_all
from .._agreement import agreed, common
from .blocks import Plan
from .patches import Patches

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

__all__ = ["Reduced"]


class Reduced(Patches):
    """An `Array` that all ranks reduce."""

    def sum(self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None) -> Any:
        """Return the sum of all elements, or an array of sums along an axis.

        Parameters
        ----------
        axis : int, optional
            By default all elements are added.
        dtype : data-type, optional
            To add in; by default what numpy.sum adds in.
        out : None
            There for `numpy.sum(field)`, which is this call.

        Returns
        -------
        NumPy scalar or Array
            The same scalar on all ranks; or a new array
            without that axis and without ghosts, cut where this one is, to be closed.

        Raises
        ------
        TypeError
            NumPy has no such sum of the dtype, or there is an `out`.
        ValueError
            The ranks differ in axis or dtype; numpy.exceptions.AxisError if there is no such axis.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking. What any rank has written before its call counts. Each rank adds its
        own block, then the sums of all in the order of the ranks: the result is the same on each,
        and each time, though rounded otherwise than on one process. Along an axis it is the ranks
        that hold the result who add.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[:] = [[1, 2, 3], [4, 5, 6]]
        ...     with field.sum(axis=0) as sums:
        ...         field.sum(), sums[:]
        (np.int64(21), array([5, 7, 9]))
        """
        return self._reduced("Array.sum", np.add, axis, dtype, out)

    def mean(
        self, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
    ) -> Any:
        """Return the mean of all elements, or an array of means along an axis.

        Parameters, results, errors and notes are those of `sum`; `numpy.mean(field)` is this call.
        The dtype is by default float64 of integers, float32 of float16, else the array's.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     with field.mean(axis=1) as means:
        ...         field.mean(), means[:]
        (np.float64(2.5), array([0., 5.]))
        """
        if dtype is None and self.dtype.kind in "iub":
            dtype = np.float64
        elif dtype is None and self.dtype == np.float16:
            dtype = np.float32  # as numpy.mean adds, or large sums would be infinite

        def divided() -> Any:
            total = self._reduced("Array.mean", np.add, axis, dtype, out)
            if axis is None:
                return total.dtype.type(total / self.size)
            total.local[...] = total.local / self.shape[axis]
            total.fence()
            return total

        return together(self._comm, "Array.mean", divided)

    def max(self, axis: int | None = None, out: None = None) -> Any:
        """Return the largest of all elements, or an array of the largest along an axis.

        Parameters, results, errors and notes are those of `sum`.

        Raises
        ------
        ValueError
            There are no elements.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     field.max()
        np.int64(6)
        """
        return self._reduced("Array.max", np.maximum, axis, None, out)

    def min(self, axis: int | None = None, out: None = None) -> Any:
        """Return the smallest of all elements, or an array of the smallest along an axis.

        Parameters, results, errors and notes are those of `sum`.

        Raises
        ------
        ValueError
            There are no elements.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (2, 3), int) as field:
        ...     field[1] = [4, 5, 6]
        ...     field.min()
        np.int64(0)
        """
        return self._reduced("Array.min", np.minimum, axis, None, out)

    def _reduced(
        self, call: str, ufunc: np.ufunc, axis: int | None, dtype: DTypeLike | None, out: None
    ) -> Any:
        def part() -> tuple[str, bytes]:
            """Return how it is asked for; without an axis what this block comes to, too."""
            if out is not None:
                raise TypeError(f"{call}: takes no out=, but returns a scalar or a new Array")
            how = "" if dtype is None else f", dtype {np.dtype(dtype)}"
            if axis is not None:
                return f"axis {operator.index(axis) + self.ndim * (axis < 0)}{how}", b""
            local = self._block()
            whole = ufunc.reduce(local, axis=None, dtype=dtype).tobytes() if local.size else b""
            return f"no axis{how}", whole

        def reduced() -> Any:
            self._win.fence()
            parts = agreed(self._comm, call, part)
            common([it for it, _ in parts], ValueError, f"{call}: the ranks differ")
            try:  # TypeError where NumPy has no such thing, ValueError where nothing is to compare
                number = None if axis is None else self._axis(axis)
                count = self.size if number is None else self.shape[number]
                found = ufunc.reduce(np.zeros(min(count, 1), self.dtype), dtype=dtype).dtype
            except (TypeError, ValueError) as exc:
                of_all(exc)
                raise
            if number is not None:
                return self._along(functools.partial(ufunc.reduce, dtype=dtype), found, number)
            # on each rank, in the order of the ranks: so all have the same
            return ufunc.reduce(np.frombuffer(b"".join(it for _, it in parts), found), dtype=dtype)

        return together(self._comm, call, reduced)

    def _axis(self, axis: int) -> int:
        number = operator.index(axis)
        if not -self.ndim <= number < self.ndim:
            raise np.exceptions.AxisError(number, self.ndim)
        return number % self.ndim

    def _along(self, reduce: Callable[..., Any], dtype: np.dtype[Any], axis: int) -> Self:
        """Return results along an axis, by way of an array with an element for each block."""
        plan, none = self._plan, (0,) * self.ndim
        ends = np.cumsum(np.diff([0, *plan.cuts[axis]]) > 0).tolist()
        cuts = _with(plan.cuts, axis, tuple(ends))
        parts = Plan(_with(plan.shape, axis, ends[-1]), cuts, none, (False,) * self.ndim)
        rest = Plan(*(_with(some, axis) for some in (plan.shape, plan.cuts, none, parts.periodic)))
        with self._made(parts, dtype) as partial:
            local = partial.local
            if local.size:
                local[...] = reduce(self._block(), axis=axis, keepdims=True)
            partial.fence()
            result = self._made(rest, dtype)
            if result.local.size:
                where = _with(result.where, axis, slice(None), insert=True)
                result.local[...] = reduce(partial[where], axis=axis)
            result.fence()
        return result


def _with(some: Sequence[Any], at: int, *new: Any, insert: bool = False) -> tuple[Any, ...]:
    """Return entries of which one is another one, or left out, or inserted."""
    return (*some[:at], *new, *some[at + (not insert) :])
