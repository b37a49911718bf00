# SPDX-License-Identifier: BSD-3-Clause
"""A job that hangs: hung.py HOW FOLDER. Each rank that is about to hang says so in FOLDER.

A comment "# NAME" marks each line that tests/inside/test_why.py expects to be told.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rmaext

how, folder = sys.argv[1], Path(sys.argv[2])
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if how == "unrecorded" and rank == 1:
    os.environ["RMAEXT_RECORD"] = "0"
win = None if how == "first" else rmaext.Window.allocate(world, 100)
other = rmaext.Window.allocate(world.Dup(), 100) if how == "mismatch" else win
if win:
    win.fence()
world.Barrier()


def hangs():
    """Say that this rank is where it hangs, a moment from now."""
    (folder / str(rank)).write_text(f"{os.getpid()}")


def locks():
    with win.lock(rank):
        world.Barrier()
        hangs()
        win.lock((rank + 1) % size)  # second lock


def early():
    hangs()
    for i in range(10):
        if rank == 1 and i == 5:
            break
        win.fence()  # loop's fence
    world.Barrier()  # barrier


def stops():
    hangs()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)  # stop
    win.fence()  # all's fence


def endless():
    hangs()
    total = 0
    while rank == 1:  # loop
        total += 1  # endless
    win.fence()  # others' fence


def mismatch():
    hangs()
    if rank == 1:
        other.fence()  # another fence
    win.fence()  # right fence


def notify():
    hangs()
    if rank == 1:
        win.wait_notify(3)  # notify
    win.fence()  # after notify


def slots():
    if rank == 0:
        win.put_notify(np.ones(1), 1, slot=2)
    notify()


def until():
    hangs()
    if rank == 1:
        win.wait_until(0, ">", 5)  # until
    win.fence()  # after until


def holder():
    if rank == 1:
        win.lock(0)
    world.Barrier()
    hangs()
    while rank == 1:
        time.sleep(0.01)  # holds
    with win.lock(0):  # wanted
        pass


def flush():
    pids = world.allgather(os.getpid())
    if rank == 1:
        hangs()
        os.kill(os.getpid(), signal.SIGSTOP)
    while Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    hangs()
    if rank == 0:
        win.put(np.ones(100), 1)
        win.flush()  # flush
    world.Barrier()


def gone():
    world.Barrier()
    hangs()
    if rank == 1:
        os._exit(0)
    time.sleep(1000)


def first(comm=world):
    hangs()
    if rank == 1:
        world.recv(source=0)  # no window
    rmaext.Window.allocate(comm, 8)  # first window


def again():
    first(world.Dup())


def unrecorded():
    hangs()
    if rank == 1:
        world.recv(source=0)
    win.fence()


def thread():
    def wait():
        if rank == 0:
            win.lock(1)
        world.Barrier()
        if rank == 1:
            win.lock(1)  # in a thread

    one = threading.Thread(target=wait, name="helper", daemon=True)
    one.start()
    hangs()
    time.sleep(1000)


def ends():
    hangs()
    if rank != 1:
        sys.exit()
    time.sleep(1000)  # goes on


def fine():
    hangs()
    while True:
        win.fence()
        time.sleep(0.01)


globals()[how]()
time.sleep(1000)
