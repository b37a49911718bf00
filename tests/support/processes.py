# SPDX-License-Identifier: BSD-3-Clause
"""Stop a process and let it run on; what is asked of it meanwhile times out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 10
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            if time.monotonic() > end:
                raise TimeoutError(f"process {pid} does not stop")
            time.sleep(0.0005)


def alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended, whether its parent has noticed that or not."""
    end = time.monotonic() + 10
    while alive(pid):
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} does not end")
        time.sleep(0.01)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a while."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def times_out(error: type[BaseException], least: float, call: Callable[[], object]) -> None:
    """Require that a call raises the error after so many seconds, or soon after that."""
    start = time.monotonic()
    try:
        call()
    except error:
        took = time.monotonic() - start
    else:
        raise AssertionError("succeeded on a stopped target")
    assert least <= took < least + 3, f"raised after {took:.2f} s"
