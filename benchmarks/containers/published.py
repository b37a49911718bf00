# SPDX-License-Identifier: BSD-3-Clause
"""The newest version of a vector: `Published` beside others; one rank of a job of two.

Rank 0 publishes and rank 1 reads at the same time, both as fast as they can; or they broadcast.
"copy and get" is what no protocol can beat: the owner copies, the reader gets, and half of what
is read is torn. Whatever else is torn fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext
from rmaext.bench.job import main
from rmaext.bench.measure import Job, Samples, WrongDataError
from rmaext.containers import Published

OWNER, READER = 0, 1
BARE = "copy and get"

Array = NDArray[Any]


class OfPublished:
    """What is measured."""

    name = "rmaext.containers.Published"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.state = Published(comm, count, np.int64)
        self.seen = 0

    def publish(self, array: Array) -> None:
        """Make it the newest version."""
        self.state.publish(array)

    def read(self, out: Array) -> None:
        """Read the newest version."""
        version, _ = self.state.read(OWNER, out=out)
        if version < self.seen:
            raise WrongDataError(f"{self.name}: version {version} after {self.seen}")
        self.seen = version

    def close(self) -> None:
        """Collective."""
        self.state.close()


class Bare:
    """One copy, one get, and no protocol."""

    name = BARE

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.win = rmaext.Window.allocate(comm, count, np.int64)

    def publish(self, array: Array) -> None:
        """Copy."""
        np.copyto(self.win.local, array)

    def read(self, out: Array) -> None:
        """Get."""
        self.win.get(OWNER, 0, out=out)

    def close(self) -> None:
        """Collective."""
        self.win.close()


class Seqlock:
    """One buffer and a counter, odd while it is written: readers try until they succeed."""

    name = "MPI.Win: sequence lock"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.data = MPI.Win.Allocate(8 * count, 8, comm=comm)
        self.counter = MPI.Win.Allocate(8, 8, comm=comm)
        self.memory = np.frombuffer(memoryview(self.data.tomemory()), np.int64)
        self.word = np.frombuffer(memoryview(self.counter.tomemory()), np.int64)
        for win in self.data, self.counter:
            win.Lock_all(MPI.MODE_NOCHECK)
        self.word[0] = 0
        comm.Barrier()

    def publish(self, array: Array) -> None:
        """Count, copy, count."""
        self.word[0] += 1
        self.counter.Sync()
        self.data.Sync()
        np.copyto(self.memory, array)
        self.data.Sync()
        self.word[0] += 1
        self.counter.Sync()

    def _count(self) -> int:
        nothing, found = np.zeros(1, np.int64), np.empty(1, np.int64)
        self.counter.Fetch_and_op(nothing, found, OWNER, 0, MPI.NO_OP)
        self.counter.Flush(OWNER)
        return int(found[0])

    def read(self, out: Array) -> None:
        """Get until the counter was even, and the same before and after."""
        while True:
            before = self._count()
            if before % 2 == 0:
                self.data.Get(out, OWNER)
                self.data.Flush(OWNER)
                if self._count() == before:
                    return

    def close(self) -> None:
        """Collective."""
        for win in self.data, self.counter:
            win.Unlock_all()
            win.Free()


class Broadcast:
    """Both wait for each other."""

    name = "MPI.Comm.Bcast"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.comm = comm

    def publish(self, array: Array) -> None:
        """Send."""
        self.comm.Bcast(array, OWNER)

    read = publish

    def close(self) -> None:
        """There is nothing to free."""


class Rival:
    """Both ranks at work for a while, at the same time."""

    def __init__(self, job: Job, made: Any, count: int) -> None:
        self.name, self.made, self.comm = made.name, made, job.comm
        self.enter = self.leave = job.comm.Barrier
        self.array = np.zeros(count, np.int64)
        self.reads = self.torn = 0

    def turn(self, seconds: float, steps: int) -> list[float]:
        """Return the times of single steps in microseconds; `steps` of them, or for so long."""
        if self.comm.rank > READER:
            return []
        array, clock, times = self.array, time.perf_counter_ns, []
        act: Callable[[Array], None] = self.made.read if self.comm.rank else self.made.publish
        end = time.perf_counter() + seconds
        while len(times) < steps if steps else time.perf_counter() < end:
            if not self.comm.rank:
                array += 1
            start = clock()
            act(array)
            times.append((clock() - start) * 1e-3)
            if self.comm.rank:
                self.reads += 1
                self.torn += bool((array != array[0]).any())
        return times


def vectors(job: Job) -> None:
    """Publish and read vectors of several sizes."""
    sizes: list[int] = job.settings["sizes"]
    kinds = [OfPublished, Bare, Seqlock, Broadcast]
    job.expect(len(sizes) * job.rounds * len(kinds))
    for size in sizes:
        count = size // 8
        rivals = [Rival(job, kind(job.comm, count), count) for kind in kinds]
        seconds = 0.05 if job.quick else 0.5
        steps = max(10, int(seconds / 3e-4)) if size > 1 << 16 else 1000

        def turn(rival: Rival, seconds: float = seconds, steps: int = steps) -> list[float]:
            return rival.turn(seconds, steps if rival.name == Broadcast.name else 0)

        own = job.alternate(rivals, turn, everywhere=True)
        both: list[Samples] = job.comm.allgather(own)
        job.add("publish, while it is read", both[OWNER], "us", size)
        job.add("read, while it is published", both[READER], "us", size)
        for rival in rivals:
            reads, torn = job.comm.bcast((rival.reads, rival.torn), READER)
            job.facts.setdefault("reads", {})[f"{rival.name}, {size}"] = reads
            job.facts.setdefault("torn", {})[f"{rival.name}, {size}"] = torn
            if torn and rival.name != BARE:
                raise WrongDataError(f"{rival.name}: {torn} of {reads} reads are torn")
            rival.made.close()


def million(job: Job) -> None:
    """Read a million times while another rank publishes: nothing may be torn."""
    (size,) = job.settings["sizes"]
    count, reads = size // 8, 10_000 if job.quick else 1_000_000
    rival = Rival(job, OfPublished(job.comm, count), count)
    done = job.comm.Ibarrier()
    start = time.perf_counter()
    if job.comm.rank == READER:
        rival.turn(0, reads)
        done = job.comm.Ibarrier()
        done.Wait()
    else:
        done = job.comm.Ibarrier()
        while not done.Test():
            rival.turn(0.05, 0)
    took = job.comm.bcast(time.perf_counter() - start, READER)
    torn, made = job.comm.bcast(rival.torn, READER), job.comm.bcast(rival.array[0], OWNER)
    job.facts["million"] = f"{reads} reads in {took:.1f} s, {torn} torn, {made} published"
    if torn:
        raise WrongDataError(job.facts["million"])
    job.add(f"{reads} reads", {rival.name: [[took * 1e6]]}, "ms", size)
    rival.made.close()


if __name__ == "__main__":
    main({"vectors": vectors, "million": million})
