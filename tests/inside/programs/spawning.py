# SPDX-License-Identifier: BSD-3-Clause
"""A job that spawns others, and has a window with them: spawning.py ends|hangs FOLDER.

Two jobs are spawned while the first lives; the second has two programs (MPMD). With "hangs"
the first of them does not come to its last fence, and says so in FOLDER.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rmaext

how, folder = sys.argv[1], Path(sys.argv[2])
world, parent = MPI.COMM_WORLD, MPI.Comm.Get_parent()
with rmaext.Window.allocate(world, 10) as win:  # of each world, the rank's own trace
    for _ in range(3 if parent == MPI.COMM_NULL else 5):
        win.put(np.ones(2), (world.rank + 1) % world.size)
    win.fence()
    if parent == MPI.COMM_NULL:
        arguments = [__file__, how, str(folder)]
        inters = [
            world.Spawn(sys.executable, arguments, maxprocs=1),
            world.Spawn_multiple([sys.executable] * 2, [arguments, [*arguments, "x"]], [1, 1]),
        ]
    else:
        inters = [parent]
    if how == "hangs" and world.size == 2:
        time.sleep(1000)  # instead of a wait in MPI, which takes a core
    for inter in inters:
        everyone = inter.Merge(high=parent != MPI.COMM_NULL)
        with rmaext.Window.allocate(everyone, 4) as other:
            other.put(1.0, everyone.size - 1 - everyone.rank)
            other.fence()
            if how == "hangs" and parent != MPI.COMM_NULL:
                (folder / f"{everyone.rank}").write_text(f"{os.getpid()}")
                time.sleep(1000)
            other.fence()
        everyone.Free()
    for inter in inters:
        inter.Disconnect()
