# SPDX-License-Identifier: BSD-3-Clause
"""Random keys of a table of all ranks: `Dict` beside others; one rank of a job of table.py.

"many" is batches of keys beside loops over a table with linear probing that one writes by hand
with MPI.Win. "single" is one item at a time beside deephyper's mapping, which gets and puts
its whole window; the package comes from `make test-dropin`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from deephyper_mapping import SIZE, single_items
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext
from rmaext.bench.cases import same
from rmaext.bench.job import main
from rmaext.bench.measure import ORIGIN, Job, WrongDataError
from rmaext.containers import Dict

BATCH = 1024  # keys
_ODD = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1

Array = NDArray[Any]


class OfDict:
    """One call for a batch."""

    name = "rmaext.containers.Dict"

    def __init__(self, comm: MPI.Intracomm, keys: Array) -> None:
        self.table = Dict(comm, "i8", "i8", keys.size)
        # those whose memory is used wait here
        self.win = rmaext.Window.allocate(comm, 1)
        self.enter = self.leave = self.win.fence
        if comm.rank == ORIGIN:
            self.table.set_many(keys, keys)
        self.win.fence()
        self.get, self.add = self.table.get_many, self.table.add_many

    def close(self) -> None:
        """Collective."""
        self.table.close()
        self.win.close()


class OfMpi:
    """A table with linear probing on the ranks, half of it filled; 0 is no key."""

    def __init__(self, comm: MPI.Intracomm, keys: Array, form: str) -> None:
        self.name, self.comm = form, comm
        self.slots = 2 * keys.size // comm.size
        nbytes = 8 * self.slots
        if form == "MPI.Win.Allocate":
            self.keys, self.values = (MPI.Win.Allocate(nbytes, 8, comm=comm) for _ in range(2))
            for win in self.keys, self.values:
                np.frombuffer(memoryview(win.tomemory()), np.int64)[:] = 0
        else:
            self.memory = np.zeros((2, self.slots), np.int64)
            self.keys, self.values = (MPI.Win.Create(part, 8, comm=comm) for part in self.memory)
        self.found, self.old, self.one, self.nothing = (np.zeros(1, np.int64) for _ in range(4))
        self.enter()
        if comm.rank == ORIGIN:
            self.add(keys, keys)
        self.leave()

    def enter(self) -> None:
        """Begin the epochs, which are not measured."""
        self.comm.Barrier()
        if self.comm.rank == ORIGIN:
            self.keys.Lock_all()
            self.values.Lock_all()

    def leave(self) -> None:
        """End them."""
        if self.comm.rank == ORIGIN:
            self.values.Unlock_all()
            self.keys.Unlock_all()
        self.comm.Barrier()

    def close(self) -> None:
        """Collective."""
        self.keys.Free()
        self.values.Free()

    def _home(self, key: int) -> tuple[int, int]:
        mixed = key * _ODD & _WORD
        return (mixed >> 32) % self.comm.size, (mixed & 0xFFFFFFFF) % self.slots

    def get(self, keys: Array) -> Array:
        """Look for each key, then fetch its value."""
        values = np.zeros(keys.size, np.int64)
        found, nothing = self.found, self.nothing
        for row, key in enumerate(keys.tolist()):
            rank, slot = self._home(key)
            while True:
                self.keys.Fetch_and_op(nothing, found, rank, slot, MPI.NO_OP)
                self.keys.Flush(rank)
                if found[0] == key:
                    self.values.Fetch_and_op(nothing, found, rank, slot, MPI.NO_OP)
                    self.values.Flush(rank)
                    values[row] = found[0]
                    break
                if found[0] == 0:
                    break
                slot = (slot + 1) % self.slots
        return values

    def add(self, keys: Array, values: Array) -> Array:
        """Take or find the slot of each key, then add to its value."""
        before = np.zeros(keys.size, np.int64)
        found, old, one, nothing = self.found, self.old, self.one, self.nothing
        for row, key in enumerate(keys.tolist()):
            rank, slot = self._home(key)
            one[0] = key
            while True:
                self.keys.Compare_and_swap(one, nothing, found, rank, slot)
                self.keys.Flush(rank)
                if found[0] in (0, key):
                    break
                slot = (slot + 1) % self.slots
            old[0] = values[row]
            self.values.Fetch_and_op(old, found, rank, slot, MPI.SUM)
            self.values.Flush(rank)
            before[row] = found[0]
        return before


def many(job: Job) -> None:
    """Get the values of random keys, and add to them."""
    forms: list[str] = job.settings["forms"]
    count = 1 << 12 if job.quick else 1 << 14
    repeat = 2 if job.quick else 5
    draw = np.random.default_rng(3)
    keys = np.unique(draw.integers(1, 1 << 62, count))
    tables: list[Any] = [OfDict(job.comm, keys), *(OfMpi(job.comm, keys, form) for form in forms)]
    job.facts["routes"] = {OfDict.name: tables[0].win.route(job.comm.size - 1)}
    job.windows += tables
    wanted = {table.name: keys.copy() for table in tables}
    job.expect(2 * job.rounds * len(tables))

    def turn(table: Any, adds: bool) -> list[float]:
        times, model = [], wanted[table.name]
        for _ in range(1 + repeat):  # the first to warm up
            rows = draw.permutation(keys.size)[:BATCH]
            some = keys[rows]
            start = time.perf_counter_ns()
            found = table.add(some, some) if adds else table.get(some)
            times.append((time.perf_counter_ns() - start) * 1e-3)
            if wrong := same(table.name, found, model[rows]):
                raise WrongDataError(wrong)
            if adds:
                model[rows] += some
        return times[1:]

    for adds, name in ((False, "get_many"), (True, "add_many")):
        samples = job.alternate(tables, lambda table, adds=adds: turn(table, adds))
        job.add(f"{name} of {BATCH} keys", samples, "us")


def single(job: Job) -> None:
    """Put and get items of a dictionary one by one."""
    count = 200
    table: Dict = Dict(job.comm, "i8", "i8", 1000)
    win = rmaext.Window.allocate(job.comm, 1)
    job.facts["routes"] = {OfDict.name: win.route(job.comm.size - 1)}
    job.windows += [table, win]
    peer, mine = "deephyper's mapping", OfDict.name
    rounds = min(job.rounds, 3)
    samples = {what: {mine: [], peer: []} for what in ("put", "get")}  # type: ignore[var-annotated]
    job.expect(rounds)
    for number in range(rounds):
        if number % 2:
            theirs = single_items(job.comm)
        win.fence()
        if job.comm.rank == job.comm.size - 1:  # as the peer does
            for what in samples:
                start = time.perf_counter_ns()
                for key in range(count):
                    if what == "put":
                        table[key] = -key
                    elif table[key] != -key:
                        raise WrongDataError(f"{mine}: the item {key} is not what was put")
                samples[what][mine].append([(time.perf_counter_ns() - start) * 1e-3 / count])
        win.fence()
        if not number % 2:
            theirs = single_items(job.comm)
        for what, seconds in theirs.items():
            samples[what][peer].append([seconds * 1e6])
    every = job.comm.bcast(samples, job.comm.size - 1)
    for what, taken in every.items():
        job.add(f"{what} of an item, mapping of {SIZE >> 20} MiB", taken, "us")


if __name__ == "__main__":
    main({"many": many, "single": single})
