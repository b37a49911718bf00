# SPDX-License-Identifier: BSD-3-Clause
"""What `__del__` calls when the interpreter ends, and modules have lost their names."""

from __future__ import annotations

import re

import pytest
from support import jobs

# The program's own module is imported first, and so is the last one to lose its names.
HOLDER = """
import os

class Owner:
    def __init__(self, it, *calls):
        self.it, self.calls = it, calls
    def __del__(self, write=os.write):
        for name, *arguments in self.calls:
            getattr(self.it, name)(*arguments)
        write(1, b"+")

def forget(*_, write=os.write):
    write(1, b"-")
"""

MADE = """
import sys, types
holder = types.ModuleType("holder")
sys.modules["holder"] = holder
exec(HOLDER, holder.__dict__)
import builtins, gc
import numpy as np
import rmaext
from rmaext import containers
from rmaext.compat import Win
from mpi4py import MPI

world, me = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
one, peer = np.ones(1), (MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size

def locked(win, *targets):
    for target in targets:
        win.Lock(target, MPI.LOCK_SHARED)
        win.Put(one, target)
    if not targets:
        win.Lock_all()
        win.Put(one, peer)
    return win

def named(win):
    win.Set_errhandler(Win.Create_errhandler(holder.forget))
    win.Set_attr(Win.Create_keyval(delete_fn=holder.forget), 1)
    return win

def exposed(win):
    win.Post(world.group)
    win.Start(world.group)
    win.Put(one, peer)
    return win

def allocate(nbytes=64):
    win = Win.Allocate(nbytes, 8, comm=world)
    win.Fence(MPI.MODE_NOSUCCEED)
    return win

def owners():
    Owner = holder.Owner
    alias = Win.Create(bytearray(64), comm=world)
    dynamic = Win.Create_dynamic(comm=world)
    dynamic.Attach(np.zeros(8))
    fenced = allocate()
    fenced.Fence()
    fenced.Put(one, peer)
    window = rmaext.Window.allocate(world, 8)
    window.put(one, peer)
    yield Owner(allocate(), ("Free",))
    yield Owner(allocate(), ("free",))
    yield Owner(alias, ("Free",)), Owner(Win(alias), ("Flush_all",))
    yield Owner(named(allocate()), ("Free",))
    yield Owner(locked(allocate()), ("Unlock_all",), ("Free",))
    yield Owner(locked(allocate(), me, peer) if me != peer else locked(allocate(), me),
                ("Unlock", me), ("Unlock", peer), ("Free",))
    yield Owner(fenced, ("Fence",), ("Free",))
    yield Owner(locked(allocate(), peer), ("Flush", peer), ("Flush_all",), ("Unlock", peer))
    yield Owner(exposed(allocate()), ("Complete",), ("Wait",), ("Free",))
    yield Owner(exposed(allocate()), ("Complete",), ("Test",), ("Free",))
    yield Owner(dynamic, ("Free",))
    yield Owner(Win.Allocate_shared(64, comm=MPI.COMM_SELF), ("Free",))
    yield Owner(window, ("close",)), Owner(window.subwindow(0, 2), ("close",))
    yield Owner(rmaext.Window(world, [np.zeros(2), np.zeros(3)]), ("close",))
    yield Owner(rmaext.Window.dynamic(world), ("close",))
    yield Owner(containers.Dict(world, "i8", "f8", 64), ("close",))
    yield Owner(containers.TaskQueue(world, "i8", 64), ("close",))
    yield Owner(containers.Store(world, np.zeros((4, 2))), ("close",))
    yield Owner(containers.Published(world, 8), ("close",))
"""

KEEP = """
def fails():
    kept = [*owners()]
    raise ValueError

gc.disable()  # it would free windows at different times on different ranks
holder.kept = [*owners()]
kept = [*owners()]
for it in owners():
    them = [it]
    them.append(them)
builtins.kept_here = [*owners()]
try:
    fails()
except ValueError as exc:
    holder.error = exc
world.Barrier()
"""


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_del_at_exit(route):
    """It is silent, whoever has the object, and in whatever order modules go.

    But what others may wait for when the program ends is told.
    """
    env = {"RMAEXT_ROUTE": "fabric"} if route == "fabric" else None
    done = jobs.start(2, f"HOLDER = {HOLDER!r}\n{MADE}\n{KEEP}", env=env)
    told = [
        re.fullmatch(
            r"rank [01] has come to the end of its program: "
            r"(window \d+: (locks are held, of rank [01](, 1)?: unlock them"
            r"|a start has no complete yet: call complete first)(; |$))+",
            line,
        )
        for line in done.stderr.splitlines()
    ]
    assert done.returncode == 0, done.stderr
    assert len(told) == 2, done.stderr
    assert all(told), done.stderr
    assert done.stdout.count("+") > 2 * 3 * 21, done.stdout  # some the interpreter never deletes


COLLECTED = """
import gc
import numpy as np
import rmaext
from rmaext.compat import Win
from mpi4py import MPI

class Owner:
    def __init__(self, win):
        self.win, self.me = win, self
        self.view = win.subwindow(1, 3) if isinstance(win, rmaext.Window) else Win(win)
        self.used = []
    def __del__(self):
        if isinstance(self.win, Win):
            self.win.Lock(0)
            self.win.Put(np.full(1, 7.0), 0, 1)
            self.view.Flush(0)
            found = np.frombuffer(self.win)[1]
            self.win.Unlock(0)
            self.win.Free()
        else:
            self.view.put(7.0, 0)
            self.view.flush()
            self.win.fence()
            found = self.win.get(0, 1, 1)[0]
            self.win.close()
        print("+" if found == 7 else found)

gc.disable()
for turn in range(3):
    for win in (
        rmaext.Window.allocate(MPI.COMM_SELF, 8),
        rmaext.Window(MPI.COMM_SELF, np.zeros(8)),
        *([rmaext.Window.shared(MPI.COMM_SELF, 8)] if SHARED else []),
        Win.Allocate(64, 8),
        Win.Create(bytearray(64), 8),
    ):
        Owner(win)
    del win
    gc.collect()
"""


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_windows_in_cycles(route):
    """`__del__` of an object in the same cycle may use them: C's part of them is still there."""
    env = {"RMAEXT_ROUTE": "fabric"} if route == "fabric" else None
    done = jobs.start(1, f"SHARED = {route == 'direct'}\n{COLLECTED}", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["+"] * 3 * (5 if route == "direct" else 4)
