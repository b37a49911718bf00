# SPDX-License-Identifier: BSD-3-Clause
"""What ranks tell each other when they make a container, and how they fail together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import Request, Window
from ._windows import Length

__all__ = ["exchange", "named"]


def exchange(comm: MPI.Comm, tell: Callable[[], bytes], timeout: float | None) -> list[bytes]:
    """Return what each rank has to tell; what `tell` raises on one, all raise. Collective.

    By windows, and not by MPI: so a call that does not match, and a rank that is lost, are
    errors on all ranks, within the time limit. Rank 0 collects, so that nobody else
    connects to all ranks here.
    """
    mine = b""

    def length() -> int:
        nonlocal mine
        mine = tell()
        return len(mine)

    lead = comm.rank == 0
    asked: Any = Length(length)  # whatever has __index__ is an integer to Window
    with Window.allocate(comm, asked, np.uint8, "r", timeout) as parts:
        parts.local[:] = np.frombuffer(mine, np.uint8)
        parts.fence()
        lengths = [parts.size(rank) for rank in range(comm.size)]
        ends = np.cumsum(lengths).tolist()
        with Window.allocate(comm, ends[-1] if lead else 0, np.uint8, "r", timeout) as whole:
            if lead:
                pairs = enumerate(zip(ends, lengths, strict=True))
                begun = [
                    parts.rget(rank, out=whole.local[end - size : end])
                    for rank, (end, size) in pairs
                ]
                Request.waitall(begun)
            whole.fence()
            data = whole.get(0).tobytes()
    return [data[end - size : end] for end, size in zip(ends, lengths, strict=True)]


def named(ranks: Sequence[int]) -> str:
    """Return "rank 3", or "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
