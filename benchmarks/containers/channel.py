# SPDX-License-Identifier: BSD-3-Clause
"""Records of 64 bytes from three ranks to one: `Channel` beside mpi4py; one rank of a job of 4.

All send the same batches, and the reader adds up what has come. It knows how many records there
are; a Channel's loop finds that out by itself, which is not measured here.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from rmaext.bench.job import main
from rmaext.bench.measure import Job, WrongDataError
from rmaext.containers import Channel

READER = 0
RECORD = np.dtype([("number", "i8"), ("values", "f8", (7,))])
CAPACITY = 1 << 16
IN_FLIGHT = 16  # batches of Isend

Array = NDArray[Any]


class Rival:
    """A way to send all records, in batches; `run` returns the sum of the numbers that came."""

    name = "mpi4py: Send, Recv"

    def __init__(self, comm: MPI.Intracomm, count: int, batch: int) -> None:
        self.comm, self.batch = comm, batch
        self.enter = self.leave = comm.Barrier
        self.mine = np.zeros(count, RECORD)
        self.mine["number"] = np.arange(count)
        self.left = count * (comm.size - 1)  # records that come to the reader
        self.room = np.empty(batch, RECORD)

    def batches(self) -> list[Array]:
        """Return what a writer sends."""
        return [self.mine[k : k + self.batch] for k in range(0, len(self.mine), self.batch)]

    def run(self) -> int:
        """Send, or receive."""
        return self.read() if self.comm.rank == READER else self.write()

    def write(self) -> int:
        """Send this rank's records."""
        for some in self.batches():
            self.comm.Send(some.view(np.uint8), READER)
        return 0

    def read(self) -> int:
        """Receive those of all others."""
        total, left, status = 0, self.left, MPI.Status()
        room = self.room.view(np.uint8)
        while left:
            self.comm.Recv(room, status=status)
            some = self.room[: status.Get_count(MPI.BYTE) // RECORD.itemsize]
            left -= len(some)
            total += int(some["number"].sum())
        return total

    def close(self) -> None:
        """Collective."""


class Probed(Rival):
    """Writers do not wait for each batch, and the reader asks what comes."""

    name = "mpi4py: Isend, Probe"

    def write(self) -> int:  # noqa: D102
        begun: list[MPI.Request] = []
        for some in self.batches():
            if len(begun) == IN_FLIGHT:
                begun.pop(0).Wait()
            begun.append(self.comm.Isend(some.view(np.uint8), READER))
        MPI.Request.Waitall(begun)
        return 0

    def read(self) -> int:  # noqa: D102
        total, left, status = 0, self.left, MPI.Status()
        while left:
            self.comm.Probe(status=status)
            some = np.empty(status.Get_count(MPI.BYTE) // RECORD.itemsize, RECORD)
            self.comm.Recv(some.view(np.uint8), status.Get_source())
            left -= len(some)
            total += int(some["number"].sum())
        return total


class OfChannel(Rival):
    """What is measured."""

    name = "rmaext.containers.Channel"

    def __init__(self, comm: MPI.Intracomm, count: int, batch: int) -> None:
        super().__init__(comm, count, batch)
        self.channel: Channel[Any] = Channel(comm, RECORD, CAPACITY)

    def write(self) -> int:  # noqa: D102
        for some in self.batches():
            self.channel.send(some, READER)
        return 0

    def read(self) -> int:  # noqa: D102
        total, left = 0, self.left
        while left:
            got = self.channel.receive()
            if got is None:
                raise WrongDataError(f"{self.name}: it has ended, {left} records are missing")
            left -= len(got[1])
            total += int(got[1]["number"].sum())
        return total

    def close(self) -> None:  # noqa: D102
        self.channel.close()


def records(job: Job) -> None:
    """Send all records, in batches of several sizes."""
    each = (20_000 if job.quick else 1_000_000) // (job.comm.size - 1)
    want = (job.comm.size - 1) * (each * (each - 1) // 2)
    sizes: list[int] = job.settings["sizes"]
    kinds = [OfChannel, Rival, Probed]
    job.expect(len(sizes) * job.rounds * len(kinds))

    def turn(rival: Rival) -> list[float]:
        job.comm.Barrier()
        start = time.perf_counter_ns()
        total = rival.run()
        took = (time.perf_counter_ns() - start) * 1e-3
        if job.comm.bcast(total, READER) != want:
            raise WrongDataError(f"{rival.name}: not each record once")
        return [job.comm.bcast(took, READER)]

    for size in sizes:
        rivals = [kind(job.comm, each, size // RECORD.itemsize) for kind in kinds]
        samples = job.alternate(rivals, turn, everywhere=True)
        job.add(f"{(job.comm.size - 1) * each} records, in batches", samples, "ms", size)
        for rival in rivals:
            rival.close()


if __name__ == "__main__":
    main({"records": records})
