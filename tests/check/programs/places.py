# SPDX-License-Identifier: BSD-3-Clause
"""Which bytes of another rank operations change, and which ones the mode notes of them.

Each operation writes other bytes than there were, so what has changed is what it touches.
Each rank writes to the right one only, through views that differ from rank to rank.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.compat import Win

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right = (rank + 1) % size
rng = random.Random(rank)
RECORD = np.dtype([("kind", "i1"), ("x", "f8"), ("at", "f4", (2, 3)), ("n", "i2")], align=True)
GAPS = np.dtype({"names": ["a", "b"], "formats": ["i8", "i4"], "offsets": [0, 12], "itemsize": 24})
WRITES = 2 | 4  # and updates
tried = 0


def other(array: Any) -> Any:
    """Return elements of the same dtype, none of whose bytes is the same."""
    data = ~np.frombuffer(np.asarray(array).tobytes(), "u1")
    return data.view(array.dtype).reshape(array.shape)


def span(count: int) -> tuple[int, int]:
    first = rng.randrange(count)
    return first, rng.randrange(first, count) + 1 - first


def put(win: Any, first: int, count: int) -> None:
    win.put(other(win.get(right, first, count)), right, first)


def rput(win: Any, first: int, count: int) -> None:
    win.rput(other(win.get(right, first, count)), right, first).wait()


def replace(win: Any, first: int, count: int) -> None:
    if win.dtype.kind in "if" and win.dtype.itemsize > 1:
        win.accumulate(other(win.get(right, first, count)), right, first, op="replace")
    else:
        put(win, first, count)


def put_many(win: Any, first: int, count: int) -> None:
    at = first + np.array(rng.sample(range(count), min(count, 5)))
    win.put_many(right, at, other(win.get_many(right, at)))


def put_ranges(win: Any, first: int, count: int) -> None:
    at = first + np.array([0, count // 2])
    counts = np.array([count // 2, (count + 1) // 2])
    win.put_ranges(right, at, counts, other(win.get_ranges(right, at, counts)))


def brackets(win: Any, first: int, count: int) -> None:
    shape = win[right].shape
    key = tuple(slice(rng.randrange(n), None, rng.choice([1, 2])) for n in shape)
    win[(right, *key)] = other(win[(right, *key)])


OPERATIONS = (put, rput, replace, put_many, put_ranges, brackets)


def compare(root: Any, first: int, count: int, name: str, act: Callable[[], None]) -> None:
    """Act, and compare what is noted with what changes; elements from `first` on are looked at."""
    global tried
    shadow, noted = root._shadow, []
    note = shadow.note

    def spy(target: int, kind: int, spans: Any, *args: Any, **more: Any) -> Any:
        if target == right and kind & WRITES and args[0] != "load":
            noted.extend(np.arange(*it) for it in spans)
        return note(target, kind, spans, *args, **more)

    before = root.get(right, first, count).tobytes()
    shadow.note = spy
    act()
    root.flush(right)
    shadow.note = note
    after = root.get(right, first, count).tobytes()
    changed = np.flatnonzero(np.frombuffer(before, "u1") != np.frombuffer(after, "u1"))
    found = np.unique(np.concatenate(noted)) - first * root.dtype.itemsize
    assert changed.size, name
    assert found.tolist() == changed.tolist(), f"{name}: {found} noted, {changed} changed"
    tried += 1


def views(win: Any, depth: int) -> Iterator[Any]:
    """Give a window and views of it, and of those."""
    yield win
    if depth:
        least = min(n for n in map(win.size, range(size)) if n)
        if win[right].ndim == 1:
            start = rng.randrange(least)
            yield from views(win.subwindow(start, rng.randrange(start, least) + 1), depth - 1)
        yield from views(win.dup(), depth - 1)
        for name in win.dtype.names or ():
            yield from views(win.field(name), depth - 1)
        if win.dtype == np.float64 and not win._gaps:
            yield from views(win.view("i4"), depth - 1)


def try_all(root: Any, depth: int) -> None:
    for win in views(root, depth):
        for operation in OPERATIONS:
            place = span(win.size(right))
            name = f"{operation.__name__} {place} through {win!r}"
            compare(root, 0, root.size(right), name, lambda o=operation, w=win, p=place: o(w, *p))


def try_pieces(win: Any, first: int, count: int) -> None:
    """The same for windows that have no views; `first` is what the target calls its first."""
    for operation in OPERATIONS[:-1]:
        at, n = span(count)
        name = f"{operation.__name__} {at, n} of {win!r}"
        compare(win, first, count, name, lambda o=operation, a=at, n=n: o(win, first + a, n))


def try_drop_in() -> None:
    unit = 4 * (rank + 1)  # each rank's own
    win = Win.Allocate(60 * unit, unit, comm=comm)
    root, there = win._window, 4 * (right + 1)
    vector = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    win.Lock_all()
    for at in (0, 2, 26):
        for target in (at, (at, 3), (at, 1, vector)):
            name = f"at {target} of elements of {there} bytes"
            acts = (
                lambda data, t: win.Put(data, right, t),
                lambda data, t: win.Rput(data, right, t).Wait(),
                lambda data, t: win.Accumulate(data, right, t, MPI.REPLACE),
            )
            for act in acts:
                data = np.full(24, 1 + tried % 200, "u1").view("f8")
                compare(root, 0, root.size(right), name, lambda a=act, d=data, t=target: a(d, t))
    win.Unlock_all()
    vector.Free()
    win.Free()


with rmaext.Window.allocate(comm, 64) as win:
    try_all(win, 2)
with rmaext.Window.allocate(comm, (rank + 2, 9)) as win:
    try_all(win, 1)
with rmaext.Window.allocate(comm, 9 if rank else 12, RECORD) as win:
    try_all(win, 3)
room = np.zeros(24 * 10, "u1")  # of the program's own, which begins elsewhere on each rank
with rmaext.Window(comm, room[rank * 8 :][: 24 * 9].view(GAPS)) as win:
    try_all(win, 2)
with rmaext.Window(comm, [np.zeros(n + rank) for n in (3, 5, 2)]) as win:
    try_pieces(win, 0, 10 + 3 * right)
with rmaext.Window.dynamic(comm) as win:
    mine = [np.zeros(5), np.zeros(9)]
    for first in map(comm.sendrecv, map(win.attach, mine), [(rank - 1) % size] * 2):
        try_pieces(win, first, 5)
    comm.Barrier()
if not os.environ["RMAEXT_ROUTE"]:
    with rmaext.Window.shared(comm, 5 + rank) as win:
        try_all(win, 1)
try_drop_in()
print("tried", tried)
