# SPDX-License-Identifier: BSD-3-Clause
"""Writes a job's timeline in the Trace Event Format, which Perfetto and chrome://tracing read.

A process of the timeline is a rank; its tracks are the rank's threads, and its memory. An
arrow is a `bind_id` that two slices have, the first with `flow_out`, the other with `flow_in`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._record import layout
from ..._runtime.steps import Step
from . import lanes
from .arrows import Arrows
from .reading import OPERATIONS, ROUTES, Job, Rank

__all__ = ["write"]

_CHUNK = 1 << 16
_MEMORY = 1 << 20  # tid of the track of a rank's memory
_KINDS = layout.kinds() | {n: f"{name} for another" for n, name in layout.kinds("SERVED").items()}
_SERVED = layout.kinds("SERVED")
_WAITS = layout.kinds("IN")
_OUT_OF, _INTO = ',"bind_id":"%#x","flow_out":true', ',"bind_id":"%#x","flow_in":true'


_Column = Sequence[Any]
_DETAILS = {  # of waits: what else their events say
    "lock": (("exclusive", "offset"),),
    "notify": (("slot", "offset"), ("count", "bytes")),
    "until": (("offset", "offset"),),
}


class _Writer:
    """Writes events of a rank as JSON."""

    def __init__(self, job: Job, rank: Rank) -> None:
        self._events = rank.events
        self._sites = {0: "null"} | {n: json.dumps(at) for n, (at, _) in rank.sites.items()}
        # without quotes, as names are
        self._calls = {n: json.dumps(call)[1:-1] for n, (_, call) in rank.sites.items()}
        self._windows = {n: json.dumps(job.label(w)) for n, w in rank.windows.items()}
        self._steps: dict[int, str] = {}

    def lines(
        self,
        kind: int,
        rows: NDArray[np.int64],
        partner: NDArray[np.int64],
        place: list[_Column],
        arrows: _Column,
        word: str = "",
    ) -> str:
        """Return the slices of events, all of a kind.

        Parameters
        ----------
        partner : array
            The other rank of each; -1: none.
        place : list of columns
            As `_places` returns it.
        arrows : column of str
            What the slices say of their arrows.
        word : str
            Ends their name.
        """
        events = self._events[rows]
        args: dict[str, _Column] = {
            "window": [self._windows.get(w, "null") for w in events["window"].tolist()],
            "rank": [str(r) if r >= 0 else "null" for r in partner.tolist()],
        }
        names: _Column = [_KINDS[kind] + word] * len(rows)
        if kind in _WAITS:
            if _WAITS[kind] in ("meeting", "mpi"):
                names, args["call"] = self._called(events["offset"].tolist())
            elif _WAITS[kind] == "container":
                names = [self._calls.get(s, names[0]) for s in events["site"].tolist()]
            for name, of in _DETAILS.get(_WAITS[kind], ()):
                args[name] = events[of].tolist()
        else:
            args |= {"offset": events["offset"].tolist(), "bytes": events["bytes"].tolist()}
            args["operations"] = (events["more"].astype(np.int64) + 1).tolist()
            args["route"] = [f'"{ROUTES[route]}"' for route in events["route"].tolist()]
        if kind not in _SERVED:  # those have no place in the program
            args["at"] = [self._sites.get(s, "null") for s in events["site"].tolist()]
        args["outcome"] = events["outcome"].tolist()
        inside = ",".join(f'"{name}":%s' for name in args)
        line = '{"ph":"X","pid":%d,"tid":%d,"ts":%d.%03d,"dur":%d.%03d,"name":"%s",'
        line += f'"cat":"{"wait" if kind in _WAITS else "operation"}","args":{{{inside}}}%s}}'
        columns = zip(*place, names, *args.values(), arrows, strict=True)
        return ",\n".join(map(line.__mod__, columns))

    def _called(self, words: list[int]) -> tuple[_Column, _Column]:
        """Return what collective calls are, and their numbers."""
        for word in set(words) - self._steps.keys():
            self._steps[word] = str(Step.of(word)) if word else "collective call"
        return [self._steps[word] for word in words], [word & 0xFFFFFF for word in words]


def write(
    job: Job,
    arrows: Arrows,
    add: dict[int, int],
    path: Path,
    between: tuple[float, float] | None = None,
    advance: Callable[[int], None] = lambda number: None,
) -> int:
    """Write all events to a file, compressed; return how many.

    Parameters
    ----------
    add : dict
        The ns to add to the times of each rank.
    between : two floats, optional
        The seconds after the first event that are wanted; all by default.
    advance : callable, optional
        Is told how many events were written.
    """
    starts = [int(r.events["begin"].min()) + add[r.rank] for r in job.ranks if len(r.events)]
    zero = min(starts, default=0)
    window = (0, 1 << 62)
    if between is not None:
        window = int(between[0] * 1e9), int(min(between[1] * 1e9, 1 << 62))
    written = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        head = {"displayTimeUnit": "ns", "otherData": {"job": job.folder.name, "zero_ns": zero}}
        file.write(json.dumps(head)[:-1].encode() + b',"traceEvents":[\n')
        lines = list(_titles(job))
        for i, rank in enumerate(job.ranks):
            for text, number in _tracks(job, arrows, i, add[rank.rank] - zero, window):
                lines.append(text)
                file.write(",\n".join(lines).encode() + b",\n")
                lines.clear()
                written += number
                advance(number)
        # last, as Perfetto wants an arrow's beginning before an end at the same time
        for i in range(len(job.ranks)):
            for text in _memory(job, arrows, i, add, zero, window):
                file.write(text.encode() + b",\n")
        # the array must not end in a comma
        lines.append(_title(job.ranks[0].rank, "process_sort_index", sort_index=job.ranks[0].rank))
        file.write(",\n".join(lines).encode() + b"\n]}\n")
    return written


def _title(pid: int, what: str, tid: int | None = None, **args: Any) -> str:
    place = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    return json.dumps({"ph": "M", **place, "name": what, "args": args})


def _titles(job: Job) -> Iterator[str]:
    for rank in job.ranks:
        facts = [rank.host, f"process {int(rank.header['pid'])}", rank.network]
        name = f"rank {rank.rank} ({', '.join(filter(None, facts))})"
        yield _title(rank.rank, "process_name", name=name)
        yield _title(rank.rank, "process_sort_index", sort_index=rank.rank)


def _tracks(
    job: Job, arrows: Arrows, i: int, shift: int, window: tuple[int, int]
) -> Iterator[tuple[str, int]]:
    """Yield the events of a rank's threads as text, and how many they are."""
    rank = job.ranks[i]
    writer = _Writer(job, rank)
    for thread in np.unique(rank.events["thread"]).tolist():
        rows = np.flatnonzero(rank.events["thread"] == thread)
        begin = rank.events["begin"][rows] + shift
        lane, end = lanes.distribute(begin, rank.events["end"][rows] + shift)
        serves = np.isin(rank.events["kind"][rows], list(_SERVED)).all()
        name = rank.threads.get(thread, "progress" if serves else f"thread {thread}")
        tid = thread * lanes.MOST + 1
        for number in range(int(lane.max()) + 1):
            title = f"{name}, beside" if number else name
            yield from ((text, 0) for text in _track(rank.rank, tid + number, title))
        seen = np.flatnonzero((end >= window[0]) & (begin <= window[1]))
        for kind, part in _parts(seen, rank.events["kind"][rows]):
            place = _places(rank.rank, lane[part] + tid, begin[part], end[part])
            some = rows[part]
            targets = arrows.targets[i][some]
            yield (
                writer.lines(kind, some, targets, place, _arrows(arrows, i, some, kind)),
                len(part),
            )


def _memory(
    job: Job, arrows: Arrows, t: int, add: dict[int, int], zero: int, window: tuple[int, int]
) -> Iterator[str]:
    """Yield the track of what others have done to a rank's memory themselves."""
    origins = {i: rows for i, rows in arrows.memory[t].items() if len(rows)}
    if not origins:
        return
    rank = job.ranks[t].rank
    yield from _track(rank, _MEMORY, "memory")
    which = np.concatenate([np.full(len(rows), i) for i, rows in origins.items()])
    rows = np.concatenate(list(origins.values()))
    begin, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for i, some in origins.items():
        shift = add[job.ranks[i].rank] - zero
        begin[which == i] = job.ranks[i].events["begin"][some] + shift
        end[which == i] = job.ranks[i].events["end"][some] + shift
    end = lanes.shorten(begin, end)
    seen = (end >= window[0]) & (begin <= window[1])
    kinds = np.zeros(len(rows), np.uint8)
    for i in origins:
        origin, writer = job.ranks[i].rank, _Writer(job, job.ranks[i])
        kinds[which == i] = job.ranks[i].events["kind"][rows[which == i]]
        for kind, part in _parts(np.flatnonzero(seen & (which == i)), kinds):
            place = _places(rank, np.full(len(part), _MEMORY), begin[part], end[part])
            into = [_INTO % n for n in arrows.number(i, rows[part]).tolist()]
            of = np.full(len(part), origin)
            yield writer.lines(kind, rows[part], of, place, into, f" of rank {origin}")


def _track(rank: int, tid: int, name: str) -> Iterator[str]:
    yield _title(rank, "thread_name", tid=tid, name=name)
    yield _title(rank, "thread_sort_index", tid=tid, sort_index=tid)


def _parts(
    rows: NDArray[np.int64], kinds: NDArray[np.uint8]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield rows of one kind at a time, so many that they fit into memory."""
    kinds = kinds[rows]
    for kind in np.unique(kinds).tolist():
        chosen = rows[kinds == kind]
        for first in range(0, len(chosen), _CHUNK):
            yield kind, chosen[first : first + _CHUNK]


def _places(
    pid: int, tids: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> list[_Column]:
    """Return pid, tid, ts in two parts, and dur in two parts."""
    parts = [*np.divmod(begin, 1000), *np.divmod(end - begin, 1000)]
    return [[pid] * len(tids), tids.tolist(), *(part.tolist() for part in parts)]


def _arrows(arrows: Arrows, i: int, rows: NDArray[np.int64], kind: int) -> list[str]:
    """Return what each slice says of the arrow that begins or ends at it."""
    if kind in _SERVED:
        return [_INTO % n if n else "" for n in arrows.into[i][rows].tolist()]
    if kind in OPERATIONS:
        known = (arrows.targets[i][rows] >= 0).tolist()
        out = zip(arrows.number(i, rows).tolist(), known, strict=True)
        return [_OUT_OF % n if k else "" for n, k in out]
    return [""] * len(rows)
