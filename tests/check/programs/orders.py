# SPDX-License-Identifier: BSD-3-Clause
"""What orders two accesses and what does not; RMARaceBench's sync/001 to 036."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from cases import has_none, has_race

import rmaext


@has_race("sync/001 a request's origin is written before the fence")
def fence_too_late(win: Any) -> None:
    buffer = np.ones(1, np.int64)
    if win.comm.rank == 0:
        request = win.rput(buffer, 1)
        buffer[0] = 42
        request.wait()
    win.fence()


@has_none("sync/002 a request's origin is written after the fence")
def fence_in_time(win: Any) -> None:
    buffer = np.ones(1, np.int64)
    if win.comm.rank == 0:
        win.rput(buffer, 1)
    win.fence()
    buffer[0] = 42
    win.fence()


@has_race("sync/003 what a request gets is read before unlock")
def unlock_too_late(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        with win.lock(1, exclusive=False):
            request = win.rget(1, 0, out=buffer)
            int(buffer[0])
        request.wait()


@has_none("sync/004 what a request gets is read after unlock")
def unlock_in_time(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        with win.lock(1, exclusive=False):
            request = win.rget(1, 0, out=buffer)
        int(buffer[0])
        request.wait()


@has_race("sync/005 what a request gets is read before flush")
def flush_too_late(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        with win.lock(1, exclusive=False):
            request = win.rget(1, 0, out=buffer)
            int(buffer[0])
            win.flush(1)
        request.wait()


@has_none("sync/006 what a request gets is read after flush")
def flush_in_time(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        with win.lock(1, exclusive=False):
            request = win.rget(1, 0, out=buffer)
            win.flush(1)
            int(buffer[0])
        request.wait()


@has_race("sync/009 what a request gets is read before wait")
def wait_too_late(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(4, np.int64)
        request = win.rget(1, 0, out=buffer)
        buffer.sum()
        request.wait()
    win.fence()


@has_none("sync/010 what a request gets is read after wait")
def wait_in_time(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(4, np.int64)
        win.rget(1, 0, out=buffer).wait()
        buffer.sum()
    win.fence()


@has_none("sync/013 put, flush_all, barrier; barrier, load")
def flush_all_barrier(win: Any) -> None:
    with win.lock_all():
        if win.comm.rank == 0:
            win.put([1], 1)
            win.flush_all()
        win.comm.Barrier()
        if win.comm.rank == 1:
            assert win.local[0] == 1


@has_race("sync/014 put, flush_all; load")
def flush_all_alone(win: Any) -> None:
    with win.lock_all():
        win.comm.Barrier()
        if win.comm.rank == 0:
            win.put([1], 1)
            win.flush_all()
        if win.comm.rank == 1:
            int(win.local[0])


@has_none("sync/015 put under lock_all, barrier, load")
def lock_all_barrier(win: Any) -> None:
    with win.lock_all():
        if win.comm.rank == 0:
            win.put([1], 1)
    win.comm.Barrier()
    if win.comm.rank == 1:
        assert win.local[0] == 1


@has_race("sync/016 put, barrier, load, unlock_all")
def barrier_before_unlock_all(win: Any) -> None:
    with win.lock_all():
        if win.comm.rank == 0:
            win.put([1], 1)
        win.comm.Barrier()
        if win.comm.rank == 1:
            int(win.local[0])


@has_race("sync/017 put and load under lock_all")
def lock_all_alone(win: Any) -> None:
    with win.lock_all():
        if win.comm.rank == 0:
            win.put([1], 1)
        if win.comm.rank == 1:
            int(win.local[0])


@has_race("sync/018 put and get of two ranks between the same fences")
def no_fence_between(win: Any) -> None:
    if win.comm.rank == 0:
        win.put([1], 1)
    if win.comm.rank == 2:
        win.get(1, 0, 1)
    win.fence()


@has_none("sync/019 put and get of two ranks, a fence between")
def fence_between(win: Any) -> None:
    if win.comm.rank == 0:
        win.put([1], 1)
    win.fence()
    if win.comm.rank == 2:
        assert win.get(1, 0, 1)[0] == 1
    win.fence()


@has_race("sync/020 put, barrier, unlock; barrier, load")
def barrier_before_unlock(win: Any) -> None:
    if win.comm.rank == 0:
        win.lock(1, exclusive=False)
        win.put([1], 1)
    win.comm.Barrier()
    if win.comm.rank == 1:
        int(win.local[0])
    if win.comm.rank == 0:
        win.unlock(1)


@has_race("sync/021 put, unlock, barrier; load, barrier")
def load_before_barrier(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
    if win.comm.rank == 1:
        int(win.local[0])
    win.comm.Barrier()


@has_none("sync/022 put, unlock, barrier; barrier, load")
def load_after_barrier(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
    win.comm.Barrier()
    if win.comm.rank == 1:
        assert win.local[0] == 1


@has_none("sync/023 put, flush, get of one rank")
def flush_then_get(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
            win.flush(1)
            assert win.get(1, 0, 1)[0] == 1


@has_race("sync/024 put, get of one rank")
def put_then_get(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
            win.get(1, 0, 1)


@has_none("sync/025 put, flush_local, get of one rank: rmaext's flush_local makes it readable")
def flush_local_then_get(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
            win.flush_local(1)
            assert win.get(1, 0, 1)[0] == 1


@has_race("sync/025 put, flush_local, barrier; barrier, load: the target was not flushed to")
def flush_local_then_load(win: Any) -> None:
    if win.comm.rank == 0:
        win.put([1], 1)
        win.flush_local(1)
    win.comm.Barrier()
    if win.comm.rank == 1:
        int(win.local[0])


@has_none("sync/026 two gets of one rank")
def get_twice(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.get(1, 0, 1)
            win.flush_local(1)
            win.get(1, 0, 1)


@has_none("sync/027 put and load, each under the exclusive lock")
def exclusive(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1):
            win.put([1], 1)
    if win.comm.rank == 1:
        with win.lock(1):
            int(win.local[0])


@has_none("sync/028 put and get of two ranks, each under the exclusive lock")
def exclusive_of_two(win: Any) -> None:
    if win.comm.rank != 1:
        with win.lock(1):
            win.put([1], 1) if win.comm.rank == 0 else win.get(1, 0, 1)


@has_race("sync/029 put before, load after the lock of another window, which came first")
def exclusive_elsewhere(win: Any) -> None:
    with rmaext.Window.allocate(win.comm, 1) as other:
        if win.comm.rank == 0:
            with win.lock(1):
                win.put([1], 1)
            win.comm.recv(source=1)
            with other.lock(1):
                pass
        elif win.comm.rank == 1:
            with other.lock(1):
                pass
            win.comm.send(None, 0)
            int(win.local[0])


@has_race("sync/030 put, unlock, send; load, receive")
def load_before_receive(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
        win.comm.send(7, 1)
    if win.comm.rank == 1:
        int(win.local[0])
        win.comm.recv(source=0)


@has_none("sync/031 put, unlock, send; receive, load")
def load_after_receive(win: Any) -> None:
    token = np.zeros(1)
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
        win.comm.Send(token, 1, 3)
    if win.comm.rank == 1:
        win.comm.Recv(token)
        assert win.local[0] == 1


@has_none("sync/031 put, flush, Isend; Irecv, Waitall, load")
def load_after_irecv(win: Any) -> None:
    token = np.zeros(1)
    if win.comm.rank == 0:
        win.put([1], 1)
        win.flush(1)
        win.comm.Isend(token, 1).Wait()
    if win.comm.rank == 1:
        request = win.comm.Irecv(token)
        type(request).Waitall([request])
        assert win.local[0] == 1


@has_none("sync/032 two ranks put, one after the other's message")
def puts_ordered(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1, exclusive=False):
            win.put([1], 1)
        win.comm.send(7, 2)
    if win.comm.rank == 2:
        win.comm.recv(source=0)
        with win.lock(1, exclusive=False):
            win.put([2], 1)


@has_race("sync/033 the load comes after the message of the wrong rank")
def wrong_message(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1):
            win.put([1], 1)
        win.comm.send(7, 1)
    if win.comm.rank == 1:
        win.comm.recv(source=2)
        int(win.local[0])
        win.comm.recv(source=0)
    if win.comm.rank == 2:
        win.comm.send(7, 1)


@has_none("sync/034 put and get in two exposure epochs of the target")
def epochs_apart(win: Any) -> None:
    if win.comm.rank == 2:
        for origin in 0, 1:
            win.post([origin])
            win.wait()
    else:
        win.start([2])
        win.put([42], 2) if win.comm.rank == 0 else win.get(2, 0, 1)
        win.complete()


@has_race("sync/035 put and get in one exposure epoch of the target")
def epoch_shared(win: Any) -> None:
    if win.comm.rank == 2:
        win.post([0, 1])
        win.wait()
    else:
        win.start([2])
        win.put([42], 2) if win.comm.rank == 0 else win.get(2, 0, 1)
        win.complete()


@has_race("sync/036 the target looks at its memory until it has changed")
def polling(win: Any) -> None:
    if win.comm.rank == 0:
        with win.lock(1):
            win.put([1], 1)
    if win.comm.rank == 1:
        while win.local[0] != 1:
            time.sleep(0.01)
            with win.lock(1):
                pass
            time.sleep(0.01)


@has_none("sync/036 the target waits for a value with wait_until")
def waits_until(win: Any) -> None:
    if win.comm.rank == 0:
        win.put(np.arange(8), 1, 8)
        win.flush(1)
        win.put([1], 1)
        win.flush(1)
    if win.comm.rank == 1:
        win.wait_until(0, "==", 1)
        assert win.local[0] == 1
        assert win.local[8:].sum() == 28


@has_race("sync/036 the data is not flushed before the value that the target waits for")
def flag_too_early(win: Any) -> None:
    if win.comm.rank == 0:
        win.put(np.arange(8), 1, 8)
        win.store(1, 1)
        win.flush(1)
    if win.comm.rank == 1:
        win.wait_until(0, "==", 1)
        win.local[8:].sum()


@has_none("sync/036 the data is flushed before the value that the target waits for")
def flag_in_time(win: Any) -> None:
    if win.comm.rank == 0:
        win.put(np.arange(8), 1, 8)
        win.flush(1)
        win.store(1, 1)
    if win.comm.rank == 1:
        win.wait_until(0, "==", 1)
        assert win.local[8:].sum() == 28


@has_none("a notification says that the data has come")
def notified(win: Any) -> None:
    if win.comm.rank == 0:
        win.put_notify(np.arange(8), 1, 4, slot=3)
    if win.comm.rank == 1:
        win.wait_notify(3)
        assert win.local[4:12].sum() == 28


@has_race("the data is read before the notification")
def notified_late(win: Any) -> None:
    if win.comm.rank == 0:
        win.put_notify(np.arange(8), 1, 4, slot=3)
    if win.comm.rank == 1:
        win.local[4:12].sum()
        win.wait_notify(3)


@has_race("a bcast tells the others, but not the root")
def told_by_root(win: Any) -> None:
    if win.comm.rank == 2:
        win.put([1], 1)
        win.flush(1)
    win.comm.bcast(7, 0)
    if win.comm.rank == 1:
        int(win.local[0])


@has_none("an allreduce tells all")
def told_by_allreduce(win: Any) -> None:
    if win.comm.rank == 2:
        win.put([1], 1)
        win.flush(1)
    win.comm.allreduce(7)
    if win.comm.rank == 1:
        assert win.local[0] == 1


def exchange_with_neighbours(win: Any) -> None:
    """Let rank 0 put to rank 1; then ranks 0 and 1, and 1 and 2, exchange numbers."""
    line = win.comm.Create_cart([3])
    if win.comm.rank == 0:
        win.put([1], 1)
        win.flush(1)
    line.Neighbor_allgather(np.zeros(1), np.zeros(2))
    line.Free()


@has_none("a Neighbor_allgather tells a neighbour")
def told_by_neighbour(win: Any) -> None:
    exchange_with_neighbours(win)
    if win.comm.rank == 1:
        assert win.local[0] == 1


@has_race("a Neighbor_allgather tells nobody but the neighbours")
def not_a_neighbour(win: Any) -> None:
    exchange_with_neighbours(win)
    if win.comm.rank == 2:
        win.get(1, 0, 1)


@has_none("a neighbor_alltoall of a graph tells whom its edges lead to")
def told_along_an_edge(win: Any) -> None:
    sources, targets = {0: ([], [1]), 1: ([0], []), 2: ([], [])}[win.comm.rank]
    graph = win.comm.Create_dist_graph_adjacent(sources, targets)
    if win.comm.rank == 0:
        win.put([1], 1)
        win.flush(1)
    graph.neighbor_alltoall([7] * len(targets))
    graph.Free()
    if win.comm.rank == 1:
        assert win.local[0] == 1
