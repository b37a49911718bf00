# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext top: what the ranks of running jobs do, as it goes on."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from .._runtime.config import hints_from
from ..inside.columns import table
from ..inside.sampling import Sampler

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command `top` to the parser's subcommands."""
    parser = commands.add_parser(
        "top",
        allow_abbrev=False,
        help="show what the ranks of running jobs do",
        description="Show a row for each rank of the jobs on this node that use windows: what "
        "it does, its operations and bytes a second, the share of the time that its main thread "
        "waits, and the memory of its windows. The processes are not asked: they may be "
        "stopped. Keys: left and right choose the column to sort by, r reverses, q quits.",
    )
    parser.add_argument(
        "pids",
        metavar="PID",
        type=int,
        nargs="*",
        help="a rank, or its launcher: its whole job is shown; default: all jobs of this user",
    )
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="between looks (default: 1)"
    )
    parser.add_argument("--once", action="store_true", help="print one table, and end")
    parser.add_argument("--json", action="store_true", help="with --once: print JSON")
    parser.set_defaults(function=top, parser=parser)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: must be from 0.05 to 3600 seconds")
    return value


def top(options: argparse.Namespace) -> int:
    """Show the table; the status of --once is 1 if there is no rank to show."""
    hints_from()  # a broken setting is told, whatever jobs there are
    if options.json and not options.once:
        options.parser.error("--json is for one look: add --once")
    sampler = Sampler(options.pids)
    try:
        if options.once:
            return _once(sampler, options)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            options.parser.error("this is no terminal: add --once")
        try:
            from ..inside.top import Top
        except ImportError as exc:
            text = f"the live table needs textual ({exc}): pip install 'rmaext[inside]'"
            print(f"{text}, or add --once", file=sys.stderr)
            return 1
        Top(sampler, options.interval).run()
        return 0
    finally:
        sampler.close()


def _once(sampler: Sampler, options: argparse.Namespace) -> int:
    if sampler.sample().ranks:
        time.sleep(options.interval)  # rates take two looks
    sample = sampler.sample()
    print(json.dumps(sample.to_json(), indent=1) if options.json else table(sample))
    return 0 if sample.ranks else 1
