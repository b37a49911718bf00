# SPDX-License-Identifier: BSD-3-Clause
"""What is shown: the table, the progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

# Like with like: whose speed is compared with whose in the table. The JSON has all pairs.
PAIRS = {
    "rmaext.Window.allocate": "MPI.Win.Allocate",
    "rmaext.Window": "MPI.Win.Create",
}


def table(job: dict[str, Any]) -> list[str]:
    """Lay out what a job measured: a column for each contestant and each ratio."""
    figures: list[dict[str, Any]] = job["figures"]
    names = list(dict.fromkeys(name for figure in figures for name in figure["values"]))
    letters = dict(zip(names, "abcdefgh", strict=False))
    pairs = [(a, b) for a in names for b in names if PAIRS.get(a) == b or _is_rival(a, b)]
    width = max(len(label(figure)) for figure in figures)
    lines = [f"{job['case']}: {describe(job)}"]
    lines += [f"  {letter} = {name}{_route(job, name)}" for name, letter in letters.items()]
    heads = [*letters.values(), "", *(f"{letters[a]}:{letters[b]}" for a, b in pairs)]
    lines.append(" " * width + "".join(f"{head:>10}" if head else " " * 6 for head in heads))
    for figure in figures:
        cells = [number(figure["values"].get(name, {}).get("value")) for name in names]
        speeds = {(r["of"], r["to"]): r["times_as_fast"] for r in figure["ratios"]}
        ratios = [number(speeds.get(pair), " x") for pair in pairs]
        line = f"{label(figure):{width}}" + "".join(f"{cell:>10}" for cell in cells)
        lines.append(f"{line} {figure['unit']:5}" + "".join(f"{ratio:>10}" for ratio in ratios))
    if pairs:
        a, b = (letters[name] for name in pairs[0])
        lines.append(f"{a}:{b}: speed of {a} / speed of {b}, median of the rounds' ratios")
    return lines


def describe(job: dict[str, Any]) -> str:
    """Say in words what a job was."""
    facts = job["facts"]
    route = "same node" if job["route"] == "node" else "over the network"
    words = [facts["mpi"], f"thread level {facts['thread_level']}", route, f"{job['ranks']} ranks"]
    if "provider" in facts:
        library = f"UCX {facts['ucx']}" if "ucx" in facts else f"libfabric {facts['libfabric']}"
        words.append(f"{library}, {facts['provider']}")
    return ", ".join(words)


def _is_rival(mine: str, other: str) -> bool:
    """Tell whether this is a baseline that is neither rmaext nor MPI."""
    return mine in PAIRS and not other.startswith(("rmaext", "MPI"))


def _route(job: dict[str, Any], name: str) -> str:
    route = job["facts"].get("routes", {}).get(name)
    return f" (route {route})" if route else ""


def label(figure: dict[str, Any]) -> str:
    """Say in words what a figure measures."""
    operation, size = figure["operation"], figure["size"]
    return f"{operation}, {bytes_text(size)}" if size else f"{operation}"


def bytes_text(size: float) -> str:
    """Return a size with its binary unit."""
    units = ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:g} {units[0]}"


def number(value: float | None, unit: str = "") -> str:
    """Return three significant digits."""
    if value is None:
        return "-"
    digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}{unit}"


class Bar:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles = titles
        self._start = time.monotonic()
        self._shown = 0.0
        self._visible = sys.stderr.isatty()

    def show(self, done: int, fraction: float) -> None:
        """Show that `done` jobs are finished, and the next one to this fraction."""
        now = time.monotonic()
        if not self._visible or now - self._shown < 0.1:
            return
        self._shown = now
        part = (done + fraction) / len(self._titles)
        filled = round(24 * part)
        left = ""
        if part > 0.02:
            seconds = round((now - self._start) * (1 - part) / part)
            left = f", about {seconds // 60}:{seconds % 60:02} left"
        title = self._titles[min(done, len(self._titles) - 1)]
        bar = "█" * filled + "░" * (24 - filled)
        self.write(f"{bar} {part:4.0%}{left}  {title}")

    def write(self, text: str = "") -> None:
        """Replace the line."""
        if self._visible:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
