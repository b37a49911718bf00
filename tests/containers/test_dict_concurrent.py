# SPDX-License-Identifier: BSD-3-Clause
"""`Dict` while several ranks change the same keys."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest
from support.tables import Recorder, dawdling, failures

from rmaext.containers import Dict
from rmaext.containers._dict.memory import ROOM
from rmaext.containers._dict.state import entries_and_aside

WIDE = np.dtype([("a", "i8"), ("b", "i8"), ("c", "i8")])


def wide(number):
    return np.array((number, number, number), WIDE)[()]


def narrow(value):
    assert value["a"] == value["b"] == value["c"], f"torn: {value}"
    return int(value["a"])


KINDS = {
    "words": ("i8", int, int, ["get", "set", "pop", "setdefault", "add"]),
    "records": (WIDE, wide, narrow, ["get", "set", "pop", "setdefault"]),
    "objects": (object, int, int, ["get", "set", "pop", "setdefault"]),
}


def histories(world, kind, rounds, seed, slowly):
    """Let all ranks call at random, and require that the calls are linearizable."""
    dtype, pack, unpack, names = KINDS[kind]
    rng = random.Random(1000 * seed + world.rank)
    # two buckets at a rank; more keys than are used at once: slots are used again and again
    keys = list(range(6))
    more = {"max_bytes": 50} if dtype is object else {}
    with Dict(world, "i8", dtype, 8, **more) as table:
        recorder = Recorder(table, pack, unpack)
        world.Barrier()
        with dawdling(table, rng.randrange(1 << 30), often=0.1 if slowly else 0):
            for turn in range(rounds):
                number = 1_000_000 * (world.rank + 1) + turn
                if turn % 4:
                    recorder.call(rng.choice(names), rng.choice(keys), number)
                else:
                    some = rng.sample(keys, 3)
                    name = rng.choice([name for name in names if name in ("get", "set", "add")])
                    recorder.many(name, some, [number, number + 1, number + 2])
        world.Barrier()
        everything = world.gather(recorder.calls)
        bad = world.bcast(failures(everything) if world.rank == 0 else None)
        assert not bad, bad
        left = dict(table.items())
        assert all(left[key] == table[key] for key in left)
        world.Barrier()
        for key in keys:
            table.pop(key, None)
        world.Barrier()
        assert len(table) == 0
        assert not table._memory.words.local.any(), "locks, tags or counts are left"
        entries, aside = entries_and_aside(table._memory.head.local[ROOM:])
        assert entries.sum() == 0, "entries are counted"
        assert not aside.any(), "room is left set aside"
        world.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", KINDS)
def test_histories_are_linearizable(world, kind):
    """Rare orders are tried by test_dict_model.py; here it is memory, the network and the GIL."""
    histories(world, kind, 60, 1, slowly=False)


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_many_histories_are_linearizable(world, kind):
    for seed in range(60):
        histories(world, kind, 150, seed, seed % 2 == 1)


def sums(world, turns, many, slowly, pops=True):
    """All add to random keys, and remove some: what was added is there, or was removed."""
    rng = np.random.default_rng(world.rank)
    added = removed = 0
    with Dict(world, "u4", "i8", 200) as table:
        world.Barrier()
        with dawdling(table, world.rank, often=0.2 if slowly else 0):
            for _ in range(turns):
                keys = rng.integers(0, 40, many)
                values = rng.integers(1, 1000, many)
                table.add_many(keys, values)
                added += values.sum()
                if pops:
                    removed += table.pop(rng.integers(0, 40), 0)
        total = world.allreduce(added - removed)
        world.Barrier()
        assert table.items().value_array.sum() == total
        assert sorted(table.items().key_array) == sorted(set(table.items().key_array.tolist()))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("pops", [False, True], ids=["kept", "removed"])
def test_no_sum_is_lost(world, pops):
    sums(world, 20, 50, False, pops)


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(600)
def test_no_sum_is_lost_in_minutes(world):
    for slowly in (False, True):
        sums(world, 1500, 30, slowly)


@pytest.mark.mpi(min_size=2)
def test_one_rank_makes_an_entry(world):
    """Of all that make the same new keys one does; each key is there once."""
    keys = np.arange(64)
    with Dict(world, "i8", "i8", 100) as table:
        for turn in range(4):
            world.Barrier()
            if turn % 2:
                before = table.add_many(keys, 1)
                assert world.allreduce((before == 0).sum()) == 64
            else:
                mine = [int(table.setdefault(key, world.rank)) for key in keys]
                assert world.allgather(mine) == [mine] * world.size
            world.Barrier()
            assert sorted(table.items().key_array) == keys.tolist()
            table.clear()


@pytest.mark.mpi(min_size=2)
def test_a_full_table_churns(world):
    """Entries come and go at 90 % of the capacity: there is always room."""
    capacity, turns = 100, 40
    mine = [(world.rank, i) for i in range(capacity * 9 // 10 // world.size)]
    key = np.dtype("i4,i4")
    with Dict(world, key, "f8", capacity) as table:
        for one in mine:
            table[one] = one[1]
        for turn in range(turns):
            old = mine.pop(turn * 7 % len(mine))
            assert table.pop(old) == old[1]
            new = (world.rank, 1000 + turn)
            table[new] = new[1]
            mine.append(new)
        assert table.get_many(np.array(mine, key)).tolist() == [one[1] for one in mine]
        world.Barrier()
        assert len(table) == world.size * len(mine)


def test_threads_of_a_rank(world):
    """Each adds to the same keys, all sums are there, on whatever ranks."""
    threads, turns = 3, 20
    with Dict(world, "i8", "f8", 50) as table:

        def work():
            for _ in range(turns):
                table.add_many(np.arange(10), 1.0)
                table.pop(77, None)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        world.Barrier()
        assert (table.get_many(np.arange(10)) == threads * turns * world.size).all()
        world.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_with_many_ranks(world):
    """All count the same words."""
    rng = np.random.default_rng(world.rank)
    start = time.monotonic()
    with Dict(world, "S8", "i8", 1000) as table:
        words = np.array([f"word {i}" for i in range(100)], "S8")
        counts = np.zeros(100, int)
        while time.monotonic() < start + 10:
            some = rng.integers(0, 100, 30)
            table.add_many(words[some], 1)
            np.add.at(counts, some, 1)
        total = world.allreduce(counts)
        world.Barrier()
        assert (table.get_many(words, 0) == total).all()
        assert len(table) == np.count_nonzero(total)


@pytest.mark.mpi(min_size=2)
def test_long_values_are_never_torn(world):
    """One rank sets them again and again; what others read is of one set."""
    length, torn, seen = 400_000, 0, set()
    with Dict(world, "i8", f"S{length}", 2 * world.size) as table:
        keys = np.arange(2)
        values = [np.full(2, bytes([n]) * length) for n in range(65, 75)]
        if world.rank == 0:
            table.set_many(keys, values[0])
        world.Barrier()
        end = time.monotonic() + 0.5
        while time.monotonic() < end or (world.rank and not seen):
            if world.rank == 0:
                for value in values:
                    table.set_many(keys, value)
            else:
                for one in table.get_many(keys):
                    data = np.frombuffer(one, "u1")
                    torn += len(data) != length or bool((data != data[0]).any())
                    seen.add(int(data[0]))
        world.Barrier()
    assert not torn
