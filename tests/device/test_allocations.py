# SPDX-License-Identifier: BSD-3-Clause
"""Kinds of allocation, devices that differ by rank, forks, failures of a device, and lost ranks.

Each line of "State of each kind of allocation" in docs/guides/gpu-arrays.md names one of these.
"""

from __future__ import annotations

import ctypes
import textwrap

import numpy as np
import pytest
from support.jobs import passes, start

import rmaext

N = 50_000
WANTED = np.arange(float(N))


class ByInterface:
    """N doubles at an address, as CuPy's arrays over what CUDA has allocated."""

    def __init__(self, address):
        self.__cuda_array_interface__ = {
            **{"shape": (N,), "typestr": "<f8", "data": (address, False)},
            **{"version": 3, "stream": 1},
        }


def exercise(comm, memory):
    """Put to a window over it, update and read it, with all that lies on the host or a device."""
    right = (comm.rank + 1) % comm.size
    with rmaext.Window(comm, memory) as win:
        kind = win.memory.kind
        win.put(WANTED, right)
        win.fence()
        assert (win.get(comm.rank) == WANTED).all()
        win.fence()
        win.accumulate(np.ones(N), right)
        win.fence()
        assert (win.get(right) == WANTED + 1).all()
        win.fence()
        win.put(memory, right)  # an origin
        win.flush()
        assert win.get(right, out=memory) is memory
        win.fence()
    return kind


# -- kinds of allocation


def test_cuda_malloc(cuda, comm):
    assert exercise(comm, cuda.Array.from_numpy(np.zeros(N))) == "cuda"


@pytest.mark.parametrize("kind", ["Expandable", "Unexported", "Pooled"])
def test_blocks_and_pools(cuda, comm, kind):
    """cuMemCreate's, with descriptors and without, and cudaMallocAsync's."""
    memory = getattr(cuda, kind).from_numpy(np.zeros(N))
    assert exercise(comm, memory) == "cuda"
    with rmaext.Window(comm, memory) as win:
        near = [] if win._group.forced else win._group.here
        for rank in range(comm.size):
            mapped = rank in near and (kind == "Expandable" or rank == comm.rank)
            assert win.route(rank) == ("ipc" if mapped else "fabric")
        win.fence()
    memory.free()


def test_managed(cuda, comm):
    """By the interface it is the device's. By DLPack, which tells it apart, the host's."""
    address = cuda.get(ctypes.c_uint64, "cuMemAllocManaged", 8 * N, 1)
    assert exercise(comm, ByInterface(address)) == "cuda"

    class Managed(cuda.Array):
        def __dlpack_device__(self):
            return 13, 0  # kDLCUDAManaged

    with pytest.raises(TypeError, match=r"numpy\.from_dlpack\(\.\.\.\)"):
        rmaext.Window(comm, Managed(3, "f8"))
    raw = (ctypes.c_char * (8 * N)).from_address(address)
    assert exercise(comm, np.frombuffer(raw)) == "system"
    cuda.call("cuMemFree_v2", address)


def test_pinned_host(cuda, comm):
    """What cuMemHostAlloc returns is the host's as an array of NumPy; else the device's."""
    address = cuda.get(ctypes.c_void_p, "cuMemHostAlloc", 8 * N, 0)
    raw = (ctypes.c_char * (8 * N)).from_address(address)
    assert exercise(comm, np.frombuffer(raw)) == "system"
    assert exercise(comm, ByInterface(address)) == "cuda"
    cuda.call("cuMemFreeHost", ctypes.c_void_p(address))


def test_registered_host(cuda, comm):
    array = rmaext.empty(N)
    cuda.call("cuMemHostRegister_v2", ctypes.c_void_p(array.ctypes.data), 8 * N, 0)
    assert exercise(comm, array) == "system"
    assert exercise(comm, ByInterface(array.ctypes.data)) == "cuda"
    cuda.call("cuMemHostUnregister", ctypes.c_void_p(array.ctypes.data))


def test_the_hosts_called_a_devices(cuda, comm):
    """CUDA does not know an address of the host's: it is refused, by all ranks."""
    with pytest.raises(rmaext.RmaError, match="no memory of a device is there"):
        rmaext.Window(comm, ByInterface(np.zeros(N).ctypes.data))


def test_two_arrays_of_one_allocation(cuda, comm):
    """As those of a pool are: each is reached by itself, and nothing between them."""
    whole = cuda.Array.from_numpy(np.zeros(3 * N))
    first, last = ByInterface(whole.address), ByInterface(whole.address + 16 * N)
    with rmaext.Window(comm, first) as one, rmaext.Window(comm, last) as two:
        one.put(WANTED, comm.rank)
        two.put(-WANTED, comm.rank)
        with pytest.raises(rmaext.BoundsError):
            one.put(1.0, comm.rank, N)
        one.flush()
        two.flush()
        seen = whole.to_numpy().reshape(3, N)
        assert (seen == [WANTED, np.zeros(N), -WANTED]).all()


def test_beyond_its_allocation(cuda, comm):
    """What is said to reach further than CUDA has allocated is refused."""
    short = cuda.Array.from_numpy(np.zeros(N - 1))
    with pytest.raises(rmaext.RmaError, match="reaches beyond its allocation"):
        rmaext.Window(comm, ByInterface(short.address))


# -- failures of a device


@pytest.mark.parametrize(
    ("failing", "call"),
    [
        ("cuMemcpyHtoDAsync_v2", lambda win, rank: win.put(np.ones(N), rank) or win.flush(rank)),
        ("cuMemcpyDtoHAsync_v2", lambda win, rank: win.get(rank)),
        ("cuMemcpyDtoHAsync_v2", lambda win, rank: win.fetch_add(1.0, rank)),
        ("cuMemcpyDtoHAsync_v2", lambda win, rank: win.fetch_add_many([rank], [5], 1.0)),
        ("cuMemcpyHtoDAsync_v2", lambda win, rank: win.put_notify(np.ones(3), rank)),
    ],
)
def test_a_copy_that_fails(cuda, world, failing, call):
    """The origin is told by one sentence, whoever copies; the next operation works."""
    with rmaext.Window(world, cuda.Array.from_numpy(np.zeros(N))) as win:
        win.fence()
        last = world.size - 1
        if world.rank in (0, last):
            cuda.cuda.device_fail(f"{failing}:1:2".encode())  # out of memory
        world.Barrier()
        if world.rank == 0:
            with pytest.raises(rmaext.RmaError) as caught:
                (call(win, last), win.flush(last))
            assert "\n" not in str(caught.value)
        world.Barrier()
        cuda.cuda.device_fail(b"")
        world.Barrier()
        win.put(7.0, last)
        win.flush(last)
        assert win.get(last, 0, 1) == 7.0
        win.fence()


def test_no_memory_left(cuda, world):
    """The creation fails on all ranks, naming the one; the next works."""
    memory = cuda.Array.from_numpy(np.zeros(3))
    last = world.size - 1
    if world.rank == last:
        cuda.cuda.device_fail(b"cuMemAlloc_v2:1:2")
    words = rf"(rank {last}: )?.*OUT_OF_MEMORY.*free some"
    with pytest.raises(rmaext.RmaError, match=words):
        rmaext.Window.allocate(world, 3, device="cuda:0")
    cuda.cuda.device_fail(b"")
    with rmaext.Window(world, memory) as win:
        win.fence()


# -- processes

LOST = "device/programs/lost.py"
MASKED = """
    import os
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    os.environ["DEVICE_COUNT"] = str(1 + comm.rank)  # as CUDA_VISIBLE_DEVICES may differ
    import numpy as np
    import rmaext
    from device import device_array as cuda
    for number in range(1 + comm.rank):
        cuda.begin(number)
    try:
        rmaext.Window.allocate(comm, 3, device="cuda:1")
    except rmaext.RmaError as exc:
        assert "rank 0: " in str(exc) and "see CUDA_VISIBLE_DEVICES" in str(exc), exc
    else:
        raise AssertionError("made")
    # each rank's last one, by its own numbers
    with rmaext.Window.allocate(comm, 3, "i8", device=f"cuda:{comm.rank}") as win:
        assert win.memory.device == comm.rank
        win.fetch_add(1, 0)
        win.put(comm.rank + 5, (comm.rank + 1) % comm.size, 1)
        win.fence()
        assert win.get(0, 0, 1) == comm.size
        assert win.get(comm.rank, 1, 1) == (comm.rank - 1) % comm.size + 5
        win.fence()
    print("end")
"""
FORKED = """
    import os, traceback
    import numpy as np
    from mpi4py import MPI
    import rmaext
    from device import device_array as cuda
    cuda.begin()
    array = cuda.Array.from_numpy(np.arange(3.0))
    made = rmaext.Window.allocate(MPI.COMM_SELF, 3, device="cuda:0")
    win = rmaext.Window(MPI.COMM_SELF, array)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for call in (
                lambda: win.get(0),
                lambda: rmaext.elements(array, "f8"),
                lambda: rmaext.elements(made.local, "f8"),
            ):
                try:
                    call()
                except rmaext.ClosedError:
                    pass
                except rmaext.RmaError as exc:
                    assert "forked after CUDA began is to be spawned" in str(exc), exc
                else:
                    raise AssertionError(call)
            del made, win  # memory that is not the child's to free
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    made.put([1.0, 2.0, 3.0], 0)
    made.flush()
    assert made.get(0).tolist() == [1, 2, 3] and win.get(0).tolist() == [0, 1, 2]
    made.close()
    win.close()
    print("end")
"""


def ended(done, ends):
    assert not done.returncode, done.stderr
    assert done.stdout.count("end") == ends, done.stdout + done.stderr


@pytest.mark.parametrize("route", ["", "fabric"])
def test_a_lost_rank(route):
    passes(3, LOST, oks=2, survive=True, timeout=60, RMAEXT_ROUTE=route)


def test_masks_that_differ_by_rank():
    ended(start(3, textwrap.dedent(MASKED)), 3)


def test_fork():
    ended(start(0, textwrap.dedent(FORKED)), 1)
