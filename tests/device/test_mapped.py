# SPDX-License-Identifier: BSD-3-Clause
"""The route ipc: memory of a device that other processes of the node have mapped."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from support.processes import stopped

import rmaext
from rmaext._native._lib import ffi, lib
from rmaext._runtime import config

pytestmark = pytest.mark.mpi
N = 300_000  # elements: more than both halves of a stream's pinned memory


@pytest.fixture
def memory(cuda):
    return cuda.Array.from_numpy(np.zeros(N))


@pytest.fixture
def mapped(memory, comm):
    """A window whose every rank of this node is reached by ipc; with guards at both ends."""
    with rmaext.Window(comm, memory) as win:
        if win._group.forced:
            pytest.skip("all goes by the network")
        yield win
        win.fence()
        assert (memory.to_numpy()[[0, -1]] == 0).all()


def test_routes(memory, comm):
    with rmaext.Window(comm, memory) as win:
        here = [] if win._group.forced else win._group.here
        for rank in range(comm.size):
            assert win.route(rank) == ("ipc" if rank in here else "fabric")


def test_what_is_copied_where(mapped, comm):
    """By the origin's stream: rows longer than a stream's memory, places, ranges, parts."""
    near = [rank for rank in mapped._group.here if rank % 2 == comm.rank % 2 or comm.size < 3]
    target = near[(near.index(comm.rank) + 1) % len(near)]
    values = np.random.default_rng(comm.rank).random(N - 2)
    mapped.put(values, target, 1)
    assert (mapped.get(target, 1, N - 2) == values).all()  # it is complete, without a flush
    mapped.put_many([target] * 3, [5, 9, 7], [1.0, 2.0, 3.0])
    values[[4, 8, 6]] = 1, 2, 3
    assert mapped.get_many([target] * 4, [7, 5, 9, 6]).tolist() == [3, 1, 2, values[5]]
    mapped[target, 100:3700:3] = 4.0
    values[99:3699:3] = 4
    assert (mapped[target, 1:-1] == values).all()
    assert (mapped[target, 50:2150:7] == values[49:2149:7]).all()
    found = mapped.get_ranges(target, [1, 70_000, 20], [3, 66_000, 0])
    assert (found == np.r_[values[:3], values[69_999:135_999]]).all()
    mapped.rput_many([target] * 2, [11, 12], [6.0, 7.0]).wait()
    assert mapped.rget_many([target] * 2, [12, 11]).wait().tolist() == [7, 6]
    view = mapped.subwindow(20, 30)
    view.put(5.0, target, 2)
    assert view[target, 2] == mapped[target, 22] == 5


def test_it_is_counted_by_its_route(mapped, comm):
    mapped.put(np.ones(3), comm.rank, 1)
    mapped.get(comm.rank, 1, 3)
    mapped.put_notify(1.0, comm.rank, 1, slot=2)
    mapped.accumulate(1.0, comm.rank, 1)
    mapped.flush()
    routes = {(row["kind"], row["route"]) for row in mapped.stats}
    assert {("put", "ipc"), ("get", "ipc"), ("notify", "ipc"), ("update", "message")} <= routes


def test_a_stopped_target(mapped, comm):
    """It answers nothing, and all that is no update ends."""
    last = comm.size - 1
    if not last or not comm.bcast(mapped.route(0) == "ipc", last):
        pytest.skip("the last rank is alone, or on another node")
    pid = comm.bcast(os.getpid(), 0)
    if comm.rank == last:
        with stopped(pid):
            mapped.put(np.arange(1.0, 6.0), 0, 3)
            mapped.flush(0)
            assert (mapped.get(0, 3, 5) == np.arange(1.0, 6.0)).all()
            mapped.put_notify(np.full(6, 8.0), 0, 10, slot=3)
            mapped[0, 20:40:2] = 9.0
            assert (mapped[0, 20:40:2] == 9).all()
    mapped.fence()
    if comm.rank == 0:
        mapped.wait_notify(slot=3)
        assert (mapped.get(0, 10, 6) == 8).all()


def test_a_kernel_after_a_notification_sees_the_data(mapped, memory, cuda, comm):
    """And who is notified after a kernel's end sees what that has written."""
    here = mapped._group.here
    right = here[(here.index(comm.rank) + 1) % len(here)]
    left = here[here.index(comm.rank) - 1]
    stream = cuda.Stream()
    for turn in range(1, 6):
        mapped.put_notify(np.full(50, comm.rank + turn / 8), right, 100, slot=1)
        mapped.wait_notify(slot=1)
        stream.launch(lambda it: it.__setitem__(slice(200, 250), it[100:150] * 2), memory)
        stream.synchronize()
        mapped.put_notify([], left, slot=2)
        mapped.wait_notify(slot=2)
        assert (mapped.get(right, 200, 50) == 2 * (comm.rank + turn / 8)).all()
        mapped.put_notify([], right, slot=4)
        mapped.put_notify([], left, slot=4)
        mapped.wait_notify(slot=4, count=2)
    stream.close()


def test_two_arrays_in_one_allocation_share_a_mapping(memory, cuda, comm):
    class Part:
        def __init__(self, start, stop):
            self.__cuda_array_interface__ = memory.__cuda_array_interface__ | {
                "shape": (stop - start,),
                "data": (memory.address + 8 * start, False),
            }

    comm.Barrier()
    before = cuda.cuda.device_opened()
    with rmaext.Window(comm, Part(0, 10)) as a, rmaext.Window(comm, Part(10, 30)) as b:
        others = 0 if a._group.forced else len(a._group.here) - 1
        assert cuda.cuda.device_opened() == before + others
        for rank in a._group.here:
            a.put(1.0, rank, 9)
            b.put(2.0, rank, 0)
        a.fence()
        b.fence()
        assert memory.to_numpy()[8:12].tolist() == [0, 1, 2, 0]
        for rank in a._group.here:
            assert b.get(rank, 0, 1) == [2]
        b.close()
        assert cuda.cuda.device_opened() == before + others
    assert cuda.cuda.device_opened() == before
    comm.Barrier()


@pytest.mark.parametrize("first", [0, 1000])
def test_what_overlaps_its_own_memory(mapped, memory, cuda, comm, first):
    """No library of a device copies that, so it goes by the host."""

    class Part:
        def __init__(self, start, count):
            self.__cuda_array_interface__ = memory.__cuda_array_interface__ | {
                "shape": (count,),
                "data": (memory.address + 8 * start, False),
            }

    values, count = np.arange(1.0, N - 1), N - 1002
    values[-1] = values[0] = 0.5
    for call in "get", "put":
        mapped.put(values, comm.rank, 1)
        wanted = values.copy()
        wanted[1000 - first :][:count] = values[first:][:count]
        if call == "get":
            mapped.get(comm.rank, 1 + first, count, out=Part(1001 - first, count))
        else:
            mapped.put(Part(1 + first, count), comm.rank, 1001 - first)
        assert (mapped.get(comm.rank, 1, N - 2) == wanted).all()
    mapped.put(Part(1, count), comm.rank, 1)  # onto itself
    assert (mapped.get(comm.rank, 1, N - 2) == wanted).all()


def test_bounds_and_rights(memory, comm):
    with rmaext.Window(comm, memory, access="r") as win:
        for rank in range(comm.size):
            assert win.get(rank, N - 1, 1) == [0]
            with pytest.raises(rmaext.BoundsError):
                win.get(rank, N - 1, 2)
            with pytest.raises(rmaext.BoundsError):
                win.get_many([rank] * 2, [0, N])
            for call in (
                lambda rank=rank: win.put(1.0, rank, 0),
                lambda rank=rank: win.put_notify(1.0, rank, 0, slot=1),
                lambda rank=rank: win.put_many([rank], [0], [1.0]),
                lambda rank=rank: win.__setitem__((rank, slice(0, 9, 3)), 1.0),
            ):
                with pytest.raises(rmaext.AccessError):
                    call()
        win.fence()
        assert (memory.to_numpy() == 0).all()


def test_what_cannot_be_mapped_goes_by_messages(memory, cuda, comm):
    cuda.cuda.device_fail(b"cuIpcOpenMemHandle_v2:1:205,cuIpcOpenMemHandle_v2:1:205")
    try:
        win = rmaext.Window(comm, memory)
    finally:
        cuda.cuda.device_fail(b"")
    with win:
        for rank in range(comm.size):
            win.put(comm.rank + 1.0, rank, comm.rank)
        win.fence()
        for rank in range(comm.size):
            assert (win.get(rank, 0, comm.size) == np.arange(1.0, comm.size + 1)).all()
        win.fence()
    cuda.cuda.device_fail(b"cuIpcGetMemHandle:1:205")
    try:
        win = rmaext.Window(comm, memory)
    finally:
        cuda.cuda.device_fail(b"")
    with win:
        routes = {win.route(rank) for rank in range(comm.size) if rank != comm.rank}
        assert routes <= {"fabric"}
        assert (win.get(comm.size - 1, 0, 1) == 1).all()


@pytest.mark.parametrize("call", ["cuMemcpyDtoHAsync_v2", "cuStreamQuery", "cuCtxPushCurrent_v2"])
def test_a_copy_that_fails(mapped, cuda, comm, call):
    """The error names the rank; the next operation works."""
    cuda.cuda.device_fail(f"{call}:1:1".encode())
    try:
        with pytest.raises(rmaext.RmaError, match=f"rank {comm.rank}.*CUDA_ERROR_INVALID_VALUE"):
            mapped.get(comm.rank, 1, 1)
    finally:
        cuda.cuda.device_fail(b"")
    mapped.put(2.0, comm.rank, 1)
    assert mapped.get(comm.rank, 1, 1) == [2]


def test_a_put_from_device_to_device(mapped, cuda, comm):
    """It does not pass the host, and comes behind the work of the array's stream."""
    stream = cuda.Stream()
    source = cuda.Array.from_numpy(np.zeros(500), stream)
    source.launch(lambda it: it.__setitem__(slice(None), comm.rank + 1.0))
    cuda.cuda.device_fail(b"cuMemcpyDtoHAsync_v2:1:1,cuMemcpyHtoDAsync_v2:1:1")
    try:
        for rank in mapped._group.here:
            mapped.put(source, rank, 1 + 500 * comm.rank)
    finally:
        cuda.cuda.device_fail(b"")
    mapped.fence()
    for rank in mapped._group.here:
        assert (mapped.get(rank, 1 + 500 * comm.rank, 500) == comm.rank + 1).all()
    for error, call in (
        (rmaext.BoundsError, lambda: mapped.put(source, comm.rank, N - 499)),
        (TypeError, lambda: mapped.put(cuda.Array(3, "i4"), comm.rank)),
        (rmaext.BoundsError, lambda: mapped.put(source, comm.size)),
    ):
        with pytest.raises(error):
            call()
    stream.close()


def test_a_get_from_device_to_device(mapped, cuda, comm):
    """It does not pass the host either, and comes behind the work of the array's stream."""
    stream = cuda.Stream()
    for rank in mapped._group.here:
        mapped.put(np.full(500, comm.rank + 1.0), rank, 1 + 500 * comm.rank)
    mapped.fence()
    outs = {rank: cuda.Array.from_numpy(np.zeros(500), stream) for rank in mapped._group.here}
    cuda.cuda.device_fail(b"cuMemcpyDtoHAsync_v2:1:1,cuMemcpyHtoDAsync_v2:1:1")
    try:
        for rank, out in outs.items():
            assert mapped.get(rank, 1 + 500 * rank, out=out) is out
            assert mapped.get(rank, 1 + 500 * rank, 500, out=out) is out
    finally:
        cuda.cuda.device_fail(b"")
    for rank, out in outs.items():
        assert (out.to_numpy() == rank + 1).all()
        out.launch(lambda it: it.__setitem__(slice(None), -1.0))
        mapped.get(rank, 1 + 500 * rank, out=out)
        assert (out.to_numpy() == rank + 1).all()
    for error, call in (
        (rmaext.BoundsError, lambda: mapped.get(comm.rank, N - 499, out=out)),
        (ValueError, lambda: mapped.get(comm.rank, 0, 499, out=out)),
        (TypeError, lambda: mapped.get(comm.rank, 0, 500.0, out=out)),
        (TypeError, lambda: mapped.get(comm.rank, out=cuda.Array(3, "i4"))),
        (rmaext.BoundsError, lambda: mapped.get(comm.size, out=out)),
    ):
        with pytest.raises(error):
            call()
    routes = {(row["kind"], row["route"]) for row in mapped.stats}
    assert ("get", "ipc") in routes
    stream.close()


@pytest.mark.mpi(min_size=2)
def test_a_view_after_a_close_that_was_refused(cuda, world):
    """It goes by messages then, as its window does: a notification overtakes none."""
    win = rmaext.Window(world, cuda.Array.from_numpy(np.zeros(8)), timeout=100)
    view = win.subwindow(0, 8)
    with pytest.raises(rmaext.SyncError):
        win.fence() if world.rank else win.close()
    world.Barrier()
    if world.rank == 0:
        assert view.route(1) == win.route(1) == "fabric"
        view.rput_notify(np.ones(2), 1, 0, slot=0).wait()
    if world.rank == 1:
        view.wait_notify(0)
        cuda.cuda.device_hang(1)
    world.Barrier()
    if world.rank == 0:
        view.put_notify(np.ones(4), 1, 0, slot=1)
        view.put_notify([], 1, slot=2)
        view.flush()  # raises if one has failed
    if world.rank == 1:
        later = threading.Timer(0.5, cuda.cuda.device_hang, (0,))
        later.start()
        view.wait_notify(2)
        assert view.test_notify(1)
        later.join()
    world.Barrier()
    win.close()


def until(call, errors=rmaext.RmaTimeout):
    """Return what a call does once it is in time."""
    end = time.monotonic() + 20
    while True:
        try:
            return call()
        except errors:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_device_that_hangs(memory, cuda, comm):
    """An operation ends in its time; once the device goes on, so do operations."""
    with rmaext.Window(comm, memory, timeout=0.4) as win:
        if win._group.forced:
            pytest.skip("all goes by the network")
        origin = np.full(N - 2, 3.0)
        cuda.cuda.device_hang(1)
        try:
            start = time.monotonic()
            with pytest.raises(rmaext.RmaTimeout, match=r"has not ended in 0[.]4 s"):
                win.put(origin, comm.rank, 1)
            assert time.monotonic() - start >= 0.4
            origin[:] = 4  # no copy reads that
            del origin
            with pytest.raises(rmaext.RmaTimeout, match="was given up, and goes on"):
                win.put(7.0, comm.rank, 3)
            made = cuda.cuda.device_calls(b"cuStreamCreate")
            for _ in range(9):  # each has a stream of its own; then there are no more
                with pytest.raises(rmaext.RmaTimeout, match=r"has not ended in 0[.]4 s"):
                    win.get(comm.rank, 1, 8)
            assert cuda.cuda.device_calls(b"cuStreamCreate") == made
        finally:
            cuda.cuda.device_hang(0)
        until(lambda: win.put(3.0, comm.rank, 1))  # which comes behind what was given up
        assert (win.get(comm.rank, 1, 8) == 3).all()  # what was begun by then has come
        until(lambda: win.put(np.full(N - 2, 5.0), comm.rank, 1))
        assert (win.get(comm.rank, 1, N - 2) == 5).all()
        comm.Barrier()


def test_one_copy_that_hangs(memory, cuda, comm):
    """Others go on, but for puts to the same memory, over which it may come yet."""
    with rmaext.Window(comm, memory, timeout=0.4) as win:
        if win._group.forced:
            pytest.skip("all goes by the network")
        cuda.cuda.device_hang(2)
        try:
            with pytest.raises(rmaext.RmaTimeout, match=r"has not ended in 0[.]4 s"):
                win.put(np.full(100, 3.0), comm.rank, 50)
            for call in (
                lambda: win.put(4.0, comm.rank, 149),
                lambda: win.put_many([comm.rank] * 3, [7, 60, 9], 4.0),
                lambda: win.put_notify(4.0, comm.rank, 50, slot=1),
                lambda: win.put(cuda.Array(100, "f8"), comm.rank, 149),
            ):
                with pytest.raises(rmaext.RmaTimeout, match="was given up"):
                    call()
            for _ in range(20):
                win.put(np.full(60_000, 5.0), comm.rank, 150)
                assert (win.get(comm.rank, 150, 60_000) == 5).all()
                win[comm.rank, 1:40:3] = 6.0
                assert (win.get_many([comm.rank] * 2, [49, 60]) == 0).all()
            win.accumulate(1.0, comm.rank, 1)
            win.flush()
            assert win.get(comm.rank, 1, 1) == [7]
        finally:
            cuda.cuda.device_hang(0)
        until(lambda: win.put(8.0, comm.rank, 149))
        assert (win.get(comm.rank, 50, 100) == [3.0] * 99 + [8.0]).all()
        comm.Barrier()


def test_a_window_that_was_to_be_closed(mapped, comm):
    """It is not mapped any more, and works, on places and parts too, and so do its views."""
    grant = mapped.grant(1, 5)
    part = mapped.subwindow(100, 400)
    with pytest.raises(rmaext.GrantError):
        mapped.close()
    for rank in mapped._group.here:
        assert mapped.route(rank) == part.route(rank) == "fabric"
        mapped.put(comm.rank + 1.0, rank, comm.rank + 1)
    mapped.fence()
    mine = slice(comm.rank, 290 - comm.size, 2 * comm.size)
    for rank in mapped._group.here:
        assert mapped.get(rank, comm.rank + 1, 1) == [comm.rank + 1]
        assert mapped.get_many([rank], [comm.rank + 1]) == [comm.rank + 1]
        part[rank, mine] = comm.rank + 2.0
        part.rput_many([rank] * 2, [295, 296], [5.0, 6.0]).wait()
        mapped.flush()
        assert (mapped[rank, 100:400][mine] == comm.rank + 2).all()
        assert (part[rank, mine] == comm.rank + 2).all()
        assert part.rget_many([rank] * 2, [296, 295]).wait().tolist() == [6, 5]
        assert mapped.get_ranges(rank, [395], [2]).tolist() == [5, 6]
    mapped.fence()
    grant.revoke()


def test_another_processs_record_may_say_anything(memory, cuda, comm):
    """What is mapped is what the record says; what it says is within that, or is not mapped."""
    with rmaext.Window(comm, memory) as win:
        if win._group.forced:
            pytest.skip("all goes by the network")
        pointer = ffi.cast("void *", memory.address + 64)
        exports = comm.allgather(win._region._export(pointer, 8))
        before = cuda.cuda.device_opened()
        rank = near(win)
        export = ffi.new("struct rmaext_export *")
        ffi.memmove(export, exports[rank], ffi.sizeof("struct rmaext_export"))
        assert export.at == 64
        if rank == comm.rank:  # CUDA maps nothing of a process in itself
            comm.Barrier()
            return
        room, at = 8 * N - 64, export.at
        library = config.cuda_library()
        assert lib.rmaext_import_try(library, export, room) == 0
        for first, size in (
            (at, room + 1),
            (at, 2**64 - 1),
            (8 * N, 1),
            (2**63, 8),
            (2**64 - 8, 8),
            (2**64 - 8, 72),
        ):
            export.at = first
            assert lib.rmaext_import_try(library, export, size) == -errno.ERANGE
        assert cuda.cuda.device_opened() == before
        comm.Barrier()


def near(win):
    here = win._group.here
    return here[(here.index(win._group.rank) + 1) % len(here)]


def test_a_close_while_the_device_hangs(memory, cuda, comm):
    """It waits for no copy that was given up, whose mapping stays for that."""
    comm.Barrier()
    before = cuda.cuda.device_opened()
    win = rmaext.Window(comm, memory, timeout=0.3)
    others = cuda.cuda.device_opened() - before
    if win._group.forced:
        win.close()
        pytest.skip("all goes by the network")
    cuda.cuda.device_hang(1)
    try:
        with pytest.raises(rmaext.RmaTimeout):
            win.put(np.full(100, 3.0), near(win), 50)
        start = time.monotonic()
        win.close()
        assert time.monotonic() - start < 10
        assert cuda.cuda.device_opened() - before == others
    finally:
        cuda.cuda.device_hang(0)
    comm.Barrier()
    end = time.monotonic() + 20
    while comm.allreduce(cuda.cuda.device_opened() != before, MPI.LOR):
        assert time.monotonic() < end
        rmaext.Window(comm, memory).close()  # it takes along what nobody uses any more
    with rmaext.Window(comm, memory) as win:
        until(lambda: win.put(3.0, near(win), 50))  # which comes behind what was given up
        win.fence()
        assert (memory.to_numpy()[50:150] == 3).all()
        comm.Barrier()


@pytest.mark.parametrize(
    "begin",
    [
        lambda win, _: win.put_many([0] * 3, [1, 9, 4], 1.0),
        lambda win, _: win.put(np.ones(9), 0),
        lambda win, array: win.put(array, 0),
    ],
    ids=["put_many", "put", "put across"],
)
def test_a_handler_that_tries_to_close(cuda, comm, begin):
    """Amid a put, whose window lets go of the device then, and is not closed."""
    if comm.size > 1:
        pytest.skip("closing is collective")
    memory = cuda.Array.from_numpy(np.zeros(100))
    win = rmaext.Window(comm, memory, timeout=20)
    if win._group.forced:
        win.close()
        pytest.skip("all goes by the network")
    grant, caught, array = win.grant(1, 5), [], cuda.Array.from_numpy(np.ones(9))

    def handler(*_):
        with pytest.raises(rmaext.RmaError) as error:
            win.close()
        caught.append(error)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        cuda.cuda.device_hang(2)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(rmaext.ClosedError, match="closed meanwhile"):
            begin(win, array)
    finally:
        cuda.cuda.device_hang(0)
        signal.signal(signal.SIGUSR1, before)
    assert len(caught) == 1
    # by messages now; what was given up comes first
    until(lambda: win.put_many([0] * 3, [1, 9, 4], 2.0) or win.flush(), rmaext.RmaError)
    assert win.get_many([0] * 3, [1, 9, 4]).tolist() == [2, 2, 2]
    grant.revoke()
    win.close()
