# SPDX-License-Identifier: BSD-3-Clause
"""The names of operations of updates."""

from __future__ import annotations

from typing import Any, get_args

from mpi4py import MPI

from .._native._lib import lib
from ..typing import Operation

__all__ = ["OPERATIONS", "operation"]

OPERATIONS = {name: int(getattr(lib, "RMAEXT_" + name.upper())) for name in get_args(Operation)}
_MPI_OPERATIONS = {name: getattr(MPI, name.upper()) for name in OPERATIONS}


def operation(op: Any) -> int:
    """Return C's number of an operation, given by its name or as mpi4py's."""
    if isinstance(op, str):
        if op in OPERATIONS:
            return OPERATIONS[op]
    elif isinstance(op, MPI.Op):
        for name, other in _MPI_OPERATIONS.items():
            if op == other:
                return OPERATIONS[name]
    else:
        raise TypeError(f"op={op!r}: must be a string or an mpi4py.MPI.Op")
    raise ValueError(f"op={op!r}: must be one of {', '.join(OPERATIONS)}")
