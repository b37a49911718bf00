# SPDX-License-Identifier: BSD-3-Clause
"""The operations of a window, each of which is noted and then carried out."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from .._memory import arrays
from .._runtime.reports import site
from . import memory as requests
from .clock import BUSY, clock
from .memory import Begun, memory
from .races import FLUSH, READ, REQUEST, RETURN, UPDATE, WRITE
from .shadow import Rows, Shadow
from .spans import Spans, runs, span, strided

__all__ = ["OPERATIONS", "followed", "of_range", "plain", "shadow_of"]

_ORIGINS = ("origin", "value", "values", "compare")
Place = tuple[int, Spans]  # a rank, and bytes of its memory
_ONE_WORD = 8  # bytes of a put that wait_until may wait for


class Operation(NamedTuple):
    """What an operation does, and what ends its access to the target's memory."""

    kind: int
    ends: int


OPERATIONS = {
    "put": Operation(WRITE, FLUSH),
    "get": Operation(READ, RETURN),
    "accumulate": Operation(UPDATE, FLUSH),
    "get_accumulate": Operation(UPDATE, RETURN),
    "fetch_op": Operation(UPDATE, RETURN),
    "fetch_add": Operation(UPDATE, RETURN),
    "compare_and_swap": Operation(UPDATE, RETURN),
    "load": Operation(UPDATE | READ, RETURN),
    "store": Operation(UPDATE, RETURN),
    "put_notify": Operation(WRITE, FLUSH),
    "get_notify": Operation(READ, RETURN),
    "put_many": Operation(WRITE, RETURN),
    "get_many": Operation(READ, RETURN),
    "accumulate_many": Operation(UPDATE, RETURN),
    "fetch_op_many": Operation(UPDATE, RETURN),
    "fetch_add_many": Operation(UPDATE, RETURN),
    "compare_and_swap_many": Operation(UPDATE, RETURN),
    "put_ranges": Operation(WRITE, RETURN),
    "get_ranges": Operation(READ, RETURN),
    "__getitem__": Operation(READ, RETURN),
    "__setitem__": Operation(WRITE, FLUSH),
}
_ALONE = ("fetch_add", "fetch_add_many", "load", "store", "get_notify")  # have no request
OPERATIONS |= {
    f"r{name}": operation._replace(ends=REQUEST)
    for name, operation in OPERATIONS.items()
    if name not in _ALONE and not name.startswith("_")
}
_FETCH = ("fetch", "get_accumulate", "compare_and_swap")  # returns what was there


def shadow_of(window: Any) -> Shadow | None:
    """Return what is kept of a window; None: it is not followed, or this call is not."""
    if BUSY.now:
        return None
    try:
        found: Shadow | None = window._root.__dict__.get("_shadow")
    except AttributeError:  # it is not made yet
        return None
    return found


def plain(value: Any) -> Any:
    """Return a followed array as an ordinary one."""
    return value.view(np.ndarray) if type(value).__name__ == "FollowedArray" else value


def followed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that notes the operation."""
    parameters = [*inspect.signature(original).parameters.values()][1:]
    defaults = {it.name: None if it.default is it.empty else it.default for it in parameters}

    @functools.wraps(original)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        shadow = None if BUSY.noted else shadow_of(self)
        if shadow is None:
            return original(self, *args, **keywords)
        BUSY.now = True
        try:
            given = defaults | dict(zip(defaults, args, strict=False)) | keywords  # right or not
            return operation_on(shadow, self, name, given, original, args, keywords)
        finally:
            BUSY.now = False

    return method


def operation_on(
    shadow: Shadow,
    window: Any,
    name: str,
    given: dict[str, Any],
    original: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Carry out an operation and note it. What is wrong with its arguments is the original's."""
    operation = OPERATIONS[name]
    own = [array for word in _ORIGINS if isinstance(array := given.get(word), np.ndarray)]
    given["out"] = out = plain(given.get("out"))
    args = tuple(map(plain, args))
    keywords = {word: plain(value) for word, value in keywords.items()}
    kind, reads = operation.kind, False
    if kind == UPDATE:
        reads = any(word in name for word in _FETCH)
        if _only_reads(given.get("op")):
            kind |= READ
    since = (clock().now, clock().part)
    if not shadow.quiet:  # the own memory, before it is written to
        begun = Begun(shadow, (name, site()), reads or kind == READ)
        if operation.ends != REQUEST:
            for array in own:
                memory.touch(array, False, name)
    rows = _rows(shadow, window, name, kind, given)
    shadow.publish(rows)
    result = original(window, *args, **keywords)
    if reads or name == "load":
        shadow.learn(rows)
    if shadow.quiet:
        return result
    dtype = str(window._dtype) if kind & UPDATE else ""
    accesses = []
    for rank, spans in _places(window, name, given, result):
        access = shadow.note(
            rank,
            kind,
            spans,
            name if not name.startswith("__") else _index(name),
            ends=REQUEST if name.endswith("put_notify") else operation.ends,
            dtype=dtype,
            since=since,
        )
        if access is not None:
            accesses.append(access)
    if operation.ends == REQUEST:
        begun.accesses, begun.remote = [*accesses], accesses
        requests.begin(result, begun)
        for array in own:
            begun.use(array, False)
        if isinstance(out, np.ndarray):
            begun.use(out, True)
    elif isinstance(out, np.ndarray):
        memory.touch(out, True, name)
    if name.endswith("put_notify"):  # who waits for the notification finds the data
        for access in accesses:
            access.done = int(since[0][access.origin])
    return result


def _index(name: str) -> str:
    return "win[rank, key]" if name == "__getitem__" else "win[rank, key] = ..."


def _only_reads(op: Any) -> bool:
    from mpi4py import MPI

    return op == "no_op" or (isinstance(op, MPI.Op) and op == MPI.NO_OP)


def _places(window: Any, name: str, given: dict[str, Any], result: Any) -> list[Place]:
    """Return what an operation touches; it was carried out, so its arguments are right."""
    if "ranks" in given:
        return of_many(window, given["ranks"], given["offsets"], given.get("counts", 1))
    if "rank" not in given:  # brackets
        key = given["key"] if isinstance(given["key"], tuple) else (given["key"],)
        return of_key(window, key[0], key[1:])
    if given.get("key") is not None:
        key = given["key"] if isinstance(given["key"], tuple) else (given["key"],)
        return of_key(window, given["rank"], key)
    return of_range(window, given["rank"], given["offset"], _count(window, name, given))


def _count(window: Any, name: str, given: dict[str, Any]) -> int:
    if "count" in given:
        if name == "load" and given["count"] is None:
            return 1
        out = window._result(given["out"])
        return int(window._count(name, given["rank"], given["offset"], given["count"], out))
    value = plain(given.get("origin", given.get("value")))
    return int(arrays.origin(value, window._dtype).size)


def _rows(
    shadow: Shadow, window: Any, name: str, kind: int, given: dict[str, Any]
) -> list[tuple[int, int]]:
    """Return where to leave the clock before an operation that others may learn from."""
    if shadow.rows is None or (kind == READ and "notify" not in name):
        return []
    found: list[tuple[int, int]] = []
    with suppress(Exception):  # the original says what is wrong
        if "notify" in name:
            rank = window._rank(given["rank"], name)
            found.append((rank, Rows.SLOT + window._slot(name, given["slot"])))
        for rank, spans in _places(window, name, given, None) if name != "get_notify" else ():
            lone = len(spans) == 1 and spans[0, 1] - spans[0, 0] <= _ONE_WORD
            rank = window._rank(rank, name)
            found += [(rank, row) for row in (shadow.words(spans) if kind & UPDATE or lone else ())]
    return found


# -- which bytes the arguments mean ----------------------------------------------------


def _start(window: Any) -> int:
    """Return where in a rank's memory a view begins: at the same byte on all ranks.

    Of other ranks the records have addresses modulo 64 only.
    """
    root = window._root
    if root is window:
        return 0
    return int(window._records.own.address - root._records.own.address)


def of_range(window: Any, rank: Any, offset: Any, count: int) -> list[Place]:
    """Return elements that follow each other."""
    rank, offset = operator.index(rank), operator.index(offset)
    if rank == window._null:
        return []
    base, unit = _start(window), window._dtype.itemsize
    if not window._gaps:
        return [(rank, span(base + offset * window._stride, count * unit))]
    places = [base + window._byte(index) for index in range(offset, offset + count)]
    return [(rank, runs(places, unit))]


def of_key(window: Any, rank: Any, key: tuple[Any, ...]) -> list[Place]:
    """Return what a key of NumPy's indexing means."""
    rank = operator.index(rank)
    if rank == window._null:
        return []
    part = window._parse("check", rank, key)
    base, unit = _start(window), window._dtype.itemsize
    if part.indices:
        return [(rank, runs(base + part.offsets(1), unit))]
    return [(rank, strided(base + part.first, part.shape, part.steps, unit))]


def of_many(window: Any, ranks: Any, offsets: Any, counts: Any = 1) -> list[Place]:
    """Return many ranges of elements, by rank."""
    whose, first, count = (
        it.reshape(-1) for it in np.broadcast_arrays(*map(np.asarray, (ranks, offsets, counts)))
    )
    found = []
    base, unit = _start(window), window._dtype.itemsize
    for rank in sorted({int(it) for it in whose} - {window._null}):
        mine = whose == rank
        if window._gaps:
            pairs = zip(first[mine], count[mine], strict=True)
            places = [window._byte(int(i) + k) for i, n in pairs for k in range(int(n))]
            found.append((rank, runs(base + np.asarray(places, np.int64), unit)))
        else:
            places = base + first[mine].astype(np.int64) * window._stride
            found.append((rank, runs(places, count[mine].astype(np.int64) * unit)))
    return found
