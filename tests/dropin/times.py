# SPDX-License-Identifier: BSD-3-Clause
"""What the programs of tests/dropin/adopters say of their times, as a table of the docs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

TOOK = re.compile(r"^took (.+): ([0-9.]+) s$", re.M)  # as adopters/clock.py writes it
COLUMNS = {"direct": "one node", "fabric": "network"}

Case = tuple[str, int]  # a program and its ranks
Way = tuple[str, bool]  # a route, and whether rmaext was left out


class Times:
    """The best time of each part of each program, in seconds, by each way."""

    def __init__(self) -> None:
        self._best: dict[tuple[Case, str], dict[Way, float]] = defaultdict(dict)
        self._failures: dict[tuple[Case, Way], int] = defaultdict(int)
        self._runs: dict[tuple[Case, Way], int] = defaultdict(int)

    def add(self, case: Case, way: Way, good: bool, text: str) -> None:
        """Take in what rank 0 of a run wrote; it may have failed after that."""
        self._runs[case, way] += 1
        self._failures[case, way] += not good
        for what, seconds in TOOK.findall(text):
            best = self._best[case, what]
            best[way] = min(best.get(way, float("inf")), float(seconds))

    def table(self, routes: Sequence[str]) -> str:
        """Return the table in Markdown."""
        ways = [(route, plain) for route in routes for plain in (True, False)]
        heads = [f"{'MPI.Win' if plain else 'rmaext'}, {COLUMNS[route]}" for route, plain in ways]
        lines = [["program", "ranks", "what", *heads], ["---"] * (3 + len(ways))]
        for (case, what), best in self._best.items():  # a part that no run came to has no row
            cells = [self._cell(case, way, best) for way in ways]
            lines.append([case[0], str(case[1]), what, *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _cell(self, case: Case, way: Way, best: dict[Way, float]) -> str:
        failures, runs = self._failures[case, way], self._runs[case, way]
        words = [f"{best[way]:.3g} s"] if way in best else []
        if failures:
            words.append(f"{failures} of {runs} failed" if failures < runs else "fails")
        return ", then ".join(words)
