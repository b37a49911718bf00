# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that write to each other while strangers come to their ports.

    mpiexec -n 2 python victim.py FOLDER PIDS [DESCRIPTORS]

Rank i enters the network namespace of the i-th pid and opens a window. Rank 0 leaves the
addresses of the endpoints in FOLDER/addresses, and all go on until FOLDER/stop is there.
Each value that is read must be the one that was written; no operation may take 3 s; the
program itself opens a file now and then. How many operations it makes in a second is said of the
quickest ten, while FOLDER/attack is there if it ever was: others use the cores, too. Rank 0
grants memory to clients once FOLDER/grant is there, which says from where they may come, and takes
that back when it is gone: FOLDER/granted says which. While FOLDER/sleep is there all ranks sleep.
At the end each rank prints OK and rank 0 what it counted; if FOLDER/attack is there, how many
descriptors it has more than at the beginning, once it has given strangers 10 s to be closed.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from support import netns

world = MPI.COMM_WORLD
folder, pids = Path(sys.argv[1]), [int(pid) for pid in sys.argv[2].split(",")]
netns.enter(pids[world.rank])
os.environ["RMAEXT_NODE"] = f"host{pids.index(pids[world.rank])}"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


os.environ["RMAEXT_ROUTE"] = "fabric"
if len(sys.argv) > 3:
    limit = int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

import rmaext  # noqa: E402

win = rmaext.Window.allocate(world, 8, "i8", timeout=5)
peer = 1 - world.rank
assert win.fabric is not None
win.put(np.zeros(1, "i8"), peer, 1)
win.fence()  # both have connected
addresses = world.gather((win.fabric.address, win.fabric.provider))
world.Barrier()
if world.rank == 0:
    (folder / "part").write_text(json.dumps(addresses))
    (folder / "part").rename(folder / "addresses")
grant, granted, before = None, folder / "granted", descriptors()
count, longest, quickest = 0, 0.0, {True: 1e9, False: 1e9}
value = np.zeros(1, "i8")
while not (folder / "stop").exists():
    if (folder / "sleep").exists():  # its thread is alone with the strangers
        time.sleep(0.05)
        continue
    attacked, begun = (folder / "attack").exists(), time.monotonic()
    for _ in range(10):
        start = time.monotonic()
        value[0] = count = count + 1
        win.put(value, peer, 1)
        win.flush()
        assert win.get(peer, 1, 1)[0] == count
        longest = max(longest, time.monotonic() - start)
    quickest[attacked] = min(quickest[attacked], time.monotonic() - begun)
    with open("/dev/null"):
        pass
    time.sleep(0.01)  # the cores are the other tests', too
    if world.rank == 0 and (folder / "grant").exists() != granted.exists():
        if grant is None:
            grant = win.grant(0, 1, scope=(folder / "grant").read_text())
            granted.touch()
        else:
            grant.revoke()
            grant = None
            granted.unlink()
if grant is not None:
    grant.revoke()
assert longest < 3, f"an operation took {longest:.1f} s"
end = time.monotonic() + 10
while (folder / "attack").exists() and descriptors() > before and time.monotonic() < end:
    time.sleep(0.1)
more = max(0, descriptors() - before)
win.fence()
if world.rank == 0:
    stats = win.fabric.stats
    best = quickest[quickest[True] < 1e9]
    print(f"operations {10 / best:.0f}, longest {longest:.4f} s", flush=True)
    print(f"admitted {stats['admitted']}, refused {stats['refused']}", flush=True)
    print(f"descriptors {more}", flush=True)
win.close()
print("OK", flush=True)
