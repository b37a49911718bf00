# SPDX-License-Identifier: BSD-3-Clause
"""RemoteWindow.attach: operations and checks of a process that is not in the window."""

from __future__ import annotations

import launch
import numpy as np
import pytest
from clients import refuses
from support.guarded import Guarded, neighbour, noise, same

import rmaext
from rmaext import RemoteWindow

# -- operations --------------------------------------------------------------------


def test_operations(comm, win):
    """Of a neighbour's memory: as those of a window of one rank."""
    blob = comm.allgather(win.export())[neighbour(comm)]
    with RemoteWindow.attach(blob) as far:
        assert (far.dtype, far.size(0), far.route(0)) == (np.dtype(float), 40, "fabric")
        assert same(far.get(0), np.arange(40.0))
        comm.Barrier()
        far.put(noise(float, 3, comm.rank), 0, 5)
        far.flush()
        assert same(far.get(0, 5, 3), noise(float, 3, comm.rank))
        assert far.fetch_add(2.0, 0, 8) == 8
        assert far.compare_and_swap(10.0, -1.0, 0, 8) == 10
        assert far.fetch_op(5.0, 0, 8, "replace") == -1
        far.accumulate(np.ones(10), 0, 10)
        assert same(far.get_accumulate(np.ones(10), 0, 10), np.arange(11.0, 21))
        far.put_many(0, [20, 22], np.array([1.5, 2.5]))
        far.accumulate_many(0, [20, 22], 1.0)
        assert far.get_many(0, [20, 21, 22]).tolist() == [2.5, 21, 3.5]
        far[0, 3, ::2] = -1
        far.flush()
        assert far[0, 3].tolist() == [-1, 31, -1, 33, -1, 35, -1, 37, -1, 39]
        far.at(0).add(([3, 3], [1, 1]), 1.0)
        assert far.rget(0, 30, 2).result().tolist() == [-1, 33]
        far.rput(np.zeros(2), 0, 30).wait()
        with pytest.raises(rmaext.BoundsError):
            far.put(np.ones(1), -1)
    comm.Barrier()
    assert same(win.local[1], np.arange(10, 20) + 2.0)
    assert win.local[0, 8] == 5
    assert win.local[3, :2].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["i1", "c16", "M8[s]", "V5", "U3", "i4,f8", "f8,i4"])
def test_dtypes(world, dtype):
    made = np.dtype(dtype, align=True) if dtype == "f8,i4" else np.dtype(dtype)
    mine = Guarded(100, made)
    with rmaext.Window(world, mine.array) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            assert far.dtype == made
            data = noise(made, 100, world.rank)
            far.put(data, 0)
            far.flush()
            assert same(far.get(0), data)
    mine.check()


@pytest.mark.parametrize("length", range(2008, 2018))
def test_rows_as_long_as_a_message(world, length):
    with rmaext.Window.allocate(world, (3, 2020)) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            rows = noise(float, 3 * length, world.rank).reshape(3, length)
            far[0, :, :length] = rows
            far.flush()
            assert same(far[0, :, :length], rows)
            assert not far[0, :, length:].any()


def test_long_transfers(world):
    """Of several messages; what is outside stays as it is."""
    mine = Guarded(200_000)
    with rmaext.Window(world, mine.array) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            data = np.arange(200_000.0) + world.rank
            far.put(data, 0)
            far.flush()
            assert same(far.get(0), data)
            far.accumulate(data, 0)
            assert same(far[0, ::1000], 2 * data[::1000])
    mine.check()


def test_atomic_against_the_windows_own(world):
    with rmaext.Window.allocate(world, 3, "i8") as win:
        blob = world.bcast(win.export() if not world.rank else None)
        with RemoteWindow.attach(blob) as far:
            for _ in range(50):
                far.fetch_add(1, 0, 0)
                win.fetch_add(1, 0, 0)
                far.accumulate_many(0, [0, 1], 1)
            far.flush()
        win.fence()
        assert win.get(0).tolist() == [150 * world.size, 50 * world.size, 0]


def test_checks_at_the_origin(world):
    """The same as a window's, and nothing is sent."""
    array = np.arange(9.0)
    array.flags.writeable = False
    with (
        rmaext.Window(world, array) as shut,
        rmaext.Window.allocate(world, 9) as open_,
    ):
        with RemoteWindow.attach(shut.export()) as far:
            refuses(lambda: far.put(np.ones(1), 0), rmaext.AccessError, "allows r")
            refuses(lambda: far.fetch_add(1.0, 0), rmaext.AccessError)
            refuses(lambda: far.put_many(0, [1], 1.0), rmaext.AccessError)
            assert far.fetch_op(0.0, 0, 3, "no_op") == 3
        with RemoteWindow.attach(open_.export("w")) as far:
            refuses(lambda: far.get(0), rmaext.AccessError, "allows w")
            far.accumulate(np.ones(9), 0)
        with RemoteWindow.attach(open_.export()) as far:
            refuses(lambda: far.put(np.ones(3), 0, 7), rmaext.BoundsError, "offset 7, length 3")
            refuses(lambda: far.get(1), rmaext.BoundsError)
            refuses(lambda: far.get_many(0, [9]), rmaext.BoundsError)
            refuses(lambda: far[0, 9], rmaext.BoundsError)
            refuses(lambda: far.put(np.ones(3, "f4"), 0), TypeError)
            refuses(lambda: far.fetch_op(1.0, 0, 0, "bor"), rmaext.Unsupported)
            assert same(far.get(0), np.ones(9))
        refuses(lambda: far.get(0), rmaext.ClosedError)
        refuses(lambda: shut.export("rw"), rmaext.AccessError)
        refuses(lambda: open_.export("x"), ValueError)
        refuses(lambda: open_.export(scope="world"), ValueError)
        world.Barrier()


def test_alignment(world):
    records = np.zeros(4, [("a", "i1"), ("b", "i8")])
    memory = np.zeros(65, "i1")[1:].view("i8")
    with rmaext.Window(world, memory) as win, RemoteWindow.attach(win.export()) as far:
        refuses(lambda: far.fetch_add(1, 0), rmaext.AlignmentError)
        far.put(np.array([7]), 0)
        far.flush()
        assert far.get(0)[0] == 7
    with rmaext.Window(world, records) as win:
        field = win.field("b")
        refuses(field.export, rmaext.Unsupported)
    world.Barrier()


def test_what_it_is_not(world, win):
    with RemoteWindow.attach(win.export()) as far:
        calls = [
            *(lambda: far.local, lambda: far.comm, lambda: far.memory, lambda: far.numba),
            *(far.refresh, lambda: far.writes_received, lambda: far.advise("normal")),
            *(far.fence, far.notify_counts, far.export, lambda: far.grant(0, 1)),
            *(
                lambda: far.lock(0, exclusive=False),
                far.lock_all,
                lambda: far.post([0]),
                lambda: far.start([0]),
            ),
            *(lambda: far.put_notify(np.ones(1), 0), lambda: far.wait_notify(0)),
            *(lambda: far.wait_until(0, ">", 1), lambda: far.subwindow(0, 1), far.dup),
            *(lambda: far.field("a"), lambda: far.unlock(0), far.complete, far.wait, far.test),
        ]
        for call in calls:
            refuses(call, rmaext.Unsupported, "RemoteWindow")
        refuses(lambda: far.peer_view(0), rmaext.NotLocalError)
        far.connect()
    world.Barrier()


def test_other_windows(world):
    """Views and shared windows can be exported; those of several arrays cannot."""
    with rmaext.Window.allocate(world, 10) as win:
        win.local[:] = np.arange(10)
        part = win.subwindow(2, 6)
        with RemoteWindow.attach(part.export("r")) as far:
            assert far.get(0).tolist() == [2, 3, 4, 5]
        with part.grant(1, 3) as given, RemoteWindow.attach(given.export()) as far:
            assert far.get(0).tolist() == [3, 4]
            assert win.grants == part.grants == (given,)
        world.Barrier()
    with rmaext.Window(world, [np.zeros(3), np.zeros(2)]) as win:
        refuses(win.export, rmaext.Unsupported)
    with rmaext.Window.dynamic(world) as win:
        refuses(lambda: win.grant(0, 0), rmaext.Unsupported)


@pytest.mark.mpi(min_size=2)
def test_shared_window(world):
    if launch.test_route() in ("fabric", "mixed"):
        pytest.skip("no shared memory")
    with rmaext.Window.shared(world, 5, "i8") as win:
        win.local[:] = world.rank
        blobs = world.allgather(win.export())
        with RemoteWindow.attach(blobs[-1]) as far:
            assert far.get(0).tolist() == [world.size - 1] * 5
        world.Barrier()


def test_outside_the_communicator(world):
    """Rank 0 attaches to a window of the last rank alone, which takes no part in that."""
    last = world.size - 1
    alone = world.Split(world.rank == last)
    if world.rank == last:
        win = rmaext.Window.allocate(alone, 6)
        win.local[:] = np.arange(6)
        if last:
            world.send(win.export(), 0)
            assert world.recv(source=0) == "done"
            assert win.local.tolist() == [0, 1, 2, 3, 4, 9]
        win.close()
    if world.rank == 0 and last:
        with RemoteWindow.attach(world.recv(source=last)) as far:
            far.put(np.array([9.0]), 0, 5)
        world.send("done", last)
    alone.Free()
    world.Barrier()


def test_stats(comm, win):
    """What a client does is counted there, apart from what the window's ranks do."""
    with rmaext.RemoteWindow.attach(win.export()) as far:
        before = far.stats["calls"].sum()
        far.put([1.0, 2.0], 0)
        far.fetch_add(1.0, 0, 3)
        far.flush()
        rows = {str(row["kind"]): row for row in far.stats}
        assert far.stats["calls"].sum() == before + 2
        assert (rows["put"]["target"], rows["put"]["elements"]) == (0, 2)
        assert (rows["fetch"]["route"], rows["fetch"]["bytes"]) == ("message", 8)
    assert not len(win.stats)
    comm.Barrier()
