# SPDX-License-Identifier: BSD-3-Clause
"""Parts of windows in threads, interrupted, and of targets that are stopped.

mpiexec -n 2 python indexing.py threads | interrupt | stopped
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from support.processes import stopped, times_out

import rmaext

comm = MPI.COMM_WORLD
SHAPE = (300, 3000)
TARGET = comm.size - 1
pids = comm.allgather(os.getpid())

# by elements of messages, and by writes and reads of long runs
KEYS = [(slice(None), slice(None, 2000, 3)), (slice(None, None, 2), slice(5, 2800))]


def threads() -> None:
    """Several on both ranks write and read rows and columns of their own."""
    with rmaext.Window.allocate(comm, SHAPE, "i8") as win:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            rows, columns = slice(number, 100, 9), slice(number, None, 9)
            number += 10 * comm.rank
            try:
                for k in range(20):
                    to = k % 2
                    win[to, number] = number + k
                    assert (win[to, number] == number + k).all()
                    win[to, 100 + number, columns] = k
                    assert (win[to, 100 + number, columns] == k).all()
                    win.at(TARGET).add(([200, 200], number), 1)
                    assert win[1 - to, rows].shape[1] == SHAPE[1]
            except BaseException as exc:
                failures.append(exc)

        all_ = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in all_:
            thread.start()
        for thread in all_:
            thread.join()
        assert not failures, failures
        win.fence()
        if comm.rank == TARGET:
            want = np.zeros(20)
            want[1:5] = want[11:15] = 40
            assert (win.local[200, :20] == want).all(), win.local[200, :20]
        win.fence()


def with_stopped(
    error: type[BaseException], least: float, limit: float, prepare: Callable[[], object]
) -> None:
    with rmaext.Window.allocate(comm, SHAPE, timeout=20) as win:
        hasty = win.dup(timeout=limit)
        win.fence()
        if comm.rank == 0:
            model = np.zeros(SHAPE)
            for key in KEYS:
                win[(TARGET, *key)]
                calls = (
                    lambda key=key: hasty[(TARGET, *key)],
                    lambda key=key: hasty.__setitem__((TARGET, *key), 1.0),
                )
                with stopped(pids[TARGET]):
                    for call in calls:
                        times_out(error, least, lambda call=call: (prepare(), call()))
                # the target runs on, and all works again
                time.sleep(0.3)
                values = np.random.default_rng(1).random(model[key].shape)
                try:
                    win[(TARGET, *key)] = values
                    win.flush()
                except rmaext.RmaTimeout:  # of a put that was given up
                    win[(TARGET, *key)] = values
                    win.flush()
                model[key] = values
                assert (win[(TARGET, *key)] == model[key]).all()
        comm.Barrier()


def interrupt() -> None:
    def prepare() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with_stopped(KeyboardInterrupt, 0.25, 20, prepare)


def stopped_target() -> None:
    with_stopped(rmaext.RmaTimeout, 0.99, 1.0, lambda: None)


faulthandler.dump_traceback_later(35, exit=True)
try:
    {"threads": threads, "interrupt": interrupt, "stopped": stopped_target}[sys.argv[1]]()
    os.write(1, f"rank {comm.rank}, {sys.argv[1]}: OK\n".encode())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
