# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that make themselves not dumpable: between windows, before some call, between two puts.

The kernel then copies nothing to them or from them, and does not let them be mapped.
"""

import ctypes
import sys
import time

import numpy as np
from mpi4py import MPI
from support.wakeups import LATE, only_told

import rmaext

PR_SET_DUMPABLE = 4
VERSION_3 = 0x20080522
CAP_SYS_PTRACE = 19


def hide() -> None:
    """As setuid() and prctl() do it; the capability that root has to see all goes, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper halves
    assert not libc.capget(header, sets)
    for i in range(3):
        sets[i] &= ~(1 << CAP_SYS_PTRACE) & 0xFFFFFFFF
    assert not libc.capset(header, sets)
    assert not libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def use(win: rmaext.Window) -> None:
    """All that goes by the kernel's copies, in an order that shows."""
    n = win.local.size
    for turn in range(2):
        values = np.arange(n) + 100.0 * me + turn
        if when == "before a part":
            win[right, 40:70:3] = values[40:70:3]
            assert (win[right, 67:37:-3] == values[67:37:-3]).all()
        if when == "before many":
            win.put_many(right, [1, 3], [8.0, 9.0])
        if when == "before ranges":
            win.put_ranges(right, [50, 60], [2, 3], values[:5])
        win.put(values, right)
        win.flush(right)
        assert (win.get(right) == values).all()
        win.put(7.0, right, 5)
        win.put_many(right, [1, 3], [8.0, 9.0])
        win.rput(values[:2] * 2, right, n - 2).wait()
        win.accumulate(1.0, right, 5)
        win[right, 30:40:2] = -values[:5]
        win.flush(right)
        assert (win[right, 30:40:2] == -values[:5]).all()
        assert win.get_many(right, [1, 3, 5]).tolist() == [8, 9, 8]
        assert (win.rget(right, n - 2).wait() == values[:2] * 2).all()
        win.put_notify(np.full(3, turn + 1.0), right, 20, 4)
        win.wait_notify(4)
        assert (win.local[20:23] == turn + 1).all()
        win.fence()


def lock(win: rmaext.Window) -> None:
    """All ranks at once; one of two ranks may map the other's control block, and not vice versa."""
    start = time.monotonic()
    win.local[0] = 0
    win.fence()
    for _ in range(20):
        for rank in range(comm.size):
            with win.lock(rank):
                win.put(win.get(rank, 0, 1) + 1, rank)
    win.fence()
    assert win.local[0] == 20 * comm.size
    assert time.monotonic() - start < LATE


comm = MPI.COMM_WORLD
me, right = comm.rank, (comm.rank + 1) % comm.size
when = sys.argv[1]
first = rmaext.Window(comm, np.zeros(50_000))
allocated = rmaext.Window.allocate(comm, 100)
comm.Barrier()
if when == "after a put":
    use(first)
if when != "one rank" or me == 0:
    hide()
comm.Barrier()
use(first)
use(allocated)
with rmaext.Window(comm, np.zeros(1000)) as later:
    if comm.size > 1 and when != "one rank":
        assert later.route(right) == "fabric", later.route(right)
    use(later)
    only_told(setattr)
    lock(later)
# in a new segment: the first has 16 MiB
with rmaext.Window.allocate(comm, 3_000_000) as large:
    use(large)
first.close()
allocated.close()
print("OK", flush=True)
