# SPDX-License-Identifier: BSD-3-Clause
"""Tasks of 10 microseconds that begin on one rank: `TaskQueue` beside others; one rank of a job.

"by hand" is the ideal: each rank knows its part before, and runs a plain loop over it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor
from numpy.typing import NDArray

from rmaext.bench.job import main
from rmaext.bench.measure import ORIGIN, Job, WrongDataError
from rmaext.containers import TaskQueue

BY_HAND = "by hand"
TASK = 10e-6  # seconds
CHUNK = 100  # tasks of a message of the pool

Array = NDArray[Any]
work_size = 0  # of a task, so that it takes TASK


def task(number: Any) -> Any:
    """Run a task: the same work each time."""
    sum(range(work_size))
    return number


def calibrate(comm: MPI.Intracomm) -> float:
    """Find out how much work takes TASK; return the seconds of a task. Collective."""
    global work_size
    work_size, best = 1000, 1.0
    for _ in range(4):
        best = min(_time(200) for _ in range(20))
        work_size = comm.bcast(max(10, round(work_size * TASK / best)), ORIGIN)
    return best


def _time(count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        task(0)
    return (time.perf_counter() - start) / count


class Rival:
    """A way to run all tasks; `run` returns those that this rank ran."""

    name = BY_HAND

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.comm, self.count = comm, count
        self.enter = self.leave = comm.Barrier
        self.waited = self.took = 0.0

    def run(self) -> list[Any]:
        """Run this rank's part."""
        each = -(-self.count // self.comm.size)
        first = each * self.comm.rank
        return [task(n) for n in range(first, min(first + each, self.count))]

    def close(self) -> None:
        """Collective."""


class OfQueue(Rival):
    """What is measured."""

    name = "rmaext.containers.TaskQueue"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        super().__init__(comm, count)
        self.queue: TaskQueue[Any] = TaskQueue(comm, np.int64, count)

    def run(self) -> list[Any]:  # noqa: D102
        if self.comm.rank == ORIGIN:
            self.queue.put(np.arange(self.count))
        before = self.queue.stats().waited
        start = time.perf_counter()
        mine = [task(n) for n in self.queue]
        self.took += time.perf_counter() - start
        self.waited += self.queue.stats().waited - before
        return mine

    def close(self) -> None:  # noqa: D102
        self.queue.close()


class Counter(Rival):
    """The tasks lie on rank 0, and so does the number of the next one."""

    name = "MPI.Win: Fetch_and_op, Get"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        super().__init__(comm, count)
        here = comm.rank == ORIGIN
        self.tasks = MPI.Win.Allocate(8 * count if here else 0, 8, comm=comm)
        self.counter = MPI.Win.Allocate(8 if here else 0, 8, comm=comm)
        if here:
            memory = np.frombuffer(memoryview(self.tasks.tomemory()), np.int64)
            memory[:] = np.arange(count)
            self.word = np.frombuffer(memoryview(self.counter.tomemory()), np.int64)
            self.word[:] = 0
        for win in self.tasks, self.counter:
            win.Lock_all(MPI.MODE_NOCHECK)
        self.one, self.next, self.got = (np.ones(1, np.int64) for _ in range(3))
        comm.Barrier()

    def run(self) -> list[Any]:  # noqa: D102
        mine: list[Any] = []
        while True:
            self.counter.Fetch_and_op(self.one, self.next, ORIGIN)
            self.counter.Flush(ORIGIN)
            if self.next[0] >= self.count:
                break
            self.tasks.Get(self.got, ORIGIN, int(self.next[0]))
            self.tasks.Flush(ORIGIN)
            mine.append(task(int(self.got[0])))
        self.comm.Barrier()
        if self.comm.rank == ORIGIN:
            self.word[:] = 0
            self.counter.Sync()
        self.comm.Barrier()
        return mine

    def close(self) -> None:  # noqa: D102
        for win in self.tasks, self.counter:
            win.Unlock_all()
            win.Free()


class Pool(Rival):
    """Rank 0 hands tasks out, and the others run them."""

    name = "mpi4py.futures"

    def run(self) -> list[Any]:  # noqa: D102
        with MPICommExecutor(self.comm, ORIGIN) as executor:
            if executor is not None:
                return list(executor.map(task, range(self.count), chunksize=CHUNK))
        return []


def tasks(job: Job) -> None:
    """Run all tasks, and say how long the ranks that steal have waited."""
    count = 10_000 if job.quick else 100_000
    each = calibrate(job.comm)
    rivals = [kind(job.comm, count) for kind in (OfQueue, Rival, Counter, Pool)]
    if job.comm.size < 2:
        rivals.pop()
    job.expect(job.rounds * len(rivals))

    def turn(rival: Rival) -> list[float]:
        start = time.perf_counter_ns()
        mine = rival.run()
        job.comm.Barrier()
        took = (time.perf_counter_ns() - start) * 1e-3
        every = job.comm.gather(np.array(mine, np.int64))
        wrong = every is not None and not np.array_equal(
            np.sort(np.concatenate(every)), np.arange(count)
        )
        if job.comm.bcast(wrong):
            raise WrongDataError(f"{rival.name}: not each task once")
        return [took]

    job.add(f"{count} tasks", job.alternate(rivals, turn, everywhere=True), "ms")
    ours = rivals[0]
    job.facts["seconds of a task"] = each
    waits = job.comm.allgather(100 * ours.waited / ours.took)
    thieves = [part for rank, part in enumerate(waits) if rank != ORIGIN]
    job.add("waits of those who steal", {ours.name: [thieves]}, "%", percentile=100)
    for rival in rivals:
        rival.close()


if __name__ == "__main__":
    main({"tasks": tasks})
