# SPDX-License-Identifier: BSD-3-Clause
"""Plots of what was measured; the only place that needs matplotlib."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .report import bytes_text, describe

UNITS = {
    "us": "time, µs (lower is better)",
    "ms": "time, ms (lower is better)",
    "GB/s": "bandwidth, GB/s (higher is better)",
    "M/s": "million operations per second (higher is better)",
}
COLORS = {
    "rmaext.Window.allocate": "#0b6e4f",
    "rmaext.Window": "#6bbf59",
    "MPI.Win.Allocate": "#b23a48",
    "MPI.Win.Create": "#f4a259",
}


def figure_class() -> Any:
    """Return matplotlib's Figure, with a canvas that needs no display.

    Raises
    ------
    ImportError
        It is not installed; the message says how to get it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ImportError(
            f"--plot needs matplotlib ({exc}): pip install 'rmaext[bench]', or leave --plot out"
        ) from exc

    def make(**arguments: Any) -> Any:
        figure = Figure(**arguments)
        FigureCanvasAgg(figure)
        return figure

    return make


def plot(job: dict[str, Any], folder: Path) -> Path:
    """Draw a job's figures into a PNG file: over the size, or as bars."""
    figures = job["figures"]
    sizes = {figure["size"] for figure in figures}
    words = [job["case"], job["route"], job["facts"]["thread_level"], f"{job['ranks']}ranks"]
    path = folder / f"{'-'.join(words)}.png"
    draw = _lines if len(sizes) > 1 else _bars
    canvas = draw(figures)
    canvas.suptitle(f"{job['case']}: {describe(job)}", fontsize=10)
    canvas.savefig(path, dpi=120)
    return path


def _lines(figures: list[dict[str, Any]]) -> Any:
    """One panel for each operation, over the size of a transfer."""
    operations: dict[str, list[dict[str, Any]]] = {}
    for figure in figures:
        operations.setdefault(re.sub(r" x \d+", "", figure["operation"]), []).append(figure)
    # A single size is a point, not a curve.
    operations = {name: found for name, found in operations.items() if len(found) > 1}
    canvas = figure_class()(figsize=(5.2 * len(operations), 4.4), layout="constrained")
    for axes, (name, found) in zip(
        canvas.subplots(1, len(operations), squeeze=False, sharey=True)[0],
        operations.items(),
        strict=True,
    ):
        for contestant in found[0]["values"]:
            xs = [figure["size"] for figure in found]
            ys = [figure["values"][contestant]["value"] for figure in found]
            color = COLORS.get(contestant, "#555555")
            axes.plot(xs, ys, "o-", ms=4, label=contestant, color=color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(xs, [bytes_text(x) for x in xs], rotation=45, ha="right")
        axes.xaxis.minorticks_off()
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("size of a transfer")
        axes.set_ylabel(UNITS[found[0]["unit"]])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return canvas


def _bars(figures: list[dict[str, Any]]) -> Any:
    """One group of bars for each figure, in a panel for each unit."""
    units = list(dict.fromkeys(figure["unit"] for figure in figures))
    height = sum(0.25 + 0.15 * len(figure["values"]) for figure in figures)
    canvas = figure_class()(figsize=(9, 1.4 + height), layout="constrained")
    for axes, unit in zip(canvas.subplots(len(units), 1, squeeze=False)[:, 0], units, strict=True):
        found = [figure for figure in figures if figure["unit"] == unit]
        names = list(dict.fromkeys(name for figure in found for name in figure["values"]))
        thickness = 0.8 / len(names)
        for i, name in enumerate(names):
            at = [j + i * thickness for j, figure in enumerate(found) if name in figure["values"]]
            values = [f["values"][name]["value"] for f in found if name in f["values"]]
            color = COLORS.get(name, "#555555")
            bars = axes.barh(at, values, thickness * 0.9, label=name, color=color)
            axes.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
        middle = 0.4 - thickness / 2
        axes.set_yticks([j + middle for j in range(len(found))], [f["operation"] for f in found])
        axes.tick_params(axis="y", labelsize=8)
        axes.invert_yaxis()
        every = [entry["value"] for figure in found for entry in figure["values"].values()]
        if max(every) > 20 * min(every):
            axes.set_xscale("log")  # a bar's length is no measure then, but all can be seen
        axes.margins(x=0.12)
        axes.set_xlabel(UNITS[unit])
        axes.grid(axis="x", alpha=0.3)
        axes.legend(fontsize=8)
    return canvas
