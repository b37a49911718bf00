# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext doctor: try what windows take here, and say what to do about what fails."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .._runtime import launcher
from .._runtime.config import PROVIDERS, preferred
from ..bench.run import JobError, Mpi, mpi_in_use
from . import devices, info
from .probe import Outcome, probe

__all__ = ["add"]

_LISTENING = ("tcp;ofi_rxm", "tcp", "net;ofi_rxm", "net")  # on TCP sockets
_COLOURS = {"ok": "32", "fails": "31", "hangs": "31", "no time": "33", "none": "33"}
_CUDA = "cuda"
_NODE, _HERE = "", "this node"  # in place of a provider: the routes within this machine
_LEAST = 0.5  # seconds: with less, no job is begun
_LIMIT, _ALL = 5.0, 30.0  # seconds


def add(commands: Any) -> None:
    """Add the command `doctor` to the parser's subcommands."""
    parser = commands.add_parser(
        "doctor",
        allow_abbrev=False,
        help="try what rmaext would use here",
        description="Run put, get, every atomic operation, an operation on a rank that never "
        "calls the library, and teardown, on two ranks, over memory and over the provider that "
        "windows take; and map memory of a GPU between two processes. One line each says what "
        "works (ok), what does not (fails), what stands still though its processes could run "
        "(hangs), what was not done in time (no time), what is not there (none), and what to do "
        "about it; the last line, how busy the machine was. The status is 0 if the "
        "provider that windows take works, 3 if that was not done in time. Start it plainly, not "
        "under mpiexec.",
    )
    parser.add_argument("--all", action="store_true", help="try all other providers, too")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="S",
        help=f"seconds in all (default: {_LIMIT:g}; with --all {_ALL:g})",
    )
    parser.set_defaults(function=doctor)


@dataclass(frozen=True)
class Finding:
    """What came of one provider, or of CUDA; `mark` is one of _COLOURS."""

    name: str
    mark: str
    text: str


def doctor(options: argparse.Namespace) -> int:
    """Try the default, then the others in parallel; print a line for each."""
    began = time.monotonic()
    limit = options.limit or (_ALL if options.all else _LIMIT)
    if launcher.under_mpiexec():
        print("python -m rmaext doctor starts jobs of its own: not under mpiexec", file=sys.stderr)
        return 2
    library = info.apart(info.library_in_use, limit=limit)  # before the threads
    problem = _mpi_problem() or str(library.get("error", ""))
    if problem:
        slow = problem.startswith("no answer")
        _say(Finding("set-up", "no time" if slow else "fails", problem))
        _say_how_busy(began, limit)
        return 3 if slow else 1
    mpi = mpi_in_use()
    names = list(dict.fromkeys(c["provider"] for c in library["candidates"]))
    default = _default(names, library["version"])
    rest = [name for name in names if name != default]
    findings = list(_examine(mpi, [_NODE, *({default} & {*names})], began + limit))
    if options.all:
        with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as pool:
            jobs = [pool.submit(_examine, mpi, [name], began + limit) for name in rest]
            findings += [finding for job in jobs for finding in job.result()]
    if default not in names:
        findings.append(_absent(default, library))
    left = began + limit - time.monotonic()  # last: a driver may take all of it
    gpus = info.find_devices(left) if left > _LEAST else {"error": "no answer: not tried"}
    findings.append(Finding(_CUDA, *devices.words(gpus)))
    working = [f.name for f in findings if f.mark == "ok" and f.name in names]
    for finding in findings:
        _say(finding, default, working)
    _say_how_busy(began, limit, () if options.all else rest)
    if default in working:
        return 0
    return 3 if any((f.name, f.mark) == (default, "no time") for f in findings) else 1


def _mpi_problem() -> str:
    """Return what keeps jobs from being started here; "" if nothing does."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False  # the jobs do
        mpi_in_use()
    except (ImportError, RuntimeError, JobError) as exc:
        return f"MPI: {exc}"
    return ""


def _default(names: list[str], version: str) -> str:
    """Return the provider that windows would take; it need not be there."""
    if os.environ.get("RMAEXT_TRANSPORT") == "ucx":
        return "ucx"
    wanted = os.environ.get("RMAEXT_PROVIDER", "")
    order = [wanted] if wanted else [*preferred([version]), os.environ.get("FI_PROVIDER", "")]
    return next((name for name in order if name in names), wanted or PROVIDERS[-1])


def _examine(mpi: Mpi, names: Sequence[str], end: float) -> list[Finding]:
    """Try some providers in one job; after one that fails, the next ones in another."""
    findings: list[Finding] = []
    while names:
        if end - time.monotonic() < _LEAST:
            late = [Finding(name or _HERE, "no time", "not tried") for name in names]
            return findings + late
        found = probe(mpi, names, end)
        findings += map(_finding, found)
        names = names[len(found) :]
    return findings


def _finding(one: Outcome) -> Finding:
    title, result = one.name or _HERE, one.result
    if result is None:
        return Finding(title, one.verdict, f"{one.step}: {one.why}")
    absent = f"{result['absent'] * 1e6:.0f} us on a rank that calls nothing"
    what = f"put, get, {result['updates']} kinds of update, {absent}, teardown"
    routes = " and ".join(dict.fromkeys(result["routes"]))
    how = f"mr_mode {result['mr_mode']}" if one.name else f"routes {routes}"
    if one.name in _LISTENING and not result["guarded"]:
        how += "; connections of other users are NOT refused: see win.fabric.guarded"
    return Finding(title, "ok", f"{what}; {how}")


def _absent(default: str, library: dict[str, Any]) -> Finding:
    text = f"libfabric {library['version']} at {library['path']} does not offer it"
    return Finding(default, "fails", text)


def _advice(name: str, text: str, working: Sequence[str]) -> str:
    """Return what to do about a failure."""
    get = os.environ.get
    if "launcher of" in text:
        return "Install the launcher that belongs to mpi4py's MPI, or put it into PATH."
    if "MPI: " in text:
        return "Install mpi4py and an MPI: pip install rmaext[mpich]."
    if get("RMAEXT_TRANSPORT") == "ucx":
        return "UCX_LOG_LEVEL=info has UCX say more. Unset RMAEXT_TRANSPORT to take libfabric."
    if "offer" in text and name in PROVIDERS and get("FI_PROVIDER"):
        return f"FI_PROVIDER={get('FI_PROVIDER')} hides it: unset that."
    if "libfabric" in text and "offer" not in text:
        return "Install a libfabric (Debian: libfabric1), or set RMAEXT_LIBFABRIC to its path."
    if "progress" in text and get("RMAEXT_PROGRESS") == "0":
        return "RMAEXT_PROGRESS=0 keeps targets from answering by themselves: unset that."
    if working and working != [name]:
        return f"RMAEXT_PROVIDER={working[0]!r} works."
    return "Set FI_LOG_LEVEL=info to see what the provider says."


def _say(finding: Finding, default: str = "", working: Sequence[str] = ()) -> None:
    mark = finding.mark
    name = finding.name + (" (default)" if finding.name == default else "")
    advice = ""
    if mark == "no time":
        advice = "Give it more time: --limit 30."
    elif mark != "ok" and finding.name != _CUDA:  # whose words have it
        advice = _advice(finding.name, finding.text, working)
    shown = f"\033[{_COLOURS[mark]}m{mark:<8}\033[m" if sys.stdout.isatty() else f"{mark:<8}"
    text = " ".join(finding.text.split()).rstrip(".")
    print(f"{shown} {name}: {text}" + (f". {advice}" if advice else ""))


def _say_how_busy(began: float, limit: float, rest: Sequence[str] = ()) -> None:
    cores = len(os.sched_getaffinity(0))
    took = time.monotonic() - began
    text = f"load {os.getloadavg()[0]:.1f} on {cores} core{'s' if cores > 1 else ''}"
    text += f", {took:.1f} s of {limit:g} s"
    print(f"at       {text}" + (f". Not tried: {', '.join(rest)}: --all does" if rest else ""))
