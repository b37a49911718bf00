# SPDX-License-Identifier: BSD-3-Clause
"""A table that one rank fills and four read: `NodeArray` beside MPI; one rank of a job of 4."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from rmaext.bench.job import main
from rmaext.bench.measure import Job, WrongDataError
from rmaext.containers import NodeArray

FIRST = 0

Array = NDArray[Any]


def fill(array: Array) -> None:
    """Write each element once."""
    array[:] = 2.0


class OfNodeArray:
    """What is measured."""

    name = "rmaext.containers.NodeArray"

    def __init__(self, comm: MPI.Intracomm, count: int) -> None:
        self.comm, self.count = comm, count
        self.enter = self.leave = comm.Barrier

    def make(self) -> Array:
        """Return the table, filled. Collective."""
        self.table: NodeArray[Any] = NodeArray(self.comm, self.count, fill=fill)
        return self.table.array

    def free(self) -> None:
        """Collective."""
        self.table.close()


class ByHand(OfNodeArray):
    """As programs do it."""

    name = "MPI.Win.Allocate_shared"

    def make(self) -> Array:  # noqa: D102
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        mine = 8 * self.count if node.rank == FIRST else 0
        self.win = MPI.Win.Allocate_shared(mine, 8, comm=node)
        table = np.frombuffer(self.win.Shared_query(FIRST)[0], np.float64)
        if node.rank == FIRST:
            fill(table)
        self.win.Fence()
        node.Free()
        return table

    def free(self) -> None:  # noqa: D102
        self.win.Free()


def tables(job: Job) -> None:
    """Make a table, and let all ranks add it up."""
    (size,) = [1 << 20] if job.quick else job.settings["sizes"]
    count = size // 8
    rivals = [OfNodeArray(job.comm, count), ByHand(job.comm, count)]
    job.expect(job.rounds * len(rivals))

    def turn(rival: OfNodeArray) -> list[float]:
        job.comm.Barrier()
        start = time.perf_counter_ns()
        total = rival.make().sum()
        job.comm.Barrier()
        took = (time.perf_counter_ns() - start) * 1e-3
        rival.free()
        if total != 2.0 * count:
            raise WrongDataError(f"{rival.name}: the table is wrong")
        return [took]

    job.add("fill and first read", job.alternate(rivals, turn, everywhere=True), "ms", size)


if __name__ == "__main__":
    main({"tables": tables})
