# SPDX-License-Identifier: BSD-3-Clause
"""Patches of an `Array` beside those of Global Arrays in C: one rank, which starts jobs of both.

Debian's libglobalarrays-dev and libarmci-mpi-dev have the library for either MPI, over which it
runs; the environment variable GLOBAL_ARRAYS names another prefix than /usr. What it lacks of
LAPACK is for calls that nobody makes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from arrays import NAME, PATCH, places

from rmaext.bench import run
from rmaext.bench.job import main
from rmaext.bench.measure import Job

SOURCE = Path(__file__).with_suffix(".c")
PROGRAMS = SOURCE.parents[2] / "build" / "bench"
CALLS = ("get", "put", "add")
LIMIT = 60  # seconds of a job


def build(mpi: run.Mpi) -> str:
    """Compile the program with the mpicc of an MPI; return its path."""
    name = "openmpi" if mpi.name.startswith("Open MPI") else "mpich"
    root = Path(os.environ.get("GLOBAL_ARRAYS", "/usr"))
    program = PROGRAMS / f"global_arrays-{name}"
    command = [str(Path(mpi.mpiexec).with_name("mpicc")), "-O2", f"-I{root / 'include'}"]
    command += [str(SOURCE), f"-L{root / 'lib'}", *(f"-L{it}" for it in root.glob("lib/*-linux-*"))]
    command += [f"-lga-{name}", f"-larmci-{name}", "-lm"]
    command += ["-no-pie", "-Wl,--unresolved-symbols=ignore-all", "-o", str(program)]
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    subprocess.run(command, check=True, timeout=LIMIT)
    return str(program)


class Jobs:
    """A contestant of which each turn is a job of two ranks; `take` returns times in us by call."""

    def __init__(self, name: str, take: Callable[[], dict[str, float]]) -> None:
        self.name, self._take, self.taken = name, take, dict[str, list[list[float]]]()

    def enter(self) -> None:
        """Nobody else takes part."""

    leave = enter

    def turn(self) -> list[float]:
        """Run a job, and keep what it says of each call."""
        for call, took in self._take().items():
            self.taken.setdefault(call, []).append([took])
        return []


def patches(job: Job) -> None:
    """Get, put and add patches at random places, from one rank of two; the other waits."""
    mpi, level = run.mpi_in_use(), os.environ.get("MPI4PY_RC_THREAD_LEVEL", "multiple")
    route = "fabric" if os.environ.get("RMAEXT_ROUTE") == "fabric" else "node"
    if route == "fabric":  # Open MPI puts what it allocates in the node's shared memory
        os.environ["ARMCI_USE_WIN_ALLOCATE"] = "0"
    program = build(mpi)

    def of_array() -> dict[str, float]:
        settings = {"forms": [], "rounds": 1, "quick": job.quick}
        own = (str(SOURCE.with_name("arrays.py")),)
        figures: list[Any] = run.launch(
            mpi, run.Job("patches", route, level, 2, settings, own), LIMIT
        )["figures"]
        return {it["operation"].split()[0]: it["values"][NAME]["value"] for it in figures}

    def of_library() -> dict[str, float]:
        of_c = run.Mpi(mpi.name, mpi.mpiexec, program)
        side, where = places(job)
        with tempfile.NamedTemporaryFile() as file:
            file.write(where.astype(np.intc).tobytes())
            file.flush()
            arguments = (str(side), str(PATCH), file.name)
            found = run.launch(of_c, run.Job("patches", route, level, 2, {}, arguments), LIMIT)
        return {call: 1e-3 * statistics.median(found["figures"][call]) for call in CALLS}

    rivals = [Jobs(NAME, of_array), Jobs("Global Arrays", of_library)]
    job.expect(job.rounds * len(rivals))
    job.alternate(rivals, Jobs.turn)
    for call in CALLS:
        samples = {rival.name: rival.taken[call] for rival in rivals}
        job.add(f"{call} of a patch", samples, "us", 8 * PATCH**2)


if __name__ == "__main__":
    main({"patches": patches})
