# SPDX-License-Identifier: BSD-3-Clause
"""Loops of single updates and puts to random other ranks, then one flush; for table.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from programs import Array, Program

from rmaext.bench import cases
from rmaext.bench.measure import Job

SLOTS = 1 << 17  # words that each rank has for each origin


class Singles(Program):
    """`count` calls of one word each. Both sides are given the same objects."""

    title, call = "", ""
    count = 100_000

    def make(self) -> Array:  # noqa: D102
        return np.zeros(SLOTS * self.comm.size, np.int64)

    def prepare(self) -> None:  # noqa: D102
        comm, draw = self.comm, np.random.default_rng(self.comm.rank)
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        ranks = draw.choice(others, self.count)
        self.places = draw.permutation(SLOTS)[: self.count]  # each once: puts are unordered
        self.ranks = ranks
        self.values = np.ones(self.count, np.int64)
        words = [self.values[i : i + 1] for i in range(self.count)]
        offsets = self.places + SLOTS * comm.rank
        self.calls = list(zip(words, ranks.tolist(), offsets.tolist(), strict=True))

    def once(self) -> None:  # noqa: D102
        call = getattr(self.win, self.call.title() if self.mpi else self.call)
        for word, rank, offset in self.calls:
            call(word, rank, offset)
        if self.mpi:
            self.win.Flush_all()
        else:
            self.win.flush()

    def wanted(self) -> Array:
        """Return what the window must have by now. Collective."""
        comm = self.comm
        mine = [(self.places[to], self.values[to]) for to in self._to()]
        wanted = np.zeros_like(self.array)
        for rank, (places, values) in enumerate(comm.alltoall(mine)):
            wanted[places + SLOTS * rank] = values
        return wanted

    def _to(self) -> list[Any]:
        return [self.ranks == rank for rank in range(self.comm.size)]


class Puts(Singles):
    """Other values each time."""

    title, call = "single puts in a loop, then a flush", "put"

    def once(self) -> None:  # noqa: D102
        self.values[:] = self.number * self.count + np.arange(self.count)
        super().once()

    def wrong(self) -> str | None:  # noqa: D102
        return cases.same(f"{self.name}, puts", self.array, self.wanted())


class Accumulates(Singles):
    """One is added each time."""

    title, call = "single accumulates in a loop, then a flush", "accumulate"

    def wrong(self) -> str | None:  # noqa: D102
        wanted = self.wanted() * self.comm.bcast(self.done)
        return cases.same(f"{self.name}, accumulates", self.array, wanted)

    done = 0

    def once(self) -> None:  # noqa: D102
        self.done += 1
        super().once()


def singles(job: Job) -> None:
    """Measure both calls, by turns, in million calls per second and rank."""
    Singles.count = 2000 if job.quick else 100_000
    forms = job.settings["forms"]
    job.expect(2 * job.rounds * len(forms))
    for kind in (Accumulates, Puts):
        rivals = [kind(job.comm, form) for form in forms]
        for each in rivals:
            if not each.mpi:
                peer = (job.comm.rank + 1) % job.comm.size
                job.facts.setdefault("routes", {})[each.name] = each.win.route(peer)
        samples = job.alternate(rivals, lambda each: [each.run(1)], everywhere=True)
        job.add(kind.title, samples, "M/s", 8, Singles.count)
        for each in rivals:
            job.check(each.wrong())
            each.close()
