# SPDX-License-Identifier: BSD-3-Clause
"""Launching: each case is an `mpiexec` of its own, under a time limit."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._runtime import launcher
from .._runtime.config import is_known

TEARDOWN = 20  # seconds that a job has to end after its result is written

# How to keep MPI off shared memory on one machine: arguments and environment.
TCP = {
    "MPICH": (
        "",
        "MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo",
    ),
    "Intel MPI": ("", "I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=tcp FI_TCP_IFACE=lo"),
    "Open MPI": (
        "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo --mca osc rdma",
        "",
    ),
    "Open MPI, UCX": (
        "--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any",
        "UCX_TLS=tcp,self",
    ),
}


@dataclass(frozen=True)
class Mpi:
    """An MPI library: its launcher, and the Python whose mpi4py uses it.

    `name` is "MPICH", "Intel MPI" or "Open MPI"; the last may be followed by ", UCX",
    the other way to the network that it has.
    """

    name: str
    mpiexec: str
    python: str = sys.executable


@dataclass(frozen=True)
class Job:
    """What one mpiexec is started for.

    Attributes
    ----------
    case : str
        Name of the case in the program's table.
    route : {"node", "fabric"}
        The natural one on a node, or the network for rmaext and MPI alike.
    level : {"multiple", "single"}
        MPI's thread level.
    ranks : int
        Number of ranks.
    settings : dict
        For the case.
    program : tuple of str
        Arguments of Python.
    """

    case: str
    route: str = "node"
    level: str = "multiple"
    ranks: int = 2
    settings: dict[str, Any] = field(default_factory=dict)
    program: tuple[str, ...] = ("-m", "rmaext.bench.job")


class JobError(Exception):
    """A job that brought no result, and why.

    The text is why, and the end of `said`, which is all that its ranks printed.
    """

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(f"{why}\n{_tail(said)}".strip())


def mpi_in_use() -> Mpi:
    """Return the MPI that mpi4py uses here, with the launcher that belongs to it."""
    try:
        path, name = launcher.find()
    except launcher.LauncherError as exc:
        raise JobError(str(exc)) from None
    return Mpi(name, path)


def launch(
    mpi: Mpi,
    job: Job,
    limit: float,
    tick: Callable[[float], None] | None = None,
    grace: float = 5,
) -> dict[str, Any]:
    """Run a job and return its result: "facts" and "figures", and "note" if its end was odd.

    `tick` is called now and then with the fraction that is done. Raises
    JobError if the job fails, or is not done within `limit` seconds; then the ranks
    have `grace` more to say where they are. It never takes much longer, whatever
    they do.
    """
    with tempfile.TemporaryDirectory(prefix="rmaext-bench-") as name:
        folder, result = Path(name), Path(name, "result")

        def watch() -> float:
            if tick is not None:
                with contextlib.suppress(OSError, ValueError):
                    tick(float((folder / "progress").read_text()))
            # What comes after the result is teardown, and MPI's business.
            return TEARDOWN if result.exists() else math.inf

        settings = {**job.settings, "case": job.case, "limit": limit}
        command = [*_command(mpi, job), json.dumps(settings), str(folder)]
        # A file, not a pipe: a forgotten grandchild would keep a pipe open for ever.
        with open(folder / "output", "wb") as output:
            status = launcher.supervise(
                command, _environment(mpi, job), limit + grace, output, output, watch
            )
        said = (folder / "output").read_text(errors="replace").strip()
        if not result.exists():
            why = f"not done after {limit:.3g} s" if status is None else f"status {status}"
            with contextlib.suppress(FileNotFoundError):
                why = (folder / "error").read_text()
            raise JobError(why, said)
        found: dict[str, Any] = json.loads(result.read_text())
    if status != 0:
        how = "did not end" if status is None else f"ended with status {status}"
        found["note"] = f"the job {how} after its result was written"
    return found


def _command(mpi: Mpi, job: Job) -> list[str]:
    command = launcher.command(mpi.name.partition(",")[0], mpi.mpiexec, job.ranks)
    if job.route == "fabric":
        command += TCP[mpi.name][0].split()
    return [*command, mpi.python, *job.program]


def _environment(mpi: Mpi, job: Job) -> dict[str, str]:
    # what looks like a variable of ours and is none has been reported by this process
    env = {name: value for name, value in launcher.environment().items() if is_known(name)}
    # As many threads as cores in each rank would measure the scheduler.
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    env["MPI4PY_RC_THREAD_LEVEL"] = job.level
    if job.route == "fabric":
        env["RMAEXT_ROUTE"] = "fabric"
        env.update(pair.partition("=")[::2] for pair in TCP[mpi.name][1].split())
    return env


def _tail(text: str, lines: int = 25) -> str:
    return "\n".join(text.splitlines()[-lines:])
