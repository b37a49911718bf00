# SPDX-License-Identifier: BSD-3-Clause
"""How long the parts of a program take, as times.py reads it from what rank 0 writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REPEAT = 3  # of what is short; the best counts

# This does not import mpi4py.MPI: some packages set mpi4py.rc before they do.


@contextmanager
def took(comm: Any, what: str) -> Iterator[None]:
    """Say on rank 0 how long a block took, from the first rank's begin to the last one's end."""
    comm.Barrier()
    start = time.perf_counter()
    yield
    comm.Barrier()
    say(comm, what, time.perf_counter() - start)


def say(comm: Any, what: str, seconds: float) -> None:
    """Say on rank 0 how long something took."""
    if comm.Get_rank() == 0:
        print(f"took {what}: {seconds:.6f} s", flush=True)


def check(right: bool, what: str) -> None:
    """Refuse a wrong result; not `assert`, which PYTHONOPTIMIZE takes away."""
    if not right:
        raise SystemExit(f"wrong: {what}")
