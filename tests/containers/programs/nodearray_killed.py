# SPDX-License-Identifier: BSD-3-Clause
"""The rank that has filled the node's array is killed; the others have theirs all the same.

    mpiexec -n 3 python nodearray_killed.py [nodes]

With "nodes" each rank pretends to be on a node of its own. It needs a launcher that lets the
survivors run; they leave by os._exit, as MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback

import numpy as np
from mpi4py import MPI
from support.processes import wait_for_end

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import NodeArray  # noqa: E402


def fill(array: np.ndarray) -> None:
    array[:] = np.arange(array.size)


faulthandler.dump_traceback_later(50, exit=True)
try:
    pids = comm.allgather(os.getpid())
    table = NodeArray(comm, 1 << 20, fill=fill)
    assert table.filled_by == (comm.rank if "nodes" in sys.argv else 0)
    comm.Barrier()
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end(pids[0])
    assert (table.array == np.arange(1 << 20)).all()
    part = table.array[-3:]
    table.close()
    assert part.tolist() == [(1 << 20) - 3, (1 << 20) - 2, (1 << 20) - 1]
    try:
        NodeArray(comm, 3, fill=fill)
    except rmaext.PeerLostError:
        os.write(1, f"rank {comm.rank}: OK\n".encode())
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
