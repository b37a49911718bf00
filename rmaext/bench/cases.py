# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: a function of the job for each case, run by all of its ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .measure import ORIGIN, Job, Samples, WrongDataError, once, per_call
from .peers import FORMS, MANY, WORD, Array, Side

TARGET = 1
MIB = 1 << 20
BURST = 64  # operations before a flush
REGION = BURST * MIB  # bytes that the bandwidth is measured over


def sides(job: Job, count: int, own: int | None = None, **more: Any) -> list[Side]:
    """Make a window of each form: `count` elements on targets, `own` on the origin. Collective."""
    mine = own if own is not None and job.is_origin else count
    made = [FORMS[form](job.comm, mine, **more) for form in job.settings["forms"]]
    job.windows += made
    for side in made:
        side.memory[:] = 0
        if hasattr(side.win, "route"):
            job.facts.setdefault("routes", {})[side.name] = side.win.route(side.targets[-1])
    return made


def pattern(seed: int, count: int) -> Array:
    """Return what is sent: different words, different every time."""
    return np.arange(seed, seed + count)


def same(what: str, found: Array, wanted: Array) -> str | None:
    """Say what is wrong with an array."""
    if np.array_equal(found, wanted):
        return None
    wrong = np.flatnonzero(np.asarray(found) != wanted)
    return f"{what}: {wrong.size} of {wanted.size} words are wrong, the first at {wrong[0]}"


def check(job: Job, side: Side, operation: str, wanted: Array) -> None:
    """Raise on all ranks unless every target has what is wanted. Collective."""
    found = side.memory[: wanted.size]
    job.check(None if job.is_origin else same(f"{side.name}, {operation}", found, wanted))


# -- latency, bandwidth, message rate ----------------------------------------------


def latency(job: Job, rivals: Sequence[Any] = ()) -> None:
    """Put + flush, get and fetch_add, one after another.

    `rivals` are measured beside the windows: they have `memory` and the
    methods `put_flush` and `get` of a Side.
    """
    sizes: list[int] = job.settings["sizes"]
    contestants: list[Any] = [*sides(job, max(sizes) // WORD), *rivals]
    wanted = job.settings.get("operations", ["put + flush", "get", "fetch_add"])
    plan = [(o, s) for o in wanted for s in (sizes if o != "fetch_add" else [WORD])]
    job.expect(len(plan) * job.rounds * len(contestants))
    for seed, (operation, size) in enumerate(plan, 1):
        _latency(job, contestants, operation, pattern(seed, size // WORD))


def _latency(job: Job, contestants: list[Any], operation: str, sent: Array) -> None:
    if operation == "fetch_add":  # rivals have none
        contestants = [each for each in contestants if isinstance(each, Side)]
    seconds = 2e-4 if job.quick else 2e-3
    buffer = sent.copy()
    for each in contestants:
        each.memory[: sent.size] = sent if operation == "get" else 0
        each.added = 0

    def put(side: Side) -> list[float]:
        return per_call(lambda n: side.put_flush(n, buffer, TARGET, 0), seconds)

    def get(side: Side) -> list[float]:
        buffer[:] = -1
        times = per_call(lambda n: side.get(n, buffer, TARGET, 0), seconds)
        if wrong := same(f"{side.name}, get", buffer, sent):
            raise WrongDataError(wrong)
        return times

    def add(side: Side) -> list[float]:
        return per_call(lambda n: side.fetch_add(n, TARGET, 0), seconds)

    turn = {"put + flush": put, "get": get, "fetch_add": add}[operation]
    job.add(operation, job.alternate(contestants, turn), "us", sent.nbytes)
    for side in contestants:
        added = np.array([job.comm.bcast(side.added, ORIGIN)])
        found = added if operation == "fetch_add" else sent
        if isinstance(side, Side):
            check(job, side, operation, found)


def bandwidth(job: Job) -> None:
    """64 operations before a flush, over 64 MiB of memory or less."""
    sizes: list[int] = job.settings["sizes"]
    windows = sides(job, REGION // WORD, own=BURST)
    job.expect(2 * len(sizes) * job.rounds * len(windows))
    for size in sizes:
        _bandwidth(job, windows, size, max(1, min(BURST, REGION // size)))


def _bandwidth(job: Job, windows: list[Side], size: int, depth: int) -> None:
    step = size // WORD
    sent = pattern(size, depth * step)
    received = np.full_like(sent, -1)
    for side in windows:
        if not job.is_origin:
            side.memory[: sent.size] = 0
    at = range(0, sent.size, step)
    out = [(sent[i : i + step], i) for i in at]
    back = [(received[i : i + step], i) for i in at]
    repeat = 2 if job.quick else 4

    def put(side: Side) -> list[float]:
        side.puts(out, TARGET)  # to warm up
        return [once(lambda: side.puts(out, TARGET)) for _ in range(repeat)]

    def get(side: Side) -> list[float]:
        side.gets(back, TARGET)
        received[:] = -1
        times = [once(lambda: side.gets(back, TARGET)) for _ in range(repeat)]
        if wrong := same(f"{side.name}, get", received, sent):
            raise WrongDataError(wrong)
        return times

    amount = float(depth * size)
    job.add(f"put x {depth} + flush", job.alternate(windows, put), "GB/s", size, amount)
    for side in windows:
        check(job, side, "put", sent)
    job.add(f"get x {depth}", job.alternate(windows, get), "GB/s", size, amount)


def rate(job: Job) -> None:
    """64 puts of 8 bytes before a flush."""
    windows = sides(job, BURST)
    sent = pattern(7, BURST)
    blocks = [(sent[i : i + 1], i) for i in range(BURST)]
    job.expect(2 * job.rounds * len(windows))
    seconds = 5e-4 if job.quick else 5e-3

    def loop(call: Callable[[], None]) -> Callable[[int], None]:
        def run(n: int) -> None:
            for _ in range(n):
                call()

        return run

    def put(side: Side) -> list[float]:
        return per_call(loop(lambda: side.puts(blocks, TARGET)), seconds)

    def prepared(side: Side) -> list[float]:
        return per_call(loop(side.prepared(blocks, TARGET)), seconds)

    for operation, turn in (("put", put), ("prepared put", prepared)):
        for side in windows:
            side.memory[:] = 0
        job.comm.Barrier()
        samples = job.alternate(windows, turn)
        job.add(f"{operation} x {BURST} + flush", samples, "M/s", WORD, BURST)
        for side in windows:
            check(job, side, operation, sent)


# -- random updates ------------------------------------------------------------------


class NumpyLoop:
    """The same operations by NumPy, on one array of the origin's own: no ranks, no atomics."""

    name = "NumPy, own array"

    def __init__(self, job: Job, count: int) -> None:
        self._comm = job.comm
        self.memory = np.zeros(count, np.int64)

    def enter(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def leave(self) -> None:
        """Wait for all ranks."""
        self._comm.Barrier()

    def many(
        self, call: str, ranks: Array, offsets: Array, values: Array, out: Array
    ) -> Callable[[], Array]:
        """As Side.many."""
        memory = self.memory

        def put() -> Array:
            memory[offsets] = values
            return out

        def get() -> Array:
            return np.take(memory, offsets, out=out)

        def fetch_add() -> Array:
            np.take(memory, offsets, out=out)
            np.add.at(memory, offsets, values)
            return out

        def accumulate() -> Array:
            np.add.at(memory, offsets, values)
            return out

        return dict(zip(MANY, (put, get, fetch_add, accumulate), strict=True))[call]


def random(job: Job, rival: Callable[[Job, int], Any] = NumpyLoop) -> None:
    """Operations on random words (GUPS): the vectorised calls, and loops of the others' calls.

    Spread over all ranks but the origin. `rival`, called with the job and the
    number of words, is measured beside the windows.
    """
    calls: Sequence[str] = job.settings.get("operations", MANY)
    table = MIB // WORD
    windows = sides(job, table, own=BURST, targets=range(1, job.comm.size))
    contestants = [*windows, rival(job, table)]
    job.expect(len(calls) * job.rounds * len(contestants))
    for call in calls:
        _random(job, contestants, call, table)


def _random(job: Job, contestants: list[Any], call: str, table: int) -> None:
    count: int = job.settings.get("updates", 1024 if job.quick else 4096)
    draw = np.random.default_rng(12345)  # alike on all ranks
    offsets = draw.permutation(table)[:count]  # no word twice: what is fetched is known
    ranks = draw.integers(1, job.comm.size, count)
    values = draw.integers(1, 1 << 40, count)
    initial = pattern(0, table) if call == "get_many" else np.zeros(table, np.int64)
    for each in contestants:
        each.memory[:] = initial[: each.memory.size]
    job.comm.Barrier()
    done = dict.fromkeys((each.name for each in contestants), 0)

    def turn(each: Any) -> list[float]:
        out = np.full(count, -1)
        run = each.many(call, ranks, offsets, values, out)
        times: list[float] = []
        while len(times) < 4:
            start = time.perf_counter_ns()
            fetched = run()
            times.append((time.perf_counter_ns() - start) * 1e-3)
            done[each.name] += 1
            if times[0] > 1e6:
                break  # seconds: the first is not to warm up
        if call in ("get_many", "fetch_add_many"):
            wanted = offsets if call == "get_many" else values * (done[each.name] - 1)
            if wrong := same(f"{each.name}, {call}", fetched, wanted):
                raise WrongDataError(wrong)
        return times[1:] or times

    job.add(f"{call}, {count} words", job.alternate(contestants, turn), "M/s", WORD, count)
    here = ranks == job.comm.rank
    for each in contestants:
        times = job.comm.bcast(done[each.name], ORIGIN)
        wanted = initial.copy()
        if call != "get_many":
            wanted[offsets[here]] = values[here] * (1 if call == "put_many" else times)
        if isinstance(each, Side):
            check(job, each, call, wanted)


# -- progress ------------------------------------------------------------------------


def compute(seconds: float) -> None:
    """Keep a core busy, outside MPI and rmaext."""
    end = time.perf_counter() + seconds
    values = np.linspace(0, 1, 4096)
    while time.perf_counter() < end:
        values = np.sin(values)


ADDED, PUT, GOT = 0, 1, 2  # words of the window
GUARD = 0x0123456789ABCDEF


def progress(job: Job) -> None:
    """Measure the first operation into an absence: the target computes and calls nothing."""
    windows = sides(job, 3)
    for side in windows:
        side.memory[GOT] = GUARD
    wanted: list[str] = job.settings.get("operations", ["put + flush", "get", "fetch_add"])
    number, away, rounds = (5, 0.2, 1) if job.quick else (100, 1.0, 2)
    job.expect(len(wanted) * 2 * rounds * len(windows))
    for name in wanted:
        one = _absences(job, windows, name, 1, away, rounds)
        job.add(f"first {name}, target computes {away:g} s", one, "ms", WORD)
        many = _absences(job, windows, name, number // rounds, 0.01, rounds)
        text = f"first {name}, {number} absences of 10 ms"
        job.add(text, many, "ms", WORD)
        job.add(f"{text}: p95", many, "ms", WORD, percentile=95)
    for side in windows:
        added = job.comm.bcast(side.added, ORIGIN)
        put = int("put + flush" in wanted)
        check(job, side, "words", np.array([added, put, GUARD]))


def _absences(
    job: Job, windows: list[Side], name: str, count: int, away: float, rounds: int
) -> Samples:
    one, out = np.ones(1, np.int64), np.zeros(1, np.int64)
    operations: dict[str, Callable[[Side], None]] = {
        "put + flush": lambda side: side.put_flush(1, one, TARGET, PUT),
        "get": lambda side: side.get(1, out, TARGET, GOT),
        "fetch_add": lambda side: side.fetch_add(1, TARGET, ADDED),
    }
    operation = operations[name]

    def turn(side: Side) -> list[float]:
        times: list[float] = []
        if job.is_origin:
            operation(side)  # connections, grants of locks
        for _ in range(count):
            side.meet()
            if not job.is_origin:
                compute(away)
                continue
            out[:] = 0
            time.sleep(away / 5)  # the target is away by now
            times.append(once(lambda: operation(side)))
            if name == "get" and out[0] != GUARD:
                raise WrongDataError(f"{side.name}, get: {out[0]:#x}, not {GUARD:#x}")
        return times

    return job.alternate(windows, turn, rounds, everywhere=True)


# -- creation ------------------------------------------------------------------------


class Maker:
    """Makes windows of one form."""

    def __init__(self, job: Job, form: str) -> None:
        self.name = form
        self.job = job

    def enter(self) -> None:
        """Wait for all ranks."""
        self.job.comm.Barrier()

    leave = enter

    def make(self) -> float:
        """Make a window, return the time that the last rank took, in us. Collective."""
        comm = self.job.comm
        comm.Barrier()
        start = time.perf_counter_ns()
        side = FORMS[self.name](comm, MIB // WORD)
        taken = (time.perf_counter_ns() - start) * 1e-3
        zero = np.zeros(MIB // WORD, np.int64)
        # MPI's memory is as it comes; rmaext's must be zero, used before or not.
        wrong = same(self.name, side.memory, zero) if "rmaext" in self.name else None
        side.memory[:] = comm.rank + 1
        side.close()
        self.job.check(wrong)
        slowest: float = comm.allreduce(taken, MPI.MAX)
        return slowest


def creation(job: Job) -> None:
    """Make a window of 1 MiB on every rank."""
    makers = [Maker(job, form) for form in job.settings["forms"]]
    job.expect(job.rounds * len(makers))
    for maker in makers:
        maker.make()  # what the first one costs, such as endpoints, is not the window's

    def turn(maker: Maker) -> list[float]:
        return [maker.make() for _ in range(2 if job.quick else 5)]

    samples = job.alternate(makers, turn, everywhere=True)
    job.add(f"window of 1 MiB on each of {job.comm.size} ranks", samples, "ms")


CASES = {
    "latency": latency,
    "bandwidth": bandwidth,
    "rate": rate,
    "random": random,
    "progress": progress,
    "creation": creation,
}
