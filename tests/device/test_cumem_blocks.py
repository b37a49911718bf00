# SPDX-License-Identifier: BSD-3-Clause
"""Memory of cuMemCreate, mapped by others of the node block by block."""

from __future__ import annotations

import errno
import os
import resource
import struct

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext._memory import cuda as of_cuda
from rmaext._native._lib import ffi, lib
from rmaext._runtime import config
from rmaext._runtime.failures import from_c

pytestmark = pytest.mark.mpi
N = 700_000  # elements: of four blocks


@pytest.fixture
def memory(cuda):
    made = cuda.Expandable.from_numpy(np.zeros(N))
    yield made
    made.free()


@pytest.fixture
def counted(cuda, comm):
    """Require that no descriptor and no block is left."""

    def state():
        return len(os.listdir("/proc/self/fd")), cuda.cuda.device_blocks() if cuda.SIMULATED else 0

    with rmaext.Window(comm, cuda.Array.from_numpy(np.zeros(3))) as win:
        for rank in range(comm.size):
            win.accumulate(1.0, rank)  # what the first messages of a communicator open
        win.fence()
        forced = win._group.forced
    before = state()
    yield forced
    assert comm.allreduce(state() == before, MPI.LAND), (state(), before)


@pytest.fixture
def mapped(counted):
    if counted:
        pytest.skip("all goes by the network")


def near(win):
    here = win._group.here
    return here[(here.index(win._group.rank) + 1) % len(here)]


def test_each_block(mapped, memory, comm):
    with rmaext.Window(comm, memory) as win:
        to = near(win)
        values = np.random.default_rng(comm.rank).random(N)
        win.put(values, to)
        assert (win.get(to) == values).all()
        win.put_many([to] * 3, [0, N - 1, N // 2], [1.0, 2.0, 3.0])
        assert win.get_many([to] * 3, [N - 1, 0, N // 2]).tolist() == [2, 1, 3]
        for wrong in (lambda: win.put(1.0, to, N), lambda: win.get(to, N - 1, 2)):
            with pytest.raises(rmaext.BoundsError):
                wrong()
        win.fence()


def test_parts_share_what_is_mapped(mapped, memory, cuda, comm):
    if not cuda.SIMULATED:
        pytest.skip("nobody counts it")

    class Part:
        def __init__(self, start, stop):
            self.__cuda_array_interface__ = memory.__cuda_array_interface__ | {
                "shape": (stop - start,),
                "data": (memory.address + 8 * start, False),
            }

    with rmaext.Window(comm, Part(0, 300_000)) as a:
        comm.Barrier()
        before, others = cuda.cuda.device_blocks(), len(a._group.here) - 1
        with rmaext.Window(comm, Part(100, 300_000)) as b:
            assert cuda.cuda.device_blocks() == before + 2 * others  # all but the first one
            with rmaext.Window(comm, Part(50, 290_000)) as c:
                assert cuda.cuda.device_blocks() == before + 2 * others
                to = near(a)
                a.put(5.0, to, 100)
                assert b.get(to, 0, 1) == c.get(to, 50, 1) == [5]
                c.fence()
            b.fence()
        a.fence()


CALLS = ["AddressReserve", "ImportFromShareableHandle", "Map", "SetAccess"]


@pytest.mark.parametrize("call", [f"cuMem{call}" for call in CALLS])
@pytest.mark.parametrize("count", [1, 2])
def test_what_fails_leaves_nothing(counted, memory, cuda, comm, call, count):
    """It goes by messages then."""
    if not cuda.SIMULATED:
        pytest.skip("no call of a GPU fails at will")
    comm.Barrier()
    cuda.cuda.device_fail(f"{call}:{count}:2".encode())
    with rmaext.Window(comm, memory) as win:
        cuda.cuda.device_fail(b"")
        routes = [win.route(rank) for rank in range(comm.size) if rank != comm.rank]
        assert not routes or "fabric" in routes or count == 2
        for rank in range(comm.size):
            win.put(rank + 1.0, rank, comm.rank)
        win.fence()
        assert (memory.to_numpy()[: comm.size] == comm.rank + 1).all()
        win.fence()


@pytest.mark.parametrize("call", ["RetainAllocationHandle", "ExportToShareableHandle"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_export_that_fails(counted, memory, cuda, comm, call, count):
    if not cuda.SIMULATED:
        pytest.skip("no call of a GPU fails at will")
    cuda.cuda.device_fail(f"cuMem{call}:{count}:2".encode())
    with rmaext.Window(comm, memory) as win:
        cuda.cuda.device_fail(b"")
        for rank in range(comm.size):
            assert rank == comm.rank or win.route(rank) == "fabric"
        win.put(7.0, (comm.rank + 1) % comm.size, N - 1)
        win.fence()
        assert memory.to_numpy()[-1] == 7
        win.fence()


def test_another_processs_record_may_say_anything(mapped, memory, comm):
    """What its file says is what is mapped, if it is that file."""
    with rmaext.Window(comm, memory) as win:
        to = near(win)  # perhaps itself
        size = ffi.sizeof("struct rmaext_export")
        exported = ffi.new("struct rmaext_export *")
        told = comm.allgather(bytes(ffi.buffer(ffi.cast("void *", win._region._exported), size)))
        library = config.cuda_library()

        def mapped(length, **changed):
            ffi.memmove(exported, told[to], size)
            words = struct.unpack("qqqQ", bytes(ffi.buffer(exported.handle))[:32])
            ticket = dict(zip(("pid", "fd", "stamp", "count"), words, strict=True))
            exported.at = changed.pop("at", exported.at)
            exported.kind = changed.pop("kind", exported.kind)
            ffi.buffer(exported.handle)[:32] = struct.pack("qqqQ", *(ticket | changed).values())
            return lib.rmaext_import_try(library, exported, length)

        assert mapped(8 * N) == 0
        for wrong in (
            *({"pid": number} for number in (0, -1, os.getppid(), 2**31 - 1)),
            *({"fd": number} for number in (-1, 0, 1, 2**31 - 1)),
            *({"count": number} for number in (0, 1, 3, 5, 2**63, 2**64 - 1)),
            *({"at": number} for number in (memory.count * memory.block, 2**63, 2**64 - 8)),
            *({"kind": 0}, {"kind": 7, "stamp": 1}, {"stamp": 5}),
        ):
            assert mapped(8, **wrong) < 0, wrong
        assert mapped(memory.count * memory.block, at=1) == -errno.ERANGE
        comm.Barrier()


def test_all_that_is_exported_has_room(cuda):
    """It takes half of the descriptors that a process may have, together."""
    memory = cuda.Expandable(30 * (2 << 20) - 64, "u1")
    device = of_cuda.opened(memory, memory.device)
    exported = []

    def export():
        at = memory.address + len(exported) * memory.block
        made = ffi.new("struct rmaext_export *")
        left = memory.base + memory.count * memory.block - at
        code = lib.rmaext_device_export(device, ffi.cast("void *", at), left, made)
        if not code:
            exported.append(made)
        return code

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    most = 2 * (opened + 20)  # of which half are free
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        while not export():
            taken = len(os.listdir("/proc/self/fd")) - opened
            assert taken <= most / 2
        with pytest.raises(rmaext.RmaError, match="raise ulimit -n"):
            raise from_c(export(), "export")
        assert len(exported) > 1
        lib.rmaext_device_unexport(exported.pop(0))
        assert export() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for made in exported:
            lib.rmaext_device_unexport(made)
        memory.free()
    assert len(os.listdir("/proc/self/fd")) == opened - memory.count


def test_a_forked_child_keeps_no_block(cuda, memory):
    device, made = of_cuda.opened(memory, memory.device), ffi.new("struct rmaext_export *")
    before = set(os.listdir("/proc/self/fd"))
    where = ffi.cast("void *", memory.address)
    assert lib.rmaext_device_export(device, where, memory.nbytes, made) == 0
    exported = set(os.listdir("/proc/self/fd")) - before
    assert len(exported) == memory.count + 1
    child = os.fork()
    if not child:
        os._exit(any(os.path.exists(f"/proc/self/fd/{number}") for number in exported))
    assert os.waitpid(child, 0)[1] == 0
    assert exported <= set(os.listdir("/proc/self/fd"))
    lib.rmaext_device_unexport(made)
    assert set(os.listdir("/proc/self/fd")) == before
