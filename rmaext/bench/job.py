# SPDX-License-Identifier: BSD-3-Clause
"""One rank of a job: `python -m rmaext.bench.job SETTINGS FOLDER`, started by run.py.

SETTINGS is JSON. Rank 0 writes how far it is to FOLDER/progress, and at the
end the result to FOLDER/result. The first rank that fails writes why to
FOLDER/error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from mpi4py import MPI

from . import cases, starts
from .fences import fences
from .measure import Job

# Seconds. Open MPI 5.0.11 over UCX 1.20.1 by tcp (UCX_TLS=tcp,self) hangs in MPI_Win_free or
# MPI_Finalize: it does so, without rmaext, in most jobs of two ranks of mpi4py that do no
# more than Win.Create, Put, Flush and Free. Such a job then says "Timeout (0:00:10)!" and
# ends with status 1. Over shared memory it ends well.
TEARDOWN = 10


def main(known: Mapping[str, Callable[[Job], None]]) -> None:
    """Run the case that the command line names. Collective over MPI.COMM_WORLD."""
    settings, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    faulthandler.dump_traceback_later(settings["limit"], exit=True)
    # These steer MPI's libfabric, which has read them; rmaext opens a copy of its own.
    for name in ("FI_PROVIDER", "FI_TCP_IFACE"):
        os.environ.pop(name, None)
    job = Job(settings, folder / "progress")
    if os.environ.get("RMAEXT_ROUTE") == "fabric" and job.comm.size > 1:
        # each rank as on a host of its own: there MPI, too, has the own memory at hand
        del os.environ["RMAEXT_ROUTE"]
        os.environ |= {"RMAEXT_NODE": f"host of rank {job.comm.rank}", "RMAEXT_IFACE": "lo"}
    try:
        known[settings["case"]](job)
        if job.is_origin:
            facts = {"mpi": mpi_version(), "thread_level": thread_level()} | job.facts | fabric(job)
            partial = folder / "result.part"
            partial.write_text(json.dumps({"facts": facts, "figures": job.figures}))
            partial.rename(folder / "result")
    except Exception as exc:
        write_first(folder / "error", f"{type(exc).__name__}: {exc}")
        # one write: those of several ranks must not mix
        text = f"rank {job.comm.rank}: {traceback.format_exc()}"
        os.write(2, text.encode())
        job.comm.Abort(1)  # may return
        os._exit(1)
    faulthandler.dump_traceback_later(TEARDOWN, exit=True)
    for window in job.windows:
        window.close()


def write_first(path: Path, text: str) -> None:
    """Write a file as a whole; if another rank has written it first, leave that one."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(partial)


def mpi_version() -> str:
    """Return "MPICH 5.0.2" or the like."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def thread_level() -> str:
    """Return what MPI provides."""
    return {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }[MPI.Query_thread()]


def fabric(job: Job) -> dict[str, str]:
    """Return provider and version of libfabric, or of UCX, if one is in use."""
    for window in job.windows:
        used = getattr(getattr(window, "win", None), "fabric", None)
        if used is not None:
            return {"provider": used.provider, used.transport: str(used.version)}
    return {}


if __name__ == "__main__":
    main({**cases.CASES, **starts.CASES, "fence": fences})
