# SPDX-License-Identifier: BSD-3-Clause
"""The steps of several ranks' TaskQueue, in random orders: support/schedule.py."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.schedule import DYING, Comm, Model, Pause, Schedule

import rmaext
from rmaext.containers import TaskQueue, _ending, _ring, _taskqueue


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
