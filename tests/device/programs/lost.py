# SPDX-License-Identifier: BSD-3-Clause
"""The last of three ranks, whose memory lies on a device, is stopped, and killed; the others go on.

    mpiexec -n 3 python lost.py

Needs a launcher that lets the survivors run. They leave by os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback

import numpy as np

faulthandler.dump_traceback_later(50, exit=True)

from device import device_array as cuda  # noqa: E402
from mpi4py import MPI  # noqa: E402
from support.operations import OPERATIONS, carry_out  # noqa: E402
from support.processes import stop  # noqa: E402

import rmaext  # noqa: E402

N = 100_000
comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
mapped = False  # the last rank's memory


def lost(call) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:  # what is mapped stays; the next look finds that nobody has it
        try:
            call()
        except rmaext.PeerLostError:
            return
        assert mapped, f"{call} came to its end"
    raise AssertionError(f"{call} came to its end for 20 s")


def main() -> None:
    cuda.begin()
    pid = comm.bcast(os.getpid(), last)
    win = rmaext.Window(comm, cuda.Array.from_numpy(np.arange(float(N))))
    made = rmaext.Window.allocate(comm, 10, device="cuda:0")
    win.fence()
    outs = [cuda.Array.from_numpy(np.full(N, 7.0)) for _ in range(2)]
    win.get(last, out=outs[0])
    assert (outs[0].to_numpy() == np.arange(float(N))).all()
    comm.Barrier()
    if rank == last:
        signal.pause()
    comm_of_two.Barrier()  # the one before is over for both, which may need the last rank
    if rank == 0:
        stop(pid)
    comm_of_two.Barrier()
    request = win.rget(last, out=outs[1])
    put = win.rput(cuda.Array.from_numpy(np.ones(N)), last)
    global mapped
    mapped = win.route(last) == "ipc"  # there the calls have copied
    assert request.done == put.done == mapped
    comm_of_two.Barrier()
    if rank == 0:
        os.kill(pid, signal.SIGKILL)
    for it in (request, put, request):
        it.wait() if mapped else lost(it.wait)
    assert mapped or (outs[1].to_numpy() == 7.0).all()
    for it in OPERATIONS.values():
        lost(lambda it=it: carry_out(it, win, 1.0, last))
    lost(lambda: made.put(1.0, last) or made.flush(last))
    other = 1 - rank
    for it in OPERATIONS.values():
        carry_out(it, win, 1.0, other)
    comm_of_two.Barrier()
    win.put(np.full(N, 5.0), other)
    win.flush(other)
    assert win.get(other, out=outs[1]) is outs[1]
    assert (outs[1].to_numpy() == 5.0).all()
    made.fetch_add(1.0, other)
    comm_of_two.Barrier()
    assert made.get(rank, 0, 1) == 1.0


comm_of_two = comm.Split(rank == last)
try:
    main()
    os.write(1, b"OK\n")
    code = 0
except BaseException:
    traceback.print_exc()
    code = 1
sys.stderr.flush()
comm_of_two.Barrier()
os._exit(code)
