# SPDX-License-Identifier: BSD-3-Clause
"""The slowest of the places that a put or a get can have, for table.py.

On AMD's CPUs since Zen 3 `rep movsb`, by which glibc copies, is slow where the copy begins 1 to 63
bytes behind the original, counted within pages: see csrc/base/copy.c.
"""

from __future__ import annotations

import time
from typing import Any

import baseline
import numpy as np

from rmaext.bench import cases
from rmaext.bench.measure import Job

TARGET, PLACES, TURNS = 1, 512, 5


class Timed:
    """The best times of one side at each place, 8 bytes apart."""

    def __init__(self, side: Any, put: bool, size: int) -> None:
        self.name, self.enter, self.leave = side.name, side.enter, side.leave
        self.call = side.put_flush if put else side.get
        self.wanted = cases.pattern(size, size // 8)
        self.array = self.wanted if put else np.zeros_like(self.wanted)
        self.best = np.full(PLACES, np.inf)
        self.wrong: str | None = None

    def turn(self, step: int) -> list[float]:
        """Call it at each `step`-th place, the last one at last."""
        call, array, clock = self.call, self.array, time.perf_counter
        for place in range(step - 1, PLACES, step):
            for _ in range(TURNS):
                start = clock()
                call(1, array, TARGET, place)
                self.best[place] = min(self.best[place], 1e6 * (clock() - start))
        self.wrong = cases.same(self.name, array, self.wanted)
        return []

    def slowest(self) -> list[list[float]]:
        """Return the time at the slowest place, as the samples of one round."""
        return [[float(np.max(self.best, initial=0, where=np.isfinite(self.best)))]]

    def spread(self) -> list[list[float]]:
        """Return that over the time at the fastest."""
        return [[self.slowest()[0][0] / float(np.min(self.best))]]


def places(job: Job) -> None:
    """Measure put + flush and get of each size at 512 places."""
    sizes: list[int] = job.settings["sizes"]
    count = max(sizes) // 8 + PLACES
    sides: list[Any] = [*cases.sides(job, count), baseline.Copy(job, count)]
    step = 16 if job.quick else 1
    job.expect(2 * len(sizes) * job.rounds * len(sides))
    for size in sizes:
        for name in ("put + flush", "get"):
            timed = [Timed(side, name != "get", size) for side in sides]
            job.alternate(timed, lambda each: each.turn(step))
            slowest = {each.name: each.slowest() for each in timed}
            spread = {each.name: each.spread() for each in timed}
            job.add(f"{name}, the slowest place", slowest, "us", size)
            job.add(f"{name}, slowest over fastest place", spread, "x", size)
            for each in timed:
                job.check(each.wrong)
        for side in sides[:-1]:
            found = side.memory[PLACES - 1 :][: size // 8]
            job.check(None if job.is_origin else cases.same(side.name, found, timed[0].wanted))
