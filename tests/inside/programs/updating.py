# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that update the memory of rank 0 many times: updating.py HOW FOLDER."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rmaext

how, folder = sys.argv[1], Path(sys.argv[2])
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if how == "nodes":
    os.environ["RMAEXT_NODE"] = str(rank)


def update(win):
    """All but rank 0 do it by messages, if its memory is of its own."""
    for _ in range(60):
        win.accumulate(1, 0)  # what brings a value back needs no message
        win.flush(0)
    win.fence()
    assert rank or win.local[0] == 60 * size
    win.fence()


def silent():
    with rmaext.Window(world, rmaext.zeros(1, np.int64)) as win:
        update(win)
    with rmaext.Window(world, np.memmap(folder / str(rank), np.int64, "w+", shape=1)) as win:
        update(win)
    with rmaext.Window.dynamic(world, np.int64) as win:
        at = world.bcast(win.attach(np.zeros(1, np.int64)))
        for _ in range(60):
            win.fetch_add(1, 0, at)
        win.fence()


def drop_in():
    win = MPI.Win.Create(np.zeros(1, np.int64), 8, comm=world)  # own
    win.Lock_all()
    one = np.ones(1, np.int64)
    for _ in range(60):
        win.Accumulate(one, 0)
        win.Flush(0)
    win.Unlock_all()
    win.Free()


if how == "drop-in":
    drop_in()
else:
    if how == "silent":
        silent()
        sys.stderr.close()  # what cannot be told is no error
    win = rmaext.Window(world, np.zeros(1, np.int64))  # own
    update(win)
    if how == "shown":
        (folder / str(rank)).write_text(f"{os.getpid()}")
        world.Barrier()
        time.sleep(100)
    if how != "left":
        win.close()
print("end", flush=True)
