# SPDX-License-Identifier: BSD-3-Clause
"""The steps of several ranks' TaskQueue, in random orders that real ranks take once in a million.

Each rank is a thread, of which one runs at a time: until its next access to memory that others
may use, where a seeded choice says who runs next, and who sleeps for a while. The windows are
arrays; what is atomic in a window is one step here, and nothing else is.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import rmaext
from rmaext.containers import TaskQueue, _ending, _ring, _taskqueue

LIMIT = 30_000  # steps of a run, far more than any takes
# A generator that is closed in a thread that is being ended raises that, too.
DYING = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class KilledError(BaseException):
    """Ends the thread of a rank."""


class Schedule:
    """Who runs when."""

    def __init__(self, size, seed, deaths=None):
        self.dice = random.Random(seed)
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.over = threading.Semaphore(0)
        self.running = set(range(size))
        self.deaths = deaths or {}  # rank: at which of its steps
        self.dead = set()
        self.steps = [0] * size
        self.asleep = [0] * size  # until so many steps of all
        self.errors = []

    def step(self, rank):
        self.steps[rank] += 1
        if self.steps[rank] == self.deaths.get(rank) or self.errors:
            self.dead.add(rank)
        if rank in self.dead:  # what it does on its way out changes nothing
            raise KilledError
        now = sum(self.steps)
        if now > LIMIT:
            raise AssertionError("it does not end")
        if self.dice.random() < 0.08:
            self.asleep[rank] = now + self.dice.randrange(150)
        self._next()
        self.turns[rank].acquire()

    def _next(self):
        if self.running:
            now = sum(self.steps)
            awake = [rank for rank in sorted(self.running) if self.asleep[rank] <= now]
            self.turns[self.dice.choice(awake or sorted(self.running))].release()
        else:
            self.over.release()

    def run(self, function):
        def rank_of(rank):
            self.turns[rank].acquire()
            try:
                function(rank)
            except KilledError:
                pass
            except BaseException as exc:
                self.errors.append(exc)
            finally:
                self.running.discard(rank)
                self._next()

        threads = [
            threading.Thread(target=rank_of, args=(rank,)) for rank in range(len(self.turns))
        ]
        for thread in threads:
            thread.start()
        self._next()
        self.over.acquire()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


class Model:
    """What is of a window here."""

    made: list[dict] = []  # noqa: RUF012 (of the windows of a run, in their order)

    def __init__(self, comm, arrays):
        self._comm, self._arrays = comm, arrays
        self.local = arrays[comm.rank]
        self.dtype, self.closed = self.local.dtype, False

    @classmethod
    def allocate(cls, comm, length, dtype, timeout=None):
        number = comm.windows = comm.windows + 1
        arrays = cls.made[number - 1]
        arrays[comm.rank] = np.zeros(length, dtype)
        return cls(comm, arrays)

    def _step(self, rank):
        self._comm.schedule.step(self._comm.rank)
        if rank in self._comm.schedule.dead:
            raise rmaext.PeerLostError(107, f"rank {rank}", rank=rank)
        return self._arrays[rank]

    def size(self, rank):
        return self._arrays[rank].size

    def route(self, rank):
        return "direct"

    def get(self, rank, offset, count, out):
        for index in range(count):
            out[index] = self._step(rank)[offset + index]

    def compare_and_swap(self, compare, value, rank, offset):
        array = self._step(rank)
        old = array[offset]
        if old == compare:
            array[offset] = value
        self.sync()  # before what follows, where that is the rank's own memory
        return old

    def fetch_op_many(self, ranks, offsets, values, op):
        assert op == "no_op"
        return np.array([self._step(r)[o] for r, o in zip(ranks.tolist(), offsets, strict=True)])

    def accumulate(self, value, rank, offset, op):
        assert op == "max"
        array = self._step(rank)
        array[offset] = max(array[offset], value)

    def accumulate_many(self, ranks, offset, value, op):
        for rank in ranks:
            self.accumulate(value, rank, offset, op)

    def flush_local(self, rank=None):
        for other in sorted(self._comm.schedule.dead) if rank is None else [rank]:
            self._step(other)

    def sync(self):
        self._comm.schedule.step(self._comm.rank)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True


class Pause:
    """One step of the others', at least."""

    def __init__(self, window, what):
        self._window = window

    def __exit__(self, *error):
        pass

    def wait(self, offset, value):
        self._window.sync()


class Comm:
    def __init__(self, rank, size, schedule):
        self.rank, self.size, self.schedule, self.windows = rank, size, schedule, 0


@pytest.fixture(autouse=True)
def modelled(monkeypatch):
    monkeypatch.setattr(_taskqueue, "exchange", lambda comm, call, tell, _: [tell()] * comm.size)
    monkeypatch.setattr(_taskqueue, "Window", Model)
    monkeypatch.setattr(_ending, "Pause", Pause)
    monkeypatch.setattr(_ending, "_LOOK_EVERY", 0)
    monkeypatch.setattr(_ring, "_STEAL", 64)


def explore(size, seed, turns=3, deaths=None):
    """Run some loops in one order; return the ranks that got an error for lost ones."""
    schedule = Schedule(size, seed, deaths)
    Model.made[:] = [{}, {}]
    comms = [Comm(rank, size, schedule) for rank in range(size)]
    queues = [TaskQueue(comm, "i8", 16) for comm in comms]
    dice = random.Random(seed)
    plan = [[dice.randrange(4) * dice.randrange(2) for _ in range(size)] for _ in range(turns)]
    leaves = dice.random() < 0.3 and not deaths
    put, got = [0] * turns, {}
    told = set()

    def work(rank):
        queue, choose = queues[rank], random.Random(seed * 31 + rank)
        for turn in range(turns):
            for number in range(plan[turn][rank]):
                put[turn] += 1
                queue.put([turn << 20 | rank << 10 | number])
            ended = False
            while not ended:
                ended = True
                try:
                    for task in queue:
                        name = int(task)
                        assert name >> 20 == turn, "a task of another loop"
                        got[name] = got.get(name, 0) + 1
                        assert got[name] == 1, "got twice"
                        if name & 1023 < 50 and choose.random() < 0.4:
                            put[turn] += 2
                            queue.put([name + 100, name + 200])
                        for _ in range(choose.randrange(4)):
                            schedule.step(rank)
                        if leaves and choose.random() < 0.2:
                            ended = False
                            break
                except rmaext.PeerLostError as exc:
                    told.update((rank, lost) for lost in exc.ranks)
            if not deaths:
                there = sum(name >> 20 == turn for name in got)
                assert there == put[turn], f"ended early: {there} of {put[turn]}"

    schedule.run(work)
    if not deaths:
        assert len(got) == sum(put)
    return told, schedule


@pytest.mark.parametrize("size", [2, 3, 4])
def test_orders(size):
    for seed in range(40):
        explore(size, seed)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_many_orders(size):
    for seed in range(1000, 6000):
        explore(size, seed)


@DYING
def test_deaths():
    """A rank dies at any step: the others end, are told, and go on."""
    noticed = 0
    for seed in range(60):
        told, schedule = explore(3, seed, deaths={2: 1 + seed * 6})
        assert told <= {(0, 2), (1, 2)}
        assert not told or 2 in schedule.dead
        noticed += len(told)
    assert noticed > 30


@DYING
@pytest.mark.stress
@pytest.mark.timeout(900)
def test_many_deaths():
    for seed in range(1000, 4000):
        explore(4, seed, deaths={3: 1 + seed % 400, 1: 1 + seed % 370})


class AnyEpoch:
    def __eq__(self, other):
        return np.True_

    __hash__ = None


def late(self, victim, word, tasks):
    got = not self._ring.holds() and self._ring.steal(victim, word, tasks)
    if got:
        self._ending.be(idle=False)
    return got


@DYING
@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        pytest.param(np, "array_equal", lambda *words: True, id="one look instead of two"),
        pytest.param(TaskQueue, "_claim", late, id="busy only after the steal"),
        pytest.param(
            _ending,
            "epoch_and_count",
            lambda words: (AnyEpoch(), words & _ring.LARGEST),
            id="thieves of another epoch",
        ),
    ],
)
def test_a_broken_protocol_is_found(monkeypatch, where, name, broken):
    def explored():
        for seed in range(400):
            explore(3, seed)

    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match=r"ended early|another loop"):
        explored()
