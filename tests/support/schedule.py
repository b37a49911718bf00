# SPDX-License-Identifier: BSD-3-Clause
"""The steps of several ranks, in random orders that real ranks take once in a million.

Each rank is a thread, of which one runs at a time: until its next access to memory that others
may use, where a seeded choice says who runs next, and who sleeps for a while. The windows are
arrays; what is atomic in a window is one step here, and nothing else is. If ranks are far from
each other what one puts comes later, in the order in which it was sent. A rank may die at a
step, or a signal handler may raise there.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
import threading
from collections import deque
from types import ModuleType

import numpy as np
import pytest

import rmaext

__all__ = ["DYING", "Comm", "KilledError", "Model", "Pause", "Schedule", "Signal", "planted"]

LIMIT = 30_000  # steps of a run, far more than any takes
# A generator that is closed in a thread that is being ended raises that, too.
DYING = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class KilledError(BaseException):
    """Ends the thread of a rank."""


class Signal(BaseException):
    """What a signal handler raises."""


class Schedule:
    """Who runs when."""

    def __init__(self, size, seed, deaths=None, far=False, signals=0.0):
        self.far, self.wire = far, {}  # what is on its way, by origin and target
        self.signals, self.in_c = signals, [0] * size  # in which share of the steps one comes
        self.threads = []
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
            self._die(rank)
        if rank in self.dead:  # what it does on its way out changes nothing
            raise KilledError
        now = sum(self.steps)
        if now > LIMIT:
            raise AssertionError("it does not end")
        if self.wire and self.dice.random() < 0.4:
            self.deliver(self.dice.choice(sorted(self.wire)), 1)
        if self.dice.random() < 0.08:
            self.asleep[rank] = now + self.dice.randrange(150)
        self._next()
        self.turns[rank].acquire()
        self.handle(rank)

    def handle(self, rank):
        """Let a signal handler raise, perhaps; not in C, nor in another thread of rmaext's."""
        if not self.signals or self.in_c[rank] or threading.current_thread() not in self.threads:
            return
        if self.dice.random() < self.signals:
            raise Signal

    def send(self, origin, target, change):
        """Let a rank change another one's memory: at once, or later."""
        if self.far and origin != target:
            self.wire.setdefault((origin, target), deque()).append(change)
        else:
            change()

    def deliver(self, way, count=None):
        """Let come what is on that way: the first so many, or all."""
        queue = self.wire.get(way, ())
        for _ in range(len(queue) if count is None else count):
            queue.popleft()()
        if not queue:
            self.wire.pop(way, None)

    def _die(self, rank):
        if rank not in self.dead:
            self.dead.add(rank)
            for way in [way for way in sorted(self.wire) if way[0] == rank]:
                self.deliver(way, self.dice.randrange(len(self.wire[way]) + 1))
                self.wire.pop(way, None)  # the rest is lost

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

        self.threads = [
            threading.Thread(target=rank_of, args=(rank,)) for rank in range(len(self.turns))
        ]
        for thread in self.threads:
            thread.start()
        self._next()
        self.over.acquire()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        for way in sorted(self.wire):
            self.deliver(way)


def in_c(method):
    """Return a method that is one call of C: a handler raises before it, or when it is done."""

    @functools.wraps(method)
    def call(self, *arguments):
        rank, schedule = self._comm.rank, self._comm.schedule
        schedule.in_c[rank] += 1
        try:
            result = method(self, *arguments)
        finally:
            schedule.in_c[rank] -= 1
        schedule.handle(rank)
        return result

    return call


class Model:
    """What is of a window here."""

    made: list[dict] = []  # noqa: RUF012 (of the windows of a run, in their order)
    timeout = math.inf

    def __init__(self, comm, arrays, part=slice(None), dtype=None):
        self._comm, self._arrays, self._part = comm, arrays, part
        self.dtype = np.dtype(dtype or arrays[comm.rank].dtype)
        self.local, self.closed = self._of(comm.rank), False

    @classmethod
    def allocate(cls, comm, length, dtype, timeout=None):
        number = comm.windows = comm.windows + 1
        arrays = cls.made[number - 1]
        arrays[comm.rank] = np.zeros(length, dtype)
        arrays["notified", comm.rank] = np.zeros(256, np.int64)
        return cls(comm, arrays)

    def subwindow(self, first, end):
        return Model(self._comm, self._arrays, slice(first, end), self.dtype)

    def view(self, dtype):
        return Model(self._comm, self._arrays, self._part, dtype)

    def _of(self, rank):
        return self._arrays[rank][self._part].view(self.dtype)

    def _step(self, rank):
        """Come to a rank, and behind all that was sent there."""
        self._look(rank)
        self._comm.schedule.deliver((self._comm.rank, rank))
        return self._of(rank)

    def _look(self, rank):
        self._comm.schedule.step(self._comm.rank)
        if rank in self._comm.schedule.dead:
            raise rmaext.PeerLostError(107, f"rank {rank}", rank=rank)

    def _send(self, rank, change):
        self._look(rank)
        self._comm.schedule.send(self._comm.rank, rank, change)

    def _torn(self, size):
        """Cut what is longer than a word in two, in either order."""
        dice = self._comm.schedule.dice
        at = dice.randrange(size // 8) * 8 if size > 8 else 0
        return dice.sample([slice(0, at), slice(at, size)], 2) if at else [slice(size)]

    def size(self, rank):
        return self._of(rank).size

    def route(self, rank):
        return "fabric" if self._comm.schedule.far else "direct"

    def get(self, rank, offset, count, out=None):
        if out is None:
            out = np.empty(count, self.dtype)
        for index in range(count):
            out[index] = self.load(rank, offset + index)
        return out

    def get_many(self, ranks, offsets):
        return np.array([self.load(*place) for place in self._places(ranks, offsets)], self.dtype)

    @in_c
    def put(self, data, rank, offset):
        there, data = self._of(rank)[offset : offset + len(data)].view("u1"), data.copy().view("u1")
        for part in self._torn(data.size):
            self._send(rank, lambda part=part: there.__setitem__(part, data[part]))

    @in_c
    def put_many(self, ranks, offsets, values):
        for (rank, offset), value in zip(self._places(ranks, offsets), values, strict=True):
            self.put(np.array([value], self.dtype), rank, offset)

    @in_c
    def put_notify(self, data, rank, offset, slot):
        self.put(data, rank, offset)
        self._send(rank, lambda: np.add.at(self._arrays["notified", rank], slot, 1))

    rput_notify = put_notify

    def notify_counts(self):
        counts = self._arrays["notified", self._comm.rank].copy()
        self.sync()  # they may be old when they are looked at
        return counts

    def test_notify(self, slot, count=1):
        counts = self._arrays["notified", self._comm.rank]
        there = counts[slot] >= count
        counts[slot] -= count if there else 0
        return there

    def wait_any(self, slots, timeout):
        self.sync()
        for slot in slots:
            if self.test_notify(slot):
                return slot
        if self._comm.schedule.dead:
            raise rmaext.PeerLostError(107, "a rank")
        raise rmaext.RmaTimeout(110, "nothing came")

    @in_c
    def compare_and_swap(self, compare, value, rank, offset):
        array = self._step(rank)
        old = array[offset]
        if old == compare:
            array[offset] = value
        self.sync()  # before what follows, where that is the rank's own memory
        return old

    @in_c
    def compare_and_swap_many(self, ranks, offsets, compare, values):
        places = self._places(ranks, offsets)
        words = [np.broadcast_to(it, len(places)) for it in (compare, values)]
        every = zip(*words, places, strict=True)
        return np.array([self.compare_and_swap(a, b, *place) for a, b, place in every], self.dtype)

    @in_c
    def fetch_op_many(self, ranks, offsets, values, op):
        if op == "no_op":
            return self.get_many(ranks, offsets)
        olds = []
        for place, value in zip(self._places(ranks, offsets), values, strict=True):
            array, offset = self._step(place[0]), place[1]
            olds.append(array[offset])
            array[offset] = value if op == "replace" else array[offset] + value
        return np.array(olds, self.dtype)

    def fetch_add(self, value, rank, offset):
        return self.fetch_op_many(rank, [offset], [value], "sum")[0]

    def fetch_add_many(self, ranks, offsets, values):
        return self.fetch_op_many(ranks, offsets, values, "sum")

    def load(self, rank, offset):
        array, value = self._step(rank), np.empty(1, self.dtype)
        for part in self._torn(self.dtype.itemsize):
            if part.start:  # at another moment
                self._look(rank)
            value.view("u1")[part] = array[offset : offset + 1].view("u1")[part]
        return value[0]

    @in_c
    def accumulate(self, value, rank, offset, op="sum"):
        array, change = self._of(rank), {"max": max, "sum": np.add, "replace": lambda _, new: new}
        self._send(rank, lambda: array.__setitem__(offset, change[op](array[offset], value)))

    @in_c
    def accumulate_many(self, ranks, offsets, values, op="sum"):
        places = self._places(ranks, offsets)
        for place, value in zip(places, np.broadcast_to(values, len(places)), strict=True):
            self.accumulate(value, *place, op)

    def _places(self, ranks, offsets):
        both = np.broadcast_arrays(ranks, offsets)
        return list(zip(*(np.atleast_1d(it).tolist() for it in both), strict=True))

    def flush(self, rank):
        self._step(rank)

    def flush_local(self, rank=None):
        for other in sorted(self._comm.schedule.dead) if rank is None else [rank]:
            self._look(other)

    def fence(self):
        """Nobody is in it while the windows are made."""

    def sync(self):
        self._comm.schedule.step(self._comm.rank)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True


class Pause:
    """One step of the others', at least."""

    def __init__(self, window, what, *ranks):
        self._window = window

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def over(self, end):
        return False

    def next(self, end=math.inf):
        return 0.0

    def wait(self, offset, value, end=math.inf):
        self._window.sync()


class Comm:
    def __init__(self, rank, size, schedule):
        self.rank, self.size, self.schedule, self.windows = rank, size, schedule, 0


def planted(module, old, new):
    """Return a module of which one place is another: its protocol has a fault."""
    text = inspect.getsource(module)
    assert text.count(old) == 1, f"{module.__name__} has its place {text.count(old)} times"
    faulty = ModuleType(module.__name__)
    faulty.__dict__.update(__package__=module.__package__, __file__=module.__file__)
    exec(compile(text.replace(old, new), module.__file__, "exec"), faulty.__dict__)
    return faulty
