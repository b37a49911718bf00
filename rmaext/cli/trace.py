# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext trace: merge what the ranks of a job have written with RMAEXT_TRACE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..inside.trace.merge import merge
from ..inside.trace.reading import TraceError, find

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
    parser.set_defaults(function=trace)


def trace(options: argparse.Namespace) -> int:
    """Merge all jobs that are there; print a summary of each."""
    try:
        jobs = find(options.folders)
        if options.output and len(jobs) > 1:
            names = ", ".join(str(job.folder) for job in jobs)
            raise TraceError(f"--output is for one job, and there are {len(jobs)}: {names}")
        for job in jobs:
            between = tuple(options.between) if options.between else None
            print(f"job {job.folder.name}: {len(job.ranks)} of {job.size} ranks")
            print(merge(job, options.output or job.folder, between), flush=True)
    except (TraceError, OSError) as exc:
        print(f"python -m rmaext trace: {exc}", file=sys.stderr)
        return 1
    return 0
