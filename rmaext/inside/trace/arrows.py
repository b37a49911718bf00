# SPDX-License-Identifier: BSD-3-Clause
"""Finds where at the target an operation of an origin took place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._native._lib import lib
from .reading import ROUTES, Job, is_kind

__all__ = ["Arrows"]

_MESSAGE = ROUTES.index("message")
_SERVED = lib.RMAEXT_SERVED_PUT - lib.RMAEXT_DID_PUT
_KEY = np.dtype(
    [
        ("origin", "i4"),
        ("target", "i4"),
        ("window", "i8"),
        ("kind", "u1"),
        ("begin", "i8"),
        ("end", "i8"),
        ("id", "i8"),
    ]
)
_SAME = ["origin", "target", "window", "kind"]
_SLACK = 50_000  # ns that the clocks of two nodes may differ by


class Arrows:
    """The arrows of a job.

    An arrow has a number, which its operation at the origin gives it. It ends at an event
    of the target, if the target itself has carried the operation out: operations of the
    same origin, window and kind are carried out in their order, and each before the origin
    knows that it is complete. Else it ends in the target's memory.

    Attributes
    ----------
    into : list of arrays
        For each rank the number of the arrow that ends at each event; 0: none.
    memory : list of dicts
        For each rank the events of others whose arrows end in its memory: index of the
        other rank in the job -> indices of its events.
    """

    def __init__(self, job: Job, add: dict[int, int]) -> None:
        index = {rank.rank: i for i, rank in enumerate(job.ranks)}
        lookup = np.full(job.size, -1, np.int64)
        lookup[list(index)] = list(index.values())
        self.targets = [rank.targets(job) for rank in job.ranks]
        self.memory: list[dict[int, NDArray[np.int64]]] = [{} for _ in job.ranks]
        # the number of each rank's first event
        self._first = [1, *(1 + np.cumsum([len(rank.events) for rank in job.ranks]))]
        numbers: dict[tuple[str, int], int] = {}
        begun, served = [], []
        for i, rank in enumerate(job.ranks):
            ids = {
                w: numbers.setdefault((x.comm, x.number), len(numbers) + 1)
                for w, x in rank.windows.items()
            }
            did = is_kind(rank.events, "DID_PUT", "DID_NOTIFY") & (self.targets[i] >= 0)
            did &= self.targets[i] < job.size
            did[did] = lookup[self.targets[i][did]] >= 0
            sent = np.flatnonzero(did & (rank.events["route"] == _MESSAGE))
            begun.append(self._keys(rank, sent, i, ids, add[rank.rank]))
            rows = np.flatnonzero(is_kind(rank.events, "SERVED_PUT", "SERVED_NOTIFY"))
            keys = self._keys(rank, rows, i, ids, add[rank.rank])
            keys["origin"], keys["target"] = keys["target"], rank.rank
            keys["kind"] -= _SERVED
            served.append(keys)
            self._note(i, np.flatnonzero(did), lookup)
        self.into = [np.zeros(len(rank.events), np.int64) for rank in job.ranks]
        ends, arrows = _paired(
            np.concatenate(begun), np.concatenate(served), _SLACK if any(add.values()) else 0
        )
        for i, into in enumerate(self.into):
            mine = (ends >= self._first[i]) & (ends < self._first[i + 1])
            into[ends[mine] - self._first[i]] = arrows[mine]
        self._leave_out(arrows)

    def number(self, i: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the arrows that begin at these events of the i'th rank.

        Perfetto reads 32 bits of them.
        """
        numbers: NDArray[np.int64] = rows + self._first[i]
        return numbers

    def _keys(
        self, rank: Any, rows: NDArray[np.int64], i: int, ids: dict[int, int], add: int
    ) -> NDArray[Any]:
        events, keys = rank.events[rows], np.empty(len(rows), _KEY)
        keys["origin"], keys["target"] = rank.rank, self.targets[i][rows]
        local, inverse = np.unique(events["window"], return_inverse=True)
        # a window that has no name here, and so none that another rank could know
        keys["window"] = np.array([ids.get(int(w), -1 - int(w)) for w in local], "i8")[inverse]
        keys["kind"], keys["id"] = events["kind"], self.number(i, rows)
        keys["begin"], keys["end"] = events["begin"] + add, events["end"] + add
        return keys

    def _note(self, i: int, rows: NDArray[np.int64], lookup: NDArray[np.int64]) -> None:
        """Note that these events of a rank end in the memory of their targets."""
        at = lookup[self.targets[i][rows]]
        order = np.argsort(at, kind="stable")
        for t, part in zip(*_groups(at[order]), strict=True):
            self.memory[int(t)][i] = rows[order[part]]

    def _leave_out(self, arrows: NDArray[np.int64]) -> None:
        """Leave those out of memory that end at an event of their target."""
        arrows = np.sort(arrows)
        for origins in self.memory:
            for i, rows in origins.items():
                number = self.number(i, rows)
                place = np.minimum(np.searchsorted(arrows, number), max(len(arrows) - 1, 0))
                if len(arrows):
                    origins[i] = rows[arrows[place] != number]


def _groups(values: NDArray[Any]) -> tuple[NDArray[Any], list[slice]]:
    """Return the different ones among sorted values, and where each lies."""
    found, first = np.unique(values, return_index=True)
    ends = np.append(first, len(values))[1:]
    return found, [slice(a, b) for a, b in zip(first, ends, strict=True)]


def _paired(
    begun: NDArray[Any], served: NDArray[Any], slack: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ids of the served ones that have a begun one, and those ones' ids.

    slack : ns that clocks may differ by.
    """
    both = np.concatenate([begun, served])
    late = np.arange(len(both)) >= len(begun)
    order = np.lexsort((both["begin"], late, *(both[name] for name in reversed(_SAME))))
    both, late = both[order], late[order]
    new = np.ones(len(both), bool)
    new[1:] = late[1:] != late[:-1]
    for name in _SAME:
        new[1:] |= both[name][1:] != both[name][:-1]
    starts = np.flatnonzero(new)
    ends, arrows = [], []
    # a run of served ones belongs to the run before it, if that is begun and of the same key
    for first, middle, last in zip(starts, starts[1:], [*starts[2:], len(both)], strict=False):
        if late[middle] and not late[first] and (both[first][_SAME] == both[middle][_SAME]):
            ops, done = both[first:middle], both[middle:last]
            i, j = _in_order(ops["begin"] - slack, ops["end"] + slack, done["begin"])
            arrows.append(ops["id"][i])
            ends.append(done["id"][j])
    none = [np.empty(0, np.int64)]
    return np.concatenate(none + ends), np.concatenate(none + arrows)


def _in_order(
    begin: NDArray[np.int64], end: NDArray[np.int64], done: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair operations with when they were done, both in order; return the indices of both.

    Where files were removed, or events lost, those that lack a partner are left out.
    """
    every = np.arange(len(begin))
    if len(begin) == len(done) and ((begin <= done) & (done <= end)).all():
        return every, every
    pairs, i = [], 0
    begins, ends = begin.tolist(), end.tolist()
    for j, time in enumerate(done.tolist()):
        while i < len(ends) and ends[i] < time:
            i += 1
        if i < len(begins) and begins[i] <= time:
            pairs.append((i, j))
            i += 1
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
