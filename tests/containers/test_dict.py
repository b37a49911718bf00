# SPDX-License-Identifier: BSD-3-Clause
"""`Dict` against a dictionary, on one rank and on several; what it refuses."""

from __future__ import annotations

import itertools
import pickle
import random
import signal
import threading
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from mpi4py import MPI

import rmaext
from rmaext.containers import Dict
from rmaext.containers._dict.hashing import BUSY, FULL
from rmaext.containers._dict.memory import ROOM, SLOTS, Wait
from rmaext.containers._dict.state import entries_and_aside

RECORD = np.dtype([("a", "i4"), ("b", "S3"), ("c", "f8")])
PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)

# how keys and values of each kind are drawn
KEYS = {
    "i8": lambda rng: rng.choice([rng.randrange(-20, 20), rng.randrange(-(2**63), 2**63)]),
    "u4": lambda rng: rng.choice([rng.randrange(40), rng.randrange(2**32)]),
    "i1": lambda rng: rng.randrange(-128, 128),
    "S16": lambda rng: rng.randbytes(rng.choice([1, 1, 8, 16])).rstrip(b"\0"),
    "pair": lambda rng: (rng.randrange(-3, 3), rng.choice([0.5, 1.5, -2.0, 4.0, 1e9, -7.0])),
}
KEY_DTYPES = {"pair": PADDED}
VALUES = {
    "i8": lambda rng: rng.randrange(-(2**40), 2**40),
    "f8": lambda rng: float(rng.randrange(-(2**40), 2**40)),
    "i2": lambda rng: rng.randrange(-50, 50),
    "record": lambda rng: (rng.randrange(99), rng.choice([b"", b"abc", b"8 bytes!"]), rng.random()),
    "object": lambda rng: [rng.randrange(9) for _ in range(rng.randrange(4))],
}
VALUE_DTYPES = {"record": np.dtype([("a", "i8"), ("b", "S8"), ("c", "f8")]), "object": object}
SEEDS = st.integers(0, 2**32)
CAPACITY = 30


def plain(value):
    """Return a value as it was before it was put in."""
    if isinstance(value, np.void):
        return tuple(plain(one) for one in value.item())
    return value.item() if isinstance(value, np.generic) else value


class Machine(RuleBasedStateMachine):
    """A table of few slots, in which entries pass full buckets, and a dictionary."""

    comm = MPI.COMM_SELF
    key_kind = value_kind = ""

    def __init__(self) -> None:
        super().__init__()
        value = VALUE_DTYPES.get(self.value_kind, self.value_kind)
        more = {"max_bytes": 200} if value is object else {}
        key = KEY_DTYPES.get(self.key_kind, self.key_kind)
        self.table = Dict(self.comm, key, value, CAPACITY, **more)
        self.model = {}

    def teardown(self) -> None:
        self.table.close()

    def draw(self, seed, count=1):
        """Draw keys, half of them such that are there."""
        rng, known = random.Random(seed), list(self.model)
        key, value = KEYS[self.key_kind], VALUES[self.value_kind]
        keys = [
            rng.choice(known) if known and rng.random() < 0.5 else key(rng) for _ in range(count)
        ]
        return keys, [value(rng) for _ in range(count)]

    def array(self, values):
        """Return values as an array, one element each."""
        result = np.empty(len(values), self.table.value_dtype)
        for i, value in enumerate(values):
            result[i] = value
        return result

    def full(self, keys):
        return len(self.model.keys() | set(keys)) > CAPACITY

    @rule(seed=SEEDS)
    def set(self, seed):
        (key,), (value,) = self.draw(seed)
        if self.full([key]):
            with pytest.raises(rmaext.CapacityError, match="nothing was changed"):
                self.table[key] = value
        else:
            self.table[key] = value
            self.model[key] = value

    @rule(seed=SEEDS)
    def get(self, seed):
        (key,), _ = self.draw(seed)
        missing = object()
        got = self.table.get(key, missing)
        assert (got is missing) == (key not in self.model) == (key not in self.table)
        if got is missing:
            with pytest.raises(KeyError):
                self.table[key]
        else:
            assert plain(got) == plain(self.table[key]) == self.model[key]

    @rule(seed=SEEDS)
    def pop(self, seed):
        (key,), _ = self.draw(seed)
        if key in self.model:
            assert plain(self.table.pop(key)) == self.model.pop(key)
        else:
            assert self.table.pop(key, "none") == "none"
            with pytest.raises(KeyError):
                del self.table[key]

    @rule(seed=SEEDS)
    def setdefault(self, seed):
        (key,), (value,) = self.draw(seed)
        if not self.full([key]):
            got = self.table.setdefault(key, value)
            assert plain(got) == self.model.setdefault(key, value)

    @rule(seed=SEEDS, count=st.integers(0, 40))
    def set_many(self, seed, count):
        keys, values = self.draw(seed, count)
        if self.full(keys):
            with pytest.raises(rmaext.CapacityError):
                self.table.set_many(self.keys(keys), self.array(values))
        else:
            self.table.set_many(self.keys(keys), self.array(values))
            self.model.update(zip(keys, values, strict=True))

    @rule(seed=SEEDS, count=st.integers(0, 40))
    def add_many(self, seed, count):
        keys, values = self.draw(seed, count)
        if self.value_kind in ("record", "object"):
            with pytest.raises(rmaext.Unsupported, match="no sums"):
                self.table.add_many(self.keys(keys), self.array(values))
        elif self.full(keys):
            with pytest.raises(rmaext.CapacityError):
                self.table.add_many(self.keys(keys), self.array(values))
        else:
            before = self.table.add_many(self.keys(keys), self.array(values))
            for key, value, old in zip(keys, values, before, strict=True):
                assert old == self.model.get(key, 0)
                # sums of i2 wrap around, as NumPy's
                self.model[key] = plain(np.add(self.array([old]), self.array([value]))[0])

    @rule(seed=SEEDS, count=st.integers(0, 40))
    def get_many(self, seed, count):
        keys, (default,) = self.draw(seed, count)[0], self.draw(seed)[1]
        got = self.table.get_many(self.keys(keys), self.array([default])[0])
        assert [plain(one) for one in got] == [self.model.get(key, default) for key in keys]

    @rule()
    def clear(self):
        if len(self.model) > CAPACITY * 2 // 3:
            self.table.clear()
            self.model.clear()

    def keys(self, keys):
        return np.array(keys, self.table.key_dtype)

    @invariant()
    def same(self):
        assert len(self.table) == len(self.model)
        items = {plain(key): plain(value) for key, value in self.table.local_items()}
        assert items == self.model
        lines = self.table._memory.words.local.reshape(-1, 8)
        assert not (lines[:, 0] & 0xFFFFFFFF).any(), "a lock is left"
        entries, aside = entries_and_aside(self.table._memory.head.local[ROOM:])
        assert (entries.sum(), aside.any()) == (len(self.model), False)


PAIRS = [("i8", "i8"), ("u4", "f8"), ("i1", "i2"), ("S16", "record"), ("pair", "object")]
PAIRS += [("pair", "i8"), ("i8", "record"), ("S16", "object")]


@pytest.mark.parametrize(("key", "value"), PAIRS, ids=map("-".join, PAIRS))
def test_as_a_dictionary(key, value):
    machine = type("Kind", (Machine,), {"key_kind": key, "value_kind": value})
    how = {
        "suppress_health_check": list(HealthCheck),
        "deadline": None,
        "phases": [Phase.generate],
        "derandomize": True,
    }
    steps = settings(max_examples=8, stateful_step_count=20, database=None, **how)
    run_state_machine_as_test(machine, settings=steps)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("key", "value"), PAIRS, ids=map("-".join, PAIRS))
def test_as_a_dictionary_for_minutes(key, value):
    machine = type("Kind", (Machine,), {"key_kind": key, "value_kind": value})
    how = {"suppress_health_check": list(HealthCheck), "deadline": None, "phases": [Phase.generate]}
    steps = settings(max_examples=300, stateful_step_count=80, database=None, **how)
    run_state_machine_as_test(machine, settings=steps)


# -- all ranks ---------------------------------------------------------------------


@pytest.mark.parametrize("value", ["i8", "f4", "u1", "c8", "S5", "M8[s]", "c16", RECORD, "?"])
@pytest.mark.parametrize("key", ["i8", "u2", "S16", PADDED], ids=["i8", "u2", "S16", "padded"])
def test_every_rank_finds_what_others_have_set(comm, key, value):
    """Of values of all kinds, by each rank, in one call and one by one."""
    count = 20
    numbers = np.arange(count * comm.size)
    if key == "S16":
        keys = np.array([b"key %d" % i for i in numbers], key)
    elif key is PADDED:
        keys = np.array([(i % 100, i) for i in numbers], key)
    else:
        keys = numbers.astype(key)
    rng = np.random.default_rng(5)
    values = rng.integers(0, 2, (len(numbers), np.dtype(value).itemsize), "u1")
    values = np.array(values.view(value)[:, 0])
    with Dict(comm, key, value, 100 * comm.size) as table:
        mine = slice(count * comm.rank, count * (comm.rank + 1))
        table.set_many(keys[mine], values[mine])
        assert len(table) == len(numbers)
        assert (table.get_many(keys) == values).all()
        assert (table.get_many(keys.reshape(4, -1)) == values.reshape(4, -1)).all()
        for i in (0, len(numbers) - 1):
            assert table[keys[i]] == values[i]
            assert keys[i] in table
        here = table.local_items()
        assert len(here) == (table.rank_of(keys) == comm.rank).sum()
        everything = dict(table.items())
        assert len(everything) == len(numbers)
        table.clear()
        assert len(table) == 0
        assert keys[0] not in table


def test_items(world):
    """They are the same on all ranks, as pairs and as arrays."""
    with Dict(world, "i8", "f8", 1000) as table:
        table.set_many(np.arange(100) + 100 * world.rank, 0.5)
        items = table.items()
        assert sorted(items.key_array) == list(range(100 * world.size))
        assert (
            world.allgather(items.key_array.tobytes()) == [items.key_array.tobytes()] * world.size
        )
        assert len(items) == 100 * world.size
        assert items[0] == (items.key_array[0], 0.5)
        assert items[:3].key_array.tolist() == items.key_array[:3].tolist()
        assert repr(items[:1]).startswith("Items(array([")
        assert sum(len(part) for part in world.allgather(table.local_items())) == len(items)


def test_an_entry_that_moves_is_there_once(monkeypatch):
    """It is removed and made again, in another bucket, between two looks of local_items."""
    with Dict(MPI.COMM_SELF, "i8", "i8", 100) as table:
        table.set_many([1, 2, 3], [10, 20, 30])
        memory = table._memory
        words, records = memory.words.local, memory.records.local
        taken = np.flatnonzero(words >= FULL)[0]
        free = next(at for at in range(words.size) if at % 8 and at // 8 != taken // 8)
        slot = [at // 8 * SLOTS + at % 8 - 1 for at in (taken, free)]
        assert words[free] == 0
        words[free] = BUSY | 1

        def moves(*_):
            records[slot[1]] = records[slot[0]]
            words[free], words[taken] = words[taken], 0

        monkeypatch.setattr(table._slots, "wait", moves)
        assert sorted(table.local_items()) == [(1, 10), (2, 20), (3, 30)]


def test_objects(comm):
    """Any that can be pickled, up to so many bytes."""
    with Dict(comm, "i8", object, 10, max_bytes=100) as table:
        key = 0
        if comm.rank == 0:
            table[1] = {"a": [1, None]}
            table.set_many([2, 3], [None, "text"])
            with pytest.raises(rmaext.CapacityError, match=r"pickled: this table takes 100"):
                table[key] = "x" * 200
            longest = "x" * (100 - len(pickle.dumps("", pickle.HIGHEST_PROTOCOL)))
            with pytest.raises(rmaext.CapacityError):
                table.set_many([2, 4], ["new", longest * 2])
        comm.Barrier()
        assert table[1] == {"a": [1, None]}
        assert table.get_many([2, 3, 9], "default").tolist() == [None, "text", "default"]
        assert table.get(2, "default") is None
        assert key not in table
        assert len(table) == 3


# -- what is refused -----------------------------------------------------------------


@pytest.fixture
def table():
    with Dict(MPI.COMM_SELF, "i4", "i8", 10) as it:
        it[1] = 10
        yield it
        assert dict(it.items()) == {1: 10}


@pytest.mark.parametrize("key", [2**31, -(2**31) - 1, 2**63, 2**70])
def test_keys_that_do_not_fit(table, key):
    for call in (lambda: table[key], lambda: table.get(key), lambda: table.add(key, 1)):
        with pytest.raises(OverflowError, match="key"):
            call()
    with pytest.raises((OverflowError, TypeError)):  # NumPy makes floats of some of them
        table.set_many([1, key], 5)


@pytest.mark.parametrize("key", [1.0, "1", b"1", None, True, (1, 2), [1]])
def test_no_keys(table, key):
    with pytest.raises((TypeError, OverflowError)):
        table[key] = 5
    with pytest.raises((TypeError, OverflowError)):
        table.pop(key)


@pytest.mark.parametrize("value", [1.5, "1", None, 2**63, [1, 2]])
def test_no_values(table, value):
    with pytest.raises((TypeError, OverflowError, ValueError)):
        table[1] = value
    with pytest.raises((TypeError, OverflowError, ValueError)):
        table.add_many([1, 2, 3], value)


def test_a_key_that_is_too_long():
    with Dict(MPI.COMM_SELF, "S4", "i8", 10) as table:
        table[b"abcd"] = 1
        with pytest.raises(ValueError, match="takes 4"):
            table[b"abcde"]
        with pytest.raises(TypeError):
            table["abcd"]
        assert table[b"abcd\0"] == 1


def test_missing_keys(table):
    with pytest.raises(KeyError, match="5"):
        table.get_many([1, 5])
    assert table.get_many([], 0).shape == (0,)
    assert table.add_many([], 1).shape == (0,)
    table.set_many([], [])


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (TypeError, ("f8", "i8", 10)),
        (TypeError, (object, "i8", 10)),
        (TypeError, ("i8", [("a", object)], 10)),
        (TypeError, ("i8", object, 10)),
        (ValueError, ("S300", "i8", 10)),
        (ValueError, ("i8", "i8", 0)),
        (ValueError, ("i8", "i8", -1)),
        (TypeError, ("i8", "i8", 1.5)),
        (TypeError, ("no dtype", "i8", 1)),
    ],
)
def test_tables_that_cannot_be(world, error, arguments):
    """On one rank only: all raise the same, and none has a table."""
    wrong = world.size - 1
    good = ("i8", "i8", 10)
    with pytest.raises(error, match=f"rank {wrong}: "):
        Dict(world, *(arguments if world.rank == wrong else good))
    with Dict(world, *good) as table:
        assert len(table) == 0


@pytest.mark.mpi(min_size=2)
def test_calls_that_do_not_match(world):
    """One rank is in another collective call: an error on all, and they may go on."""
    with Dict(world, "i8", "i8", 10) as table, Dict(world, "i8", "i8", 10) as other:
        with pytest.raises(rmaext.SyncError):
            len(other if world.rank == 0 else table)
        assert len(table) == len(other) == 0


def test_closed(comm):
    table = Dict(comm, "i8", "i8", 10)
    assert "capacity 10" in repr(table)
    table.close()
    table.close()
    assert table.closed
    assert "closed" in repr(table)
    for call in (lambda: table[1], lambda: table.add(1, 1), table.items, table.local_items):
        with pytest.raises(rmaext.ClosedError):
            call()


def test_from_a_signal_handler():
    """Within another call of the table it is refused, and that goes on."""
    with Dict(MPI.COMM_SELF, "i8", "i8", 10) as table:
        caught = []

        def handler(*_):
            try:
                table[1]
            except rmaext.BusyError as exc:
                caught.append(str(exc))

        before = signal.signal(signal.SIGALRM, handler)
        find = table._slots.find

        def interrupted(*arguments):
            signal.raise_signal(signal.SIGALRM)
            return find(*arguments)

        table._slots.find = interrupted
        try:
            table.add(1, 5)
        finally:
            del table._slots.find
            signal.signal(signal.SIGALRM, before)
        assert "signal handler" in caught[0]
        assert table[1] == 5


@pytest.mark.parametrize("given", [None, 0.2])
def test_time_limit(monkeypatch, given):
    """It is that of its windows, whatever the environment says by now."""
    comm = MPI.COMM_SELF.Dup()
    monkeypatch.setenv("RMAEXT_TIMEOUT", "0.3")
    with rmaext.Window.allocate(comm, 1):  # which is when the environment is read
        monkeypatch.setenv("RMAEXT_TIMEOUT", "no number")
        with Dict(comm, "i8", "i8", 10, timeout=given) as table:
            wait = Wait(table._memory, "what never comes")
            with pytest.raises(rmaext.RmaTimeout, match=f"not within {given or 0.3} s"):
                deque(iter(lambda: wait.on([]), None), maxlen=0)
    comm.Free()


def test_threads(world):
    """A thread closes the table, others get ClosedError; nothing hangs."""
    table = Dict(MPI.COMM_SELF, "i8", "i8", 1000)
    ended = []

    def work():
        try:
            for i in itertools.count():
                table.add(i % 50, 1)
        except rmaext.ClosedError:
            ended.append(1)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    while table.get(5, 0) < 3:
        pass
    table.close()
    for thread in threads:
        thread.join(20)
    assert sum(ended) == 3


@pytest.mark.mpi
def test_what_would_look_local(world):
    """Iterating and `if table:` are refused on each rank by itself; nobody waits."""
    with Dict(world, "i8", "f8", 10) as table:
        if world.rank == 0:
            with pytest.raises(TypeError, match=r"local_items\(\)"):
                list(table)
            with pytest.raises(TypeError, match=r"len\(table\) > 0 on all ranks"):
                bool(table)
        assert len(table) == 0
