# SPDX-License-Identifier: BSD-3-Clause
"""What a window has of the system goes back when it is closed, though the object lives on.

By the system's own counters of this process; only arrays that the program itself holds stay.
"""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext import containers
from rmaext._fabric.endpoint import Endpoint
from rmaext.compat import Win

pytestmark = pytest.mark.pair

SIZE = 36_000_000  # malloc gives back what is larger than 32 MiB
SLACK = SIZE // 8  # of MPI, and of the interpreter
RECORD = [("mass", "f8"), ("count", "i8")]


def counters() -> dict[str, int]:
    """Return what this process has at the moment."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    maps = Path("/proc/self/maps").read_text().splitlines()
    stats = [it.stats for it in Endpoint._opened.values()]
    return {
        "resident": 1024 * int(status["VmRSS"].split()[0]),
        "locked": 1024 * int(status["VmLck"].split()[0]),
        "mappings": sum("/memfd:rmaext" in line or ".bin" in line for line in maps),
        "large": sum(_length(line) >= SIZE and line.endswith(" 0 ") for line in maps),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "regions": sum(it["registrations"] - it["deregistrations"] for it in stats),
        "shared": sum(_blocks(fd) for fd in os.listdir("/proc/self/fd")),
    }


def _length(line: str) -> int:
    first, end = line.split(maxsplit=1)[0].split("-")
    return int(end, 16) - int(first, 16)


def _blocks(fd: str) -> int:
    """Return what an arena's segment occupies."""
    try:
        if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rmaext"):
            return 512 * os.stat(f"/proc/self/fd/{fd}").st_blocks
    except FileNotFoundError:  # that of the list itself
        pass
    return 0


# -- windows of each kind: the object that is closed, and what else the program keeps ----------


def fill(array: np.ndarray) -> None:
    array.reshape(-1).view("u1")[:] = 1


def filled(win: rmaext.Window) -> rmaext.Window:
    for array in win.local if isinstance(win.local, list) else [win.local]:
        fill(array)
    return win


def own(nbytes: int = SIZE) -> np.ndarray:
    """Return an array of the system: malloc may still have memory of earlier tests."""
    array = np.frombuffer(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    array[:] = 1
    return array


def with_views(comm):
    win = filled(rmaext.Window.allocate(comm, SIZE // 16, RECORD))
    part = win.subwindow(0, 10)
    views = [part, part.dup(), win.dup("r"), win.field("mass"), win.view("V16")]
    places = [view.local[:1].copy() for view in views]
    return win, [views, places, win.stats]


def prepared(comm):
    win = filled(rmaext.Window.allocate(comm, SIZE // 8))
    put = win.prepare_put(np.ones(1), comm.rank)
    put()
    return win, [put, win.register(np.ones(1))]


def dynamic(comm):
    win = rmaext.Window.dynamic(comm)
    first = win.attach(own())
    win.put(np.ones(1), comm.rank, first)
    return win, first


def mapped(comm):
    array = np.memmap(f"{os.environ['PYTEST_DEBUG_TEMPROOT']}/window.bin", "u1", "w+", shape=SIZE)
    return filled(rmaext.Window(comm, array)), None


def dropin(win):
    fill(np.frombuffer(win.tomemory(), "u1"))
    return win, [Win(win), win.Get_attr(MPI.WIN_BASE)]


def attached(comm):
    win = Win.Create_dynamic(comm=comm)
    win.Attach(own())
    return win, None


def queue(comm):
    made = containers.TaskQueue(comm, "f8", SIZE // 8)
    made._windows[1].local[:] = 1
    return made, None


def published(comm):
    made = containers.Published(comm, SIZE // 16, buffers=2)
    for _ in range(2):
        made.publish(own(SIZE // 2))
    return made, None


def table(comm):
    made = containers.Dict(comm, "i8", "V1000", SIZE // 1000 * comm.size)
    for window in made._memory.windows():
        fill(window.local)
    return made, None


def grid(comm):
    made = containers.Array(comm, (comm.size, SIZE // 8), grid=(0, 1), ghosts=(1, 0), periodic=True)
    made.padded[...] = 1
    made.exchange()
    made.fence()
    made.save(f"{comm.bcast(os.environ['PYTEST_DEBUG_TEMPROOT'])}/array.npy")
    return made, None


WINDOWS = {
    "allocate": lambda comm: (filled(rmaext.Window.allocate(comm, SIZE // 8)), None),
    "hint": lambda comm: (filled(rmaext.Window.allocate(comm, SIZE, "u1", hint=1 << 44)), None),
    "array": lambda comm: (rmaext.Window(comm, own()), None),
    "empty": lambda comm: (filled(rmaext.Window(comm, rmaext.empty(SIZE // 8))), None),
    "joined": lambda comm: (filled(rmaext.Window(comm, [own(), rmaext.empty(SIZE // 8)])), None),
    "views": with_views,
    "prepared": prepared,
    "dynamic": dynamic,
    "file": mapped,
    "Create": lambda comm: dropin(Win.Create(own(), comm=comm)),
    "Allocate": lambda comm: dropin(Win.Allocate(SIZE, comm=comm)),
    "Create_dynamic": attached,
    "Store": lambda comm: (containers.Store(comm, own().reshape(-1, 1000)), None),
    "TaskQueue": queue,
    "Published": published,
    "Dict": table,
    "Array": grid,
}
SHARED = {
    "shared": lambda comm: (filled(rmaext.Window.shared(comm, SIZE // 8)), None),
    "Allocate_shared": lambda comm: dropin(Win.Allocate_shared(SIZE, comm=comm)),
}


def close(it) -> None:
    it.Free() if isinstance(it, Win) else it.close()


def check(make, comm) -> None:
    """Make one to begin with, so that what the process has once is there."""
    for closed, _ in [make(comm)]:
        close(closed)
    del closed, _
    comm.Barrier()
    before = counters()
    comm.Barrier()
    made, kept = make(comm)
    during = counters()
    comm.Barrier()
    close(made)
    comm.Barrier()  # another rank's memory, which is mapped here, goes as well
    after = counters()
    assert during["resident"] > before["resident"] + SIZE - SLACK, (before, during)
    assert after["resident"] < before["resident"] + SLACK, (before, after)
    assert after["shared"] < before["shared"] + SLACK, (before, after)
    for name in "locked", "mappings", "large", "descriptors", "regions":
        assert after[name] <= before[name], (name, before, after)
    assert "closed" in repr(made) or "null" in repr(made) or made.closed, (made, kept)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", WINDOWS)
def test_close(world, kind):
    check(WINDOWS[kind], world)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", SHARED)
def test_close_of_shared(world, kind):
    near = world.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        check(SHARED[kind], near)
    except rmaext.NotLocalError:
        pytest.skip("the routes are by network")
    finally:
        near.Free()


@pytest.mark.mpi
def test_what_the_program_holds_stays(world):
    """Arrays outlive the window, with what was in them, whoever gets memory next."""
    win = rmaext.Window.allocate(world, 1000)
    local, part, near = win.local, win.local[5:9], win.subwindow(0, 10).local
    shown = Win.Allocate(8000, comm=world)
    buffers = [np.frombuffer(shown), np.frombuffer(shown.tomemory()), memoryview(shown)]
    local[:] = buffers[0][:] = 7
    world.Barrier()
    win.close()
    shown.Free()
    more = [filled(rmaext.Window.allocate(world, 1000)) for _ in range(8)]
    assert win.local is local
    for array in local, part, near, *buffers:
        assert (np.asarray(array).view("f8") == 7).all()
    for other in more:
        other.close()
    del local, part, near, buffers, array
    with pytest.raises(rmaext.ClosedError, match="keeps no memory"):
        _ = win.local
    assert len(memoryview(shown)) == 0
