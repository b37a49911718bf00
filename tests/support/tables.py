# SPDX-License-Identifier: BSD-3-Clause
"""What tests of `Dict` share: records of calls, and ranks that dawdle between the steps."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rmaext.containers import Dict

from .linearizable import Call, entry, linearizable

STEPS = ("find", "records", "hold", "_lock", "_take_slots", "_apply", "_unlock", "_free")


@contextmanager
def dawdling(table: Dict, seed: int, often: float = 0.05, longest: float = 2e-3) -> Iterator[None]:
    """Make this rank sleep, now and then, after a step of the protocol."""
    slots, rng = table._slots, random.Random(seed)

    def slow(step: Any) -> Any:
        @functools.wraps(step)
        def run(*args: Any, **keywords: Any) -> Any:
            result = step(*args, **keywords)
            if rng.random() < often:
                time.sleep(rng.random() * longest)
            return result

        return run

    for name in STEPS:
        setattr(slots, name, slow(getattr(slots, name)))
    try:
        yield
    finally:
        for name in STEPS:
            delattr(slots, name)


class Recorder:
    """Calls of a table, and how each went, for each key.

    `pack` and `unpack` make values of the table from integers and back.
    """

    def __init__(self, table: Dict, pack: Any = int, unpack: Any = int) -> None:
        self.table, self.pack, self.unpack = table, pack, unpack
        self.calls: list[tuple[Any, Call]] = []

    def call(self, name: str, key: Any, argument: int | None = None) -> None:
        """Make a call and record it."""
        table, pack = self.table, self.pack
        start = time.perf_counter()
        if name == "get":
            result = table.get(key)
        elif name == "pop":
            result = table.pop(key, None)
        elif name == "set":
            result = table[key] = pack(argument)
            result = None
        elif name == "add":
            result = table.add(key, pack(argument))
        else:
            result = table.setdefault(key, pack(argument))
        self.note(start, name, key, argument, result)

    def many(self, name: str, keys: list[Any], arguments: list[int]) -> None:
        """Make a call on many keys, no key twice, and record it for each."""
        start, table = time.perf_counter(), self.table
        if name == "get":
            results = list(table.get_many(keys, self.pack(-1)))
            results = [None if self.unpack(one) == -1 else one for one in results]
        elif name == "set":
            table.set_many(keys, [self.pack(one) for one in arguments])
            results = [None] * len(keys)
        else:
            results = list(table.add_many(keys, [self.pack(one) for one in arguments]))
        for key, argument, result in zip(keys, arguments, results, strict=True):
            self.note(start, name, key, argument, result)

    def note(self, start: float, name: str, key: Any, argument: Any, result: Any) -> None:
        end = time.perf_counter()
        result = None if result is None else self.unpack(result)
        self.calls.append((key, Call(start, end, name, argument, result)))


def failures(histories: list[list[tuple[Any, Call]]]) -> dict[Any, list[Call]]:
    """Return the keys whose calls, of all ranks, are not linearizable, with these."""
    keys = {key for history in histories for key, _ in history}
    bad = {}
    for key in keys:
        calls = [call for history in histories for k, call in history if k == key]
        if not linearizable(calls, entry):
            bad[key] = sorted(calls)
    return bad
