# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext trace: merge what the ranks of a job have written with RMAEXT_TRACE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..inside.trace.merge import merge
from ..inside.trace.reading import Job, TraceError, find

__all__ = ["add"]

DESCRIPTION = """\
Merge the traces that the ranks of a job have written to FOLDER, as RMAEXT_TRACE=FOLDER
told them to: a timeline for Perfetto and chrome://tracing (trace.json.gz), a matrix of who
has communicated with whom (matrix.csv and .png), how long operations and waits lasted
(latency.csv and .png), the ten most expensive call sites (sites.txt), and the sums of each
rank (summary.json). They are written beside the traces, unless --output names another
folder. Several folders are those of several nodes, or of several jobs.
"""


def add(commands: Any) -> None:
    """Add the command `trace` to the parser's subcommands."""
    parser = commands.add_parser(
        "trace",
        allow_abbrev=False,
        help="merge the traces of a job's ranks",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the files there")
    parser.add_argument(
        "--between",
        nargs=2,
        type=float,
        metavar=("A", "B"),
        help="seconds after the first event: only these come into the timeline",
    )
    parser.set_defaults(function=trace, parser=parser)


def trace(options: argparse.Namespace) -> int:
    """Merge all jobs that are there; print a summary of each. The status is 1 if one is bad."""
    between = tuple(options.between) if options.between else None
    if between and not 0 <= between[0] < between[1]:
        options.parser.error("--between: A must be 0 or more, and less than B")
    errors: list[Exception] = []
    jobs: list[Job] = []
    try:
        found = find(options.folders, errors.append)
        if options.output and len(found) > 1:
            names = ", ".join(str(job.folder) for job in found)
            raise TraceError(f"--output is for one job, and there are {len(found)}: {names}")
        jobs = found
    except (TraceError, OSError) as exc:
        errors.append(exc)
    for job in jobs:
        try:
            print(f"job {job.folder.name}: {len(job.ranks)} of {job.size} ranks")
            print(merge(job, options.output or job.folder, between), flush=True)
        except OSError as exc:
            errors.append(exc)
    for error in errors:
        print(f"python -m rmaext trace: {error}", file=sys.stderr)
    return 1 if errors else 0
