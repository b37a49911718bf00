# SPDX-License-Identifier: BSD-3-Clause
"""Interrupted: locks, epochs, fences, creation and close of windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI
from support.interrupted import Case
from windows import OnWindow

import rmaext

world = MPI.COMM_WORLD


# -- locks -----------------------------------------------------------------------------


class Lock(OnWindow):
    """What ends by an exception within rmaext holds no lock; unlock has released it."""

    inside = True

    def __init__(
        self,
        name: str,
        call: Callable[[Any], Any],
        before: Callable[[Any], Any] | None = None,
        holds: bool = False,
    ) -> None:
        self.name, self._call, self._before, self._holds = name, call, before, holds

    def ready(self, k: int) -> None:
        if self._before is not None and world.rank == 0:
            self._before(self.win)

    def call(self) -> Any:
        self._call(self.win)

    def settle(self, done: bool) -> None:
        if done and self._holds:
            self.free()

    def free(self) -> None:
        for unlock in (lambda: self.win.unlock(1), self.win.unlock_all):
            with suppress(rmaext.SyncError):
                unlock()

    def after(self, done: bool, theirs: list[Any]) -> None:
        self.free()  # it says so if nothing is held
        with self.win.lock(1, timeout=5):
            pass
        with self.win.lock_all(timeout=5):
            pass


class WaitLock(Lock):
    """Another rank holds the lock, and gives it back after the interruption only."""

    waits = True

    def ready(self, k: int) -> None:
        if world.rank == 1:
            self.win.lock(1)
            self.held = True
        world.Barrier()

    def theirs(self) -> Any:
        if world.rank == 1:
            self.win.unlock(1)
        return super().theirs()


def within(exclusive: bool) -> Callable[[Any], Any]:
    def call(win: Any) -> None:
        with win.lock(1, exclusive):
            win.put(1, 1, 0)

    return call


def within_all(win: Any) -> None:
    with win.lock_all():
        win.put(1, 1, 0)


def timed_out(win: Any) -> None:
    with suppress(rmaext.RmaTimeout):
        win.lock(1, timeout=0.001)


def locks() -> Iterator[Case]:
    for exclusive in (True, False):
        kind = "exclusive" if exclusive else "shared"

        def take(win: Any, exclusive: bool = exclusive) -> Any:
            return win.lock(1, exclusive)

        yield Lock(f"lock {kind}", take, holds=True)
        yield Lock(f"unlock {kind}", lambda w: w.unlock(1), before=take)
        yield Lock(f"with lock {kind}", within(exclusive))
        yield WaitLock(f"wait lock {kind}", take)
        yield WaitLock(f"wait lock {kind} timeout", lambda w, x=exclusive: w.lock(1, x, timeout=60))
    yield Lock("lock_all", lambda w: w.lock_all(), holds=True)
    yield Lock("unlock_all", lambda w: w.unlock_all(), before=lambda w: w.lock_all())
    yield Lock("with lock_all", within_all)
    yield WaitLock("wait lock_all", lambda w: w.lock_all())


# -- epochs ----------------------------------------------------------------------------


class Epoch(OnWindow):
    """An epoch of rank 0 as origin or target; repeated, the call says SyncError if it was done."""

    steps = ("post", "start", "complete", "wait", "test")
    first, last = [0], [1]

    def __init__(self, name: str, step: str, waits: bool = False) -> None:
        self.name, self.step, self.waits = name, step, waits

    def ready(self, k: int) -> None:
        win, target = self.win, self.step in ("post", "wait", "test")
        if world.rank == 0:
            if self.step == "complete":
                win.start([1])
                win.put(k + 1, 1)
            elif self.step in ("wait", "test"):
                win.post([1])
        elif world.rank == 1 and not self.waits:
            if not target:
                win.post([0])
            elif self.step in ("wait", "test"):
                self.put(k)
        self.k = k

    def put(self, k: int) -> None:
        """Be the origin."""
        self.win.start([0])
        self.win.put(k + 1, 0)
        self.win.complete()

    def call(self) -> Any:
        if self.step == "test":
            while not self.win.test():
                pass
            return None
        return getattr(self.win, self.step)(*[[1]] * (self.step in ("post", "start")))

    def theirs(self) -> Any:
        if self.waits and world.rank == 1:
            if self.step == "start":
                self.win.post([0])
            else:
                self.put(self.k)
        return super().theirs()

    def after(self, done: bool, theirs: list[Any]) -> None:
        try:
            self.call()
            assert not done
        except rmaext.SyncError:
            pass
        if self.step == "start":
            self.win.put(self.k + 1, 1)
            self.win.complete()

    def again(self) -> Any:
        """End the epoch; return what has been put."""
        win = self.win
        if self.step in ("start", "complete"):
            if world.rank == 1:
                win.wait(timeout=5)
                return int(win.local[0])
        elif self.step == "post":
            if world.rank == 1:
                self.put(self.k)
            elif world.rank == 0:
                win.wait(timeout=5)
        if world.rank == 0:
            return int(win.local[0])
        return None

    def agree(self, results: list[Any]) -> None:
        k = results[1 if self.step in ("start", "complete") else 0]
        assert k == self.k + 1, results


def epochs() -> Iterator[Case]:
    for step in Epoch.steps:
        yield Epoch(step, step)
    yield Epoch("wait start", "start", waits=True)
    yield Epoch("wait wait", "wait", waits=True)


# -- collective calls ------------------------------------------------------------------


class Collective(Case):
    """A collective call, over a communicator of its own.

    The others get on with it: it takes place, or is a typed error. From then on calls over the
    communicator take place on all ranks, or on none.
    """

    collective, alone, fresh = True, False, True
    strict = False  # the program cannot repeat it
    errors = rmaext.RmaError, ValueError, TimeoutError, MPI.Exception

    def __init__(
        self,
        name: str,
        call: Callable[[Any], Any],
        make: Callable[[Any], Any] | None = None,
        late: float = 0.002,
        waits: bool = False,
        first: bool = False,
    ) -> None:
        self.name, self._call, self._make, self.late, self.waits = name, call, make, late, waits
        self._first = first  # there is no window before

    def open(self) -> None:
        self.comm = world.Dup()
        self.base = None
        if not self._first:
            self.base = rmaext.Window.allocate(self.comm, 8, "i8")
            self.base.fence()
        self.it = self._make(self.comm) if self._make is not None else None

    def close(self) -> None:
        for it in (self.it, self.base):
            with suppress(rmaext.SyncError, MPI.Exception):
                if hasattr(it, "Free"):
                    it.Free()
                elif it is not None:
                    it.close()
        self.it = self.base = None
        self.comm.Free()

    def ready(self, k: int) -> None:
        self.number = 0
        if self.base is not None:
            self.number = self.base._group.meetings._numbers.number

    def call(self) -> Any:
        return self._call(self)

    def begun(self) -> bool | None:
        if self.strict:
            return True
        if self.base is None:  # MPI's duplication is the first that others count on
            from rmaext._comm.group import Group

            if Group._keyval == MPI.KEYVAL_INVALID:
                return False
            group = self.comm.Get_attr(Group._keyval)
            if not isinstance(group, Group):
                return group is not None
        else:
            group = self.base._group
        return group.meetings.over or group.meetings._numbers.number != self.number

    def theirs(self) -> Any:
        return self.outcome(self._call)

    def outcome(self, call: Callable[[Any], Any]) -> str:
        try:
            call(self)
        except self.errors as error:
            return f"{type(error).__name__}: {error}"
        return "passed"

    def again(self) -> Any:
        return self.outcome(lambda c: rmaext.Window.allocate(c.comm, 2, "i8").close())

    def agree(self, results: list[Any]) -> None:
        passed = [text == "passed" for text in results]
        assert all(passed) or not any(passed), results


def left(case: Collective) -> None:
    with case.it as win:
        win.put(1, 0)
    case.it = None


class MistakeError(Exception):
    """Of the program."""


def failing(case: Collective) -> None:
    """One rank leaves the block by an exception."""
    with suppress(MistakeError), case.it:
        if world.rank == 0:
            raise MistakeError
    assert case.it.closed


class Within(Collective):
    """The end of a `with`, which nobody can repeat."""

    strict = True


def made(call: Callable[[Any], Any]) -> Callable[[Collective], None]:
    def make(case: Collective) -> None:
        case.it = call(case.comm)

    return make


RECORD = [("a", "i8"), ("b", "f8")]
CREATIONS: dict[str, Callable[[Any], Any]] = {
    "allocate": lambda comm: rmaext.Window.allocate(comm, 8, "i8"),
    "Window": lambda comm: rmaext.Window(comm, np.zeros(8)),
    "Window of arrays": lambda comm: rmaext.Window(comm, [np.zeros(3), np.zeros(5)]),
    "dynamic": lambda comm: rmaext.Window.dynamic(comm, "i8"),
    "shared": lambda comm: rmaext.Window.shared(comm, 8, "i8"),
}


def collectives() -> Iterator[Case]:
    def fence(case: Collective) -> None:
        case.it.fence()

    def close(case: Collective) -> None:
        case.it.close()

    def part(comm: Any) -> Any:
        return rmaext.Window.allocate(comm, 8, "i8").subwindow(0, 4)

    new = CREATIONS["allocate"]
    yield Collective("fence", fence, new)
    yield Collective("fence of Python", lambda c: c.it._fence(), new)
    yield Collective("fence early", fence, new, late=0)
    yield Collective("wait fence", fence, new, waits=True)
    yield Collective("fence of a view", fence, part)
    yield Collective("wait close", close, new, waits=True)
    yield Within("with", left, new)
    yield Within("with and an exception", failing, new)
    direct = os.environ.get("RMAEXT_ROUTE") != "fabric"
    for name, make in CREATIONS.items():
        if name == "shared" and not direct:  # it needs memory that all map
            continue
        yield Collective(name, made(make))
        yield Collective(f"close of {name}", close, make)
    yield Collective("wait allocate", made(new), waits=True)
    yield Collective("first allocate", made(new), first=True)
    yield Collective("wait first allocate", made(new), waits=True, first=True)


def cases() -> list[Case]:
    return [*locks(), *epochs(), *collectives()]
