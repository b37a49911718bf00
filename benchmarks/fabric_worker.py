# SPDX-License-Identifier: BSD-3-Clause
"""Two ranks: rmaext over the fabric and MPI.Win, measured alternately in one job.

Started by fabric.py under each mpiexec. Rank 0 measures; rank 1 is the target
and waits in the fence or barrier of the library that is being measured. Rank 0
writes the result as JSON to --out, and its progress to stderr.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

ORIGIN, TARGET = 0, 1
MIB = 1 << 17  # 1 MiB in elements of 8 bytes
DEPTH = 64  # operations of 1 MiB before a flush
COUNTER, VALUE, WORD, BULK = 0, 8, 16, 512  # offsets in the window; BULK to its end
GUARD = 0x0123456789ABCDEF
TEARDOWN = 10  # seconds; Open MPI over UCX hangs in Win.Free or MPI_Finalize

# What to measure -> the method of Side that does it.
LATENCY = {"put + flush 8 B": "put_word", "get 8 B": "get_word", "fetch_add 8 B": "add_word"}
BANDWIDTH = {"put 1 MiB": "put_bulk", "get 1 MiB": "get_bulk"}
OPERATIONS = LATENCY | BANDWIDTH


class Side:
    """One library under test, with a window of its own over equal memory."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        bulk = DEPTH * MIB
        self.memory = np.zeros(BULK + (bulk if comm.rank == TARGET else 0), np.int64)
        self.memory[VALUE] = GUARD
        self.source = np.arange(bulk if comm.rank == ORIGIN else 0)
        self.sink = np.full_like(self.source, -1)
        self.word = np.zeros(1, np.int64)
        self.added = 0  # fetch_adds so far

    def enter(self) -> None:
        """Begin to measure. Collective."""

    def leave(self) -> None:
        """End of measuring; here the target waits. Collective."""

    def close(self) -> None:
        """Free the window. Collective."""

    def verify(self, last: int) -> str | None:
        """Say what is wrong with the data after the last round. Collective."""
        last, added = self.comm.bcast((last, self.added), ORIGIN)
        if self.comm.rank == TARGET:
            words = self.memory[[COUNTER, VALUE, WORD]].tolist()
            if words != [added, GUARD, last]:
                return f"the words are {words}, not {[added, GUARD, last]}"
            if not np.array_equal(self.memory[BULK:], np.arange(DEPTH * MIB)):
                return "the puts of 1 MiB did not arrive"
        elif not np.array_equal(self.sink, self.source):
            return "the gets of 1 MiB returned something else"
        return None


class Rmaext(Side):
    """rmaext.Window; the target waits in win.fence()."""

    def __init__(self, comm: Any) -> None:
        import rmaext

        super().__init__(comm)
        self.win = rmaext.Window(comm, self.memory)
        if self.win.route(TARGET) != "fabric" or self.win.fabric is None:
            raise RuntimeError(f"the route is {self.win.route(TARGET)}, not fabric")
        names = ("provider", "version", "library", "address")
        self.facts = {name: str(getattr(self.win.fabric, name)) for name in names}

    def enter(self) -> None:
        """Wait for both ranks."""
        self.win.fence()

    def leave(self) -> None:
        """Wait for both ranks, in rmaext."""
        self.win.fence()

    def close(self) -> None:
        """Free the window."""
        self.win.close()

    def put_word(self, i: int) -> None:
        """Put 8 bytes; they have arrived."""
        self.word[0] = i
        self.win.put(self.word, TARGET, WORD)
        self.win.flush(TARGET)

    def get_word(self, i: int) -> None:
        """Get 8 bytes."""
        self.win.get(TARGET, VALUE, out=self.word)

    def add_word(self, i: int) -> None:
        """Add 1, fetch what was there."""
        self.win.fetch_add(1, TARGET, COUNTER)
        self.added += 1

    def put_bulk(self, i: int) -> None:
        """Put all MiBs, then flush."""
        for at in range(0, DEPTH * MIB, MIB):
            self.win.put(self.source[at : at + MIB], TARGET, BULK + at)
        self.win.flush(TARGET)

    def get_bulk(self, i: int) -> None:
        """Get all MiBs."""
        for at in range(0, DEPTH * MIB, MIB):
            self.win.get(TARGET, BULK + at, out=self.sink[at : at + MIB])


class Mpi(Side):
    """MPI.Win in a passive epoch; the target waits in comm.Barrier().

    One window and Lock, not Lock_all: Open MPI over UCX hangs in Fetch_and_op
    when two windows are locked.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self.win = MPI.Win.Create(self.memory, 8, comm=comm)
        self.one = np.ones(1, np.int64)

    def enter(self) -> None:
        """Wait for both ranks; begin the epoch."""
        self.comm.Barrier()
        if self.comm.rank == ORIGIN:
            self.win.Lock(TARGET, MPI.LOCK_SHARED)

    def leave(self) -> None:
        """End the epoch; wait for both ranks, in MPI."""
        if self.comm.rank == ORIGIN:
            self.win.Unlock(TARGET)
        self.comm.Barrier()

    def close(self) -> None:
        """Free the window."""
        self.win.Free()

    def put_word(self, i: int) -> None:
        """Put 8 bytes; they have arrived."""
        self.word[0] = i
        self.win.Put(self.word, TARGET, WORD)
        self.win.Flush(TARGET)

    def get_word(self, i: int) -> None:
        """Get 8 bytes."""
        self.win.Get(self.word, TARGET, VALUE)
        self.win.Flush(TARGET)

    def add_word(self, i: int) -> None:
        """Add 1, fetch what was there."""
        self.win.Fetch_and_op(self.one, self.word, TARGET, COUNTER, MPI.SUM)
        self.win.Flush(TARGET)
        self.added += 1

    def put_bulk(self, i: int) -> None:
        """Put all MiBs, then flush."""
        for at in range(0, DEPTH * MIB, MIB):
            self.win.Put(self.source[at : at + MIB], TARGET, BULK + at)
        self.win.Flush(TARGET)

    def get_bulk(self, i: int) -> None:
        """Get all MiBs."""
        for at in range(0, DEPTH * MIB, MIB):
            self.win.Get(self.sink[at : at + MIB], TARGET, BULK + at)
        self.win.Flush(TARGET)


def measure(side: Side, method: str, count: int) -> list[float]:
    """Time `count` operations on the origin, in microseconds. Collective."""
    operation: Callable[[int], None] = getattr(side, method)
    times: list[float] = []
    side.enter()
    if side.comm.rank == ORIGIN:
        clock = time.perf_counter_ns
        for i in range(max(1, count // 20)):
            operation(i)  # warm up
        for i in range(count):
            start = clock()
            operation(i)
            times.append((clock() - start) * 1e-3)
        if method == "get_word" and side.word[0] != GUARD:
            raise RuntimeError(f"{type(side).__name__}: get returned {side.word[0]:#x}")
    side.leave()
    return times


def summarise(name: str, rounds: list[list[float]]) -> dict[str, Any]:
    """Median and p99 over all rounds, and the median of each round."""
    pooled = float(np.median(np.concatenate(rounds)))
    medians = [float(np.median(times)) for times in rounds]
    if name in LATENCY:
        p99 = float(np.percentile(np.concatenate(rounds), 99))
        return {"unit": "us", "median": pooled, "p99": p99, "rounds": medians}
    size = DEPTH * MIB * 8 * 1e-3  # / us = GB/s
    return {"unit": "GB/s", "median": size / pooled, "rounds": [size / m for m in medians]}


def ratio(name: str, mine: dict[str, Any], theirs: dict[str, Any]) -> float:
    """How many times as fast as MPI rmaext is: the median of the rounds' ratios."""
    quotients = np.asarray(mine["rounds"]) / np.asarray(theirs["rounds"])
    return float(np.median(1.0 / quotients if name in LATENCY else quotients))


def run(sides: dict[str, Side], rounds: int, count: int, batches: int) -> dict[str, Any]:
    """Measure everything `rounds` times. Collective. The result is rank 0's."""
    times: dict[str, dict[str, list[list[float]]]] = {
        name: {label: [] for label in sides} for name in OPERATIONS
    }
    for number in range(rounds):
        for name, method in OPERATIONS.items():
            # In both orders: what one leaves behind must not favour the other.
            for label in sorted(sides, reverse=number % 2 == 1):
                taken = measure(sides[label], method, count if name in LATENCY else batches)
                times[name][label].append(taken)
        if next(iter(sides.values())).comm.rank == ORIGIN:
            print(f"progress {number + 1}/{rounds}", file=sys.stderr, flush=True)
    for label, side in sides.items():
        wrongs = [text for text in side.comm.allgather(side.verify(count - 1)) if text]
        if wrongs:
            raise RuntimeError(f"{label}: {wrongs[0]}")
    if next(iter(sides.values())).comm.rank != ORIGIN:
        return {}
    results: dict[str, Any] = {}
    for name, by_label in times.items():
        entry: dict[str, Any] = {k: summarise(name, v) for k, v in by_label.items()}
        if len(entry) == 2:
            entry["ratio"] = ratio(name, entry["rmaext"], entry["mpi"])
        results[name] = entry
    return results


def main() -> None:
    """Measure, verify, write the result. Collective over MPI.COMM_WORLD."""
    parser = argparse.ArgumentParser(description="started by fabric.py under mpiexec, on 2 ranks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=1000, help="8-byte operations a round")
    parser.add_argument("--batches", type=int, default=4, help="batches of 64 x 1 MiB a round")
    parser.add_argument("--limit", type=float, default=120, help="seconds")
    parser.add_argument("--only", choices=["rmaext", "mpi"], help="leave the other out")
    args = parser.parse_args()
    faulthandler.dump_traceback_later(args.limit, exit=True)
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        raise RuntimeError("two ranks are needed")
    # These steer MPI's libfabric, which has read them; rmaext opens a copy of its own.
    for name in ("FI_PROVIDER", "FI_TCP_IFACE"):
        os.environ.pop(name, None)

    sides: dict[str, Side] = {}
    facts = None
    if args.only != "mpi":
        mine = Rmaext(comm)
        sides["rmaext"], facts = mine, mine.facts
    if args.only != "rmaext":
        sides["mpi"] = Mpi(comm)
    results = run(sides, args.rounds, args.count, args.batches)
    if comm.rank == ORIGIN:
        vendor, version = MPI.get_vendor()
        text = f"{vendor} {'.'.join(map(str, version))}"
        args.out.write_text(json.dumps({"mpi": text, "rmaext": facts, "results": results}))
        print("progress done", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(TEARDOWN, exit=True)
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
