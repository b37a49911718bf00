# SPDX-License-Identifier: BSD-3-Clause
"""Drawings of the architecture page, made from the source as it is.

`rooms c` and `rooms python` draw the rooms from the highest to the lowest, and a mark
where one includes or imports from another: below the diagonal where it should be.
`way` draws the way of one call through the rooms; each line is FILE FUNCTION: words.
A function that is not in its file is an error of the page.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path

import tomllib
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
PITCH = 24  # of a row or column
STYLE = 'font-family="sans-serif" font-size="13" fill="currentColor"'

_C_WORDS = {
    "python/compat": "those of MPI.Win's interface",
    "python": "the methods that Python calls, in C: the only room with Python.h",
    "api": "what rmaext.h promises: check, choose the route, call the right room",
    "am": "active messages: queue, wire, replies, handlers, coalescing, clients",
    "xfer": "operations over the network: post, wait, complete",
    "exec": "updates by this CPU: guard, loops, vectorised ones",
    "win": "the window: rank table, control block, checks, attachment",
    "net/ucx": "the transport by UCX: the only room that calls it",
    "net/libfabric": "the transport by libfabric: the only room that calls it",
    "net": "any network: its table of functions, peers, registrations, progress",
    "admission": "which connections libfabric gets to see",
    "shm": "one node: arena, neighbours, doorbell, barrier, ticket lock",
    "dtype": "types of elements, operations, gather and scatter",
    "memory": "kinds of memory that this CPU does not reach: the only room that calls CUDA",
    "record": "what this process does and has done, for tools outside it",
    "base": "errors, waiting, rundown, signals, clock",
}


def _c_graph() -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Return the rooms of csrc/ with their words, and who includes a header of whom."""
    # What `make lint` keeps the order by; its name is this module's.
    spec = importlib.util.spec_from_file_location("csrc_rooms", ROOT / "csrc" / "rooms.py")
    assert spec
    assert spec.loader
    checked = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checked)
    if set(checked.ROOMS) != set(_C_WORDS):
        raise ValueError(f"rooms without words: {set(checked.ROOMS) ^ set(_C_WORDS)}")
    arrows = set()
    for path in (ROOT / "csrc").glob("*/**/*.[ch]"):
        for room in re.findall(r'^#include "([\w/]+)/', path.read_text(), re.M):
            arrows.add((str(path.parent.relative_to(ROOT / "csrc")), room))
    return {room: _C_WORDS[room] for room in reversed(checked.ROOMS)}, arrows


def _python_graph() -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Return the same of rmaext/: its rooms are those that import-linter keeps in order."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == "rooms"
    )
    package = ROOT / "rmaext"
    rooms, arrows = {}, set()
    for name in contract["layers"]:
        folder = package / name
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        first = folder / "__init__.py" if folder.is_dir() else files[0]
        words = ast.get_docstring(ast.parse(first.read_text()))
        if words is None:
            raise ValueError(f"{first} has no docstring")
        rooms[name] = words.partition("\n")[0].rstrip(".").replace("`", "")
        for path in files:
            arrows |= {(name, other) for other in _imports(path)}
    return rooms, {arrow for arrow in arrows if arrow[1] in rooms}


def _imports(path: Path) -> Iterable[str]:
    """Return the first name behind `rmaext.` of whatever a module imports."""
    module = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            full = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # module[:-1] is the package, of an __init__.py too
            base = list(module[: len(module) - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            full = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (names[1] for names in full if names[0] == "rmaext" and len(names) > 1)


def _svg(width: int, height: int, title: str, shapes: list[str]) -> nodes.raw:
    text = "".join(shapes)
    svg = (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" {STYLE} '
        f'style="max-width: 100%"><title>{escape(title)}</title>{text}</svg>'
    )
    return nodes.raw(text=svg, format="html")


def _matrix(title: str, rooms: dict[str, str], arrows: set[tuple[str, str]]) -> nodes.raw:
    """Draw a row and a column for each room, and a mark where the row's uses the column's."""
    names = list(rooms)
    left, top = 110 + 7 * max(map(len, rooms.values())), 80
    shapes = []
    for i, name in enumerate(names):
        y, x = top + PITCH * i, left + PITCH * i
        shapes.append(
            f'<rect x="0" y="{y}" width="{left - 8}" height="{PITCH - 3}" rx="4" '
            f'fill="#888" fill-opacity=".15"/>'
            f'<text x="8" y="{y + 15}" font-weight="bold">{escape(name)}</text>'
            f'<text x="92" y="{y + 15}">{escape(rooms[name])}</text>'
            f'<text transform="translate({x + 15} {top - 8}) rotate(-60)">{escape(name)}</text>'
            f'<rect x="{x}" y="{y}" width="{PITCH - 3}" height="{PITCH - 3}" fill-opacity=".3"/>'
        )
        for j, other in enumerate(names):
            if i == j or (name, other) not in arrows:
                continue
            colour = "#2a7" if j > i else "#d33"
            shapes.append(
                f'<circle cx="{left + PITCH * j + 10}" cy="{y + 10}" r="6" fill="{colour}"/>'
            )
    size = PITCH * len(names)
    return _svg(left + size + 40, top + size, title, shapes)


class Rooms(SphinxDirective):
    """The rooms of `c` or `python`, and who uses whom."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the drawing."""
        which = self.arguments[0]
        folder = {"c": "csrc", "python": "rmaext"}[which]
        for path in (ROOT / folder).rglob("*.[chp]*"):
            self.env.note_dependency(str(path))
        try:
            rooms, arrows = _c_graph() if which == "c" else _python_graph()
        except ValueError as error:
            raise self.error(str(error)) from None
        return [_matrix(f"The rooms of {folder}/ and who uses whom", rooms, arrows)]


class Way(SphinxDirective):
    """The way of one call: a drawing, and a list of its steps."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return both."""
        steps = [self._step(line) for line in self.content if line.strip()]
        rooms = [room for room in [*_python_graph()[0], *_c_graph()[0]] if room in dict(steps)]
        listed = nodes.enumerated_list()
        for line in (line for line in self.content if line.strip()):
            place, _, words = line.partition(": ")
            item = nodes.list_item()
            paragraph = nodes.paragraph()
            paragraph += nodes.literal(text=place)
            paragraph += nodes.Text(f": {words}")
            item += paragraph
            listed += item
        return [self._drawing(rooms, steps), listed]

    def _step(self, line: str) -> tuple[str, str]:
        """Return room and function of a step, which has to be there."""
        found = re.fullmatch(r"(\S+) (\w+): .+", line)
        if not found:
            raise self.error(f"no FILE FUNCTION: words: {line}")
        file, function = found.groups()
        path = ROOT / file
        self.env.note_dependency(str(path))
        text = path.read_text() if path.exists() else ""
        heads = rf"^ *def {function}\(" if file.endswith(".py") else rf"^\w[^;{{=]*\b{function}\("
        if not re.search(heads, text, re.M):
            raise self.error(f"{file} has no function {function}")
        room = file.rpartition("/")[0].partition("/")[2]  # net/libfabric of csrc/net/libfabric
        return room, function

    def _drawing(self, rooms: list[str], steps: list[tuple[str, str]]) -> nodes.raw:
        """Draw a row for each room, and a column for each step."""
        left, pitch = 110, 44
        width, height = left + pitch * len(steps), PITCH * len(rooms)
        shapes = []
        for i, room in enumerate(rooms):
            y = PITCH * i
            shapes.append(
                f'<rect x="0" y="{y}" width="{width}" height="{PITCH - 3}" rx="4" '
                f'fill="#888" fill-opacity=".15"/><text x="8" y="{y + 15}">{escape(room)}</text>'
            )
        points = [
            (left + pitch * k + 12, PITCH * rooms.index(room) + 10)
            for k, (room, _) in enumerate(steps)
        ]
        path = " ".join(f"{x},{y}" for x, y in points)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="#2a7" stroke-width="2"/>')
        for k, (x, y) in enumerate(points, 1):
            shapes.append(
                f'<circle cx="{x}" cy="{y}" r="10" fill="#2a7"/><text x="{x}" y="{y + 4}" '
                f'font-size="11" text-anchor="middle" style="fill: #fff">{k}</text>'
            )
        return _svg(width, height, f"The way of {self.arguments[0]} through the rooms", shapes)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directives."""
    app.add_directive("rooms", Rooms)
    app.add_directive("way", Way)
    return {"parallel_read_safe": True}
