# SPDX-License-Identifier: BSD-3-Clause
"""The check of histories itself: it takes those that are linearizable, and no others."""

from __future__ import annotations

import math
import random

import pytest
from support.linearizable import Call, entry, linearizable

GOOD = {
    "nothing": [],
    "one after the other": [
        Call(0, 1, "set", 5, None),
        Call(2, 3, "get", None, 5),
        Call(4, 5, "add", 2, 5),
        Call(6, 7, "pop", None, 7),
        Call(8, 9, "get", None, None),
    ],
    "the later one first": [
        Call(0, 9, "get", None, 5),
        Call(1, 2, "set", 5, None),
        Call(0, 8, "add", 1, 5),
        Call(8.5, 8.6, "get", None, 6),
    ],
    "two who make it": [
        Call(0, 5, "setdefault", 1, 2),
        Call(1, 4, "setdefault", 2, 2),
        Call(6, 7, "pop", None, 2),
    ],
    "never returned, took effect": [
        Call(0, math.inf, "set", 1, None),
        Call(1, 2, "get", None, None),
        Call(3, 4, "get", None, 1),
    ],
    "never returned, no effect": [Call(0, math.inf, "set", 1, None), Call(1, 2, "get", None, None)],
}
BAD = {
    "stale": [
        Call(0, 1, "set", 1, None),
        Call(2, 3, "set", 2, None),
        Call(4, 5, "get", None, 1),
    ],
    "lost sum": [
        Call(0, 5, "add", 1, 0),
        Call(1, 4, "add", 1, 0),
        Call(6, 7, "get", None, 1),
    ],
    "popped twice": [
        Call(0, 1, "set", 1, None),
        Call(2, 5, "pop", None, 1),
        Call(3, 4, "pop", None, 1),
    ],
    "back and forth": [
        Call(0, 9, "set", 1, None),
        Call(1, 2, "get", None, 1),
        Call(3, 4, "get", None, None),
    ],
    "both made it": [Call(0, 5, "setdefault", 1, 1), Call(1, 4, "setdefault", 2, 2)],
    "a value of nobody": [Call(0, 1, "set", 1, None), Call(2, 3, "get", None, 3)],
}


@pytest.mark.parametrize("calls", GOOD.values(), ids=GOOD)
def test_good(calls):
    assert linearizable(calls, entry)


@pytest.mark.parametrize("calls", BAD.values(), ids=BAD)
def test_bad(calls):
    assert not linearizable(calls, entry)


@pytest.mark.parametrize("seed", range(20))
def test_of_a_real_order(seed):
    """Calls that took effect at a moment within each are taken, and not with another result."""
    rng = random.Random(seed)
    moments = sorted(rng.random() for _ in range(60))
    value, calls = None, []
    for moment in moments:
        name, argument = rng.choice(["get", "set", "pop", "add", "setdefault"]), rng.randrange(100)
        result, value = entry(value, name, argument)
        length = rng.random() / 10
        calls.append(Call(moment - length * rng.random(), moment + length, name, argument, result))
    rng.shuffle(calls)
    assert linearizable(calls, entry)
    at = next(i for i, call in enumerate(calls) if call.name == "get")
    calls[at] = calls[at]._replace(result=1000)
    assert not linearizable(calls, entry)
