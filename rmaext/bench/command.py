# SPDX-License-Identifier: BSD-3-Clause
"""The command line of `python -m rmaext bench`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from .._runtime import launcher
from . import plots, report, run

FORMAT = 1  # of the JSON
KIB, MIB = 1 << 10, 1 << 20
SIZES = [8, 64, 512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 4 * MIB]
QUICK_SIZES = [8, 4 * KIB, 256 * KIB]
# Case -> the numbers of ranks that it is run with.
RANKS = {
    "latency": (2,),
    "bandwidth": (2,),
    "rate": (2,),
    "random": (2,),
    "progress": (2,),
    "creation": (2, 8),
    "fence": (2, 8),
    "start": (1,),  # which begins jobs of its own
}
SUFFIXES = {"": 1, "B": 1, "KI": KIB, "KIB": KIB, "MI": MIB, "MIB": MIB}
LARGEST = 64 * MIB

DESCRIPTION = """\
Measure rmaext next to MPI.Win (Create and Allocate) of the MPI that mpi4py uses.

Start it plainly, not under mpiexec: each case is a job of its own, of two ranks
or more, under a time limit, in which the libraries are measured by turns. The
target waits in the fence or barrier of the library that is being measured; only
in the case "progress" it computes. All data is verified; wrong data is a failure.
"""


def add(commands: Any) -> None:
    """Add `bench` to the subcommands of an argument parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure rmaext next to MPI.Win",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cases", type=_cases, default=list(RANKS), metavar="A,B", help=f"of {', '.join(RANKS)}"
    )
    parser.add_argument(
        "--route",
        choices=["node", "fabric", "both"],
        default="node",
        help="node: as it is on one machine; fabric: all over the network, MPI too (default: node)",
    )
    parser.add_argument(
        "--thread-level",
        choices=["multiple", "single", "both"],
        help="of MPI; by default both with MPICH, where it matters, unless --quick",
    )
    parser.add_argument(
        "--sizes", type=_sizes, metavar="8,4Ki,1Mi", help="bytes, for latency and bandwidth"
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="turns of each (default: 10)")
    parser.add_argument("--quick", action="store_true", help="seconds, not minutes; rough figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write PNG plots to a directory")
    parser.add_argument(
        "--limit", type=_positive, default=300, metavar="S", help="seconds a job may take"
    )
    parser.set_defaults(function=main)


def _cases(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in RANKS]:
        raise argparse.ArgumentTypeError(f"no case {unknown[0]!r}: choose from {', '.join(RANKS)}")
    return names


def _sizes(text: str) -> list[int]:
    sizes = []
    for word in text.split(","):
        digits = word.rstrip("KMiIBkb")
        factor = SUFFIXES.get(word[len(digits) :].upper())
        if not digits.isdecimal() or factor is None:
            raise argparse.ArgumentTypeError(f"not a size: {word!r}")
        size = int(digits) * factor
        if size % 8 or not 8 <= size <= LARGEST:
            raise argparse.ArgumentTypeError(f"{word}: a multiple of 8 bytes, at most 64 MiB")
        sizes.append(size)
    return sizes


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def jobs(options: argparse.Namespace, mpi: run.Mpi) -> list[run.Job]:
    """Return what is to be run."""
    levels = [options.thread_level or "multiple"]
    both = options.thread_level is None and mpi.name == "MPICH" and not options.quick
    if both or options.thread_level == "both":
        levels = ["multiple", "single"]
    settings = {
        "quick": options.quick,
        "rounds": options.rounds or (2 if options.quick else 10),
        "sizes": options.sizes or (QUICK_SIZES if options.quick else SIZES),
    }
    found = []
    for route in ["node", "fabric"] if options.route == "both" else [options.route]:
        forms = forms_on(mpi, route)
        for level in levels:
            for case in options.cases:
                own = {**settings, "forms": forms}
                if case == "bandwidth" and not options.sizes:
                    own["sizes"] = [size for size in own["sizes"] if size >= 4 * KIB]
                for ranks in RANKS[case][: 1 if options.quick else None]:
                    found.append(run.Job(case, route, level, ranks, own))
    return found


def forms_on(mpi: run.Mpi, route: str) -> list[str]:
    """Return the forms of windows that can be measured on a route."""
    from .peers import FORMS  # loads MPI, which other commands must be able to do without

    if route == "fabric" and mpi.name != "MPICH":
        # Open MPI's osc rdma shares allocated memory within a node, whatever the BTLs are.
        return [form for form in FORMS if form != "MPI.Win.Allocate"]
    return list(FORMS)


def main(options: argparse.Namespace) -> int:
    """Run the jobs and report. The exit status is 1 if one of them failed."""
    if launcher.under_mpiexec():
        print("rmaext bench launches its own jobs: start it without mpiexec", file=sys.stderr)
        return 2
    try:
        if options.plot:
            plots.figure_class()  # now, not after minutes
            options.plot.mkdir(parents=True, exist_ok=True)
        if options.json:
            options.json.touch()
        mpi = run.mpi_in_use()
    except (ImportError, RuntimeError, OSError, run.JobError) as exc:  # no MPI is a RuntimeError
        print(f"rmaext bench: {exc}", file=sys.stderr)
        return 2
    planned = jobs(options, mpi)
    bar = report.Bar([f"{job.case}, {job.route}, {job.level}" for job in planned])
    results = []
    for number, job in enumerate(planned):
        results.append(one(mpi, job, options, bar, number))
        bar.write()
        show(results[-1])
    if options.json:
        document = {"format": FORMAT, "machine": machine(), "jobs": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(result["error"] for result in results) else 0


def one(
    mpi: run.Mpi, job: run.Job, options: argparse.Namespace, bar: report.Bar, number: int
) -> dict[str, Any]:
    """Run a job, and plot its figures."""
    result: dict[str, Any] = {
        "case": job.case,
        "route": job.route,
        "thread_level": job.level,
        "ranks": job.ranks,
        "error": None,
    }
    bar.show(number, 0)
    try:
        found = run.launch(mpi, job, options.limit, lambda part: bar.show(number, part))
    except run.JobError as exc:
        return {**result, "error": str(exc), "facts": {}, "figures": []}
    result.update(found)
    if options.plot:
        plots.plot(result, options.plot)
    return result


def show(result: dict[str, Any]) -> None:
    """Print what a job measured, or why it did not."""
    if result["error"]:
        where = f"{result['route']}, {result['thread_level']}, {result['ranks']} ranks"
        print(f"{result['case']} ({where}): FAILED, {result['error']}\n", flush=True)
        return
    print("\n".join(report.table(result)))
    if "note" in result:
        print(f"note: {result['note']}")
    print(flush=True)


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
