# SPDX-License-Identifier: BSD-3-Clause
"""What `python -m rmaext why` finds: the ranks of jobs, and who waits for whom."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import __version__
from .._record import hints
from .._record.job import LONG, Job, Wait, jobs, runs
from .._record.record import Record, RecordError, count_notifications, find
from .._record.snapshot import Snapshot
from .._record.verdict import idle, span, verdict
from .._runtime import launcher
from .lines import lines

__all__ = ["Seen", "look", "look_everywhere", "pack", "report", "to_json"]

FORMAT = 1  # of the JSON
_SPY = 1.0  # seconds for py-spy: all is to be said within two
_LAUNCH = 60.0
_SITES = 0.1  # seconds after which a wait tells its site
_PACKED = re.compile(r"rmaext-why (\S+) (\d+) (\d+) (\S+)")
_PIECE = 3000  # characters of a line: less than a pipe takes at a time


@dataclass
class Seen:
    """What was found: processes, and why some are missing."""

    snapshots: list[Snapshot] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# -- this node -----------------------------------------------------------------------


def look(pids: Sequence[int] = ()) -> Seen:
    """Look at the jobs that some processes belong to, by default at all of this user's."""
    began = time.monotonic()
    records, refused = find(pids or None, whole_jobs=True)
    with ExitStack() as stack:
        for record in records:
            stack.callback(record.close)
        seen, kept = Seen(refused=refused), []
        for record in records:
            try:
                seen.snapshots.append(record.snapshot())
                kept.append(record)
                hints.look(seen.snapshots[-1], record)
            except RecordError as exc:
                seen.refused.append(str(exc))
        seen.refused += count_notifications(seen.snapshots, kept)
        wanted = _without_line(seen.snapshots)
        found, why_not = lines(wanted, began + _SPY)
        for one in seen.snapshots:
            one.line, one.called = found.get(one.pid, ("", False))
        seen.notes += [why_not] if why_not else []
        _confirm(seen, kept)
    return seen


def _without_line(snapshots: Sequence[Snapshot]) -> list[int]:
    """Return the processes whose main thread has not told where it is; who holds up others first.

    Whose wait has just begun will tell if it lasts.
    """
    found = [one for one in snapshots if one.process and not _main_site(one)]
    blamed = {
        one.pid
        for job in jobs(snapshots)
        for wait in job.long()
        for one in wait.needs
        if isinstance(one, Snapshot)
    }
    return [one.pid for one in sorted(found, key=lambda one: one.pid not in blamed)]


def _main_site(one: Snapshot) -> str:
    return next((t.site for t in one.threads if t.tid == one.own and t.kind), "")


def _confirm(seen: Seen, records: Sequence[Record]) -> None:
    """Forget waits that have ended while all that was read."""
    for one, record in zip(seen.snapshots, records, strict=True):
        try:
            now = {(t.tid, t.kind, t.since) for t in record.snapshot().threads}
        except RecordError as exc:
            seen.refused.append(str(exc))
            continue
        for thread in one.threads:
            if (thread.tid, thread.kind, thread.since) not in now:
                thread.kind = ""


# -- other nodes ---------------------------------------------------------------------


def pack(seen: Seen) -> Iterator[str]:
    """Yield it in lines that a launcher passes on whole, whatever others print meanwhile."""
    text = base64.b85encode(zlib.compress(json.dumps(_plain(seen)).encode())).decode()
    pieces = [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]
    who = f"{socket.gethostname()}:{os.getpid()}"
    for i, piece in enumerate(pieces):
        yield f"rmaext-why {who} {i} {len(pieces)} {piece}\n"


def _unpack(text: str) -> Iterator[Seen]:
    by_process: dict[str, dict[int, str]] = {}
    lengths: dict[str, int] = {}
    for who, i, n, piece in _PACKED.findall(text):
        by_process.setdefault(who, {})[int(i)] = piece
        lengths[who] = int(n)
    for who, pieces in by_process.items():
        try:
            whole = "".join(pieces[i] for i in range(lengths[who]))
            data = json.loads(zlib.decompress(base64.b85decode(whole)))
            if data["version"] != __version__:
                yield Seen(refused=[f"{who} has rmaext {data['version']}, this is {__version__}"])
                continue
            snapshots = [Snapshot.from_json(one) for one in data["snapshots"]]
            yield Seen(snapshots, data["refused"], data["notes"])
        except (ValueError, LookupError, TypeError, zlib.error):
            yield Seen(refused=[f"the answer of {who} did not come through whole: try again"])


def look_everywhere(command: str) -> Seen:
    """Look at this user's jobs on the nodes where a launcher starts a process each."""
    line = [*shlex.split(command), sys.executable, "-m", "rmaext", "why", "--packed"]
    try:
        done = subprocess.run(
            line,
            env=launcher.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LAUNCH,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Seen(refused=[f"{shlex.join(line)}: {exc}"])
    whole, there = Seen(), set()
    answers = list(_unpack(done.stdout))
    for seen in answers:
        for one in seen.snapshots:
            if (one.host, one.pid) not in there:
                there.add((one.host, one.pid))
                whole.snapshots.append(one)
        whole.refused += [words for words in seen.refused if words not in whole.refused]
        whole.notes += [words for words in seen.notes if words not in whole.notes]
    if done.returncode or not answers:
        words = (done.stderr or done.stdout).strip()[-500:]
        whole.refused.append(f"{shlex.join(line)}: status {done.returncode}: {words}")
    return whole


# -- words and JSON --------------------------------------------------------------------


def _plain(seen: Seen) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "refused": seen.refused,
        "notes": seen.notes,
        "snapshots": [one.to_json() for one in seen.snapshots],
    }


def to_json(seen: Seen) -> dict[str, Any]:
    """Return all of it, and the verdicts, as JSON has it."""
    return _plain(seen) | {
        "jobs": [
            {
                "job": job.members[0].job,
                "program": job.members[0].program,
                "size": job.members[0].size,
                "network": job.members[0].network,
                "ranks": [
                    {
                        "rank": one.rank,
                        "host": one.host,
                        "pid": one.pid,
                        "process": one.process,
                        "does": does(job, one),
                        "at": _main_site(one) or one.line,
                    }
                    for one in job.members
                ],
                "verdict": [asdict(finding) for finding in verdict(job)],
                "hints": hints.texts(job.members),
            }
            for job in jobs(seen.snapshots)
        ],
    }


def does(job: Job, one: Snapshot) -> str:
    """Return what a process's main thread does: in which call it is, since when, and where."""
    if not runs(one):
        return idle(one)
    main = next((wait for wait in job.waits(one) if wait.thread.tid == one.own), None)
    if main is not None and main.seconds >= _SITES:
        return _waits(main, one.line)
    return idle(one)


def _waits(wait: Wait, line: str = "") -> str:
    at = wait.thread.site or line
    return f"waits {wait.what} since {span(wait.seconds)}{f', at {at}' if at else ''}"


def report(seen: Seen) -> Iterator[str]:
    """Yield it in lines for people."""
    for job in jobs(seen.snapshots):
        first = job.members[0]
        hosts = list(dict.fromkeys(one.host for one in job.members))
        size = f"{first.size} rank{'s' if first.size > 1 else ''}"
        by = f", by {first.network}" if first.network else ""
        yield f"{first.program or 'a program'}: {size}, on {', '.join(hosts)}{by}"
        for one in job.members:
            yield f"  rank {one.rank:<4} pid {one.pid:<8} {does(job, one)}"
            others = [w for w in job.waits(one) if w.thread.tid != one.own and w.seconds >= LONG]
            for wait in others:
                name = f"{wait.thread.tid} ({wait.thread.name or 'no name'})"
                yield f"{'':12}thread {name} {_waits(wait)}"
        for gone in job.gone():
            yield f"  {gone.name:<9} {idle(gone)}"
        if any(one.unclear for one in job.members):
            yield "  some entries were being written each time, and are left out"
        yield "verdict:"
        for finding in verdict(job):
            yield f"  {finding.text}"
        yield from hints.lines(hints.texts(job.members))
        yield ""
    yield from [*seen.refused, *seen.notes]
    if not seen.snapshots and not seen.refused:
        yield "no process of this user on this node uses windows of rmaext"
