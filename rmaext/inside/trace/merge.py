# SPDX-License-Identifier: BSD-3-Clause
"""Merges the traces of a job's ranks, and writes and says what is in them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ..tables import aligned, quantity, seconds
from . import clocks, pictures, timeline
from .arrows import Arrows
from .reading import Job
from .sums import EDGES, Sums

__all__ = ["merge"]

_MANY = 1_000_000  # events: from here on it takes seconds
_BROWSER = 5_000_000  # events: what a browser opens well
_TOP = 10


def merge(job: Job, folder: Path, between: tuple[float, float] | None = None) -> str:
    """Write all files of a job into a folder; return the summary.

    The files are trace.json.gz, matrix.csv, latency.csv, sites.txt and summary.json; and
    matrix.png and latency.png, where there is matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    add = clocks.offsets(job)
    arrows = Arrows(job, add)
    sums = Sums.of(job, arrows)
    with _progress(job.events) as advance:
        path = folder / "trace.json.gz"
        written = timeline.write(job, arrows, add, path, between, advance)
    _csv(folder / "matrix.csv", "origin target operations bytes errors", _pairs(sums))
    header = "kind route from_us to_us events"
    _csv(folder / "latency.csv", header, _classes(sums))
    summary = _summary(job, sums)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    sites = _sites(sums)
    (folder / "sites.txt").write_text(sites + "\n")
    hints = list(job.problems)
    try:
        pictures.draw(job, sums, folder)
        if job.size > pictures.MOST:
            hints.append(f"matrix.png is left out for more than {pictures.MOST} ranks")
    except ImportError as exc:
        text = "the pictures need matplotlib (pip install 'rmaext[inside]')"
        hints.append(f"{text}: {exc}; all else is there")
    if written > _BROWSER:
        hints.append(
            f"the timeline has {written} events, which a browser may not open: choose a part of "
            "it with --between"
        )
    parts = [_ranks(job, sums), sites, *(f"note: {hint}" for hint in hints)]
    made = sorted(p.name for p in folder.iterdir() if not p.is_dir() and "rank-" not in p.name)
    parts.append(f"{folder}: {', '.join(made)}")
    parts.append("Open trace.json.gz at https://ui.perfetto.dev or in chrome://tracing.")
    return "\n".join(parts)


@contextmanager
def _progress(events: int) -> Iterator[Callable[[int], None]]:
    """Show how far a long merge is, on a terminal, if there is rich."""
    try:
        from rich.progress import Progress
    except ImportError:
        events = 0
    if events < _MANY or not sys.stderr.isatty():
        yield lambda number: None
        return
    from rich.console import Console

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("events", total=events)
        yield lambda number: bar.advance(task, number)


def _csv(path: Path, header: str, rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split())
        writer.writerows(rows)


def _pairs(sums: Sums) -> Iterator[list[Any]]:
    for (origin, target), values in sorted(sums.pairs.items()):
        yield [origin, target if target >= 0 else "unknown", *values.tolist()]


def _classes(sums: Sums) -> Iterator[list[Any]]:
    edges = [*(EDGES / 1e3).tolist(), "inf"]
    for (kind, route), counts in sorted(sums.latencies.items()):
        for i in np.flatnonzero(counts).tolist():
            yield [kind, route, edges[i] if i else 0, edges[i + 1], counts[i]]


def _summary(job: Job, sums: Sums) -> dict[str, Any]:
    names = ("operations", "bytes", "errors")
    ranks = []
    for rank in job.ranks:
        kinds = [
            {"kind": kind, "route": route} | dict(zip(names, values.tolist(), strict=True))
            for (kind, route), values in sorted(sums.kinds[rank.rank].items())
        ]
        entry = {"rank": rank.rank, "host": rank.host, "pid": int(rank.header["pid"])}
        entry["network"] = rank.network
        entry |= {"events": len(rank.events), "lost": rank.lost, "kinds": kinds}
        ranks.append(entry | {"seconds_in_waits": sums.waits[rank.rank] / 1e9})
    total = dict(zip(names, sums.total().tolist(), strict=True))
    facts = {"version": __version__, "job": job.folder.name, "size": job.size}
    return facts | total | {"ranks": ranks, "problems": job.problems}


def _ranks(job: Job, sums: Sums) -> str:
    rows = []
    for rank in job.ranks:
        total = sum(sums.kinds[rank.rank].values(), np.zeros(3, np.int64))
        begin, end = rank.events["begin"], rank.events["end"]
        span = int(end.max() - begin.min()) if len(begin) else 0
        waits = sums.waits[rank.rank]
        rows.append([rank.rank, total[0], quantity(total[1]), total[2], seconds(waits)])
        rows[-1].append(seconds(span))
    total, waits = sums.total(), sum(sums.waits.values())
    rows.append(["all", total[0], quantity(total[1]), total[2], seconds(waits), ""])
    return aligned(["rank", "operations", "bytes", "errors", "in waits", "traced"], rows)


def _sites(sums: Sums) -> str:
    """Return the table of the call sites that have taken most time, all ranks together."""
    found = sorted(sums.sites.items(), key=lambda item: -item[1].ns)
    rows = [
        [seconds(site.ns), seconds(site.waits), site.operations, quantity(site.bytes), call, at]
        for (at, call), site in found[:_TOP]
    ]
    return aligned(["time", "in waits", "operations", "bytes", "call", "at"], rows, left=(4, 5))
