# SPDX-License-Identifier: BSD-3-Clause
"""Pictures of a trace; the only place of it that needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..tables import quantity
from .reading import OPERATIONS, ROUTES, Job
from .sums import EDGES, Sums

__all__ = ["MOST", "draw", "figures"]

MOST = 2048  # ranks in a picture
_COLOURS = {"": "#7a7a7a"} | dict(
    zip(ROUTES, ("#0b6e4f", "#6bbf59", "#b23a48", "#f4a259", "#7f5fa8"), strict=True)
)
_LEGEND = {
    "direct": "direct: by this CPU, in mapped memory",
    "cma": "cma: copied by the kernel",
    "fabric": "fabric: over the network",
    "message": "message: carried out by the target",
    "ipc": "ipc: copied by a device's stream of this process",
    "": "a wait",
}


def draw(job: Job, sums: Sums, folder: Path) -> list[Path]:
    """Draw matrix.png and latency.png into a folder; return their paths.

    Raises
    ------
    ImportError
        There is no matplotlib.
    """
    made = []
    for name, figure in figures(job, sums).items():
        made.append(folder / name)
        figure.savefig(made[-1], dpi=120)
    return made


def figures(job: Job, sums: Sums) -> dict[str, Any]:
    """Return matplotlib's figures, by the names of their files."""
    from matplotlib.figure import Figure

    made = {}
    if job.size <= MOST:
        made["matrix.png"] = _matrix(job, sums, Figure)
    if sums.latencies:
        made["latency.png"] = _latencies(sums, Figure)
    return made


def _matrix(job: Job, sums: Sums, figure_class: Any) -> Any:
    figure = figure_class(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    for i, what in enumerate(("operations", "bytes")):
        table = np.full((job.size, job.size), np.nan)
        for (origin, target), values in sums.pairs.items():
            if 0 <= target < job.size:
                table[origin, target] = values[i]
        image = axes[i].imshow(table, cmap="viridis", interpolation="nearest", vmin=0)
        figure.colorbar(image, ax=axes[i], label=what)
        axes[i].set(title=what, xlabel="target", ylabel="origin")
        if job.size <= 16:
            axes[i].set(xticks=range(job.size), yticks=range(job.size))
        if job.size <= 8:
            for origin, target in np.argwhere(~np.isnan(table)).tolist():
                text = str(quantity(table[origin, target]) if i else int(table[origin, target]))
                colour = "w" if table[origin, target] < np.nanmax(table) / 2 else "k"
                axes[i].text(target, origin, text, color=colour, ha="center", va="center", size=8)
    words = "row: the rank that operates; column: the rank whose memory it is; white: nothing"
    figure.supxlabel(words, fontsize=10)
    return figure


def _latencies(sums: Sums, figure_class: Any) -> Any:
    """Draw a panel for each kind, a line in it for each route."""
    order = [*OPERATIONS.values(), *sorted({kind for kind, _ in sums.latencies})]
    kinds = [kind for kind in dict.fromkeys(order) if any(kind == k for k, _ in sums.latencies)]
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = figure_class(figsize=(4.2 * columns, 2.6 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)
    edges = np.append(EDGES, EDGES[-1] * 10) / 1e3
    drawn: dict[str, Any] = {}
    for axes, kind in zip(panels, kinds, strict=False):
        for route, colour in _COLOURS.items():
            if (counts := sums.latencies.get((kind, route))) is not None:
                drawn[route] = axes.stairs(counts, edges, color=colour, fill=not route)
        axes.set_title(kind if kind in OPERATIONS.values() else f"wait: {kind}", fontsize=10)
        axes.set(xscale="log", yscale="symlog", ylim=(0, max(10, 2 * axes.dataLim.ymax)))
        axes.tick_params(labelbottom=True)
        axes.xaxis.set_minor_formatter("")
        axes.grid(alpha=0.3)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    used = np.flatnonzero(sum(sums.latencies.values()))
    panels[0].set_xlim(edges[max(used[0] - 2, 0)], edges[min(used[-1] + 3, len(edges) - 1)])
    figure.supxlabel("duration, µs", fontsize=10)
    figure.supylabel("events", fontsize=10)
    shown = [route for route in _LEGEND if route in drawn]
    figure.legend(
        [drawn[route] for route in shown],
        [_LEGEND[route] for route in shown],
        loc="outside upper center",
        ncols=min(columns, len(shown)),
        fontsize=8,
    )
    return figure
