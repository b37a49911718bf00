# SPDX-License-Identifier: BSD-3-Clause
"""The last of three ranks is killed while its arguments are looked at; the others learn so.

    mpiexec -n 3 python killed_in_constructor.py {Array,Dict,Published,Store,TaskQueue} [nodes]

With "nodes" each rank pretends to be on a node of its own. The survivors leave by
os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext import containers  # noqa: E402

BOUND = 8.0  # seconds: far more than a loss takes to be noticed
VICTIM = comm.size - 1


class Argument:
    """A number, and a sequence, which kills the victim when it is looked at."""

    def __index__(self) -> int:
        if comm.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        return 5

    def __iter__(self):
        return iter(np.zeros((int(self), 3)))

    __int__ = __index__


def make(comm: MPI.Comm) -> object:
    return {
        "Array": lambda: containers.Array(comm, (4, Argument()), ghosts=1),
        "Dict": lambda: containers.Dict(comm, "i8", "i8", Argument()),
        "Published": lambda: containers.Published(comm, 3, buffers=Argument()),
        "Store": lambda: containers.Store(comm, Argument()),
        "TaskQueue": lambda: containers.TaskQueue(comm, "i8", Argument()),
    }[sys.argv[1]]()


def main() -> None:
    hold = rmaext.Window.allocate(comm, 3)  # connected
    assert hold.get((comm.rank + 1) % comm.size).tolist() == [0, 0, 0]
    comm.Barrier()
    start = time.monotonic()
    caught = "nothing"
    try:
        make(comm)
    except rmaext.PeerLostError as exc:
        caught = str(exc)
    assert f"rank {VICTIM}" in caught, caught
    assert time.monotonic() - start < BOUND
    with make(survivors) as new:
        assert not new.closed
    os.write(1, f"rank {comm.rank}: OK\n".encode())
    survivors.Barrier()  # one that had left would be a lost rank too


survivors = comm.Split(comm.rank != VICTIM, comm.rank)
faulthandler.dump_traceback_later(40, exit=True)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
