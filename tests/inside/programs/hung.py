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


def containers():
    """Rank 1 has a bucket, a slot and a section of each table; rank 0 waits for it in threads."""
    from rmaext.containers import Dict, Published, TaskQueue  # no other job needs them

    wide = {
        "get": lambda table: table.get(there),
        "get_many": lambda table: table.get_many([there]),
        "set": lambda table: table.__setitem__(there, 1j),
        "set_many": lambda table: table.set_many([new], 1j),
        "setdefault": lambda table: table.setdefault(new, 1j),
        "pop": lambda table: table.pop(there),
        "local_items": lambda table: table.local_items(),
    }
    narrow = {
        "add": lambda table: table.add(new, 1),
        "add_many": lambda table: table.add_many([new], 1),
    }
    tables = {name: Dict(world, "i8", "c16" if name in wide else "i8", 3) for name in wide | narrow}
    queue, published = TaskQueue(world, "i8", 10), Published(world, (1,), "f8")
    one = tables["get"]
    there, new = [key for key in range(1000) if one.rank_of(key) == 0][:2]
    if rank == 1:
        for table in tables.values():
            table[there] = 1
            table._slots._lock(table._one(new))
            table._slots._lock(table._one(there))
            query = table._one(there)
            table._slots.hold(query, table._slots.find(query))
    world.Barrier()
    if rank == 0:
        waits = [lambda: published.read(1, newer_than=0)]
        waits += [lambda call=c, name=n: call(tables[name]) for n, c in (wide | narrow).items()]
        for wait in waits:
            threading.Thread(target=wait, daemon=True).start()
    hangs()
    if rank == 2:
        for _ in queue:  # queue's loop
            pass


globals()[how]()
time.sleep(1000)
