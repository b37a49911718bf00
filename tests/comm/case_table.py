# SPDX-License-Identifier: BSD-3-Clause
"""Programs that go through many cases, the cells of a table, in one job.

Such a program takes the names of its cells as its last argument, with commas between
them, and one of its ranks prints a line "cell NAME: what came of it" for each. A cell
that hangs ends the job, by the program's own watchdog; the table goes on behind it in
a new job, so that one bad cell does not hide the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import launch

PROGRAMS = launch.ROOT / "tests/comm/programs"
_LINE = re.compile(r"^cell (.+?): (.*)$", re.MULTILINE)


def names(program: str, dictionary: str) -> list[str]:
    """Return the keys of a dictionary of a program, which cannot be imported without MPI."""
    text = (PROGRAMS / program).read_text().partition(f"\n{dictionary} = {{\n")[2]
    return re.findall(r'^    "([^"]+)": ', text.partition("\n}\n")[0], re.MULTILINE)


def table(
    size: int,
    program: str,
    cells: Iterable[str],
    *args: str,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    jobs: int = 4,
    dead: str = "the job ended",
) -> dict[str, str]:
    """Return what came of each cell.

    `args` go to the program before the cells. After `jobs` jobs that a cell ended the
    rest of the table is left out.
    """
    left, results = list(cells), dict[str, str]()
    env = {"PYTHONPATH": launch.PYTHONPATH} | dict(env or {})
    for _ in range(jobs):
        words = ""
        try:
            done = launch.mpirun(
                size, PROGRAMS / program, *args, ",".join(left), timeout=timeout, env=env
            )
            out, words, code = done.stdout, done.stderr, str(done.returncode)
        except AssertionError as exc:  # the watchdog could not end it
            out, code = str(exc), f"no status within {timeout:g} s"
        said = dict(_LINE.findall(out))
        results |= {cell: said[cell] for cell in left if cell in said}
        left = [cell for cell in left if cell not in said]
        if not left:
            if code != "0":
                results["end of the job"] = f"status {code}\n{words[-3000:]}"
            return results
        results[left.pop(0)] = f"{dead}: status {code}\n{(words or out)[-3000:]}"
        if not left:
            return results
    return results | dict.fromkeys(left, "not reached")


def bad(results: Mapping[str, str], good: str = "ok") -> str:
    """Return the cells that did not end with `good`, a line each, and the first text in full."""
    wrong = {cell: text for cell, text in results.items() if not text.startswith(good)}
    lines = [f"{len(wrong)} of {len(results)} cells:"] if wrong else []
    lines += [f"{cell}: {text.splitlines()[0] if text else ''}" for cell, text in wrong.items()]
    lines += [text for text in wrong.values() if "\n" in text][:2]
    return "\n".join(lines)
