# SPDX-License-Identifier: BSD-3-Clause
"""Window.dynamic: memory that is attached and detached, and lists in it."""

from __future__ import annotations

import gc
import textwrap
import threading
import time
import weakref

import launch
import numpy as np
import pytest
from support.guarded import Guarded, neighbour, noise, same
from support.jobs import PRELUDE

import rmaext

DTYPES = ["i1", "f8", "c16", "g", "i4,f4"]


def everyones(comm, value):
    return comm.allgather(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_put_and_get(comm, dtype):
    """To an array of each rank, its own included, between guards."""
    mine = Guarded(1000, dtype)
    with rmaext.Window.dynamic(comm, dtype) as win:
        assert win.dtype == np.dtype(dtype)
        disps = everyones(comm, win.attach(mine.array))
        for target in (neighbour(comm), comm.rank):
            data = noise(dtype, 1000, comm.rank, target)
            win.put(data, target, disps[target])
            win.flush(target)
            assert same(win.get(target, disps[target], 1000), data)
            assert same(win.get(target, disps[target] + 998, 2), data[998:])
            out = np.zeros((2, 3), dtype)
            assert win.get(target, disps[target] + 1, out=out) is out
            assert same(out.reshape(-1), data[1:7])
            win.put(data[:1], target, disps[target] + 999)
            comm.Barrier()
            win.fence()
        assert [array is mine.array for array in win.local] == [True]
        win.detach(mine.array)
        assert win.local == []
        comm.Barrier()
    mine.check()
    data = noise(dtype, 1000, comm.rank, comm.rank)
    assert same(mine.array[:999], data[:999])
    assert same(mine.array[999], data[0])


def test_long_transfers(comm):
    """Of several messages; what is outside stays as it is."""
    mine, peer = Guarded(40_000), neighbour(comm)
    with rmaext.Window.dynamic(comm) as win:
        disps = everyones(comm, win.attach(mine.array))
        win.put(np.arange(40_000.0) + comm.rank, peer, disps[peer])
        win.fence()
        assert same(mine.array, np.arange(40_000.0) + (comm.rank - 1) % comm.size)
        assert same(win.get(peer, disps[peer], 40_000), np.arange(40_000.0) + comm.rank)
        comm.Barrier()
    mine.check()


def test_atomics(comm):
    p, mine = comm.size, Guarded(4, "i8")
    with rmaext.Window.dynamic(comm, "i8") as win:
        disps = np.array(everyones(comm, win.attach(mine.array)))
        got = [win.fetch_add(1, 0, disps[0]) for _ in range(20)]
        assert sorted(np.ravel(comm.allgather(got))) == list(range(20 * p))
        ranks = np.arange(30 * p) % p
        win.accumulate_many(ranks, disps[ranks] + 1, 2)
        old = win.fetch_add_many(ranks, disps[ranks] + 2, 1)
        assert (old < 30 * p).all()
        comm.Barrier()
        old = win.fetch_add(np.ones(2, "i8"), comm.rank, disps[comm.rank] + 2)
        assert old[1] == 0
        win.fence()
        assert mine.array.tolist() == [20 * p * (comm.rank == 0), 60 * p, 30 * p + 1, 1]
        win.fence()
    mine.check()


def test_all_updates(comm):
    p, mine = comm.size, Guarded(200, "i8")
    with rmaext.Window.dynamic(comm, "i8") as win:
        disps = everyones(comm, win.attach(mine.array))
        for k in range(4):
            win.accumulate(np.arange(200), 0, disps[0])
            win.accumulate(1, k % p, disps[k % p] + 3)
        win.flush()
        comm.Barrier()
        want = 4 * p * np.arange(200) * (comm.rank == 0)
        want[3] += p * sum(k % p == comm.rank for k in range(4))
        assert same(mine.array, want)
        old = win.get_accumulate(np.full(200, 9), comm.rank, disps[comm.rank], op="max")
        assert same(old, want)
        assert win.fetch_op(5, comm.rank, disps[comm.rank] + 1, op="replace") == max(9, want[1])
        assert win.compare_and_swap(5, 6, comm.rank, disps[comm.rank] + 1) == 5
        with pytest.raises(rmaext.BoundsError, match=f"offset {disps[comm.rank] + 199}, length 2"):
            win.fetch_add(np.ones(2, "i8"), comm.rank, disps[comm.rank] + 199)
        # of an update without a result, the flush says what became of it
        win.accumulate(1, comm.rank, disps[comm.rank] + 200)
        win.accumulate(1, comm.rank, disps[comm.rank])
        with pytest.raises(rmaext.BoundsError, match=f"rank {comm.rank}"):
            win.flush(comm.rank)
        win.flush()
        assert mine.array[0] == 10
        win.fence()
    mine.check()


def test_many(comm):
    p, rng = comm.size, np.random.default_rng(comm.rank)
    arrays = [Guarded(50, "i8") for _ in range(3)]
    with rmaext.Window.dynamic(comm, "i8") as win:
        disps = np.array(everyones(comm, [win.attach(a.array) for a in arrays]))
        ranks, which = rng.integers(0, p, 500), rng.integers(0, 3, 500)
        offsets = disps[ranks, which] + rng.integers(0, 50, 500)
        win.accumulate_many(ranks, offsets, 1)
        win.fence()
        assert sum(comm.allgather(sum(int(a.array.sum()) for a in arrays))) == 500 * p
        comm.Barrier()
        every = np.concatenate([disps[comm.rank, k] + np.arange(50) for k in range(3)])
        win.put_many(comm.rank, every, np.arange(150))
        comm.Barrier()
        assert same(win.get_many(comm.rank, every[::-1]), np.arange(150)[::-1])
        assert same(np.concatenate([a.array for a in arrays]), np.arange(150))
        win.fence()
    for array in arrays:
        array.check()


def test_outside(comm):
    """Refused by the target; nothing is changed, and the next operation works."""
    peer = neighbour(comm)
    pool = np.zeros(40)
    mine, gap, other = pool[8:16], pool[16:24], pool[24:32]
    gap[:] = 5
    with rmaext.Window.dynamic(comm) as win:
        disps = everyones(comm, (win.attach(mine), win.attach(other)))
        first, second = disps[peer]
        assert second - first == 16
        for call, offset, length in (
            (lambda: win.put(1.0, peer, first - 1), first - 1, 1),
            (lambda: win.put(1.0, peer, first + 8), first + 8, 1),
            (lambda: win.put(np.ones(9), peer, first), first, 9),
            (lambda: win.put(np.ones(2), peer, first - 1), first - 1, 2),
            (lambda: win.get(peer, first + 7, 2), first + 7, 2),
            (lambda: win.get(peer, second + 8, 1), second + 8, 1),
            (lambda: win.get(peer, first, 24), first, 24),
            (lambda: win.get(peer, 0, 1), 0, 1),
            (lambda: win.fetch_add(1.0, peer, first + 8), first + 8, 1),
            (lambda: win.put_many(peer, [first + 2, first + 8], 1.0), first + 2, 7),
            (lambda: win.get_many(peer, [first - 1]), first - 1, 1),
            (lambda: win.accumulate_many([peer], first + 8, 1.0), first + 8, 1),
        ):
            words = f"window {win._name}, rank {peer}, offset {offset}, length {length}"
            with pytest.raises(rmaext.BoundsError, match=words) as caught:
                call()
            assert caught.value.rank == peer
        for call in (
            lambda: win.put(1.0, peer, -1),
            lambda: win.put(1.0, peer, 1 << 62),
            lambda: win.get(peer, (1 << 60) - 1, 1),
            lambda: win.put(1.0, comm.size, first),
            lambda: win.get_many(peer, -1),
        ):
            with pytest.raises(rmaext.BoundsError):
                call()
        win.put(3.0, peer, first + 7)
        win.fence()
        assert mine.tolist() == [0] * 7 + [3]
        assert not pool[:8].any()
        assert (gap == 5).all()
        assert not pool[24:].any()
        win.fence()


def test_attach_and_detach(comm):
    pool = rmaext.empty(64)
    with rmaext.Window.dynamic(comm) as win:
        disp = win.attach(pool[16:32])
        assert disp == pool.ctypes.data // 8 + 16
        for low, high in ((16, 32), (20, 24), (0, 17), (31, 40), (0, 64), (16, 17)):
            with pytest.raises(rmaext.AttachError, match="overlaps"):
                win.attach(pool[low:high])
        for low, high in ((0, 16), (16, 31), (17, 32), (16, 33), (40, 41)):
            with pytest.raises(rmaext.AttachError, match="not attached"):
                win.detach(pool[low:high])
        assert win.attach(pool[:16]) == disp - 16
        assert win.attach(pool[32:]) == disp + 16
        assert len(win.local) == 3
        assert same(win.get(comm.rank, disp - 1, 2), np.zeros(2))  # over a seam
        win.detach(pool[16:32])
        with pytest.raises(rmaext.AttachError):
            win.detach(pool[16:32])
        with pytest.raises(rmaext.BoundsError):
            win.get(comm.rank, disp, 1)
        assert win.get(comm.rank, disp - 1, 1)[0] == 0
        assert win.attach(pool[16:32]) == disp
        with pytest.raises(rmaext.AttachError):
            win.attach(np.zeros(0))
        with pytest.raises(rmaext.AttachError):
            win.detach(np.zeros(0))
        wrong = np.zeros(4)
        wrong.flags.writeable = False
        with pytest.raises(rmaext.AccessError):
            win.attach(wrong)
        with pytest.raises(TypeError):
            win.attach([1.0])
        with pytest.raises(TypeError):
            win.attach(np.zeros(3, "i8"))
        with pytest.raises(TypeError):
            win.detach(3)
        with pytest.raises(ValueError, match="contiguous"):
            win.attach(np.zeros((4, 4))[:, 1])
        with pytest.raises(rmaext.AlignmentError):
            win.attach(np.zeros(33, "u1")[1:].view(float))
        with pytest.raises(ValueError, match="how many"):
            win.get(comm.rank, disp)
        for call in (
            lambda: win.size(0),
            lambda: win.memory,
            lambda: win.numba,
            lambda: win.subwindow(0, 1),
            win.dup,
            lambda: win.field("x"),
        ):
            with pytest.raises(rmaext.Unsupported):
                call()
        with pytest.raises(rmaext.NotLocalError):
            win.peer_view(comm.rank)
        for number in range(500):  # more than the table's first room
            assert win.attach(np.full(3, number, float))
        win.fence()
        assert len(win.local) == 503


@pytest.mark.pair
def test_wrong_arguments(comm):
    last = comm.size - 1
    for wrong, error in ((object, TypeError), ("i4", TypeError)):
        if wrong == "i4" and not last:
            continue
        with pytest.raises(error, match=f"rank {last}"):
            rmaext.Window.dynamic(comm, wrong if comm.rank == last else "f8")
    with pytest.raises(ValueError, match="timeout"):
        rmaext.Window.dynamic(comm, timeout=-1)
    rmaext.Window.dynamic(comm).close()


def test_memory_is_kept(comm):
    """While it is attached, whoever else lets go of it; and no longer."""
    win = rmaext.Window.dynamic(comm)
    array, other = np.zeros(10), np.zeros(10)
    gone, kept = weakref.ref(array), weakref.ref(other)
    disp = win.attach(array)
    win.attach(other)
    del array, other
    gc.collect()
    win.put(np.ones(10), comm.rank, disp)
    win.detach(gone())
    assert gone() is None
    win.close()
    assert kept() is None
    for call in (
        lambda: win.attach(np.zeros(1)),
        lambda: win.detach(np.zeros(1)),
        lambda: win.put(1.0, comm.rank, disp),
        lambda: win.get(comm.rank, disp, 1),
        win.flush,
        win.fence,
    ):
        with pytest.raises(rmaext.ClosedError):
            call()
    win = rmaext.Window.dynamic(comm)
    win.attach(np.zeros(5))
    with pytest.raises(ZeroDivisionError), win:
        raise ZeroDivisionError


def test_detach_under_fire(comm):
    """Others write all the time; what is detached does not change any more."""
    p, rounds = comm.size, 30
    with rmaext.Window.dynamic(comm, "i8") as win:
        counter = np.zeros(1, "i8")
        control = everyones(comm, win.attach(counter))
        pool = rmaext.empty(256, "i8")
        places = everyones(comm, pool.ctypes.data // 8)
        stop = threading.Event()
        seen = [0, 0]

        def fire():
            rng = np.random.default_rng(comm.rank)
            while not stop.is_set():
                target = int(rng.integers(p))
                try:
                    win.put(np.full(256, 7), target, places[target])
                    seen[0] += 1
                except rmaext.BoundsError:
                    seen[1] += 1

        thread = threading.Thread(target=fire)
        thread.start()
        try:
            done, late = 0, time.monotonic() + 20
            # until this rank's own thread has had both, though it begins late
            while done < rounds or (not min(seen) and time.monotonic() < late):
                done += 1
                win.attach(pool)
                while not pool[-1]:
                    pass
                win.detach(pool)
                pool[:] = 0
                for _ in range(3):
                    win.fetch_add(1, comm.rank, control[comm.rank])
                assert not pool.any()
        finally:
            comm.Barrier()
            stop.set()
            thread.join()
        assert min(seen) > 0
        assert counter[0] == 3 * done
        win.fence()


# -- lists -------------------------------------------------------------------------------


def test_linked_list(comm):
    """Each rank hangs nodes into one list, by compare and swap; all walk along it.

    A node is a value, the next one's rank and its offset; the head, on rank 0,
    is one word for both: offset * ranks + rank. As in MPI-4.1, example 12.22.
    """
    p, each = comm.size, 8
    with rmaext.Window.dynamic(comm, "i8") as win:
        head = np.array([-1])
        place = comm.bcast(win.attach(head) if comm.rank == 0 else None)
        for k in range(each):
            node = np.array([comm.rank * each + k, -1])
            mine = win.attach(node) * p + comm.rank
            first = int(win.get(0, place, 1)[0])
            while True:
                win.put(first, comm.rank, mine // p + 1)
                win.flush(comm.rank)
                before = int(win.compare_and_swap(first, mine, 0, place))
                if before == first:
                    break
                first = before
        comm.Barrier()
        values, at = [], int(win.get(0, place, 1)[0])
        while at != -1:
            value, at = map(int, win.get(at % p, at // p, 2))
            values.append(value)
        assert sorted(values) == list(range(p * each))
        comm.Barrier()


def test_example(comm, monkeypatch):
    monkeypatch.syspath_prepend(str(launch.ROOT / "examples"))
    import linked_list

    values = linked_list.run(comm)
    assert sorted(values) == list(range(comm.size * linked_list.NODES))


# -- jobs --------------------------------------------------------------------------------

LIFE = """
    win = rmaext.Window.dynamic(world, 'i8')
    array = np.zeros(1000, 'i8')
    disps = world.allgather(win.attach(array))
    win.put(np.full(1000, rank + 1), peer, disps[peer])
    win.fence()
    assert (array == (rank - 1) % size + 1).all()
"""


@pytest.mark.parametrize("end", ["", "del win, array; gc.collect()", "raise KeyError(7)"])
@pytest.mark.parametrize("route", ["", "fabric"])
def test_exit_without_close(end, route):
    said = "print('end', flush=True)\nworld.Barrier()\n"  # an exception of one ends the job
    code = PRELUDE + textwrap.dedent(LIFE) + said + end
    env = {"RMAEXT_ROUTE": "fabric"} if route else {}
    done = launch.mpirun(2, code, env=env)
    assert (done.returncode == 0) == ("raise" not in end), done.stdout + done.stderr
    assert done.stdout.count("end") == 2, done.stderr
    assert "Segmentation" not in done.stderr


def test_killed_target():
    """A typed error within the time limit; the others go on."""
    body = """
        survivors = world.Split(rank == 1)
        world.Barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True: win.put(1, 1, disps[1])
        except rmaext.PeerLostError: pass
        other = 2 - rank
        win.put(rank + 50, other, disps[other])
        while array[0] != other + 50: pass
        print('end', flush=True)
        survivors.Barrier()  # one that had left would be a lost rank too
        os._exit(0)
    """
    code = PRELUDE + textwrap.dedent(LIFE) + textwrap.dedent(body)
    done = launch.mpirun(3, code, survive=True)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr


def test_keys_are_refused(comm):
    """There is no shape that they could be of."""
    with rmaext.Window.dynamic(comm) as win:
        row = np.arange(2.0)
        for call in (win.accumulate, win.rput, win.put_notify):
            with pytest.raises(rmaext.Unsupported, match="no array of one shape"):
                call(row, 0, key=slice(0, 2))
        with pytest.raises(rmaext.Unsupported, match="no array of one shape"):
            win.rget(0, key=slice(0, 2))
