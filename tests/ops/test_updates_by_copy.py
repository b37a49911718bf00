# SPDX-License-Identifier: BSD-3-Clause
"""Updates of memory that the kernel copies: route cma, without a message."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import neighbour
from support.updates import COMBINATIONS, dtype_of, sample

import rmaext

KIB = 4096  # bytes, the longest


def by_route(win, kind):
    return {row["route"]: int(row["calls"]) for row in win.stats if row["kind"] == kind}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("op", "name"), COMBINATIONS[:: max(1, len(COMBINATIONS) // 40)])
def test_what_there_was(node, op, name):
    """Lengths that are copied, and the next one, which is sent, give what an own update does."""
    dtype = dtype_of(name)
    most = KIB // dtype.itemsize
    own, other = np.zeros(most + 1, dtype), np.zeros(most + 1, dtype)
    with rmaext.Window(node, own) as win, rmaext.Window(node, other) as model:
        peer = neighbour(node)
        win.fence()
        for seed, count in enumerate((1, 2, most, most + 1)):
            given = sample(dtype, count, node.rank, seed)
            old = win.get_accumulate(given, peer, 0, op=op)
            wanted = model.get_accumulate(given, node.rank, 0, op=op)
            assert old.tobytes() == wanted.tobytes()
            win.accumulate(given, peer, 0, op=op)
            win.flush(peer)  # what is on its way goes first, and all behind it as messages
            model.accumulate(given, node.rank, 0, op=op)
        win.fence()
        assert win.get(peer).tobytes() == model.local.tobytes()
        assert by_route(win, "fetch") == {"cma": 3, "message": 1}
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_behind_what_is_on_its_way(node):
    """Updates of a rank are applied in their order, by whichever way they go."""
    peer = neighbour(node)
    with rmaext.Window(node, np.zeros(600, "i8")) as win:
        win.fence()
        for k in range(200):
            win.accumulate(k, peer, 0, op="replace")  # a message
            assert win.fetch_op(-1, peer, 0, "replace") == k
            win.accumulate(np.full(600, k), peer, 0, op="replace")  # another one
            assert win.get_accumulate(np.full(2, -1), peer, 4, "replace").tolist() == [k, k]
            win.flush(peer)
            assert win.compare_and_swap(-1, k, peer, 4) == -1
            assert win.load(peer, 4) == k
        win.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["<i8", "<f4", "<c16"])
def test_all_ranks_and_the_target_itself(node, name):
    """By copies, messages and atomics of the owner at once: none is lost."""
    rounds, cells = 300, 40
    with rmaext.Window(node, np.zeros(cells, name)) as win:
        win.fence()
        ones = np.ones(cells, name)
        for k in range(rounds):
            for target in range(node.size):
                win.fetch_add(ones[0], target, k % cells)
                win.get_accumulate(ones, target)
                win.accumulate(ones[:1], target, k % cells)
        win.fence()
        assert win.local.sum() == node.size * (rounds * cells + 2 * rounds)
        assert np.ptp(win.local.real) <= 2 * node.size
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_counters_are_whole(node):
    """A target that reads its own memory meanwhile sees no half of an element."""
    rounds = 20_000
    with rmaext.Window(node, np.zeros(1, "u8")) as win:
        win.fence()
        if node.rank:
            for k in range(1, rounds):
                win.fetch_op(np.uint64(k << 32 | k), 0, op="replace")
        else:
            value = 0
            while value & 0xFFFFFFFF < rounds - 1:
                value = int(win.local[0])
                assert value >> 32 == value & 0xFFFFFFFF
        win.fence()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("other", ["window", "own", "joined", "dynamic", "drop-in"])
def test_memory_that_two_windows_have(node, other):
    """Single updates are atomic by whichever window: the memory is not copied then."""
    rounds, cells = 1500, np.zeros(600, "i8")
    with rmaext.Window(node, cells) as whole, contextlib.ExitStack() as stack:
        whole.fence()
        whole.fetch_add(0, neighbour(node))
        assert by_route(whole, "fetch") == {"cma": 1}
        whole.fence()
        part, at, comm = cells[100:500], 50, node
        if other == "own":
            comm = MPI.COMM_SELF
        if other == "dynamic":
            there = stack.enter_context(rmaext.Window.dynamic(comm, "i8"))
            at += there.attach(part)
            at = comm.bcast(at)
        elif other == "joined":
            parts = [np.zeros(30, "i8"), part[:90], part[50:]]  # two of them have cells in common
            there = stack.enter_context(rmaext.JoinedWindow(comm, parts))
            at += 30
        elif other == "drop-in":
            there = rmaext.compat.Win.Create(part, part.itemsize, comm=comm)
            stack.callback(there.Free)
            there.Lock_all()
            stack.callback(there.Unlock_all)
        else:
            there = stack.enter_context(rmaext.Window(comm, part))
        whole.fence()
        old, one = np.zeros(1, "i8"), np.ones(1, "i8")
        for _ in range(rounds):
            whole.fetch_add(1, 0, 150)
            if other == "drop-in":
                there.Fetch_and_op(one, old, 0, at)
            elif other != "own" or node.rank == 0:
                there.fetch_add(1, 0, at)
        whole.fence()
        if node.rank == 0:
            assert cells[150] == rounds * (node.size + (1 if other == "own" else node.size))
        assert by_route(whole, "fetch").get("cma", 0) <= 1 or node.rank == 0
        whole.fence()


AWAY = """
import os, signal, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.rank:
    os.environ["RMAEXT_PROGRESS"] = "0"
import rmaext
pids = comm.allgather(os.getpid())
win = rmaext.Window(comm, np.zeros(1000), timeout=10)
assert win.route(1 - comm.rank) == "cma"
win.fence()
comm.Barrier()
if comm.rank:
    time.sleep(3)
else:
    if {stop}:
        os.kill(pids[1], signal.SIGSTOP)
    start = time.monotonic()
    for k in range(1000):
        assert win.fetch_add(1.0, 1, 3) == k
    assert win.compare_and_swap(1000.0, -1.0, 1, 3) == 1000
    assert win.load(1, 3) == -1
    assert win.rfetch_op(1.0, 1, 3).wait() == -1
    win.accumulate(np.ones(500), 1, 100)
    assert time.monotonic() - start < 2.5
    os.kill(pids[1], signal.SIGCONT)
win.fence()
assert not comm.rank or (win.local[3], win.local.sum()) == (0, 500)
win.close()
print("ok", flush=True)
"""


@pytest.mark.parametrize("stop", [False, True], ids=["no progress thread", "stopped"])
def test_the_target_need_not_run(mpirun, stop):
    done = mpirun(2, AWAY.replace("{stop}", str(stop)), timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["ok", "ok"]


KILLED = """
import os, random, signal, threading, time
import numpy as np
from mpi4py import MPI
import rmaext
comm = MPI.COMM_WORLD
win = rmaext.Window(comm, np.zeros(512), timeout=20)
win.fence()
comm.Barrier()
if comm.rank == 2:
    threading.Timer(0.05 + 0.2 * random.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        win.get_accumulate(np.ones(512), 0)
end, sums = time.monotonic() + 2, 0
while time.monotonic() < end:
    old = win.get_accumulate(np.ones(512), 0)
    assert np.ptp(old) <= 1  # that of the killed one may be a part
    sums += 1
assert sums > 20, sums
comm.send(sums, 1 - comm.rank)
both = sums + comm.recv(source=1 - comm.rank)
if not comm.rank:
    assert both <= win.local.min()
os.write(1, b"ok\\n")
os._exit(0)
"""


def test_a_rank_that_dies_in_one(mpirun):
    """The others go on, and the elements are whole."""
    done = mpirun(3, KILLED, timeout=50, survive=True)
    assert done.stdout.split().count("ok") == 2, done.stdout + done.stderr


@pytest.mark.mpi(min_size=2)
def test_what_it_does_not_change_is_not_written(node):
    """Else a lock that is taken by compare_and_swap, and left by a put, would be lost."""
    with rmaext.Window(node, np.zeros(3, "i8")) as win:
        win.fence()
        for _ in range(300):
            while win.compare_and_swap(0, node.rank + 1, 0, 0) != 0:
                pass
            win.fetch_add(1, 0, 1)
            win.put(0, 0, 0)
            win.flush(0)
        win.fence()
        if not node.rank:
            assert win.local.tolist() == [0, 300 * node.size, 0]
        win.fence()
        if node.rank:
            for _ in range(5000):
                win.compare_and_swap(-5, -6, 0, 2)
                win.get_accumulate(np.array([0, 0, -1]), 0, op="max")
        else:
            for k in range(1, 5000):
                win.local[2] = k
                assert win.local[2] == k
        win.fence()
