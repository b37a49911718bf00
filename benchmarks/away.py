# SPDX-License-Identifier: BSD-3-Clause
"""Single operations by what their target or their origin does meanwhile; for table.py."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rmaext.bench import cases
from rmaext.bench.measure import Job, once, per_call
from rmaext.bench.peers import Side

TARGET = 1
PAUSES = {"0.1 ms": 1e-4, "1 ms": 1e-3}  # between two operations, in seconds
FENCE, ASLEEP, BARRIER = "target in a fence", "rmaext, target asleep", "rmaext, in MPI_Barrier"


class Away:
    """A window whose target waits in one way while the origin works."""

    def __init__(self, side: Side, name: str) -> None:
        self.side, self.name, self.enter = side, name, side.meet

    def leave(self) -> None:
        """Wait until the origin comes, and meet it."""
        comm = self.side.comm
        if self.name == BARRIER:
            comm.Barrier()
        elif self.name == ASLEEP and comm.rank == TARGET:
            while not comm.iprobe():
                time.sleep(0.01)
            comm.recv()
        elif self.name == ASLEEP:
            comm.send(None, TARGET)
        self.side.meet()


def away(job: Job) -> None:
    """Put + flush, get and fetch_add of 8 B, with the target in a fence, asleep or in MPI."""
    (side,) = cases.sides(job, 1)
    rivals = [Away(side, name) for name in (FENCE, ASLEEP, BARRIER)]
    sent, got = np.array([42]), np.zeros(1, np.int64)
    loops: dict[str, Callable[[int], None]] = {
        "put + flush": lambda n: side.put_flush(n, sent, TARGET, 0),
        "get": lambda n: side.get(n, got, TARGET, 0),
        "fetch_add": lambda n: side.fetch_add(n, TARGET, 0),
    }
    job.expect(len(loops) * job.rounds * len(rivals))
    for name, loop in loops.items():

        def turn(_: Away, loop: Callable[[int], None] = loop) -> list[float]:
            return per_call(loop, 5e-3)

        job.add(name, job.alternate(rivals, turn), "us", 8)
    job.check(cases.same("get", got, sent) if job.is_origin else None)
    added = job.comm.bcast(side.added, 0)
    cases.check(job, side, "put and fetch_add", sent + added)


def pauses(job: Job) -> None:
    """Get, put + flush and fetch_add of 8 B, each after the origin has computed for a while.

    The targets wait as the library lets them: in a fence, or in MPI_Barrier.
    """
    sides = cases.sides(job, 2)
    sent, got = np.array([42]), np.zeros(1, np.int64)
    calls: dict[str, Callable[[Side], None]] = {
        "put + flush": lambda side: side.put_flush(1, sent, TARGET, 1),
        "get": lambda side: side.get(1, got, TARGET, 0),
        "fetch_add": lambda side: side.fetch_add(1, TARGET, 0),
    }
    times = 3 if job.quick else 40
    job.expect(len(PAUSES) * len(calls) * job.rounds * len(sides))
    for what, seconds in PAUSES.items():
        for name, call in calls.items():

            def turn(
                side: Side, call: Callable[[Side], None] = call, seconds: float = seconds
            ) -> list[float]:
                taken = []
                for _ in range(times):
                    end = time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        pass
                    taken.append(once(lambda: call(side)))
                return taken[1:]

            job.add(f"{name}, {what} after the last", job.alternate(sides, turn), "us", 8)
    for side in sides:
        added = job.comm.bcast(side.added, 0)
        cases.check(job, side, "put and fetch_add", np.array([added, *sent]))
