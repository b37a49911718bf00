# SPDX-License-Identifier: BSD-3-Clause
"""The cases of table.py that `python -m rmaext bench` has not; one rank of a job."""

from __future__ import annotations

import time
from itertools import chain, repeat
from typing import Any

import baseline
import numpy as np
from away import away, pauses
from connections import connections
from costs import cpu
from derived import derived
from growth import crowd, growth
from mpi4py import MPI
from places import places
from programs import programs
from singles import singles

from rmaext import compat
from rmaext.bench import cases, peers
from rmaext.bench.job import main
from rmaext.bench.measure import Job, Samples, per_call
from rmaext.bench.peers import Side

TARGET = 1


class CompatAllocate(peers.MpiAllocate):
    """rmaext.compat.Win.Allocate, called as MPI.Win is."""

    name = "rmaext.compat.Win.Allocate"

    def open(self, count: int) -> None:  # noqa: D102
        self.win = compat.Win.Allocate(count * peers.WORD, peers.WORD, comm=self.comm)
        self.memory = np.frombuffer(memoryview(self.win.tomemory()), self.dtype)


peers.FORMS[CompatAllocate.name] = CompatAllocate


class Calls:
    """One call of a window, again and again; the window is entered for it."""

    def __init__(self, side: Side, call: str) -> None:
        self.name = side.name
        self.enter, self.leave = side.enter, side.leave
        mpi = isinstance(side.win, compat.Win)
        self._function = getattr(side.win, call.title() if mpi else call)
        self._arguments = (np.array([42]), TARGET, 0) if call == "put" else (TARGET,)

    def loop(self, n: int) -> None:
        """Call it n times."""
        function, arguments = self._function, self._arguments
        for _ in repeat(None, n):
            function(*arguments)


def calls(job: Job) -> None:
    """Measure Put and Flush of compat.Win, each by itself, and rmaext.Window's."""
    windows = cases.sides(job, 1)
    job.expect(2 * job.rounds * len(windows))
    for call in ("put", "flush"):
        rivals = [Calls(side, call) for side in windows]
        samples = job.alternate(rivals, lambda each: per_call(each.loop, 5e-3))
        job.add(f"{call} alone", samples, "us", 8)
    for side in windows:
        cases.check(job, side, "put", np.array([42]))


def prepared(job: Job) -> None:
    """Measure a prepared put of 8 bytes, and a call of a function that does nothing."""
    (side,) = cases.sides(job, 1)
    sent = np.array([42])
    job.expect(2 * job.rounds)

    def empty() -> None:
        pass

    class Call:
        def __init__(self, name: str, function: Any) -> None:
            self.name = name
            self.function = function

        def enter(self) -> None:
            side.meet()

        leave = enter

        def loop(self, n: int) -> None:
            function = self.function
            for _ in repeat(None, n):
                function()

    calls = [
        Call("rmaext.prepare_put", side.win.prepare_put(sent, TARGET, 0)),
        Call("empty Python call", empty),
    ]
    samples = job.alternate(calls, lambda call: per_call(call.loop, 5e-3))
    job.add("prepared put", samples, "us", 8)
    cases.check(job, side, "prepared put", sent)


def memcpy(job: Job) -> None:
    """Measure `latency` with numpy.copyto beside."""
    cases.latency(job, [baseline.Copy(job, max(job.settings["sizes"]) // 8)])


def bare(job: Job) -> None:
    """Measure `latency` with bare process_vm calls beside."""
    cases.latency(job, [baseline.ProcessVm(job, max(job.settings["sizes"]) // 8)])


def random(job: Job) -> None:
    """Measure `random` with a C loop instead of NumPy beside."""
    cases.random(job, baseline.CLoop)


def sums(job: Job) -> None:
    """Add an array of float64 to the target's, and flush."""
    sizes: list[int] = job.settings["sizes"]
    windows = cases.sides(job, max(sizes) // 8, dtype=np.float64)
    job.expect(len(sizes) * job.rounds * len(windows))
    for size in sizes:
        data = np.arange(size // 8, dtype=np.float64)
        for side in windows:
            side.memory[:] = side.added = 0

        def turn(side: Side, data: Any = data) -> list[float]:
            return per_call(lambda n: side.accumulate_flush(n, data, TARGET, 0), 5e-3)

        job.add("accumulate + flush", job.alternate(windows, turn), "us", size)
        for side in windows:
            added = job.comm.bcast(side.added, 0)
            cases.check(job, side, "accumulate", data * added)


def parts(job: Job) -> None:
    """Put a column of a matrix, and gather random elements of it."""
    rows, width, at = 1024, 100, 3
    windows = cases.sides(job, rows * width)
    sent = cases.pattern(7, rows)
    vector = MPI.INT64_T.Create_vector(rows, 1, width).Commit()
    job.expect(2 * job.rounds * len(windows))

    def column(side: Side) -> list[float]:
        win = side.win

        def mpi(n: int) -> None:
            for _ in repeat(None, n):
                win.Put((sent, rows, MPI.INT64_T), TARGET, (at, 1, vector))
                win.Flush(TARGET)

        def rmaext(n: int) -> None:
            for _ in repeat(None, n):
                win[TARGET, at::width] = sent
                win.flush(TARGET)

        return per_call(mpi if isinstance(win, MPI.Win) else rmaext, 5e-3)

    samples = job.alternate(windows, column)
    job.add(f"put + flush of a column of {rows}", samples, "us", sent.nbytes)
    for side in windows:
        found = side.memory.reshape(-1, width)[:rows, at]
        job.check(None if job.is_origin else cases.same(side.name, found, sent))
        if not job.is_origin:
            side.memory[:] = np.arange(side.memory.size)
    vector.Free()

    count = 1000 if job.quick else 10_000
    index = np.random.default_rng(1).integers(rows * width, size=count)
    ranks, out = np.full(count, TARGET), np.zeros_like(index)

    def gather(side: Side) -> list[float]:
        win = side.win
        if isinstance(win, MPI.Win):
            call = side.many("get_many", ranks, index, out, out)
        else:

            def call() -> Any:
                return win[TARGET, index]

        if wrong := cases.same(side.name, call(), index):
            raise cases.WrongDataError(wrong)
        return [cases.once(call) for _ in range(3)]

    job.add(f"random gather of {count}", job.alternate(windows, gather), "us", 8 * count)


class Exchange:
    """Every rank puts to both neighbours, then all meet in a fence."""

    COUNT = 8  # words to either side

    def __init__(self, side: Side) -> None:
        self.name = side.name
        self.side = side
        self.number = 0

    def enter(self) -> None:
        """Begin an epoch."""
        self.fence()

    leave = enter

    def fence(self) -> None:
        """Complete all puts."""
        if isinstance(self.side.win, MPI.Win):
            self.side.win.Fence()
        else:
            self.side.win.fence()

    def run(self, rounds: int) -> float:
        """Exchange so many times; return the time in microseconds. Collective."""
        win, comm, n = self.side.win, self.side.comm, self.COUNT
        put = win.Put if isinstance(win, MPI.Win) else win.put
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        data = np.empty(n, np.int64)
        start = time.perf_counter_ns()
        for _ in range(rounds):
            self.number += 1
            data[:] = self.number * comm.size + comm.rank
            put(data, left, n)
            put(data, right, 0)
            self.fence()
        return (time.perf_counter_ns() - start) * 1e-3

    def wrong(self) -> str | None:
        """Say what is wrong with what the neighbours sent."""
        comm, n = self.side.comm, self.COUNT
        wanted = np.repeat([(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size], n)
        return cases.same(self.name, self.side.memory, wanted + self.number * comm.size)


def neighbours(job: Job) -> None:
    """Exchange with the neighbours 100 times, with a fence after each."""
    exchanges = [Exchange(side) for side in cases.sides(job, 2 * Exchange.COUNT)]
    rounds = 10 if job.quick else 100
    job.expect(len(exchanges) * job.rounds)
    for exchange in exchanges:
        exchange.enter()
        exchange.run(5)  # to warm up
    samples = job.alternate(exchanges, lambda each: [each.run(rounds)], everywhere=True)
    job.add(f"{rounds} exchanges", samples, "ms")
    for exchange in exchanges:
        job.check(exchange.wrong())


class PingPong:
    """Two ranks put to each other by turns, and say so: a notified put, or a message."""

    SLOT = 3

    def __init__(self, side: Side) -> None:
        self.name = side.name
        self.side = side
        self.enter, self.leave = side.enter, side.leave

    def run(self, rounds: int, data: Any) -> float:
        """Return the time of one way in microseconds. Collective."""
        rank = self.side.comm.rank
        loop = self._mpi if isinstance(self.side.win, MPI.Win) else self._rmaext
        loop(2, data, 1 - rank, rank == 0)  # to warm up
        start = time.perf_counter_ns()
        loop(rounds, data, 1 - rank, rank == 0)
        return (time.perf_counter_ns() - start) * 1e-3 / (2 * rounds)

    def _rmaext(self, rounds: int, data: Any, peer: int, first: bool) -> None:
        put, wait, slot = self.side.win.put_notify, self.side.win.wait_notify, self.SLOT
        for _ in repeat(None, rounds):
            if first:
                put(data, peer, 0, slot)
                wait(slot)
            else:
                wait(slot)
                put(data, peer, 0, slot)

    def _mpi(self, rounds: int, data: Any, peer: int, first: bool) -> None:
        win, comm, word = self.side.win, self.side.comm, np.zeros(1, np.int64)
        for _ in repeat(None, rounds):
            if first:
                win.Put(data, peer, 0)
                win.Flush(peer)
                comm.Send(word, peer)
                comm.Recv(word, peer)
            else:
                comm.Recv(word, peer)
                win.Put(data, peer, 0)
                win.Flush(peer)
                comm.Send(word, peer)


def notify(job: Job) -> None:
    """Measure how long data takes until the other rank knows that it is there."""
    sizes: list[int] = job.settings["sizes"]
    rivals = [PingPong(side) for side in cases.sides(job, max(sizes) // 8, targets=(0, 1))]
    rounds = 20 if job.quick else 200
    job.expect(len(sizes) * job.rounds * len(rivals))
    for size in sizes:
        mine = np.arange(size // 8) + size + job.comm.rank

        def turn(each: PingPong, data: Any = mine) -> list[float]:
            return [each.run(rounds, data) for _ in range(5)]

        job.add("notified put, one way", job.alternate(rivals, turn, everywhere=True), "us", size)
        for each in rivals:
            theirs = np.arange(size // 8) + size + 1 - job.comm.rank
            job.check(cases.same(each.name, each.side.memory[: size // 8], theirs))


def gets(job: Job) -> None:
    """Let all ranks get random words of the others at the same time, for a while."""
    comm, count, seconds = job.comm, 1 << 14, 0.3 if job.quick else 1.0
    windows = cases.sides(job, count, targets=range(comm.size))
    for side in windows:
        side.memory[:] = np.arange(count) + comm.rank * count
    comm.Barrier()
    draw = np.random.default_rng(comm.rank)
    job.expect(len(windows) * job.rounds)

    def turn(side: Side) -> list[float]:
        out = np.zeros(1, np.int64)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            rank = (comm.rank + int(draw.integers(1, comm.size))) % comm.size
            offset = int(draw.integers(count))
            start = time.perf_counter_ns()
            side.get(1, out, rank, offset)
            times.append((time.perf_counter_ns() - start) * 1e-3)
            if out[0] != rank * count + offset:
                raise cases.WrongDataError(f"{side.name}: got {out[0]} from {rank}, {offset}")
        return times

    own = job.alternate(windows, turn, everywhere=True)
    every = comm.gather(own)
    if every is None:
        return
    merged: Samples = {
        name: [list(chain.from_iterable(one[name][i] for one in every)) for i in range(job.rounds)]
        for name in own
    }
    between: Samples = {
        name: [[seconds * 1e6 / len(times)] for times in rounds] for name, rounds in merged.items()
    }
    job.add("random gets, all ranks", between, "M/s", 8, 1)
    job.add("random gets, p99", merged, "ms", 8, percentile=99)


def locks(job: Job) -> None:
    """Lock a rank exclusively, put 8 bytes, and unlock it."""
    windows = cases.sides(job, 1)
    sent = np.array([42])
    job.expect(len(windows) * job.rounds)

    class Locked:
        def __init__(self, side: Side) -> None:
            self.name, self.win, self.meet = side.name, side.win, side.comm.Barrier

        def enter(self) -> None:
            self.meet()

        leave = enter

        def loop(self, n: int) -> None:
            win = self.win
            if isinstance(win, MPI.Win):
                for _ in repeat(None, n):
                    win.Lock(TARGET, MPI.LOCK_EXCLUSIVE)
                    win.Put(sent, TARGET)
                    win.Unlock(TARGET)
            else:
                for _ in repeat(None, n):
                    win.lock(TARGET, True)
                    win.put(sent, TARGET)
                    win.unlock(TARGET)

    rivals = [Locked(side) for side in windows]
    samples = job.alternate(rivals, lambda each: per_call(each.loop, 5e-3))
    job.add("lock + put + unlock", samples, "us", 8)
    for side in windows:
        cases.check(job, side, "lock + put + unlock", sent)


CASES = {
    "away": away,
    "pauses": pauses,
    "calls": calls,
    "connections": connections,
    "latency": cases.latency,
    "creation": cases.creation,
    "cpu": cpu,
    "derived": derived,
    "locks": locks,
    "prepared": prepared,
    "memcpy": memcpy,
    "bare": bare,
    "random_c": random,
    "neighbours": neighbours,
    "parts": parts,
    "sums": sums,
    "gets": gets,
    "growth": growth,
    "crowd": crowd,
    "notify": notify,
    "places": places,
    "programs": programs,
    "singles": singles,
}

if __name__ == "__main__":
    main(CASES)
