#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Try rmaext on this site's own network, and pack all that came of it in one file.

    make test-here                       what windows take by themselves, for 20 minutes
    make test-here TRANSPORT=ucx         UCX as the transport
    make test-here PROVIDER='verbs;ofi_rxm' ARGS="--minutes 60 --sizes 2:fabric tests/ops"

What follows the options are files of tests, and arguments of pytest; the Makefile has the tests
of what goes by network. `info`, `doctor` and `bench` come first, and the tests have the rest of
the time: those that it does not suffice for are cut off, and count as not run. The file has the
names of hosts, devices and paths, and the variables of RMAEXT_, UCX_ and FI_. The status is 0 if
`doctor` and all tests passed, 1 if not, 3 if they were cut off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import launch

PASSED, FAILED, CUT = 0, 1, 3
CASES = "latency,bandwidth,rate,progress,fence"
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")


def run(name: str, command: list[str], folder: Path, seconds: float) -> dict[str, Any]:
    """Run a step, whose output becomes a file; return how it went, and what its tests counted."""
    begun = time.monotonic()
    file = folder / f"{name}.txt"
    with file.open("wb") as output:
        code = None
        if seconds > 0:
            code = launch.supervise(command, launch.environment(), seconds, output, output)
    counted: dict[str, int] = {}
    for line in file.read_text(errors="replace").splitlines():
        if re.match(r"=+ .* in [\d.]+s", line):  # pytest's last one, of each size
            for number, what in COUNT.findall(line):
                counted[what] = counted.get(what, 0) + int(number)
    step = {"command": command, "status": code, "seconds": round(time.monotonic() - begun, 1)}
    words = "cut off" if code is None else "ok" if code == 0 else f"status {code}"
    counts = ", ".join(f"{number} {what}" for what, number in counted.items())
    print(f"{name:<8} {words:<10} {step['seconds']:6.1f} s  {counts}", flush=True)
    return step | {"tests": counted}


def verdict(steps: dict[str, dict[str, Any]]) -> int:
    """Return the status of the command."""
    found = [steps[name]["status"] for name in ("doctor", "tests")]
    if any(status not in (None, 0) for status in found):
        return FAILED
    return CUT if None in found else PASSED


def main() -> int:
    """Run the steps, and pack what they said."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--minutes", type=float, default=20, help="in all (default: 20)")
    parser.add_argument("--sizes", default="2:fabric,1:fabric,3:fabric", help="as tests/launch.py")
    parser.add_argument("--output", type=Path, default=launch.ROOT / "build" / "here")
    options, tests = parser.parse_known_args()
    end = time.monotonic() + 60 * options.minutes
    host = socket.gethostname()
    folder = options.output / f"{host}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    python, limit = [sys.executable], str(max(10, int(15 * options.minutes)))
    rmaext = [*python, "-m", "rmaext"]
    bench = [*rmaext, "bench", "--quick", "--route", "fabric", "--cases", CASES, "--limit", limit]
    suite = [*python, str(launch.ROOT / "tests" / "launch.py"), "--sizes", options.sizes]
    commands = {
        "info": [*rmaext, "info", "--json"],
        "doctor": [*rmaext, "doctor", "--limit", limit],
        "bench": [*bench, "--json", str(folder / "bench.json")],
        "tests": [*suite, "--limit", str(60 * options.minutes), *tests],
    }
    steps = {
        name: run(name, command, folder, end - time.monotonic())
        for name, command in commands.items()
    }
    named = re.compile("RMAEXT_|UCX_|FI_")
    facts = {
        "host": host,
        "minutes": options.minutes,
        "environment": {name: os.environ[name] for name in sorted(os.environ) if named.match(name)},
        "steps": steps,
    }
    (folder / "summary.json").write_text(json.dumps(facts, indent=1))
    packed = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, folder.name)
    print(f"all of it is in {packed}")
    return verdict(steps)


if __name__ == "__main__":
    sys.exit(main())
