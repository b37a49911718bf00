# SPDX-License-Identifier: BSD-3-Clause
"""Creating, describing and closing windows."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import random
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import descriptors, guarded, neighbour, noise, same

import rmaext
from rmaext._runtime.config import timeout_seconds

DTYPES = [
    *"?bBhHiIlLqQefdgFDG",
    "S5",
    "U3",
    "M8[s]",
    "m8[us]",
    ">i4",
    "i4,f8",
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(comm, dtype):
    want = noise("u1", 7 * np.dtype(dtype).itemsize, comm.rank)
    right, left = neighbour(comm), (comm.rank - 1) % comm.size
    with guarded(comm, 7, dtype) as win:
        assert win.dtype == np.dtype(dtype)
        win.put(want.view(dtype), right)
        win.fence()
        mine = noise("u1", want.size, left).view(dtype)
        assert win.local.tobytes() == mine.tobytes()
        back = win.get(right, 2, 3)
        assert back.dtype == win.dtype
        assert back.tobytes() == want.view(dtype)[2:5].tobytes()
        win.fence()


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (3, 1, 4, 2)])
@pytest.mark.parametrize("kind", ["array", "allocate"])
def test_shapes_are_addressed_in_flat_c_order(comm, shape, kind):
    if kind == "array":
        win = rmaext.Window(comm, np.zeros(shape, "i8"))
    else:
        win = rmaext.Window.allocate(comm, shape, "i8")
    with win:
        count = win.local.size
        assert win.local.shape == shape
        assert win.size(neighbour(comm)) == count
        values = np.arange(count) + 10 * comm.rank
        for i in reversed(range(count)):
            win.put(values[i : i + 1], neighbour(comm), i)
        win.fence()
        left = (comm.rank - 1) % comm.size
        assert same(win.local, (np.arange(count) + 10 * left).reshape(shape))
        win.fence()


@pytest.mark.parametrize(
    "size", [lambda r: 5 * r, lambda r: 0, lambda r: 3 * (r == 0), lambda r: 1 << r]
)
def test_sizes_may_differ_and_be_zero(comm, size):
    with guarded(comm, size(comm.rank), "i4", comm.rank + 1) as win:
        for rank in range(comm.size):
            assert win.size(rank) == size(rank)
            whole = np.full(size(rank), rank + 1, "i4")
            assert same(win.get(rank), whole)
            assert win.get(rank, size(rank)).size == 0
            with pytest.raises(rmaext.BoundsError):
                win.put(np.int32(9), rank, size(rank))
            win.put(whole, rank)
        win.fence()


def test_access_of_a_rank_without_elements_is_no_matter(world):
    """A read-only empty array on one rank does not bind the others."""
    array = np.zeros(3 * (world.rank > 0), "i4")
    array.flags.writeable = world.rank > 0
    with rmaext.Window(world, array) as win:
        for rank in range(1, world.size):
            win.put(np.full(3, 7, "i4"), rank)
        win.fence()
        assert (win.local == 7).all()
        assert win.size(0) == 0
        win.fence()


@pytest.mark.parametrize("color", ["parity", "alone", "all reversed"])
def test_sub_communicators(world, color):
    group = {"parity": world.rank % 2, "alone": world.rank}.get(color, 0)
    sub = world.Split(group, -world.rank)
    with guarded(sub, sub.size, "i4", -1) as win:
        assert win.comm is sub
        for rank in range(sub.size):
            win.put(np.int32(world.rank), rank, sub.rank)
        win.fence()
        assert win.local.tolist() == sub.allgather(world.rank)
        win.fence()
    sub.Free()


def test_rank_left_out_of_a_split(world):
    color = 1 if world.rank else MPI.UNDEFINED
    sub = world.Split(color)
    if sub == MPI.COMM_NULL:
        with pytest.raises((ValueError, TypeError)):
            rmaext.Window(sub, np.zeros(3))
    else:
        with guarded(sub, 2, "i4") as win:
            win.fetch_add(np.int32(1), 0, 1)
            win.fence()
            assert win.get(0).tolist() == [0, sub.size]
            win.fence()
        sub.Free()


def test_without_mpirun(run_python):
    done = run_python(
        """
        import numpy as np, rmaext
        from mpi4py import MPI
        for comm in MPI.COMM_WORLD, MPI.COMM_SELF:
            with rmaext.Window(comm, np.arange(6.0)) as win:
                win.put(np.array([7.0, 8.0]), 0, 4)
                win.flush(0)
                assert win.get(0).tolist() == [0, 1, 2, 3, 7, 8]
                assert win.fetch_add(2.0, 0, 5) == 8
                assert win.compare_and_swap(10.0, 1.5, 0, 5) == 10
                assert win.local[5] == 1.5
        print("done")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def key_size(comm):
    """Return the bytes of a remote key that the provider uses; 0: there are no keys."""
    with rmaext.Window(comm, np.zeros(1)) as win:
        return 0 if win.fabric is None else win.fabric.key_size


def test_hundreds_open_at_once(world):
    count = 200 if key_size(world) == 1 else 300
    wins = [
        rmaext.Window(world, np.zeros(2, "i8")) if i % 2 else rmaext.Window.allocate(world, 2, "i8")
        for i in range(count)
    ]
    to = neighbour(world)
    for i, win in enumerate(wins):
        win.put(np.int64(i + 1), to, 1)
    for win in wins:
        win.flush()
    world.Barrier()
    got = [win.local.tolist() for win in wins]
    assert got == [[0, i + 1] for i in range(count)]
    assert [int(win.get(to, 1)[0]) for win in wins] == list(range(1, count + 1))
    world.Barrier()
    random.Random(2).shuffle(wins)
    for win in wins:
        win.close()


BIG = (1 << 32) + 4096 + 3


@pytest.mark.parametrize("where", ["all", "one"])
@pytest.mark.parametrize("kind", ["array", "allocate"])
def test_both_ends_of_more_than_4_GiB(comm, kind, where):
    """Only the pages that are touched exist."""
    last = comm.size - 1
    size = BIG if where == "all" or comm.rank == last else 8
    if kind == "array":
        win = rmaext.Window(comm, np.zeros(size, "u1"))
    else:
        win = rmaext.Window.allocate(comm, size, "u1")
    with win:
        assert win.size(last) == BIG
        mark = np.array([1, 2, 3, comm.rank + 1], "u1")
        near, far = 4 * comm.rank, BIG - 4 * (comm.rank + 1)
        win.put(mark, last, near)
        win.put(mark, last, far)
        win.fence()
        for rank in range(comm.size):
            want = [1, 2, 3, rank + 1]
            for offset in (4 * rank, BIG - 4 * (rank + 1)):
                assert win.get(last, offset, 4).tolist() == want
                if comm.rank == last:
                    assert win.local[offset : offset + 4].tolist() == want
        middle = BIG % (1 << 32) - 4 * (comm.rank + 1)
        assert not win.get(last, middle, 4).any(), "offset cut to 32 bits"
        for bad in (BIG, BIG - 3):
            with pytest.raises(rmaext.BoundsError):
                win.put(mark, last, bad)
        win.fence()


def test_element_offsets_beyond_4_GiB(comm):
    count = BIG // 8 + 1
    with rmaext.Window.allocate(comm, count, "i8") as win:
        to = neighbour(comm)
        win.put(np.int64(5), to, count - 1)
        assert win.fetch_add(np.int64(2), to, count - 1) == 5
        assert win.compare_and_swap(7, 8, to, count - 1) == 7
        assert win.get(to, count - 2).tolist() == [0, 8]
        win.fence()
        assert win.local[-2:].tolist() == [0, 8]
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_dtypes_that_differ_are_told_by_name(world):
    text = "rank 1: dtype int32, the other ranks have float64: a window has one dtype on all ranks"
    with pytest.raises(TypeError, match=text):
        rmaext.Window.allocate(world, 3, np.int32 if world.rank == 1 else np.float64)


@pytest.mark.parametrize("dtype", ["u1", "f8", "c16", "i4,f8"])
def test_allocated_memory_is_zero_even_when_used_before(comm, dtype):
    for _ in range(3):
        with rmaext.Window.allocate(comm, (5, 7), dtype) as win:
            assert win.local.shape == (5, 7)
            assert win.local.dtype == np.dtype(dtype)
            assert win.local.flags.c_contiguous
            assert win.local.flags.writeable
            assert win.local.ctypes.data % win.dtype.alignment == 0
            assert not any(win.local.tobytes())
            assert not any(win.get(neighbour(comm)).tobytes())
            win.fence()
            win.local.view("u1")[...] = 0xFF
    with rmaext.Window.allocate(comm, 3) as win:
        assert win.dtype == np.float64


def test_allocated_windows_do_not_overlap(comm):
    wins = [rmaext.Window.allocate(comm, i, "u1") for i in range(40)]
    for i, win in enumerate(wins):
        win.put(np.full(i, i, "u1"), neighbour(comm))
        win.fence()
    for i, win in enumerate(wins):
        assert win.local.tolist() == [i] * i
    comm.Barrier()
    for win in wins:
        win.close()


def test_description(comm):
    array = np.arange(6, dtype="f4").reshape(2, 3)
    with rmaext.Window(comm, array) as win:
        assert win.comm is comm
        assert win.dtype == array.dtype
        assert np.shares_memory(win.local, array)
        assert win.local.shape == array.shape
        assert not win.closed
        assert isinstance(win.memory.key, bytes)
        assert win.memory.base == array.ctypes.data
        assert win.memory.size == array.nbytes
        assert win.memory.access == "rw"
        assert win.route(comm.rank) in {"direct", "fabric"}
        for rank in range(comm.size):
            assert win.route(rank) in {"direct", "cma", "fabric"}
            assert win.size(rank) == 6
    assert win.closed


def test_fabric_is_described_where_it_is_used(world):
    with rmaext.Window(world, np.zeros(3)) as win:
        routes = [win.route(rank) for rank in range(world.size)]
        assert ("fabric" in routes) <= (win.fabric is not None)
        if win.fabric is not None:
            assert win.fabric.provider
            assert win.fabric.version[0].isdigit()
            # those that are not raw travel as 8 bytes, though verbs uses 4 of them
            raw = "RAW" in win.fabric.mr_mode
            assert len(win.memory.key) == (win.fabric.key_size if raw else 8)
            assert win.fabric.key_size > 0
            assert win.fabric.address
            assert isinstance(win.fabric.mr_mode, str)
            assert win.fabric.transport in repr(win.fabric).lower()
            assert os.path.exists(win.fabric.library)
        else:
            assert set(routes) == {"direct"}


def test_keys_are_never_used_twice(world):
    if key_size(world) in (1, 2):
        pytest.skip("too few keys for random ones to differ")
    keys = []
    for _ in range(20):
        with rmaext.Window(world, np.zeros(3)) as win:
            if "fabric" in map(win.route, range(world.size)):
                keys.append(win.memory.key)
    assert len(set(keys)) == len(keys)
    assert len(keys) in (0, 20)
    assert not any(sum(key) < 3 for key in keys), "keys are counted"


def test_forced_fabric_route_takes_the_own_rank_too(run_python):
    done = run_python(
        """
        import numpy as np, rmaext
        from mpi4py import MPI
        a = np.arange(8)
        with rmaext.Window(MPI.COMM_SELF, a) as win:
            assert win.route(0) == "fabric"
            assert win.fabric is not None
            win.put(np.array([40, 50]), 0, 4)
            win.flush()
            assert a.tolist() == [0, 1, 2, 3, 40, 50, 6, 7]
            assert win.get(0, 3, 3).tolist() == [3, 40, 50]
            assert win.fetch_add(5, 0, 7) == 7
            assert win.compare_and_swap(12, 13, 0, 7) == 12
            assert a[7] == 13
        print("done")
        """,
        env={"RMAEXT_ROUTE": "fabric"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize("access", ["r", "w", "rw"])
def test_access_is_what_was_asked_for(comm, access):
    array = np.full(4, 3, "i4")
    with rmaext.Window(comm, array, access=access) as win:
        assert win.memory.access == access
        rank = neighbour(comm)
        if "r" in access:
            assert win.get(rank).tolist() == [3] * 4
        else:
            with pytest.raises(rmaext.AccessError):
                win.get(rank)
        comm.Barrier()
        if "w" in access:
            win.put(np.full(4, 8, "i4"), rank)
        else:
            with pytest.raises(rmaext.AccessError):
                win.put(np.full(4, 8, "i4"), rank)
        if access != "rw":
            with pytest.raises(rmaext.AccessError):
                win.fetch_add(1, rank)
        win.fence()
        assert array.tolist() == [8 if "w" in access else 3] * 4


def test_access_may_differ_per_rank(world):
    array = np.full(2, world.rank, "i4")
    array.flags.writeable = world.rank % 2 == 0
    with rmaext.Window(world, array) as win:
        assert win.memory.access == ("rw" if world.rank % 2 == 0 else "r")
        for rank in range(world.size):
            assert win.get(rank, 1)[0] == rank
            if rank % 2:
                with pytest.raises(rmaext.AccessError):
                    win.put(np.int32(9), rank)
            else:
                win.put(np.int32(9), rank)
        win.fence()
    assert array.tolist() == [world.rank if world.rank % 2 else 9, world.rank]


FOREIGN = {
    "bytearray": lambda: bytearray(32),
    "mmap": lambda: mmap.mmap(-1, 32),
    "bytes": lambda: bytes(32),
    "MPI.Alloc_mem": lambda: MPI.Alloc_mem(32),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_memory(comm, kind):
    memory = FOREIGN[kind]()
    array = np.frombuffer(memory, "i8", 4)
    if array.flags.writeable:
        array[:] = 0
    with rmaext.Window(comm, array) as win:
        if array.flags.writeable:
            win.put(np.int64(comm.rank + 5), neighbour(comm), 3)
        else:
            assert win.memory.access == "r"
        win.fence()
        left = (comm.rank - 1) % comm.size
        last = left + 5 if array.flags.writeable else 0
        assert array.tolist() == [0, 0, 0, last]
    del win, array
    if kind == "MPI.Alloc_mem":
        gc.collect()
        MPI.Free_mem(memory)


def test_part_of_an_array(comm):
    whole = np.zeros((4, 5), "f8")
    with rmaext.Window(comm, whole[1:3]) as win:
        win.put(np.ones(10), neighbour(comm))
        win.fence()
    assert whole.sum(axis=1).tolist() == [0, 5, 5, 0]


def test_two_windows_over_one_array(comm):
    array = np.zeros(6, "i4")
    with rmaext.Window(comm, array) as one, rmaext.Window(comm, array[2:]) as two:
        one.put(np.full(3, 1, "i4"), neighbour(comm))
        one.fence()
        two.put(np.full(4, 2, "i4"), neighbour(comm))
        two.fence()
        assert one.get(neighbour(comm)).tolist() == [1, 1, 2, 2, 2, 2]
        assert array.tolist() == [1, 1, 2, 2, 2, 2]
        two.fence()
    array[:] = 5  # the array outlives its windows
    assert array.sum() == 30


def test_window_keeps_its_array_alive(comm):
    win = rmaext.Window(comm, np.full(1000, 3.0))
    gc.collect()
    litter = [np.full(1000, 9.0) for _ in range(50)]
    with win:
        win.put(np.full(1000, 4.0), neighbour(comm))
        win.fence()
        assert (win.local == 4).all()
        assert sum(x.sum() for x in litter) == 50 * 9000
        win.fence()


def test_local_of_an_allocated_window_outlives_it(comm):
    with rmaext.Window.allocate(comm, 1000, "i4") as win:
        win.put(np.full(1000, 6, "i4"), neighbour(comm))
        win.fence()
        mine = win.local
    del win
    gc.collect()
    with rmaext.Window.allocate(comm, 1000, "i4") as other:
        other.local[:] = 1
        other.fence()
        assert (mine == 6).all()
        mine[:] = 2
        assert (other.local == 1).all()
        other.fence()


def test_timeout(comm):
    """The limit that holds: what was given, else the environment's, as the library's own does."""
    with guarded(comm, 3) as usual, guarded(comm, 3, timeout=np.float32(2.5)) as short:
        assert usual.timeout == timeout_seconds(None)
        assert (type(short.timeout), short.timeout) == (float, 2.5)
        assert short.subwindow(0, 1).timeout == 2.5
        assert rmaext.RemoteWindow.attach(short.export(), timeout=3).timeout == 3
        usual.fence()
    assert short.timeout == 2.5  # of a closed one
    with rmaext.Window.allocate(comm, 1, timeout=np.inf) as patient:
        assert patient.timeout == 1e9


def test_close_twice_and_with(comm):
    win = rmaext.Window(comm, np.zeros(3))
    with win as same_one:
        assert same_one is win
        assert not win.closed
    assert win.closed
    win.close()
    win.close()
    assert win.closed
    with pytest.raises(rmaext.ClosedError):
        win.__enter__()


def test_a_window_is_made_once(comm):
    with guarded(comm, 4, "i8") as win:
        for call in (
            lambda: win.__init__(comm, np.zeros(3)),
            lambda: win._create(comm, lambda: np.zeros(3), None, None),
        ):
            with pytest.raises(RuntimeError, match="made before"):
                call()
        win.put(5, neighbour(comm), 3)
        win.fence()
        assert win.local.tolist() == [0, 0, 0, 5]
        win.fence()


def test_close_completes_what_is_on_its_way(comm):
    array = np.zeros(1 << 16, "i4")
    win = rmaext.Window(comm, array)
    win.put(np.full(array.size, comm.rank + 1, "i4"), neighbour(comm))
    win.close()
    assert (array == (comm.rank - 1) % comm.size + 1).all()


def test_create_and_close_100_times(comm):
    def cycle(i):
        array = np.zeros(64, "i4")
        with rmaext.Window(comm, array) as win:
            win.put(np.int32(i), neighbour(comm), 63)
            win.fence()
        assert array[63] == i

    for i in range(10):
        cycle(i)
    before = descriptors()
    for i in range(100):
        cycle(i)
    assert descriptors() <= before + 2


def test_users_communicator_freed_first(world):
    comm = world.Dup()
    win = rmaext.Window(comm, np.zeros(2, "i4"))
    comm.Free()
    win.put(np.int32(4), neighbour(world), 1)
    win.fence()
    assert win.local.tolist() == [0, 4]
    win.close()
    assert win.closed
    with guarded(world, 2, "i4") as again:
        again.put(np.int32(5), neighbour(world))
        again.fence()
        assert again.local[0] == 5


def test_communicators_come_and_go(world):
    """Freed handles may be given out again; contexts are not leaked."""
    for i in range(30):
        comm = world.Dup() if i % 2 else world.Split(0, -world.rank)
        with rmaext.Window(comm, np.zeros(1, "i8")) as win:
            win.put(np.int64(i), neighbour(comm))
            win.fence()
            assert win.local[0] == i
        comm.Free()


@pytest.mark.parametrize("order", ["first", "last", "mixed"])
def test_windows_close_in_any_order(world, order):
    sub = world.Split(0, -world.rank)
    wins = [
        rmaext.Window(comm, np.full(2, i, "i4"))
        for i, comm in enumerate([world, sub, MPI.COMM_SELF] * 3)
    ]
    if order == "last":
        wins.reverse()
    elif order == "mixed":
        random.Random(5).shuffle(wins)
    while wins:
        wins.pop(0).close()
        for win in wins:
            win.put(np.int32(len(wins)), neighbour(win.comm), 1)
            win.fence()
            assert win.local[1] == len(wins)
            win.fence()
    sub.Free()


def test_windows_over_one_communicator_do_not_mix(comm):
    with guarded(comm, 4, "i4") as one, guarded(comm, 4, "i4") as two:
        one.put(np.full(4, 1, "i4"), neighbour(comm))
        two.put(np.full(4, 2, "i4"), neighbour(comm))
        two.fence()
        one.fence()
        assert one.local.tolist() == [1] * 4
        assert two.local.tolist() == [2] * 4


def test_fence_separates_rounds(comm):
    with guarded(comm, comm.size, "i4") as win:
        for i in range(1, 30):
            for rank in range(comm.size):
                win.put(np.int32(i), rank, comm.rank)
            win.fence()
            assert win.local.tolist() == [i] * comm.size
            win.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("call", ["fence", "close", "create"])
def test_collective_in_another_thread(world, call):
    """It is refused there; the one that waits goes on, and so do all windows."""
    with guarded(world, 4, "i8") as other, guarded(world, 4, "i8") as win:
        world.Barrier()
        calls = {
            "fence": other.fence,
            "close": win.close,
            "create": lambda: rmaext.Window.allocate(world, 3),
        }
        if world.rank == 0:
            thread = threading.Thread(target=win.fence)
            thread.start()
            while not win._group.meetings._numbers.turn:
                thread.join(0.001)
            for _ in range(2):
                with pytest.raises(rmaext.RmaError, match="another thread") as caught:
                    calls[call]()
                assert caught.value.errno == errno.EBUSY
            assert not win.closed
            assert not other.closed
            world.Barrier()
            thread.join()
        else:
            world.Barrier()  # not before: rank 0 waits
            win.fence()
        for each in win, other:
            each.put_many(neighbour(world), [1, 2], np.array([7, 8]))
            each.accumulate_many(neighbour(world), 3, np.ones(3, "i8"))
            each.fence()
            assert each.local.tolist() == [0, 7, 8, 3]
        with guarded(world, 4, "i8") as new:
            new.put_many(neighbour(world), [1, 2], np.array([7, 8]))
            new.fence()
            assert new.local.tolist() == [0, 7, 8, 0]


@pytest.mark.mpi(min_size=2)
def test_fence_in_another_thread_while_this_one_waits_in_one(world):
    """Whether C still waits, which is so for 20 ms, or Python does again."""
    win, told = (rmaext.Window.allocate(world, 4, "i8") for _ in range(2))
    refused, begins = [], threading.Event()

    def work():
        begins.wait()
        while not win._group.meetings._numbers.turn:  # that one is not in it yet
            time.sleep(0.001)
        for _ in range(2):
            time.sleep(0.1 if refused else 0)
            try:
                win.fence()
            except rmaext.RmaError as exc:
                refused.append(exc.errno)
        for rank in range(1, world.size):
            told.put(round + 1, rank)
        told.flush()

    for round in range(3):
        refused.clear()
        begins.clear()
        world.Barrier()
        if world.rank:
            told.wait_until(0, "==", round + 1, timeout=20)
            win.fence()
        else:
            thread = threading.Thread(target=work)
            thread.start()
            begins.set()
            win.fence()
            thread.join()
            assert refused == [errno.EBUSY] * 2
    win.close()
    told.close()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("call", ["fence", "close"])
def test_collective_in_another_thread_meanwhile(world, monkeypatch, call):
    """The other one begins while this one flushes: it is that which is refused."""
    win = rmaext.Window.allocate(world, 4, "i8")
    refused = []

    def work():
        try:
            win.fence()
        except rmaext.RmaError as exc:
            refused.append(exc.errno)

    def flush():
        monkeypatch.undo()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        return win._try_flush()

    monkeypatch.setattr(win, "_try_flush", flush)
    getattr(win, "_fence" if call == "fence" else call)()
    assert refused == [errno.EBUSY]
    if call == "fence":
        win.put(5, neighbour(world))
        win.fence()
        assert win.local[0] == 5
        win.close()
    assert win.closed


def test_an_array_with_attributes_of_its_own(comm):
    """Names that mark arrays on devices mean nothing in others."""
    fields = np.zeros(3, [("given", "f8"), ("number", "i8"), ("handle", "f8")]).view(np.recarray)
    with rmaext.Window(comm, fields) as win:
        assert win.local is fields
        assert win.memory.kind == "system"
        win.put((1.0, 2, 3.0), comm.rank, 1)
        win.fence()
        assert fields[1].number == 2
