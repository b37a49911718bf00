# SPDX-License-Identifier: BSD-3-Clause
"""The steps of several ranks' Channel, in random orders: support/schedule.py."""

from __future__ import annotations

import random

import pytest
from support.schedule import DYING, Comm, Model, Pause, Schedule, Signal, planted

import rmaext
from rmaext.containers import _channel


class Waits(Pause):
    def __init__(self, window, what, *ranks):
        super().__init__(window, what)
        if ranks:  # of a send
            window._comm.run.waits(window._comm.rank, *ranks)


def modelled(module):
    # the key of each rank, which turns its words, is the same for all
    module.exchange = lambda comm, call, tell, _: [(*tell()[:2], 7 * k) for k in range(comm.size)]
    module.Window, module.Pause, module.MESSAGE = Model, Waits, 40
    return module


class Run:
    """Ranks that send and receive at random; what each has sent and got so far."""

    def __init__(self, module, size, seed, far, deaths=None, signals=0.0):
        self.dice, self.schedule = random.Random(seed), Schedule(size, seed, deaths, far, signals)
        self.capacity, self.raised = self.dice.randint(1, 6), 0
        Model.made[:] = [{}, {}]
        comms = [Comm(rank, size, self.schedule) for rank in range(size)]
        for comm in comms:
            comm.run = self
        self.channels = [module.Channel(comm, "i8", self.capacity) for comm in comms]
        self.sent = [[0] * size for _ in comms]  # as far as the writer has begun, by reader
        self.came = [[0] * size for _ in comms]  # by reader, of each writer
        self.told = {}  # by reader: whom it was told to be lost
        self.ended = set()

    def sends(self, rank, dice):
        to, count = dice.randrange(len(self.sent)), dice.choice([0, 1, 1, 2, 3, 9])
        first = self.sent[rank][to]
        self.sent[rank][to] += count
        try:
            records = [rank << 40 | to << 32 | number for number in range(first, first + count)]
            self.channels[rank].send(records, to)
        except rmaext.PeerLostError as exc:
            self.are_lost({exc.rank, to})
        except Signal:
            self.raised += 1
            self.sent[rank][to] = int(self.channels[rank].sent[to])  # the rest is not sent
        assert self.channels[rank].sent[to] <= self.sent[rank][to]

    def waits(self, rank, to):
        """It has to: so many records are there, or the reader is about to say that it has some."""
        writer, reader = self.channels[rank], self.channels[to]
        taken = self.came[to][rank] + sum(len(it) for who, it in reader._inbox if who == rank)
        if not self.schedule.far and reader._from[rank].place - writer._own[to] < reader._late:
            assert writer.sent[to] - taken >= self.capacity, "a send waits, and there is room"

    def gets(self, rank, got):
        source, records = got
        assert source not in self.told.get(rank, ()), "it comes when its loss was told"
        first = self.came[rank][source]
        numbers = range(first, first + len(records))
        want = [source << 40 | rank << 32 | number for number in numbers]
        assert records.tolist() == want, f"{records} came from rank {source}, not {want}"
        self.came[rank][source] += len(records)
        assert self.came[rank][source] <= self.sent[source][rank], "it was not sent"

    def work(self, rank):
        dice, channel = random.Random(self.dice.random() + rank), self.channels[rank]
        for _ in range(12):
            if dice.random() < 0.6:
                self.sends(rank, dice)
            elif got := self.receive(rank, channel.try_receive):
                self.gets(rank, got)
        self.receive(rank, channel.done)
        while got := self.receive(rank, channel.receive):
            self.gets(rank, got)
        assert channel.ended
        self.ended.add(rank)

    def receive(self, rank, call):
        while True:
            try:
                return call()
            except rmaext.PeerLostError as exc:
                self.are_lost(exc.ranks, self.told.setdefault(rank, set()))
            except Signal:
                self.raised += 1

    def are_lost(self, ranks, told=frozenset()):
        assert self.schedule.dead.issuperset(ranks), "a rank is said to be lost"
        assert not told.intersection(ranks), "told twice"
        told |= {*ranks}

    def explore(self):
        self.schedule.run(self.work)
        dead = self.schedule.dead
        assert self.ended == set(range(len(self.sent))) - dead
        for rank in self.ended:
            assert self.channels[rank]._told == dead & self.unfinished(rank), "nobody was told"
            notified = self.channels[rank]._rings[0]._arrays["notified", rank]
            assert not notified.any(), "it ends, and something has come"
            for source in self.ended:
                want = self.channels[source].sent[rank]
                assert self.came[rank][source] == want, "it ends before all has come"
        return self

    def unfinished(self, rank):
        return {k for k, it in enumerate(self.channels[rank]._from) if it.end is None}


@pytest.fixture
def channel(monkeypatch):
    for name in ("exchange", "Window", "Pause", "MESSAGE"):
        monkeypatch.setattr(_channel, name, getattr(_channel, name))  # which undoes it
    return modelled(_channel)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_orders(channel, size, far):
    for seed in range(30):
        Run(channel, size, seed, far).explore()


@DYING
@pytest.mark.parametrize("far", [False, True])
def test_deaths(channel, far):
    """A rank dies at any step: what it had sent comes, then the others are told, and go on."""
    told = 0
    for seed in range(80):
        told += len(Run(channel, 3, seed, far, {2: 1 + seed * 2}).explore().told)
    assert told > 40


@DYING
@pytest.mark.parametrize("far", [False, True])
def test_signals(channel, far):
    """A handler raises at any step: a send tells how much went, and a receive loses nothing."""
    raised = sum(
        Run(channel, 3, seed, far, {2: seed * 3} if seed % 2 else None, 0.02).explore().raised
        for seed in range(80)
    )
    assert raised > 80


@DYING
def test_a_message_that_is_not_settled_is_found(channel, monkeypatch):
    monkeypatch.setattr(channel.Channel, "_put_settled", lambda *_: None)

    def explored():
        for seed in range(400):
            Run(channel, 3, seed, seed % 2, signals=0.02).explore()

    with pytest.raises((AssertionError, ValueError), match=r"came from|not end|not sent"):
        explored()


SWAPPED = """\
            ring.put(data[:nbytes], rank, first + _WORD)
            ring.put_notify(word, rank, first, slot)
"""
FAULTS = {
    "a message counts before it is there": (
        SWAPPED,
        "".join(reversed(SWAPPED.splitlines(keepends=True))),
        "came from rank",
    ),
    "more is free than was read": (
        "(come.place, source",
        "(come.place + 48, source",
        "not end|came",
    ),
    "a ring's end is written over": (
        "return place + left if left < self._least else place",
        "return place",
        "not end|came",
    ),
    "what has come is not told": ("if come.place - come.freed >= self._late:", "if 0:", "not end"),
    "a send that waits takes nothing in": (
        "            self._take_in()\n            went",
        "            went",
        "not end",
    ),
    "who is lost is looked for after what has come": (
        "while not (self._pop(got) or self._over(lost)):",
        "while not (self._pop(got) or self._over(self._lost())):",
        "loss was told|something has come",
    ),
    "a lost rank is told of again": ("self._told |= {*news}", "pass", "told twice"),
    "a writer that is done is waited for": (
        "            if number in (_DONE, _LEFT):",
        "            if number in (_DONE, _LEFT) and source:",
        "not end|came from",
    ),
    "there is room for one record less": (
        "self._size = (self._capacity + 2)",
        "self._size = self._capacity",
        "there is room",
    ),
}


@DYING
@pytest.mark.parametrize(("old", "new", "said"), FAULTS.values(), ids=FAULTS)
def test_a_broken_protocol_is_found(old, new, said):
    broken = modelled(planted(_channel, old, new))

    def explored():
        for seed in range(400):
            deaths = {2: 1 + seed * 2 % 160} if seed % 2 else None
            Run(broken, 3, seed, seed % 4 > 1, deaths).explore()

    with pytest.raises((AssertionError, ValueError), match=said):
        explored()
