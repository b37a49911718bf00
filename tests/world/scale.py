#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run worlds of many ranks; print what each rank has sent and taken, and draw it.

    scale.py LIBFABRIC PICTURE.svg    (make sim-scale)

The programs check their formulas themselves. The table is of Markdown, for docs/contributing/
scale.md; memory is in bytes of a rank, times in microseconds of this CPU.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WHOLE = ("scale", "ranks", (64, 256, 1024, 4096, 16384))
CROWD = ("crowd", "crowd", (64, 256, 1024))
LIMIT = 600  # seconds of a run
GREY = "#7a7a7a"  # read on a white page and on a dark one
COLOURS = ("#3f8fd2", "#e08a1e", "#3a9d5d", "#b05fc0", "#c94f4f")
CREATION = ("endpoint", "communicator", "window", "idle window", "meetings")
# Of what is mostly the world's own there is no line: times of creation, memory of locks.
NOT_TOLD = {(what, "cpu_us") for what in CREATION} | {
    (what, "memory") for what in ("contended lock", "lock_all")
}
DRAWN = {  # what of each row, as the table says it
    "messages": ("fence", "notification", "put and flush to all", "contended lock", "lock_all"),
    "bytes": ("fence", "notification", "put and flush to all", "contended lock", "lock_all"),
    "memory": CREATION,
}

Row = dict[str, Any]


def run(program: str, test: str, ranks: int, library: str) -> list[Row]:
    """Return the rows of one job."""
    done = subprocess.run(
        [ROOT / "build" / "sim" / program, library, test],
        env={**os.environ, "RANKS": str(ranks)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(rows: list[Row]) -> str:
    """Return a table: a line for each thing that is done, a column for each number of ranks."""
    sizes = sorted({row["ranks"] for row in rows})
    found = {(row["what"], row["ranks"]): row for row in rows}
    lines = [
        f"| | {' | '.join(f'{size:,}' for size in sizes)} |",
        f"|---|{'---:|' * len(sizes)}",
    ]
    for what in dict.fromkeys(row["what"] for row in rows):
        for key in ("messages", "bytes", "memory", "cpu_us"):
            cells = [found.get((what, size)) for size in sizes]
            if (what, key) not in NOT_TOLD and any(cell and cell[key] for cell in cells):
                texts = [f"{cell[key]:,.0f}" if cell else "" for cell in cells]
                lines.append(f"| {what}: {key.replace('_', ', ')} | {' | '.join(texts)} |")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Draw a curve for each chosen line, on a page of any colour."""
    from matplotlib import pyplot

    style = {
        "font.size": 10,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "rmaext",  # the same file each time
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
        ),
    }
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(1, len(DRAWN), figsize=(10, 4.2), layout="constrained")
        for axes, (key, names) in zip(panels, DRAWN.items(), strict=True):
            for name, colour in zip(names, COLOURS, strict=True):
                points = [(row["ranks"], row[key]) for row in rows if row["what"] == name]
                points = [(x, y) for x, y in points if y > 0]
                if points:
                    axes.plot(
                        *zip(*sorted(points), strict=True), "o-", color=colour, ms=3, label=name
                    )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(f"{key} of a rank" + (", in bytes" if key == "memory" else ""))
            axes.set_xlabel("ranks")
            axes.set_ylim(10 ** math.floor(math.log10(axes.get_ylim()[0])), None)
            axes.minorticks_off()
            axes.legend(
                frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2)
            )
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def main() -> int:
    """Run them all."""
    library, picture = sys.argv[1], Path(sys.argv[2])
    rows = [
        row
        for program, test, sizes in (WHOLE, CROWD)
        for ranks in sizes
        for row in run(program, test, ranks, library)
    ]
    print(table(rows))
    draw(rows, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
