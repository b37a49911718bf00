# SPDX-License-Identifier: BSD-3-Clause
"""Sums over a trace: who with whom, how long, and where in the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._native._lib import lib
from ..._record import layout
from ..._runtime.steps import END, Step
from .arrows import Arrows
from .reading import OPERATIONS, ROUTES, Job, Rank, is_kind

__all__ = ["EDGES", "Site", "Sums"]

_DECADE = 20  # classes of latencies
EDGES = np.rint(10 ** (np.arange(10 * _DECADE + 1) / _DECADE + 1)).astype(np.int64)  # 10 ns-100 s
_WAITS = layout.kinds("IN")
_END, _END_WORD = 2**32 - 1, Step(END, 0, 0).word() >> 56  # a site that no call has


@dataclass
class Site:
    """What one line of the program has called."""

    operations: int = 0
    bytes: int = 0
    ns: int = 0  # in these calls and until their operations were complete
    waits: int = 0  # ns of them in waits


@dataclass
class Sums:
    """All sums of a job, without what rmaext itself does in its hidden windows.

    Attributes
    ----------
    pairs : dict
        (origin, target), by their ranks in MPI_COMM_WORLD: operations, bytes, errors.
        -1: the trace does not say which.
    kinds : dict
        (kind, route) of operations, of each rank: operations, bytes, errors.
    latencies : dict
        (kind, route): how many events lasted from each of EDGES on. The first counts those
        that were shorter, too. The route of a wait is "".
    waits : dict
        rank: ns in waits, all threads together.
    sites : dict
        (where, call): what that has cost.
    """

    pairs: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict)
    kinds: dict[int, dict[tuple[str, str], NDArray[np.int64]]] = field(default_factory=dict)
    latencies: dict[tuple[str, str], NDArray[np.int64]] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    sites: dict[tuple[str, str], Site] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, arrows: Arrows) -> Sums:
        """Sum up a job."""
        sums = cls()
        for rank, targets in zip(job.ranks, arrows.targets, strict=True):
            sums._add(rank, targets)
        return sums

    def total(self) -> NDArray[np.int64]:
        """Return the operations, bytes and errors of all ranks."""
        return sum(self.pairs.values(), np.zeros(3, np.int64))

    def _add(self, rank: Rank, targets: NDArray[np.int64]) -> None:
        events = rank.events
        own = [number for number, window in rank.windows.items() if window.hidden]
        operations = is_kind(events, "DID_PUT", "DID_NOTIFY")
        did = np.flatnonzero(operations & ~np.isin(events["window"], own))
        mine = events[did]
        sums = np.stack([_calls(mine), mine["bytes"], mine["outcome"] != 0], axis=1, dtype=np.int64)
        for target, total in _grouped(targets[did], sums):
            self.pairs[rank.rank, target] = total
        of_kinds = self.kinds.setdefault(rank.rank, {})
        for both, total in _grouped(mine["kind"].astype(np.int64) * 8 + mine["route"], sums):
            of_kinds[OPERATIONS[both >> 3], ROUTES[both & 7]] = total
        waits = np.flatnonzero(np.isin(events["kind"], [*_WAITS]))
        self.waits[rank.rank] = sum(_covered(events[waits], ("thread",)).values())
        self._add_latencies(mine, True)
        self._add_latencies(events[waits], False)
        self._add_sites(rank, mine, events[waits])

    def _add_latencies(self, events: NDArray[Any], operations: bool) -> None:
        classes = np.searchsorted(EDGES, events["end"] - events["begin"], "right") - 1
        classes = np.clip(classes, 0, len(EDGES) - 1)
        which = events["kind"].astype(np.int64) * 8 + events["route"] * operations
        for both in np.unique(which).tolist():
            found = np.bincount(classes[which == both], minlength=len(EDGES))
            names = OPERATIONS if operations else _WAITS
            key = names[both >> 3], ROUTES[both & 7] if operations else ""
            self.latencies[key] = self.latencies.get(key, 0) + found

    def _add_sites(self, rank: Rank, mine: NDArray[Any], waits: NDArray[Any]) -> None:
        def entry(number: int) -> Site:
            where = rank.sites.get(number, ("", END) if number == _END else ("unknown", ""))
            return self.sites.setdefault(where, Site())

        at_end = (waits["kind"] == lib.RMAEXT_IN_MEETING) & (waits["offset"] >> 56 == _END_WORD)
        waits["site"][at_end] = _END
        sums = np.stack([_calls(mine), mine["bytes"]], axis=1, dtype=np.int64)
        for number, (operations, size) in _grouped(mine["site"].astype(np.int64), sums):
            entry(number).operations += int(operations)
            entry(number).bytes += int(size)
        for (number, _), ns in _covered(np.concatenate([mine, waits]), ("site", "thread")).items():
            entry(number).ns += ns
        for (number, _), ns in _covered(waits, ("site", "thread")).items():
            entry(number).waits += ns


def _calls(events: NDArray[Any]) -> NDArray[np.int64]:
    calls: NDArray[np.int64] = events["more"].astype(np.int64) + 1
    return calls


def _grouped(key: NDArray[np.int64], values: NDArray[np.int64]) -> list[tuple[int, Any]]:
    """Return each key, and the sum of its rows of values."""
    found, inverse = np.unique(key, return_inverse=True)
    totals = np.zeros((len(found), values.shape[1]), np.int64)
    np.add.at(totals, inverse, values)
    return list(zip(found.tolist(), totals, strict=True))


def _covered(events: NDArray[Any], by: tuple[str, ...]) -> dict[Any, int]:
    """Return the ns that events of the same group cover, each of them once."""
    order = np.lexsort((events["begin"], *(events[name] for name in reversed(by))))
    events = events[order]
    new = np.ones(len(events), bool)
    new[1:] = False
    for name in by:
        new[1:] |= events[name][1:] != events[name][:-1]
    starts = np.flatnonzero(new)
    found = {}
    for first, last in zip(starts, np.append(starts, len(events))[1:], strict=True):
        begin, end = events["begin"][first:last], events["end"][first:last]
        latest = np.maximum.accumulate(np.append(begin[0], end[:-1]))
        key = tuple(int(events[name][first]) for name in by)
        found[key] = int(np.maximum(end - np.maximum(begin, latest), 0).sum())
    return found
