# SPDX-License-Identifier: BSD-3-Clause
"""Short programs in which all ranks work at once, on rmaext and on MPI.Win; for table.py.

Each is written as its side's documents have it: MPI.Win with derived datatypes and one flush for
many gets; rmaext with indices and calls on many elements. Each checks its own data.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext
from rmaext.bench import cases
from rmaext.bench.measure import Job

EDGE = 48  # cells of a block, without the two layers that are the neighbours'
SLOTS = 1 << 14  # of each rank's part of the hash table
KEYS = 200  # that each rank inserts in a round
RECORD, RECORDS, BATCH = 8, 4096, 256  # words of one; records of a rank; of a batch
CELLS, INDICES = 1 << 16, 4000

Array = NDArray[Any]


class Program:
    """A program of one side, over one window: `once` is measured, and all ranks take part."""

    def __init__(self, comm: MPI.Comm, form: str) -> None:
        self.comm, self.name, self.mpi = comm, form, form.startswith("MPI")
        self.number = 0
        self.array = self.make()
        create = MPI.Win.Create if self.mpi else rmaext.Window
        self.win: Any = create(self.array, 8, comm=comm) if self.mpi else create(comm, self.array)
        if self.mpi and self.passive:
            self.win.Lock_all()
        self.prepare()
        comm.Barrier()

    passive = True  # else it meets in fences

    def make(self) -> Array:
        """Return this rank's memory."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make what is made once."""

    def enter(self) -> None:
        """Meet before and after a turn."""
        if self.mpi and self.passive:
            self.comm.Barrier()
        elif self.mpi:
            self.win.Fence()
        else:
            self.win.fence()

    leave = enter

    def once(self) -> None:
        """Carry it out."""
        raise NotImplementedError

    def run(self, rounds: int) -> float:
        """Return the time of one round in microseconds, until all ranks are through. Collective."""
        self.number += 1
        self.once()  # to warm up
        self.enter()
        start = time.perf_counter_ns()
        for _ in range(rounds):
            self.number += 1
            self.once()
        self.leave()
        return (time.perf_counter_ns() - start) * 1e-3 / rounds

    def wrong(self) -> str | None:
        """Say what is wrong with what was done."""
        return None

    def close(self) -> None:
        """Free the window. Collective."""
        if self.mpi and self.passive:
            self.win.Unlock_all()
        if self.mpi:
            self.win.Free()
        else:
            self.win.close()


class Fence(Program):
    """A fence without operations."""

    title, rounds, passive = "empty fence", 100, False

    def make(self) -> Array:  # noqa: D102
        return np.zeros(1, np.int64)

    def once(self) -> None:  # noqa: D102
        self.enter()


class Halo(Program):
    """The six faces of a block go to two neighbours in a ring, then a fence."""

    title, rounds, passive = f"halo of {EDGE}^3 cells", 20, False

    def make(self) -> Array:  # noqa: D102
        return np.zeros((EDGE + 2,) * 3, np.int64)

    def prepare(self) -> None:  # noqa: D102
        inner, last = slice(1, -1), EDGE + 1
        self.block = np.zeros_like(self.array)
        self.faces = []
        for axis, (way, mine, theirs) in product(range(3), ((-1, 1, last), (1, last - 1, 0))):
            here, there = (
                tuple(at if k == axis else inner for k in range(3)) for at in (mine, theirs)
            )
            self.faces.append((here, there, (self.comm.rank + way) % self.comm.size))
        if self.mpi:
            self.types = [(self._type(here), self._type(there)) for here, there, _ in self.faces]

    def _type(self, place: tuple[Any, ...]) -> MPI.Datatype:
        sizes = [1 if isinstance(i, int) else EDGE for i in place]
        starts = [i if isinstance(i, int) else 1 for i in place]
        made = MPI.INT64_T.Create_subarray([EDGE + 2] * 3, sizes, starts)
        return made.Commit()

    def once(self) -> None:  # noqa: D102
        self.block[:] = 100 * self.number + self.comm.rank
        if self.mpi:
            for (_, _, rank), (here, there) in zip(self.faces, self.types, strict=True):
                self.win.Put((self.block, 1, here), rank, (0, 1, there))
        else:
            for here, there, rank in self.faces:
                self.win[(rank, *there)] = self.block[here]
        self.enter()

    def wrong(self) -> str | None:  # noqa: D102
        rank, size = self.comm.rank, self.comm.size
        for axis in range(3):
            block = np.moveaxis(self.array, axis, 0)[:, 1:-1, 1:-1]
            for found, other in ((block[0], (rank - 1) % size), (block[-1], (rank + 1) % size)):
                wanted = np.full_like(found, 100 * self.number + other)
                if text := cases.same(f"{self.name}, halo", found, wanted):
                    return text
        return None

    def close(self) -> None:  # noqa: D102
        for made in (made for pair in getattr(self, "types", ()) for made in pair):
            made.Free()
        super().close()


class Inserts(Program):
    """Each rank inserts keys into one hash table of all, by compare-and-swap with probing."""

    title, rounds = f"{KEYS} inserts by compare-and-swap", 3

    def make(self) -> Array:  # noqa: D102
        return np.zeros(SLOTS, np.int64)

    def once(self) -> None:  # noqa: D102
        first = 1 + KEYS * (self.comm.rank + self.comm.size * self.number)
        insert = self._by_mpi if self.mpi else self._by_rmaext
        for key in range(first, first + KEYS):
            place = key * 2654435761 % (self.comm.size * SLOTS)
            while not insert(key, *divmod(place, SLOTS)):
                place = (place + 1) % (self.comm.size * SLOTS)

    def _by_mpi(self, key: int, rank: int, slot: int) -> bool:
        value, empty, old = np.array([key]), np.zeros(1, np.int64), np.ones(1, np.int64)
        self.win.Compare_and_swap(value, empty, old, rank, slot)
        self.win.Flush(rank)
        return not old[0]

    def _by_rmaext(self, key: int, rank: int, slot: int) -> bool:
        return not self.win.compare_and_swap(0, key, rank, slot)

    def wrong(self) -> str | None:  # noqa: D102
        keys = np.concatenate(self.comm.allgather(self.array[self.array != 0]))
        rounds = np.arange(1, 1 + self.number)[:, None] * self.comm.size
        ranks = np.arange(self.comm.size)
        first = 1 + KEYS * (ranks + rounds)
        wanted = (first[..., None] + np.arange(KEYS)).ravel()
        return cases.same(f"{self.name}, inserts", np.sort(keys), np.sort(wanted))


class Batches(Program):
    """Each rank reads a batch of records that are anywhere."""

    title, rounds = f"batch of {BATCH} records of {8 * RECORD} B", 20

    def make(self) -> Array:  # noqa: D102
        first = self.comm.rank * RECORDS * RECORD
        return np.arange(first, first + RECORDS * RECORD).reshape(RECORDS, RECORD)

    def prepare(self) -> None:  # noqa: D102
        self.draw = np.random.default_rng(self.comm.rank)
        self.out = np.zeros((BATCH, RECORD), np.int64)

    def once(self) -> None:  # noqa: D102
        self.ranks = self.draw.integers(self.comm.size, size=BATCH)
        self.records = self.draw.integers(RECORDS, size=BATCH)
        if self.mpi:
            for k, (rank, record) in enumerate(zip(self.ranks, self.records, strict=True)):
                self.win.Get(self.out[k], int(rank), int(record) * RECORD)
            self.win.Flush_all()
        else:
            found = self.win.get_ranges(self.ranks, self.records * RECORD, RECORD)
            self.out = found.reshape(BATCH, RECORD)

    def wrong(self) -> str | None:  # noqa: D102
        wanted = (self.ranks * RECORDS + self.records)[:, None] * RECORD + np.arange(RECORD)
        return cases.same(f"{self.name}, batch", self.out, wanted)


class Gathers(Program):
    """Each rank reads elements of its neighbour's array by an array of indices."""

    title, rounds = f"{INDICES} indexed gets", 5

    def make(self) -> Array:  # noqa: D102
        return np.arange(CELLS) + CELLS * self.comm.rank

    def prepare(self) -> None:  # noqa: D102
        self.draw = np.random.default_rng(self.comm.rank)
        self.out = np.zeros(INDICES, np.int64)
        self.peer = (self.comm.rank + 1) % self.comm.size

    def once(self) -> None:  # noqa: D102
        self.index = self.draw.integers(CELLS, size=INDICES)
        if self.mpi:
            places = MPI.INT64_T.Create_indexed_block(1, self.index.astype(np.int32)).Commit()
            self.win.Get(self.out, self.peer, (0, 1, places))
            self.win.Flush(self.peer)
            places.Free()
        else:
            self.out = self.win[self.peer, self.index]

    def wrong(self) -> str | None:  # noqa: D102
        return cases.same(f"{self.name}, gathers", self.out, self.index + CELLS * self.peer)


def programs(job: Job) -> None:
    """Measure all of them, by turns."""
    kinds = (Fence, Halo, Inserts, Batches, Gathers)
    job.expect(len(kinds) * job.rounds * len(job.settings["forms"]))
    for kind in kinds:
        rivals = [kind(job.comm, form) for form in job.settings["forms"]]
        for each in rivals:
            if not each.mpi:
                peer = (job.comm.rank + 1) % job.comm.size
                job.facts.setdefault("routes", {})[each.name] = each.win.route(peer)
        rounds = max(2, kind.rounds // 10) if job.quick else kind.rounds

        def turn(each: Program, rounds: int = rounds) -> list[float]:
            return [each.run(rounds)]

        job.add(kind.title, job.alternate(rivals, turn, everywhere=True), "us")
        for each in rivals:
            job.check(each.wrong())
            each.close()
