# SPDX-License-Identifier: BSD-3-Clause
"""The memory model, as litmus tests: many rounds each, outcomes that it forbids are absent.

What is forbidden follows from three sentences. What was flushed is seen by whoever is told
so afterwards, in whatever way. Updates are atomic against each other, and one origin's to one
location apply in order. Whoever sees a notification, or a flag set by an update, sees what
the origin had completed before. Values are chosen so that an old one shows.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import NOTHING, guarded, neighbour, rounds

# How a value is written so that it is in place when the call returns, and how it is read.
WRITE = {
    "put": lambda win, value, rank, i: (win.put(value, rank, i), win.flush(rank)),
    "put, flush all": lambda win, value, rank, i: (win.put(value, rank, i), win.flush_all()),
    "rput": lambda win, value, rank, i: (win.rput(value, rank, i).wait(), win.flush(rank)),
    "accumulate": lambda win, value, rank, i: (
        win.accumulate(value, rank, i, op="replace"),
        win.flush(rank),
    ),
    "fetch_op": lambda win, value, rank, i: win.fetch_op(value, rank, i, op="replace"),
    "put_many": lambda win, value, rank, i: win.put_many(rank, [i], np.array([value])),
}
READ = {
    "get": lambda win, rank, i: int(win.get(rank, i, 1)[0]),
    "rget": lambda win, rank, i: int(win.rget(rank, i, 1).result()[0]),
    "get_many": lambda win, rank, i: int(win.get_many(rank, [i])[0]),
    "fetch_op": lambda win, rank, i: int(win.fetch_op(0, rank, i, op="no_op")),
    "get_accumulate": lambda win, rank, i: int(
        win.get_accumulate(np.zeros(1, "i8"), rank, i, op="no_op")[0]
    ),
}
PAIRS = [
    ("put", "get"),
    ("put", "fetch_op"),
    ("accumulate", "get"),
    ("fetch_op", "fetch_op"),
    ("fetch_op", "get"),
    ("put_many", "get_many"),
    ("rput", "rget"),
    ("put, flush all", "get_accumulate"),
]


class Partners:
    """Ranks 0 and 1, 2 and 3, ... play a litmus test, all pairs at once; an odd one looks on.

    Rank w writes element ``w * rounds + i`` in round i, on the rank `home`.
    """

    def __init__(self, world, rounds, where="third"):
        self.world, self.rounds = world, rounds
        self.other = world.rank ^ 1
        self.plays = self.other < world.size
        self.where = where

    def home(self, writer):
        places = {
            "writer": writer,
            "reader": writer ^ 1,
            "third": ((writer | 1) + 1) % self.world.size,
        }
        return places[self.where]

    def place(self, writer, i):
        return self.home(writer), writer * self.rounds + i

    def __iter__(self):
        """Yield the rounds; the partners start each block of them together."""
        for i in range(self.rounds if self.plays else 0):
            if i % 16 == 0:
                self.world.Sendrecv(b"", self.other, recvbuf=bytearray(), source=self.other)
            yield i

    def outcomes(self, seen):
        """Count what the two of a pair saw in one round, over all pairs. Collective."""
        every = self.world.allgather(seen)
        pairs = zip(every[::2], every[1::2], strict=False)
        return Counter(itertools.chain(*(zip(*pair, strict=True) for pair in pairs)))


# -- two locations ---------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
@rounds(48, 4000)
@pytest.mark.parametrize("where", ["writer", "reader", "third"])
@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_store_buffering(world, write, read, where, rounds):
    """Each writes the one and reads the other: one of them must see the other's."""
    pair, seen = Partners(world, rounds, where), []
    with guarded(world, world.size * rounds, "i8") as win:
        for i in pair:
            WRITE[write](win, 1, *pair.place(world.rank, i))
            seen.append(READ[read](win, *pair.place(pair.other, i)))
        outcomes = pair.outcomes(seen)
        assert not outcomes[0, 0], outcomes
        assert sum(outcomes.values()) == rounds * (world.size // 2)
        assert {*outcomes} <= {(0, 1), (1, 0), (1, 1)}
        win.fence()


@pytest.mark.mpi(min_size=2)
@rounds(48, 4000)
@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_load_buffering(world, write, read, rounds):
    """Each reads the one and then writes the other: not both see what comes later."""
    pair, seen = Partners(world, rounds), []
    with guarded(world, world.size * rounds, "i8") as win:
        for i in pair:
            seen.append(READ[read](win, *pair.place(pair.other, i)))
            WRITE[write](win, 1, *pair.place(world.rank, i))
        outcomes = pair.outcomes(seen)
        assert not outcomes[1, 1], outcomes
        win.fence()


@pytest.mark.mpi(min_size=2)
@rounds(48, 4000)
@pytest.mark.parametrize("where", ["writer", "reader", "third"])
@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_message_passing(world, write, read, where, rounds):
    """One writes x, then y; who sees the new y sees the new x. Both ranks play both parts."""
    pair, seen = Partners(world, 2 * rounds, where), []
    with guarded(world, world.size * 2 * rounds, "i8") as win:
        for i in range(rounds if pair.plays else 0):
            if i % 16 == 0:
                world.Sendrecv(b"", pair.other, recvbuf=bytearray(), source=pair.other)
            WRITE[write](win, 1, *pair.place(world.rank, i))
            WRITE["fetch_op"](win, 1, *pair.place(world.rank, rounds + i))
            y = READ["fetch_op"](win, *pair.place(pair.other, rounds + i))
            seen.append((y, READ[read](win, *pair.place(pair.other, i))))
        outcomes = Counter(itertools.chain(*world.allgather(seen)))
        assert not outcomes[1, 0], outcomes
        win.fence()


@pytest.mark.mpi(min_size=3)
@rounds(60, 3000)
@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_write_to_read_causality(world, write, read, rounds):
    """A writes x; B sees it and sets y; C sees y, and then x too. Each rank is A, B and C."""
    size, rank = world.size, world.rank
    seen = Counter()
    with guarded(world, 2 * size * rounds, "i8") as win:

        def x(a, i):
            return (a + 1) % size, a * rounds + i

        def y(a, i):
            return (a + 2) % size, (size + a) * rounds + i

        for i in range(rounds):
            WRITE[write](win, 1, *x(rank, i))
            a = (rank - 1) % size
            if READ[read](win, *x(a, i)):
                WRITE["fetch_op"](win, 1, *y(a, i))
            a = (rank - 2) % size
            told = READ["fetch_op"](win, *y(a, i))
            seen[told, READ[read](win, *x(a, i))] += 1
        assert not seen[1, 0], seen
        win.fence()


@pytest.mark.mpi(min_size=4)
@rounds(100, 5000)
@pytest.mark.parametrize("read", ["fetch_op", "get"])
def test_two_readers_agree_on_the_order_of_two_writes(world, read, rounds):
    """Independent reads of independent writes."""
    seen = []
    with guarded(world, 2 * rounds, "i8") as win:
        for i in range(rounds if world.rank < 4 else 0):
            if world.rank < 2:
                win.fetch_op(1, world.rank, i, op="replace")
            else:
                first, second = (0, 1) if world.rank == 2 else (1, 0)
                a = READ[read](win, first, i)
                seen.append((a, READ[read](win, second, i)))
        every = world.allgather(seen)
        outcomes = Counter(zip(every[2], every[3], strict=True))
        assert not outcomes[(1, 0), (1, 0)], outcomes
        win.fence()


# -- messages --------------------------------------------------------------------------
# On a ring: each rank fills a region of its right neighbour, tells it, and waits for its left
# one, which is at most world.size - 1 rounds ahead, so that one region more is enough.


def ring(world, length, rounds, tell, wait, dtype="i8", put=True):
    """Play the rounds; the last element of a window is free for a flag."""
    right, regions = neighbour(world), world.size + 1
    with guarded(world, regions * length + 1, dtype) as win:
        flag = regions * length
        wrong = Counter()
        for i in range(1, rounds + 1):
            start = i % regions * length
            if put:
                win.put(np.full(length, i, dtype), right, start)
            tell(win, right, start, i, flag)
            wait(win, i, flag)
            got = win.local[start : start + length]
            own = win.get(world.rank, start, length)
            wrong[bool((got == i).all()), bool((own == i).all())] += 1
        assert wrong == {(True, True): rounds}
        win.fence()


LENGTHS = pytest.mark.parametrize("length", [1, 7, 1000, 40_000])


def until(win, i, flag):
    win.wait_until(flag, ">=", i)


def poll(win, i, flag):
    while win.fetch_op(0, win.comm.rank, flag, op="no_op") < i:
        os.sched_yield()


def flag_by_replace(win, right, start, i, flag):
    win.flush(right)
    win.accumulate(i, right, flag, op="replace")


def flag_by_sum(win, right, start, i, flag):
    win.flush()
    win.fetch_op(1, right, flag, op="sum")


def flag_by_swap(win, right, start, i, flag):
    win.flush(right)
    assert win.compare_and_swap(i - 1, i, right, flag) == i - 1


def flag_by_max(win, right, start, i, flag):
    win.flush_all()
    win.accumulate(i, right, flag, op="max")


@LENGTHS
@rounds(24, 1500)
@pytest.mark.parametrize("wait", [until, poll])
@pytest.mark.parametrize("tell", [flag_by_replace, flag_by_sum, flag_by_swap, flag_by_max])
def test_flag_after_flush(world, tell, wait, length, rounds):
    ring(world, length, rounds, tell, wait)


@LENGTHS
@rounds(24, 1500)
def test_flag_after_unlock(world, length, rounds):
    """unlock completes what was done under the lock, shared or exclusive."""

    def tell(win, right, start, i, flag):
        with win.lock(right, exclusive=i % 2 == 0):
            win.put(np.full(length, i), right, start)
        win.accumulate(i, right, flag, op="replace")

    ring(world, length, rounds, tell, until, put=False)


@LENGTHS
@rounds(24, 1500)
def test_told_by_mpi_after_flush(world, length, rounds):
    left = (world.rank - 1) % world.size

    def tell(win, right, start, i, flag):
        win.flush(right)
        request = world.isend(i, right)
        assert world.irecv(source=left).wait() == i
        request.wait()

    ring(world, length, rounds, tell, lambda *_: None)


@LENGTHS
@rounds(24, 1500)
@pytest.mark.parametrize("before", ["put_notify", "put, then a notification"])
def test_data_is_there_when_its_notification_is(world, length, rounds, before):
    def tell(win, right, start, i, flag):
        slot = i % (world.size + 1)
        if before == "put_notify":
            win.put_notify(np.full(length, i), right, start, slot)
        else:
            win.put(np.full(length, i), right, start)
            win.flush(right)
            win.put_notify(NOTHING, right, 0, slot)

    ring(
        world,
        length,
        rounds,
        tell,
        lambda win, i, flag: win.wait_notify(i % (world.size + 1)),
        put=False,
    )


@rounds(300, 30_000)
@pytest.mark.parametrize("write", ["put", "accumulate", "put_many"])
def test_flag_is_never_ahead_of_the_data(world, write, rounds):
    """A writer that does not wait for its reader, who looks whenever it likes."""
    right, flag = neighbour(world), rounds
    with guarded(world, rounds + 1, "i8") as win:
        sent, now, seen = 0, 0, Counter()
        while sent < rounds or now < rounds:
            if sent < rounds:
                WRITE[write](win, sent + 1, right, sent)
                win.accumulate(1, right, flag)
                sent += 1
            now = int(win.fetch_op(0, world.rank, flag, op="no_op"))
            seen[now] += 1
            assert (win.local[:now] == np.arange(1, now + 1)).all(), (now, seen)
        assert win.local[flag] == rounds
        win.fence()


@rounds(40, 2000)
@pytest.mark.parametrize("length", [1, 3000])
def test_local_stores_are_seen_after_sync(world, length, rounds):
    """Own stores, `sync`, a message: others get what was stored."""
    with guarded(world, length, "i8") as win:
        right, left = neighbour(world), (world.rank - 1) % world.size
        for i in range(1, rounds):
            win.local[:] = i
            win.sync()
            world.Sendrecv(b"", left, recvbuf=bytearray(), source=right)
            assert (win.get(right) == i).all()
            world.Sendrecv(b"", right, recvbuf=bytearray(), source=left)  # all is read
        win.fence()


# -- a third rank ----------------------------------------------------------------------


@rounds(60, 4000)
@pytest.mark.parametrize("length", [1, 5000])
@pytest.mark.parametrize("told", ["notification", "flag", "MPI"])
@pytest.mark.parametrize("home", [0, 1, 2])
def test_third_party_sees_what_was_flushed(world, home, told, length, rounds):
    """A writes to B and flushes, then tells C, which gets from B. Each rank is A, B and C."""
    size, rank = world.size, world.rank
    writer = (rank - 1) % size
    there, here = (rank + home) % size, (writer + home) % size  # where own, the other's lie
    stale = Counter()
    with guarded(world, size * length + 1, "i8") as win:
        flag = size * length
        for i in range(1, rounds + 1):
            win.put(np.full(length, i), there, rank * length)
            win.flush(there)
            if told == "notification":
                win.put_notify(NOTHING, neighbour(world), 0, 5)
                win.wait_notify(5)
            elif told == "flag":
                win.accumulate(i, neighbour(world), flag, op="replace")
                win.wait_until(flag, ">=", i)
            else:
                world.Sendrecv(b"", neighbour(world), recvbuf=bytearray(), source=writer)
            got = win.get(here, writer * length, length)
            stale[int((got < i).sum())] += 1
        assert not stale.keys() - {0}, stale
        win.fence()


@rounds(40, 3000)
def test_third_party_sees_accumulates_after_flush(world, rounds):
    size, rank = world.size, world.rank
    writer = (rank - 1) % size
    there, here = (rank + 1) % size, (writer + 1) % size
    with guarded(world, 400 * size, "i8") as win:
        for i in range(1, rounds + 1):
            win.accumulate(np.ones(400, "i8"), there, 400 * rank)
            win.accumulate(1, there, 400 * rank + 399)
            win.flush(there)
            win.put_notify(NOTHING, neighbour(world), 0, 255)
            win.wait_notify(255)
            got = win.get(here, 400 * writer, 400)
            assert (got[:399] >= i).all()
            assert got[399] >= 2 * i
        win.fence()
        assert win.local[400 * ((rank - 1) % size) + 399] == 2 * rounds
        win.fence()


# -- one location ----------------------------------------------------------------------


@rounds(150, 20_000)
@pytest.mark.parametrize("read", ["fetch_op", "get", "get_accumulate"])
def test_values_of_one_writer_never_go_back(world, read, rounds):
    """Coherence: replaced without a flush in between, read by all ranks, the target's included."""
    home = world.size - 1
    with guarded(world, world.size, "i8") as win:
        last = [0] * world.size
        for i in range(1, rounds + 1):
            win.accumulate(i, home, world.rank, op="replace")
            writer = (world.rank + i) % world.size
            now = READ[read](win, home, writer)
            assert now >= last[writer], (writer, now, last)
            last[writer] = now
        win.fence()
        assert win.get(home).tolist() == [rounds] * world.size
        win.fence()


@rounds(255, 255)
def test_flushed_puts_of_one_writer_never_go_back(world, rounds):
    """One byte, as a put is not atomic."""
    size = world.size
    with guarded(world, size, "u1") as win:
        right, left = neighbour(world), (world.rank - 1) % size
        seen = [0]
        for i in range(1, rounds + 1):
            win.put(i, right, world.rank)
            win.flush(right)
            # what the left neighbour writes lies here
            seen.append(int(win.get(world.rank, left, 1)[0]))
        assert seen == sorted(seen), seen
        win.fence()
        assert win.local[left] == rounds
        win.fence()


@rounds(100, 10_000)
@pytest.mark.parametrize("home", [0, -1])
def test_replaces_of_all_ranks_form_one_chain(world, home, rounds):
    """Each value is replaced once, and each rank's own in the order in which it wrote them."""
    home %= world.size
    with guarded(world, 3, "i8") as win:
        values = [world.rank * rounds + i + 1 for i in range(rounds)]
        olds = [int(win.fetch_op(value, home, 1, op="replace")) for value in values]
        win.fence()
        replaced_by = dict(
            zip(
                itertools.chain(*world.allgather(olds)),
                itertools.chain(*world.allgather(values)),
                strict=True,
            )
        )
        assert len(replaced_by) == rounds * world.size, "a value was replaced twice"
        chain = [0]
        while chain[-1] in replaced_by:
            chain.append(replaced_by.pop(chain[-1]))
        assert not replaced_by
        assert chain[-1] == win.get(home, 1, 1)[0]
        mine = [value for value in chain if value in set(values)]
        assert mine == values
        win.fence()


@rounds(60, 5000)
def test_last_of_many_unflushed_updates_wins(world, rounds):
    """One origin's accumulates to one location apply in order, fetching ones included."""
    right = neighbour(world)
    with guarded(world, 8, "i8") as win:
        for i in range(1, rounds + 1):
            win.accumulate(3 * i, right, 3, op="replace")
            win.accumulate(2, right, 3, op="prod")
            win.accumulate(1, right, 3)
            assert win.fetch_op(-i, right, 3, op="replace") == 6 * i + 1
            win.accumulate(np.full(8, i), right, op="replace")
            assert win.compare_and_swap(i, -i, right, 3) == i
        win.fence()
        assert win.local.tolist() == [rounds] * 3 + [-rounds] + [rounds] * 4
        win.fence()


# -- the origin itself -----------------------------------------------------------------


@rounds(40, 3000)
@pytest.mark.parametrize("length", [1, 8, 600, 50_000])
@pytest.mark.parametrize("write", ["put", "accumulate", "rput"])
@pytest.mark.parametrize("read", ["get", "get_accumulate"])
def test_read_your_writes_after_flush_local(world, write, read, length, rounds):
    """And the origin array is free: what becomes of it then is not sent."""
    right = neighbour(world)
    array = np.empty(length, "i8")
    rounds = max(4, rounds // (1 + length // 10_000))
    with guarded(world, length, "i8") as win:
        stale = Counter()
        for i in range(1, rounds + 1):
            array[:] = i
            if write == "put":
                win.put(array, right)
            elif write == "rput":
                win.rput(array, right)
            else:
                win.accumulate(array, right, op="replace")
            win.flush_local(right) if i % 2 else win.flush_local()
            array[:] = -1
            if read == "get":
                got = win.get(right)
            else:
                got = win.get_accumulate(array, right, op="no_op")
            stale[int((got != i).sum())] += 1
        assert stale == {0: rounds}
        win.fence()
        assert (win.local == rounds).all()
        win.fence()


# -- atomics against atomics -----------------------------------------------------------

UNIT = 1 << 20  # of the count in a word; below it each rank has a bit of its own


@rounds(120, 10_000)
@pytest.mark.parametrize("home", [0, -1])
def test_updates_of_all_kinds_on_one_word(world, home, rounds):
    """None is lost, and each rank finds its own bit as it has left it."""
    home %= world.size
    bit, state, added = 1 << world.rank, 0, 0
    draw = np.random.default_rng([world.rank, rounds])
    long = np.full(700, UNIT)  # bulk
    with guarded(world, 701, "i8") as win:

        def add_by_swap():
            old, seen = None, win.get(home, 350, 1)[0]
            while old != seen:
                old = seen
                seen = win.compare_and_swap(old, old + UNIT, home, 350)
            return seen

        adds = [
            lambda: win.fetch_add(UNIT, home, 350),
            lambda: win.fetch_op(UNIT, home, 350, op="sum"),
            lambda: win.accumulate(UNIT, home, 350, op=MPI.SUM),
            lambda: win.accumulate(long[:3], home, 349),
            lambda: win.accumulate(long, home),
            lambda: win.get_accumulate(long, home)[350],
            lambda: win.get_accumulate(long[:9], home, 345)[5],
            lambda: win.accumulate_many(home, [350], long[:1]),
            lambda: win.fetch_add_many(home, [350], long[:1])[0],
            lambda: win.raccumulate(long[:1], home, 350).wait(),
            lambda: win.rget_accumulate(long[:1], home, 350).result()[0],
            add_by_swap,
        ]
        bits = {
            "bor": (bit, lambda old: 1),
            "band": (~bit, lambda old: 0),
            "bxor": (bit, lambda old: 1 - old),
        }
        for _ in range(rounds):
            kind = int(draw.integers(len(adds) + 6))
            if kind < len(adds):
                old = adds[kind]()
                added += 1
            else:
                op = ("bor", "band", "bxor")[kind % 3]
                operand, after = bits[op]
                if kind % 2:
                    old = win.fetch_op(operand, home, 350, op=op)
                else:
                    old = win.accumulate(operand, home, 350, op=op)
            if old is not None:
                assert bool(int(old) & bit) == bool(state), (kind, old, state)
            if kind >= len(adds):
                state = after(state)
        win.fence()
        word = int(win.get(home, 350, 1)[0])
        assert word // UNIT == world.allreduce(added)
        assert word % UNIT == world.allreduce(state << world.rank)
        assert win.get(home, 700, 1)[0] == 0
        win.fence()


def times_targeted(world, rounds):
    """How often this rank is the target, if rank r's is r + i in round i."""
    turns = itertools.product(range(world.size), range(rounds))
    return sum((rank + i) % world.size == world.rank for rank, i in turns)


@rounds(30, 3000)
@pytest.mark.parametrize("dtype", ["i8", "i1", "f8", "c16", "g"])
def test_bulk_and_single_updates_lose_nothing(world, dtype, rounds):
    """All ranks add to all, arrays and single elements, the own part included."""
    count = 2000
    with guarded(world, count, dtype) as win:
        ones = np.ones(count, dtype)
        for i in range(rounds):
            target = (world.rank + i) % world.size
            win.accumulate(ones, target)
            for k in range(6):
                win.accumulate(ones[0], target, 333 * k)
            win.fetch_op(ones[0], target, 1999)
            win.get_accumulate(ones[:500], target, 1000)
        win.fence()
        times = np.full(count, 1)
        times[333 * np.arange(6)] += 1
        times[1999] += 1
        times[1000:1500] += 1
        hits = sum(
            (rank + i) % world.size == world.rank
            for rank in range(world.size)
            for i in range(rounds)
        )
        assert (win.local == (times * hits).astype(dtype)).all()
        win.fence()


@pytest.mark.parametrize("other", ["subwindow", "dup"])
@rounds(40, 3000)
def test_updates_by_another_name_of_the_window(world, other, rounds):
    """A sub-window and a duplicate take part in the window's atomicity, bulk included."""
    count = 1000
    with guarded(world, count, "i8") as win:
        alias = win.subwindow(0, count) if other == "subwindow" else win.dup()
        ones = np.ones(count, "i8")
        for i in range(rounds):
            target = (world.rank + i) % world.size
            one, two = (win, alias) if (i + world.rank) % 2 else (alias, win)
            one.accumulate(ones, target)
            two.fetch_add(1, target, 500)
            two.accumulate(ones[:3], target, 499)
        win.fence()
        alias.fence()
        hits = sum(
            (rank + i) % world.size == world.rank
            for rank in range(world.size)
            for i in range(rounds)
        )
        want = np.full(count, hits)
        want[499:502] += [hits, 2 * hits, hits]
        assert (win.local == want).all()
        alias.close()
        win.fence()
