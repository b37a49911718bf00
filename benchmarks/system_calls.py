# SPDX-License-Identifier: BSD-3-Clause
"""System calls and context switches of an operation over tcp, on rmaext and on MPI.Win.

    MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo \
        RMAEXT_ROUTE=fabric timeout 60 mpiexec -n 2 python -m mpi4py benchmarks/system_calls.py

All ranks work at once: each one's operations go to the next rank. Figures are per rank and
operation. The kernel counts, asked by perf, whose user must be allowed to (root is). It counts for
the whole machine, so nothing else may run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext

SECONDS, AT_ONCE = 1, 100
CALLS = "sendto sendmsg recvfrom recvmsg write read epoll_wait poll ppoll futex sched_yield"

Operations = dict[str, dict[str, Callable[[], Any]]]


def operations(
    comm: MPI.Comm, win: rmaext.Window[Any], other: MPI.Win, fenced: MPI.Win
) -> Operations:
    """Return what is counted: for each operation, a call of each side."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    word, out = np.ones(1, np.int64), np.zeros(1, np.int64)

    def get() -> None:
        other.Get(out, right, 0)
        other.Flush(right)

    def swap() -> None:
        other.Compare_and_swap(word, word, out, right, 1)
        other.Flush(right)

    def notified() -> None:
        win.put_notify(word, right, 2)
        win.wait_notify(0)

    def told() -> None:
        other.Put(word, right, 2)
        other.Flush(right)
        comm.Sendrecv(word, right, recvbuf=out, source=left)

    return {
        "empty fence": {"rmaext": win.fence, "MPI.Win": fenced.Fence},
        "get, 8 B": {"rmaext": lambda: win.get(right, 0, 1, out), "MPI.Win": get},
        "compare and swap": {
            "rmaext": lambda: win.compare_and_swap(1, 1, right, 1),
            "MPI.Win": swap,
        },
        "notified put, 8 B": {"rmaext": notified, "MPI.Win": told},
    }


def counted(comm: MPI.Comm, call: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    """Return the microseconds that a call takes, and how often what was called meanwhile."""
    for _ in range(AT_ONCE):
        call()
    comm.Barrier()
    perf = None
    if comm.rank == 0:
        events = [f"syscalls:sys_enter_{name}" for name in CALLS.split()]
        command = ["perf", "stat", "-a", "-x,", "-e", ",".join([*events, "context-switches"])]
        command += ["sleep", str(SECONDS)]
        perf = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    start, times, going = time.perf_counter(), 0, True
    while going:
        for _ in range(AT_ONCE):
            call()
        times += AT_ONCE
        going = comm.bcast(perf.poll() is None if perf else None)
    each = (time.perf_counter() - start) / times
    if not perf:
        return each, {}
    assert perf.stderr is not None
    lines = perf.stderr.read().splitlines()
    assert perf.returncode == 0, lines
    fields = [line.split(",") for line in lines]
    there = SECONDS / each * comm.size
    return each * 1e6, {f[2].removeprefix("syscalls:sys_enter_"): int(f[0]) / there for f in fields}


def main() -> None:
    """Print a line for each operation and side."""
    comm = MPI.COMM_WORLD
    win = rmaext.Window(comm, np.zeros(64, np.int64))
    # MPI has fences and locks in no window at once
    other, fenced = (MPI.Win.Create(np.zeros(64, np.int64), 8, comm=comm) for _ in range(2))
    other.Lock_all()
    for operation, sides in operations(comm, win, other, fenced).items():
        for side, call in sides.items():
            time_of, counts = counted(comm, call)
            if comm.rank == 0:
                text = ", ".join(f"{name} {n:.1f}" for name, n in counts.items() if n >= 0.05)
                print(f"{operation:18}{side:8} {time_of:6.1f} us: {text}", flush=True)
    other.Unlock_all()
    other.Free()
    fenced.Free()
    win.close()


main()
