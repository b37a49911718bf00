# SPDX-License-Identifier: BSD-3-Clause
"""Interrupted: the drop-in's calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI
from support.interrupted import Case
from synchronisation import Collective

from rmaext.compat import Win

world = MPI.COMM_WORLD
UP = np.arange(1, 9)
ZERO = np.zeros(8, "i8")


def window(comm: Any = world) -> Any:
    return Win.Allocate(64 * 8, 8, comm=comm)


class Passive(Case):
    """Between locks; what ends by an exception is repeated, or the lock is gone."""

    def __init__(self, name: str, call: Callable[[Any], Any], once: Any, twice: Any = None) -> None:
        self.name, self._call = name, call
        self.once, self.twice = list(once), list(once if twice is None else twice)

    def open(self) -> None:
        self.win = window()
        self.win.Fence()
        self.win.Fence(MPI.MODE_NOSUCCEED)

    def close(self) -> None:
        self.win.Free()

    def ready(self, k: int) -> None:
        if world.rank == 0:
            self.win.Lock(1, MPI.LOCK_SHARED)
            self.win.Put(ZERO, 1, 0)
            self.win.Flush(1)

    def call(self) -> Any:
        return self._call(self.win)

    def theirs(self) -> Any:
        """Others use their own elements, under shared locks, as one is held here."""
        win, me = self.win, world.rank
        mine, got = 32 + 4 * me, np.zeros(1, "i8")
        win.Lock_all()
        for rank in (0, me):
            win.Put(np.array([5 + me]), rank, mine)
            win.Flush(rank)
            win.Fetch_and_op(np.array([1]), got, rank, mine)
            win.Flush(rank)
            assert got[0] == 5 + me, got
            win.Rget(got, rank, mine).Wait()
            assert got[0] == 6 + me
        win.Unlock_all()

    def elements(self) -> list[int]:
        found = np.zeros(8, "i8")
        self.win.Flush(1)
        self.win.Get(found, 1, 0)
        self.win.Flush(1)
        return found.tolist()

    def after(self, done: bool, theirs: list[Any]) -> None:
        found = self.elements()
        assert found in ([self.once] if done else [ZERO.tolist(), self.once]), found
        self.call()
        again = self.elements()
        assert again == (self.twice if found == self.once else self.once), (found, again)
        self.win.Unlock(1)


class Locks(Passive):
    """What ends by an exception holds no lock, and no epoch is open: it can be begun again."""

    always = False  # the program ends the epoch whatever happened in it

    def __init__(
        self,
        name: str,
        call: Callable[[Any], Any],
        end: Callable[[Any], Any] | None = None,
        before: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name, self._call, self._end, self._before = name, call, end, before

    def ready(self, k: int) -> None:
        if world.rank == 0 and self._before:
            self._before(self.win)

    def settle(self, done: bool) -> None:
        if self._end and (done or self.always):
            with suppress(MPI.Exception):
                self._end(self.win)

    def theirs(self) -> Any:
        super().theirs()
        for rank in range(world.size):
            self.win.Lock(rank, MPI.LOCK_EXCLUSIVE)
            self.win.Unlock(rank)

    def after(self, done: bool, theirs: list[Any]) -> None:
        if not done:  # a program may say so; it is an error if nothing is held
            for unlock in (lambda: self.win.Unlock(1), self.win.Unlock_all):
                with suppress(MPI.Exception):
                    unlock()
        for rank in range(world.size):
            self.win.Lock(rank, MPI.LOCK_EXCLUSIVE)
            self.win.Unlock(rank)
        self.win.Lock_all()
        self.win.Unlock_all()


class WaitLock(Locks):
    """Another rank has the lock until the interruption."""

    waits = True

    def ready(self, k: int) -> None:
        if world.rank == 1:
            self.win.Lock(1, MPI.LOCK_EXCLUSIVE)
        world.Barrier()

    def theirs(self) -> Any:
        if world.rank == 1:
            self.win.Unlock(1)
        super().theirs()


class WithinLocks(Locks):
    """An operation in an epoch, which the program ends whatever happened."""

    always = True


class WaitWithin(WaitLock):
    """The same, where the lock has to be waited for."""

    always = True


def done_before(call: Callable[[], Any]) -> bool:
    """Call again; whether it says that it was done."""
    try:
        call()
    except MPI.Exception as error:
        return bool(error.Get_error_class() == MPI.ERR_RMA_SYNC)
    return False


class Active(Case):
    """Epochs of Post, Start, Complete, Wait and Test: a repeated call says if it was done."""

    def __init__(self, step: str) -> None:
        self.name, self.step = f"Win.{step}", step

    def open(self) -> None:
        self.win = window()
        self.win.Fence()
        self.win.Fence(MPI.MODE_NOSUCCEED)
        own = world.Get_group()
        self.zero, self.one = own.Incl([0]), own.Incl([1])

    def close(self) -> None:
        self.win.Free()

    def ready(self, k: int) -> None:
        self.k = k
        if world.rank == 0:
            if self.step == "Complete":
                self.win.Start(self.one)
                self.win.Put(np.array([k + 1]), 1, 0)
            elif self.step in ("Wait", "Test"):
                self.win.Post(self.one)
        elif world.rank == 1:
            if self.step in ("Start", "Complete"):
                self.win.Post(self.zero)
            elif self.step in ("Wait", "Test"):
                self.put()

    def put(self) -> None:
        self.win.Start(self.zero)
        self.win.Put(np.array([self.k + 1]), 0, 0)
        self.win.Complete()

    def call(self) -> Any:
        if self.step == "Post":
            self.win.Post(self.one)
        elif self.step == "Start":
            self.win.Start(self.one)
        elif self.step == "Test":
            while not self.win.Test():
                pass
        else:
            getattr(self.win, self.step)()

    def after(self, done: bool, theirs: list[Any]) -> None:
        again = done_before(self.call)
        assert again or not done
        if self.step == "Start":
            self.win.Put(np.array([self.k + 1]), 1, 0)
            self.win.Complete()

    def again(self) -> Any:
        if self.step in ("Start", "Complete"):
            if world.rank == 1:
                self.win.Wait()
                return int(np.frombuffer(self.win, "i8")[0])
        elif self.step == "Post":
            if world.rank == 1:
                self.put()
            elif world.rank == 0:
                self.win.Wait()
        return int(np.frombuffer(self.win, "i8")[0])

    def agree(self, results: list[Any]) -> None:
        assert results[1 if self.step in ("Start", "Complete") else 0] == self.k + 1, results


def passive() -> Iterator[Case]:
    one, eight = np.ones(8, "i8"), [1] * 8
    got, zero, five = np.zeros(8, "i8"), np.zeros(1, "i8"), np.array([5])

    def op(name: str, call: Callable[[Any], Any], *states: Any) -> Passive:
        return Passive(f"Win.{name}", call, *states)

    strided = MPI.INT64_T.Create_vector(4, 1, 2).Commit()
    yield op("Put", lambda w: w.Put(UP, 1, 0), UP)
    yield op("Put strided", lambda w: w.Put(UP[:4], 1, [0, 1, strided]), [1, 0, 2, 0, 3, 0, 4, 0])
    yield op("Get", lambda w: w.Get(got, 1, 0), ZERO)
    yield op("Accumulate", lambda w: w.Accumulate(one, 1, 0), eight, [2] * 8)
    yield op(
        "Accumulate strided",
        lambda w: w.Accumulate(one[:4], 1, [0, 1, strided]),
        [1, 0] * 4,
        [2, 0] * 4,
    )
    yield op("Get_accumulate", lambda w: w.Get_accumulate(one, got, 1, 0), eight, [2] * 8)
    yield op(
        "Fetch_and_op",
        lambda w: w.Fetch_and_op(one[:1], got[:1], 1, 0),
        [1, *ZERO[1:]],
        [2, *ZERO[1:]],
    )
    yield op(
        "Compare_and_swap", lambda w: w.Compare_and_swap(five, zero, got[:1], 1, 0), [5, *ZERO[1:]]
    )
    yield op("Rput", lambda w: w.Rput(UP, 1, 0).Wait(), UP)
    yield op("Rget", lambda w: w.Rget(got, 1, 0).Wait(), ZERO)
    yield op("Raccumulate", lambda w: w.Raccumulate(one, 1, 0).Wait(), eight, [2] * 8)
    yield op("Rget_accumulate", lambda w: w.Rget_accumulate(one, got, 1, 0).Wait(), eight, [2] * 8)
    yield op("Request.Waitall", lambda w: MPI.Request.Waitall([w.Rput(UP, 1, 0)]), UP)
    yield op("Flush", lambda w: (w.Put(UP, 1, 0), w.Flush(1)), UP)
    yield op("Flush_local", lambda w: (w.Put(UP, 1, 0), w.Flush_local(1)), UP)
    yield op("Flush_all", lambda w: (w.Put(UP, 1, 0), w.Flush_all()), UP)
    yield op("Flush_local_all", lambda w: (w.Put(UP, 1, 0), w.Flush_local_all()), UP)
    yield op("Sync", lambda w: w.Sync(), ZERO)


def locks() -> Iterator[Case]:
    for kind, name in ((MPI.LOCK_EXCLUSIVE, "exclusive"), (MPI.LOCK_SHARED, "shared")):

        def take(win: Any, kind: int = kind) -> None:
            win.Lock(1, kind)

        def take_and_put(win: Any, take: Callable[[Any], None] = take) -> None:
            take(win)
            win.Put(UP, 1, 0)

        yield Locks(f"Win.Lock {name}", take, end=lambda w: w.Unlock(1))
        yield Locks(f"Win.Unlock {name}", lambda w: w.Unlock(1), before=take_and_put)
        yield Locks(f"Win.Unlock unused {name}", lambda w: w.Unlock(1), before=take)
        if kind == MPI.LOCK_EXCLUSIVE:
            yield WaitLock(f"wait Win.Lock {name}", take)
        yield WaitWithin(f"wait Win.Lock {name} Put", take_and_put, end=lambda w: w.Unlock(1))

    def put(win: Any) -> None:
        win.Lock_all()
        win.Put(UP, 1, 0)

    yield Locks("Win.Lock_all", lambda w: w.Lock_all(), end=lambda w: w.Unlock_all())
    yield WithinLocks("Win.Lock_all Put", put, end=lambda w: w.Unlock_all())
    yield Locks("Win.Unlock_all", lambda w: w.Unlock_all(), before=put)
    yield WaitWithin("wait Win.Lock_all Put", put, end=lambda w: w.Unlock_all())


def collectives() -> Iterator[Case]:
    def made(call: Callable[[Any], Any]) -> Callable[[Any], None]:
        def make(case: Any) -> None:
            case.it = call(case.comm)

        return make

    memory = np.zeros(8)
    makes: dict[str, Callable[[Any], Any]] = {
        "Allocate": window,
        "Create": lambda comm: Win.Create(memory, 8, comm=comm),
        "Allocate_shared": lambda comm: Win.Allocate_shared(64, 8, comm=comm),
        "Create_dynamic": lambda comm: Win.Create_dynamic(comm=comm),
    }
    if os.environ.get("RMAEXT_ROUTE") == "fabric":
        # it is MPI's own there, whose collective call nothing interrupts: see known.py
        del makes["Allocate_shared"]
    for name, make in makes.items():
        yield Collective(f"Win.{name}", made(make))
        yield Collective(f"Win.Free of {name}", lambda c: c.it.Free(), make)
    yield Collective("Win.Fence", lambda c: c.it.Fence(), window)
    yield Collective("wait Win.Fence", lambda c: c.it.Fence(), window, waits=True)
    yield Collective("wait Win.Free", lambda c: c.it.Free(), window, waits=True)


def active() -> Iterator[Case]:
    for step in ("Post", "Start", "Complete", "Wait", "Test"):
        yield Active(step)


def cases() -> list[Case]:
    return [*passive(), *locks(), *active(), *collectives()]
