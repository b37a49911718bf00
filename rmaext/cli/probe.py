# SPDX-License-Identifier: BSD-3-Clause
"""A job of two ranks that tries providers, and what is seen of it from outside.

A step that is not done in time may hang, or the machine may have been busy. It is shown
to hang only if nothing has come of it for HANGS seconds in which each process of the job
could run whenever it wanted to, or if one of them is stopped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._record.processes import descendants, stat
from .._runtime import launcher
from .._runtime.config import is_known
from ..bench.run import Mpi

__all__ = ["HANGS", "Outcome", "Watch", "probe"]

HANGS = 2.0  # seconds
_HELD = 0.2  # the part of a moment for which a thread may wait for a CPU all the same
_LATE = 0.3  # seconds between two looks, of 0.05 each: this process was held up itself
_AGAIN = 1.0  # seconds between searches for new processes
_STOPPED = 5  # looks in a row: a tracer stops a process for a moment each time
_COUNTED = os.path.exists("/proc/self/schedstat")


@dataclass
class Outcome:
    """What came of one provider: a result, or else a step and why it has none."""

    name: str
    result: dict[str, Any] | None = None
    step: str = "start"
    why: str = ""
    verdict: str = "ok"  # "fails", "hangs", or "no time"


@dataclass
class Watch:
    """How the processes of a job, and their threads, come to a CPU."""

    pids: Sequence[int] = ()
    step: object = None
    free: float = 0.0  # seconds of this step in which nothing kept them from running
    halted: int = 0  # a process that is stopped by a signal
    ran: float = 0.0  # seconds, of all threads together
    waited: float = 0.0  # the same, for a CPU
    _then: float = field(default_factory=time.monotonic)
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)
    _stopped: dict[int, int] = field(default_factory=dict)  # looks in a row

    def look(self, step: object) -> None:
        """Look at them, at one moment of a step."""
        now = time.monotonic()
        spent, self._then = now - self._then, now
        held, self.halted = spent > _LATE or not _COUNTED, 0
        for pid in self.pids:
            looks = self._stopped.get(pid, 0) + 1 if stat(pid)[0] in ("T", "t") else 0
            self._stopped[pid] = looks
            if looks >= _STOPPED:
                self.halted = pid
            held |= self._held(pid, spent)
        if step != self.step:
            self.step, self.free = step, 0.0
        elif not held:
            self.free += spent

    def _held(self, pid: int, spent: float) -> bool:
        """Tell whether one of its threads would have run, or done more, if it could.

        So it may be with one that cannot be seen from here.
        """
        held = True
        with contextlib.suppress(OSError, ValueError):
            tids = os.listdir(f"/proc/{pid}/task")
            held = False
            for tid in tids:
                place = f"/proc/{pid}/task/{tid}"
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"{place}/stat") as file:
                        state = file.read().rpartition(")")[2].split()[0]
                    with open(f"{place}/schedstat") as file:  # ns
                        ran, waited = map(int, file.read().split()[:2])
                    before = self._before.get(place, (0, 0))
                    self._before[place] = ran, waited
                    more, less = (ran - before[0]) / 1e9, (waited - before[1]) / 1e9
                    self.ran += more
                    self.waited += less
                    # one that waits still has not been counted yet
                    starved = state == "R" and more < (1 - _HELD) * spent
                    held |= starved or state == "D" or less > _HELD * spent
        return held


def probe(mpi: Mpi, names: Sequence[str], end: float) -> list[Outcome]:
    """Try providers, one after the other, in one job; return what came of some, at least one.

    Parameters
    ----------
    names : sequence of str
        Providers; "" for the routes within this machine.
    end : float
        By when, by time.monotonic(). It takes no longer, whatever they do.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmaext-doctor-") as place:
        folder, watch = Path(place), Watch()
        sought, hangs = -math.inf, False

        def look() -> float:
            nonlocal sought, hangs
            if time.monotonic() > sought + _AGAIN:
                sought = time.monotonic()
                watch.pids = _of_job(place)
            ranks = [int(path.name[4:]) for path in folder.glob("pid-*")]
            known = [*watch.pids, *(pid for pid in ranks if pid not in watch.pids)]
            watch.pids = known
            watch.look(_last(folder))
            # until its ranks are known it may start where nobody sees it, as by srun
            hangs = len(ranks) == 2 and (watch.free > HANGS or watch.halted != 0)
            return 0.0 if hangs else math.inf

        settings = {"providers": list(names), "patience": 10 + 10 * (end - began)}
        line = [*launcher.command(mpi.name, mpi.mpiexec, 2), mpi.python]
        line += ["-m", "rmaext.cli.checkup", json.dumps(settings), place]
        with open(folder / "output", "wb") as output:
            status = launcher.supervise(line, _environment(), end - began, output, output, look)
        said = (folder / "output").read_text(errors="replace").strip()
        outcomes = [Outcome(names[0])]
        for words in _log(folder):
            one = outcomes[-1]
            if words["name"] != one.name:
                one = Outcome(words["name"])
                outcomes.append(one)
            one.step, one.result = words.get("step", one.step), words.get("result")
        last = outcomes[-1]
        if status == 0 and last.result is not None:
            return outcomes
        last.result = None
        error = folder / "error"
        if status is not None:
            last.verdict = "fails"
            last.why = error.read_text() if error.exists() else f"status {status}"
            last.why = _crash(said, not error.exists()) or last.why
        elif hangs:
            last.verdict = "hangs"
            last.why = f"nothing came of it in {watch.free:.1f} s in which all could run"
            if watch.halted:
                last.why = f"its process {watch.halted} is stopped by a signal"
        else:
            last.verdict = "no time"
            last.why = f"{time.monotonic() - began:.1f} s were not enough: its processes ran for "
            last.why += f"{watch.ran:.1f} s, and waited {watch.waited:.1f} s for a CPU"
        return outcomes


def _of_job(place: str) -> list[int]:
    """Return the processes of one job: other threads try other providers."""
    found = []
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if os.fsencode(place) in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _log(folder: Path) -> list[dict[str, Any]]:
    """Return what rank 0 has written: the last line may be there in part."""
    with contextlib.suppress(FileNotFoundError):
        whole = (folder / "log").read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]
    return []


def _last(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "log").stat().st_size
    return 0


def _crash(said: str, untold: bool) -> str:
    """Return which signal ended a rank: that says more than another rank, which finds it gone."""
    crash = re.search(r"Fatal Python error: ([^:\n]+)$", said, re.MULTILINE)
    if untold:  # before faulthandler was on, the launcher may know
        crash = crash or re.search(r"(Segmentation fault|Bus error|Aborted)", said)
    return f"crashed: {crash[1]}" if crash else ""


def _environment() -> dict[str, str]:
    # what looks like a variable of ours and is none has been reported by this process
    env = {name: value for name, value in launcher.environment().items() if is_known(name)}
    # as many threads as cores in each rank only take CPUs away
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    return env | {"MPI4PY_RC_THREAD_LEVEL": "multiple"}
