# SPDX-License-Identifier: BSD-3-Clause
"""The last rank is lost; the others get PeerLostError and go on.

    mpiexec -n 3 python killed.py SCENARIO [own | nodes | NAMESPACES]

With "own" the windows are over arrays of NumPy's, not of the arena. With
"nodes" each rank pretends to be on a node of its own; NAMESPACES are pids,
one a rank, whose network namespaces are hosts. Needs a launcher
that lets the survivors run. They leave by os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np

faulthandler.dump_traceback_later(40, exit=True)  # also of a rank that hangs in MPI_Init

from mpi4py import MPI  # noqa: E402
from support import netns  # noqa: E402
from support.processes import state, stop, wait_for_end  # noqa: E402

comm = MPI.COMM_WORLD
scenario, several = sys.argv[1], "nodes" in sys.argv
if several:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"
if sys.argv[-1][0].isdigit() and "," in sys.argv[-1]:
    namespace = sys.argv[-1].split(",")[comm.rank]
    netns.enter(int(namespace))
    os.environ["RMAEXT_NODE"] = namespace

from support.operations import INDEXED, OPERATIONS, carry_out  # noqa: E402

import rmaext  # noqa: E402

# Far more than a loss takes to be noticed, unless there is no other sign of it.
TIMEOUT = float(os.environ.setdefault("RMAEXT_TIMEOUT", "60"))
BOUND = 8.0
VICTIM = comm.size - 1
LARGE = 1 << 17  # 1 MiB
RDMA = os.environ.get("RMAEXT_TRANSPORT") == "ucx"  # does without the target's CPU
pids = comm.allgather(os.getpid())
slowest = [0.0, ""]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def stop_victim() -> None:
    """All survivors call it."""
    SURVIVORS.Barrier()
    if comm.rank == 0:
        stop(pids[VICTIM])
    SURVIVORS.Barrier()


def kill_victim_soon() -> None:
    if comm.rank == 0:
        threading.Timer(0.5, os.kill, (pids[VICTIM], signal.SIGKILL)).start()


def lost(what: str, action: Callable[[], object]) -> None:
    """Require PeerLostError that names the victim, the call and the window, before long."""
    start = time.monotonic()
    try:
        action()
    except rmaext.PeerLostError as exc:
        text = str(exc)
    else:
        raise AssertionError(f"{what}: succeeded on a lost rank")
    assert str(VICTIM) in text, text
    assert re.match(r"(\w+: |[\w ]+ of )(a |new )*window", text), text
    slowest[:] = max(slowest, [time.monotonic() - start, what])
    assert slowest[0] < BOUND, f"{what} took {slowest[0]:.1f} s"


def put_flush(win: rmaext.Window, data: np.ndarray) -> None:
    win.put(data, VICTIM)
    win.flush(VICTIM)


def put_part_flush(win: rmaext.Window) -> None:
    win[VICTIM, :6000:2] = np.zeros(3000, "i8")
    win.flush(VICTIM)


def operations(win: rmaext.Window) -> dict[str, Callable[[], object]]:
    return {
        "get": lambda: win.get(VICTIM, 0, 1),
        "get 1 MiB": lambda: win.get(VICTIM, 0, LARGE),
        "put, flush": lambda: put_flush(win, np.zeros(1, "i8")),
        "put 1 MiB, flush": lambda: put_flush(win, np.zeros(LARGE, "i8")),
        "put of a part, flush": lambda: put_part_flush(win),
        "fetch_add": lambda: win.fetch_add(1, VICTIM),
        "compare_and_swap": lambda: win.compare_and_swap(0, 1, VICTIM),
    }


def every_operation(win: rmaext.Window) -> None:
    """Each form, of one element and of more than a message has, to the victim and to all."""
    ranks, places = np.arange(20_000) % comm.size, np.arange(20_000)
    every = OPERATIONS | INDEXED
    if several and RDMA:
        del every["accumulate no_op"]  # it sends nothing, so nobody finds out
    for name, it in every.items():
        for value in [np.int64(0)] + [np.zeros(20_000, "i8")] * (not it.single):
            lost(name, partial(carry_out, it, win, value, VICTIM))
    lost("put_many to all", lambda: (win.put_many(ranks, places, 0), win.flush(VICTIM)))
    lost("get_many of all", lambda: win.get_many(ranks, places))
    lost("accumulate_many to all", lambda: (win.accumulate_many(ranks, places, 0), win.flush()))
    lost("fetch_add_many to all", lambda: win.fetch_add_many(ranks, places, 0))
    lost("get_ranges of all", lambda: win.get_ranges(ranks, places, 7))
    lost("rget_many of all", lambda: win.rget_many(ranks, places).wait())


def survivors_go_on(win: rmaext.Window, survivors: MPI.Comm) -> None:
    """They reach each other in the old window, and make new ones without the victim."""
    other = 1 - comm.rank
    for i in range(20):
        win.put(np.full(8, i, "i8"), other, 8 * comm.rank)
        win.flush(other)
        assert (win.get(other, 8 * comm.rank, 8) == i).all()
        win.fetch_add(1, other, 100)
    survivors.Barrier()
    assert win.local[100] == 20
    with rmaext.Window.allocate(survivors, 4, "i8") as new:
        new.put(np.int64(5), other, comm.rank)
        new.fence()
        assert new.local[other] == 5


def new_operations(win: rmaext.Window) -> None:
    """The victim has been gone for a while."""
    if comm.rank == VICTIM:
        die()
    wait_for_end(pids[VICTIM])
    time.sleep(0.3)
    for _ in range(2):
        for what, action in operations(win).items():
            lost(what, action)
    every_operation(win)


def in_flight(win: rmaext.Window) -> None:
    """The victim is stopped when an operation begins, and killed while it waits."""
    if comm.rank == VICTIM:
        time.sleep(600)
    what = ("get 1 MiB", "put 1 MiB, flush", "put, flush", "fetch_add")
    kind = "fetch_add" if RDMA else what[(2 * comm.rank + int(sys.argv[2])) % 4]
    action = operations(win)[kind]
    action()  # connected
    stop_victim()
    kill_victim_soon()
    lost(f"{kind}, in flight", action)
    # killed, it goes on to its end, which others may notice before that is there
    assert state(pids[VICTIM]) != "T", "not in flight: lost before it was killed"


def requests(win: rmaext.Window) -> None:
    """The victim is stopped when requests begin, and killed while they go on."""
    if comm.rank == VICTIM:
        time.sleep(600)
    for rank in range(comm.size):
        win.fetch_add(0, rank)  # connected
    stop_victim()
    good = win.rget(1 - comm.rank, 0, 5)
    bad = [
        win.rget(VICTIM, 0, LARGE),
        win.rput(np.ones(LARGE, "i8"), VICTIM),
        win.rput(1, VICTIM),
        win.rfetch_op(1, VICTIM),
        *(win.rput(1, VICTIM, i) for i in range(1000)),
    ]
    SURVIVORS.Barrier()  # the requests of both have begun
    kill_victim_soon()

    async def wait(request: rmaext.Request) -> object:
        return await request

    def until_it_ends(request: rmaext.Request) -> None:
        while not request.test():
            time.sleep(0.01)
        request.wait()

    def any_of(some: list[rmaext.Request]) -> None:
        until_it_ends(good)
        some[rmaext.Request.waitany(some)].wait()

    if sys.argv[2] == "wait":
        for request in bad:
            lost("wait", request.wait)
    elif sys.argv[2] == "test":
        for request in bad:
            lost("test", lambda request=request: until_it_ends(request))
    elif sys.argv[2] == "await":
        for request in bad:
            lost("await", lambda request=request: asyncio.run(wait(request)))
    elif sys.argv[2] == "waitany":
        lost("waitany", lambda: any_of(bad))
    elif sys.argv[2] == "waitall":
        lost("waitall", lambda: rmaext.Request.waitall([good, *bad]))
        assert good.done
        assert all(request.done for request in bad)
    else:
        lost("flush", lambda: win.flush(VICTIM))
        del bad
    assert good.wait().shape == (5,)
    for what in (lambda: win.rput(1, VICTIM).wait(), lambda: win.rget(VICTIM).wait()):
        lost("a new one", what)


def fence(win: rmaext.Window) -> None:
    """The others wait for it."""
    if comm.rank == VICTIM:
        time.sleep(0.5)
        die()
    lost("fence", win.fence)
    assert win.closed
    win.close()  # harmless


def fence_behind(win: rmaext.Window) -> None:
    """The victim is stopped, and killed while what a fence tells it is behind many puts."""
    fenced = rmaext.Window.allocate(comm, 1)
    if comm.rank == VICTIM:
        time.sleep(600)
    stop_victim()
    puts = [win.rput(np.ones(LARGE, "i8"), VICTIM) for _ in range(16)]
    SURVIVORS.Barrier()  # the puts of both have begun
    kill_victim_soon()
    lost("fence", fenced.fence)
    for put in puts:
        lost("wait", put.wait)


def close(win: rmaext.Window) -> None:
    if comm.rank == VICTIM:
        die()
    time.sleep(0.2)
    lost("close", win.close)
    assert win.closed


def create(win: rmaext.Window) -> None:
    if comm.rank == VICTIM:
        time.sleep(0.3)
        die()
    lost("Window.allocate", lambda: rmaext.Window.allocate(comm, 4))


def main() -> None:
    make = np.zeros if "own" in sys.argv else rmaext.zeros
    win, used = (rmaext.Window(comm, make(LARGE, "i8")) for _ in range(2))
    for rank in range(comm.size):
        win.get(rank, 0, 1)
    comm.Barrier()
    scenarios = (new_operations, in_flight, requests, fence, fence_behind, close, create)
    {f.__name__: f for f in scenarios}[scenario](used)
    survivors_go_on(win, SURVIVORS)
    text = f"rank {comm.rank}, {scenario}: slowest {slowest[1]}, {slowest[0]:.2f} s, OK\n"
    os.write(1, text.encode())


SURVIVORS = comm.Split(comm.rank != VICTIM, comm.rank)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
