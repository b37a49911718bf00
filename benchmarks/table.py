# SPDX-License-Identifier: BSD-3-Clause
"""The table of targets: what was promised, what is measured, met or missed.

    python benchmarks/table.py [--only REGEX] [--quick]         (make bench)

Runs with both MPIs (.venv and .venv-openmpi), each line from one job in which
the libraries are measured by turns. A job that fails or takes too long is
reported in its lines, and the table goes on. Writes a markdown table, for
RESULTS.md, and all figures as JSON beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import baseline

from rmaext.bench import report, run

HERE = Path(__file__).resolve().parent
ROWS = (str(HERE / "rows.py"),)  # the program of the cases that are only here
MIB = 1 << 20

ALLOCATE, CREATE = "rmaext.Window.allocate", "rmaext.Window"
MPI_ALLOCATE, MPI_CREATE = "MPI.Win.Allocate", "MPI.Win.Create"
MPI_FORMS = (MPI_ALLOCATE, MPI_CREATE)

# How each number is made of a figure, and which way the target lies.
TIME = "time of rmaext / time of"  # at most
SPEED = "speed of rmaext / speed of"  # at least
VALUE = "value"  # at most
OVER = "time of rmaext - time of"  # at most


@dataclass(frozen=True)
class Library:
    """An MPI at a thread level, in one of the virtual environments."""

    title: str
    name: str
    environment: str
    level: str = "multiple"


MPICH = Library("MPICH", "MPICH", ".venv")
SINGLE = Library("MPICH, thread level single", "MPICH", ".venv", "single")
OPENMPI = Library("Open MPI", "Open MPI", ".venv-openmpi")
UCX = Library("Open MPI over UCX", "Open MPI, UCX", ".venv-openmpi")


@dataclass(frozen=True)
class Claim:
    """A line: a figure of a job, which number is made of it, and its target.

    Attributes
    ----------
    figure : str
        Start of the figure's operation.
    kind : str
        TIME, SPEED, VALUE or OVER.
    target : float, optional
        None: only stated.
    peers : tuple of str
        Of several the best counts.
    mine : str
        Whose figure it is.
    size : int, optional
        Of the figure, where it has several.
    """

    figure: str
    kind: str
    target: float | None
    peers: tuple[str, ...] = MPI_FORMS
    mine: str = ALLOCATE
    size: int | None = None


@dataclass(frozen=True)
class Row:
    """A row of the issue: one job for each library, several lines from each."""

    title: str
    libraries: tuple[Library, ...]
    job: run.Job
    claims: tuple[Claim, ...]
    stated: tuple[Library, ...] = ()  # libraries for which there is no target


def job(
    case: str,
    forms: tuple[str, ...],
    route: str = "node",
    ranks: int = 2,
    program: tuple[str, ...] = ("-m", "rmaext.bench.job"),
    **settings: Any,
) -> run.Job:
    """Return a job, but for the thread level."""
    return run.Job(case, route, "multiple", ranks, {"forms": list(forms), **settings}, program)


BOTH = (MPICH, OPENMPI)
ATOM = ("put + flush", "get", "fetch_add")
ONE = tuple(Claim(name, TIME, 0.2) for name in ATOM)
MANY = ("put_many", "get_many", "fetch_add_many")
UPDATES = ("fetch_add_many", "accumulate_many")


def many(count: int) -> Row:
    """Return the row of the vectorised calls on the same node."""
    forms = (ALLOCATE, *MPI_FORMS)
    loops = [Claim(f"{call},", SPEED, 30) for call in MANY]
    plain = [Claim(f"{call},", SPEED, 0.5, ("C loop",)) for call in MANY]
    return Row(
        f"same node, {count} random words: the better mpi4py loop, a C loop",
        (MPICH, SINGLE, OPENMPI),
        job("random_c", forms, program=ROWS, updates=count, operations=MANY),
        (*loops, *plain),
    )


def spread(ranks: int, target: float, rounds: int) -> Row:
    """Return the row of random updates over the network."""
    forms = (CREATE, MPI_CREATE)
    where = "one target" if ranks == 2 else f"{ranks - 1} targets"
    return Row(
        f"tcp, 4096 random updates of 8 B to {where}",
        (MPICH, OPENMPI, UCX),
        job(
            "random_c",
            forms,
            "fabric",
            ranks,
            ROWS,
            updates=4096,
            operations=UPDATES,
            rounds=rounds,
        ),
        tuple(Claim(f"{call},", SPEED, target, mine=CREATE) for call in UPDATES),
    )


def absences(title: str, form: str, route: str, most: float) -> Row:
    """Return the row of first operations into absences, in ms."""
    claims = (
        Claim(f"first {name}, 100 absences of 10 ms: p95", VALUE, most, (), form) for name in ATOM
    )
    return Row(
        f"first 8 B operation, target computes, 100 absences: {title}",
        (MPICH,),
        job("progress", (form, MPI_CREATE), route),
        tuple(claims),
    )


def creation(ranks: int, rounds: int) -> Row:
    """Return the row of the creation of windows."""
    return Row(
        f"Window.allocate of 1 MiB, {ranks} ranks",
        BOTH,
        job("creation", (ALLOCATE, MPI_ALLOCATE), ranks=ranks, rounds=rounds),
        (Claim("window of 1 MiB", TIME, 1.0),),
    )


TABLE = (
    Row(
        "same node, allocate, 8 B",
        (OPENMPI,),
        job("latency", (ALLOCATE, *MPI_FORMS), sizes=[8]),
        tuple(Claim(name, TIME, 0.5) for name in ATOM),
    ),
    Row(
        "same node, allocate, 8 B",
        (MPICH, SINGLE),
        job("latency", (ALLOCATE, *MPI_FORMS), sizes=[8]),
        ONE,
        stated=(SINGLE,),
    ),
    Row(
        "prepared put, same node, over an empty Python call (ns)",
        (MPICH,),
        job("prepared", (ALLOCATE,), program=ROWS),
        (Claim("prepared put", OVER, 60, ("empty Python call",), "rmaext.prepare_put"),),
    ),
    many(1024),
    many(4096),
    Row(
        "same node, allocate, 4 MiB: memcpy (np.copyto)",
        BOTH,
        job("memcpy", (ALLOCATE, *MPI_FORMS), program=ROWS, sizes=[4 * MIB], operations=ATOM[:2]),
        (
            *(Claim(name, SPEED, 0.95, ("np.copyto",)) for name in ATOM[:2]),
            *(Claim(name, SPEED, None) for name in ATOM[:2]),
        ),
    ),
    Row(
        "same node, own arrays (cma): bare process_vm_writev, readv",
        BOTH,
        job("bare", (CREATE, MPI_CREATE), program=ROWS, sizes=[8, 4 * MIB], operations=ATOM[:2]),
        tuple(
            Claim(name, TIME, target, (peer,), CREATE, size)
            for size, most in ((8, 1.3), (4 * MIB, 1.1))
            for name in ATOM[:2]
            for peer, target in (("bare process_vm", most), (MPI_CREATE, None))
        ),
    ),
    Row(
        "tcp;ofi_rxm, 8 B",
        (MPICH, OPENMPI, UCX),
        job("latency", (CREATE, MPI_CREATE), "fabric", sizes=[8]),
        (
            Claim("put + flush", TIME, None, mine=CREATE),
            Claim("get", TIME, 1.0, mine=CREATE),
            Claim("fetch_add", TIME, 0.6, mine=CREATE),
        ),
        stated=(OPENMPI, UCX),
    ),
    Row(
        "tcp;ofi_rxm, bandwidth at 1 MiB",
        (MPICH, OPENMPI, UCX),
        job("bandwidth", (CREATE, MPI_CREATE), "fabric", sizes=[MIB]),
        tuple(Claim(f"{name} x 64", SPEED, 1.0, mine=CREATE) for name in ("put", "get")),
    ),
    spread(2, 20, rounds=10),
    spread(8, 5, rounds=3),
    absences("direct", ALLOCATE, "node", 1.0),
    absences("cma", CREATE, "node", 1.0),
    absences("fabric", CREATE, "fabric", 5.0),
    creation(2, rounds=10),
    creation(32, rounds=4),
    Row(
        "64 ranks on these cores, exchange with neighbours and fence, 100 rounds",
        (MPICH,),
        job("neighbours", (ALLOCATE, *MPI_FORMS), ranks=64, program=ROWS, rounds=4),
        (Claim("100 exchanges", TIME, 0.3),),
    ),
    Row(
        "8 ranks on these cores, random 8 B gets over the fabric",
        (MPICH,),
        job("gets", (CREATE, MPI_CREATE), "fabric", 8, ROWS, rounds=4),
        (
            Claim("random gets, all ranks", SPEED, 20, mine=CREATE),
            Claim("random gets, p99", VALUE, 1.0, (), CREATE),
        ),
    ),
)


def evaluate(claim: Claim, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number that a claim is about, and what it is made of."""
    found = [
        figure
        for figure in figures
        if figure["operation"].startswith(claim.figure)
        and (claim.size is None or figure["size"] == claim.size)
    ]
    if not found:
        return {"error": f"no figure {claim.figure!r}"}
    figure, unit = found[0], found[0]["unit"]
    values = {name: entry["value"] for name, entry in figure["values"].items()}
    mine = values[claim.mine]
    line = {"operation": report.label(figure), "mine": f"{report.number(mine)} {unit}", "peer": "-"}
    if claim.kind == VALUE:
        return {**line, "measured": mine, "unit": f" {unit}"}
    if claim.kind == OVER:
        other = values[claim.peers[0]]
        text = f"{claim.peers[0]}: {report.number(1e3 * other)} ns"
        line["mine"] = f"{report.number(1e3 * mine)} ns"
        return {**line, "peer": text, "measured": 1e3 * (mine - other), "unit": " ns"}
    speeds = {
        ratio["to"]: ratio["times_as_fast"]
        for ratio in figure["ratios"]
        if ratio["of"] == claim.mine and ratio["to"] in claim.peers
    }
    best = min(speeds, key=lambda name: speeds[name])
    line["peer"] = f"{best}: {report.number(values[best])} {unit}"
    measured = speeds[best] if claim.kind == SPEED else 1 / speeds[best]
    return {**line, "measured": measured, "unit": " x"}


def verdict(claim: Claim, line: dict[str, Any], stated: bool) -> dict[str, Any]:
    """Add what was promised, and whether it is so."""
    sign = ">=" if claim.kind == SPEED else "<="
    if claim.target is None or stated:
        return {**line, "target": "", "verdict": "stated"}
    line["target"] = f"{sign} {claim.target:g}{line.get('unit', '')}"
    if "error" in line:
        return {**line, "verdict": "failed"}
    value = line["measured"]
    met = value >= claim.target if claim.kind == SPEED else value <= claim.target
    return {**line, "verdict": "met" if met else "**missed**"}


def measure(row: Row, library: Library, options: argparse.Namespace) -> dict[str, Any]:
    """Run a row's job with a library; the result has the row's lines."""
    binaries = options.venvs / library.environment / "bin"
    mpi = run.Mpi(library.name, str(binaries / "mpiexec"), str(binaries / "python"))
    settings = {"rounds": 10, **row.job.settings}
    if options.quick:
        settings |= {"quick": True, "rounds": 2}
    wanted = row.job
    started = run.Job(
        wanted.case, wanted.route, library.level, wanted.ranks, settings, wanted.program
    )
    result: dict[str, Any] = {
        "row": row.title,
        "library": library.title,
        "case": wanted.case,
        "route": wanted.route,
        "thread_level": library.level,
        "ranks": wanted.ranks,
        "load": os.getloadavg()[0],
        "error": None,
        "figures": [],
        "facts": {},
    }
    start = time.monotonic()
    try:
        if not Path(mpi.mpiexec).exists():
            name = "openmpi" if "openmpi" in library.environment else "mpich"
            raise run.JobError(f"no {mpi.mpiexec}: make build MPI={name}")
        result.update(run.launch(mpi, started, options.limit))
    except run.JobError as exc:
        result["error"] = str(exc)
    result["seconds"] = time.monotonic() - start
    lines = []
    for claim in row.claims:
        if result["error"]:
            first = result["error"].splitlines()
            line = {"operation": claim.figure, "error": first[0], "mine": first[0]}
        else:
            line = evaluate(claim, result["figures"])
        line["kind"] = claim.kind
        lines.append(verdict(claim, line, library in row.stated))
    result["lines"] = lines
    return result


def show(line: dict[str, Any]) -> str:
    """Return a line of the table on the terminal."""
    measured = report.number(line["measured"], line["unit"]) if "measured" in line else "failed"
    text = f"  {line['operation'][:44]:46}{line.get('mine', '')[:12]:>13}"
    text += f"  {line.get('peer', ''):34}{measured:>10}  {line['target']:12}"
    return text + line["verdict"].strip("*")


def markdown(results: list[dict[str, Any]]) -> str:
    """Return the table for RESULTS.md."""
    lines = [
        "| what | MPI | rmaext | measured against | number | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for line in result["lines"]:
            what = f"{result['row']}: {line['operation']}".replace("|", "/")
            number = "failed"
            if "measured" in line:
                number = report.number(line["measured"], line["unit"])
            cells = [what, result["library"], line.get("mine", "-"), line.get("peer", "-")]
            cells += [number, line["target"], line["verdict"]]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        'Numbers in "x": with a target of "<=", the time of rmaext as a multiple of the time of what it is',
        'measured against; with ">=", its speed as a multiple. Others are in their units: "p95" and "p99" are',
        "rmaext's own, the prepared put is the difference to an empty call. Of several MPI windows the best counts.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the jobs, print the table. Exit status 1 if a job failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose title matches, or libraries")
    parser.add_argument("--quick", action="store_true", help="does it run? The numbers are rough")
    parser.add_argument("--limit", type=float, default=240, help="seconds a job may take")
    folder = HERE.parent / "build" / "bench"
    parser.add_argument("--markdown", type=Path, default=folder / "table.md")
    parser.add_argument("--json", type=Path, default=folder / "table.json")
    parser.add_argument("--venvs", type=Path, default=HERE.parent, help=argparse.SUPPRESS)
    options = parser.parse_args()
    baseline.build()
    results: list[dict[str, Any]] = []
    for row in TABLE:
        for library in row.libraries:
            if not re.search(options.only, f"{row.title}, {library.title}"):
                continue
            print(f"{row.title}; {library.title}", flush=True)
            result = measure(row, library, options)
            results.append(result)
            for line in result["lines"]:
                print(show(line), flush=True)
            for text in (result["error"], result.get("note")):
                if text:
                    print("    " + text.replace("\n", "\n    "), flush=True)
            # after each: an interrupted run is not lost
            options.json.write_text(json.dumps(results, indent=1) + "\n")
            options.markdown.write_text(markdown(results))
    verdicts = [line["verdict"] for result in results for line in result["lines"]]
    print(f"met {verdicts.count('met')}, missed {verdicts.count('**missed**')},", end=" ")
    print(f"failed {verdicts.count('failed')}; {options.markdown}, {options.json}")
    return 1 if any(result["error"] for result in results) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
