# SPDX-License-Identifier: BSD-3-Clause
"""Accesses to a rank's memory, and which two of them are not ordered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .clock import NEVER, Times
from .spans import Spans, common, merged

__all__ = [
    *("BUFFER", "FLUSH", "READ", "REQUEST", "RETURN", "UPDATE", "WRITE"),
    *("Access", "Pending", "Race", "at_once", "pair_of", "races"),
]

READ, WRITE, UPDATE = 1, 2, 4  # UPDATE: atomic against others of the same dtype
RETURN, FLUSH, REQUEST, BUFFER = range(4)  # what ends an access; BUFFER: of a request's memory
_MOST_RUNS = 2048  # of an access that is compared with itself
_MERGE_AT = 64  # sets of bytes of one access, before they are joined


class Access:
    """What one line of a program did to a rank's memory, once or several times.

    Attributes
    ----------
    origin : int
        Rank in MPI.COMM_WORLD.
    rank : int
        The same rank in the window.
    target : int
        Rank in the window whose memory it is.
    kind : int
        READ, WRITE or UPDATE; UPDATE | READ is an atomic one that only reads.
    dtype : str
        Of an atomic one.
    what, site : str
        The call, and where it stands.
    issued : numpy.ndarray
        The origin's clock when it began.
    done, near : int
        The origin's time from which on it is complete for those who are told; for the origin
        itself.
    """

    __slots__ = (
        *("done", "dtype", "issued", "kind", "near", "origin", "rank", "site", "target", "what"),
        *("_spans", "high", "low"),
    )

    def __init__(
        self,
        whose: tuple[int, int],
        target: int,
        kind: int,
        dtype: str,
        words: tuple[str, str],
        issued: Times,
        complete: bool,
    ) -> None:
        self.origin, self.rank = whose
        self.target, self.kind, self.dtype = target, kind, dtype
        self.what, self.site = words
        self.issued = issued
        self.done = self.near = int(issued[self.origin]) if complete else NEVER
        self._spans: list[Spans] = []
        self.low, self.high = NEVER, -NEVER

    def __reduce__(self) -> tuple[object, ...]:
        whose, words = (self.origin, self.rank), (self.what, self.site)
        first = (whose, self.target, self.kind, self.dtype, words, self.issued, False)
        return _rebuilt, (first, self.done, self.near, self.spans)

    def add(self, spans: Spans) -> None:
        """Note that it touches these bytes, too."""
        if len(spans):
            self.low = min(self.low, int(spans[0, 0]))
            self.high = max(self.high, int(spans[-1, 1]))
        self._spans.append(spans)
        if len(self._spans) >= _MERGE_AT:
            self._spans = [self.spans]

    @property
    def spans(self) -> Spans:
        """The bytes, in order."""
        if len(self._spans) > 1:
            self._spans = [merged(np.concatenate(self._spans))]
        return self._spans[0]


def _rebuilt(first: tuple[object, ...], done: int, near: int, spans: Spans) -> Access:
    access = Access(*first)  # type: ignore[arg-type]
    access.done, access.near = done, near
    access.add(spans)
    return access


@dataclass(frozen=True)
class Race:
    """Two accesses that are not ordered, and bytes that both touch."""

    one: Access
    other: Access
    bytes: tuple[int, int]


class Pending:
    """Accesses to one rank that are not complete, found by where they are."""

    def __init__(self) -> None:
        self.accesses: list[Access] = []
        self._places: dict[int, int] = {}
        self._bounds = np.zeros((16, 2), np.int64)

    def add(self, access: Access) -> None:
        """Take an access, or what has become of one that is here."""
        at = self._places.setdefault(id(access), len(self.accesses))
        if at == len(self.accesses):
            self.accesses.append(access)
        if at == len(self._bounds):
            self._bounds = np.concatenate([self._bounds, np.zeros_like(self._bounds)])
        self._bounds[at] = access.low, access.high

    def near(self, spans: Spans) -> list[Access]:
        """Return those that may touch some bytes."""
        if not len(spans):
            return []
        bounds = self._bounds[: len(self.accesses)]
        hits = (bounds[:, 0] < spans[-1, 1]) & (bounds[:, 1] > spans[0, 0])
        return [self.accesses[at] for at in np.flatnonzero(hits)]


def pair_of(one: Access, other: Access) -> frozenset[str]:
    """Return what two places in a program are known by."""
    return frozenset([f"{it.what} {it.site}" for it in (one, other)])


def at_once(pending: Access, new: Access, spans: Spans) -> Race | None:
    """Return the race of an access that is not complete with a new one of the same rank."""
    if pending.near != NEVER or (pending.kind & READ and new.kind & READ):
        return None
    if pending.kind & UPDATE and new.kind & UPDATE and pending.dtype == new.dtype:
        return None
    if pending is new and len(pending.spans) > _MOST_RUNS:
        return None  # to look for it would take longer than all the rest
    both = common(pending.spans, spans)
    return None if both is None else Race(pending, new, both)


def races(
    accesses: Sequence[Access],
    known: set[frozenset[str]],
    excused: Callable[[Access, Access], bool] = lambda one, other: False,
) -> Iterator[Race]:
    """Find pairs that are not ordered, each pair of places once.

    `known` are the pairs of places found before; `excused` tells of two accesses whether what
    is not in their clocks orders them. Of two accesses that overlap, one must be complete
    before the other begins, unless both only read, or are updates of the same dtype. Those of
    one rank are compared as they begin, by `at_once`.
    """
    accesses = sorted((it for it in accesses if it.low < it.high), key=lambda it: it.low)
    if len(accesses) < 2:
        return
    low = np.array([access.low for access in accesses])
    high = np.array([access.high for access in accesses])
    kind = np.array([access.kind for access in accesses])
    reads = (kind & READ) != 0
    names = {name: number for number, name in enumerate({access.dtype for access in accesses})}
    dtype = np.array([names[access.dtype] for access in accesses])
    atomic = (kind & UPDATE) != 0
    origin = np.array([access.origin for access in accesses])
    done = np.array([access.done for access in accesses])
    issued = np.array([access.issued for access in accesses])
    places = {name: number for number, name in enumerate({pair_of(it, it) for it in accesses})}
    place = np.array([places[pair_of(it, it)] for it in accesses])
    told = np.array([[a | b in known for b in places] for a in places])
    for i, one in enumerate(accesses):
        j = slice(i + 1, int(np.searchsorted(low, high[i])))
        before = issued[j, origin[i]] >= done[i]
        after = issued[i][origin[j]] >= done[j]
        skip = (origin[j] == origin[i]) | told[place[i], place[j]]
        harmless = (reads[j] & reads[i]) | (atomic[j] & atomic[i] & (dtype[j] == dtype[i]))
        for k in np.flatnonzero(~(before | after | harmless | skip)) + i + 1:
            if told[place[i], place[k]]:
                continue
            other = accesses[k]
            both = common(one.spans, other.spans)
            if both is not None and not excused(one, other) and not excused(other, one):
                told[place[i], place[k]] = told[place[k], place[i]] = True
                known.add(pair_of(one, other))
                yield Race(one, other, both)
