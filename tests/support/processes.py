# SPDX-License-Identifier: BSD-3-Clause
"""Stop a process and let it run on; what is asked of it meanwhile times out. Interrupt a wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def stop(pid: int) -> None:
    """Send SIGSTOP and wait until no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + 10
    for task in os.listdir(f"/proc/{pid}/task"):
        while state(f"{pid}/task/{task}") not in ("T", ""):
            if time.monotonic() > end:
                raise TimeoutError(f"process {pid} does not stop")
            time.sleep(0.0005)


def state(pid: int | str) -> str:
    """Return the kernel's letter for a process's, or a thread's, state; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    return state(pid) not in ("Z", "")


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


def waits(pid: int) -> str:
    """Return what the main thread of a process waits for in rmaext, as its record says, or ""."""
    from rmaext._record.record import find

    records, _ = find([pid])
    kind = ""
    for record in records:
        with record:
            threads = record.snapshot().threads
            kind = next((thread.kind for thread in threads if thread.tid == pid), "")
    return kind


def ring_in_wait(handler: Callable[..., object], soon: float = 0.2) -> None:
    """Have a handler of SIGALRM called once the main thread of this process waits in rmaext."""

    def look(number: int, frame: FrameType | None) -> None:
        if waits(os.getpid()):
            handler(number, frame)
        else:  # this process was held up, and has not come to its wait yet
            signal.setitimer(signal.ITIMER_REAL, soon)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, soon)
