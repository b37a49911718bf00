# SPDX-License-Identifier: BSD-3-Clause
"""What each update does, in NumPy, and the dtypes that it is defined on."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from mpi4py import MPI
from support.guarded import UPDATES

BOOL = ["?"]
INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
FLOATS = ["f2", "f4", "f8", "g"]
COMPLEX = ["c8", "c16", "G"]
SCALARS = [*BOOL, *INTEGERS, *FLOATS, *COMPLEX]
PAIRS = ["f4,i4", "f8,i4", "i2,i4", "i4,i4", "i8,i4", "f8,i8", "i8,i8", "g,i4"]
PAIRS += ["f4,i8", "i4,i8", "u8,i8"]

ANY = ("replace", "no_op")
LOC = {"minloc": operator.lt, "maxloc": operator.gt}
OPERATIONS = [*UPDATES, *LOC]
MPI_OPERATIONS = {name: getattr(MPI, name.upper()) for name in OPERATIONS}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(name, align="," in name)


def defined(op: str, dtype: np.dtype[Any]) -> bool:
    if op in ANY:
        return True
    if dtype.names:
        return op in LOC
    if op in ("band", "bor", "bxor"):
        return dtype.kind in "biu"
    if op in ("min", "max"):
        return dtype.kind != "c"
    return op not in LOC


COMBINATIONS = [
    (op, name) for op in OPERATIONS for name in [*SCALARS, *PAIRS] if defined(op, dtype_of(name))
]


def apply(op: str, before: np.ndarray, operand: np.ndarray) -> np.ndarray:
    """What the operation does, elementwise."""
    with np.errstate(all="ignore"):
        if op in UPDATES:
            return np.asarray(UPDATES[op](before, operand)).astype(before.dtype)
    first, second = before.dtype.names
    wins = LOC[op](operand[first], before[first])
    wins |= (operand[first] == before[first]) & (operand[second] < before[second])
    return np.where(wins, operand, before)


def sample(dtype: np.dtype[Any], count: int, *seed: int) -> np.ndarray:
    """Small integers of all signs, so that what they give is exact; ties and zeros too."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype.kind in "ub" else -4
    draw = rng.integers(low, 5, (2, count))
    array = np.zeros(count, dtype)
    if dtype.names:
        array[dtype.names[0]], array[dtype.names[1]] = draw
    elif dtype.kind == "c":
        array.real, array.imag = draw
    else:
        array[:] = draw[0] > 2 if dtype.kind == "b" else draw[0]
    return array


def equal(got: Any, want: Any) -> bool:
    """The same numbers, in one dtype and shape; padding does not count."""
    got, want = np.asarray(got), np.asarray(want)
    return (
        got.dtype == want.dtype
        and got.shape == want.shape
        and bool(np.array_equal(got, want, equal_nan=got.dtype.kind in "fc"))
    )
