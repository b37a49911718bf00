# SPDX-License-Identifier: BSD-3-Clause
"""Draw some lines of the table of targets: rmaext beside MPI.Win, with both MPIs.

    python benchmarks/picture.py                        docs/pictures/speed.svg, of RESULTS.md
    python benchmarks/picture.py TABLE.md PICTURE.svg   of another run (make bench does this)

The lines are chosen once, below, for what a program does, not for how they end: those in which
MPI.Win is faster are bars to the left. A line that the table lacks is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from targets import SPEED, TABLE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"

COLOURS = {"MPICH": "#3f8fd2", "Open MPI": "#e08a1e"}
GREY = "#7a7a7a"  # read on a white page and on a dark one

NODE, TCP = "On one node", "Over TCP"
# Words of the picture: how the table names the line.
CHOSEN = {
    NODE: {
        "get, 8 B": "same node, allocate, 8 B: get, 8 B",
        "put + flush, 8 B": "same node, allocate, 8 B: put + flush, 8 B",
        "put + flush, 4 MiB": "same node, allocate, 4 MiB: memcpy (np.copyto): put + flush, 4 MiB",
        "1,024 random updates": "same node, 1024 random words: the better mpi4py loop, a C loop: "
        "fetch_add_many, 1024 words, 8 B",
        "put that notifies, 8 B": "same node, allocate, put_notify, one way: "
        "put + flush + Send: notified put, one way, 8 B",
        "lock + put + unlock": "same node, exclusive lock + put of 8 B + unlock: "
        "lock + put + unlock, 8 B",
        "window of 1 MiB": "Window.allocate of 1 MiB, 2 ranks: window of 1 MiB on each of 2 ranks",
    },
    TCP: {
        "get, 8 B": "tcp, 8 B: get, 8 B",
        "put + flush, 8 B": "tcp, 8 B: put + flush, 8 B",
        "fetch_add, 8 B": "tcp, 8 B: fetch_add, 8 B",
        "4,096 random updates": "tcp, 4096 random updates of 8 B to one target: "
        "fetch_add_many, 4096 words, 8 B",
        "fence, nothing sent": "tcp, 2 ranks at work: empty fence",
    },
}


class Bar(NamedTuple):
    """A line of the table: how many times as fast as MPI.Win, with one MPI."""

    group: str
    words: str
    mpi: str
    speed: float

    @property
    def text(self) -> str:
        """Return the number as the picture shows it."""
        digits = 0 if self.speed >= 10 else 1 if self.speed >= 2 else 2
        return f"{self.speed:.{digits}f}"


def is_speed(what: str, peer: str) -> bool:
    """Tell whether a line's number is a multiple of a speed; else it is one of a time."""
    for row in TABLE:
        for claim in row.claims if what.startswith(f"{row.title}: ") else ():
            if peer in claim.peers and re.match(claim.figure, what[len(row.title) + 2 :]):
                return claim.kind == SPEED
    raise ValueError(f"targets.py has no line {what!r}, measured against {peer}")


def bars(table: str) -> list[Bar]:
    """Return the chosen lines of a table, as table.py writes it."""
    speeds, wanted = {}, {name for lines in CHOSEN.values() for name in lines.values()}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) < 5 or cells[0] not in wanted or not cells[3].startswith("MPI.Win"):
            continue
        if number := re.fullmatch(r"([\d.,]+) x", cells[4]):
            ratio = float(number[1].replace(",", ""))
            peer = cells[3].partition(":")[0]
            speeds[cells[0], cells[1]] = ratio if is_speed(cells[0], peer) else 1 / ratio
    return [
        Bar(group, words, mpi, speeds[name, mpi])
        for group, lines in CHOSEN.items()
        for words, name in lines.items()
        for mpi in COLOURS
        if (name, mpi) in speeds
    ]


def draw(chosen: list[Bar], path: Path) -> None:
    """Draw the bars; a thousand times as fast is as long as a thousandth would be."""
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    style = {
        "font.size": 11,
        "font.family": "sans-serif",
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "rmaext",  # the same file each time
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
    }
    rows = list(dict.fromkeys((bar.group, bar.words) for bar in chosen))
    groups = list(dict.fromkeys(group for group, _ in rows))
    places, y = {}, 0.0
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(
            figsize=(6, 1.2 + 0.34 * (len(rows) + len(groups))), layout="constrained"
        )
        ticks = []
        for row in rows:
            if row[0] not in places:
                places[row[0]] = y
                ticks.append((y, row[0]))
                y += 1
            places[row] = y
            ticks.append((y, row[1]))
            y += 1
        for bar in chosen:
            at = places[bar.group, bar.words] + (-0.19 if bar.mpi == "MPICH" else 0.19)
            # of length log(speed), from 1, which is as fast as MPI.Win
            axes.barh(at, bar.speed - 1, 0.36, left=1, color=COLOURS[bar.mpi])
            faster = bar.speed >= 1
            axes.annotate(
                bar.text,
                (bar.speed, at),
                (3 if faster else -3, 0),
                textcoords="offset points",
                ha="left" if faster else "right",
                va="center_baseline",
                fontsize=9,
            )
        axes.set_xscale("log")
        axes.set_xlim(0.1, 1500)
        axes.set_ylim(y - 0.4, -1.4)
        axes.axvline(1, color=GREY, lw=1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.set_yticks([at for at, _ in ticks], [words for _, words in ticks])
        for label in axes.get_yticklabels():
            if label.get_text() in groups:
                label.set_weight("bold")
        axes.tick_params(axis="y", length=0)
        axes.minorticks_off()
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(GREY)
        axes.text(0.93, -0.95, "MPI.Win is faster", ha="right", va="center", fontsize=9)
        axes.text(1.07, -0.95, "rmaext is faster", ha="left", va="center", fontsize=9)
        axes.set_xlabel("speed of rmaext as a multiple of MPI.Win's")
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
        place = {"loc": "center right", "bbox_to_anchor": (1, 0.28)}
        axes.legend(handles, list(COLOURS), frameon=False, **place)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def main() -> int:
    """Draw what the arguments say."""
    table, picture = map(Path, sys.argv[1:3]) if len(sys.argv) > 1 else (RESULTS, PICTURE)
    if not (chosen := bars(table.read_text())):
        print(f"{table} has none of the lines that are drawn")
        return 0
    draw(chosen, picture)
    print(f"{picture}: {len(chosen)} bars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
