# SPDX-License-Identifier: BSD-3-Clause
"""Interrupted: the calls of containers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from support.interrupted import Case
from synchronisation import Collective

from rmaext.containers import Dict, Published, Store, TaskQueue

world = MPI.COMM_WORLD


class OnDict(Case):
    """A call for key 0 to 7, whose values are 10 before: they are changed, or not."""

    inside = False

    def __init__(self, name: str, call: Callable[[Any], Any], *after: Any) -> None:
        self.name, self._call, self._after = f"Dict.{name}", call, after

    def open(self) -> None:
        self.table = Dict(world, "i8", "i8", 64)

    def close(self) -> None:
        self.table.close()

    def ready(self, k: int) -> None:
        if world.rank == 0:
            self.table.set_many(np.arange(8), np.full(8, 10))

    def call(self) -> Any:
        return self._call(self.table)

    def theirs(self) -> Any:
        """Every call, on the same keys but without changing them, and on others."""
        table, own = self.table, 100 + world.rank
        table.get_many(np.arange(8), -1)
        table[own] = 5
        assert table.add(own, 1) == 5
        assert table.setdefault(own, 0) == 6
        assert table.pop(own) == 6
        assert own not in table
        for key in range(8):
            table.add(key, 0) if key in table else None
        table.set_many([own, own + 50], [1, 2])
        assert table.pop(own + 50) == 2
        del table[own]
        len(list(table.local_items()))

    def state(self) -> list[int]:
        return self.table.get_many(np.arange(8), -1).tolist()

    def after(self, done: bool, theirs: list[Any]) -> None:
        before, state = [10] * 8, self.state()
        once, *more = self._after
        twice = more[0] if more else once
        # calls of many keys do one after the other
        for was, now, then in zip(before, state, once, strict=True):
            assert now in ([then] if done else [was, then]), state
        self.ready(0)
        self.call()
        assert self.state() == once, self.state()
        assert twice
        for key in range(8, 64):
            self.table.pop(key, None)


def dicts() -> Iterator[Case]:
    same = [10] * 8
    keys = np.arange(8)

    def delete(table: Any) -> None:
        del table[0]

    def put(table: Any) -> None:
        table[0] = 3

    def new(table: Any) -> None:
        table[20] = 3

    yield OnDict("get", lambda t: t.get(0), same)
    yield OnDict("[]", lambda t: t[0], same)
    yield OnDict("in", lambda t: 0 in t, same)
    yield OnDict("[]=", put, [3, *same[1:]])
    yield OnDict("[]= new", new, same)
    yield OnDict("del", delete, [-1, *same[1:]])
    yield OnDict("setdefault", lambda t: t.setdefault(0, 5), same)
    yield OnDict("setdefault new", lambda t: t.setdefault(20, 5), same)
    yield OnDict("pop", lambda t: t.pop(0), [-1, *same[1:]])
    yield OnDict("pop none", lambda t: t.pop(21, None), same)
    yield OnDict("add", lambda t: t.add(0, 1), [11, *same[1:]])
    yield OnDict("add new", lambda t: t.add(20, 1), same)
    yield OnDict("get_many", lambda t: t.get_many(keys), same)
    yield OnDict("set_many", lambda t: t.set_many(keys, 3), [3] * 8)
    yield OnDict("add_many", lambda t: t.add_many(keys, 1), [11] * 8)
    yield OnDict("rank_of", lambda t: t.rank_of(keys), same)
    yield OnDict("local_items", lambda t: list(t.local_items()), same)


class OnQueue(Case):
    """A task is put or got once; tasks of an interrupted loop are those of the next."""

    inside = False

    def __init__(self, name: str, loop: bool) -> None:
        self.name, self.loop = name, loop

    def open(self) -> None:
        self.queue = TaskQueue(world, "i8", 64)

    def close(self) -> None:
        self.queue.close()

    def ready(self, k: int) -> None:
        self.got: list[int] = []
        if self.loop:
            self.queue.put(100 * world.rank + np.arange(8))
        world.Barrier()  # else one loop ends before others begin

    def call(self) -> Any:
        if not self.loop:
            self.queue.put(np.arange(8))
            return
        for task in self.queue:
            self.got.append(int(task))
            if len(self.got) == 3:  # the loop would wait for all ranks to come to its end
                break

    def drain(self) -> None:
        for task in self.queue:
            self.got.append(int(task))

    def theirs(self) -> Any:
        if not self.loop:
            # whoever has computed tells so: these are the tasks of all that are not held here
            self.queue.put([100 * world.rank])
            return None
        for task in self.queue:
            self.got.append(int(task))
            if len(self.got) == 3:
                break
        return None

    def after(self, done: bool, theirs: list[Any]) -> None:
        if self.loop:
            return
        self.put_done = done

    def again(self) -> Any:
        self.drain()
        return self.got

    def agree(self, results: list[Any]) -> None:
        found = sorted(task for got in results for task in got)
        if self.loop:
            once = sorted(100 * rank + k for rank in range(world.size) for k in range(8))
            # one that the loop's body had, when it was interrupted, may be lost with it
            assert found == once or (len(found) >= len(once) - 1 and set(found) <= set(once)), found
        else:
            others = [100 * rank for rank in range(1, world.size)]
            whole = sorted([*range(8), *others])
            assert found in ([whole] if self.put_done else [whole, others]), found


class OnPublished(Case):
    """A version is published or not; a reader gets the newest that is whole."""

    inside = False

    def __init__(self, name: str, read: bool) -> None:
        self.name, self.read = name, read

    def open(self) -> None:
        self.published = Published(world, 8, "i8")
        self.last = 0

    def close(self) -> None:
        self.published.close()

    def ready(self, k: int) -> None:
        self.k = k
        if self.read:
            self.published.publish(np.full(8, k))

    def call(self) -> Any:
        if self.read:
            return self.published.read(1)
        return self.published.publish(np.full(8, self.k))

    def theirs(self) -> Any:
        published = self.published
        if self.read:
            published.publish(np.full(8, self.k))
        version, found = published.read(0)
        assert len(set(found.tolist())) == 1, found
        for rank in range(world.size):
            published.read(rank)
        return version, int(found[0])

    def after(self, done: bool, theirs: list[Any]) -> None:
        version, value = theirs[0]
        if not self.read:
            assert version >= self.last, theirs
            self.last = version
            assert value == self.k or not done, theirs
        self.call()
        found = self.published.read(1 if self.read else 0)[1]
        assert (found == self.k).all(), found


class Settled(Case):
    """All find out that all are done, whoever was interrupted as it said so, or found out."""

    fresh, inside = True, False
    name = "Published.settled"

    def open(self) -> None:
        self.published = Published(world, 8, "i8")

    def close(self) -> None:
        self.published.close()

    def call(self) -> Any:
        self.published.settled(False, {})
        self.published.settled(True, {})
        return self.published.settled(True, {1: 0})

    def theirs(self) -> Any:
        return [self.published.settled(True, {0: 0}) for _ in range(3)]

    def again(self) -> Any:
        end = time.monotonic() + 5
        while not self.published.settled(True, {}):
            assert time.monotonic() < end
        return self.published.settled(False, {})

    def agree(self, results: list[Any]) -> None:
        assert results == [True] * world.size


class OnStore(Case):
    """Reading a store changes nothing."""

    inside = False

    def __init__(self, name: str, call: Callable[[Any], Any]) -> None:
        self.name, self._call = f"Store.{name}", call

    def open(self) -> None:
        mine = world.rank * 10 + np.arange(4)
        self.store = Store(world, np.repeat(mine, 2).reshape(4, 2))

    def close(self) -> None:
        self.store.close()

    def call(self) -> Any:
        return self._call(self.store)

    def theirs(self) -> Any:
        assert self.store.get([0, 5])[:, 0].tolist() == [0, 11]
        assert self.store.prefetch([1]).result()[0, 1] == 1

    def after(self, done: bool, theirs: list[Any]) -> None:
        self.theirs()
        assert np.array_equal(self.call(), np.array([[0, 0], [11, 11]]))


def collectives() -> Iterator[Case]:
    makes: dict[str, Callable[[Any], Any]] = {
        "Dict": lambda comm: Dict(comm, "i8", "i8", 64),
        "TaskQueue": lambda comm: TaskQueue(comm, "i8", 64),
        "Published": lambda comm: Published(comm, 8, "i8"),
        "Store": lambda comm: Store(comm, np.zeros((2, 2))),
    }

    def made(make: Callable[[Any], Any]) -> Callable[[Any], None]:
        def call(case: Any) -> None:
            case.it = make(case.comm)

        return call

    for name, make in makes.items():
        yield Collective(name, made(make))
        yield Collective(f"close of {name}", lambda c: c.it.close(), make)
    table = makes["Dict"]
    yield Collective("Dict.len", lambda c: len(c.it), table)
    yield Collective("Dict.items", lambda c: list(c.it.items()), table)
    yield Collective("Dict.clear", lambda c: c.it.clear(), table)


def cases() -> list[Case]:
    return [
        *dicts(),
        OnQueue("TaskQueue.put", False),
        OnQueue("TaskQueue loop", True),
        OnPublished("Published.publish", False),
        OnPublished("Published.read", True),
        Settled(),
        OnStore("get", lambda s: s.get([0, 5])),
        OnStore("[]", lambda s: np.array([s[0], s[5]])),
        OnStore("prefetch", lambda s: s.prefetch([0, 5]).result()),
        *collectives(),
    ]
