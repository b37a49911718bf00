# SPDX-License-Identifier: BSD-3-Clause
"""Same-node routes: which one a window takes, and that all of them are right."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading

import numpy as np
import pytest
from support.guarded import Guarded, descriptors, neighbour, noise, same

import rmaext
from rmaext._comm.group import Group
from rmaext._memory.node import Arena, Block, Team


@pytest.fixture
def two_nodes(node, monkeypatch):
    """Even ranks on one node, odd ones on another."""
    monkeypatch.setenv("RMAEXT_NODE", f"node {node.rank % 2}")
    return node


def routes(win):
    return [win.route(rank) for rank in range(win.comm.size)]


def exercise(win):
    """Put to each rank's part, read it back, count there; each has 16 "i8" a rank and one more."""
    comm = win.comm
    counter = 16 * comm.size
    win.fence()
    for rank in range(comm.size):
        win.put(np.arange(16) + 1000 * comm.rank + rank, rank, 16 * comm.rank)
        win.flush(rank)
        got = win.get(rank, 16 * comm.rank, 16)
        assert (got == np.arange(16) + 1000 * comm.rank + rank).all()
        win.fetch_add(1, rank, counter)
    win.fence()
    for rank in range(comm.size):
        got = win.local[16 * rank : 16 * rank + 16]
        assert (got == np.arange(16) + 1000 * rank + comm.rank).all()
    assert win.local[counter] == comm.size


def size_for(comm):
    return 16 * comm.size + 1


# -- which route -------------------------------------------------------------------


def test_arena_memory_is_direct(node):
    n = size_for(node)
    raw = rmaext.zeros(n + 20, "i8")
    raw[:] = -1
    part = raw[10 : n + 10]
    part[:] = 0
    wins = [
        rmaext.Window.allocate(node, n, "i8"),
        rmaext.Window(node, rmaext.empty(n, "i8")),
        rmaext.Window(node, part),
    ]
    for win in wins:
        assert routes(win) == ["direct"] * node.size
        assert win.fabric is None
        exercise(win)
    assert (raw[:10] == -1).all()
    assert (raw[n + 10 :] == -1).all()
    for win in wins:
        win.close()


def test_own_arrays_are_copied_by_the_kernel(node):
    mine = Guarded(size_for(node), "i8")
    mine.array = np.zeros(size_for(node), "i8")
    with rmaext.Window(node, mine.array) as win:
        assert routes(win) == ["direct" if r == node.rank else "cma" for r in range(node.size)]
        assert (win.fabric is None) == (node.size == 1)
        exercise(win)


def test_pretend_nodes_reach_each_other_by_the_fabric(two_nodes):
    comm = two_nodes
    near = [(rank - comm.rank) % 2 == 0 for rank in range(comm.size)]
    with rmaext.Window.allocate(comm, size_for(comm), "i8") as win:
        assert routes(win) == ["direct" if here else "fabric" for here in near]
        exercise(win)
    with rmaext.Window(comm, np.zeros(size_for(comm), "i8")) as win:
        wanted = ["cma" if here else "fabric" for here in near]
        wanted[comm.rank] = "direct"
        assert routes(win) == wanted
        exercise(win)


def test_one_rank_forces_the_fabric_on_all(node, monkeypatch):
    if node.rank == node.size - 1:
        monkeypatch.setenv("RMAEXT_ROUTE", "fabric")
    for win in (
        rmaext.Window.allocate(node, size_for(node), "i8"),
        rmaext.Window(node, np.zeros(size_for(node), "i8")),
    ):
        assert routes(win) == ["fabric"] * node.size
        assert win.fabric is not None
        exercise(win)
        win.close()


@pytest.mark.parametrize("arena", ["first", "last"])
def test_arena_memory_of_some_ranks_only(node, arena):
    """The others' needs a network: all ranks open it together."""
    has = [rank == (0 if arena == "first" else node.size - 1) for rank in range(node.size)]
    n = size_for(node)
    mine = rmaext.zeros(n, "i8") if has[node.rank] else np.zeros(n, "i8")
    with rmaext.Window(node, mine) as win:
        wanted = ["direct" if here else "cma" for here in has]
        wanted[node.rank] = "direct"
        assert routes(win) == wanted
        assert (win.fabric is None) == all(has)
        exercise(win)
    with rmaext.Window.allocate(node, n, "i8") as win:
        assert win.fabric is None
        exercise(win)


def test_nothing_to_reach(node):
    """Windows of no elements, on some ranks or on all."""
    with rmaext.Window(node, np.zeros(0, "i8")) as win:
        assert win.fabric is None
        win.put(np.zeros(0, "i8"), neighbour(node))
        win.fence()
    shape = 0 if node.rank % 2 else (3, 4)
    with rmaext.Window.allocate(node, shape, "i8") as win:
        assert routes(win) == ["direct"] * node.size
        assert [win.size(r) for r in range(node.size)] == [12, 0, 12, 0][: node.size]
        win.put(7, 0, 5) if node.rank == 0 else None
        win.fence()
        assert win.get(0, 5, 1)[0] == 7
        win.fence()


def test_no_thread_and_no_socket_when_all_is_direct(node):
    def tasks_and_sockets():
        found = set(os.listdir("/proc/self/task"))
        for fd in os.listdir("/proc/self/fd"):
            try:
                link = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:
                continue
            if link.startswith("socket:"):
                found.add(link)
        return found

    with rmaext.Window.allocate(node, 1):
        pass  # arena and beacon are made once
    before = tasks_and_sockets()
    with rmaext.Window.allocate(node, size_for(node), "i8") as win:
        exercise(win)
        assert not tasks_and_sockets() - before  # a thread of earlier tests may go meanwhile
        assert win.fabric is None


# -- peer_view -----------------------------------------------------------------------


def test_peer_view_is_the_peers_memory(node):
    """In its shape, without a copy."""
    shape = (node.rank + 1, 3)
    with rmaext.Window.allocate(node, shape, "f4") as win:
        win.local[:] = node.rank
        win.fence()
        views = [win.peer_view(rank) for rank in range(node.size)]
        for rank, view in enumerate(views):
            assert view.shape == (rank + 1, 3)
            assert view.dtype == "f4"
            assert (view == rank).all()
            assert view.flags.writeable
            assert view.flags.c_contiguous
        assert np.shares_memory(views[node.rank], win.local)
        win.fence()
        views[neighbour(node)][0, 1] = 42
        win.fence()
        assert win.local[0, 1] == 42
        win.local[0, 2] = 10 + node.rank
        win.fence()
        assert [view[0, 2] for view in views] == [10 + rank for rank in range(node.size)]
        win.fence()


@pytest.mark.parametrize("dtype", ["?", "c16", "M8[s]", "S5", [("a", "i4"), ("b", "f8", (2, 2))]])
def test_peer_view_of_any_dtype(node, dtype):
    mine = rmaext.zeros(7, dtype)
    if np.dtype(dtype).names:
        mine["a"] = np.arange(7) + node.rank
    else:
        mine[:] = noise(dtype, 7, node.rank)
    with rmaext.Window(node, mine) as win:
        win.fence()
        rank = neighbour(node)
        view = win.peer_view(rank)
        assert view.dtype == np.dtype(dtype)
        assert view.tobytes() == win.get(rank).tobytes()
        if np.dtype(dtype).names:
            assert (view["a"] == np.arange(7) + rank).all()
        win.fence()


def test_peer_view_keeps_the_rights(node):
    for rank in range(node.size):
        with rmaext.Window.allocate(node, 4, "i8", access="r") as win:
            view = win.peer_view(rank)
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
            if rank != node.rank:
                with pytest.raises(ValueError, match="WRITEABLE"):
                    view.flags.writeable = True
        with rmaext.Window.allocate(node, 4, "i8", access="w") as win:
            with pytest.raises(rmaext.AccessError, match=f"rank {rank}: .* no reading") as caught:
                win.peer_view(rank)
            assert caught.value.rank == rank
        with rmaext.Window.allocate(node, 4, "i8", "w" if node.rank == rank else "rw") as win:
            if node.size > 1:
                assert win.peer_view((rank + 1) % node.size).size == 4
            win.fence()


def test_peer_view_of_no_elements(node):
    with rmaext.Window.allocate(node, (0, 3) if node.rank % 2 else (), "u2") as win:
        for rank in range(node.size):
            view = win.peer_view(rank)
            assert view.shape == ((0, 3) if rank % 2 else ())
            assert view.dtype == "u2"
        win.fence()


def test_peer_view_of_what_cannot_be_mapped(node, monkeypatch):
    with rmaext.Window(node, np.zeros(4)) as win:
        assert win.peer_view(node.rank).shape == (4,)
        for rank in range(node.size):
            if rank != node.rank:
                with pytest.raises(rmaext.NotLocalError, match=f"rank {rank}: .* cma") as caught:
                    win.peer_view(rank)
                assert caught.value.rank == rank
    with pytest.raises(rmaext.ClosedError):
        win.peer_view(0)
    monkeypatch.setenv("RMAEXT_ROUTE", "fabric")
    other = node.Dup()
    with rmaext.Window.allocate(other, 4) as win:
        with pytest.raises(rmaext.NotLocalError, match="fabric"):
            win.peer_view(node.rank)
        with pytest.raises(rmaext.BoundsError):
            win.peer_view(node.size)
    other.Free()


def test_peer_view_outlives_its_window(node):
    """What it shows then is nobody's business, but it is memory."""
    views = []
    for _ in range(3):
        with rmaext.Window.allocate(node, 100_000) as win:
            views += [win.peer_view(rank) for rank in range(node.size)]
            win.fence()
        del win
    gc.collect()
    assert all(view.sum() == 0 for view in views)
    node.Barrier()


# -- communicators ---------------------------------------------------------------------


def test_windows_over_several_communicators(world, node):
    """Created in turns, used together, closed in another order."""
    halves = node.Split(node.rank % 2, -node.rank)
    comms = [node, world, halves, node.Dup(), type(node)(world)]
    wins = []
    for _ in range(2):
        for comm in comms:
            wins.append(rmaext.Window.allocate(comm, size_for(comm), "i8"))
            wins.append(rmaext.Window(comm, np.zeros(size_for(comm), "i8")))
    for win in wins:
        exercise(win)
    for win in wins[::3] + wins[1::3] + wins[2::3]:
        win.close()
    halves.Free()
    comms[3].Free()


def test_window_outlives_its_communicator(node):
    comm = node.Dup()
    win = rmaext.Window.allocate(comm, 4, "i8")
    comm.Free()
    win.put(5, neighbour(node))
    win.fence()
    assert win.local[0] == 5
    win.close()


def test_long_records(node):
    """Those that do not fit a rank's slot go by MPI; also if only one rank's does not."""
    fields = [(f"a field with a long name {i}", "i4", (i + 1,)) for i in range(40)]
    with rmaext.Window.allocate(node, 3, fields) as win:
        win.local[fields[0][0]] = node.rank
        win.fence()
        rank = neighbour(node)
        assert (win.get(rank)[fields[0][0]] == rank).all()
        win.fence()
    shape = (1,) * 60 if node.rank == node.size - 1 else 1
    with rmaext.Window.allocate(node, shape, "i8") as win:
        win.put(3, neighbour(node))
        win.fence()
        assert win.local.sum() == 3
        assert win.peer_view(node.size - 1).ndim == 60


def test_boards_and_descriptors_are_given_back(world, monkeypatch):
    """However many communicators there have been."""
    monkeypatch.delenv("RMAEXT_ROUTE", raising=False)
    monkeypatch.delenv("RMAEXT_NODE", raising=False)

    def once():
        comm = world.Dup()
        with rmaext.Window.allocate(comm, 10) as win:
            win.put(1.0, neighbour(comm))
        comm.Free()
        assert not rmaext.zeros(3000, "u1").any()

    for _ in range(3):
        once()
    world.Barrier()
    before = descriptors()
    for _ in range(30):
        once()
    world.Barrier()
    assert descriptors() <= before
    assert len(Team._boards) < 20


@pytest.mark.parametrize(
    ("make", "number"), [(rmaext.zeros, 50), (np.zeros, 15)], ids=["arena", "own"]
)
def test_descriptors_are_those_of_the_process(node, make, number):
    """Not of each communicator: many of them have no more than one."""

    def open_one():
        comm = node.Dup()
        return comm, rmaext.Window(comm, make(4))

    kept = [open_one()]
    node.Barrier()
    before = descriptors()
    kept += [open_one() for _ in range(number)]
    assert descriptors() <= before
    for comm, win in kept:
        win.close()
        comm.Free()


# -- errors, on all ranks alike --------------------------------------------------------

BAD = {
    "no array": (TypeError, lambda: "array"),
    "objects": (TypeError, lambda: np.zeros(3, object)),
    "strided arena": (ValueError, lambda: rmaext.zeros(20)[::2]),
    "other dtype": (TypeError, lambda: rmaext.zeros(10, "f4")),
    "long text": (TypeError, lambda: np.zeros(3, [("x" * 900, object)])),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("own", [False, True])
def test_bad_array_on_one_rank(node, name, own):
    """Whether the others bring arena memory or their own: all get the same error, and go on."""
    error, bad = BAD[name]
    for victim in {0, node.size - 1}:
        mine = bad() if node.rank == victim else np.zeros(10) if own else rmaext.zeros(10)
        if name == "other dtype" and node.size == 1:
            continue
        with pytest.raises(error) as caught:
            rmaext.Window(node, mine)
        assert len(set(node.allgather(str(caught.value)))) == 1
        if node.size > 2:
            assert f"rank {victim}" in str(caught.value)
    with rmaext.Window.allocate(node, size_for(node), "i8") as win:
        exercise(win)


def test_allocate_that_fails_on_one_rank(node):
    """No memory there: MemoryError everywhere, nothing kept."""
    with pytest.raises(MemoryError) as caught:
        rmaext.Window.allocate(node, 1 << 60 if node.rank == 0 else 10, "u1")
    assert "rank 0" in str(caught.value)
    with pytest.raises(ValueError, match="negative"):
        rmaext.Window.allocate(node, -1)
    with rmaext.Window.allocate(node, size_for(node), "i8") as win:
        exercise(win)


def test_exception_in_with_on_all_ranks(node):
    """The window is closed without a collective; its memory is kept, others can be made."""
    win = rmaext.Window.allocate(node, 4)
    with pytest.raises(ZeroDivisionError), win:
        win.put(1.0 / (win.size(0) - 4), neighbour(node))
    assert win.closed
    with rmaext.Window.allocate(node, size_for(node), "i8") as win:
        exercise(win)


def test_rights_and_bounds_on_every_route(two_nodes):
    """Refused before anything is touched."""
    comm = two_nodes
    for make in rmaext.zeros, np.zeros:
        raw = make(40, "i8")
        raw[:] = -1
        with rmaext.Window(comm, raw[10:20], access="r") as win:
            win.fence()
            for rank in range(comm.size):
                for call in (
                    lambda rank=rank: win.put(1, rank),
                    lambda rank=rank: win.fetch_add(1, rank),
                    lambda rank=rank: win.compare_and_swap(-1, 1, rank),
                ):
                    with pytest.raises(rmaext.AccessError):
                        call()
                for offset, count in (0, 11), (10, 1), (-1, 1), (1 << 60, 1), (5, 1 << 62):
                    with pytest.raises(rmaext.BoundsError):
                        win.get(rank, offset, count)
                assert (win.get(rank) == -1).all()
            win.fence()
        assert (raw == -1).all()


@pytest.mark.mpi(min_size=2)
def test_memory_that_the_kernel_refuses(node):
    """An error, but not one of the caller's alignment, and not of a library's."""
    memory = mmap.mmap(-1, 1 << 16)
    mine = np.frombuffer(memory, "i8")
    libc = ctypes.CDLL(None, use_errno=True)

    def protect(rights):
        where = ctypes.c_void_p(mine.ctypes.data)
        assert libc.mprotect(where, ctypes.c_size_t(1 << 16), rights) == 0

    with rmaext.Window(node, mine) as win:
        peer = neighbour(node)
        win.fence()
        protect(0)
        node.Barrier()
        for call in (
            lambda: win.put(1, peer),
            lambda: win.get(peer, 0, 1),
            lambda: win.put_many(peer, [0, 1], 1),
            lambda: win.get_many(peer, [0, 1]),
        ):
            with pytest.raises(rmaext.RmaError, match="Bad address") as caught:
                call()
            assert type(caught.value) is rmaext.RmaError
        node.Barrier()
        protect(mmap.PROT_READ | mmap.PROT_WRITE)
        win.fence()
        win.put(3, peer)
        win.fence()
        assert mine[0] == 3
        assert not mine[1:].any()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_segment_that_cannot_be_opened(node, monkeypatch):
    """Whatever errno says, it is no missing library."""
    rmaext.Window.allocate(node, 1).close()
    bad = Block(1 << 20, 12345, 16 << 20, 0)
    with monkeypatch.context() as patch:
        if node.rank == 0:
            patch.setattr(Arena, "find", classmethod(lambda *_: bad))
        with pytest.raises(rmaext.RmaError, match="No such file") as caught:
            rmaext.Window.allocate(node, 1)
        assert type(caught.value) is rmaext.RmaError
    with rmaext.Window.allocate(node, size_for(node), "i8") as win:
        exercise(win)


# -- arrays ------------------------------------------------------------------------------


def test_arrays_are_zeros_and_aligned(comm):
    rng = np.random.default_rng(comm.rank)
    kept = []
    for i in range(300):
        n = int(rng.integers(1, 40_000))
        array = rmaext.empty(n, "u1")
        assert not array.any()
        assert array.ctypes.data % (mmap.PAGESIZE if n >= mmap.PAGESIZE else 64) == 0
        array[:] = i % 255 + 1
        kept.append((array, i % 255 + 1))
        if i % 3:
            kept.pop(int(rng.integers(len(kept))))
    assert all((array == value).all() for array, value in kept)


def test_array_arguments():
    for shape in 5, (5,), [2, 3], (), 0, (3, 0), np.int64(4), (np.int32(2), 2):
        for make in rmaext.empty, rmaext.zeros:
            assert same(make(shape, "f4"), np.zeros(shape, "f4"))
    for dtype in "(3,)f4", "(2,2)i2", ("(2,)i4,f8", (3,)):
        for make in rmaext.empty, rmaext.zeros:
            assert same(make((4, 1), dtype), np.zeros((4, 1), dtype))
            assert same(make(0, dtype), np.zeros(0, dtype))
    assert rmaext.empty(3).dtype == float
    for shape in -1, (2, -3):
        with pytest.raises(ValueError, match="negative"):
            rmaext.empty(shape)
    for shape in 1.5, "3", (1.5,), None:
        with pytest.raises(TypeError):
            rmaext.empty(shape)
    with pytest.raises(TypeError):
        rmaext.empty(3, object)
    for shape in 1 << 55, (1 << 40, 1 << 40), 1 << 62:
        with pytest.raises(MemoryError):
            rmaext.empty(shape)
    array = rmaext.empty((3, 4), "i2")
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_part_of_an_array_keeps_it_whole():
    """As long as a slice, a view or a window over them lives."""
    slices = [rmaext.zeros(1000)[i : i + 5] for i in range(50)]
    for i, part in enumerate(slices):
        part[:] = i
    gc.collect()
    noise_ = [rmaext.zeros(1000) for _ in range(100)]
    assert not any(array.any() for array in noise_)
    assert all((part == i).all() for i, part in enumerate(slices))


def test_arrays_of_many_threads():
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(300):
            array = rmaext.zeros(int(rng.integers(1, 20_000)), "u1")
            if array.any():
                failures.append("not zeros")
            array[:] = seed + 1
            if (array != seed + 1).any():
                failures.append("another's")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_goes_back(node):
    """50 MB a window; files, as long as they last, show what is in use."""
    Arena.own()

    def in_use():
        gc.collect()
        total = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                if "memfd:rmaext" in os.readlink(f"/proc/self/fd/{fd}"):
                    total += os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
            except FileNotFoundError:
                pass
        return total

    before = in_use()
    for i in range(4):
        with rmaext.Window.allocate(node, 50_000_000, "u1") as win:
            win.local[::4096] = 1
            if i == 0:
                assert in_use() > before + 45_000_000
            win.fence()
        del win
        assert in_use() < before + 5_000_000


# -- atomicity ---------------------------------------------------------------------------


def count_together(comm, make, updates, swaps):
    """All ranks update one counter of rank 0, itself too; return what each saw."""
    with rmaext.Window(comm, make(2, "i8")) as win:
        near = win.route(0) == "direct"
        win.fence()
        seen = [int(win.fetch_add(1, 0)) for _ in range(updates if near else updates // 10)]
        done, old = 0, 0
        while done < (swaps if near else swaps // 10):
            found = int(win.compare_and_swap(old, old + 1, 0, 1))
            done += found == old
            old = found + (found == old)
        win.fence()
        everything = sorted(value for part in comm.allgather(seen) for value in part)
        assert everything == list(range(len(everything)))
        total = comm.allreduce(done)
        assert win.get(0).tolist() == [len(everything), total]
        win.fence()
    return len(everything) + total


@pytest.mark.parametrize("make", [rmaext.zeros, np.zeros], ids=["arena", "own"])
def test_updates_by_all_routes_are_atomic(two_nodes, make):
    """Direct and fabric mix in one counter; no value is seen twice, none is left out."""
    assert count_together(two_nodes, make, 1000, 300) >= 1300


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.mpi(min_size=2)
def test_a_million_updates_by_all_routes_are_atomic(two_nodes):
    """10^6 in total: 10^5 at a time."""
    total, rounds = 0, 0
    while total < 1_000_000:
        total += count_together(two_nodes, (rmaext.zeros, np.zeros)[rounds % 2], 30_000, 10_000)
        rounds += 1
        assert rounds < 100


def test_group_is_shared_by_windows(node):
    """One a communicator: its second window costs no second hello."""
    with rmaext.Window.allocate(node, 1) as one, rmaext.Window.allocate(node, 1) as two:
        assert one._group is two._group is Group.of(node)
        two.fence()
