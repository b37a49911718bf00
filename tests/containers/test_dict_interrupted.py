# SPDX-License-Identifier: BSD-3-Clause
"""A signal handler raises anywhere in a call of a `Dict`: nobody else waits because of it."""

from __future__ import annotations

import gc
import os
import sys
import time

import numpy as np
import pytest
from support.bytecodes import is_place

import rmaext
from rmaext.containers import Dict
from rmaext.containers._dict.hashing import BUSY, FULL
from rmaext.containers._dict.memory import ACTIVE, ROOM, SLOTS
from rmaext.containers._dict.state import entries_and_aside

HERE = f"{os.path.dirname(rmaext.__file__)}{os.sep}"
WIDE = np.dtype([("a", "i8"), ("b", "i8")])


class Cut(Exception):
    """As from a signal handler."""


def cut(call, step=0):
    """Make a call that is cut off before its bytecode number `step`; return how many it made."""
    left = step

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and is_place(frame):
            left -= 1
            if left == 0:
                raise Cut
        return trace

    gc.disable()  # what is raised in a finalizer is lost
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Cut:
        assert step
    else:
        assert left, "what the handler raised is lost"
    finally:
        sys.settrace(before)
        gc.enable()
    return step - left


def left_behind(table):
    """Require that the memory of all ranks has entries, and nothing of a call under way."""
    memory = table._memory
    for rank in range(memory.size):
        lines = memory.words.get(rank).reshape(-1, SLOTS + 1)
        assert not (lines[:, 0] & 0xFFFFFFFF).any(), "a lock"
        tags = lines[:, 1:]
        assert not ((tags & BUSY) != 0).any(), "a slot"
        slots = np.flatnonzero(tags >= FULL)
        passed = np.zeros(memory.buckets, np.int64)
        if slots.size:
            records = memory.records.get_many(rank, slots).view(np.uint64)
            words = records.reshape(len(slots), -1)[:, : memory.keys.words]
            homes = memory.keys.query(words, memory.size, memory.buckets).homes
            for home, slot in zip(homes.tolist(), slots.tolist(), strict=True):
                while home != slot // SLOTS:
                    passed[home] += 1
                    home = (home + 1) % memory.buckets
        assert (lines[:, 0] >> 32 == passed).all(), "a count of those that passed"
        entries, aside = entries_and_aside(memory.head.get(rank, ROOM, memory.size))
        assert not aside.any(), "room"
        assert entries.sum() == len(slots), "the number of entries"
    assert memory.head.local[ACTIVE] % 2 == 0, "a section"


def crowded(table, rank):
    """Return keys of one home bucket: more than it has slots."""
    memory = table._memory
    keys = np.arange(20_000)
    query = memory.keys.query(memory.keys.read(keys)[1], memory.size, memory.buckets)
    there = keys[(query.ranks == rank) & (query.homes == query.homes[query.ranks == rank][0])]
    return there[: SLOTS + 3].tolist()


def put_back(table, keys, value):
    """Let the even ones of the keys be there, and no other."""
    for key in keys[1::2]:
        table.pop(key, None)
    table.set_many(keys[::2], np.repeat(value, len(keys[::2])))


CALLS = {
    "get": lambda table, keys, value: table.get(keys[0]),
    "get_many": lambda table, keys, value: table.get_many(keys[::2]),
    "set": lambda table, keys, value: table.__setitem__(keys[0], value),
    "set, new": lambda table, keys, value: table.__setitem__(keys[1], value),
    "setdefault": lambda table, keys, value: table.setdefault(keys[1], value),
    "add, new": lambda table, keys, value: table.add(keys[1], value),
    "add_many": lambda table, keys, value: table.add_many(keys, np.repeat(value, len(keys))),
    "set_many": lambda table, keys, value: table.set_many(keys, np.repeat(value, len(keys))),
    "pop": lambda table, keys, value: table.pop(keys[0]),
    "local_items": lambda table, keys, value: table.local_items(),
}


def possible(name, there, old, new):
    """Return what a key's value may be after the call, done or not done; None: it is not there."""
    before = {old} if there else {None}
    if name in ("get", "get_many", "local_items"):
        return before
    if name == "pop":
        return before | {None}
    if name.startswith("add"):
        return before | {old + new if there else new}
    return before | {new}


def every(world, name, dtype, places):
    """Cut off a call of rank 0 at so many places; then it computes, and the others go on."""
    if dtype == WIDE:
        old, new = (np.array((n, n), WIDE)[()] for n in (10, 7))
    else:
        old, new = 10, 7
    plain = (lambda v: None if v is None else v["a"] + 0) if dtype == WIDE else (lambda v: v)
    with Dict(world, "i8", dtype, 60 * world.size, timeout=8) as table:
        # others at home are in the way of these
        keys = crowded(table, world.size - 1)
        if world.rank == 0:
            for part in range(places):
                put_back(table, keys, old)
                if not part:
                    last = cut(lambda: CALLS[name](table, keys, new))
                    assert last > 200
                    put_back(table, keys, old)
                cut(lambda: CALLS[name](table, keys, new), 1 + part * last // places)
                left_behind(table)
                for row, key in enumerate(keys):
                    here = {10 if row % 2 == 0 else None}
                    if key in keys[:2] or name.endswith("many"):
                        here = possible(name, row % 2 == 0, 10, 7)
                    found = plain(table.get(key))
                    assert found in here, f"part {part}: key {row}: {found}, not of {here}"
            put_back(table, keys, old)
            cut(lambda: CALLS[name](table, keys, new), 300)
        world.Barrier()
        if world.rank == 0 and world.size > 1:
            done = world.irecv(source=1)
            while not done.test()[0]:
                time.sleep(0.01)  # in no call of rmaext
        elif world.rank == 1:
            start = time.monotonic()
            for key in keys:
                table.get(key)
                table[key] = new
                table.pop(key)
            assert time.monotonic() - start < 7, "it has waited for the rank that was cut off"
            world.send(None, 0)
        world.Barrier()
        assert len(table) == 0 if world.size > 1 else True


NARROW = [name for name in CALLS if name not in ("local_items",)]
BROAD = [name for name in CALLS if not name.startswith("add")]


@pytest.mark.pair
@pytest.mark.parametrize("name", NARROW)
def test_words(world, name):
    every(world, name, "i8", 10)


@pytest.mark.pair
@pytest.mark.parametrize("name", BROAD)
def test_records(world, name):
    every(world, name, WIDE, 8)


@pytest.mark.stress
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("wide", [False, True], ids=["words", "records"])
def test_every_step(world, wide):
    for name in BROAD if wide else NARROW:
        every(world, name, WIDE if wide else "i8", 4000)
