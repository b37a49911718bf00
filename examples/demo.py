# SPDX-License-Identifier: BSD-3-Clause
"""What rmaext does, and what MPI.Win does with the same work, on this machine and now.

    python examples/demo.py

It starts jobs of examples/both_routes.py (two programs, compared with NumPy) and of
examples/beside_mpi.py (four cases, with MPI.Win and with rmaext), each under a time limit.
Arguments go to both_routes.py. Exit status 0 if rmaext did all as it should.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shlex
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import beside_mpi
from mpi4py import MPI

# It finds this MPI's mpiexec, and ends all that a job started when its time is over.
from rmaext._runtime import launcher

FOLDER = Path(__file__).resolve().parent
BESIDE = FOLDER / "beside_mpi.py"
LIMIT = 180.0  # seconds that a job may take
PATIENCE = 4.0  # seconds, at least, that survivors have for their fence
SURVIVORS = 2
WIDTH = 80


class Outcome(NamedTuple):
    """What came out of a job."""

    facts: list[dict[str, Any]]
    status: int | None  # of mpiexec; None: this program ended the job
    waited: float  # seconds after which it did so
    said: str = ""  # on stdout and stderr

    def of(self, case: str) -> dict[str, Any]:
        """Return what was told of a case; nothing, if the job did not get so far."""
        return next((fact for fact in self.facts if fact["case"] == case), {})

    @property
    def end(self) -> str:
        """How the job ended, in words."""
        if self.status is None:
            return f"no answer for {self.waited:.0f} s, then this demo ended the job"
        return f"the job ended with status {self.status}"


def run(ranks: int, command: Sequence[str], **how: Any) -> int | None:
    """Run a command on so many ranks; returns as `launcher.supervise`."""
    path, mpi = launcher.find()
    start = launcher.command(mpi, path, ranks, survive="watch" in how)
    sys.stdout.flush()
    return launcher.supervise([*start, *command], launcher.environment(), LIMIT, **how)


def beside(library: str, *cases: str) -> Outcome:
    """Run cases of beside_mpi.py on two ranks. With MPI.Win the job may die of them."""
    with tempfile.TemporaryDirectory() as name, open(Path(name, "said"), "w+b") as said:
        told = Path(name, "told")
        told.touch()
        command = [sys.executable, str(BESIDE), library, *cases, "--to", str(told)]
        status = run(2, command, out=said, err=said)
        return Outcome(read(told), status, LIMIT, text(said))


def beside_killed(library: str, patience: float) -> Outcome:
    """Run the case `killed`, where the survivors have `patience` seconds for their fence."""
    with tempfile.TemporaryDirectory() as name, open(Path(name, "said"), "w+b") as said:
        told = Path(name, "told")
        told.touch()
        since = math.inf

        def watch() -> float:
            """Return how many seconds the job has left."""
            nonlocal since
            facts = read(told)
            if sum("seconds" in fact for fact in facts) == SURVIVORS:
                return 0.0
            if since == math.inf and sum("waits" in fact for fact in facts) == SURVIVORS:
                since = time.monotonic()
            return since + patience - time.monotonic()

        # Even so MPICH's launcher may end the job when it sees a process die: it sees a shell.
        command = ["sh", "-c", '"$@"; exec sleep "$0"', str(LIMIT)]
        command += [sys.executable, str(BESIDE), library, "killed", "--to", str(told)]
        status = run(SURVIVORS + 1, command, out=said, err=said, watch=watch)
        facts = read(told)
        for path in {path for fact in facts for path in fact.get("memory", ())}:
            with suppress(OSError):
                Path(path).unlink()
        ends = [fact for fact in facts if "seconds" in fact]
        return Outcome(ends, status, LIMIT if since == math.inf else patience, text(said))


def text(said: IO[bytes]) -> str:
    """Return what a job printed."""
    said.seek(0)
    return said.read().decode(errors="replace")


def read(told: Path) -> list[dict[str, Any]]:
    """Return the lines that have been told so far, the last of which may be half a line."""
    lines = told.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


# -- what is said of it ------------------------------------------------------------------


def say(library: str, text: str) -> None:
    """Print what a library did, in two lines at most."""
    text = f"    {library:<10}" + " ".join(text.split())
    shape = {"max_lines": 2, "placeholder": " ...", "subsequent_indent": " " * 14}
    wrapped = textwrap.wrap(text, WIDTH, **shape)
    print(*wrapped, sep="\n", flush=True)


def milliseconds(seconds: float) -> str:
    """Return a time with two digits or more: 0.013 ms, 1.2 ms, 1,003 ms."""
    value = 1e3 * seconds
    digits = max(0, 1 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f} ms"


def of_busy(outcome: Outcome) -> str:
    """Say what came out of `busy`, in words."""
    fact = outcome.of("busy")
    if not fact:
        return outcome.end
    waited = fact["seconds"] > beside_mpi.COMPUTES / 2
    why = "it waited for the target" if waited else "it did not wait for the target"
    return f"{milliseconds(fact['seconds'])}: {why}" + ("" if fact["right"] else "; WRONG values")


def of_offset(outcome: Outcome) -> str:
    """Say what came out of `offset`, in words."""
    fact = outcome.of("offset")
    if not fact:
        return f"{outcome.end}, without an error in Python"
    count = fact["overwritten"]
    damage = f"{count} elements behind the window were overwritten" if count else "no damage"
    return f"{fact['error'] or 'no error'}; {damage}"


def of_killed(outcome: Outcome) -> str:
    """Say what came out of `killed`, in words."""
    facts = outcome.facts
    if not facts:
        return outcome.end
    last = max(fact["seconds"] for fact in facts)
    error = next((fact["error"] for fact in facts if fact["error"]), "no error").split(". ")[0]
    text = f"{len(facts)} of {SURVIVORS} went on after {milliseconds(last)}: {error}"
    return text if len(facts) == SURVIVORS else f"{text}; {outcome.end}"


def of_updates(outcome: Outcome, other: Outcome, how: str) -> str:
    """Say what came out of `updates`, and whether it was faster than the other library."""
    fact, others = outcome.of("updates"), other.of("updates")
    if not fact:
        return outcome.end
    text = f"{milliseconds(fact['seconds'])}, {how}" + ("" if fact["right"] else "; WRONG sums")
    ratio = others["seconds"] / fact["seconds"] if others else 0.0
    return f"{text}: {ratio:,.{0 if ratio >= 10 else 1}f} times as fast" if ratio > 1 else text


def faults(alone: Outcome, killed: Outcome) -> list[str]:
    """Return the cases in which rmaext did not do as it should."""
    busy, offset, updates = map(alone.of, ("busy", "offset", "updates"))
    errors = [fact["error"] or "" for fact in killed.facts]
    good = {
        "busy": busy.get("right"),
        "offset": (offset.get("error") or "").startswith("BoundsError")
        and not offset["overwritten"],
        "killed": [error.startswith("PeerLostError") for error in errors] == [True] * SURVIVORS,
        "updates": updates.get("right"),
    }
    return [case for case, fine in good.items() if not fine]


def main(argv: Sequence[str] | None = None) -> int:
    """Run all of it, and return the exit status."""
    if launcher.under_mpiexec():
        told = "demo.py starts its jobs itself: run it without mpiexec"
        sys.exit(told if MPI.COMM_WORLD.rank == 0 else 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what MPI.Win may die of leaves no file
    vendor, version = MPI.get_vendor()
    release = f"{vendor} {'.'.join(map(str, version))}"
    print(f"rmaext demo: {release}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print("\nTwo programs on 4 ranks, their answers compared with NumPy's:")
    own = sys.argv[1:] if argv is None else argv
    right = run(4, [sys.executable, str(FOLDER / "both_routes.py"), *own]) == 0

    print("\nThe same work on MPI.Win and on rmaext, seen in this run:", flush=True)
    ours = beside("rmaext", "busy", "updates", "offset")
    mpi = beside("MPI.Win", "busy", "updates", "offset")
    print(f"  a get from a rank that computes in NumPy for {beside_mpi.COMPUTES:.0f} s took")
    say("MPI.Win", of_busy(mpi))
    say("rmaext", of_busy(ours))
    place = f"{beside_mpi.PUT_AT} of a window of {beside_mpi.LENGTH}"
    print(f"  a put of {beside_mpi.PUT} elements at element {place}")
    say("MPI.Win", of_offset(mpi))
    say("rmaext", of_offset(ours))
    print(f"  {beside_mpi.UPDATES:,} updates of random elements of a rank took")
    say("MPI.Win", of_updates(mpi, ours, "a loop of Accumulate"))
    say("rmaext", of_updates(ours, mpi, "one accumulate_many"))
    print("  a rank is killed, mpiexec lets the others live, and they call fence", flush=True)
    our_end = beside_killed("rmaext", LIMIT)
    slowest = max((fact["seconds"] for fact in our_end.facts), default=0.0)
    say("MPI.Win", of_killed(beside_killed("MPI.Win", max(PATIENCE, 3 * slowest))))
    say("rmaext", of_killed(our_end))

    wrong = ([] if right else ["both_routes.py"]) + faults(ours, our_end)
    if wrong:  # as nobody could tell else why
        print(ours.said, our_end.said, sep="\n", file=sys.stderr)
    mpiexec = f"{short(launcher.find()[0])} -n 4 {short(sys.executable)}"
    print("\nNext: docs/start.md is a first program, docs/mpi-win.md each call of MPI.Win;")
    print("a program that uses MPI.Win already runs on rmaext as it is by")
    print(f"  {mpiexec} -m rmaext run PROGRAM.py")
    print(f"demo: WRONG: {', '.join(wrong)}" if wrong else "demo: OK")
    return 1 if wrong else 0


def short(path: str) -> str:
    """Return a path as one would type it here."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)


def terminated(signum: int, frame: object) -> NoReturn:
    """Leave in order, so that the job that runs is ended, too."""
    signal.signal(signum, signal.SIG_IGN)  # timeout(1) may send two
    sys.exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main())
