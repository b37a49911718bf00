# SPDX-License-Identifier: BSD-3-Clause
"""Run calls that are interrupted at each place, while the other ranks go on without this one.

Rank 0 is the one that is interrupted. The others do what it tells them, by sockets: neither
rmaext nor MPI carries that. After each interruption rank 0 sits in one call of C that holds the
GIL, as one that computes, until the others have done their part, which has a time limit; only
then it goes on.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import pickle
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI
from support.places import Bell, ring_in_c

__all__ = ["Case", "LeftWaiting", "main"]

world = MPI.COMM_WORLD
_SIZE = struct.Struct("q")
_hold = ctypes.PyDLL(None).recv  # which keeps the GIL while it waits
_PEEK = int(socket.MSG_PEEK)


class LeftWaiting(BaseException):
    """A call has not ended within the limit."""


class Case:
    """A call, and what all ranks do about it. One object of each lives on each rank.

    Attributes
    ----------
    collective : bool
        The others call it, too, at the same time: `theirs` is their call.
    waits : bool
        It waits for the others, who let it wait until it is interrupted.
    most : int
        So many places of one that waits are tried, as it never ends.
    alone : bool
        All threads of the rank stand still while the others work.
    inside : bool
        The exception comes within rmaext; else also just after the call of it, in the program.
    fresh : bool
        `open` before each trial.
    """

    name = ""
    late = 0.0  # seconds by which rank 0 comes later to a collective call
    collective = waits = fresh = False
    alone = inside = True
    most = 40

    def open(self) -> None:
        """Make what the call is tried on, on all ranks."""

    def close(self) -> None:
        """End that, on all ranks."""

    def ready(self, k: int) -> None:
        """Prepare a trial, on all ranks, without collective calls."""

    def call(self) -> Any:
        """What is interrupted, on rank 0."""

    def settle(self, done: bool) -> None:
        """Do what a program does at once after the call, in its `finally`, on rank 0."""

    def begun(self) -> bool | None:
        """Whether a collective call has begun, so that the others must get on; None: who knows."""
        return True

    def theirs(self) -> Any:
        """What the others do meanwhile, or in a collective call; return what rank 0 is to know."""

    def after(self, done: bool, theirs: list[Any]) -> None:
        """Go on, on rank 0: `done` if the call has returned."""

    def again(self) -> Any:
        """What all ranks do in the end of a trial, in step; rank 0 gets the results."""

    def agree(self, results: list[Any]) -> None:
        """Check what `again` has returned, on rank 0; its own comes first."""


def timed(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function; LeftWaiting if it takes longer."""

    def handler(*_: object) -> None:
        raise LeftWaiting

    before = signal.signal(signal.SIGALRM, handler)
    # once more and again, should the first meet what drops it
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- the wire --------------------------------------------------------------------------


class Wire:
    """A socket with rank 0, or of rank 0 with another."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, what: Any) -> None:
        data = pickle.dumps(what)
        self._end.sendall(_SIZE.pack(len(data)) + data)

    def receive(self) -> Any:
        (size,) = _SIZE.unpack(self._bytes(_SIZE.size))
        return pickle.loads(self._bytes(size))

    def _bytes(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._end.recv(size - len(data))
            if not part:
                raise ConnectionError("a rank has gone")
            data += part
        return data

    def comes(self, seconds: float) -> bool:
        """Whether something comes within so many seconds."""
        return bool(select.select([self._end], [], [], seconds)[0])

    def hold(self) -> None:
        """Wait for something, holding the GIL, as a rank that computes."""
        _hold(self._end.fileno(), ctypes.create_string_buffer(1), 1, _PEEK)


def wires() -> list[Wire]:
    """Return rank 0's to all others; others' to rank 0. Collective."""
    if world.rank:
        end = socket.socket(socket.AF_UNIX)
        end.connect(world.bcast(None))
        wire = Wire(end)
        wire.send(world.rank)
        return [wire]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/door")
        door.listen(world.size)
        world.bcast(f"{folder}/door")
        found = [Wire(door.accept()[0]) for _ in range(world.size - 1)]
        ranks = {wire.receive(): wire for wire in found}
        return [ranks[rank] for rank in sorted(ranks)]


# -- the others --------------------------------------------------------------------------


def words(error: BaseException) -> str:
    """Say what has happened, and where."""
    here = [
        f"{os.path.basename(frame.filename)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    text = f"{type(error).__name__}: {str(error)[:300]}" if str(error) else type(error).__name__
    return f"{text} [{' '.join(here[-4:])}]"


def serve(cases: dict[str, Case], wire: Wire, limit: float) -> None:
    """Do what rank 0 says, until it says that it is the end."""
    while True:
        name, step, args = wire.receive()
        if step == "end":
            return
        try:
            reply = "", timed(limit, getattr(cases[name], step), *args)
        except LeftWaiting as error:
            reply = f"is left waiting in {step}: {words(error)}", None
        except Exception as error:
            reply = f"{step}: {words(error)}", None
        wire.send(reply)


# -- rank 0 ---------------------------------------------------------------------------------


_NEVER = 1 << 30  # there is no such place


def spread(count: int, share: int) -> Iterator[int]:
    """Return so many numbers from 1 to `count`, first and last included; or all of them."""
    if count <= share:
        return iter(range(1, count + 1))
    return iter(range(1, count + 1, (count - 1) // (share - 1)))


class FailedError(Exception):
    """A trial went wrong; its words say how."""


class Ring:
    """Rank 0's part."""

    def __init__(self, wires: list[Wire], limit: float, once: bool) -> None:
        self.wires, self.limit, self.once, self.bell = wires, limit, once, Bell()
        self.tried = self.calls = self.blocked = 0
        self.failures: list[tuple[str, str, str]] = []  # case, place, words
        self.told = False  # the others have something to do, or have done it

    def tell(self, case: Case, step: str, *args: Any) -> None:
        self.told = True
        for wire in self.wires:
            wire.send((case.name, step, args))

    def hear(self) -> list[Any]:
        """Return what the others have returned."""
        replies = [wire.receive() for wire in self.wires]
        self.told = False
        bad = [f"rank {k + 1} {text}" for k, (text, _) in enumerate(replies) if text]
        if bad:
            raise FailedError("; ".join(bad))
        return [value for _, value in replies]

    def own(self, case: Case, step: str, *args: Any) -> Any:
        try:
            return timed(self.limit, getattr(case, step), *args)
        except LeftWaiting as error:
            raise FailedError(f"rank 0 is left waiting in {step}: {words(error)}") from None
        except FailedError:
            raise
        except BaseException as error:
            raise FailedError(f"rank 0, {step}: {words(error)}") from None

    def together(self, case: Case, step: str, *args: Any) -> list[Any]:
        """Have all ranks do the step; return what each returned, the own first."""
        self.tell(case, step, *args)
        return [self.own(case, step, *args), *self.hear()]

    def trial(self, case: Case, k: int, error: type[BaseException]) -> bool:
        """Interrupt the call at place k, 0: asleep in C; return whether there is such a place."""
        if case.fresh:
            self.together(case, "open")
        self.together(case, "ready", k)
        bell = self.bell
        if case.collective and not case.waits:
            self.tell(case, "theirs")
            time.sleep(case.late)
        if k:
            ended, _ = self.own_call(case, lambda: bell.call(case.call, k, error, case.inside))
        else:
            bell.place = "asleep in C"
            ended = self.own_call(case, lambda: ring_in_c(case.call, error))
        done = not ended
        self.own(case, "settle", done)
        if not case.collective or case.waits:
            self.tell(case, "theirs")
        if case.collective and not done and not self.get_on(case):
            # nobody knows of it: it is repeated, as a program would
            self.own(case, "call")
            done = True
        for wire in self.wires if case.alone else ():
            wire.hold()
        theirs = self.hear()
        self.own(case, "after", done, theirs)
        case.agree(self.together(case, "again"))
        if case.fresh:
            self.together(case, "close")
        self.tried += bool(bell.place)
        return bool(bell.place)

    def get_on(self, case: Case) -> bool:
        """Whether the others get on with a collective call that has been interrupted here."""
        begun = self.bell.of_all or case.begun()
        if begun is not None:
            return begun
        return all(wire.comes(0.5) for wire in self.wires)

    def own_call(self, case: Case, function: Callable[[], Any]) -> Any:
        try:
            return timed(self.limit, function)
        except LeftWaiting as error:
            raise FailedError(f"the call itself does not end: {words(error)}") from None
        except Exception as error:
            raise FailedError(f"the call raises {words(error)}") from None

    def run(self, case: Case, places: Iterator[int], share: int, most: int) -> None:
        """Try places of a call; give up after `most` that failed.

        `share`: so many of them all, spread over the call; 0: those given.
        """
        self.calls += 1
        self.bell.once = self.once and not case.waits  # that one does not end
        failures = 0
        errors = (KeyboardInterrupt, TimeoutError)
        opened = False
        if share:
            places = spread(case.most, share) if case.waits else iter([_NEVER])
        if case.waits:
            places = itertools.chain([0], itertools.takewhile(lambda k: k <= case.most, places))
        turn = 0
        while (k := next(places, None)) is not None:
            turn += 1
            self.bell.place = ""
            try:
                if not opened and not case.fresh:
                    self.together(case, "open")
                opened = True
                more = self.trial(case, k, errors[turn % 2])
                if k == _NEVER:
                    places = spread(self.bell.count, share)
                elif not more:
                    break
            except (FailedError, AssertionError) as error:
                text = str(error) if isinstance(error, FailedError) else f"rank 0: {words(error)}"
                if self.told:
                    try:
                        self.hear()
                    except FailedError as theirs:
                        text += f"; {theirs}"
                self.failures.append((case.name, f"{k}: {self.bell.place or 'no place'}", text))
                failures += 1
                opened = False  # another one is made
                if failures == most:
                    return
        if opened and not case.fresh:
            try:
                self.together(case, "close")
            except FailedError as error:
                self.failures.append((case.name, "close", str(error)))


def main(cases: list[Case], known: dict[str, str]) -> None:
    """Run the cases: `program [--share N] [--once] [--most FAILURES] [--at K] [NAME ...]`.

    `known` are those that fail today, and why; they are run only if they are named.
    """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--share", type=int, default=0, help="so many places of each call")
    parser.add_argument("--once", action="store_true", help="no place twice, see Bell")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th call, from number K on")
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--within", type=float, default=10)
    parser.add_argument("--at", type=int)
    parser.add_argument("--known", action="store_true", help="run those that fail today, too")
    parser.add_argument("names", nargs="*", help="prefixes of the calls to be run")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(14_300, exit=True)
    sys.unraisablehook = lambda _: None  # what is raised in a finalizer is lost, as it must be
    table = {case.name: case for case in cases}
    assert len(table) == len(cases), "two have the same name"
    ends = wires()
    if world.rank:
        serve(table, ends[0], options.within)
        world.Barrier()
        return
    ring = Ring(ends, options.within, options.once)
    skipped = []
    first, step = map(int, options.part.split("/"))
    for case in cases[first::step]:
        if options.names and not case.name.startswith(tuple(options.names)):
            continue
        if case.name in known and not options.known:
            skipped.append(case.name)
            continue
        before, failed, start = ring.tried, len(ring.failures), time.monotonic()
        places = itertools.count(options.first, options.every)
        ring.run(case, iter([options.at]) if options.at else places, options.share, options.most)
        bad = len(ring.failures) - failed
        took = time.monotonic() - start
        text = f"{case.name}: {ring.tried - before} places in {took:.2f} s"
        print(text + f", {bad} FAILED" * bool(bad))
        sys.stdout.flush()
    for name, place, text in ring.failures:
        print(f"FAILED {name} at {place}\n    {text}")
    for name in skipped:
        print(f"known to fail: {name}: {known[name]}")
    waiting = sum("left waiting" in text for _, _, text in ring.failures)
    print(
        f"{ring.calls} calls, {ring.tried} places tried, {waiting} left somebody waiting, "
        f"{len(ring.failures) - waiting} wrong otherwise, {len(skipped)} calls known to fail"
    )
    ring.tell(cases[0], "end")
    sys.stdout.flush()
    world.Barrier()
