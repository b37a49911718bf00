# SPDX-License-Identifier: BSD-3-Clause
"""Jobs that hang on purpose, as long as a test looks at them from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import launch

PROGRAM = launch.ROOT / "tests" / "inside" / "programs" / "hung.py"
LASTS = 2.5  # seconds until its waits are long ones, though a rank is late
T = TypeVar("T")


def looked_at(
    how: str,
    size: int,
    look: Callable[[dict[int, int]], T],
    program: Path = PROGRAM,
    **env: str,
) -> T:
    """Start a job that hangs in this way, return what `look` does, and end the job.

    `look` gets the pids of the processes that said that they are about to hang, as many as
    there are ranks.
    """
    found: list[T] = []
    with tempfile.TemporaryDirectory() as folder:
        since = [0.0]

        def watch() -> float:
            told = list(Path(folder).glob("[0-9]*"))
            if len(told) < size:
                return 40.0
            since[0] = since[0] or time.monotonic()
            if time.monotonic() < since[0] + LASTS:
                return 40.0
            found.append(look({int(path.name): int(path.read_text()) for path in told}))
            return 0.0

        command = [*launch.mpi_command(size, survive=True), sys.executable, str(program), how]
        with open(Path(folder, "output"), "wb") as output:
            changes = {"RMAEXT_TIMEOUT": "100", "PYTHONPATH": launch.PYTHONPATH} | env
            code = launch.supervise(
                [*command, folder], launch.environment(changes), 40, output, output, watch
            )
        said = Path(folder, "output").read_text(errors="replace")
    assert found, f"status {code}\n{said}"
    return found[0]


def line(mark: str) -> str:
    """Return "hung.py:LINE" of the line with such a comment."""
    lines = PROGRAM.read_text().splitlines()
    (number,) = (i for i, text in enumerate(lines, 1) if text.endswith(f"  # {mark}"))
    return f"{PROGRAM}:{number}"


def why(*args: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "rmaext", "why", *args]
    return subprocess.run(
        command,
        env=launch.environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def job(answer: str, pids: dict[int, int]) -> dict[str, Any]:
    """Return the one job of `why --json` that has these processes."""
    there = set(pids.values())
    (found,) = (
        job for job in json.loads(answer)["jobs"] if there & {one["pid"] for one in job["ranks"]}
    )
    return dict(found)
