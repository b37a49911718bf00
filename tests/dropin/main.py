# SPDX-License-Identifier: BSD-3-Clause
"""Run programs that use MPI.Win, unchanged, under `python -m rmaext run`.

    python tests/dropin/main.py [--only REGEX] [--routes direct,fabric,mixed] [--plain]
    python tests/dropin/main.py --times ROUNDS [--only REGEX] [--routes direct,fabric]

One line for each program, number of ranks and route. The status is 0 only if on
each rank the expected number of tests has passed. What the ranks wrote stays in
build/dropin/log. With the MPI of this Python; --plain leaves rmaext out of it, and
--times compares the programs of tests/dropin/adopters with and without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import launch  # noqa: E402
from programs import ADOPTERS, FOLDER, PROGRAMS, SITE, Program, install  # noqa: E402
from times import Times  # noqa: E402

from rmaext.bench.run import TCP  # noqa: E402

# Each rank has a file of its own for what it writes, and a pretend node where the
# routes are to be mixed. mpi-sppy leaves files where it runs.
RANK = """
rank=${PMI_RANK-$PMIX_RANK}
if [ ROUTE = mixed ]; then export RMAEXT_NODE="node $((rank % 2))"; fi
cd "$0" && exec "$@" <stdin >"$rank" 2>&1
"""
# how MPI itself is kept off shared memory
NETWORK = {name.lower().replace(" ", ""): how for name, how in TCP.items()}
RUN = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.M)


def passed(text: str) -> int:
    """Return how many tests passed, from what unittest wrote at its end; -1 if it did not."""
    found = RUN.findall(text)
    if len(found) != 1:
        return -1
    ran, others = found[0]
    return int(ran) - sum(map(int, re.findall(r"=(\d+)", others)))


@dataclass(frozen=True)
class Outcome:
    """Whether all went well with a program, what to say about it, and what rank 0 wrote."""

    good: bool
    line: str
    text: str


def run(program: Program, size: int, route: str, plain: bool) -> Outcome:
    """Run a program; with `plain` on the MPI's own windows."""
    kind = launch.launcher()[1]
    words = [kind, program.name, str(size), "plain " * plain + route]
    log = FOLDER / "log" / re.sub(r"\W+", "-", " ".join(words))
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    (log / "stdin").write_text(program.types)
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    env = launch.environment({"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"})
    extra: list[str] = []
    if route == "fabric":
        env["RMAEXT_ROUTE"] = "fabric"
        if program.alone:
            arguments, settings = NETWORK[kind]
            # with what Allocate_shared needs, too
            extra = arguments.replace("--mca osc rdma", "--mca osc rdma,sm").split()
            env |= dict(pair.split("=", 1) for pair in settings.split())
    command = launch.mpi_command(size, extra)
    command += ["sh", "-c", RANK.replace("ROUTE", route), str(log), sys.executable]
    command += [*(["-m", "mpi4py"] if plain else ["-m", "rmaext", "run"]), *program.arguments]
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
    line = f"{'ok  ' if good else 'FAIL'} {line} {said}, {time.monotonic() - start:.0f} s"
    return Outcome(good, line, texts[0])


def test(programs: Sequence[tuple[Program, int]], routes: Sequence[str], plain: bool) -> int:
    """Run programs at their sizes, and say how many have failed."""
    failed = done = 0
    for program, size in programs:
        for route in routes:
            for _ in range(program.tries):
                outcome = run(program, size, route, plain)
                print(outcome.line, flush=True)
                if outcome.good:
                    break
            failed += not outcome.good
            done += 1
    print(f"{done - failed} passed, {failed} failed")
    return 0 if done and not failed else 1


def compare(programs: Sequence[tuple[Program, int]], routes: Sequence[str], rounds: int) -> int:
    """Print the best times of some rounds with MPI's own windows and with rmaext, in turns."""
    times = Times()
    for program, size in programs:
        for route in routes:
            for _ in range(rounds):
                for plain in (True, False):
                    outcome = run(program, size, route, plain)
                    print(outcome.line, file=sys.stderr, flush=True)
                    times.add((program.name, size), (route, plain), outcome.good, outcome.text)
    print(times.table(routes), flush=True)
    return 0


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name has it")
    parser.add_argument("--routes", default="direct,fabric,mixed")
    parser.add_argument("--sizes", help="of the programs' sizes only these, as 1,2")
    parser.add_argument("--plain", action="store_true", help="the MPI's own windows")
    parser.add_argument("--times", type=int, metavar="ROUNDS", help="a table of times")
    options = parser.parse_args()
    # so that a job is ended with it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    install()
    routes = options.routes.split(",")
    sizes = {int(size) for size in options.sizes.split(",")} if options.sizes else None
    chosen = [
        (program, size)
        for program in (ADOPTERS if options.times else PROGRAMS)
        if re.search(options.only, program.name)
        for size in program.sizes
        if sizes is None or size in sizes
    ]
    if options.times:
        return compare(chosen, [route for route in routes if route != "mixed"], options.times)
    return test(chosen, ["direct"] if options.plain else routes, options.plain)


if __name__ == "__main__":
    sys.exit(main())
