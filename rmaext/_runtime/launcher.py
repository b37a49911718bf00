# SPDX-License-Identifier: BSD-3-Clause
"""The launcher that belongs to the MPI that mpi4py uses, and processes of jobs.

It imports nothing of rmaext, so that tests/launch.py can load it alone: the import
of the package initialises MPI. As a program it prints the launcher's path and MPI.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = [
    *("LauncherError", "command", "environment", "find", "misfit", "supervise", "under_mpiexec"),
]

# What a launcher tells its ranks: a job of one's own must not inherit it.
_JOB_VARIABLES = (
    *("PMI", "HYDI_", "MPI_LOCAL", "PRTE_", "OPAL_", "I_MPI_HYDRA_UUID", "I_MPI_INFO_"),
    *("OMPI_ARGV", "OMPI_COMM", "OMPI_FILE", "OMPI_NUM", "OMPI_UNIVERSE", "OMPI_WORLD"),
)
# Debian has several MPIs beside each other, with one of them as mpiexec.
_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi")
# Whose launcher it is, by what it says of its version.
_SIGNS = {"Open MPI": "Open MPI|OpenRTE", "Intel MPI": r"Intel\(R\) MPI", "MPICH": "HYDRA"}
# Slurm's own can start the ranks of any of them, in this way.
_SRUN = {"Open MPI": "pmix", "Intel MPI": "pmi2", "MPICH": "pmi2"}


class LauncherError(Exception):
    """There is no launcher for this MPI, and why."""


def under_mpiexec() -> bool:
    """Tell whether a launcher started this process; does not need MPI."""
    return "PMI_RANK" in os.environ or "PMIX_RANK" in os.environ


def misfit(size: str) -> str:
    """Return what to say of a process that MPI has alone, but a launcher with others.

    `size` is the variable in which it says so.
    """
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    text = f"each process is rank 0 of 1, though a launcher has started {os.environ[size]} "
    text += f"({size}): not that of {name} {'.'.join(map(str, version))}, which mpi4py uses"
    try:
        return f"{text}. Start the program by {find()[0]}"
    except LauncherError as exc:
        return f"{text}. There is {exc}"


def environment() -> dict[str, str]:
    """Return this process's environment, fit for a job of one's own."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_JOB_VARIABLES)}
    env["OMPI_ALLOW_RUN_AS_ROOT"] = env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    env["IPATH_NO_BACKTRACE"] = "1"  # libpsm, loaded by libfabric, hides faulthandler's report
    return env


def command(mpi: str, path: str, ranks: int, survive: bool = False) -> list[str]:
    """Return the start of a command that launches so many ranks of an MPI.

    With `survive` the others live on when one dies.
    """
    if os.path.basename(path) == "srun":
        # On this node, where the job's files are. It must not wait for other steps, nor be
        # refused for want of tasks.
        step = ["-N", "1", "-w", os.environ["SLURMD_NODENAME"], "--overlap", "--overcommit"]
        step += ["--no-kill"] if survive else []
        return [path, f"--mpi={_SRUN[mpi]}", *step, "-n", str(ranks)]
    start = [path, "-n", str(ranks)]
    if mpi == "Open MPI":
        start += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    if survive:
        start.append("--continuous" if mpi == "Open MPI" else "-disable-auto-cleanup")
    return start


def find() -> tuple[str, str]:
    """Return the path of a launcher for mpi4py's MPI, and that MPI's name.

    It is looked for beside Python, beside the MPI library, in PATH; then there is srun,
    on a node of a Slurm job. Raises LauncherError if none fits, ImportError or
    RuntimeError if there is no MPI.
    """
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False  # if nobody has imported it yet
    from mpi4py import MPI

    mpi, version = MPI.get_vendor()
    if mpi not in _SIGNS:
        raise LauncherError(f"no way known to launch jobs of {mpi}, only of {', '.join(_SIGNS)}")
    others = []
    for path in _launchers():
        its, number = _about(path)
        # Open MPI's ranks need the launcher of their own release
        if its == mpi and (mpi != "Open MPI" or number == "{}.{}".format(*version)):
            return path, mpi
        others.append(f"{path} is {f'that of {its} {number}'.strip() if its else 'unknown'}")
    srun = shutil.which("srun") if "SLURMD_NODENAME" in os.environ else None
    if srun:
        return srun, mpi
    name = f"{mpi} {'.'.join(map(str, version))}"
    there = "; ".join(others) or "there is no mpiexec beside Python, beside MPI or in PATH"
    raise LauncherError(f"no launcher of {name}, which mpi4py uses: {there}")


def _launchers() -> Iterator[str]:
    """Yield the launchers that there are, each file once."""
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    libraries = [line.split(maxsplit=5)[-1].strip() for line in lines if "/libmpi" in line]
    # lib/libmpi.so, lib/mpich/libmpi.so or lib/x86_64-linux-gnu/libmpi.so
    beside = [str(folder / "bin") for path in libraries for folder in Path(path).parents[:4]]
    seen = set()
    for folder in (os.path.dirname(sys.executable), *beside, *os.get_exec_path()):
        for name in _NAMES:
            path = shutil.which(name, path=folder)
            if path and os.path.realpath(path) not in seen:
                seen.add(os.path.realpath(path))
                yield path


@functools.cache
def _about(path: str) -> tuple[str, str]:
    """Return whose launcher it is and the first two parts of its version; "" if it cannot say."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    number = re.search(r"\d+\.\d+", done.stdout)
    for mpi, sign in _SIGNS.items():
        if re.search(sign, done.stdout):
            return mpi, number[0] if number else ""
    return "", ""


# -- processes -----------------------------------------------------------------------


def supervise(
    command: Sequence[str],
    env: Mapping[str, str],
    limit: float,
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
    watch: Callable[[], float] | None = None,
) -> int | None:
    """Run a command and return its exit status, or None if it ran into the time limit.

    `limit` is in seconds. `watch` is called 20 times a second; the command has no more
    seconds from then on than it returns. Past the limit, or when the call is interrupted,
    all that the command started is ended.
    """
    until = time.monotonic() + limit
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, 0.05) if watch else left)
            until = min(until, time.monotonic() + watch()) if watch else until
    finally:
        if process.returncode is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants: the launcher first, so that it can clean up."""
    family = []  # pidfds: a number may be somebody else's by the time it is used
    for pid in [process.pid, *_descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            family.append(os.pidfd_open(pid))
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(3)
    for fd in family:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)
    process.wait()


def _descendants(pid: int) -> Iterator[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone by now
            # "pid (any name) state parent ..."
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:  # grows on the way
        found += [child for child, its in parents.items() if its == parent]
    yield from found[1:]


if __name__ == "__main__":
    try:
        print(*find(), sep="\n")
    except LauncherError as exc:
        sys.exit(str(exc))
