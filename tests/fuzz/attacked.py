# SPDX-License-Identifier: BSD-3-Clause
"""The job that strangers.py attacks: puts, gets, updates and fences, and looks at the data.

    mpiexec -n 3 python attacked.py BOARD PIDS

BOARD is a file (board.py), PIDS the processes whose network namespaces the ranks enter.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import numpy as np
from board import Board
from mpi4py import MPI
from support import netns

BLOCK = 3000  # elements: a message of its own, of more than one packet
COUNT, LAST = BLOCK, BLOCK + 1

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
pids = [int(pid) for pid in sys.argv[2].split(",")]
netns.enter(pids[rank])
os.environ["RMAEXT_NODE"] = f"host{pids.index(pids[rank])}"

import rmaext  # noqa: E402


def run(board: Board) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    with rmaext.Window.allocate(world, BLOCK + 2) as win:
        assert win.fabric is not None
        board.tell(rank, win.fabric.address)
        ramp, done, ends = np.arange(BLOCK, dtype=float), 0, False
        win.fence()
        while not ends:
            win.put(ramp + (rank + done) % 97, right)
            last = rank == 0 and board.stop
            for target in range(size):
                win.accumulate(1.0, target, COUNT)
                if last:
                    win.put(1.0, target, LAST)
            win.fence()
            same(win.local[:BLOCK], ramp + (left + done) % 97, "a put")
            same(win.get(right, 0, BLOCK), ramp + (rank + done) % 97, "a get")
            done += 1
            same(win.local[COUNT], size * done, "updates")
            same(win.fetch_add(0.0, left, COUNT), size * done, "fetch_add")
            ends = bool(win.local[LAST])  # before rank 0 can begin another round
            win.fence()
            board.did(rank, done)


def same(found: Any, expected: Any, what: str) -> None:
    """Require that data are right."""
    if not np.array_equal(found, expected):
        raise AssertionError(f"wrong data: {what}")


try:
    run(Board(sys.argv[1]))
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    world.Abort(1)
