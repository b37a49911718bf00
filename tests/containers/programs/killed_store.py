# SPDX-License-Identifier: BSD-3-Clause
"""The last of three ranks is killed; the others read what is left.

    mpiexec -n 3 python killed_store.py [nodes]

With "nodes" each rank pretends to be on a node of its own. The survivors leave by
os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from support.processes import stop, wait_for_end

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402
from rmaext.containers import Store  # noqa: E402

BOUND = 8.0  # seconds: far more than a loss takes to be noticed
COUNT, WIDTH = 100, 1000
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


def right(store: Store[Any], indices: Any, batch: Any) -> None:
    for record, index in zip(batch, indices, strict=True):
        assert (record == index % len(store)).all()


async def wait(future: Any) -> Any:
    return await future


def main() -> None:
    first = COUNT * comm.rank
    even = Store(comm, np.repeat(np.arange(first, first + COUNT), WIDTH).reshape(COUNT, WIDTH))
    uneven = Store(comm, [np.full(i % 3 * WIDTH, i) for i in range(first, first + COUNT)])
    for store in even, uneven:
        right(store, range(len(store)), store[:])  # connected
    comm.Barrier()
    if comm.rank == VICTIM:
        time.sleep(600)
    # in flight, where the network brings it: the victim is stopped first, and killed later
    survivors.Barrier()
    if comm.rank == 0:
        stop(pids[VICTIM])
    survivors.Barrier()
    if comm.rank == 0:
        threading.Timer(0.3, os.kill, (pids[VICTIM], signal.SIGKILL)).start()
    futures = []
    with contextlib.suppress(rmaext.PeerLostError):
        futures = [store.prefetch([-1, 0, 1, -2]) for store in (even, uneven) for _ in range(4)]
    begun = time.monotonic()
    for future in futures:
        with contextlib.suppress(rmaext.PeerLostError):  # by memory it was done at once
            right(even, [-1, 0, 1, -2], future.result())
    assert time.monotonic() - begun < BOUND
    wait_for_end(pids[VICTIM])
    time.sleep(0.3)
    here = [0, 1, COUNT, COUNT + 1, 2 * COUNT - 1, 0]
    for store in even, uneven:
        for _ in range(2):
            lost("get", lambda store=store: store.get([0, COUNT, -1]))
            lost("store[-2]", lambda store=store: store[-2])
            lost("prefetch", lambda store=store: store.prefetch([0, -1, COUNT]).result())
            lost("await", lambda store=store: asyncio.run(wait(store.prefetch([-1]))))
            right(store, here, store.get(here))
            right(store, here, store.prefetch(here).result())
    with Store(survivors, np.full((2, 3), comm.rank)) as new:
        assert new.get([0, 2])[:, 0].tolist() == [0, 1]
    lost("close", even.close)
    assert even.closed
    lost("Store", lambda: Store(comm, np.zeros((2, 3))))
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
