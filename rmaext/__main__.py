# SPDX-License-Identifier: BSD-3-Clause
"""The command line: python -m rmaext COMMAND."""

from __future__ import annotations

import argparse
import os
import sys

from . import __version__
from .cli import info, run


def main() -> int:
    """Run a subcommand and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m rmaext", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"rmaext {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run.add(commands)
    info.add(commands)
    if sys.argv[1:2] != ["run"]:  # before whose program nothing may initialise MPI
        from ._runtime.config import tell_of_unknown
        from .bench import command as bench
        from .cli import doctor, top, trace, why

        tell_of_unknown()  # here, and not in each job that these begin
        doctor.add(commands)
        why.add(commands)
        bench.add(commands)
        top.add(commands)
        trace.add(commands)
    options = parser.parse_args()
    try:
        status: int = options.function(options)
        sys.stdout.flush()
    except ValueError as exc:
        if not str(exc).startswith("RMAEXT_"):  # a setting, see _runtime/config.py
            raise
        parser.error(str(exc))
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
