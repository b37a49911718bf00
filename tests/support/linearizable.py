# SPDX-License-Identifier: BSD-3-Clause
"""Whether recorded calls on one object can have taken effect one after the other.

Wing and Gong's search: some order of the calls, in which none comes before one that had ended
when it began, must give each call the result that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

MAYBE = object()  # the result of a call that an exception has ended: it is done, or not


class Call(NamedTuple):
    """A call on one object, by a clock that all callers share."""

    start: float
    end: float  # math.inf: it has not returned, and may take effect or not
    name: str
    argument: Any
    result: Any


Model = Callable[[Hashable, str, Any], tuple[Any, Hashable]]


def linearizable(calls: Iterable[Call], model: Model, state: Hashable = None) -> bool:
    """Tell whether there is such an order.

    Parameters
    ----------
    calls : iterable of Call
    model : callable
        From a state, a call's name and argument to its result and the next state.
    state : hashable
        At the beginning.
    """
    todo = sorted(calls, key=lambda call: call.start)
    returned = sum(1 << i for i, call in enumerate(todo) if call.end < math.inf)
    seen: set[tuple[int, Hashable]] = set()
    paths = [(0, state)]  # calls that have taken effect, as bits; and the state then
    while paths:
        done, now = paths.pop()
        if done & returned == returned:
            return True
        if (done, now) in seen:
            continue
        seen.add((done, now))
        first_end = math.inf
        for i, call in enumerate(todo):
            if done >> i & 1:
                continue
            if call.start > first_end:
                break  # it began after another, which is left, had ended
            first_end = min(first_end, call.end)
            result, after = model(now, call.name, call.argument)
            if call.end == math.inf or call.result is MAYBE or result == call.result:
                paths.append((done | 1 << i, after))
            if call.result is MAYBE:
                paths.append((done | 1 << i, now))
    return False


def entry(value: Hashable, name: str, argument: Any) -> tuple[Any, Hashable]:
    """Model one key of a dictionary; its value is None while it is not there."""
    if name == "get":
        return value, value
    if name == "set":
        return None, argument
    if name == "pop":
        return value, None
    if name == "setdefault":
        now = argument if value is None else value
        return now, now
    if name == "add":
        before: Any = 0 if value is None else value
        return before, before + argument
    raise ValueError(name)
