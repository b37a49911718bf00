# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed while all draw numbers; the others draw the rest, unless it was rank 0.

    mpiexec -n 3 python counter_killed.py VICTIM [nodes]

With "nodes" each rank pretends to be on a node of its own. It needs a launcher that lets the
survivors run; they leave by os._exit, as MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback

from mpi4py import MPI
from support.processes import wait_for_end

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import counter  # noqa: E402

COUNT, CHUNK, BOUND = 300, 5, 15.0
VICTIM = int(sys.argv[1])


def main() -> None:
    survivors = comm.Split(comm.rank == VICTIM, comm.rank)
    pids = comm.allgather(os.getpid())
    numbers = counter(comm, COUNT, CHUNK)
    loop, mine, lost = iter(numbers), [], None
    for _ in range(2 * CHUNK - 2):
        mine.append(next(loop))
    comm.gather(mine, VICTIM)  # the victim has drawn two chunks, and is done with 8 numbers
    if comm.rank == VICTIM:
        comm.Barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()
    wait_for_end(pids[VICTIM])
    start = time.monotonic()
    try:
        mine.extend(loop)
    except rmaext.PeerLostError as exc:
        lost = exc.rank
    assert time.monotonic() - start < BOUND
    every = sorted(number for some in survivors.allgather(mine) for number in some)
    assert len(every) == len(set(every))
    assert lost == (None if VICTIM else 0)  # where the word was
    if VICTIM:
        assert len(every) == COUNT - 2 * CHUNK, len(every)


faulthandler.dump_traceback_later(50, exit=True)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os.write(1, f"rank {comm.rank}: OK\n".encode())
os._exit(0)
