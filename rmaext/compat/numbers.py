# SPDX-License-Identifier: BSD-3-Clause
"""What mpi4py takes for an integer argument."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["integer", "is_integral"]


def integer(value: Any, bits: int = 32) -> int:
    """Return the integer that mpi4py makes of an argument: that of `int`, but of no text.

    So 8.0 is one, as ``np.prod(()) * 8`` is, and an array of no dimensions. What specifies a
    buffer or a target is another matter: there mpi4py asks for `__index__`, see `buffers`.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As mpi4py does; what C's integer of so many bits does not hold is an OverflowError.
    """
    if type(value) is not int:
        if hasattr(type(value), "__int__") and not isinstance(value, (str, bytes)):
            value = int(value)
        elif hasattr(type(value), "__index__"):
            value = operator.index(value)
        else:
            raise TypeError(f"an integer is required, not {value!r}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise OverflowError(f"{value} is too large for an integer of {bits} bits")
    number: int = value
    return number


def is_integral(value: Any) -> bool:
    """Return whether `operator.index` takes it; not every type that has the method does."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
