# SPDX-License-Identifier: BSD-3-Clause
"""Operations on a target that is stopped time out, and their late end hurts nobody.

    mpiexec -n 2 python stopped.py

Rank 0 stops rank 1, operates, drops its arrays and fills new ones; then it
lets rank 1 run on and looks whether anything changes in them.
"""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI
from support.operations import INDEXED, OPERATIONS, carry_out
from support.processes import stopped

import rmaext

SIZES = (8, 100_000)  # elements: of malloc's small blocks, of pages of their own
LIMIT = 2.0
PATTERN, SECRET, SENT = 0x5A5A5A5A5A5A5A5A, 7777, 4242
N = max(SIZES)
COUNTER = N


def times_out(action: Callable[[], object], limit: float = LIMIT) -> None:
    start = time.monotonic()
    try:
        action()
    except rmaext.RmaTimeout as exc:
        rank = exc.rank
    else:
        raise AssertionError("an operation on a stopped target succeeded")
    took = time.monotonic() - start
    assert rank == 1
    assert limit - 0.01 <= took < limit + 3, f"raised after {took:.2f} s"


def reuse(size: int) -> list[np.ndarray]:
    """Return arrays that take the place of dropped ones, with known contents."""
    gc.collect()
    return [np.full(size, PATTERN, "i8") for _ in range(200 if size < 1000 else 10)]


def intact(arrays: list[np.ndarray]) -> bool:
    return all((array == PATTERN).all() for array in arrays)


def origin(win: rmaext.Window, pid: int) -> None:
    win.get(1, 0, 1)
    arrays, dropped = [], []
    with stopped(pid):
        for size in SIZES:
            out = np.full(size, -1, "i8")
            times_out(lambda out=out: win.get(1, 0, out=out))
            dropped.append(weakref.ref(out))
            del out
            arrays += reuse(size)
        times_out(lambda: win.fetch_add(10, 1, COUNTER))
        arrays += reuse(1)
        data = np.full(N, SENT, "i8")  # read by the network where it lies
        times_out(lambda data=data: win.put(data, 1))
        dropped.append(weakref.ref(data))
        del data
        arrays += reuse(N)
        win.put(np.full(1000, SENT, "i8"), 1)  # copied
        win[1, 1:6001:2] = np.full(3000, SENT, "i8")  # copied, too
        times_out(lambda: win.flush(1))
        assert intact(arrays)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert intact(arrays), "a late write into memory in use"
        time.sleep(0.005)
    win.flush(1)
    assert (win.get(1, 0, N) == SENT).all()  # not what the origin's memory holds by now
    assert win.fetch_add(1, 1, COUNTER) == 10
    assert win.get(1, COUNTER, 1)[0] == 11
    assert intact(arrays)
    gc.collect()
    assert not any(ref() is not None for ref in dropped), "buffers are kept for ever"


def every_operation(win: rmaext.Window, pid: int) -> None:
    """At the limit of the view by which it is called, each; the next one works."""
    hasty = win.dup(timeout=0.1)
    with stopped(pid):
        for it in (OPERATIONS | INDEXED).values():
            times_out(partial(carry_out, it, hasty, np.int64(0), 1), 0.1)
    win.flush(1)  # what was late has been done
    win.put(SENT, 1)
    win.flush(1)
    assert win.get(1, 0, 1)[0] == SENT


def main() -> None:
    comm = MPI.COMM_WORLD
    pid = comm.bcast(os.getpid(), 1)
    with rmaext.Window.allocate(comm, N + 1, "i8", timeout=LIMIT) as win:
        win.local[:N] = SECRET
        win.fence()
        if comm.rank == 0:
            origin(win, pid)
            every_operation(win, pid)
        comm.Barrier()
        win.fence()
        if comm.rank == 0:
            assert win.fabric is not None
            print(f"stopped, libfabric {win.fabric.version}: OK")


main()
