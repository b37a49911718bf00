# SPDX-License-Identifier: BSD-3-Clause
"""The last of four ranks is killed; the others read, add and exchange what is left.

    mpiexec -n 4 python array_killed.py [nodes]

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
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from support.processes import wait_for_end

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import Array  # noqa: E402

BOUND = 8.0  # seconds: far more than a loss takes to be noticed
VICTIM = comm.size - 1
pids = comm.allgather(os.getpid())


def lost(what: str, action: Callable[[], object]) -> None:
    """Require PeerLostError that names the victim, before long."""
    start = time.monotonic()
    caught = "nothing"
    try:
        action()
    except rmaext.PeerLostError as exc:
        caught = str(exc)
    assert f"rank {VICTIM}" in caught, (what, caught)
    assert time.monotonic() - start < BOUND, what


def exchanged(field: Array) -> None:
    with field.exchanging():
        pass


def main() -> None:
    field = Array(comm, (8, 6), grid=(4, 1), ghosts=(1, 0), timeout=3)
    field.local[...] = comm.rank
    others = [Array.like(field) for _ in range(4)]
    for _ in range(3):
        field.exchange()
    field.fence()
    assert field[...][:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    comm.Barrier()
    if comm.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end(pids[VICTIM])
    time.sleep(0.3)

    # Patches: the victim's part is lost, the others are as before.
    for key in (7, 0), slice(None), (slice(5, 7), 2), (..., 3):
        lost(f"field[{key}]", lambda key=key: field[key])
        lost(f"rget {key}", lambda key=key: field.rget(key).wait())
    lost("points", lambda: field.points([[0, 0], [7, 5]]))
    lost("add", lambda: field.add((slice(6, 8), slice(6)), 1.0))
    lost("fetch_add", lambda: field.fetch_add((6, 0), 1.0))
    for _ in range(2):
        assert field[:6, 0].tolist() == [0, 0, 1, 1, 2, 2]
        assert field.points([[0, 0], [5, 5]]).tolist() == [0, 2]
    survivors.Barrier()
    field.add((slice(0, 6), 1), 10.0)
    survivors.Barrier()
    assert field[:6, 1].tolist() == [30, 30, 31, 31, 32, 32]
    assert np.isfinite(field.fetch_add((0, 5), 1.0))
    survivors.Barrier()

    # An exchange is lost next to the victim. Rank 1's neighbours live; rank 0's only one, too.
    field.local[...] = 10 + comm.rank
    if comm.rank == VICTIM - 1:
        lost("exchange", lambda: exchanged(field))
        lost("exchange again", lambda: exchanged(field))
    else:
        field.exchange()
        assert (field.padded[-1] == 11 + comm.rank).all()
    survivors.Barrier()
    # Rank 1 waits for rank 2, which goes on no more: up to the time limit.
    if comm.rank == 1:
        lost("exchange next to one that gave up", lambda: exchanged(field))
    survivors.Barrier()

    with Array(survivors, (6, 4), ghosts=1, periodic=True) as new:
        new.local[...] = comm.rank
        new.exchange()
        assert new.sum() > 0
    lost("close", field.close)
    assert field.closed
    lost("fence", others[0].fence)
    lost("sum", others[1].sum)
    lost("redistribute", lambda: others[2].redistribute(grid=(1, 4)))
    lost("save", lambda: others[3].save("/tmp/array_killed.npy"))
    assert not os.path.exists("/tmp/array_killed.npy")
    os.write(1, f"rank {comm.rank}: OK\n".encode())
    survivors.Barrier()  # one that had left would be a lost rank too


survivors = comm.Split(comm.rank != VICTIM, comm.rank)
faulthandler.dump_traceback_later(45, exit=True)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
