# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext doctor: try every provider, and say what to do about what fails."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .._runtime import launcher
from .._runtime.config import PROVIDERS
from ..bench.run import Job, JobError, Mpi, launch, mpi_in_use
from . import info

__all__ = ["add"]

_LISTENING = ("tcp;ofi_rxm", "tcp", "net;ofi_rxm", "net")  # on TCP sockets
_COLOURS = {"ok": "32", "fails": "31", "?": "33"}
_NODE = ""  # in place of a provider: the routes within this machine


def add(commands: Any) -> None:
    """Add the command `doctor` to the parser's subcommands."""
    parser = commands.add_parser(
        "doctor",
        allow_abbrev=False,
        help="try all that rmaext could use here",
        description="Run put, get, every atomic operation, an operation on a rank that never "
        "calls the library, and teardown, on two ranks, over every provider of the libfabric "
        "in use and over memory. One line each says what works (ok), what does not (fails), what "
        "was not done in time (?: it hangs, or the machine is busy), and what to do about it. The "
        "status is 0 if the provider that windows take works, 3 if that was not done in time. "
        "Start it plainly, not under mpiexec.",
    )
    parser.add_argument(
        "--limit", type=float, default=9.0, metavar="S", help="seconds in all (default: 9)"
    )
    parser.set_defaults(function=doctor)


@dataclass(frozen=True)
class Finding:
    """What came of one provider; `works` is None if nothing did in the time there was."""

    name: str
    works: bool | None
    text: str


def doctor(options: argparse.Namespace) -> int:
    """Examine everything, in parallel; print a line as each is done."""
    end = time.monotonic() + options.limit
    patience = options.limit / 3
    if launcher.under_mpiexec():
        print("python -m rmaext doctor starts jobs of its own: not under mpiexec", file=sys.stderr)
        return 2
    library = info.apart(info.library_in_use, limit=options.limit)  # before the threads
    problem = _mpi_problem() or str(library.get("error", ""))
    if problem:
        slow = problem.startswith("no answer")
        _say(Finding("set-up", None if slow else False, problem))
        return 3 if slow else 1
    mpi = mpi_in_use()
    names = list(dict.fromkeys(c["provider"] for c in library["candidates"]))
    default = _default(names)
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as pool:
        # the default first: its outcome is the status
        order = sorted([*names, _NODE], key=lambda name: (name != default, name != _NODE))
        jobs = [pool.submit(_examine, mpi, name, end, patience) for name in order]
        findings = [job.result() for job in jobs]
    working = [f.name for f in findings if f.works and f.name in names]
    for finding in findings:
        _say(finding, default, working)
    if default not in names:
        _say(_absent(default, library), default, working)
    if default in working:
        return 0
    return 3 if any(f.works is None and f.name == default for f in findings) else 1


def _mpi_problem() -> str:
    """Return what keeps jobs from being started here; "" if nothing does."""
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False  # the jobs do
        mpi_in_use()
    except (ImportError, RuntimeError, JobError) as exc:
        return f"MPI: {exc}"
    return ""


def _default(names: list[str]) -> str:
    """Return the provider that windows would take; it need not be there."""
    wanted = os.environ.get("RMAEXT_PROVIDER", "")
    order = [wanted] if wanted else [*PROVIDERS, os.environ.get("FI_PROVIDER", "")]
    return next((name for name in order if name in names), wanted or PROVIDERS[-1])


def _examine(mpi: Mpi, name: str, end: float, patience: float) -> Finding:
    left = end - time.monotonic()
    title = name or "this node"
    settings = {"provider": name, "patience": patience}
    job = Job(case=name, settings=settings, program=("-m", "rmaext.cli.checkup"))
    if left < 0.5:
        return Finding(title, None, "not tried: out of time")
    try:
        result = launch(mpi, job, left, grace=0, to_the_end=True)
    except JobError as exc:
        text = _words(exc.why, exc.said, exc.slow)
        # On a busy machine whatever works may be too slow. A target that is not to
        # answer by itself is not slow.
        timed_out = exc.why.startswith("RmaTimeout") and os.environ.get("RMAEXT_PROGRESS") != "0"
        slow = (exc.slow or timed_out) and "crashed: " not in text
        return Finding(title, None if slow else False, text)
    absent = f"{result['absent'] * 1e6:.0f} us on a rank that calls nothing"
    what = f"put, get, {result['updates']} kinds of update, {absent}, teardown"
    routes = " and ".join(dict.fromkeys(result["routes"]))
    how = f"mr_mode {result['mr_mode']}" if name else f"routes {routes}"
    if name in _LISTENING and not result["guarded"]:
        how += "; connections of other users are NOT refused: see win.fabric.guarded"
    return Finding(title, True, f"{what}; {how}")


def _words(why: str, said: str, slow: bool) -> str:
    """Return the one line that says most about a job that failed, after the step it was in."""
    steps = re.findall(r"^step (.*)", said, re.MULTILINE)
    # who has crashed says so, though another rank may say that it is gone
    crash = re.search(r"Fatal Python error: ([^:\n]+)$", said, re.MULTILINE)
    if why.startswith("status"):  # before faulthandler was on, the launcher may know
        crash = crash or re.search(r"(Segmentation fault|Bus error|Aborted)", said)
    if crash:
        why = f"crashed: {crash[1]}"
    elif slow:
        why = f"hangs, or time was short: {why}"
    return f"{steps[-1] if steps else 'start'}: {why}"


def _absent(default: str, library: dict[str, Any]) -> Finding:
    text = f"libfabric {library['version']} at {library['path']} does not offer it"
    return Finding(default, False, text)


def _advice(name: str, text: str, working: list[str]) -> str:
    """Return what to do about a failure."""
    get = os.environ.get
    if "launcher of" in text:
        return "Install the launcher that belongs to mpi4py's MPI, or put it into PATH."
    if "MPI: " in text:
        return "Install mpi4py and an MPI: pip install rmaext[mpich]."
    if "offer" in text and name in PROVIDERS and get("FI_PROVIDER"):
        return f"FI_PROVIDER={get('FI_PROVIDER')} hides it: unset that."
    if "libfabric" in text and "offer" not in text:
        return "Install a libfabric (Debian: libfabric1), or set RMAEXT_LIBFABRIC to its path."
    if "progress" in text and get("RMAEXT_PROGRESS") == "0":
        return "RMAEXT_PROGRESS=0 keeps targets from answering by themselves: unset that."
    if working and working != [name]:
        return f"RMAEXT_PROVIDER={working[0]!r} works."
    return "Set FI_LOG_LEVEL=info to see what the provider says."


def _say(finding: Finding, default: str = "", working: list[str] | None = None) -> None:
    mark = {True: "ok", False: "fails", None: "?"}[finding.works]
    name = finding.name + (" (default)" if finding.name == default else "")
    advice = ""
    if finding.works is None:
        advice = "Give it more time: --limit."
    elif not finding.works:
        advice = _advice(finding.name, finding.text, working or [])
    shown = f"\033[{_COLOURS[mark]}m{mark:<5}\033[m" if sys.stdout.isatty() else f"{mark:<5}"
    text = " ".join(finding.text.split()).rstrip(".")
    print(f"{shown} {name}: {text}" + (f". {advice}" if advice else ""))
