# SPDX-License-Identifier: BSD-3-Clause
"""Where processes are in user code, as py-spy sees it: without their help."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .._record.layout import printable

__all__ = ["INSTALL", "lines", "spy"]

INSTALL = f"{sys.executable} -m pip install py-spy"
_PARTS = {path.name for path in Path(__file__).parent.parent.iterdir()}  # of rmaext
_QUIET = ("RUST_BACKTRACE", "RUST_LIB_BACKTRACE")  # py-spy's errors are to be short
_NOWHERE = ("", False)
_LIBRARIES = f"{os.sep}site-packages{os.sep}", f"{os.sep}lib{os.sep}python"


def spy() -> str | None:
    """Return the path of py-spy; None if it is not installed."""
    folders = [os.path.dirname(sys.executable), *os.get_exec_path()]
    return shutil.which("py-spy", path=os.pathsep.join(folders))


def lines(pids: Iterable[int], until: float) -> tuple[dict[int, tuple[str, bool]], str]:
    """Return where the main threads of processes are, and whether rmaext was called there.

    Parameters
    ----------
    pids : iterable of int
        The most wanted first.
    until : float
        When to end, by time.monotonic(): whoever has not answered then is left out.

    Returns
    -------
    found : dict of int to (str, bool)
        By pid: "path:line (function)" of the program.
    why_not : str
        Why some are missing; "" if none is.
    """
    wanted = list(pids)
    if not wanted:
        return {}, ""
    path = spy()
    if path is None:
        return {}, f"py-spy is not installed, which tells the lines of user code: {INSTALL}"
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 2)) as pool:
        answers = list(pool.map(lambda pid: _dump(path, pid, until), wanted))
    found = {pid: at for pid, (at, _) in zip(wanted, answers, strict=True) if at[0]}
    errors = dict.fromkeys(error for _, error in answers if error)
    return found, "; ".join(errors)


def _dump(path: str, pid: int, until: float) -> tuple[tuple[str, bool], str]:
    """Return where one process is, or why that is not known."""
    left = until - time.monotonic()
    late = "py-spy had no time for some ranks: name one by its PID"
    if left <= 0:
        return _NOWHERE, late
    command = [path, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    env = {name: value for name, value in os.environ.items() if name not in _QUIET}
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=left,
        )
        threads = json.loads(done.stdout) if not done.returncode else None
    except subprocess.TimeoutExpired:
        return _NOWHERE, late
    except (OSError, ValueError) as exc:
        return _NOWHERE, f"py-spy: {exc}"
    if threads is None:
        words = done.stderr.strip().splitlines() or ["no answer"]
        error = next((line for line in words if line.startswith("Error:")), words[-1])
        return _NOWHERE, f"py-spy: {printable(error)}"
    main = [t for t in threads if t.get("thread_name") == "MainThread"] or threads[-1:]
    return (_of_program(main[0]["frames"]) if main else _NOWHERE), ""


def _of_program(frames: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Return the program's innermost frame, else that of a library, and whether it is in rmaext."""
    called = bool(frames) and _is_ours(frames[0]["filename"])
    outside = [f for f in frames if not f["filename"].startswith("<frozen")]
    outside = [f for f in outside if not _is_ours(f["filename"])]
    own = [f for f in outside if not any(part in f["filename"] for part in _LIBRARIES)]
    for frame in own or outside:
        return printable(f"{frame['filename']}:{frame['line']} ({frame['name']})"), called
    return _NOWHERE


def _is_ours(path: str) -> bool:
    """Tell whether a file is one of an rmaext, which need not be this one."""
    parts = path.split(os.sep)
    return any(a == "rmaext" and b in _PARTS for a, b in itertools.pairwise(parts))
