# SPDX-License-Identifier: BSD-3-Clause
"""Batches of random records: `Store` beside loops of MPI.Win; one rank of a job of table.py.

Each contestant makes the same of a batch of indices: the elements of its records, one after
another, in memory that it has. A record is looked up in a list by the MPI forms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext
from rmaext.bench.cases import same
from rmaext.bench.job import main
from rmaext.bench.measure import Job, WrongDataError
from rmaext.containers import Store

BATCH = 256  # records
WORDS = 128  # of a record, or their mean: 1 KiB
LOCK, ALL = "Lock, Get, Unlock", "Lock_all, Get, Flush"

Array = NDArray[Any]


class Records:
    """What all ranks hold: record after record, each word the number of words before it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Each rank holds as many.
    count : int
        Records of a rank.
    spread : int
        The lengths differ from WORDS by up to so many.
    """

    def __init__(self, comm: MPI.Intracomm, count: int, spread: int) -> None:
        total = count * comm.size
        lengths = np.random.default_rng(1).integers(WORDS - spread, WORDS + spread + 1, total)
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        self.uneven = bool(spread)
        self.base = self.starts[::count]  # of each rank
        first, stop = self.base[comm.rank], self.ends[count * (comm.rank + 1) - 1]
        self.own = np.arange(first, stop)
        offsets = self.starts - np.repeat(self.base, count)
        ranks = np.repeat(np.arange(comm.size), count)
        self.places = list(zip(ranks.tolist(), offsets.tolist(), lengths.tolist(), strict=True))
        self.most = BATCH * (WORDS + spread)

    def mine(self, rank: int) -> Any:
        """Return the records of this rank, as `Store` takes them."""
        if not self.uneven:
            return self.own.reshape(-1, WORDS)
        count = len(self.places) // len(self.base)
        some = slice(rank * count, (rank + 1) * count)
        pairs = zip(
            self.starts[some] - self.base[rank], self.ends[some] - self.base[rank], strict=True
        )
        return [self.own[a:b] for a, b in pairs]

    def wanted(self, indices: Array) -> Array:
        """Return what a batch is."""
        pairs = zip(self.starts[indices], self.ends[indices], strict=True)
        return np.concatenate([np.arange(a, b) for a, b in pairs])


class OfStore:
    """One `get` for a batch."""

    name = "rmaext.containers.Store"

    def __init__(self, comm: MPI.Intracomm, records: Records) -> None:
        self.store = Store(comm, records.mine(comm.rank))
        # those who are read from wait here: a Store has nothing to wait in
        self.win = rmaext.Window.allocate(comm, 1)
        self.enter = self.leave = self.win.fence
        self.out = np.empty(records.most, np.int64)

    def close(self) -> None:
        """Collective."""
        self.store.close()
        self.win.close()

    def read(self, indices: Array) -> Array:
        """Return the words of a batch."""
        return self.store.get(indices, flat=True, out=self.out)[0]


class OfMpi:
    """A loop over the records of a batch."""

    def __init__(self, comm: MPI.Intracomm, records: Records, form: str, how: str) -> None:
        self.name = f"{form}: {how}"
        self.comm = comm
        if form == "MPI.Win.Allocate":
            self.win = MPI.Win.Allocate(records.own.nbytes, 8, comm=comm)
            memory = np.frombuffer(memoryview(self.win.tomemory()), np.int64)
            memory[:] = records.own
        else:
            self.win = MPI.Win.Create(records.own, 8, comm=comm)
        self.out = np.empty(records.most, np.int64)
        self.places = records.places
        self.read: Callable[[Array], Array] = self.one_by_one if how == LOCK else self.together
        self.locks_all = how == ALL
        comm.Barrier()

    def close(self) -> None:
        """Collective."""
        self.win.Free()

    def enter(self) -> None:
        """Begin the epoch, which is not measured."""
        self.comm.Barrier()
        if self.locks_all and not self.comm.rank:
            self.win.Lock_all()

    def leave(self) -> None:
        """End the epoch."""
        if self.locks_all and not self.comm.rank:
            self.win.Unlock_all()
        self.comm.Barrier()

    def one_by_one(self, indices: Array) -> Array:
        """Lock, get and unlock for each record."""
        win, out, places, at = self.win, self.out, self.places, 0
        for index in indices.tolist():
            rank, offset, count = places[index]
            win.Lock(rank, MPI.LOCK_SHARED)
            win.Get(out[at : at + count], rank, offset)
            win.Unlock(rank)
            at += count
        return out[:at]

    def together(self, indices: Array) -> Array:
        """Get all records, then flush."""
        win, out, places, at = self.win, self.out, self.places, 0
        for index in indices.tolist():
            rank, offset, count = places[index]
            win.Get(out[at : at + count], rank, offset)
            at += count
        win.Flush_all()
        return out[:at]


def batches(job: Job) -> None:
    """Read random batches of records of one length, then of several."""
    forms: list[str] = job.settings["forms"]
    count = 500 if job.quick else 10_000
    repeat = 2 if job.quick else 10
    job.expect(2 * job.rounds * (1 + 2 * len(forms)))
    draw = np.random.default_rng(2)
    for spread, what in ((0, "1 KiB"), (WORDS // 4, "0.75 to 1.25 KiB")):
        records = Records(job.comm, count, spread)
        ours = OfStore(job.comm, records)
        job.facts.setdefault("routes", {})[ours.name] = ours.win.route(job.comm.size - 1)
        theirs = [OfMpi(job.comm, records, form, how) for form in forms for how in (LOCK, ALL)]
        job.windows += [ours, *theirs]

        def turn(one: Any, records: Records = records) -> list[float]:
            times = []
            for _ in range(1 + repeat):  # the first to warm up
                indices = draw.integers(len(records.places), size=BATCH)
                start = time.perf_counter_ns()
                found = one.read(indices)
                times.append((time.perf_counter_ns() - start) * 1e-3)
                if wrong := same(one.name, found, records.wanted(indices)):
                    raise WrongDataError(wrong)
                one.out[:] = -1
            return times[1:]

        samples = job.alternate([ours, *theirs], turn)
        job.add(f"{BATCH} records of {what}", samples, "us", 8 * WORDS * BATCH)


if __name__ == "__main__":
    main({"batches": batches})
