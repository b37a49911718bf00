# SPDX-License-Identifier: BSD-3-Clause
"""What correct programs do to order their accesses, one after the other; nothing is found."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

import rmaext
from rmaext.containers import Dict

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size


def spin_lock(win: Any, flags: Any) -> None:
    for _ in range(5):
        while flags.compare_and_swap(0, rank + 1, 0) != 0:
            pass
        win.put(win.get(0, 0, 1) + 1, 0)
        win.flush(0)
        flags.store(0, 0)
    comm.Barrier()
    if rank == 0:
        assert win.local[0] == 5 * size


def notifications_both_ways(win: Any, flags: Any) -> None:
    received = win.local[1:9]
    for k in range(1, 5):
        win.put_notify(np.full(8, float(k)), right, 1, slot=1)
        win.wait_notify(1)
        assert received.sum() == 8 * k
        win.put_notify([], left, slot=2)  # it was read, and may be overwritten
        win.wait_notify(2)


def epochs(win: Any, flags: Any) -> None:
    for k in range(3):
        win.post([left])
        win.start([right])
        win.put(np.full(4, float(k)), right, 20)
        win.complete()
        win.wait()
        assert (win.local[20:24] == k).all()


def tickets(win: Any, flags: Any) -> None:
    comm.Barrier()
    while (ticket := int(flags.fetch_add(1, 0, 1))) < 12:
        win.put(float(ticket), 0, 30 + ticket)
    win.flush()
    comm.reduce(0)
    if rank == 0:
        assert win.local[30:42].sum() == 66


def messages(win: Any, flags: Any) -> None:
    win[right, 50] = rank
    win.flush(right)
    MPI.Request.waitall([comm.irecv(source=left), comm.isend(0, right)])
    assert win.local[50] == left
    comm.Barrier()


def flag(win: Any, flags: Any) -> None:
    if rank == 0:
        for target in range(1, size):
            win.put(np.arange(4.0), target, 52)
            win.flush(target)
            flags.put(7, target, 3)
            flags.flush(target)
    else:
        flags.wait_until(3, "==", 7)
        assert win.local[52:56].sum() == 6
    comm.Ibarrier().Wait()
    win.local[52:56] = 1
    comm.Barrier()


def readers_and_writer(win: Any, flags: Any) -> None:
    for k in range(3):
        with win.lock(1, exclusive=rank == 0):
            if rank == 0:
                win.put([k, k], 1, 60)
            else:
                first, second = win.get(1, 60, 2)
                assert first == second
    comm.Barrier()


def containers(win: Any, flags: Any) -> None:
    with Dict(comm, "i8", "f8", 100) as table:
        table[rank] = 1.0
        comm.Barrier()
        assert table[left] == 1.0


def views(win: Any, flags: Any) -> None:
    part = win.subwindow(0, 8)
    if rank == 0:
        part.put([1, 2], 1)
        part.flush()
    comm.bcast(1)
    if rank == 1:
        assert part.local[0] == 1


def sums(win: Any, flags: Any) -> None:
    with flags.lock_all():
        flags.accumulate(1, 0, 2)
    comm.Barrier()
    assert flags.load(0, 2) == size


with rmaext.Window.allocate(comm, 64) as win, rmaext.Window.allocate(comm, 4, "i8") as flags:
    for program in (spin_lock, notifications_both_ways, epochs, tickets, messages, flag):
        program(win, flags)
    for program in (readers_and_writer, containers, views, sums):
        program(win, flags)
print("end")
