# SPDX-License-Identifier: BSD-3-Clause
"""Whether a flush over tcp waits until the data is in the target's memory.

    MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo \
        RMAEXT_ROUTE=fabric mpiexec -n 2 python benchmarks/early_flush.py

Rank 0 stops the process of rank 1, puts and flushes, and reads that process's memory by the
kernel's /proc/PID/mem. A thread lets rank 1 go on after half a second. A flush that returns earlier
has waited for nobody: nothing runs in rank 1 that could have taken the data out of its socket.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext

STOPPED = 0.5  # seconds
SIZES = (8, 64, 128, 256, 4096)
WORDS = max(SIZES) // 8


def stopped_flush(put_flush: Any, data: Any, pid: int, address: int) -> tuple[float, bool]:
    """Put while the target is stopped; return how long it took, and whether the data is there."""
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(STOPPED, os.kill, (pid, signal.SIGCONT))
    start = time.monotonic()
    timer.start()
    put_flush(data)
    seconds = time.monotonic() - start
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(address)
        there = memory.read(data.nbytes) == data.tobytes()
    timer.join()
    return seconds, there


def main() -> None:
    """Print a line for each library and size."""
    comm = MPI.COMM_WORLD
    for name in ("MPI.Win.Create", "rmaext.Window"):
        memory = np.zeros(WORDS, np.int64)
        win: Any = (
            MPI.Win.Create(memory, 8, comm=comm)
            if name.startswith("MPI")
            else rmaext.Window(comm, memory)
        )
        pid, address = comm.bcast((os.getpid(), memory.ctypes.data), 1)
        if comm.rank == 0:
            if isinstance(win, MPI.Win):
                win.Lock(1, MPI.LOCK_SHARED)

            def put_flush(data: Any, win: Any = win) -> None:
                if isinstance(win, MPI.Win):
                    win.Put(data, 1)
                    win.Flush(1)
                else:
                    win.put(data, 1)
                    win.flush(1)

            put_flush(np.zeros(WORDS, np.int64))  # connections
            for size in SIZES:
                data = np.arange(size, size + size // 8)
                seconds, there = stopped_flush(put_flush, data, pid, address)
                when = "while the target was stopped" if seconds < STOPPED else "after it went on"
                text = "there" if there else "NOT there"
                print(f"{name:16}{size:5} B  flush returned {when}, data {text}", flush=True)
            if isinstance(win, MPI.Win):
                win.Unlock(1)
            comm.send(None, 1)
        else:
            while not comm.iprobe(0):
                time.sleep(0.01)
            comm.recv(source=0)
        if isinstance(win, MPI.Win):
            win.Free()
        else:
            win.close()


main()
