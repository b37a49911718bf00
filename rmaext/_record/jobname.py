# SPDX-License-Identifier: BSD-3-Clause
"""What the job of this process is called: one name for the ranks of an MPI_COMM_WORLD on a node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from .._runtime.files import text_of
from .processes import processes, stat

__all__ = ["folder", "job"]

_LONGEST = 200  # bytes: file systems take 255


def job(environ: Mapping[str, str]) -> str:
    """Return the name, which no other job that runs on this node has. Local.

    Those that MPI_Comm_spawn has started have an MPI_COMM_WORLD, and so a job, of their own.
    """
    return _named(environ)[0]


def folder(environ: Mapping[str, str]) -> str:
    """Return the name as that of a folder. Local.

    If its numbers may come again, as those of processes do, and the same ones in another
    container, when the process began follows.
    """
    name, pid = _named(environ)
    whole = re.sub(r"[^\w.@-]+", "-", f"{name} {stat(pid)[2]}" if pid else name)
    return whole.encode(errors="replace")[:_LONGEST].decode(errors="ignore")


def _named(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the name, and the process that it is the name of, if it is one's."""
    if "PMIX_NAMESPACE" in environ:
        return str(environ["PMIX_NAMESPACE"]), 0
    above = [*_ancestors(os.getpid())]
    for below, pid in pairwise(above):
        if "PMI_RANK" in environ and "pmi" in _program(pid):
            if "PMI_SPAWNED" not in environ:
                return f"mpiexec {pid}", pid
            first = _first_of_world(pid, below)
            return f"mpiexec {pid} spawned {first}", first
    if "SLURM_JOB_ID" in environ and "SLURM_STEP_ID" in environ:
        return f"slurm {environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}", 0
    if "PMI_RANK" in environ:
        return f"mpiexec {os.getppid()}", os.getppid()
    return f"process {os.getpid()}", os.getpid()


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = stat(pid)[1]


def _program(pid: int) -> str:
    try:
        return text_of(f"/proc/{pid}/comm")
    except OSError:
        return ""


def _first_of_world(proxy: int, own: int) -> int:
    """Return the process that the launcher's proxy has started first of those of a world.

    MPICH's starts the ranks that belong here one after another, numbered from 0, for each
    MPI_Comm_spawn. Nothing else tells one from another without the help of other ranks.
    """
    began = {pid: stat(pid)[2] for pid in processes() if stat(pid)[1] == proxy}
    order = sorted(began, key=lambda pid: (began[pid], pid))
    before = order[: order.index(own) + 1] if own in order else []
    firsts = (pid for pid in reversed(before) if _local_rank(pid) == "0")
    return next(firsts, own)


def _local_rank(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"(?:^|\0)MPI_LOCALRANKID=(\d+)\0", file.read())
    except OSError:
        return ""
    return found[1].decode() if found else ""
