# SPDX-License-Identifier: BSD-3-Clause
"""How the creation of windows grows with the number of ranks, and what very many cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from rmaext import Window
from rmaext._comm.agreement import encode
from rmaext._comm.group import Group
from rmaext._comm.window_record import WindowRecord
from rmaext.bench import cases
from rmaext.bench.measure import Job, Samples
from rmaext.bench.peers import RmaextAllocate, Side


class Alone:
    """A collective call over some of the ranks, again and again."""

    def __init__(self, name: str, comm: MPI.Comm, call: Callable[[], Any]) -> None:
        self.name = name
        self.comm = comm
        self.call = call

    def enter(self) -> None:
        """Wait for them."""
        self.comm.Barrier()

    leave = enter

    def take(self) -> tuple[float, float]:
        """Call it; return the slowest rank's time and the mean CPU time, in us. Collective."""
        self.comm.Barrier()
        start, cpu = time.perf_counter_ns(), time.process_time_ns()
        made = self.call()
        cpu, taken = time.process_time_ns() - cpu, time.perf_counter_ns() - start
        if made is not None:
            made.close()
        slowest = self.comm.allreduce(taken, MPI.MAX)
        return slowest * 1e-3, self.comm.allreduce(cpu) / self.comm.size * 1e-3


def gathered(comm: MPI.Comm, record: bytes) -> None:
    """Gather the ranks' records, as a creation does."""
    group = Group.of(comm)
    with group.collective("creation of a window", group.windows + 1):
        group.gather_whole(record)


def growth(job: Job) -> None:
    """Make a window over 2, 4, 8, ... of the ranks, or only gather a record of its length.

    Ranks that share a core wait for each other, so the time of all grows with their
    number, whatever is done: the CPU time of each says how much more it has to do,
    which in the gathers includes what it spends on looking whether others are done.
    """
    route = job.settings["through"]
    if route == "fabric":  # of rmaext alone: MPI stays in shared memory
        os.environ["RMAEXT_ROUTE"] = route
    counts = [1 << k for k in range(1, job.comm.size.bit_length())]
    job.expect(3 * job.rounds * len(counts))
    spent: list[dict[str, Samples]] = []
    for count in counts:
        part = job.comm.Split(0 if job.comm.rank < count else MPI.UNDEFINED)
        if part != MPI.COMM_NULL:
            spent.append(_growth(job, part, b"8 bytes." if route == "fabric" else b""))
            part.Free()
        met = job.comm.Ibarrier()
        while not met.Test():
            time.sleep(0.05)  # who takes no part leaves the cores to the others
    for what in spent[0] if job.is_origin else ():
        few, many = (each[what] for each in (spent[0], spent[-1]))
        if any(f[0] <= 0 for each in (few, many) for rounds in each.values() for f in rounds):
            continue  # a difference that was nothing but noise
        more: Samples = {
            name: [[m[0] / f[0]] for f, m in zip(few[name], many[name], strict=True)]
            for name in few
        }
        job.add(f"{what}, {counts[-1]} ranks over {counts[0]}", more, "x")


def _growth(job: Job, comm: MPI.Comm, key: bytes) -> dict[str, Samples]:
    """Measure it over `comm`; return the rounds' medians of the CPU time. Collective."""
    record = encode(WindowRecord(4096, 0, 3, "<i8", key, shape=(512,)).pack())
    every = bytearray(comm.size * len(record))
    window, gather = RmaextAllocate.name, "its gather"
    calls = [
        Alone(window, comm, lambda: Window.allocate(comm, 512, np.int64)),
        Alone("Allgather", comm, lambda: comm.Allgather(record, every)),
        Alone(gather, comm, lambda: gathered(comm, record)),
    ]
    for each in calls * 3:
        each.take()  # to warm up
    with Window.allocate(comm, 512, np.int64) as win:
        job.facts.setdefault("routes", {})[window] = win.route(comm.size - 1 - comm.rank)
    several = 2 if job.quick else 10

    def turn(each: Alone) -> list[float]:
        return [value for _ in range(several) for value in each.take()]

    both = job.alternate(calls, turn, everywhere=True)
    taken, cpu = ({name: [r[i::2] for r in rs] for name, rs in both.items()} for i in (0, 1))
    medians = {name: [[float(np.median(r))] for r in rounds] for name, rounds in cpu.items()}
    pairs = zip(medians[window], medians[gather], strict=True)
    rest: Samples = {window: [[whole[0] - part[0]] for whole, part in pairs]}
    job.add(f"{comm.size} ranks, time", taken, "ms")
    job.add(f"{comm.size} ranks, CPU a rank", cpu, "ms")
    job.add(f"{comm.size} ranks, CPU a rank but for its gather", rest, "ms")
    return {"CPU a rank": medians, "CPU a rank but for its gather": rest}


class Fenced:
    """Puts a number to the right neighbour, and a fence."""

    def __init__(self, side: Side) -> None:
        self.name, self.side, self.number = side.name, side, 0
        self.enter = self.leave = side.comm.Barrier

    def run(self) -> list[float]:
        """Do it ten times; return the time of each in microseconds. Collective."""
        win, comm, data = self.side.win, self.side.comm, np.empty(1, np.int64)
        put, fence = (win.Put, win.Fence) if isinstance(win, MPI.Win) else (win.put, win.fence)
        right, taken = (comm.rank + 1) % comm.size, []
        for _ in range(10):
            self.number += 1
            data[0] = self.number * comm.size + comm.rank
            start = time.perf_counter_ns()
            put(data, right)
            fence()
            taken.append((time.perf_counter_ns() - start) * 1e-3)
        return taken

    def wrong(self) -> str | None:
        """Say what is wrong with what came from the left."""
        comm = self.side.comm
        wanted = np.array([self.number * comm.size + (comm.rank - 1) % comm.size])
        return cases.same(self.name, self.side.memory, wanted)


def crowd(job: Job) -> None:
    """Make a window of 1 MiB over very many ranks; then put to the right and fence."""
    cases.creation(job)
    sides = [Fenced(side) for side in cases.sides(job, 1)]
    for each in sides:
        each.enter()
        if isinstance(each.side.win, MPI.Win):
            each.side.win.Fence()
        each.run()  # to warm up
    samples = job.alternate(sides, lambda each: each.run(), everywhere=True)
    for each in sides:
        job.check(each.wrong())
    job.add(f"put and fence, {job.comm.size} ranks", samples, "ms")
