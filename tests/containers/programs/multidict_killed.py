# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed while all append; the others go on with the keys that are left.

    mpiexec -n 3 python multidict_killed.py [nodes]

With "nodes" each rank pretends to be on a node of its own. It needs a launcher that lets the
survivors run; they leave by os._exit, as MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

from support.processes import wait_for_end  # noqa: E402

import rmaext  # noqa: E402
from rmaext.containers import MultiDict  # noqa: E402

BOUND, VICTIM, KEYS = 10.0, 2, 60


def main() -> None:
    table = MultiDict(comm, "i8", "i8", 200_000)
    pid = comm.bcast(os.getpid(), VICTIM)
    comm.Barrier()
    if comm.rank == VICTIM:
        seconds = random.uniform(0.05, 0.3)
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    mine, turn, slowest = {key: [] for key in range(KEYS)}, 0, 0.0
    torn, lost, end = set(), [], time.monotonic() + 30
    # on its node what it held may be found until its death is noticed
    while len(lost) < 3 and time.monotonic() < end:
        key, value = turn % KEYS, 4 * turn + comm.rank
        turn, start = turn + 1, time.monotonic()
        try:
            table.append_many(np.full(3, key), value)
            mine[key] += [value] * 3
        except rmaext.PeerLostError as exc:
            torn.add(key)
            lost.append(exc.rank)
        slowest = max(slowest, time.monotonic() - start)
    assert lost == [VICTIM] * 3, f"of what the victim held: {lost}"
    assert slowest < BOUND, slowest
    wait_for_end(pid)
    found = gone = 0
    for key in set(mine) - torn:
        try:
            values, starts = table.get_many(key)
        except rmaext.PeerLostError:
            gone += 1
            continue
        assert starts.tolist() == [0, len(values)]
        of_mine = [value for value in values.tolist() if value % 4 == comm.rank]
        assert of_mine == mine[key], key
        found += 1
    assert gone, "all values of all keys outlive a third of the memory"
    # what lies on living ranks goes on: new keys, with one value each
    for key in range(KEYS, 2 * KEYS):
        with suppress(rmaext.PeerLostError):
            table.append_many(2 * key + comm.rank, key)
            assert table.get_many(2 * key + comm.rank)[0].tolist() == [key]
            found += 1
    assert found > KEYS / 8, found
    SURVIVORS.Barrier()
    with suppress(rmaext.PeerLostError):
        table.close()
    os.write(1, f"rank {comm.rank}, {found} keys, {gone} gone: OK\n".encode())
    SURVIVORS.Barrier()


SURVIVORS = comm.Split(comm.rank != VICTIM, comm.rank)
faulthandler.dump_traceback_later(50, exit=True)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
