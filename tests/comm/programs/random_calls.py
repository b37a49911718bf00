# SPDX-License-Identifier: BSD-3-Clause
"""Random sequences of collective calls, in which one rank deviates at a random place.

mpiexec -n 2 python random_calls.py SEED NUMBER

Each sequence is over one of two communicators, with up to three windows of its own
kind, and ends with the fence of a window that is used for nothing else: so a rank that
skips or adds a call cannot come to the end beside the others. What passed must be the
same on all ranks, and a sequence in which one deviates must end in SyncError on all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import sys
import time

import numpy as np
from mpi4py import MPI

import rmaext

SEED, NUMBER = int(sys.argv[1]), int(sys.argv[2])
WATCHDOG = 12  # seconds a sequence
MOST_GIVEN_UP = 200  # communicators: MPI has some 2,000
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if "NODES" in os.environ:
    os.environ["RMAEXT_NODE"] = f"node {rank % int(os.environ['NODES'])}"


class Mine(Exception):
    """Raised in `with`."""


class Team:
    """A communicator with its windows."""

    def __init__(self):
        self.comm = world.Dup()
        self.last = rmaext.Window.allocate(self.comm, 8)
        self.last.local[:] = 0
        self.spare = rmaext.Window.allocate(self.comm, 8)  # fenced in place of none, by one rank
        self.spare.local[:] = 0
        self.windows = []
        self.given_up = False

    def all(self):
        return [self.last, self.spare, *self.windows]

    def make(self, kind):
        comm = self.comm
        if kind == "Window":
            win = rmaext.Window(comm, np.zeros(8))
        else:
            win = rmaext.Window.allocate(comm, 8)
            win.local[:] = 0
        self.windows.append(win)
        return win

    def do(self, step, done):
        """Carry a step out, and note what passed."""
        call, which = step
        if call == "end":
            self.last.fence()
            done.append(("end", number(self.last)))
        elif call == "raise":
            win = (self.windows or [self.spare])[0]
            with contextlib.suppress(Mine), win:
                raise Mine
            if self.windows:
                self.windows.remove(win)  # it is closed here
        elif call == "make":
            done.append(("make", number(self.make(which))))
        elif not self.windows:
            win = self.last if self.spare.closed else self.spare
            win.fence()
            done.append(("fence", number(win)))
        elif call == "fence":
            win = self.windows[which % len(self.windows)]
            win.fence()
            done.append(("fence", number(win)))
        elif call == "close":
            win = self.windows[which % len(self.windows)]
            win.close()
            self.windows.remove(win)
            done.append(("close", number(win)))


def number(win):
    return int(re.search(r"Window (\d+)", repr(win))[1])


def plan(rng, open_now):
    """Return the steps, and how many windows are open before each."""
    steps, counts, count = [], [], open_now
    for _ in range(rng.integers(3, 8)):
        calls = ["make"] * (count < 3) + ["fence", "fence", "close"] * (count > 0)
        call = str(rng.choice(calls))
        kind = str(rng.choice(["Window", "allocate"]))
        steps.append((call, kind if call == "make" else int(rng.integers(count))))
        counts.append(count)
        count += (call == "make") - (call == "close")
    return [*steps, ("end", 0)], [*counts, count]


def deviate(rng, steps, counts, may_give_up):
    """Return the steps with a deviation, which is never harmless, and what it is."""
    place = int(rng.integers(len(steps)))
    call, which = steps[place]
    ends = call == "end"
    kinds = ["add", "other"] + ["skip"] * (not ends) + ["raise"] * 2 * may_give_up
    kind = str(rng.choice(kinds))
    others = {
        "make": [("fence", 0), ("close", 0)],
        "fence": [("close", which), ("make", "allocate"), ("end", 0)],
        "close": [("fence", which), ("make", "allocate"), ("end", 0)],
        "end": [("fence", 0), ("close", 0), ("make", "Window")],
    }[call]
    if call in ("fence", "close") and counts[place] > 1:
        others += [(call, (which + 1) % counts[place])] * 2
    other = others[rng.integers(len(others))]
    before, after = steps[:place], steps[place + 1 :]
    if kind == "skip":
        return before + after, f"skip at {place}"
    if kind == "other":
        return before + [other] + after, f"{other} for {steps[place]} at {place}"
    if kind == "raise":
        return before + [("raise", 0)] + steps[place:], f"raise at {place}"
    extra = other if call == "make" else ("make", "Window")
    return before + [extra] + steps[place:], f"{extra} before {place}"


def fail(text):
    sys.stderr.write(f"rank {rank}: seed {SEED}, sequence {sequence}: {text}\n")
    sys.stderr.write(f"all: {steps}\nrank {odd}: {mine if rank == odd else ''} ({kind})\n")
    sys.stderr.flush()
    world.Abort(1)


def use(team):
    """Put, get and update in all windows that are open."""
    for win in team.all():
        if win.closed:
            fail(f"{win!r} is closed")
        win.put(np.arange(4.0) + rank, (rank + 1) % size)
        win.flush()
        win.fetch_add(1.0, 0, 6)
    world.Barrier()
    for win in team.all():
        there = win.get((rank + 1) % size, 0, 4)
        here = win.get(rank, 0, 4)
        count = win.get(0, 6, 1)[0]
        if there.tolist() != (np.arange(4.0) + rank).tolist():
            fail(f"{win!r}: {there} at the next rank")
        if here.tolist() != (np.arange(4.0) + (rank - 1) % size).tolist():
            fail(f"{win!r}: {here}")
        if count != size:
            fail(f"{win!r}: counted {count}")
    world.Barrier()
    for win in team.all():
        win.put(np.zeros(8), rank)
    world.Barrier()


def end(team):
    """After a give-up: close() raises once, and has closed; a new communicator follows."""
    for win in team.all():
        if not win.closed:
            try:
                win.close()
            except rmaext.SyncError:
                pass
            else:
                fail(f"{win!r} was closed")
        win.close()
        if not win.closed:
            fail(f"{win!r} is not closed")
    world.Barrier()
    team.comm.Free()


teams = [Team(), Team()]
deviations = errors = given_up = 0
slowest = 0.0
for sequence in range(NUMBER):
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    rng = np.random.default_rng([SEED, sequence])
    which = int(rng.integers(2))
    team = teams[which]
    steps, counts = plan(rng, len(team.windows))
    mine = steps
    odd, kind = int(rng.integers(size)), "none"
    if rng.random() < 0.85:
        give_up = rng.random() < 0.3 and given_up < MOST_GIVEN_UP
        changed, kind = deviate(rng, steps, counts, bool(give_up))
        mine = changed if rank == odd else steps
        deviations += 1
    raised = kind.startswith("raise")
    if rng.random() < 0.2:
        time.sleep(rng.random() * 2e-3 * (rank == odd))
    done, error = [], ""
    start = time.monotonic()
    for step in mine:
        try:
            team.do(step, done)
        except rmaext.SyncError as exc:
            error = str(exc)
            break
        except BaseException as exc:
            fail(f"{step}: {exc!r}")
    slowest = max(slowest, time.monotonic() - start)
    results = world.allgather((done, bool(error), error, slowest))
    if len({str(passed) for passed, *_ in results}) > 1:
        fail(f"what passed is not the same: {[passed for passed, *_ in results]}")
    if len({bad for _, bad, *_ in results}) > 1:
        fail(f"not the same end: {[text for *_, text, _ in results]}")
    if bool(error) != (kind != "none"):
        fail(f"silent: {kind}" if kind != "none" else f"no rank deviates: {error}")
    if max(took for *_, took in results) > 5:
        fail("took more than 5 s")
    errors += bool(error)
    if raised:
        for other in team.windows:
            if not other.closed:  # on the rank that raised, one is
                other.fetch_add(1.0, (rank + 1) % size, 7)
        end(team)
        teams[which] = Team()
        given_up += 1
    else:
        use(team)
faulthandler.dump_traceback_later(30, exit=True)
for team in teams:
    for win in team.all():
        win.close()
if rank == 0:
    print(f"{NUMBER} sequences, {deviations} deviations, {errors} errors, {given_up} given up")
faulthandler.cancel_dump_traceback_later()
