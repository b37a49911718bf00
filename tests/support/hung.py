# SPDX-License-Identifier: BSD-3-Clause
"""Jobs that hang on purpose, as long as a test looks at them from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import launch

PROGRAM = launch.ROOT / "tests" / "inside" / "programs" / "hung.py"
LASTS = 2.5  # seconds until its waits are long ones, though a rank is late


@contextmanager
def hanging(how: str, size: int, program: Path = PROGRAM, **env: str) -> Iterator[dict[int, int]]:
    """Have a job that hangs in this way; it is ended afterwards.

    Yields the pids of the processes that said that they are about to hang, as many as there
    are ranks, once they have done so for a while.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        open(Path(folder, "output"), "w+b") as output,
        ThreadPoolExecutor(1) as pool,
    ):
        looked = threading.Event()
        command = [*launch.mpi_command(size, survive=True), sys.executable, str(program), how]
        changes = {"RMAEXT_TIMEOUT": "100", "PYTHONPATH": launch.PYTHONPATH} | env
        ran = pool.submit(
            launch.supervise,
            [*command, folder],
            launch.environment(changes),
            90,
            output,
            output,
            lambda: 0.0 if looked.is_set() else 90.0,
        )
        try:
            end = time.monotonic() + 40
            while len(told := list(Path(folder).glob("[0-9]*"))) < size:
                if ran.done() or time.monotonic() > end:
                    output.seek(0)
                    raise AssertionError(output.read().decode(errors="replace"))
                time.sleep(0.05)
            time.sleep(LASTS)
            yield {int(path.name): int(path.read_text()) for path in told}
        finally:
            looked.set()
            ran.result()


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
