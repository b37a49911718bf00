# SPDX-License-Identifier: BSD-3-Clause
"""`win.stats`: how often this rank has used which target, and how (csrc/record/)."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._ops.core import WindowCore
from .._record import layout
from .._runtime.log import log
from ..errors import Unsupported
from ..typing import ScalarT

__all__ = ["Statistics"]

_KINDS = [kind for _, kind in sorted(layout.kinds("DID").items())]  # those counted come first
_ROW = np.dtype(
    [("target", "i8"), ("kind", "U8"), ("route", "U8")]
    + [(name, "u8") for name in ("calls", "elements", "bytes", "errors")]
)


class Statistics(WindowCore[ScalarT]):
    """The counters of `Window`."""

    def _mark_slow(self) -> None:
        """Mark the targets whose updates are messages only as their memory is the program's.

        Ranks of this node could map memory of `Window.allocate`. Who has mapped a file wants that.
        """
        group, targets = self._group, ffi.new("int64_t *")
        if not group.hints_from or self._region.dynamic:
            return
        counters = lib.rmaext_record_counters(self._handle, targets)
        own = min(targets[0], lib.RMAEXT_RECORD_TARGETS) - 1  # targets that share none
        for rank, process in group.processes.items():
            by_message = self._routes[rank] != lib.RMAEXT_DIRECT
            stored = self._records.access[rank] & lib.RMAEXT_STORED
            if rank < own and by_message and process.can_map and not stored:
                counters[rank].hint_from = group.hints_from
                self._may_hint = True

    def _advised(self) -> str:
        """Say how so many updates as were made would have been faster; or "". Local."""
        parts = [part for part in self._parts() if part._may_hint]
        if not parts:
            return ""
        try:
            from .._record import hints  # here: few programs ever need it

            if not any(map(hints.may_be_due, [_counts(part._handle) for part in parts])):
                return ""
            return hints.of_window(self._group.record_id, int(self._name))
        except Exception:  # without descriptors, say: the others wait for this rank
            log.debug("no hint", exc_info=True)
            return ""

    @property
    def stats(self) -> NDArray[Any]:
        """What this rank has done with each target so far. Local.

        Returns
        -------
        numpy.ndarray
            A copy: a structured array, with a row for each target, kind and route that
            was used, in this order. Its fields:

            target : int64
                Rank in the window's communicator; -1: calls on many elements that went to
                several targets at once, by memory. From 4095 on all targets share a row.
            kind : str
                "put", "get", "update" (without a result: `accumulate`), "fetch" (with one:
                `fetch_add`, `compare_and_swap`, `load`, ...), "notify" (`put_notify`).
            route : str
                "direct", "cma" and "ipc": by memory, see `route`; "fabric": by the provider's
                reads and writes; "message": by messages that the target's process carries
                out.
            calls : uint64
                Operations; a call on many elements is one for each target, or several if it
                is long, or some targets are reached by memory and others are not.
            elements, bytes : uint64
                At the target, in elements of this window's dtype and in bytes.
            errors : uint64
                Operations that have failed after they were begun. Arguments that were refused
                are not counted.

        Raises
        ------
        ClosedError
        Unsupported
            RMAEXT_RECORD is 0, or there was no room for this window's counters.

        Notes
        -----
        A put is counted when it is begun. Views have the counters of their window. The sums are
        those of a trace (RMAEXT_TRACE), and `python -m rmaext top` shows them.

        Examples
        --------
        >>> other = rmaext.Window.allocate(MPI.COMM_SELF, 10)
        >>> other.put([1.0, 2.0], 0)
        >>> other.put(3.0, 0)
        >>> row = other.stats[0]
        >>> print(row["target"], row["kind"], row["route"], row["calls"], row["elements"])
        0 put direct 2 3
        >>> other.close()
        """
        self._check_open("stats")
        found: dict[tuple[int, int, int], NDArray[Any]] = {}
        for part in self._parts():
            for key, row in _read(part._handle):
                found[key] = found.get(key, 0) + row
        unit = self._dtype.itemsize
        rows = [
            (target, _KINDS[kind], layout.ROUTES[route], calls, nbytes // unit, nbytes, errors)
            for (target, kind, route), (calls, nbytes, errors) in sorted(found.items())
        ]
        return np.array(rows, _ROW)


def _counts(handle: Any) -> NDArray[Any]:
    """Return a copy of a C window's counters; none if it has none."""
    targets = ffi.new("int64_t *")
    counters = lib.rmaext_record_counters(handle, targets)
    size = int(targets[0]) * layout.COUNTS.itemsize
    return np.frombuffer(ffi.buffer(counters, size), layout.COUNTS).copy()


def _read(handle: Any) -> list[tuple[tuple[int, int, int], NDArray[Any]]]:
    """Return a C window's counters, but for zeros: target, kind, route; calls, bytes, errors."""
    counts = _counts(handle)
    if not counts.size:
        text = "stats: this window is not counted: RMAEXT_RECORD is 0, or too many windows are open"
        raise Unsupported(errno.EOPNOTSUPP, text, call="stats")
    shared = counts["shared"]
    for field in shared.dtype.names or ():
        shared[:, :, lib.RMAEXT_DIRECT][field] += counts["plain"][field]
    used = np.argwhere((shared["calls"] != 0) | (shared["errors"] != 0))
    rows = []
    for target, kind, route in used.tolist():
        row = np.array(shared[target, kind, route].tolist(), np.uint64)
        rows.append(((-1 if target == len(counts) - 1 else target, kind, route), row))
    return rows
