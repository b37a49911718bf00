# SPDX-License-Identifier: BSD-3-Clause
"""Vectorised operations in threads, interrupted, and on targets that are gone.

    mpiexec -n 2 python vectors.py threads | interrupt | stopped
    mpiexec -n 3 python vectors.py killed during | leaving [own]

The last rank is the target. When it is killed, the launcher must let the others
run; they leave by os._exit, as MPI_Finalize would wait for it. "leaving": it
is at its end, as before MPI_Finalize. With "own" the windows are over arrays of NumPy's.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from support.processes import stop, stopped, times_out

import rmaext

comm = MPI.COMM_WORLD
N, MANY = 1000, 40_000
TARGET = comm.size - 1
PATTERN = 0x5A5A5A5A5A5A5A5A
pids = comm.allgather(os.getpid())
AT = np.arange(MANY) % N


def calls(win: rmaext.Window, out: np.ndarray) -> list[Callable[[], object]]:
    return [
        lambda: win.get_many(TARGET, AT, out),
        lambda: win.fetch_add_many(TARGET, AT, 1),
        lambda: win.accumulate_many(TARGET, AT, 1),
        lambda: win.put_many(TARGET, AT, 1),
    ]


def threads() -> None:
    """Several on both ranks add to one counter, and to places of their own."""
    with rmaext.Window.allocate(comm, N, "i8") as win:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for _ in range(20):
                    win.fetch_add_many(TARGET, np.zeros(150, int), 1)
                    win.accumulate_many([0, 1], number, np.int64(1))
                    win.fetch_add(1, TARGET, 0)
            except BaseException as exc:
                failures.append(exc)

        all_ = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in all_:
            thread.start()
        for thread in all_:
            thread.join()
        assert not failures, failures
        win.fence()
        assert win.local[:6].tolist() == [comm.rank * 151 * 20 * 4 * 2, *[40] * 4, 0]
        win.fence()


def settle(win: rmaext.Window, arrays: list[np.ndarray]) -> None:
    """The target runs on: nothing is written late, and all works again."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert all((array == PATTERN).all() for array in arrays), "a late write"
        time.sleep(0.01)
    win.put_many(TARGET, AT, AT)
    assert (win.get_many(TARGET, AT) == AT).all()
    old = win.fetch_add_many(TARGET, np.zeros(3000, int), 1)
    assert (old == np.arange(old[0], old[0] + 3000)).all()


def with_stopped(
    error: type[BaseException], least: float, limit: float, prepare: Callable[[], object]
) -> None:
    with rmaext.Window.allocate(comm, N, "i8", timeout=20) as win:
        hasty = win.dup(timeout=limit)
        win.fence()
        if comm.rank == 0:
            win.get_many(TARGET, AT)
            arrays = []
            with stopped(pids[TARGET]):
                for k in range(4):
                    out = np.full(MANY, PATTERN)
                    arrays.append(out)
                    call = calls(hasty, out)[k]
                    times_out(error, least, lambda call=call: (prepare(), call()))
            settle(win, arrays)
        comm.Barrier()


def interrupt() -> None:
    def prepare() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with_stopped(KeyboardInterrupt, 0.25, 20, prepare)


def stopped_target() -> None:
    with_stopped(rmaext.RmaTimeout, 0.99, 1.0, lambda: None)


def leave() -> None:
    """End as a program does that an exception ends, as far as rmaext has a part in that.

    Stays until the others end.
    """
    sys.last_value = ZeroDivisionError()
    others = [os.pidfd_open(pid) for pid in pids[:TARGET]]
    atexit._run_exitfuncs()
    comm.Barrier()
    for fd in others:
        select.select([fd], [], [])


def killed() -> None:
    win = rmaext.Window(comm, (np.zeros if "own" in sys.argv else rmaext.zeros)(N, "i8"))
    survivors = comm.Split(comm.rank != TARGET, comm.rank)
    everybody = np.arange(MANY) % comm.size
    win.accumulate_many(everybody, AT, 0)
    comm.Barrier()
    if comm.rank == TARGET:
        if sys.argv[2] == "leaving":
            return leave()
        time.sleep(600)
    survivors.Barrier()  # both have left the other one
    if sys.argv[2] == "leaving":
        comm.Barrier()
    elif comm.rank == 0:
        stop(pids[TARGET])
        threading.Timer(0.5, os.kill, (pids[TARGET], signal.SIGKILL)).start()
    survivors.Barrier()
    out = np.full(MANY, 3)
    more = [
        lambda: win.accumulate_many(everybody, AT, 0),
        lambda: win.compare_and_swap_many(TARGET, AT, -1, -1),
        lambda: win.get_ranges(everybody, AT // 2, 7),
        lambda: win.put_ranges(TARGET, [0, 3], 2, [0] * 4),
        lambda: win.rget_many(everybody, AT).wait(),
        lambda: win.rfetch_op_many(TARGET, AT, 0).wait(),
    ]
    for call in calls(win, out) + more:
        start = time.monotonic()
        try:
            call()
        except rmaext.PeerLostError as exc:
            text, rank = str(exc), exc.rank
        else:
            raise AssertionError("succeeded on a lost rank")
        assert rank == TARGET, text
        assert time.monotonic() - start < 8
    other = 1 - comm.rank
    for _ in range(5):
        win.accumulate_many([0, 1], AT[:, None], 1)
    old = win.fetch_add_many(other, [2 * N // 3] * 2, 0)
    assert old[0] <= 2 * 5 * MANY // N
    survivors.Barrier()
    assert (win.local == 2 * 5 * MANY // N).all()


faulthandler.dump_traceback_later(35, exit=True)
try:
    names = {"threads": threads, "interrupt": interrupt, "stopped": stopped_target}
    (names | {"killed": killed})[sys.argv[1]]()
    os.write(1, f"rank {comm.rank}, {sys.argv[1]}: OK\n".encode())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
if sys.argv[1] == "killed":
    os._exit(0)
