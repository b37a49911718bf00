# SPDX-License-Identifier: BSD-3-Clause
"""Rank 3 of 4 is lost while it has, or waits for, a lock; the others go on.

    mpiexec -n 4 python locks.py SCENARIO [nodes] [seed=N]

With "nodes" each rank pretends to be on a node of its own. Needs a launcher that
lets the survivors run. They leave by os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np
from mpi4py import MPI
from support import lock_programs
from support.processes import alive, wait_for_end

comm = MPI.COMM_WORLD
scenario = sys.argv[1]
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"
seed = next((int(a[5:]) for a in sys.argv if a.startswith("seed=")), 1)

import rmaext  # noqa: E402

BOUND = 15.0 if "nodes" in sys.argv else 5.0
VICTIM = 3
pids = comm.allgather(os.getpid())
survivors = comm.Split(comm.rank != VICTIM, comm.rank)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive")


def drawn(win: rmaext.Window) -> int:
    return int(win._block.window.get(0, win._state("test").places.next, 1)[0])


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.001)


def lost(action: Callable[[], object]) -> None:
    """Require PeerLostError that names the victim, before long."""
    start = time.monotonic()
    try:
        action()
    except rmaext.PeerLostError as exc:
        error = exc
    else:
        raise AssertionError("succeeded")
    assert error.rank == VICTIM, error
    assert f"rank {VICTIM}" in str(error), error
    took = time.monotonic() - start
    assert took < BOUND, f"took {took:.1f} s"


def turns() -> Iterator[None]:
    """Go round until the victim has been dead for a second; it dies at any moment meanwhile."""
    if comm.rank == VICTIM:
        threading.Timer(0.3 + random.Random(seed).random() * 0.3, die).start()
    end = float("inf")
    while time.monotonic() < end:
        if end == float("inf") and not alive(pids[VICTIM]):
            end = time.monotonic() + 1
        yield


def others_count(win: rmaext.Window, rounds: int = 20) -> None:
    """The survivors use the lock of rank 0, and lose no update."""
    survivors.Barrier()
    before = win.get(0, 0, 1)[0]
    survivors.Barrier()
    for _ in range(rounds):
        with win.lock(0, exclusive=True, timeout=20):
            win.put(win.get(0, 0, 1) + 1, 0)
    survivors.Barrier()
    assert win.get(0, 0, 1)[0] == before + 3 * rounds


def killed_writer(win: rmaext.Window) -> None:
    """Whoever comes later learns it, too, and quickly; other targets' locks go on."""
    if comm.rank == VICTIM:
        win.lock(0, exclusive=True)
        comm.Barrier()
        until(lambda: drawn(win) == 4)  # all are queued
        die()
    comm.Barrier()
    lost(lambda: win.lock(0, exclusive=bool(comm.rank % 2)))
    for exclusive in (False, True):
        lost(lambda exclusive=exclusive: win.lock(0, exclusive))
    lost(win.lock_all)
    with win.lock(1, exclusive=True), win.lock(2, exclusive=False):
        win.fetch_add(1, 1)
    survivors.Barrier()
    assert comm.rank != 1 or win.local[0] == 3


def killed_reader(win: rmaext.Window) -> None:
    """Writers wait in vain; readers go on."""
    if comm.rank == VICTIM:
        win.lock(0, exclusive=False)
        comm.Barrier()
        until(lambda: drawn(win) >= 2)
        die()
    comm.Barrier()
    if comm.rank == 1:
        lost(lambda: win.lock(0, exclusive=True))
    survivors.Barrier()
    for _ in range(10):
        with win.lock(0, exclusive=False, timeout=20):
            win.fetch_add(1, 0)
    survivors.Barrier()
    assert win.get(0, 0, 1)[0] == 30


def killed_in_the_queue(win: rmaext.Window) -> None:
    """Its place is passed over."""
    if comm.rank == 0:
        win.lock(0, exclusive=True)
    comm.Barrier()
    if comm.rank == VICTIM:
        win.lock(0, exclusive=True)
    if comm.rank == 0:
        until(lambda: drawn(win) == 2)
        threading.Timer(0.2, os.kill, (pids[VICTIM], signal.SIGKILL)).start()
        survivors.Barrier()
        until(lambda: drawn(win) == 4)
        wait_for_end(pids[VICTIM])
        time.sleep(0.3)
        win.unlock(0)
    else:
        survivors.Barrier()
        start = time.monotonic()
        with win.lock(0, exclusive=comm.rank == 1, timeout=20):
            assert time.monotonic() - start < 0.5 + BOUND
    others_count(win)


def killed_unrelated(win: rmaext.Window) -> None:
    """It has had the lock, and gives it back; others hold it for long."""
    with win.lock(0, exclusive=False), win.lock(1, exclusive=False):
        comm.Barrier()
    comm.Barrier()
    if comm.rank == VICTIM:
        die()
    for _ in range(2):
        with win.lock(0, exclusive=True):
            time.sleep(0.4)
    others_count(win)


def killed_in_a_loop(win: rmaext.Window) -> None:
    """At any moment: either the others can go on, or they learn who had the lock."""
    for _ in turns():
        start = time.monotonic()
        try:
            with win.lock(0, exclusive=random.random() < 0.5):
                win.put(win.get(0, 0, 1) + 1, 0)
        except rmaext.PeerLostError as exc:
            if exc.rank != VICTIM:
                raise
        assert time.monotonic() - start < BOUND


def killed_in_a_program(win: rmaext.Window) -> None:
    """At any moment of random programs that hold several locks at once."""
    wins = [win, rmaext.Window.allocate(comm, 1)]
    for number, _ in enumerate(turns(), 1000 * seed):
        held: list[lock_programs.Step] = []
        for step in lock_programs.make(number, comm.size, comm.size)[comm.rank]:
            start = time.monotonic()
            try:
                if step.take:
                    take(wins[step.window], step)
                    held.append(step._replace(take=False))
                else:
                    drop(wins[step.window], step)
                    held.remove(step)
            except rmaext.RmaTimeout:
                break
            except rmaext.PeerLostError as exc:
                if exc.rank != VICTIM:
                    raise
                if not step.take:  # it is released all the same
                    held.remove(step)
                break
            assert time.monotonic() - start < BOUND
        for step in held:
            with contextlib.suppress(rmaext.PeerLostError):
                drop(wins[step.window], step)


def take(win: rmaext.Window, step: lock_programs.Step) -> None:
    if step.rank is None:
        win.lock_all(timeout=0.2)
    else:
        win.lock(step.rank, step.exclusive, timeout=0.2)


def drop(win: rmaext.Window, step: lock_programs.Step) -> None:
    if step.rank is None:
        win.unlock_all()
    else:
        win.unlock(step.rank)


def interrupted_in_the_queue(win: rmaext.Window) -> None:
    """By Ctrl-C, and then killed without a word; nobody is lost to the lock."""
    if comm.rank == 0:
        win.lock(0, exclusive=True)
    comm.Barrier()
    if comm.rank == VICTIM:
        try:
            win.lock(0, exclusive=True)
        except KeyboardInterrupt:
            die()
    if comm.rank == 0:
        until(lambda: drawn(win) >= 2)  # the victim is the first to queue up
        time.sleep(0.2)
        os.kill(pids[VICTIM], signal.SIGINT)
        until(lambda: drawn(win) == 4)
        wait_for_end(pids[VICTIM])
        time.sleep(0.3)
        win.unlock(0)
    else:
        until(lambda: drawn(win) >= 2)
        with win.lock(0, exclusive=False, timeout=20):
            pass
    others_count(win)


def left(win: rmaext.Window) -> None:
    """By an exception; its process lives on in MPI_Finalize."""
    if comm.rank == VICTIM:
        win.lock(0, exclusive=True)
        comm.Barrier()
        raise ZeroDivisionError
    comm.Barrier()
    lost(lambda: win.lock(0, exclusive=False))


def start(win: rmaext.Window) -> None:
    """It never posts."""
    if comm.rank == VICTIM:
        time.sleep(0.3)
        die()
    lost(lambda: win.start([0, VICTIM]) if comm.rank else win.start([VICTIM]))
    survivors.Barrier()
    everybody = [rank for rank in range(3) if rank != comm.rank]
    win.post(everybody)
    win.start(everybody)
    win.complete()
    win.wait()


def wait(win: rmaext.Window) -> None:
    """It never completes."""
    if comm.rank == VICTIM:
        win.start([0, 1, 2])
        die()
    win.post([VICTIM])
    lost(win.wait)
    start_again = [rank for rank in range(3) if rank != comm.rank]
    win.post(start_again)
    win.start(start_again)
    win.complete()
    win.wait()


def main() -> None:
    win = rmaext.Window.allocate(comm, 4, np.int64)
    for rank in range(comm.size):
        win.get(rank, 0, 1)
    comm.Barrier()
    globals()[scenario](win)
    survivors.Barrier()
    os.write(1, f"rank {comm.rank}, {scenario}: OK\n".encode())
    survivors.Barrier()  # the launcher may end all as soon as one has left


faulthandler.dump_traceback_later(45, exit=True)
try:
    main()
except ZeroDivisionError:
    raise
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
