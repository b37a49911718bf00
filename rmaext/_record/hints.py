# SPDX-License-Identifier: BSD-3-Clause
"""Hints: what a job could do to be much faster, as its own counters tell.

There is one. Updates (accumulate, fetch_add, ...) of an array of the program's own go by message
within a node, too; of memory that ranks of the node can map they are atomics of this CPU. As a
window is made its counters say for which targets that holds; nothing is done in an update.

It is due of so many updates (RMAEXT_HINTS), or of fewer that took long: the counters have their
number, and the latest events how long one takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from .._native._lib import lib
from .._runtime.config import hints_from
from .._runtime.reports import numbers
from .record import Record, RecordError, find
from .snapshot import Slow, Snapshot, Window

__all__ = ["lines", "look", "may_be_due", "of_window", "texts"]

_UPDATES = (lib.RMAEXT_DID_UPDATE, lib.RMAEXT_DID_FETCH)
_LEAST = 1000.0  # ns of an update: those that share messages take less, and that is well
_LONG = 1e9  # ns of all updates together: a hint is due of fewer, too,
_PART = 100  # if they are at least this part of those of which it is due anyway
_FEW = 64  # bytes of an update that takes as long as that of one element
_EVENTS = 8192  # the latest, of which the time of an update is known
_DROP_IN = "CreatedWindow"  # rmaext/compat/creation.py


def of_window(comm: int, number: int) -> str:
    """Return the hint about a window of this process; "" if none is due. Local."""
    records, _ = find([os.getpid()])
    for record in records:
        with record, suppress(RecordError):  # what cannot be read is not important
            one = record.snapshot()
            wanted = filter(lambda w: (w.comm, w.number) == (comm, number), one.windows)
            one.windows = list(wanted)
            look(one, record)
            return "".join(texts([one]))
    return ""


def look(one: Snapshot, record: Record) -> None:
    """Note the windows of a process of which a hint is due."""
    open_ = (w for w in one.windows if w.open and not w.hidden)
    one.slow = [slow for window in open_ if (slow := _slow(one, record, window)) is not None]


def texts(snapshots: Iterable[Snapshot]) -> list[str]:
    """Return the hints about what `look` has noted: one for each window, of all its ranks."""
    if not hints_from():
        return []
    found: dict[tuple[str, int, int], list[tuple[int, Slow]]] = {}
    for one in snapshots:
        for slow in one.slow:
            found.setdefault((one.job, slow.comm, slow.number), []).append((one.rank, slow))
    return [_text(by_rank) for _, by_rank in sorted(found.items())]


def lines(hints: Iterable[str]) -> list[str]:
    """Return hints as commands show them."""
    return [f"hint: {text}" for text in hints]


def _text(by_rank: list[tuple[int, Slow]]) -> str:
    ranks = numbers(sorted({rank for rank, _ in by_rank}))
    first = by_rank[0][1]
    calls = sum(slow.calls for _, slow in by_rank)
    timed = [slow for _, slow in by_rank if slow.ns]
    text = f"{ranks}: {calls:,} updates of window {first.number}"
    text += f" ({first.site})" if first.site else ""
    text += " went by messages"
    if timed:
        us = sum(slow.ns * slow.calls for slow in timed) / sum(slow.calls for slow in timed) / 1000
        text += f", {us:,.0f} us each" if us >= 10 else f", {us:.1f} us each"
    few = sum(slow.bytes for _, slow in by_rank) <= _FEW * calls
    memory = "MPI.Win.Allocate" if first.kind == _DROP_IN else "Window.allocate or rmaext.zeros"
    instead = "take some 0.1 us" if few else "need none"  # docs/guides/which-call.md
    return f"{text}, as the memory is your own: in that of {memory} they {instead}"


def _by_message(counts: Any) -> tuple[int, int]:
    """Return the updates that a hint may be about, and their bytes."""
    kinds = [kind - 1 for kind in _UPDATES]
    mine = counts["shared"][counts["hint_from"] != 0][:, kinds, lib.RMAEXT_MESSAGE]
    return int(mine["calls"].sum()), int(mine["bytes"].sum())


def may_be_due(counts: Any) -> bool:
    """Tell whether a hint may be due of a window, by its counters alone."""
    least = int(counts["hint_from"].max(initial=0))
    return bool(least) and _by_message(counts)[0] * _PART >= least


def _slow(one: Snapshot, record: Record, window: Window) -> Slow | None:
    counts = record.counts(window)
    if not may_be_due(counts):
        return None
    calls, size = _by_message(counts)
    targets = np.flatnonzero(counts["hint_from"])
    ns = _each(record.events(max(one.next - _EVENTS, 0))[0], window.id, targets)
    if 0 < ns < _LEAST or (calls < counts["hint_from"].max() and calls * ns < _LONG):
        return None
    return Slow(window.comm, window.number, window.kind, window.site, calls, size, ns)


def _each(events: Any, window: int, targets: Any) -> float:
    """Return the time of an update by message, as the latest ones have taken it; 0: unknown.

    It is the time in which any was under way, so that what overlaps is not counted twice.
    """
    mine = (events["window"] == window) & (events["route"] == lib.RMAEXT_MESSAGE)
    mine &= np.isin(events["kind"], _UPDATES) & np.isin(events["target"], targets)
    timed = events[mine]
    timed = timed[np.argsort(timed["begin"])]
    if not timed.size:
        return 0.0
    ends = np.maximum.accumulate(timed["end"])
    idle = np.maximum(timed["begin"][1:] - ends[:-1], 0).sum()
    calls = timed.size + int(timed["more"].sum())
    return float(max(ends[-1] - timed["begin"][0] - idle, 1) / calls)
