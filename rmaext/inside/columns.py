# SPDX-License-Identifier: BSD-3-Clause
"""The columns of the table of ranks, and the line above it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .._record import hints
from .sampling import Rank, Sample
from .tables import aligned, quantity

__all__ = ["COLUMNS", "Column", "below", "headline", "table"]


class Column(NamedTuple):
    """A column: its title, what it is sorted by, and what it shows."""

    title: str
    key: Callable[[Rank], Any]
    shown: Callable[[Rank], str]
    left: bool = False  # aligned so


def _thousands(number: float) -> str:
    """Return a rate in few characters: "12.3k"."""
    for unit in ("", "k", "M", "G"):
        if number < 999.5 or unit == "G":
            break
        number /= 1000
    return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.3g}{unit}"


def _window(rank: Rank) -> str:
    """Return the number of a window, and the container that it is of."""
    number = "" if rank.window is None else str(rank.window)
    return f"{number} ({rank.container})" if rank.container else number


COLUMNS = (
    Column("job", lambda r: r.job, lambda r: r.job, True),
    Column("rank", lambda r: (r.rank, r.job), lambda r: str(r.rank)),
    Column("pid", lambda r: r.pid, lambda r: str(r.pid)),
    Column("state", lambda r: r.state, lambda r: r.state, True),
    Column("call", lambda r: r.call, lambda r: r.call, True),
    Column("window", lambda r: r.window or 0, _window),
    Column(
        "op/s", lambda r: r.operations_per_second, lambda r: _thousands(r.operations_per_second)
    ),
    Column("bytes/s", lambda r: r.bytes_per_second, lambda r: quantity(r.bytes_per_second)),
    Column("wait %", lambda r: r.wait_share, lambda r: f"{100 * r.wait_share:.0f}"),
    Column("memory", lambda r: r.window_bytes, lambda r: quantity(r.window_bytes)),
    Column("at", lambda r: r.at, lambda r: r.at, True),
)


def headline(sample: Sample) -> str:
    """Return what all ranks do together."""
    programs = dict.fromkeys(Path(r.program.split(" ")[0]).name for r in sample.ranks)
    if not programs:
        return "no process of this user uses windows of rmaext"
    operations = sum(r.operations_per_second for r in sample.ranks)
    size = sum(r.bytes_per_second for r in sample.ranks)
    ranks, jobs = len(sample.ranks), len({r.job for r in sample.ranks})
    return (
        f"{', '.join(programs)}: {ranks} rank{'s' * (ranks > 1)}, {jobs} job{'s' * (jobs > 1)}, "
        f"{_thousands(operations)} op/s, {quantity(size)}B/s"
    )


def below(sample: Sample) -> list[str]:
    """Return what there is to say below the table."""
    return [*hints.lines(sample.hints), *sample.refused]


def table(sample: Sample) -> str:
    """Return all of it as text."""
    rows = [[column.shown(rank) for column in COLUMNS] for rank in sample.ranks]
    lines = [headline(sample)]
    if rows:
        titles = [column.title for column in COLUMNS]
        lines.append(aligned(titles, rows, left=[i for i, c in enumerate(COLUMNS) if c.left]))
    return "\n".join([*lines, *below(sample)])
