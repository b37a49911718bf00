#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What the record costs: two jobs, one with RMAEXT_RECORD=0, take turns.

    python benchmarks/recording.py [--rounds N]

Both jobs have two ranks, and are there all the time; one works at a time, and the order of
each pair is the reverse of the one before. A figure is the median over all rounds, of the
time of an operation at rank 0, while rank 1 waits in a fence. The gain or loss is the median of
the rounds' differences.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rmaext._runtime import launcher  # noqa: E402

# name, route, operations in a round, statement
CASES = [
    ("put, 8 B, direct, ns", "", 100_000, "put(one, 1, 0)"),
    ("get, 8 B, direct, ns", "", 100_000, "get(1, 0, 1, one)"),
    ("fetch_add, direct, ns", "", 100_000, "fetch_add(1.0, 1, 0)"),
    ("put + flush, direct, ns", "", 100_000, "put(one, 1, 0); flush(1)"),
    ("put_many of 64, direct, ns", "", 10_000, "put_many(1, places, values)"),
    ("get, 8 B, tcp, ns", "fabric", 2_000, "get(1, 0, 1, one)"),
    ("put + flush, 8 B, tcp, ns", "fabric", 2_000, "put(one, 1, 0); flush(1)"),
    ("fetch_add, tcp, ns", "fabric", 2_000, "fetch_add(1.0, 1, 0)"),
    ("64 puts + flush, tcp, ns", "fabric", 200, "for _ in range(64): put(one, 1, 0)\n  flush(1)"),
    ("get, 64 KiB, tcp, ns", "fabric", 1_000, "get(1, 0, 8192, many)"),
]


def rank() -> None:
    """Be a rank: wait for a byte, work, say how long it took, for ever."""
    import numpy as np
    from mpi4py import MPI

    import rmaext

    comm, (_, _, go, said) = MPI.COMM_WORLD, sys.argv[1:]
    win = rmaext.Window.allocate(comm, 8192)
    names = {name: getattr(win, name) for name in ("put", "get", "fetch_add", "flush", "put_many")}
    one, many = np.ones(1), np.ones(8192)
    names |= {"one": one, "many": many, "places": np.arange(64), "values": np.ones(64)}
    route = os.environ.get("RMAEXT_ROUTE", "")
    loops = []
    for _, needed, count, statement in CASES:
        if needed == route:
            text = f"def loop(n):\n for _ in range(n):\n  {statement}\n"
            exec(compile(text, "loop", "exec"), names)
            loops.append((names["loop"], count))
    with open(f"{go}{comm.rank}", "rb", 0) as start, open(f"{said}{comm.rank}", "w", 1) as result:
        while start.read(1) == b"g":
            win.fence()
            times = []
            for loop, count in loops if comm.rank == 0 else []:
                loop(count // 10)
                begin = time.perf_counter_ns()
                loop(count)
                times.append((time.perf_counter_ns() - begin) / count)
            win.fence()
            print(*times, file=result)
    win.close()


class Job:
    """A job of two ranks that works when it is told to."""

    def __init__(self, folder: str, name: str, route: str, record: str) -> None:
        go, said = f"{folder}/{name}-go-", f"{folder}/{name}-said-"
        for number in range(2):
            os.mkfifo(f"{go}{number}")
            os.mkfifo(f"{said}{number}")
        path, mpi = launcher.find()
        command = [*launcher.command(mpi, path, 2), sys.executable, __file__]
        env = launcher.environment() | {"RMAEXT_RECORD": record, "RMAEXT_ROUTE": route}
        self.process = subprocess.Popen(
            ["timeout", "1200", *command, "--rank", "-", go, said], env=env, cwd=ROOT
        )
        self._go: list[IO[Any]] = []
        self._said: list[IO[Any]] = []
        for number in range(2):
            self._go.append(open(f"{go}{number}", "wb", 0))  # noqa: SIM115
            self._said.append(open(f"{said}{number}"))  # noqa: SIM115

    def work(self) -> list[float]:
        """Return rank 0's times."""
        for pipe in self._go:
            pipe.write(b"g")
        lines = [pipe.readline() for pipe in self._said]
        return [float(word) for word in lines[0].split()]

    def end(self) -> None:
        """End the job."""
        for pipe in self._go:
            pipe.write(b"e")
        self.process.wait(60)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    print(f"{'':30} {'off':>9} {'on':>9} {'more':>8} {'more':>7}")
    for route in ("", "fabric"):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [Job(folder, record, route, record) for record in "01"]
            times: list[list[list[float]]] = [[], []]
            for number in range(rounds + 2):
                for which in (0, 1) if number % 2 else (1, 0):
                    measured = jobs[which].work()
                    if number > 1:
                        times[which].append(measured)
            for job in jobs:
                job.end()
        for k, (name, *_) in enumerate(c for c in CASES if c[1] == route):
            off, on = ([measured[k] for measured in times[which]] for which in (0, 1))
            more = statistics.median(b - a for a, b in zip(off, on, strict=True))
            middle = statistics.median(off)
            print(
                f"{name:30} {middle:9.1f} {statistics.median(on):9.1f} {more:+8.1f} "
                f"{100 * more / middle:+6.1f}%",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank()
    else:
        main()
