# SPDX-License-Identifier: BSD-3-Clause
"""deephyper's mapping, a peer of `Dict`: how long one item takes in a window of 100 MiB.

    mpiexec -n 2 python [-m rmaext run] benchmarks/containers/deephyper_mapping.py

The package comes from `make test-dropin`, which puts it into build/dropin/site.

With MPICH 5.0.2's own windows it aborts the job on one node: its Get reads the memory of
Allocate_shared into itself, which MPI does not allow. With MPIR_CVAR_NOLOCAL=1 it takes
Allocate, and runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["single_items"]

SITE = Path(__file__).resolve().parents[2] / "build" / "dropin" / "site"
SIZE = 100 << 20  # bytes: the package's default
ITEMS = 4


def single_items(comm: Any, items: int = ITEMS, size: int = SIZE) -> dict[str, float]:
    """Return the best seconds of a get and of a put of one item by the last rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Its rank 0 holds the mapping. Collective; the other ranks wait in a barrier.
    items : int
        How many are put, then got.
    size : int
        Bytes of the mapping's window.

    Returns
    -------
    dict
        "put" and "get", in seconds, the same on all ranks.

    Raises
    ------
    ModuleNotFoundError
        The package is not there.
    RuntimeError
        An item was not what had been put.
    """
    mapping = _mapping_type()({}, comm, size=size)
    best: dict[str, float] | None = None
    wrong = 0
    comm.Barrier()
    if comm.rank == comm.size - 1:
        best = {"put": float("inf"), "get": float("inf")}
        for key in range(items):
            start = time.perf_counter()
            mapping[key] = -key
            best["put"] = min(best["put"], time.perf_counter() - start)
        for key in range(items):
            start = time.perf_counter()
            value = mapping[key]
            best["get"] = min(best["get"], time.perf_counter() - start)
            wrong += value != -key
    type(mapping).CACHE.clear()  # which keeps it; its end is collective
    del mapping
    wrong = comm.allreduce(wrong)
    if wrong:
        raise RuntimeError(f"{wrong} of {items} items are not what was put")
    result: dict[str, float] = comm.bcast(best, root=comm.size - 1)
    return result


def _mapping_type() -> Any:
    if str(SITE) not in sys.path:
        sys.path.append(str(SITE))  # behind what is installed here: NumPy, mpi4py
    try:
        from deephyper.evaluator.storage import MPIWinMutableMapping
    except ModuleNotFoundError as exc:
        text = f"{exc}: `make test-dropin ARGS='--only deephyper'` puts deephyper into {SITE}"
        raise ModuleNotFoundError(text) from None
    return MPIWinMutableMapping


if __name__ == "__main__":
    from mpi4py import MPI  # before deephyper, which tells mpi4py not to initialise it

    seconds = single_items(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        print(", ".join(f"{what} {value * 1e3:.0f} ms" for what, value in seconds.items()))
