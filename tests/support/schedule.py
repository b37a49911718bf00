# SPDX-License-Identifier: BSD-3-Clause
"""The steps of several ranks, in random orders that real ranks take once in a million.

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

__all__ = ["DYING", "Comm", "KilledError", "Model", "Schedule"]

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
        places = zip(ranks.tolist(), np.broadcast_to(offsets, ranks.shape), strict=True)
        return np.array([self.load(rank, offset) for rank, offset in places])

    def load(self, rank, offset):
        return self._step(rank)[offset]

    def accumulate(self, value, rank, offset, op):
        assert op in ("max", "replace")
        array = self._step(rank)
        array[offset] = max(array[offset], value) if op == "max" else value

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


class Comm:
    def __init__(self, rank, size, schedule):
        self.rank, self.size, self.schedule, self.windows = rank, size, schedule, 0
