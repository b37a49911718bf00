# SPDX-License-Identifier: BSD-3-Clause
"""Start MPI jobs and other processes under a time limit.

As a program it runs the test suite: the serial tests once, then those marked
`mpi` at each size, every job under a time limit:

    python tests/launch.py [--marks EXPR] [--sizes 0,1,2:fabric] [--limit S] [--workers N]
                           [pytest arguments]
    python tests/launch.py --run SIZE [--limit SECONDS] program.py [arguments]

Size 0 stands for the serial tests. A size may name the route that windows take:
"2:direct" (arena memory), "2:fabric", "2:mixed" (arena memory, on two pretend
nodes); by itself most take the route cma. "2:demand-verbs" is the route fabric
over the demanding provider (tests/support/demanding.py), which must have nothing to
complain of at the end; "2:ucx" is that route over a UCX of the tests (tests/ucx/stub.h).
The status is 0 only if every run passed and executed at least one test. With --marks or
pytest arguments of your own (a file, -k ...) a run may be empty, but not all of them.

Tests use `mpirun` and `run_python`, which conftest.py also offers as fixtures.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from support import demanding

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = f"{ROOT / 'tests'}:{ROOT}"  # for jobs that import from tests/support
NO_TESTS = 5  # pytest's exit status
QUICK = "not scale and not matrix and not stress"
# Who waits in a call of MPICH's naps between polls: others have work for that core.
PATIENT = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}

# Alone: the import of its package would initialise MPI.
_file = ROOT / "rmaext" / "_runtime" / "launcher.py"
_spec = importlib.util.spec_from_file_location("launcher", _file)
assert _spec
assert _spec.loader
_launcher = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_launcher)
supervise, under_mpiexec = _launcher.supervise, _launcher.under_mpiexec

# A shell's background jobs ignore it, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_route() -> str:
    """Return the route that the tests' windows shall take; "" for the natural one."""
    return os.environ.get("RMAEXT_TEST_ROUTE", "")


def launcher() -> tuple[str, str]:
    """Return path and kind of the launcher that belongs to this Python's MPI.

    The kind is "mpich", "openmpi" or "intelmpi".
    """
    path, mpi = _found()
    return path, mpi.lower().replace(" ", "")


@functools.cache
def _found() -> tuple[str, str]:
    # Not in this process: it must not have loaded MPI with other settings than a test's.
    command = [sys.executable, _launcher.__file__]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
    done.check_returncode()  # its own words are on the terminal
    path, mpi = done.stdout.splitlines()
    return path, mpi


def wheel() -> str:
    """Return the path of the libfabric inside the MPI's wheel; "" if it is from no wheel."""
    folder = {"intelmpi": "lib"}.get(launcher()[1], f"lib/{launcher()[1]}")
    path = f"{sys.prefix}/{folder}/libfabric.so.1"
    return path if os.path.exists(path) else ""


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return an environment for a job of one's own; None among the changes removes a variable."""
    env = _launcher.environment()
    env.pop("PYTHONUNBUFFERED", None)  # a print in pieces mixes with those of other ranks
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all of rmaext
    env["PYTHONFAULTHANDLER"] = "1"
    # CPython 3.12 and later say it to those that fork beside a progress thread
    forks = "ignore:This process (pid=:DeprecationWarning"
    env["PYTHONWARNINGS"] = ",".join(filter(None, [env.get("PYTHONWARNINGS"), forks]))
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # else two threads a rank, on two cores
    if _shared_memory() < 256 << 20:
        # As in many containers. MPICH would be killed by SIGBUS, even at size 4.
        env["MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE"] = "256"
        env["MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS"] = "2"
        env["UCX_POSIX_DIR"] = env["OMPI_MCA_btl_sm_backing_directory"] = tempfile.gettempdir()
    for name, value in (changes or {}).items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


def _shared_memory() -> int:
    """Return the bytes that are free in /dev/shm."""
    try:
        status = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return 0
    return status.f_bavail * status.f_frsize


def mpi_command(size: int, extra_args: Sequence[str] = (), survive: bool = False) -> list[str]:
    """Return the start of a command that launches `size` ranks."""
    path, mpi = _found()
    return [*_launcher.command(mpi, path, size, survive), *extra_args]


def run_python(
    code: str,
    *args: str,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `code` in a Python process of its own, without mpiexec.

    Returns a CompletedProcess with `returncode`, `stdout` and `stderr`. One
    that takes longer than `timeout` seconds is ended, and AssertionError
    raised with its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", textwrap.dedent(code), *args]
        return _run(Path(folder), command, env, timeout)


# A launcher's idea of surviving is not ours: MPICH's drops the job as soon as
# a survivor prints or leaves. So no rank prints to it, and none leaves before all.
_STAY = """
"$@" >>"$0/stdout" 2>>"$0/stderr"
echo $? >>"$0/status"
tail -n +1 -f "$0/status" | head -n SIZE >/dev/null
"""


def mpirun(
    size: int,
    code: str | Path,
    *args: str,
    timeout: float = 60,
    env: Mapping[str, str | None] | None = None,
    extra_args: Sequence[str] = (),
    survive: bool = False,
    dropin: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program on `size` ranks in an MPI job of its own, from a serial test.

    `code` is the program's text, or its path if it is a Path or ends in ".py".
    `extra_args` go to the launcher, `args` to the program. Result and time
    limit as in `run_python`. With `survive` the other ranks run on when one
    dies, and `returncode` is 0 if each rank either left with 0 or was killed.
    With `dropin` it is run by `python -m rmaext run`.
    """
    if under_mpiexec():
        raise RuntimeError("mpirun() is for serial tests, outside mpiexec")
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(code, str) and not code.endswith(".py"):
            program = Path(folder, "program.py")
            program.write_text(textwrap.dedent(code))
        else:
            program = Path(code)
        run = ["-m", "rmaext", "run"] if dropin else []
        command = [sys.executable, *run, str(program), *args]
        status = Path(folder, "status")
        if survive:
            status.touch()
            command = ["sh", "-c", _STAY.replace("SIZE", str(size)), folder, *command]
        done = _run(Path(folder), mpi_command(size, extra_args, survive) + command, env, timeout)
        codes = status.read_text().split() if survive else []
        if len(codes) == size:
            killed = str(128 + signal.SIGKILL)
            done.returncode = max((int(code) for code in codes if code != killed), default=0)
        return done


def pytest_command(size: int, python: Sequence[str], marks: str, workers: int = 1) -> list[str]:
    """Return the start of a command for the serial tests (size 0), or for those marked mpi.

    `workers` run the serial tests of a file each (pytest-xdist): most of them wait for jobs.
    """
    if not size:
        spread = ["-n", str(workers), "--dist", "loadfile"] if workers > 1 else []
        command = [*python, "-m", "pytest", "--no-header", *spread]
        return [*command, "-m", f"not mpi and ({marks})"]
    # One cache for all ranks would be written by all ranks.
    command = [*mpi_command(size), *python, "-m", "pytest", "-p", "no:cacheprovider"]
    return [*command, "--no-header", "-m", f"mpi and ({marks})"]


def mpirun_tests(
    size: int,
    files: Sequence[str],
    *args: str,
    timeout: float,
    route: str = "fabric",
    env: Mapping[str, str | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run files of the suite on `size` ranks in an MPI job of its own, from a serial test.

    `files` are paths in tests/, `args` go to pytest, `route` is that of the windows.
    Result and time limit as in `run_python`.
    """
    if under_mpiexec():
        raise RuntimeError("mpirun_tests() is for serial tests, outside mpiexec")
    command = pytest_command(size, [sys.executable], QUICK) + list(args)
    command += [str(ROOT / "tests" / file) for file in files]
    env = {"RMAEXT_TEST_ROUTE": route} | dict(env or {})
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), command, env, timeout)


def _run(
    folder: Path, command: Sequence[str], env: Mapping[str, str | None] | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    # Files, not pipes: a forgotten grandchild would keep a pipe open for ever.
    files = [folder / "stdout", folder / "stderr"]
    with open(files[0], "ab") as out, open(files[1], "ab") as err:
        code = supervise(command, environment(env), timeout, out, err)
    texts = [file.read_text(errors="replace") for file in files]
    if code is None:
        raise AssertionError(
            f"not done after {timeout} s: {' '.join(command)[:200]}\n"
            f"--- stdout\n{texts[0]}\n--- stderr\n{texts[1]}"
        )
    return subprocess.CompletedProcess(command, code, *texts)


def _run_tests(command: Sequence[str], size: int, route: str, limit: float) -> int | None:
    """Run tests at one size over one route. Returns as `supervise`."""
    # as users have it, where ranks share memory: there MPI spins
    changes = ({} if route == "direct" else PATIENT) | {"RMAEXT_TEST_ROUTE": route}
    if route == "ucx":
        stub = str(demanding.FOLDER / "ucx-stub.so")
        changes |= {"RMAEXT_TEST_ROUTE": "fabric", "RMAEXT_TRANSPORT": "ucx", "RMAEXT_UCX": stub}
    if not route.startswith("demand-"):
        return supervise(command, environment(changes), limit)
    with tempfile.TemporaryDirectory() as folder:
        changes |= demanding.environment(route.removeprefix("demand-"), folder)
        changes["RMAEXT_TEST_ROUTE"] = "fabric"
        code = supervise(command, environment(changes), limit)
        wrong = list(demanding.complaints(folder, size)) if code == 0 else []
    for line in dict.fromkeys(wrong):
        print(f"== {route}: {line} (x {wrong.count(line)})", flush=True)
    return 1 if wrong else code


def main() -> int:
    """Run the test suite, or one program."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run", type=int, metavar="SIZE", help="run this program; 0: no job")
    parser.add_argument("--marks", help="as pytest's -m; default: all but scale, matrix and stress")
    parser.add_argument("--sizes", default="0,1:fabric,2:direct,2:fabric,3:mixed,4")
    parser.add_argument("--limit", type=float, default=2700, help="seconds a run")
    parser.add_argument(
        "--workers", type=int, default=1, help="files of serial tests that run at once"
    )
    parser.add_argument("--cover", action="store_true")
    options, own = parser.parse_known_args()
    wanted = options.marks or QUICK

    def interrupted(signum: int, frame: object) -> NoReturn:
        # make and timeout(1) send one each, and the second would cut the ending short
        signal.signal(signum, signal.SIG_IGN)
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, interrupted)
    if options.run is not None:
        command = [*(mpi_command(options.run) if options.run else []), sys.executable, *own]
        if options.run:
            print(*command, flush=True)
        code = supervise(command, environment(), options.limit)
        return 124 if code is None else code  # as timeout(1)
    # Open MPI gives its ranks a terminal, but nobody may be watching it.
    color = "--color=yes" if sys.stdout.isatty() else "--color=no"
    python = [sys.executable] + (["-m", "coverage", "run"] if options.cover else [])
    results, sizes = [], options.sizes.split(",")
    for run in sizes:
        size, route = int(run.partition(":")[0]), run.partition(":")[2]
        name = f"{launcher()[1]}, " + (f"size {run}" if size else "serial tests")
        print(f"== {name}", flush=True)
        start = time.monotonic()
        # The fixture `node` undoes the route: these would be those of 2:direct once more.
        marks = f"({wanted}) and not node" if run == "2:fabric" and "2:direct" in sizes else wanted
        command = [*pytest_command(size, python, marks, options.workers), color, *own]
        code = _run_tests(command, size, route, options.limit)
        if code:
            print(f"== {name}: status {code} after {time.monotonic() - start:.0f} s", flush=True)
        results.append(code)
        if code is None:
            print(f"== {name}: ended after {options.limit:.0f} s, the time limit", flush=True)
            break
    if (own or options.marks) and 0 in results:
        results = [code for code in results if code != NO_TESTS]
    return 0 if not any(code != 0 for code in results) else 1


if __name__ == "__main__":
    sys.exit(main())
