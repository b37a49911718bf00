# SPDX-License-Identifier: BSD-3-Clause
"""What each rank of running jobs does, and how much of it in a second."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import __version__
from .._record import hints
from .._record.record import Record, RecordError, find
from .._record.snapshot import Snapshot, Thread, Window
from .._runtime.steps import Step

__all__ = ["FORMAT", "Rank", "Sample", "Sampler"]

FORMAT = 1  # of the JSON


@dataclass
class Rank:
    """One rank at one moment; docs/guides/top.md has what each field means."""

    job: str
    rank: int
    size: int
    host: str
    pid: int
    program: str
    state: str
    call: str
    window: int | None
    container: str
    at: str
    operations_per_second: float
    bytes_per_second: float
    wait_share: float
    window_bytes: int
    operations: int
    bytes: int


@dataclass
class Sample:
    """All ranks that were found, and why others were not."""

    seconds: float = 0.0
    ranks: list[Rank] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        facts = {"format": FORMAT, "version": __version__, "seconds": self.seconds}
        ranks = [asdict(one) for one in self.ranks]
        return facts | {"ranks": ranks, "refused": self.refused, "hints": self.hints}


@dataclass
class _Before:
    """A process as it was at the sample before."""

    now: int
    operations: int
    bytes: int
    waited: int


class Sampler:
    """Follows jobs that begin and end meanwhile.

    A rank that has ended is shown as long as another one of its job is there.
    """

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self._pids = pids
        self._records: dict[int, Record] = {}
        self._before: dict[int, _Before] = {}
        self._last = time.monotonic()

    def close(self) -> None:
        """Let go of all records."""
        for record in self._records.values():
            record.close()
        self._records.clear()

    def sample(self) -> Sample:
        """Look at all ranks now; rates are since the last call, or 0."""
        refused = self._find()
        now = time.monotonic()
        sample = Sample(now - self._last, refused=refused)
        self._last = now
        found: dict[int, Rank] = {}
        snapshots = []
        for pid, record in list(self._records.items()):
            try:
                snapshot, operations, size = record.counted()
                hints.look(snapshot, record)
                found[pid] = self._look(snapshot, operations, size)
                snapshots.append(snapshot)
            except RecordError as exc:
                sample.refused.append(str(exc))
                self._drop(pid)
        alive = {one.job for one in found.values() if one.state not in ("ended", "died")}
        for pid, one in found.items():
            if one.job in alive:
                sample.ranks.append(one)
            else:
                self._drop(pid)
        sample.hints = hints.texts(it for it in snapshots if it.job in alive)
        sample.ranks.sort(key=lambda one: (one.job, one.rank, one.pid))
        return sample

    def _drop(self, pid: int) -> None:
        self._records.pop(pid).close()
        self._before.pop(pid, None)

    def _find(self) -> list[str]:
        """Open the records of processes that are new; return why some cannot be read."""
        there, refused = find(self._pids or None, whole_jobs=True)
        for record in there:
            self._keep(record)
        # those that were asked for may end, as the others may
        return [] if self._pids and self._records else refused

    def _keep(self, record: Record) -> None:
        known = self._records.get(record.pid)
        if known is not None and known.process() and known.inode == record.inode:
            record.close()
            return
        if known is not None:  # of another process, or of another program: it has called execve
            self._drop(record.pid)
        self._records[record.pid] = record

    def _look(self, one: Snapshot, operations: int, size: int) -> Rank:
        thread = _main(one)
        window = _window(one, thread)
        waited = thread.waited
        if thread.wait:
            waited += max(one.now - thread.since, 0)
        before = self._before.get(one.pid, _Before(one.now, operations, size, waited))
        self._before[one.pid] = _Before(one.now, operations, size, waited)
        ns = one.now - before.now
        rate = 1e9 / ns if ns else 0.0
        return Rank(
            job=one.job,
            rank=one.rank,
            size=one.size,
            host=one.host,
            pid=one.pid,
            program=one.program,
            state=_state(one, thread),
            call=_call(thread),
            window=window.number if window else None,
            container=window.container if window else "",
            at=thread.site if thread.kind else "",
            operations_per_second=max(operations - before.operations, 0) * rate,
            bytes_per_second=max(size - before.bytes, 0) * rate,
            wait_share=min(max((waited - before.waited) * rate / 1e9, 0.0), 1.0),
            window_bytes=sum(w.bytes for w in one.windows if w.open and not w.hidden),
            operations=operations,
            bytes=size,
        )


def _main(one: Snapshot) -> Thread:
    """Return the main thread, or what says that it has not been in rmaext."""
    return next((thread for thread in one.threads if thread.tid == one.own), Thread(one.own))


def _state(one: Snapshot, thread: Thread) -> str:
    if not one.process:
        return "ended" if one.state == "ended" else "died"
    if one.process in ("T", "t"):
        return "stopped"
    if one.state != "runs":
        return one.state
    return "waits" if thread.wait else "runs"


def _window(one: Snapshot, thread: Thread) -> Window | None:
    """Return the window that a thread's call is of; one that is being made is known by its name."""
    windows = [w for w in one.windows if not w.hidden]
    if thread.kind == "meeting":
        number = Step.of(thread.offset).window
        made = (w for w in windows if (w.comm, w.number) == (thread.bytes, number))
        return next(made, Window(0, thread.bytes, number) if number else None)
    return next((w for w in windows if w.id == thread.window), None) if thread.kind else None


def _call(thread: Thread) -> str:
    """Return the call that a thread is in, as a program would name it."""
    if thread.kind == "meeting":
        return Step.of(thread.offset).call
    if thread.kind == "container":
        return thread.text.partition(",")[0] or thread.kind  # it tells once it has lasted
    return thread.kind
