# SPDX-License-Identifier: BSD-3-Clause
"""All ranks but rank 0 wait in rmaext until rank 0 comes; first it needs their MPI.

mpiexec -n 2 python mpi_progress.py LEVEL MIB CELL,CELL,...

A cell is CALL/TRAFFIC. The waiting ranks start their half of the traffic and enter the
call, which cannot end before rank 0 does its part of it. Rank 0 does its half of the
traffic first, which cannot end unless MPI moves on the waiting ranks. Where that takes
longer than the patience below, rank 0 does its part all the same, so that the cell is
"stuck" and the next one can follow.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time

import mpi4py

LEVEL, MIB, CELLS = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
mpi4py.rc.thread_level = LEVEL

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import rmaext  # noqa: E402
from rmaext.compat import Win  # noqa: E402

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if "NODES" in os.environ:
    os.environ["RMAEXT_NODE"] = f"node {rank % int(os.environ['NODES'])}"
WAITERS = range(1, size)
WATCHDOG = 12  # seconds a cell
PATIENCE = [3.0, 3.0, 3.0, 0.3]  # seconds, for the first ones that are stuck and all others
PER_MIB = 0.03  # seconds more
HEAD_START = 0.01  # seconds in which the waiting ranks enter their call
BUSY, DATA = 9, 10  # slots
ONE = np.ones(1)
turn = 0  # number of the cell, the same on all ranks

win = rmaext.Window.allocate(world, 64)
win.local[:] = 0
view = win.subwindow(0, 8)
shared = Win.Allocate(64 * 8, 8, comm=world)  # the drop-in's
shared_memory = np.frombuffer(shared, "f8")
target = np.zeros(size)
ticket = world.bcast(win.export() if rank == 0 and "busy" in str(CELLS) else None)


# -- calls that wait for rank 0 ------------------------------------------------------
# Each goes on behind its yield on the waiting ranks at once, on rank 0 after the traffic.


def both(do):
    """All ranks call the same."""

    def call():
        yield
        do()

    return call


def told(wait):
    """Rank 0 notifies."""

    def call():
        yield
        if rank:
            wait()
        else:
            for other in WAITERS:
                win.put_notify(ONE, other, 8, DATA)
            win.flush()

    return call


def until():
    yield
    if rank:
        win.wait_until(1, "==", turn)
    else:
        for other in WAITERS:
            win.put(np.full(1, float(turn)), other, 1)
        win.flush()


def held(of, take, give, where=None):
    """Rank 0 holds a lock, its own or the waiting rank's."""

    def call():
        places = [0] if where is None else list(WAITERS)
        if rank == 0:
            for place in places:
                of.lock(place, exclusive=True)
        yield
        if rank:
            take()
            give()
        else:
            for place in places:
                of.unlock(place)

    return call


def start():
    yield
    if rank:
        win.start([0])
        win.complete()
    else:
        win.post(WAITERS)
        win.wait()


def wait():
    if rank:
        win.post([0])
    yield
    if rank:
        win.wait()
    else:
        win.start(WAITERS)
        win.complete()


def closing(make):
    def call():
        other = make()
        yield
        other.close()

    return call


def creation(make, over_new=False):
    def call():
        comm = world.Dup() if over_new else world
        yield
        made = make(comm)
        made.close()
        if over_new:
            comm.Free()

    return call


def done_with_it():
    """Rank 0 need serve no more."""
    win.put_notify(ONE, 0, 8, BUSY)
    win.flush()


def serve():
    """Rank 0 waits for all others to say so."""
    for _ in WAITERS:
        win.wait_notify(BUSY)


def busy(do):
    """Rank 0 serves the network in rmaext only (RMAEXT_PROGRESS=0)."""

    def call():
        yield
        if rank:
            do()
            done_with_it()
        else:
            serve()

    return call


def unlock_after_put():
    with win.lock(0):
        win.put(np.ones(8), 0, 8)


async def await_get():
    await win.rget(0, 0, 1)


def await_many():
    async def many():
        await asyncio.gather(*(await_of(win.rget(0, i, 1)) for i in range(4)))

    async def await_of(request):
        return await request

    asyncio.run(many())


def remote(do):
    def use():
        with rmaext.RemoteWindow.attach(ticket) as other:
            do(other)

    return busy(use)


def attached(do):
    """As `remote`, but only the operation waits; the ticket was taken before."""

    def call():
        if rank:
            other = rmaext.RemoteWindow.attach(ticket)
            done_with_it()
        else:
            serve()
        yield
        if rank:
            do(other)
            other.close()
            done_with_it()
        else:
            serve()

    return call


# the drop-in


def c_lock(kind):
    def call():
        if rank == 0:
            shared.Lock(0, MPI.LOCK_EXCLUSIVE)
            shared.Put(ONE, 0)
            shared.Flush(0)
        yield
        if rank:
            shared.Lock(0, kind)
            shared.Get(ONE.copy(), 0)
            shared.Unlock(0)
        else:
            shared.Unlock(0)

    return call


def c_lock_all():
    if rank == 0:
        shared.Lock(0, MPI.LOCK_EXCLUSIVE)
        shared.Put(ONE, 0)
        shared.Flush(0)
    yield
    if rank:
        shared.Lock_all()
        shared.Get(ONE.copy(), 0)
        shared.Flush(0)
        shared.Unlock_all()
    else:
        shared.Unlock(0)


def groups():
    everybody = shared.Get_group()
    return everybody.Incl([0]), everybody.Incl(list(WAITERS))


def c_start():
    first, others = groups()
    yield
    if rank:
        shared.Start(first)
        shared.Put(ONE, 0)
        shared.Complete()
    else:
        shared.Post(others)
        shared.Wait()


def c_wait(wait_in):
    def call():
        first, others = groups()
        if rank:
            shared.Post(first)
        yield
        if rank:
            wait_in()
        else:
            shared.Start(others)
            shared.Complete()

    return call


def c_test():
    while not shared.Test():
        pass


def c_closing():
    other = Win.Allocate(64, 8, comm=world)
    yield
    other.Free()


def c_creation(make):
    def call():
        yield
        make().Free()

    return call


def c_busy(do):
    def use():
        shared.Lock(0, MPI.LOCK_SHARED)
        do()
        shared.Unlock(0)

    return busy(use)


# loops that look again and again


def poll(look):
    """The waiting ranks look until they find the number of the cell in rank 0's window."""

    def call():
        yield
        if rank:
            while look() != turn:
                pass
        else:
            win.local[2] = turn

    return call


def poll_own(do):
    """They find it in their own memory, with a call between the looks."""

    def call():
        yield
        if rank:
            while win.local[1] != turn:
                do()
        else:
            for other in WAITERS:
                win.put(np.full(1, float(turn)), other, 1)
            win.flush()

    return call


def poll_test_notify():
    while not win.test_notify(DATA):
        pass


def poll_test():
    while not win.test():
        pass


def poll_request():
    request = win.rget(0, 2, 1)
    while not request.test():
        pass
    return request.result()[0]


def poll_lock():
    with win.lock(0):
        return win.get(0, 2, 1)[0]


def wait_by_polls():
    if rank:
        win.post([0])
    yield
    if rank:
        poll_test()
    else:
        win.start(WAITERS)
        win.complete()


def c_poll_get():
    found = np.zeros(1)
    yield
    if rank:
        shared.Lock_all()
        while found[0] != turn:
            shared.Get(found, 0, 3)
            shared.Flush(0)
        shared.Unlock_all()
    else:
        shared_memory[3] = turn


def allocate(comm=world):
    return rmaext.Window.allocate(comm, 8)


CALLS = {
    "Barrier of MPI": both(world.Barrier),  # what all others are measured by
    # all wait for rank 0
    "fence": both(win.fence),
    "view fence": both(view.fence),
    "lock": held(win, lambda: win.lock(0, True), lambda: win.unlock(0)),
    "shared lock": held(win, lambda: win.lock(0, False), lambda: win.unlock(0)),
    "lock of the own part": held(
        win, lambda: win.lock(rank, True), lambda: win.unlock(rank), "there"
    ),
    "view lock": held(view, lambda: view.lock(0, True), lambda: view.unlock(0)),
    "lock_all": held(win, win.lock_all, win.unlock_all),
    "wait_notify": told(lambda: win.wait_notify(DATA)),
    "wait_any": told(lambda: win.wait_any([DATA, DATA + 1])),
    "wait_some": told(lambda: win.wait_some([DATA, DATA + 1])),
    "wait_all": told(lambda: win.wait_all([DATA])),
    "wait_until": until,
    "start": start,
    "wait": wait,
    "close": closing(allocate),
    "close Window": closing(lambda: rmaext.Window(world, np.zeros(8))),
    "Window": creation(lambda comm: rmaext.Window(comm, np.zeros(8))),
    "allocate": creation(allocate),
    "first window": creation(allocate, over_new=True),
    "list": creation(lambda comm: rmaext.Window(comm, [np.zeros(8), np.zeros(3)])),
    "dynamic": creation(rmaext.Window.dynamic),
    "shared": creation(lambda comm: rmaext.Window.shared(comm, 8)),
    # the drop-in
    "Fence": both(shared.Fence),
    "Lock": c_lock(MPI.LOCK_EXCLUSIVE),
    "Lock shared": c_lock(MPI.LOCK_SHARED),
    "Lock_all": c_lock_all,
    "Start": c_start,
    "Wait": c_wait(lambda: shared.Wait()),
    "Free": c_closing,
    "Create": c_creation(lambda: Win.Create(np.zeros(8), 8, comm=world)),
    "Allocate": c_creation(lambda: Win.Allocate(64, 8, comm=world)),
    "Allocate_shared": c_creation(lambda: Win.Allocate_shared(64, 8, comm=world)),
    "Create_dynamic": c_creation(lambda: Win.Create_dynamic(comm=world)),
    # loops
    "poll get": poll(lambda: win.get(0, 2, 1)[0]),
    "poll index": poll(lambda: win[0, 2]),
    "poll fetch_add": poll(lambda: win.fetch_add(0.0, 0, 2)),
    "poll fetch_op": poll(lambda: win.fetch_op(0.0, 0, 2, "no_op")),
    "poll lock": poll(poll_lock),
    "poll request": poll(poll_request),
    "poll test_notify": told(poll_test_notify),
    "poll test": wait_by_polls,
    "poll flush": poll_own(win.flush),
    "poll put and flush": poll_own(lambda: (win.put(ONE, 0, 8), win.flush(0))),
    "poll Get and Flush": c_poll_get,
    "poll Test": c_wait(c_test),
    # rank 0 is busy, and the network is its own to serve
    "busy get": busy(lambda: win.get(0, 0, 1)),
    "busy large get": busy(lambda: win.get(0, 0, 64)),
    "busy put": busy(lambda: (win.put(ONE, 0, 8), win.flush(0))),
    "busy fetch_add": busy(lambda: win.fetch_add(0.0, 0, 8)),
    "busy accumulate": busy(lambda: (win.accumulate(ONE, 0, 8), win.flush())),
    "busy compare_and_swap": busy(lambda: win.compare_and_swap(0.0, 0.0, 0, 8)),
    "busy index": busy(lambda: win[0, 2:8:2]),
    "busy lock": busy(lambda: (win.lock(0, True), win.unlock(0))),
    "busy unlock": busy(unlock_after_put),
    "busy request": busy(lambda: win.rget(0, 0, 1).wait()),
    "busy waitall": busy(
        lambda: rmaext.Request.waitall([win.rget(0, i, 1) for i in range(4)]),
    ),
    "busy waitany": busy(lambda: rmaext.Request.waitany([win.rget(0, 0, 1)])),
    "busy await": busy(lambda: asyncio.run(await_get())),
    "busy gather": busy(await_many),
    "busy attach": remote(lambda other: None),
    "busy remote get": attached(lambda other: other.get(0, 0, 1)),
    "busy remote fetch_add": attached(lambda other: other.fetch_add(0.0, 0, 8)),
    "busy remote flush": attached(lambda other: (other.put(ONE, 0, 8), other.flush())),
    "busy Get": c_busy(lambda: shared.Get(ONE.copy(), 0)),
    "busy Flush": c_busy(lambda: (shared.Put(ONE, 0, 8), shared.Flush(0))),
    "busy Rget": c_busy(lambda: shared.Rget(ONE.copy(), 0).Wait()),
}


# -- traffic -----------------------------------------------------------------------------


class Ssend:
    """A synchronous message to each waiting rank."""

    def begin(self):
        self.data = np.full(1, float(turn))
        if rank == 0:
            return [world.Issend(self.data, other, turn) for other in WAITERS]
        self.data[:] = 0
        return [world.Irecv(self.data, 0, turn)]

    def more(self):
        pass

    def check(self):
        return bool(self.data[0] == turn)


class Exchange(Ssend):
    """A message each way."""

    def __init__(self, nbytes):
        self.count = nbytes // 8

    def begin(self):
        others = WAITERS if rank == 0 else [0]
        self.mine = np.full(self.count, turn + rank / 8)
        self.theirs = {other: np.zeros(self.count) for other in others}
        requests = [world.Irecv(self.theirs[other], other, turn) for other in others]
        return requests + [world.Isend(self.mine, other, turn) for other in others]

    def check(self):
        return all((data == turn + other / 8).all() for other, data in self.theirs.items())


class Iallreduce(Ssend):
    """A collective of several steps."""

    def begin(self):
        self.mine, self.sum = np.full(100_000, float(turn)), np.zeros(100_000)
        return [world.Iallreduce(self.mine, self.sum)]

    def check(self):
        return bool((self.sum == size * turn).all())


class MpiWin(Ssend):
    """One of MPI's own windows: first what can be tested for, then Put and Flush."""

    mpi_win = MPI.Win.Create(target, 8, comm=world)

    def __init__(self):
        self.mpi_win.Lock_all()

    def begin(self):
        self.old, self.data = np.zeros(size), np.full(1, float(turn))
        if rank:
            return []
        return [
            self.mpi_win.Rget_accumulate(
                self.data, self.old[other : other + 1], other, 0, op=MPI.REPLACE
            )
            for other in WAITERS
        ]

    def more(self):
        if rank == 0:
            for other in WAITERS:
                self.mpi_win.Put(self.data, other, 1)
                self.mpi_win.Flush(other)

    def check(self):
        self.mpi_win.Sync()
        return rank == 0 or target.tolist()[:2] == [turn, turn]


TRAFFIC = {
    "ssend": Ssend(),
    "exchange": Exchange(8),
    "large": Exchange(MIB << 20),
    "iallreduce": Iallreduce(),
    "win": MpiWin(),
}


# -- the table ---------------------------------------------------------------------------


def reach(requests, seconds):
    """Whether they are done in time. No call blocks, so that this rank can go on."""
    end = time.monotonic() + seconds
    while not MPI.Request.Testall(requests):
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def run(cell):
    """Return what came of a cell, on rank 0."""
    name, _, kind = cell.partition("/")
    call, traffic, words = CALLS[name](), TRAFFIC[kind], "ok"
    patience = PATIENCE[0] + (PER_MIB * MIB if kind == "large" else 0)
    next(call)
    world.Barrier()
    if rank:
        requests = traffic.begin()
        next(call, None)
        left = time.monotonic()
    else:
        time.sleep(HEAD_START)
        requests, start = traffic.begin(), time.monotonic()
        if reach(requests, patience):
            traffic.more()
            words = f"ok, {1e3 * (time.monotonic() - start):.1f} ms"
        else:
            words = f"stuck for {patience:g} s"
            if len(PATIENCE) > 1:
                PATIENCE.pop(0)
        left = time.monotonic()
        next(call, None)
    MPI.Request.Waitall(requests)
    world.Barrier()
    ends = world.gather((traffic.check(), left))
    if rank == 0 and words.startswith("ok"):
        if not all(good for good, _ in ends):
            words = "wrong data"
        if min(left for _, left in ends[1:]) < ends[0][1]:
            words = "the call did not wait"
    return words


for one in CELLS:
    turn += 1
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    result = run(one)
    if rank == 0:
        os.write(1, f"cell {one}: {result}\n".encode())
faulthandler.dump_traceback_later(WATCHDOG, exit=True)
if rank == 0:
    given = ("single", "funneled", "serialized", "multiple")
    os.write(1, f"level {given[MPI.Query_thread()]}\n".encode())
MpiWin.mpi_win.Unlock_all()
MpiWin.mpi_win.Free()
shared.Free()
win.close()
faulthandler.cancel_dump_traceback_later()
