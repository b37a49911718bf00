# SPDX-License-Identifier: BSD-3-Clause
"""Interrupted: the calls of Array, Channel, NodeArray, counter and MultiDict."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from support.interrupted import Case
from synchronisation import Collective, made

from rmaext.containers import Array, Channel, MultiDict, NodeArray, counter

world = MPI.COMM_WORLD
SHAPE = (4, 6)
LIMIT = 5.0  # seconds until something comes


# -- Array -------------------------------------------------------------------------------


class OnArray(Case):
    """A call that reads, writes or adds: each element is as before, or as it is to be."""

    inside = False

    def __init__(self, name: str, call: Callable[[Any], Any], change: Any = None) -> None:
        self.name, self._call, self._change = f"Array.{name}", call, change

    def open(self) -> None:
        self.field = Array(world, SHAPE, int, ghosts=1)

    def close(self) -> None:
        self.field.close()

    def ready(self, k: int) -> None:
        if world.rank == 0:
            self.field[...] = self.before()
            self.field.flush()

    def before(self) -> Any:
        return np.arange(24).reshape(SHAPE) * 10

    def then(self) -> Any:
        then = self.before()
        if self._change is not None:
            self._change(then)
        return then

    def call(self) -> Any:
        return self._call(self.field)

    def theirs(self) -> Any:
        """Every call, without changing anything."""
        field = self.field
        field.add(np.s_[1:3], 0)
        before = self.before()[3, world.rank]
        assert field.fetch_add((3, world.rank), 0) in (before, before + 5, 7)
        field.add_points([[0, 0], [3, 5]], 0)
        assert field[1:3].shape == (2, 6)
        assert field.rget(np.s_[:, 2]).wait().shape == (4,)
        assert field.points([[0, 0]]).shape == (1,)
        field.flush()
        return field.owner((3, 5))

    def after(self, done: bool, theirs: list[Any]) -> None:
        field, before, then = self.field, self.before(), self.then()
        field.flush()
        found = field[...]
        assert ((found == then) | ((found == before) & (not done))).all(), found
        self.ready(0)
        got = self.call()
        field.flush()
        assert np.array_equal(field[...], then)
        if self._change is None and got is not None:
            assert np.isin(got, before).all(), got


def arrays() -> Iterator[Case]:
    rows, point = np.s_[1:4, ::2], [[0, 0], [3, 5], [0, 0]]

    def put(some: Any) -> None:
        some[rows] = 7

    def put_one(some: Any) -> None:
        some[3, 5] = 7

    def added(some: Any) -> None:
        some[rows] += 5

    def added_points(some: Any) -> None:
        np.add.at(some, tuple(np.transpose(point)), 5)

    def added_one(some: Any) -> None:
        some[3, 5] += 5

    yield OnArray("[]", lambda f: f[rows])
    yield OnArray("[] one", lambda f: f[3, 5])
    yield OnArray("rget", lambda f: f.rget(rows).wait())
    yield OnArray("points", lambda f: f.points(point))
    yield OnArray("asarray", np.asarray)
    yield OnArray("[]=", put, put)
    yield OnArray("[]= one", put_one, put_one)
    yield OnArray("rput", lambda f: f.rput(7, rows).wait(), put)
    yield OnArray("add", lambda f: f.add(rows, 5), added)
    yield OnArray("fetch_add", lambda f: f.fetch_add((3, 5), 5), added_one)
    yield OnArray("add_points", lambda f: f.add_points(point, 5), added_points)
    yield OnArray("flush", lambda f: f.flush())
    yield OnArray("owner", lambda f: f.owner((3, 5)) * 10)
    yield OnArray("where_of", lambda f: 10 * f.where_of(1)[0].start)
    yield Exchange("exchange", lambda f: f.exchange())
    yield Exchange("exchanging", exchanging)


def exchanging(field: Any) -> None:
    with field.exchanging():
        pass


class Exchange(Case):
    """It goes on when it is called again, and sends nothing twice."""

    collective, alone = True, False

    def __init__(self, name: str, call: Callable[[Any], Any]) -> None:
        self.name, self._call = f"Array.{name}", call

    def open(self) -> None:
        self.field = Array(world, SHAPE, int, ghosts=1, periodic=True)

    def close(self) -> None:
        self.field.close()

    def ready(self, k: int) -> None:
        self.k = k
        self.fill()

    def fill(self) -> None:
        self.field.local[...] = 100 * self.k + world.rank

    def call(self) -> Any:
        self._call(self.field)

    def begun(self) -> bool:
        return False  # whoever is interrupted calls it again

    def theirs(self) -> Any:
        self.call()
        return self.padded()

    def after(self, done: bool, theirs: list[Any]) -> None:
        assert self.padded()

    def padded(self) -> bool:
        """Whether the ghosts are what the neighbours have."""
        field, whole = self.field, np.empty(SHAPE, int)
        for rank in range(world.size):
            whole[field.where_of(rank)] = 100 * self.k + rank
        rows, columns = (range(it.start - 1, it.stop + 1) for it in field.where)
        want = whole.take(rows, 0, mode="wrap").take(columns, 1, mode="wrap")
        assert np.array_equal(field.padded, want), field.padded
        return True

    def again(self) -> Any:
        world.Barrier()
        self.k += 1
        self.fill()
        return self.theirs()


# -- Channel -----------------------------------------------------------------------------


class OnChannel(Case):
    """No record is lost, or received twice."""

    capacity = 100

    def __init__(self, name: str, call: str, waits: bool = False) -> None:
        self.name, self._call, self.waits = name, call, waits
        self.fresh = call == "done"

    def open(self) -> None:
        self.channel = Channel(world, int, 10 if self.waits else self.capacity)
        self.got: list[int] = []

    def close(self) -> None:
        self.channel.close()

    def take(self, got: Any) -> None:
        if got is not None:
            self.got += got[1].tolist()

    def ready(self, k: int) -> None:
        self.k, self.got = k, []
        self.sent = self.channel.sent.tolist()
        if world.rank and not self.waits and self._call not in ("send", "done"):
            self.channel.send(self.records(), 0)
        world.Barrier()

    def records(self) -> Any:
        return 1000 * self.k + np.arange(100 if self.waits else 30)

    def call(self) -> Any:
        if self._call == "send":
            self.channel.send(self.records(), 1)
        elif self._call == "done":
            self.channel.done()
        elif self._call == "loop":
            for got in self.channel:
                self.take(got)
                break
        else:
            self.take(getattr(self.channel, self._call)())

    def theirs(self) -> Any:
        if self.waits and self._call != "send":
            self.channel.send(self.records()[:5], 0)
        elif world.rank == 1:
            self.take(self.channel.try_receive())
        assert self._call == "done" or not self.channel.ended

    def again(self) -> Any:
        """Receive what is sent in this trial; return how much was to come, and what came."""
        channel = self.channel
        if self._call == "done":
            channel.done()
            assert list(channel) == []
            assert channel.ended
            return 0, []
        sent = (channel.sent - self.sent).tolist()
        coming = sum(column[world.rank] for column in world.allgather(sent))
        while len(self.got) < coming:
            self.take(channel.receive(timeout=LIMIT))
        assert channel.try_receive() is None
        world.Barrier()
        return coming, self.got

    def agree(self, results: list[Any]) -> None:
        for coming, got in results:
            assert len(got) == coming
            if self._call == "send":
                assert got == self.records().tolist()[:coming], got
            elif self._call != "done":
                each = sorted(self.records().tolist()[: 5 if self.waits else 30] * (world.size - 1))
                assert sorted(got) in (each, []), got


# -- counter -----------------------------------------------------------------------------


class OnCounter(Case):
    """Each number comes once, to somebody."""

    def __init__(self, chunk: int) -> None:
        self.name, self._chunk = f"counter loop, {chunk} at once", chunk

    def open(self) -> None:
        self.numbers = counter(world, 1 << 40, self._chunk)
        self.every: list[int] = []

    def close(self) -> None:
        self.numbers.close()

    def ready(self, k: int) -> None:
        self.got: list[int] = []

    def call(self) -> Any:
        for number in self.numbers:
            self.got.append(number)
            if len(self.got) % 3 == 0:
                break

    def theirs(self) -> Any:
        self.call()

    def again(self) -> Any:
        self.call()
        while len(self.got) % 12:  # to the end of what is in hand
            self.call()
        return self.got

    def agree(self, results: list[Any]) -> None:
        self.every += [number for got in results for number in got]
        assert sorted(self.every) == list(range(len(self.every))), results


# -- MultiDict ---------------------------------------------------------------------------


class OnMultiDict(Case):
    """A value is appended to a key once, or not at all."""

    inside = False

    def __init__(self, name: str) -> None:
        self.name, self._call = f"MultiDict.{name}", name

    def open(self) -> None:
        self.table = MultiDict(world, "i8", "i8", 20_000)
        if world.rank == 0:
            self.table.append_many(np.arange(8), -1)

    def close(self) -> None:
        self.table.close()

    def ready(self, k: int) -> None:
        self.k = k

    def call(self) -> Any:
        if self._call == "append_many":
            return self.table.append_many(np.arange(8), self.k)
        return self.table.get_many([0, 99])

    def theirs(self) -> Any:
        own = 100 + world.rank
        self.table.append_many([own, own], self.k)
        values, starts = self.table.get_many([own, 0])
        assert values[: starts[1]].tolist()[-2:] == [self.k] * 2
        assert values[starts[1]] == -1

    def after(self, done: bool, theirs: list[Any]) -> None:
        values, starts = self.table.get_many(np.arange(8))
        count = np.add.reduceat(values == self.k, starts[:-1])
        if self._call == "append_many":
            assert np.isin(count, [1] if done else [0, 1]).all(), count
        else:
            assert not count.any()
        self.call()
        values, starts = self.table.get_many(np.arange(8))
        more = np.add.reduceat(values == self.k, starts[:-1]) - count
        assert (more == (self._call == "append_many")).all()


# -- collective calls --------------------------------------------------------------------


def collectives() -> Iterator[Case]:
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    if world.rank == 0:
        atexit.register(shutil.rmtree, folder)
        np.save(f"{folder}/there.npy", np.arange(24).reshape(SHAPE))
    makes: dict[str, Callable[[Any], Any]] = {
        "Array": lambda comm: Array(comm, SHAPE, ghosts=1),
        "Channel": lambda comm: Channel(comm, int, 10),
        "NodeArray": lambda comm: NodeArray(comm, 8, fill=lambda array: array.fill(1)),
        "counter": lambda comm: counter(comm, 10),
        "MultiDict": lambda comm: MultiDict(comm, "i8", "i8", 10),
    }
    for name, make in makes.items():
        yield Collective(name, made(make))
        yield Collective(f"close of {name}", lambda c: c.it.close(), make)
    yield Collective("NodeArray.assemble", made(lambda comm: NodeArray.assemble(comm, np.ones(2))))
    array = makes["Array"]

    def copied(case: Any) -> None:
        case.it.copy_to(case.it)

    def lasting(call: Callable[[Any], Any]) -> Callable[[Any], None]:
        """What makes another array: both are left to the end of the communicator's windows."""

        def kept(case: Any) -> None:
            case.new = call(case.it)

        return kept

    yield Collective("Array.fence", lambda c: c.it.fence(), array)
    yield Collective("Array.sum", lambda c: c.it.sum(), array)
    yield Collective("Array.mean along", lasting(lambda f: f.mean(axis=0)), array)
    yield Collective("Array.max along", lasting(lambda f: f.max(axis=0)), array)
    yield Collective("Array.redistribute", lasting(lambda f: f.redistribute(grid=(1, 0))), array)
    yield Collective("Array.like", lasting(Array.like), array)
    yield Collective("Array.copy_to", copied, array)
    yield Collective("Array.save", lambda c: c.it.save(f"{folder}/saved.npy"), array)
    yield Collective("Array.load", made(lambda comm: Array.load(comm, f"{folder}/there.npy")))


def cases() -> list[Case]:
    return [
        *arrays(),
        OnChannel("Channel.send", "send"),
        OnChannel("wait Channel.send", "send", waits=True),
        OnChannel("Channel.receive", "receive"),
        OnChannel("wait Channel.receive", "receive", waits=True),
        OnChannel("Channel.try_receive", "try_receive"),
        OnChannel("Channel loop", "loop"),
        OnChannel("Channel.done", "done"),
        OnCounter(1),
        OnCounter(4),
        OnMultiDict("append_many"),
        OnMultiDict("get_many"),
        *collectives(),
    ]
