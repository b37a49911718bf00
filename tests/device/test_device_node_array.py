# SPDX-License-Identifier: BSD-3-Clause
"""NodeArray on devices: one copy a device, which the other ranks there have mapped."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import rmaext
from rmaext._memory import cuda as reader
from rmaext.containers import NodeArray

pytestmark = pytest.mark.mpi
RECORD = [("x", "f4"), ("n", "i8")]


@pytest.fixture(params=["all", "some"])
def device(request, cuda, comm):
    """Where this rank has its copy."""
    return "cuda:0" if request.param == "all" or comm.rank % 2 == 0 else None


def host(it):
    return it if isinstance(it, np.ndarray) else reader.fetch(it)


def filling(values, calls=None):
    """Fill an array, wherever it lies; on a device by kernels that are queued."""

    def fill(array):
        if calls is not None:
            calls.append(array.shape)
        if isinstance(array, np.ndarray):
            array[...] = values
        elif values.nbytes:
            reader.fill(array, np.ascontiguousarray(values))

    return fill


@pytest.mark.parametrize("dtype", ["?", "f4", "c16", ">i4", "S5", "M8[s]", "g", RECORD], ids=str)
def test_every_dtype(device, comm, dtype):
    values = np.arange(24).astype("i8").repeat(4).view("u1")[: 24 * np.dtype(dtype).itemsize]
    values = (values & 1 if dtype == "?" else values).view(dtype).reshape(4, 6)
    with NodeArray(comm, (4, 6), dtype, fill=filling(values), device=device) as table:
        assert isinstance(table.array, np.ndarray) == (device is None)
        assert table.array.shape == (4, 6)
        assert host(table.array).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 5, (2, 3, 4)])
def test_every_shape(device, comm, shape):
    values = np.arange(np.prod(shape, dtype=int), dtype=float).reshape(shape)
    with NodeArray(comm, shape, fill=filling(values), device=device) as table:
        assert (host(table.array) == values).all()
        assert host(table.array).shape == values.shape


def test_one_copy_a_device(cuda, comm, device):
    """What one rank writes there, the others that have mapped it find."""
    calls = []
    values = np.zeros(5)
    with rmaext.Window.allocate(comm, 1, device=device) as probe:
        routes = [probe.route(rank) for rank in range(comm.size)]
        probe.fence()
    there = comm.allgather(device)
    with NodeArray(comm, 5, fill=filling(values, calls), device=device) as table:
        route = "direct" if device is None else "ipc"
        near = [r for r in range(comm.size) if routes[r] == route and there[r] == device]
        assert table.filled_by == min(near, default=comm.rank)
        assert len(calls) == (table.filled_by == comm.rank)
        firsts = comm.allgather(table.filled_by)
        if device is not None and comm.rank == max(r for r in near or [comm.rank]):
            reader.fill(table.array, np.full(5, 9.0))
        comm.Barrier()
        if device is not None:
            assert (host(table.array) == 9).all()
        comm.Barrier()
        assert firsts[table.filled_by] == table.filled_by


def test_kernels_of_fill_come_first(cuda, comm):
    """What it has queued on the array's stream is waited for, as is the default stream."""

    def fill(array):
        facts = array.__cuda_array_interface__
        assert facts["data"][1] is False

        class Over(cuda.Array):
            def __init__(self):
                self.shape, self.dtype, self.nbytes = array.shape, array.dtype, 40
                self.address, self.stream = facts["data"][0], cuda.Stream(1)

        Over().launch(lambda values: values.fill(4))

    with NodeArray(comm, 5, fill=fill, device="cuda:0") as table:
        assert (host(table.array) == 4).all()
        comm.Barrier()
        cuda.Stream(1).synchronize()


@pytest.mark.parametrize("given", ["host", "device"])
def test_assembled(cuda, device, comm, given):
    rows = np.arange(2.0 * comm.rank).reshape(-1, 2) + 10 * comm.rank
    everyone = np.concatenate(comm.allgather(rows))
    if given == "device" and rows.size:
        rows = cuda.Array.from_numpy(rows)
    with NodeArray.assemble(comm, rows, device=device) as table:
        assert (host(table.array) == everyone).all()
        assert isinstance(table.array, np.ndarray) == (device is None)


def test_errors_are_of_all_ranks(cuda, comm):
    last, zero = comm.size - 1, filling(np.zeros(3))

    def fails(array):
        raise KeyError("no table")

    for wrong in "rocm:0", 0:
        with pytest.raises(ValueError, match="must be 'cuda:0'"):
            NodeArray(comm, 3, fill=zero, device=wrong if comm.rank == last else "cuda:0")
    with pytest.raises(rmaext.RmaError, match="no such device"):
        NodeArray(comm, 3, fill=zero, device="cuda:5" if comm.rank == last else None)
    with pytest.raises(KeyError, match="no table"):
        NodeArray(comm, 3, fill=fails if comm.rank == 0 else zero, device="cuda:0")
    if comm.size > 1:
        with pytest.raises(ValueError, match="shape"):
            NodeArray(comm, 3 + (comm.rank == last), fill=zero, device="cuda:0")
    NodeArray(comm, 3, fill=zero, device="cuda:0").close()


def test_memory_that_is_not_mapped_any_more(cuda, comm):
    """As of the second window, after the first one's was: an error on all ranks."""
    if not cuda.SIMULATED:
        pytest.skip("no call fails at will")
    zero = filling(np.zeros(3))
    with NodeArray(comm, 3, fill=zero, device="cuda:0") as table:
        mapped = table.filled_by != comm.rank
    with rmaext.Window.allocate(comm, 1, device="cuda:0") as probe:
        first = sum(probe.route(r) == "ipc" for r in range(comm.size) if r != comm.rank)
        probe.fence()
    if mapped:  # behind those calls that map the probes' memory
        cuda.cuda.device_fail(b"cuIpcOpenMemHandle_v2:%d:2" % (first + 1))
    try:
        if comm.allreduce(mapped):
            with pytest.raises(rmaext.RmaError, match=r"is not mapped any more: has the device"):
                NodeArray(comm, 3, fill=zero, device="cuda:0")
    finally:
        cuda.cuda.device_fail(b"")
    NodeArray(comm, 3, fill=zero, device="cuda:0").close()


@pytest.mark.parametrize("hang", ["before", "amid"])
def test_a_device_that_hangs(cuda, comm, hang):
    """An error of all ranks after the time limit; RMAEXT_TIMEOUT is more."""
    if not cuda.SIMULATED:
        pytest.skip("no copy of a GPU hangs when it is told to")

    def fill(array):
        cuda.Stream(1).synchronize()
        cuda.cuda.device_hang(1)

    begun = time.monotonic()
    if hang == "before":
        cuda.cuda.device_hang(1)
    try:
        with pytest.raises(rmaext.RmaTimeout, match=r"has not ended in 0[.]5 s"):
            NodeArray(comm, 3, fill=fill, timeout=0.5, device="cuda:0")
    finally:
        cuda.cuda.device_hang(0)
    assert time.monotonic() - begun < 20


def test_closed(cuda, comm, monkeypatch):
    from device import little_cupy

    monkeypatch.setitem(sys.modules, "cupy", little_cupy)
    table = NodeArray(comm, 3, fill=lambda array: array.__setitem__(..., 5), device="cuda:0")
    assert type(table.array) is little_cupy.ndarray
    assert (host(table.array) == 5).all()
    for _ in range(2):
        table.close()
    assert table.closed
    with pytest.raises(rmaext.ClosedError):
        _ = table.array
