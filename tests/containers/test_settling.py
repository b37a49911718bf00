# SPDX-License-Identifier: BSD-3-Clause
"""Published.settled: True once all are done and have seen the newest, and not before."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from mpi4py import MPI
from support.jobs import passes
from support.schedule import DYING, Comm, Model, Schedule

import rmaext
from rmaext.containers import Published
from rmaext.containers._settling import WORDS, Settling

# -- in any order of steps ---------------------------------------------------------------


class Watched:
    """Ranks that publish because others do, or for themselves, and what they have said so far."""

    def __init__(self, size, seed, deaths=None):
        self.schedule, self.size = Schedule(size, seed, deaths), size
        Model.made[:] = [{}]
        comms = [Comm(rank, size, self.schedule) for rank in range(size)]
        self.words = [Model.allocate(comm, 1 + WORDS, int) for comm in comms]
        self.each = [Settling(*both, 0, 2, 1) for both in zip(self.words, comms, strict=True)]
        self.said = [(False, {}, 0)] * size  # done, seen, and its own version then
        self.held = False  # at some moment all were done, with the newest
        self.lost, self.ended = [], 0

    def newest(self, rank):
        return int(self.words[rank].local[0]) >> 2

    def say(self, rank, done, seen):
        """Note what a rank says, or publishes, and whether it now holds that all are done."""
        self.said[rank] = done, dict(seen), self.newest(rank)
        self.held |= all(
            ok and own == self.newest(k) and all(v == self.newest(j) for j, v in have.items())
            for k, (ok, have, own) in enumerate(self.said)
        )

    def publish(self, rank):
        self.schedule.step(rank)
        self.words[rank].local[0] += 4
        self.say(rank, False, {})

    def work(self, rank, dice):
        """Iterate until it is settled."""
        reads = [k for k in range(self.size) if k != rank and dice.random() < 0.7]
        more, doubts = dice.randrange(6), dice.randrange(3)
        seen, done = {}, False
        while True:
            self.say(rank, done, seen)
            if self.each[rank].look(done, *np.array([list(seen), list(seen.values())], int)):
                break
            for k in reads:
                self.schedule.step(rank)
                version, before = self.newest(k), seen.get(k, 0)
                if version > before and more and dice.random() < 0.7:  # it is upset by that
                    done = False
                seen[k] = version
            if not done and more and dice.random() < 0.8:
                more -= 1
                self.publish(rank)
            elif done and doubts and dice.random() < 0.3:  # by itself
                doubts -= 1
                done = False
            else:
                done = done or dice.random() < 0.3
            for _ in range(dice.randrange(3)):
                self.schedule.step(rank)
        assert self.held, "settled while some were not"
        if dice.random() < 0.5:  # what is published later changes nothing
            self.publish(rank)
        assert self.each[rank].look(False, *np.empty((2, 0), int))
        self.ended += 1


def explore(size, seed, deaths=None):
    """Run one order of steps."""
    ranks = Watched(size, seed, deaths)

    def work(rank):
        try:
            ranks.work(rank, random.Random(seed * 31 + rank))
        except rmaext.PeerLostError as exc:
            ranks.lost.append(exc.rank)

    ranks.schedule.run(work)
    assert set(ranks.lost) <= ranks.schedule.dead
    return ranks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_orders(size):
    for seed in range(60):
        assert explore(size, seed).ended == size


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_many_orders(size):
    for seed in range(1000, 6000):
        assert explore(size, seed).ended == size


@DYING
def test_deaths():
    """The others end, by PeerLostError or since all were done; and none is left waiting."""
    lost = 0
    for seed in range(60):
        ranks = explore(3, seed, deaths={2: 1 + seed * 2})
        assert len(ranks.lost) + ranks.ended == 3 - (2 in ranks.schedule.dead)
        lost += len(ranks.lost)
    assert lost > 60


def one_count(settling):
    def look(*arguments):
        counts = []

        def count():
            counts.append(counts[0] if counts else Settling._count(settling))
            return counts[-1]

        settling._count = count
        return Settling._all(settling, *arguments)

    settling._all = look


def unread(settling):
    look = settling._all
    settling._all = lambda ranks, versions: look(ranks[:0], versions[:0])


def certain(settling):
    def look(*arguments):
        settling._is_done = False
        return Settling.look(settling, *arguments)

    settling.look = look


# One count is wrong in one of 17,000 orders: after a change of the steps, look for another.
@pytest.mark.parametrize(("broken", "seed"), [(one_count, 7814), (unread, 0), (certain, 0)])
def test_a_broken_protocol_is_found(monkeypatch, broken, seed):
    """One count instead of two; what is not read yet, or is taken back, does not count."""
    init = Settling.__init__

    def made(self, *arguments):
        init(self, *arguments)
        broken(self)

    monkeypatch.setattr(Settling, "__init__", made)

    def explored():
        for number in range(seed, seed + 400):
            explore(3, number)

    with pytest.raises(AssertionError, match="settled while"):
        explored()


# -- for real --------------------------------------------------------------------------------


def iterate(state, comm, mine, tolerance=1e-9):
    """Solve x = 0.4 (left + right) + mine, each rank at its own pace; return how often it read."""
    around = {(comm.rank + step) % comm.size for step in (-1, 1)}
    x, done, seen, turns = 0.0, False, {}, 0
    while not state.settled(done, seen):
        turns += 1
        got = 0.0
        for rank in around:
            seen[rank], part = state.read(rank)
            got += 0.8 / len(around) * float(part)
        done = abs(got + mine - x) < tolerance
        if not done:
            x = got + mine
            state.publish(x)
            time.sleep(1e-4 * comm.rank)  # so that some are done, and are not any more
    return turns


def test_an_iteration(comm):
    """The versions that are the newest when it is settled solve it, on all ranks alike."""
    for turn in range(5):
        with Published(comm, ()) as state:
            mine = float(turn + comm.rank)
            assert iterate(state, comm, mine) > 0
            x = [float(state.read(rank)[1]) for rank in range(comm.size)]
            around = {(comm.rank + step) % comm.size for step in (-1, 1)}
            want = 0.8 / len(around) * sum(x[rank] for rank in around) + mine
            assert abs(x[comm.rank] - want) < 2e-9
            assert len(set(comm.allgather(tuple(x)))) == 1
            state.publish(0.0)
            assert state.settled(False, {})  # for good


def test_it_waits_for_all(comm):
    """While one rank is not done nobody is told so, and it takes that back as often as it likes."""
    with Published(comm, ()) as state:
        for turn in range(6):
            last = turn % comm.size == comm.rank
            assert not state.settled(not last, {})
            comm.Barrier()
            assert not state.settled(not last, {})
            comm.Barrier()
            assert not state.settled(False, {})  # all take it back
            comm.Barrier()
        end = time.monotonic() + 20
        while not state.settled(True, {}):
            assert time.monotonic() < end
        comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_what_is_not_read_yet(world):
    """All are done, but one with an old version."""
    with Published(world, ()) as state:
        if world.rank == 0:
            state.publish(1.0)
        world.Barrier()
        seen = {0: 0} if world.rank == world.size - 1 else {}
        for _ in range(3):
            assert not state.settled(True, seen)
            world.Barrier()
        end = time.monotonic() + 20
        while not state.settled(True, dict.fromkeys(seen, 1)):
            assert time.monotonic() < end
        world.Barrier()


def test_wrong_arguments(comm):
    with Published(comm, ()) as state:
        for seen, error in [
            ({comm.size: 0}, rmaext.BoundsError),
            ({-1: 0}, rmaext.BoundsError),
            ({0.5: 0}, TypeError),
            ({0: 0.5}, TypeError),
            ({0: "new"}, TypeError),
            ({0: 1 << 70}, OverflowError),
        ]:
            with pytest.raises(error):
                state.settled(False, seen)
        with pytest.raises(ValueError, match="rank 0 has published no version 3 yet"):
            state.settled(True, {0: 3})
        with pytest.raises(TypeError, match="mapping"):
            state.settled(True, [0])
        comm.Barrier()
    with pytest.raises(rmaext.ClosedError):
        state.settled(True, {})


def test_in_a_signal_handler():
    with Published(MPI.COMM_SELF, ()) as state:
        look, caught = state._settling.look, []

        def interrupted(*arguments):
            with pytest.raises(rmaext.BusyError) as info:
                state.settled(True, {})
            caught.append(info.value)
            return look(*arguments)

        state._settling.look = interrupted
        assert state.settled(True, {})
        assert len(caught) == 1


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_many_ranks(world):
    with Published(world, ()) as state:
        iterate(state, world, 1.0)
        x = [float(state.read(rank)[1]) for rank in range(world.size)]
        assert np.allclose(x, 5.0, atol=1e-7)


@pytest.mark.parametrize("where", [(), ("nodes",)], ids=" ".join)
def test_a_rank_that_is_killed(where):
    program = "containers/programs/published_faults.py"
    passes(3, program, "unsettled", *where, oks=2, survive=True, timeout=60)
