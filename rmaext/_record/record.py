# SPDX-License-Identifier: BSD-3-Clause
"""The records that processes of rmaext keep of themselves: found, checked and read.

A record is read through /proc/PID/fd, and nothing in it is trusted. It is read by pread()
and not mapped: its owner could cut a mapped file short, which kills whoever looks at the
rest, and to look at a hole of a mapped memfd allocates the page.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._native._lib import lib
from . import layout
from .layout import text
from .processes import descendants, processes, stat, status, user, user_of
from .snapshot import Comm, Lock, Notified, Snapshot, Thread, Window

__all__ = ["Record", "RecordError", "count_notifications", "find"]

_LINK = f"/memfd:{layout.NAME}"
_TRIES = 20  # reads of an entry that is being written
_MAKING = 0.2  # seconds until a record has its first words
_PAUSE = 0.0005  # seconds between them
_TABLES = {
    "threads": (layout.THREAD, lib.RMAEXT_RECORD_THREADS),
    "windows": (layout.WINDOW, lib.RMAEXT_RECORD_WINDOWS),
    "comms": (layout.COMM, lib.RMAEXT_RECORD_COMMS),
    "locks": (layout.LOCK, lib.RMAEXT_RECORD_LOCKS),
    "sent": (layout.SENT, lib.RMAEXT_RECORD_SENT),
    "sites": (layout.SITE, lib.RMAEXT_RECORD_SITES),
    "events": (layout.EVENT, lib.RMAEXT_RECORD_EVENTS),
}
_SMALL = ("threads", "windows", "comms", "locks")  # what each snapshot has
_STATES = {lib.RMAEXT_RUNS: "runs", lib.RMAEXT_LEAVES: "leaves", lib.RMAEXT_ENDED: "ended"}
_RANKS = 1 << 22  # of a job, at most
_OTHERS = 1 << 16  # of a communicator: several jobs may have one together
_WAITS = layout.kinds("IN")
_KINDS = layout.kinds("DID") | _WAITS | {0: ""}


class RecordError(Exception):
    """A record cannot be read, and why."""


def _plain(row: Any) -> dict[str, Any]:
    """Return an entry of a table as numbers and texts, without its sequence number."""
    values = {name: row[name] for name in row.dtype.names if name != "seq"}
    return {n: text(v) if isinstance(v, bytes) else int(v) for n, v in values.items()}


# -- finding -----------------------------------------------------------------------


def _denied(pid: int) -> RecordError:
    uid = user_of(pid)
    if uid in (-1, os.geteuid()):
        words = "the kernel does not let its own user look into it"
        words += ": run this as root" if os.geteuid() else ""
        return RecordError(f"process {pid}: {words}")
    return RecordError(f"process {pid} belongs to user {user(uid)}: run this as that user")


def find(
    pids: Iterable[int] | None = None, whole_jobs: bool = False
) -> tuple[list[Record], list[str]]:
    """Open the records of processes.

    Parameters
    ----------
    pids : iterable of int, optional
        Processes, or launchers whose descendants are meant; by default all of this user.
    whole_jobs : bool
        Whether to open those of all other ranks of their jobs, too.

    Returns
    -------
    records : list of Record
        To be closed by the caller.
    refused : list of str
        Why a record that is there, or was asked for, cannot be read: a sentence each.
    """
    records: dict[int, Record] = {}
    refused: list[str] = []
    asked = pids is not None
    for pid in dict.fromkeys(processes() if pids is None else pids):
        try:
            found = [] if pid in records else _opened(pid, asked)
        except RecordError as exc:
            refused.append(str(exc))
            continue
        records |= {record.pid: record for record in found}
    if asked and whole_jobs and records:
        records |= _siblings(list(records.values()))
    return list(records.values()), refused


def _siblings(records: Sequence[Record]) -> dict[int, Record]:
    """Open the records of all others in the same jobs, and in those that these meet."""
    there = {record.pid for record in records}
    found: dict[int, Record] = {}
    users = {user_of(record.pid) for record in records}
    rest = []
    for pid in processes(users):
        with contextlib.suppress(RecordError):  # of whatever job that is
            if pid not in there and (record := _open(pid, False)):
                rest.append(record)
    more = [*records]
    while more:
        jobs = {record.job for record in more}
        comms: set[int] = set().union(*(record.shared() for record in more))
        more = [one for one in rest if one.job in jobs or one.shared() & comms]
        rest = [one for one in rest if one not in more]
        found |= {one.pid: one for one in more}
    for record in rest:
        record.close()
    return found


def _opened(pid: int, asked: bool) -> list[Record]:
    """Open a process's record; if none was there but asked for, those of its descendants."""
    if asked and stat(pid)[0] in ("", "Z"):
        raise RecordError(f"there is no process {pid} on this node")
    record = _open(pid, asked)
    if record is not None or not asked:
        return [record] if record else []
    found = [record for child in descendants(pid) if (record := _open(child, False))]
    if not found:
        words = "has no record: rmaext is not in use there, or RMAEXT_RECORD=0 is set"
        raise RecordError(f"process {pid} {words}")
    return found


def _open(pid: int, asked: bool) -> Record | None:
    """Open a process's record; None if it has none of its own."""
    folder = f"/proc/{pid}/fd"
    others = 0
    try:
        for name in os.listdir(folder):
            try:
                if not os.readlink(f"{folder}/{name}").startswith(_LINK):
                    continue
                record = Record(pid, f"{folder}/{name}")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if record.is_own():
                return record
            others = record.own
            record.close()
    except (FileNotFoundError, ProcessLookupError):
        pass  # it is gone
    except PermissionError:
        if asked:
            raise _denied(pid) from None
    if asked and others:
        words = f"has only the record of process {others}, which it was forked from or looks at"
        raise RecordError(f"process {pid} {words}: name that process")
    return None


# -- reading -----------------------------------------------------------------------


class Record:
    """One process's record, open. Its memory stays after the process has ended.

    Attributes
    ----------
    pid : int
        The process, as this process knows it.
    own : int
        The same in its own namespace.
    job : str
        The same for all ranks of a job on this node.
    inode : int
        Of its memory.
    """

    def __init__(self, pid: int, path: str) -> None:
        self.pid = pid
        self._began = stat(pid)[2]
        # never blocks, whatever the link leads to by now
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not os.readlink(f"/proc/self/fd/{self._fd}").startswith(_LINK):
                raise FileNotFoundError(path)
            self.inode = os.fstat(self._fd).st_ino
            self._places: dict[str, int] = {}
            self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def is_own(self) -> bool:
        """Tell whether this process wrote it: a forked child has its parent's, too."""
        return self.own == int(status(self.pid).get("NSpid", "0").split()[-1])

    def process(self) -> str:
        """Return the kernel's letter for the process's state; "" if it is gone."""
        state, _, began = stat(self.pid)
        return state if began == self._began and state not in ("Z", "X") else ""

    def _error(self, words: str) -> RecordError:
        return RecordError(f"the record of process {self.pid} is {words}")

    def _read(self, place: int, dtype: np.dtype[Any], count: int) -> Any:
        """Return a copy of a table."""
        want = dtype.itemsize * count
        data = os.pread(self._fd, want, place)
        if len(data) != want:
            raise self._error(f"truncated: it ends at byte {place + len(data)}")
        return np.frombuffer(data, dtype)

    def _header(self) -> Any:
        return self._read(0, layout.HEADER, 1)[0]

    def _check(self) -> None:
        """Check what does not change."""
        header = self._header()
        end = time.monotonic() + _MAKING
        while not header["magic"] and time.monotonic() < end:
            time.sleep(_PAUSE)
            header = self._header()
        if header["magic"] != b"rmaextR":
            raise self._error("corrupt: it does not begin as one")
        version = text(header["version"])
        if not version:
            raise self._error("corrupt: it names no version of rmaext")
        if version != layout.version():
            words = f"runs rmaext {version[:24]}, this is {layout.version()}: use that one's"
            raise RecordError(f"process {self.pid} {words} python -m rmaext")
        if header["layout"] != lib.RMAEXT_RECORD_LAYOUT:
            words = f"of layout {header['layout']}, not {lib.RMAEXT_RECORD_LAYOUT}"
            raise self._error(f"{words}: use the same rmaext as the process")
        size, there = int(header["bytes"]), os.fstat(self._fd).st_size
        if there < size:
            raise self._error(f"truncated: it has {there} of {size} bytes")
        first = layout.HEADER.itemsize
        if header["header_bytes"] != first or not 0 <= header["rank"] < header["size"] <= _RANKS:
            raise self._error("corrupt: its header is not one")
        self.own, self.job = int(header["pid"]), text(header["job"])
        for name, (dtype, count) in _TABLES.items():
            place = int(header[name])
            if place % 8 or not first <= place <= size - dtype.itemsize * count:
                raise self._error(f"corrupt: its table of {name} is not within the file")
            self._places[name] = place
        self._bytes = size

    def _table(self, name: str) -> tuple[Any, int]:
        """Return the whole entries of a table, and the number of those that had none to read."""
        dtype, count = _TABLES[name]
        place = self._places[name]
        table, whole = self._read(place, dtype, count).copy(), np.zeros(count, bool)
        for attempt in range(_TRIES):
            before, now, after = (self._read(place, dtype, count) for _ in range(3))
            same = (before["seq"] == now["seq"]) & (now["seq"] == after["seq"])
            fresh = ~whole & same & (now["seq"] % 2 == 0)
            table[fresh] = now[fresh]
            whole |= fresh
            if whole.all():
                break
            time.sleep(_PAUSE if attempt < _TRIES - 1 else 0)
        return table[whole], int((~whole).sum())

    def snapshot(self) -> Snapshot:
        """Return what the process says of itself now.

        Raises
        ------
        RecordError
            The record has become shorter, or has what no rmaext writes.
        """
        header, process = self._header(), self.process()
        size = int(header["size"])
        tables = {name: self._table(name) for name in _SMALL}
        state = _STATES.get(int(header["state"]))
        if state is None:
            raise self._error(f"corrupt: it is in state {header['state']}")
        return Snapshot(
            pid=self.pid,
            job=text(header["job"]),
            rank=int(header["rank"]),
            size=size,
            host=text(header["host"]),
            program=text(header["program"]),
            network=text(header["network"]),
            state=state,
            raised=text(header["raised"]),
            process=process,
            now=time.monotonic_ns(),
            version=text(header["version"]),
            own=self.own,
            traced=bool(header["traced"]),
            next=int(header["next"]),
            lost=int(header["lost"]),
            uncounted=int(header["uncounted"]),
            unclear=sum(unclear for _, unclear in tables.values()),
            threads=list(self._threads(tables["threads"][0])),
            windows=list(self._windows(tables["windows"][0])),
            comms=list(self._comms(tables["comms"][0], size)),
            locks=list(self._locks(tables["locks"][0])),
        )

    def _threads(self, table: Any) -> Iterator[Thread]:
        live = self._live_threads()
        for row in table[table["tid"] != 0]:
            facts = _plain(row)
            number = facts.pop("kind")
            if number not in _KINDS or facts["target"] < -2:
                raise self._error(f"corrupt: thread {facts['tid']} is in a call {number}")
            thread = Thread(kind=_KINDS[number], wait=number in _WAITS, **facts)
            thread.ended = bool(live) and thread.tid not in live
            yield thread

    def _live_threads(self) -> set[int]:
        """Return the threads that there are; none where they have other numbers here."""
        if self.own == self.pid:
            with contextlib.suppress(OSError):
                return {int(name) for name in os.listdir(f"/proc/{self.pid}/task")}
        return set()

    def _windows(self, table: Any) -> Iterator[Window]:
        for row in table[table["state"] != 0]:
            facts = _plain(row)
            state, hidden = facts.pop("state"), bool(facts.pop("hidden"))
            window = Window(open=state == lib.RMAEXT_WINDOW_OPEN, hidden=hidden, **facts)
            targets = 0 <= window.targets <= lib.RMAEXT_RECORD_TARGETS + 1
            if not 0 <= window.self < window.ranks <= _RANKS or not targets:
                raise self._error(f"corrupt: window {window.id} has {window.ranks} ranks")
            most = self._bytes - window.targets * layout.COUNTS.itemsize
            within = layout.HEADER.itemsize <= window.counts <= most and window.counts % 8 == 0
            if window.counts and not within:
                raise self._error(f"corrupt: the counters of window {window.id} are not within it")
            yield window

    def _comms(self, table: Any, size: int) -> Iterator[Comm]:
        most = max(size, _OTHERS)
        for row in table[table["id"] != 0]:
            comm = Comm(**_plain(row))
            if not 0 <= comm.rank < comm.size <= most or not 0 <= comm.here <= comm.size:
                raise self._error(f"corrupt: rank {comm.rank} of {comm.size} in a communicator")
            yield comm

    def _locks(self, table: Any) -> Iterator[Lock]:
        for row in table[table["window"] != 0]:
            facts = _plain(row)
            yield Lock(exclusive=bool(facts.pop("exclusive")), **facts)

    def shared(self) -> set[int]:
        """Return the communicators that it shares with others; none if they cannot be read."""
        try:
            table, _ = self._table("comms")
        except RecordError:
            return set()
        return {int(row["id"]) for row in table if row["id"] and row["size"] > 1}

    def counts(self, window: Window, target: int | None = None) -> Any:
        """Return a window's counters: an array of `layout.COUNTS`, by target, or one target's.

        The last one is of no target of its own, but of what is not counted by target.
        """
        if not window.counts:
            return np.zeros(0 if target is None else 1, layout.COUNTS)
        if target is None:
            return self._read(window.counts, layout.COUNTS, window.targets)
        if not 0 <= target < window.targets:
            return np.zeros(1, layout.COUNTS)
        place = window.counts + target * layout.COUNTS.itemsize
        return self._read(place, layout.COUNTS, 1)

    def notified(self, window: Window, targets: Sequence[int]) -> Iterator[Notified]:
        """Yield what was sent to each slot of some targets, and the rest of what was counted."""
        kind, name = lib.RMAEXT_DID_NOTIFY - 1, (window.comm, window.number)
        counted = {}  # before the table, which is counted after them
        for target in targets:
            (counts,) = self.counts(window, target)
            calls = counts["plain"][kind]["calls"] + counts["shared"][kind]["calls"].sum()
            counted[target] = int(calls)
        dtype, count = _TABLES["sent"]
        before, now, after = (self._read(self._places["sent"], dtype, count) for _ in range(3))
        whole = (before["key"] == now["key"]) & (now["key"] == after["key"])
        own = now[whole & (now["key"] >> np.uint64(32) == window.id)]
        sites = self._read(self._places["sites"], *_TABLES["sites"])
        for target, rest in counted.items():
            for row in own[own["key"] >> np.uint64(8) & np.uint64(0xFFFFFF) == target]:
                calls, site = int(row["plain"] + row["shared"]), int(row["site"])
                at = text(sites[site - 1]["at"]) if 0 < site <= len(sites) else ""
                rest -= calls
                if calls:
                    slot = int(row["key"]) & 0xFF
                    yield Notified(*name, target, calls, slot, int(row["last"]), at)
            if rest > 0 and target < lib.RMAEXT_RECORD_TARGETS - 1:  # others share the last one
                yield Notified(*name, target, rest)

    def closed(self) -> Any:
        """Return the counters of windows that are closed, all targets together."""
        return self._header()["closed"]

    def counted(self) -> tuple[Snapshot, int, int]:
        """Return a snapshot, and the operations and bytes of the program's windows, ever."""
        for _ in range(_TRIES):
            before = self._header()
            one = self.snapshot()
            parts = [before["closed"]]
            parts += [self.counts(w) for w in one.windows if w.open and not w.hidden]
            # else a window was closed meanwhile: its counters are in two places, or in none
            if self._header()["folds"] == before["folds"] and before["folds"] % 2 == 0:
                break
        totals = [
            sum(int(part[kind][name].sum()) for part in parts for kind in ("plain", "shared"))
            for name in ("calls", "bytes")
        ]
        return one, totals[0], totals[1]

    def events(self, since: int = 0) -> tuple[Any, int]:
        """Return the whole events from number `since` on that are still there, and the next number.

        They are an array of `layout.EVENT`, oldest first; the number of one is seq // 2 - 1.
        """
        ring = lib.RMAEXT_RECORD_EVENTS
        until = int(self._header()["next"])
        if until >= 1 << 62:
            raise self._error(f"corrupt: its next event is number {until}")
        first = max(since, until - ring, 0)
        parts = [np.zeros(0, layout.EVENT)]
        while first < until:
            count = min(until - first, ring - first % ring)
            place = self._places["events"] + first % ring * layout.EVENT.itemsize
            before, now, after = (self._read(place, layout.EVENT, count) for _ in range(3))
            seq = 2 * (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1))
            whole = (before["seq"] == seq) & (now["seq"] == seq) & (after["seq"] == seq)
            parts.append(now[whole])
            first += count
        return np.concatenate(parts), until


def count_notifications(snapshots: Sequence[Snapshot], records: Sequence[Record]) -> list[str]:
    """Note what each process has sent to those that wait for notifications.

    Returns why that is not known of some.
    """
    waited = set()
    for one in snapshots:
        windows = {window.id: window for window in one.windows}
        for thread in one.threads:
            if thread.wait and thread.kind == "notify" and thread.window in windows:
                window = windows[thread.window]
                waited.add((window.comm, window.number, window.self))
    refused = []
    for one, record in zip(snapshots, records, strict=True):
        try:
            for window in one.windows:
                its = filter(lambda it: it[:2] == (window.comm, window.number), waited)
                targets = [target for *_, target in its]
                one.notified += record.notified(window, targets) if targets else []
        except RecordError as exc:
            refused.append(str(exc))
    return refused
