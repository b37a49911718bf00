# SPDX-License-Identifier: BSD-3-Clause
"""The targets of the containers, for table.py; their jobs are the programs beside this."""

from __future__ import annotations

from pathlib import Path

from targets import BOTH, MPI_ALLOCATE, MPI_CREATE, SPEED, Claim, Row, job

__all__ = ["CONTAINERS"]

FOLDER = Path(__file__).resolve().parent


def store(route: str, forms: tuple[str, ...], loop: float, burst: float) -> Row:
    """Return the row of batches of a Store: how many times as fast as loops of MPI.Win."""
    peers = {"Lock, Get, Unlock": loop, "Lock_all, Get, Flush": burst}
    return Row(
        f"Store, {'tcp' if route == 'fabric' else 'same node'}",
        BOTH,
        job("batches", forms, route, program=(str(FOLDER / "store.py"),)),
        tuple(
            Claim(
                f"256 records of {size}",
                SPEED,
                target,
                tuple(f"{form}: {how}" for form in forms),
                "rmaext.containers.Store",
            )
            for size in ("1 KiB", r"0\.75 to")
            for how, target in peers.items()
        ),
        "fabric" if route == "fabric" else "direct",
    )


CONTAINERS = (
    store("node", (MPI_ALLOCATE, MPI_CREATE), 20, 3),
    store("fabric", (MPI_CREATE,), 10, 2),
)
