# SPDX-License-Identifier: BSD-3-Clause
"""Targets of what is beside the operations: what is paid once, fences on one node, CPU time."""

from __future__ import annotations

from targets import (
    ALLOCATE,
    BOTH,
    CREATE,
    MIB,
    MPI_ALLOCATE,
    MPI_CREATE,
    OVER,
    ROWS,
    TIME,
    VALUE,
    Claim,
    Row,
    job,
)


def fence(ranks: int) -> Row:
    """Return the row of a fence on one node, without operations."""
    return Row(
        f"same node, allocate, fence of {ranks} ranks: MPI_Barrier and MPI_Win_fence",
        BOTH,
        job("fence", (ALLOCATE, MPI_ALLOCATE), ranks=ranks),
        (
            Claim("fence", TIME, 0.5, (MPI_ALLOCATE,)),
            Claim("fence", TIME, None, ("Win.Fence alone",)),
        ),
    )


BESIDE = (
    fence(2),
    fence(8),
    fence(64),
    Row(
        "once in a process, same node, 2 ranks",
        BOTH,
        job("start", (ALLOCATE, MPI_ALLOCATE), ranks=1),
        (
            Claim("import", OVER, 60, ("import mpi4py.MPI",), "import rmaext"),
            Claim("import", OVER, None, ("import mpi4py.MPI, numpy",), "import rmaext"),
            Claim("first window", TIME, 1.5, (MPI_ALLOCATE,)),
        ),
    ),
    Row(
        "once in a process, tcp, 2 ranks",
        BOTH,
        job("start", (CREATE, MPI_CREATE), "fabric", ranks=1),
        (
            Claim("first window", TIME, None, (MPI_CREATE,), CREATE),
            Claim("first get, target asleep", VALUE, 5, (), CREATE),
            Claim("first get, target in a fence", VALUE, 5, (), CREATE),
        ),
        "fabric",
    ),
    Row(
        "tcp, CPU time at 1 MiB",
        BOTH,
        job("cpu", (CREATE, MPI_CREATE), "fabric", program=ROWS, sizes=[MIB]),
        tuple(Claim(name, TIME, None, (MPI_CREATE,), CREATE) for name in ("put", "get")),
        "fabric",
    ),
)
