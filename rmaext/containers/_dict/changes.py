# SPDX-License-Identifier: BSD-3-Clause
"""Sets and sums of many keys of a `Dict`: those that are there, those that are not, in order."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .entries import Entries
from .hashing import Query
from .memory import Wait
from .state import MISSING, UNDECIDED, Found, Index, Writing

__all__ = ["Changes"]

Array = NDArray[Any]


class Changes(Entries):
    """What batches do. Operations on one key take effect in the order of the batch."""

    def change(self, q: Query, stored: Array, op: Literal["replace", "sum"]) -> Array | None:
        """Set values, or add to them.

        Parameters
        ----------
        q : Query
        stored : numpy.ndarray
            A value for each key.
        op : {"replace", "sum"}

        Returns
        -------
        numpy.ndarray or None
            The previous values, 0 where an entry was made; None for those that are no words.
        """
        if not len(q.ranks):
            return stored
        if self._m.values is None:
            self._change_wide(q, stored)
            return None
        with self._m:
            found = self.find(q, False)
            if found.whole:
                return self._apply(q, found, stored, op)
        before = np.zeros(len(q.ranks), stored.dtype)
        rows, wait = np.arange(len(q.ranks)), Wait(self._m, "those who remove a key")
        while rows.size:
            some = q.take(rows)
            with self._m:
                found = self.find(some)
                ready = _ready(some, found)
                if ready.size:
                    part, mine = some.take(ready), stored[rows[ready]]
                    before[rows[ready]] = self._apply(part, found.take(ready), mine, op)
            rows = self._go_on(some, found, stored, rows, ready, wait)
        return before

    def _apply(self, q: Query, found: Found, stored: Array, op: Any) -> Array:
        values, form = self._m.values, self._m.format
        assert values is not None
        assert form.unit is not None
        unit = stored.view(form.unit)
        self._sent = q.ranks
        before = values.fetch_op_many(q.ranks, form.offset(found.slots), unit, op)
        result: Array = np.asarray(before).view(stored.dtype)
        return result

    def _change_wide(self, q: Query, stored: Array) -> None:
        """Set values that no update can replace: their slots are held meanwhile."""
        rows, wait = np.arange(len(q.ranks)), Wait(self._m, "those who change or remove a key")
        while rows.size:
            some = q.take(rows)
            with self._m:
                found = self.find(some)
                ready = _ready(some, found)
                # of several for one key the last is written
                place = (some.ranks * self._m.buckets * 8 + found.places)[ready][::-1]
                last = got = ready[::-1][np.unique(place, return_index=True)[1]]
                if last.size:
                    records = self._m.format.records(some.words[last], stored[rows[last]])
                    writing = Writing(some.take(last), found.take(last), records)
                    self._now = self._now._replace(writing=writing)
                    got = np.flatnonzero(self.hold(writing.q, writing.found))
            if got.size:
                self.write(writing, got)
            self._now = self._now._replace(writing=None)
            failed = np.setdiff1d(last, last[got])  # others were faster
            done = np.setdiff1d(ready, failed)
            if failed.size:
                wait.on(())
            rows = self._go_on(some, found, stored, rows, done, wait)

    def _go_on(
        self, q: Query, found: Found, stored: Array, rows: Index, done: Index, wait: Wait
    ) -> Index:
        """Make the entries that were missing, or wait; return the rows that are left."""
        left = np.ones(len(rows), bool)
        left[done] = False
        missing = found.slots == MISSING
        if missing.any():
            first = np.unique(q.hashes, return_index=True)[1]
            new = np.sort(first[missing[first]])
            if new.size:
                records = self._m.format.records(q.words[new], stored[rows[new]])
                left[new[self.insert(q.take(new), records, wait)]] = False
                return rows[left]
        if found.undecided().size:
            self.wait_for(wait, q, found)
        return rows[left]


def _ready(q: Query, found: Found) -> Index:
    """Return the rows that can be changed now.

    None while a key of the batch is missing: first there must be room for it. And none of a
    key before another row of that key: they take effect in order.
    """
    if found.whole:
        return np.arange(len(q.ranks))
    if (found.slots == MISSING).any():
        return np.zeros(0, np.int64)
    at_work = np.unique(q.hashes[found.slots == UNDECIDED])
    return np.flatnonzero(~np.isin(q.hashes, at_work))
