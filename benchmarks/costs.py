# SPDX-License-Identifier: BSD-3-Clause
"""What transfers cost in CPU time, of the origin and the target together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rmaext.bench import cases
from rmaext.bench.measure import Job, WrongDataError
from rmaext.bench.peers import Side

TARGET, DEPTH, TIMES = 1, 64, 4


class Paid:
    """Transfers of a side. Its target waits in the library's own fence or barrier."""

    def __init__(self, side: Side) -> None:
        self.name, self.side = side.name, side

    def enter(self) -> None:
        """Wait for all ranks."""
        self.side.comm.Barrier()

    leave = enter

    def take(self, transfer: Callable[[Side], None], gigabytes: float) -> float:
        """Return the CPU seconds of both ranks for each GB, but for those of one more transfer."""
        side = self.side
        spent = []
        for times in (1, 1 + TIMES):  # the first one is to warm up
            side.comm.Barrier()
            cpu = time.process_time()
            side.enter()
            if side.comm.rank != TARGET:
                for _ in range(times):
                    transfer(side)
            side.leave()
            spent.append(time.process_time() - cpu)
        every = side.comm.allreduce(spent[1] - spent[0])
        return float(every) / (TIMES * gigabytes)


def cpu(job: Job) -> None:
    """Measure 64 puts and a flush, and 64 gets, of 1 MiB each."""
    (size,) = job.settings["sizes"]
    step = size // 8
    windows = cases.sides(job, DEPTH * step, own=DEPTH)
    rivals = [Paid(side) for side in windows]
    sent = cases.pattern(size, DEPTH * step)
    received = np.full_like(sent, -1)
    out = [(sent[i : i + step], i) for i in range(0, sent.size, step)]
    back = [(received[i : i + step], i) for i in range(0, sent.size, step)]
    job.expect(2 * job.rounds * len(rivals))

    def turn(transfer: Callable[[Side], None]) -> Callable[[Paid], list[float]]:
        return lambda each: [each.take(transfer, DEPTH * size * 1e-9)]

    def get(side: Side) -> None:
        side.gets(back, TARGET)

    def gets(each: Paid) -> list[float]:
        received[:] = -1
        taken = turn(get)(each)
        if job.is_origin and (wrong := cases.same(f"{each.name}, get", received, sent)):
            raise WrongDataError(wrong)
        return taken

    def add(operation: str, what: Any) -> None:
        samples = job.alternate(rivals, what, everywhere=True)
        job.add(f"{operation} x {DEPTH}, CPU of both ranks", samples, "s/GB", size)

    add("put", turn(lambda side: side.puts(out, TARGET)))
    for side in windows:
        cases.check(job, side, "put", sent)
    add("get", gets)
