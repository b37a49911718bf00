#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Tell the failure of a seed with as little as it takes, as a sequence chart.

    chart.py WORLD LIBFABRIC SEED FILE.svg    (`make sim SEED=17 WORLD=shm/locks CHART=17.svg`)

The program of a seed is tried with fewer kinds of faults, ranks and calls, each in many orders of
events, for as long as the same promise is broken. What is left is drawn in FILE.svg, and as text
in FILE.txt: what ranks do, messages, deaths, and who waits in the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FAULTS = ["deaths", "sleep", "away", "breaks", "receives", "refusals", "parts", "devices"]
ORDERS = 100  # that each smaller program is tried in
ROWS = 90  # of a chart, the last ones
FAILED = re.compile(r"seed (\d+), order (\d+), (-?\d+) ns: (.*)")


class Program(NamedTuple):
    """What is left of a seed's program; None: all."""

    without: frozenset[str] = frozenset()
    ranks: int | None = None
    calls: int | None = None
    only: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        """Return what makes a world run it."""
        told = {"WITHOUT": " ".join(sorted(self.without))}
        if self.ranks is not None:
            told["RANKS"] = str(self.ranks)
        if self.calls is not None:
            told["CALLS"] = str(self.calls)
        if self.only is not None:
            told["ONLY"] = f" {' '.join(self.only)} "
        return told

    def __str__(self) -> str:
        """Return how to run it."""
        told = {name: value for name, value in self.environment().items() if value}
        return " ".join(f"{name}='{value}'" for name, value in told.items())


class Failure(NamedTuple):
    """A run that has failed."""

    promise: str
    order: str
    said: list[str]
    trace: list[list[str]]


def run(command: list[str], seed: int, program: Program, **more: str) -> Failure | None:
    """Run a seed; None: all is well."""
    with tempfile.NamedTemporaryFile("r") as trace:
        env = {
            **os.environ,
            **program.environment(),
            "SEED": str(seed),
            "TRACE": trace.name,
            **more,
        }
        done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
        if not done.returncode:
            return None
        lines = [line.rstrip("\n").split("\t") for line in trace]
    said = done.stderr.strip().splitlines() or [f"ended by signal {-done.returncode}"]
    if found := FAILED.match(said[0]):
        return Failure(found[4], found[2], said[1:], lines)
    return Failure(said[0], more.get("ORDER", ""), said[1:], lines)


def smaller(items: list[str], fails: Callable[[list[str]], bool]) -> list[str]:
    """Return a part of them that still fails, of which no single one can go (ddmin)."""
    size = len(items) // 2
    while size:
        at = 0
        while at < len(items):
            rest = items[:at] + items[at + size :]
            if fails(rest):
                items = rest
            else:
                at += size
        size //= 2
    return items


def shrink(command: list[str], seed: int, first: Failure) -> tuple[Program, Failure]:
    """Return the smallest program found that breaks the same promise, and how it does."""
    program, failure = Program(), first

    def try_one(smaller: Program) -> bool:
        nonlocal program, failure
        # the order that has failed before, then others
        for how in {"ORDER": failure.order}, {"ORDERS": str(ORDERS)}:
            found = run(command, seed, smaller, **how)
            if found is not None and found.promise == first.promise:
                program, failure = smaller, found
                return True
        return False

    for kind in FAULTS:
        try_one(program._replace(without=program.without | {kind}))
    for ranks in range(2, 9):
        if try_one(program._replace(ranks=ranks)):
            break
    for calls in 1, 2, 3, 4, 6, 8, 12, 20, 40:
        if try_one(program._replace(calls=calls)):
            break
    made = sorted({f"{line[2]}.{line[3]}" for line in failure.trace if line[1] == "call"})
    smaller(made, lambda only: try_one(program._replace(only=tuple(only))))
    return program, failure


# -- charts


class Event(NamedTuple):
    """A row of a chart."""

    time: int
    kind: str  # "does", "die", "arrive", "lose", "sleep"
    rank: int
    text: str
    sent: int = -1  # row of the message's begin
    to: int = -1


def events_of(trace: list[list[str]]) -> list[Event]:
    """Return the last rows that the chart has."""
    sent: dict[str, tuple[list[str], int]] = {}
    rows: list[Event] = []
    for line in trace:
        when, what, *rest = line
        if what == "send":
            sent[rest[0]] = rest[1:], len(rows)
            continue
        if what in ("call", "broken"):
            continue
        time = int(when)
        if what in ("arrive", "lose"):
            (source, target, kind, size), row = sent[rest[0]]
            text = f"{kind}, {size} B"
            rows.append(Event(time, what, int(source), text, row, int(target)))
        else:
            text = {
                "die": "dies",
                "notice": f"knows that rank {rest[-1]} is dead",
                "sleep": "is away for a while",
                "does": rest[-1],
            }[what]
            rows.append(Event(time, what, int(rest[0]), text))
    cut = max(0, len(rows) - ROWS)
    return [row._replace(sent=max(0, row.sent - cut)) for row in rows[cut:]]


def as_text(rows: list[Event], ranks: int, title: list[str], end: list[str]) -> str:
    """Return the chart, a line for each row and a column for each rank."""
    wide = 12
    lines = [*title, "", " " * 16 + "".join(f"rank {rank}".ljust(wide) for rank in range(ranks))]
    dead: set[int] = set()
    for row in rows:
        at = [" " if rank in dead else "|" for rank in range(ranks)]
        text = "".join(mark.ljust(wide) for mark in at)
        if row.to >= 0 and row.to != row.rank:
            low, high = sorted((row.rank, row.to))
            inner = "-" * ((high - low) * wide - 1)
            if row.kind == "lose":
                inner = inner[: len(inner) // 2] + "x" + " " * (len(inner) - len(inner) // 2 - 1)
            arrow = inner[:-1] + ">" if row.to > row.rank else "<" + inner[1:]
            begin = low * wide + 1
            text = text[:begin] + arrow + text[begin + len(arrow) :]
            told = row.text
        else:
            told = f"rank {row.rank} {row.text}"
            mark = row.rank * wide
            text = text[:mark] + ("X" if row.kind == "die" else "o") + text[mark + 1 :]
        if row.kind == "die":
            dead.add(row.rank)
        lines.append(f"{row.time / 1000:12.1f} us {text} {told}".rstrip())
    return "\n".join([*lines, "", *end, ""])


def as_svg(rows: list[Event], ranks: int, title: list[str], end: list[str]) -> str:
    """Return the chart as a drawing: time runs down, a message from its begin to its end."""
    lane, row_high, left, top = 150, 18, 110, 40 + 18 * len(title)
    width, high = left + lane * ranks + 60, top + row_high * (len(rows) + len(end) + 3)
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{high}" '
        'font-family="sans-serif" font-size="11">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#2060a0"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]

    def text(x: float, y: float, said: str, style: str = "") -> None:
        made.append(f'<text x="{x}" y="{y}" {style}>{escape(said)}</text>')

    def line(x: float, y: float, x2: float, y2: float, style: str) -> None:
        made.append(f'<line x1="{x}" y1="{y}" x2="{x2}" y2="{y2}" {style}/>')

    for n, said in enumerate(title):
        text(10, 18 + 18 * n, said, 'font-weight="bold"' if not n else "")
    bottom = top + row_high * len(rows)
    for rank in range(ranks):
        x = left + lane * rank + lane / 2
        died = [n for n, row in enumerate(rows) if row.kind == "die" and row.rank == rank]
        text(x - 18, top - 12, f"rank {rank}", 'font-weight="bold"')
        line(x, top, x, top + row_high * died[0] if died else bottom, 'stroke="#999"')
    for n, row in enumerate(rows):
        x, y = left + lane * row.rank + lane / 2, top + row_high * n + 9
        text(8, y + 4, f"{row.time / 1000:.1f} us", 'fill="#777"')
        if row.to >= 0:
            x2, begin = left + lane * row.to + lane / 2, top + row_high * row.sent
            lost = row.kind == "lose"
            style = 'stroke="#c02020" stroke-dasharray="4"' if lost else 'stroke="#2060a0"'
            line(x, begin, x2, y, style if lost else style + ' marker-end="url(#head)"')
            text(x2 + 5, y + 4, row.text + (" (lost)" if lost else ""), 'fill="#2060a0"')
            continue
        colour = "#c02020" if row.kind == "die" else "#222"
        made.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        text(x + 6, y + 4, row.text, f'fill="{colour}"')
    for n, said in enumerate(end):
        text(10, bottom + row_high * (n + 2), said, 'fill="#c02020"' if not n else "")
    return "\n".join([*made, "</svg>", ""])


def main() -> int:
    """Run the seed; if it fails, shrink and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("world", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("chart", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    command = [str(options.world), str(options.library), "seeds"]
    first = run(command, options.seed, Program())
    if first is None:
        print(f"seed {options.seed}: no promise is broken")
        return 0
    program, failure = shrink(command, options.seed, first)
    rows = events_of(failure.trace)
    ranks = 1 + max(max(row.rank, row.to) for row in rows)
    again = f"SEED={options.seed} ORDER={failure.order} {program}"
    title = [f"{options.world.name}: {failure.promise}", again]
    end = [f"broken: {failure.promise}", *(line.strip() for line in failure.said)]
    options.chart.write_text(as_svg(rows, ranks, title, end))
    text = as_text(rows, ranks, title, end)
    options.chart.with_suffix(".txt").write_text(text)
    print(text)
    return 1


if __name__ == "__main__":
    sys.exit(main())
