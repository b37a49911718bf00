# SPDX-License-Identifier: BSD-3-Clause
"""MPI.Win's calls with derived datatypes, updates of many elements, requests; for table.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
from mpi4py import MPI

from rmaext.bench import cases
from rmaext.bench.measure import Job, per_call
from rmaext.bench.peers import Side

TARGET = 1
WIDTH = 1024  # elements of a row of the window
DOUBLE = MPI.DOUBLE


def ranges(count: int) -> tuple[MPI.Datatype, np.ndarray]:
    """Return an indexed type of so many ranges of 1 to 19 elements, and where its elements are."""
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 20, count)
    starts = np.cumsum(lengths + draw.integers(1, 20, count)) - lengths
    datatype = DOUBLE.Create_indexed(lengths.tolist(), starts.tolist()).Commit()
    each = zip(starts, lengths, strict=True)
    return datatype, np.concatenate([np.arange(start, start + n) for start, n in each])


def block(n: int) -> tuple[MPI.Datatype, np.ndarray]:
    """Return the type of a block of n x n elements, and where its elements are."""
    places = np.add.outer(np.arange(n) * WIDTH, np.arange(n)).reshape(-1)
    return DOUBLE.Create_vector(n, n, WIDTH).Commit(), places


def calls(win: Any, call: str, datatype: MPI.Datatype | None, count: int) -> Callable[[], None]:
    """Return what makes one call, of so many elements in a row here, and completes it."""
    data, old = np.ones(count), np.zeros(count)
    spec, into = [data, count, DOUBLE], [old, count, DOUBLE]
    where = (0, count, DOUBLE) if datatype is None else (0, 1, datatype)

    def simple() -> None:
        getattr(win, call)(spec, TARGET, where)
        win.Flush(TARGET)

    def fetching() -> None:
        getattr(win, call)(spec, into, TARGET, where)
        win.Flush(TARGET)

    def asking() -> None:
        getattr(win, call)(spec, TARGET, where).Wait()

    def asking_back() -> None:
        getattr(win, call)(spec, into, TARGET, where).Wait()

    def made() -> None:
        datatype = DOUBLE.Create_vector(16, 16, WIDTH).Commit()
        win.Put(spec, TARGET, (0, 1, datatype))
        win.Flush(TARGET)
        datatype.Free()

    return {
        "made": made,
        "Get_accumulate": fetching,
        "Raccumulate": asking,
        "Rget_accumulate": asking_back,
    }.get(call, simple)


class Repeated:
    """One call, again and again."""

    def __init__(self, side: Side, call: str, datatype: Any, count: int) -> None:
        self.name, self.side = side.name, side
        self.enter, self.leave = side.enter, side.leave
        self.call = calls(side.win, call, datatype, count)
        self.made = 0

    def loop(self, n: int) -> None:
        """Call it n times."""
        call = self.call
        for _ in repeat(None, n):
            call()
        self.made += n


def derived(job: Job) -> None:
    """Measure each call, and look at what it has done."""
    windows = cases.sides(job, 600 * WIDTH, dtype=np.float64)
    small, large, indexed = block(16), block(512), ranges(3000)
    row = np.arange(1000)
    plan: list[tuple[str, str, Any, np.ndarray]] = [
        ("Put + Flush, 16 x 16, a datatype made for it", "made", *small),
        ("Put + Flush, 16 x 16", "Put", *small),
        ("Accumulate + Flush, 16 x 16", "Accumulate", *small),
        ("Get_accumulate + Flush, 16 x 16", "Get_accumulate", *small),
        ("Put + Flush, 512 x 512", "Put", *large),
        ("Accumulate + Flush, 512 x 512", "Accumulate", *large),
        ("Get_accumulate + Flush, 512 x 512", "Get_accumulate", *large),
        ("Accumulate + Flush, 1000 doubles", "Accumulate", None, row),
        ("Raccumulate + Wait, 1 double", "Raccumulate", None, row[:1]),
        ("Rget_accumulate + Wait, 1 double", "Rget_accumulate", None, row[:1]),
        ("Raccumulate + Wait, 1000 doubles", "Raccumulate", None, row),
        ("Get + Flush, 3000 ranges", "Get", *indexed),
        ("Accumulate + Flush, 3000 ranges", "Accumulate", *indexed),
    ]
    job.expect(len(plan) * job.rounds * len(windows))
    for title, call, datatype, places in plan:
        rivals = [Repeated(side, call, datatype, places.size) for side in windows]
        for side in windows:
            side.memory[:] = 0
        job.comm.Barrier()
        samples = job.alternate(rivals, lambda each: per_call(each.loop, 5e-3))
        job.add(title, samples, "us", 8 * places.size)
        for each in rivals:
            made = job.comm.bcast(each.made, 0)
            wanted = np.zeros(each.side.memory.size)
            if call != "Get":
                wanted[places] = 1 if call in ("Put", "made") else made
            cases.check(job, each.side, title, wanted)
    for datatype, _ in (small, large, indexed):
        datatype.Free()
