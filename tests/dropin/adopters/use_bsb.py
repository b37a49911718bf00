# SPDX-License-Identifier: BSD-3-Clause
"""bsb: jobs on a pool of ranks, whose window says which cached results are still needed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bsb import Configuration, Scaffold
from bsb.config import node
from bsb.placement.strategy import PlacementStrategy
from bsb.services import pool_cache
from clock import REPEAT, check, took
from mpi4py import MPI

CHUNKS = 12
FUNCTIONS = 40


@node
class Counting(PlacementStrategy):
    """Places nothing: tells what the pool's cache holds while a job of it runs."""

    @pool_cache
    def table(self) -> np.ndarray:
        """Return what a worker need not compute twice."""
        calls.append(1)
        return np.arange(1000)

    def place(self, chunk: Any, indicators: Any) -> tuple[int, int, int, int]:
        """Return the chunk, a sum of the table, and how often this worker computed it."""
        total = int(self.table().sum())
        return int(chunk[0]), total, len(calls), os.getpid()


def square(owner: Scaffold, number: int) -> int:
    """Return a square, as a job that depends on no other."""
    return number**2


def cached(owner: Scaffold) -> int:
    """Return how many of the worker's results are cached, after the stale ones were freed."""
    return len(owner._pool_cache)


def functions(network: Scaffold) -> None:
    """Run functions, some of them after others."""
    with network.create_job_pool(quiet=True) as pool:
        if pool.is_main():
            first = [pool.queue(square, [number]) for number in range(FUNCTIONS // 2)]
            then = [
                pool.queue(square, [number], deps=first[:3]) for number in range(FUNCTIONS // 2)
            ]
        results = pool.execute(return_results=True)
        if pool.is_main():
            check([results[job] for job in first + then] == [*squares, *squares], "squares")


def placement(network: Scaffold) -> None:
    """Run jobs whose strategy caches a result, which later jobs must not find."""
    calls.clear()
    with network.create_job_pool(quiet=True) as pool:
        if pool.is_main():
            jobs = [pool.queue_placement(strategy, [number, 0, 0]) for number in range(CHUNKS)]
            between = pool.queue(square, [0], deps=jobs)
            after = [pool.queue(cached, deps=[between]) for _ in range(comm.size)]
        results = pool.execute(return_results=True)
        if pool.is_main():
            said = [results[job] for job in jobs]
            check([one[0] for one in said] == [*range(CHUNKS)], "the chunks")
            # The pool starts its workers before it writes into the window what is needed: one
            # that reads it before that computes the result once more.
            check(all(one[1] == 499500 for one in said), f"the cached result: {said}")
            check(min(one[2] for one in said) == 1, f"how often it was computed: {said}")
            check(len({one[3] for one in said}) < comm.size, "rank 0 is no worker")
            check([results[job] for job in after] == [0] * comm.size, "a stale result is cached")


comm = MPI.COMM_WORLD
squares = [number**2 for number in range(FUNCTIONS // 2)]
calls: list[int] = []
with tempfile.TemporaryDirectory() as own:
    root = Path(comm.bcast(own))
    storage = {"engine": "fs", "root": str(root / "network")}
    config = Configuration.default(storage=storage)
    config.partitions.add("layer", type="layer", thickness=100)
    config.cell_types.add("cell", spatial={"radius": 2, "count": 10})
    words = {"strategy": Counting, "partitions": ["layer"], "cell_types": ["cell"]}
    strategy = config.placement.add("counting", **words)
    network = Scaffold(config, clear=True)
    for _ in range(REPEAT):
        with took(comm, f"{FUNCTIONS} jobs"):
            functions(network)
        with took(comm, f"{CHUNKS} jobs with a cached result"):
            placement(network)
