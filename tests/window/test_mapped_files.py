# SPDX-License-Identifier: BSD-3-Clause
"""Windows over mapped files: flush(persist=True)."""

from __future__ import annotations

import mmap
import re
import subprocess
import textwrap

import launch
import numpy as np
import pytest
from support.guarded import neighbour
from support.jobs import PRELUDE

import rmaext

W = rmaext.Window
PAGE = mmap.PAGESIZE
N = 8 * PAGE // 8


@pytest.fixture
def path(comm, tmp_path):
    """A file of this rank, of N elements."""
    path = tmp_path / f"rank {comm.rank}"
    with path.open("wb") as file:
        file.truncate(8 * N)
    return path


def dirty(array):
    """Return the bytes of an array's mapping that are not in its file yet."""
    start, inside = array.__array_interface__["data"][0], False
    total = 0
    with open("/proc/self/smaps") as lines:
        for line in lines:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if match:
                inside = int(match[1], 16) <= start < int(match[2], 16)
            elif inside and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
                total += int(line.split()[1]) << 10
    return total


def on_disk(path):
    """Tell whether the file is on a disk, and not in memory, where nothing is ever clean."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True)
    return kind.stdout.strip() not in ("tmpfs", "ramfs")


def test_what_was_put_is_in_the_file(comm, path):
    array = np.memmap(path, "i8", "r+")
    with W(comm, array) as win:
        assert win.memory.describe()["persistent"] is True
        win.put(np.arange(N), neighbour(comm))
        win.fence()
        if on_disk(path):
            assert dirty(array) == 8 * N
        win.fence()
        win.flush(neighbour(comm), persist=True)
        comm.Barrier()
        if on_disk(path):
            assert dirty(array) == 0
        assert (np.fromfile(path, "i8") == np.arange(N)).all()
        win.fence()
        # once more, and to all
        win.fetch_add(1, neighbour(comm), N - 1)
        win.put(np.full(3, -1), neighbour(comm), 5)
        win.flush(persist=True)
        comm.Barrier()
        if on_disk(path):
            assert dirty(array) == 0
        assert np.fromfile(path, "i8")[[4, 5, 7, 8, -1]].tolist() == [4, -1, -1, 8, N]
        for _ in range(20):
            win.flush(neighbour(comm), persist=True)
        win.flush(persist=False)
        win.fence()


def test_parts_of_files(comm, path):
    """A part that begins and ends amid pages, of a map that does so in its file."""
    whole = np.memmap(path, "i8", "r+", offset=PAGE + 64, shape=N - PAGE // 8 - 8)
    with W(comm, whole[100:200]) as win:
        win.put(np.full(100, comm.rank + 1), neighbour(comm))
        win.flush(persist=True)
        comm.Barrier()
        left = (comm.rank - 1) % comm.size + 1
        held = np.fromfile(path, "i8")
        at = (PAGE + 64) // 8 + 100
        assert (held[at : at + 100] == left).all()
        assert not held[:at].any()
        assert not held[at + 100 :].any()
        if on_disk(path):
            assert dirty(whole) == 0
        win.fence()


def test_other_ways_to_map(comm, path):
    """mmap itself, and arrays that do not look like a memmap any more."""
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    for array in np.frombuffer(mapped, "i8"), np.asarray(np.memmap(path, "i8", "r+")):
        with W(comm, array.reshape(-1, 8)) as win:
            win.put(np.int64(7), neighbour(comm), 9)
            win.flush(persist=True)
            comm.Barrier()
            if on_disk(path):
                assert dirty(array) == 0
            win.fence()


def test_views_and_lists(comm, path):
    array = np.memmap(path, "i8", "r+")
    with W(comm, array) as win:
        win.subwindow(10, 20).put(np.full(10, 3), neighbour(comm))
        win.subwindow(10, 20).flush(neighbour(comm), persist=True)
        win.dup("w").flush(persist=True)
        comm.Barrier()
        if on_disk(path):
            assert dirty(array) == 0
        win.fence()
    other = np.memmap(path, "i8", "r+", offset=4 * PAGE)
    first = np.memmap(path, "i8", "r+", shape=PAGE // 8)
    with W(comm, [first, other]) as win:
        win.put(np.full(PAGE // 4, 4), neighbour(comm))
        win.flush(neighbour(comm), persist=True)
        comm.Barrier()
        if on_disk(path):
            assert dirty(first) == dirty(other) == 0
        win.flush(persist=True)
        win.fence()


def test_read_only_files(comm, path):
    with W(comm, np.memmap(path, "i8", "r")) as win:
        assert win.memory.access == "r"
        with pytest.raises(rmaext.AccessError):
            win.put(np.int64(1), neighbour(comm))
        win.flush(persist=True)
        assert win.get(neighbour(comm)).sum() == 0
        win.fence()


def test_not_a_file(comm, path):
    private = np.memmap(path, "i8", "c")
    anonymous = np.frombuffer(mmap.mmap(-1, PAGE), "i8")
    for array in (
        np.zeros(5),
        private,
        anonymous,
        rmaext.zeros(5),
        [np.zeros(2), private.view(float)],
    ):
        with W(comm, array) as win:
            for rank in neighbour(comm), comm.rank, None:
                with pytest.raises(rmaext.Unsupported, match="not mapped"):
                    win.flush(rank, persist=True)
            win.flush(persist=False)
            win.fence()
    with pytest.raises(rmaext.BoundsError), W(comm, private) as win:
        win.flush(comm.size, persist=True)


def test_some_ranks_have_files(world, tmp_path):
    """Those without are named; those without memory do not count."""
    last = world.size - 1
    path = tmp_path / "file"
    if world.rank == last:
        np.zeros(N).tofile(path)
    file = np.memmap(path, float, "r+") if world.rank == last else np.zeros(0)
    with W(world, file) as win:
        win.put(1.0, last, world.rank)
        win.flush(persist=True)
        win.flush(last, persist=True)
        win.fence()
    if world.size == 1:
        return
    file = file if world.rank == last else np.zeros(3)
    with W(world, file) as win:
        win.flush(last, persist=True)
        with pytest.raises(rmaext.Unsupported, match="rank 0: "):
            win.flush(persist=True)
        win.fence()


def test_many_windows_and_threads_of_use(comm, tmp_path):
    """Control blocks are used again, and each window's questions are its own."""
    for turn in range(20):
        array = np.memmap(tmp_path / f"{comm.rank} {turn}", "i8", "w+", shape=100)
        with W(comm, array) as win, W.allocate(comm, 10) as other:
            win.put(np.int64(turn), neighbour(comm), 3)
            win.flush(neighbour(comm), persist=True)
            other.flush()
            win.fence()
        assert array[3] == turn


@pytest.mark.mpi(min_size=2)
def test_whoever_waits_is_held_up_by_nobody(world, tmp_path):
    """Gets, flushes and notifications go on while files are written."""
    path = tmp_path / f"{world.rank}"
    array = np.memmap(path, "u1", "w+", shape=32 << 20)
    with W(world, array) as win:
        if world.rank == 0:
            win.put(np.full(array.size, 1, "u1"), 1)
            win.flush(1, persist=True)
        elif world.rank == 1:
            for _ in range(300):
                win.fetch_add(np.uint8(1), 0, 5)
        win.fence()
        assert array[5] == (44 if world.rank == 0 else 1 if world.rank == 1 else 0)
        win.fence()


ABSENT = """
    import ctypes, mmap, os, re, sys, time
    array = np.memmap(sys.argv[1] + str(rank), "i8", "w+", shape=1 << 16)
    if rank == 0:
        os.mkfifo(sys.argv[1] + "fifo")
    world.Barrier()
    fifo = os.open(sys.argv[1] + "fifo", os.O_RDWR)
    with rmaext.Window(world, array, timeout=15) as win:
        win.fence()
        if rank == 1:
            held, libc = ctypes.create_string_buffer(1), ctypes.PyDLL(None)
            world.send(None, 0)
            # until rank 0 is done; in C, with the GIL
            libc.read(fifo, held, 1) if sys.argv[2] == "C" else os.read(fifo, 1)
        if rank == 0:
            world.recv(source=1)
            win.put(np.arange(1 << 16), 1)
            win.flush(1, persist=True)
            print("done", flush=True)
            os.write(fifo, b"x")
        win.fence()
"""


@pytest.mark.parametrize(("how", "route"), [("C", "fabric"), ("sleep", "cma")])
def test_the_target_is_away(mpirun, tmp_path, how, route):
    env = {"RMAEXT_ROUTE": route if route == "fabric" else None}
    code = PRELUDE + textwrap.dedent(ABSENT)
    done = mpirun(2, code, str(tmp_path) + "/", how, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"


KILLED = """
    import os, signal, sys
    from support.processes import wait_for_end
    pids = world.allgather(os.getpid())
    array = np.memmap(sys.argv[1] + str(rank), "i8", "w+", shape=100)
    win = rmaext.Window(world, array, timeout=5)
    win.fence()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_end(pids[1])
    time.sleep(0.3)
    start = time.monotonic()
    refuses(lambda: win.flush(1, persist=True), rmaext.PeerLostError)
    assert time.monotonic() - start < 20
    os._exit(0)
"""


@pytest.mark.parametrize("route", ["cma", "fabric"])
def test_the_target_is_killed(mpirun, tmp_path, route):
    env = {"RMAEXT_ROUTE": route if route == "fabric" else None, "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, PRELUDE + textwrap.dedent(KILLED), str(tmp_path) + "/", env=env, survive=True)
    assert done.returncode == 0, done.stderr
