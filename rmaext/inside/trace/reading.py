# SPDX-License-Identifier: BSD-3-Clause
"""Reads the traces of the ranks of a job; nothing in the files is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ..._native._lib import lib
from ..._record import layout

__all__ = ["OPERATIONS", "PAGE", "ROUTES", "Job", "Rank", "TraceError", "Window", "find", "is_kind"]

PAGE = 4096  # of the header at the beginning of each file
ROUTES = layout.ROUTES
_EVENTS = re.compile(r"rank-(\d+)\.(\d+)\.events")
_LAST = max(layout.kinds())
OPERATIONS = {
    n: name for n, name in sorted(layout.kinds("DID").items()) if n <= lib.RMAEXT_DID_NOTIFY
}
_LONGEST = 1 << 62  # ns
_MOST = 1 << 22  # ranks


class TraceError(Exception):
    """A trace that cannot be merged; the text says why, and what to do."""


@dataclass(frozen=True)
class Window:
    """A window, as one of its ranks knows it."""

    comm: str
    number: int
    kind: str
    dtype: str
    hidden: bool


@dataclass
class Rank:
    """What a rank has written."""

    rank: int
    header: Any  # of its first file
    events: NDArray[Any] = field(default_factory=lambda: np.empty(0, layout.EVENT))
    windows: dict[int, Window] = field(default_factory=dict)
    sites: dict[int, tuple[str, str]] = field(default_factory=dict)  # where, call
    comms: dict[str, tuple[int, int, list[int]]] = field(default_factory=dict)  # size, rank, world
    threads: dict[int, str] = field(default_factory=dict)
    network: str = ""  # by which its windows go to others
    lost: int = 0  # events that could not be written,
    error: str = ""  # and why

    @property
    def host(self) -> str:
        """The name of its machine."""
        return layout.text(self.header["host"])

    @property
    def began(self) -> int:
        """When its trace began, in ns by the time of day."""
        return int(self.header["realtime"])

    @property
    def ended(self) -> int:
        """When its last event was over."""
        if not len(self.events):
            return self.began
        return self.began + int(self.events["end"][-1]) - int(self.header["monotonic"])

    def targets(self, job: Job) -> NDArray[np.int64]:
        """Return the rank in MPI_COMM_WORLD that each event names; -1: none, or unknown."""
        events = self.events
        found = np.full(len(events), -1, np.int64)
        for number, window in self.windows.items():
            world = job.worlds.get(window.comm)
            if world is not None:
                rows = np.flatnonzero(events["window"] == number)
                target = events["target"][rows]
                inside = (target >= 0) & (target < len(world))
                found[rows[inside]] = world[target[inside]]
        return found


@dataclass
class Job:
    """The ranks of a job that have left a trace, in order."""

    folder: Path
    size: int
    ranks: list[Rank]
    problems: list[str]
    worlds: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """How many there are in all."""
        return sum(len(rank.events) for rank in self.ranks)

    def label(self, window: Window | None) -> str:
        """Return what a window is called, the same on all ranks."""
        if window is None:
            return "?"
        if window.hidden:
            return "rmaext's own"
        text = f"{window.number} ({', '.join(filter(None, (window.kind, window.dtype)))})"
        return text if len(self.worlds) < 2 else f"{text} of communicator {window.comm[:8]}"


def is_kind(events: NDArray[Any], first: str, last: str) -> NDArray[np.bool_]:
    """Tell which events are of kinds from one to another: "DID_PUT", "DID_NOTIFY"."""
    least, most = getattr(lib, f"RMAEXT_{first}"), getattr(lib, f"RMAEXT_{last}")
    found: NDArray[np.bool_] = (events["kind"] >= least) & (events["kind"] <= most)
    return found


def _raise(error: Exception) -> None:
    raise error


def find(paths: Iterable[Path], fail: Callable[[Exception], None] = _raise) -> list[Job]:
    """Return the jobs whose traces are in the folders.

    A path is what RMAEXT_TRACE was, or one of the folders in it. A job over several nodes
    has a folder for each, with the same communicators. `fail` takes the error of each folder
    whose traces cannot be read; by default it is raised.

    Raises
    ------
    TraceError
        A path has no traces.
    """
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise TraceError(f"{path} is not a folder: name the one that RMAEXT_TRACE named")
        here = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())]
        found = [folder for folder in here if any(_files(folder))]
        if not found:
            raise TraceError(
                f"{path} has no trace: run the job with RMAEXT_TRACE={path}, on all ranks"
            )
        folders += (folder for folder in found if folder not in folders)
    jobs: list[Job] = []
    for folder in folders:
        try:
            job = _read(folder)
        except (TraceError, OSError) as exc:
            fail(exc)
            continue
        comms = {comm for rank in job.ranks for comm in rank.comms}
        for other in jobs:
            apart = {r.rank for r in other.ranks}.isdisjoint(r.rank for r in job.ranks)
            # a spawned job has communicators in common with its parent, too
            if (
                apart
                and other.size == job.size
                and comms & {comm for rank in other.ranks for comm in rank.comms}
            ):
                other.ranks += job.ranks
                other.problems += job.problems
                break
        else:
            jobs.append(job)
    for job in jobs:
        _complete(job)
    return jobs


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    for path in folder.iterdir():
        if name := _EVENTS.fullmatch(path.name):
            yield int(name[1]), int(name[2]), path


def _read(folder: Path) -> Job:
    parts: dict[int, list[tuple[int, Path]]] = {}
    for number, part, path in _files(folder):
        parts.setdefault(number, []).append((part, path))
    problems: list[str] = []
    ranks = [_rank(number, sorted(parts[number]), problems) for number in sorted(parts)]
    latest = max(ranks, key=lambda rank: rank.began)
    same = ["job", "size"]
    if others := [rank.rank for rank in ranks if rank.header[same] != latest.header[same]]:
        raise TraceError(
            f"{folder} has the traces of several jobs: keep those of one. Rank {latest.rank} began "
            f"last; of another job: {_some(others)}"
        )
    return Job(folder, int(latest.header["size"]), ranks, problems)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:10])) + (", ..." if len(ranks) > 10 else "")


def _complete(job: Job) -> None:
    """Fill in what all ranks know together."""
    job.ranks.sort(key=lambda rank: rank.rank)
    missing = sorted(set(range(job.size)) - {rank.rank for rank in job.ranks})
    if missing:
        job.problems.append(
            f"{len(missing)} of {job.size} ranks have no trace: {_some(missing)}. If they ran on "
            "other nodes, name their folders, too"
        )
    latest = max(job.ranks, key=lambda rank: rank.began)
    before = [rank for rank in job.ranks if rank.ended < latest.began]
    if alone := [rank.rank for rank in before if not rank.comms.keys() & latest.comms.keys()]:
        job.problems.append(
            f"when rank {latest.rank} began, these had ended, and they share no communicator with "
            f"it: {_some(alone)}. If they are of an earlier job, remove their files"
        )
    for rank in job.ranks:
        for comm, (size, own, world) in rank.comms.items():
            table = job.worlds.setdefault(comm, np.full(size, -1, np.int64))
            if len(table) == size:
                table[: len(world)] = world[:size]
                table[own] = rank.rank


def _rank(number: int, parts: list[tuple[int, Path]], problems: list[str]) -> Rank:
    headers, pieces = [], []
    for _, path in parts:
        headers.append(_header(path, number))
        pieces.append(_events(path, problems))
    name = parts[0][1].name.split(".")[0]
    same = ["pid", "monotonic", "realtime"]
    latest = max(headers, key=lambda header: int(header["realtime"]))
    pairs = zip(parts, headers, strict=True)
    if old := [path.name for (_, path), header in pairs if header[same] != latest[same]]:
        raise TraceError(
            f"{parts[0][1].parent} has the traces of several jobs: remove what is of an earlier "
            f"one: {', '.join(old)}"
        )
    rank = Rank(number, headers[0], pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
    _names(rank, parts[0][1].with_name(f"{name}.names.jsonl"), problems)
    if len(rank.events):
        first, last = (int(rank.events["seq"][i]) // 2 for i in (0, -1))
        if parts[0][0] > 0:
            words = "were removed, as the trace had reached its limit of bytes"
            problems.append(f"{name}: its first {first - 1} events {words}")
        elif first > 1:
            problems.append(f"{name}: it begins with event {first}")
        if last - first + 1 > len(rank.events):
            gone = last - first + 1 - len(rank.events)
            problems.append(f"{name}: {gone} events in between are not there")
    return rank


def _header(path: Path, number: int) -> Any:
    with path.open("rb") as file:
        data = file.read(layout.HEADER.itemsize)
    if data[:8] != b"rmaextR\0":
        raise TraceError(f"{path} is no trace of rmaext, or damaged: remove it")
    if len(data) < layout.HEADER.itemsize or path.stat().st_size < PAGE:
        raise TraceError(f"{path} is cut off within its first page: remove it")
    header = np.frombuffer(data, layout.HEADER)[0]
    version = layout.text(header["version"])
    if version != __version__ or header["layout"] != lib.RMAEXT_RECORD_LAYOUT:
        raise TraceError(
            f"{path} was written by rmaext {version}, and this is {__version__}: merge it with "
            "that version's `python -m rmaext trace`"
        )
    rank, size = int(header["rank"]), int(header["size"])
    if header["header_bytes"] != layout.HEADER.itemsize or not 0 <= rank < size <= _MOST:
        raise TraceError(f"{path} has a damaged header: remove it")
    if rank != number:
        raise TraceError(f"{path} is the trace of rank {rank}: give it its name back")
    return header


def _events(path: Path, problems: list[str]) -> NDArray[Any]:
    count, rest = divmod(path.stat().st_size - PAGE, layout.EVENT.itemsize)
    if rest:
        problems.append(f"{path.name} is cut off in its event {count}, which is left out")
    if not count:
        return np.empty(0, layout.EVENT)
    events: NDArray[Any] = np.memmap(path, layout.EVENT, "r", PAGE, (count,)).view(np.ndarray)
    seq = events["seq"]
    wrong = (seq % 2 != 0) | (seq == 0) | (seq > _LONGEST)
    wrong[1:] |= seq[1:] <= seq[:-1]
    if wrong.any():
        count = int(wrong.argmax())
        problems.append(
            f"{path.name} is damaged from event {count} on: "
            f"{len(events) - count} of {len(events)} events are left out"
        )
        events = events[:count]
    begin, end, kind = events["begin"], events["end"], events["kind"]
    good = (begin >= 0) & (begin <= end) & (end < _LONGEST) & (kind >= 1) & (kind <= _LAST)
    good &= events["route"] < len(ROUTES)
    if not good.all():
        problems.append(
            f"{path.name}: {len(events) - int(good.sum())} events make no sense and are left out"
        )
        events = events[good]
    return events


def _names(rank: Rank, path: Path, problems: list[str]) -> None:
    """Read what the numbers in events stand for."""
    bad, ended = 0, False
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        problems.append(f"{path.name}: {exc.strerror}; call sites and targets stay unknown")
        return
    for line in lines:
        try:
            ended = _name(rank, json.loads(line)) or ended
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            bad += 1
    if bad:
        problems.append(f"{path.name}: {bad} lines make no sense and are left out")
    if rank.lost:
        why = f" ({rank.error})" if rank.error else ""
        problems.append(f"rank {rank.rank} could not write {rank.lost} events{why}")
    if not ended:
        problems.append(f"{path.name} has no end: rank {rank.rank} still runs, or was killed")


def _name(rank: Rank, entry: dict[str, Any]) -> bool:
    """Note one entry; return whether it is the last."""
    if "site" in entry:
        rank.sites[int(entry["site"])] = str(entry["at"]), str(entry["call"])
    elif "window" in entry:
        kind, dtype = str(entry.get("kind", "")), str(entry.get("dtype", ""))
        window = Window(
            str(entry["comm"]), int(entry["number"]), kind, dtype, bool(entry.get("hidden"))
        )
        rank.windows[int(entry["window"])] = window
    elif "comm" in entry:
        size, own = int(entry["size"]), int(entry["rank"])
        world = [int(number) for number in entry["world"]]
        if not 0 <= own < size <= _MOST or len(world) > size:
            raise ValueError
        if any(not -1 <= number < 1 << 31 for number in world):
            raise ValueError
        rank.comms[str(entry["comm"])] = size, own, world
    elif "thread" in entry:
        rank.threads[int(entry["thread"])] = str(entry.get("name") or entry.get("tid", ""))
    elif "network" in entry:
        rank.network = layout.printable(str(entry["network"]))
    elif "lost" in entry:
        rank.lost += int(entry["lost"])
        rank.error = str(entry.get("error", ""))
    return bool(entry.get("end"))
