# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext why: who waits for whom, in a job that runs or hangs."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .._runtime.config import hints_from
from ..inside import why as inside


def add(commands: Any) -> None:
    """Add the subcommand to the parser of the command line."""
    parser = commands.add_parser(
        "why",
        help="say who waits for whom in a job that hangs",
        allow_abbrev=False,
        description="Say what each rank of a job does now, in which call it waits and since when, "
        "and then the verdict: the cycle, or the rank that the others wait for. The processes "
        "are not asked: they may be stopped. The line of a rank that is in user code "
        "comes from py-spy, if it is installed.",
    )
    parser.add_argument(
        "pids",
        metavar="PID",
        type=int,
        nargs="*",
        help="a rank, or its launcher: its whole job is shown; default: all jobs of this user "
        "on this node",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="look at several nodes: what starts one process on each, as "
        "'mpiexec -n 2 -ppn 1 -hosts node1,node2' or 'srun --overlap --ntasks-per-node 1'",
    )
    parser.add_argument("--packed", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(function=why)


def why(options: argparse.Namespace) -> int:
    """Print it; the status is 1 if there was nothing to look at, or not all could be."""
    hints_from()  # a broken setting is told, whatever jobs there are
    if options.launcher and options.pids:
        print("--launcher looks at all jobs of this user: leave out the PIDs")
        return 2
    seen = (
        inside.look_everywhere(options.launcher) if options.launcher else inside.look(options.pids)
    )
    if options.packed:
        for line in inside.pack(seen):
            os.write(1, line.encode())
        return 0
    if options.json:
        print(json.dumps(inside.to_json(seen), indent=2))
    else:
        print("\n".join(inside.report(seen)))
    return 0 if seen.snapshots and not seen.refused else 1
