# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is to be there at once, in a cgroup (argv[2]) that has argv[1] bytes.

Each rank of the node asks for its part at the same time: too much is MemoryError on all, none
is killed, and the memory is given back, so that what fits is to be had afterwards.
"""

import os
import sys

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.containers import Store

with open(sys.argv[2], "w") as procs:
    procs.write(str(os.getpid()))
comm = MPI.COMM_WORLD
comm.Barrier()
limit = int(sys.argv[1]) // comm.size


def refused(nbytes: int) -> None:
    """One rank's part alone may have room; those of all have not."""
    for _ in range(3):
        said = ""
        try:
            rmaext.Window.allocate(comm, nbytes, "u1", lazy=False)
        except MemoryError as error:
            said = str(error)
        assert "lazy=True" in said, said


refused(limit)
refused(limit * comm.size * 2)
refused(1 << 44)
with rmaext.Window.allocate(comm, limit // 3, "u1", lazy=False) as win:
    assert win.memory.describe()["resident"] >= limit // 3
    assert not win.local.any()
with rmaext.Window.allocate(comm, limit * 4, "u1") as win:  # nobody touches it
    assert not win.advise("willneed")
try:
    Store(comm, [np.zeros(limit // 2, "u1")] * 4)
except MemoryError:
    print("OK", flush=True)
