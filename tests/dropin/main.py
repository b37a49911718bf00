# SPDX-License-Identifier: BSD-3-Clause
"""Run programs that use MPI.Win, unchanged, under `python -m rmaext run`.

    python tests/dropin/main.py [--only REGEX] [--routes direct,fabric,mixed] [--plain]

One line for each program, number of ranks and route. The status is 0 only if on
each rank the expected number of tests has passed. What the ranks wrote stays in
build/dropin/log. With the MPI of this Python; --plain leaves rmaext out of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import launch  # noqa: E402
from programs import FOLDER, PROGRAMS, SITE, Program, install  # noqa: E402

# Each rank has a file of its own for what it writes, and a pretend node where the
# routes are to be mixed. mpi-sppy leaves files where it runs.
RANK = """
rank=${PMI_RANK-$PMIX_RANK}
if [ ROUTE = mixed ]; then export RMAEXT_NODE="node $((rank % 2))"; fi
cd "$0" && exec "$@" <stdin >"$rank" 2>&1
"""
RUN = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.M)


def passed(text: str) -> int:
    """Return how many tests passed, from what unittest wrote at its end; -1 if it did not."""
    found = RUN.findall(text)
    if len(found) != 1:
        return -1
    ran, others = found[0]
    return int(ran) - sum(map(int, re.findall(r"=(\d+)", others)))


def run(program: Program, size: int, route: str, plain: bool) -> tuple[bool, str]:
    """Run a program; return whether all went well, and what to say about it."""
    kind = launch.launcher()[1]
    words = [kind, program.name, str(size), "plain" if plain else route]
    log = FOLDER / "log" / re.sub(r"\W+", "-", " ".join(words))
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    (log / "stdin").write_text(program.types)
    command = launch.mpi_command(size) + ["sh", "-c", RANK.replace("ROUTE", route), str(log)]
    command += [sys.executable, *([] if plain else ["-m", "rmaext", "run"]), *program.arguments]
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    env = launch.environment({"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    if route == "fabric":
        env["RMAEXT_ROUTE"] = "fabric"
    start = time.monotonic()
    with open(log / "launcher", "wb") as out:
        code = launch.supervise(command, env, program.limit, out, out)
    files = [log / str(rank) for rank in range(size)]
    texts = [file.read_text(errors="replace") if file.exists() else "" for file in files]
    results = [passed(text) for text in texts]
    good = code == 0 and program.says in texts[0]
    said = "ended by the time limit" if code is None else f"status {code}"
    if program.tests is not None:
        good = good and results == [program.tests] * size
        said += f", {'+'.join(map(str, results))} of {size} x {program.tests} passed"
    line = f"{words[0]:8} {program.name:45} {size} {words[3]:7}"
    return good, f"{'ok  ' if good else 'FAIL'} {line} {said}, {time.monotonic() - start:.0f} s"


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has it")
    parser.add_argument("--routes", default="direct,fabric,mixed")
    parser.add_argument("--sizes", help="of the programs' sizes only these, as 1,2")
    parser.add_argument("--plain", action="store_true", help="the MPI's own windows")
    options = parser.parse_args()
    # so that a job is ended with it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    install()
    routes = ["direct"] if options.plain else options.routes.split(",")
    sizes = {int(size) for size in options.sizes.split(",")} if options.sizes else None
    failed = done = 0
    for program in PROGRAMS:
        if not re.search(options.only, program.name):
            continue
        for size in program.sizes:
            for route in routes:
                if sizes is None or size in sizes:
                    for _ in range(program.tries):
                        good, line = run(program, size, route, options.plain)
                        print(line, flush=True)
                        if good:
                            break
                    failed += not good
                    done += 1
    print(f"{done - failed} passed, {failed} failed")
    return 0 if done and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
