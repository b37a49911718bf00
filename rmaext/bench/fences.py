# SPDX-License-Identifier: BSD-3-Clause
"""How long all ranks take to meet in a fence."""

from __future__ import annotations

import time
from itertools import repeat
from typing import Any

import numpy as np
from mpi4py import MPI

from . import cases
from .measure import Job, WrongDataError
from .peers import Side


class Fences:
    """Fences of a window; MPI's with MPI_Barrier before, as that alone is sure to be a barrier."""

    def __init__(self, side: Side, barrier: bool = True) -> None:
        self.name = side.name
        self.side = side
        self.number = 0
        win: Any = side.win
        mpi = isinstance(win, MPI.Win)
        self.fence = win.Fence if mpi else win.fence
        self.put = win.Put if mpi else win.put
        self.before = side.comm.Barrier if mpi and barrier else None
        if mpi and not barrier:
            self.name = "Win.Fence alone"

    def enter(self) -> None:
        """Begin an epoch. Collective."""
        self.fence()

    leave = enter

    def run(self, count: int) -> float:
        """Return the time of one in us, when nothing is to be completed. Collective."""
        fence, before = self.fence, self.before
        start = time.perf_counter_ns()
        if before is None:
            for _ in repeat(None, count):
                fence()
        else:
            for _ in repeat(None, count):
                before()
                fence()
        taken = (time.perf_counter_ns() - start) * 1e-3 / count
        self.check()
        return taken

    def check(self) -> None:
        """Put to a neighbour, and see after a fence what the other one has put."""
        comm, self.number = self.side.comm, self.number + 1
        data = np.array([self.number * comm.size + comm.rank])
        self.put(data, (comm.rank + 1) % comm.size, 0)
        self.fence()
        wanted = np.array([self.number * comm.size + (comm.rank - 1) % comm.size])
        wrong = cases.same(f"{self.name}, fence", self.side.memory[:1], wanted)
        self.fence()  # the next put must not come before everybody has looked
        if wrong:
            raise WrongDataError(wrong)


def fences(job: Job) -> None:
    """Let all ranks meet in fences."""
    windows = cases.sides(job, 1, targets=range(1, job.comm.size))
    rivals = [Fences(side) for side in windows]
    rivals += [Fences(side, False) for side in windows if side.name == "MPI.Win.Allocate"]
    count = max(5, (100 if job.quick else 1000) // job.comm.size)
    job.expect(len(rivals) * job.rounds)
    for each in rivals:
        each.enter()
        each.run(5)  # to warm up

    def turn(each: Fences) -> list[float]:
        return [each.run(count) for _ in range(3)]

    samples = job.alternate(rivals, turn, everywhere=True)
    job.add(f"fence of {job.comm.size} ranks", samples, "us")
