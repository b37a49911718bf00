# SPDX-License-Identifier: BSD-3-Clause
"""Containers whose memory lies on a device, on all ranks or on some."""

from __future__ import annotations

import numpy as np
import pytest

import rmaext
from rmaext._memory import cuda as reader
from rmaext.containers import Array, Channel, Published, Store

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["all", "some"])
def device(request, cuda, comm):
    """Where the memory of this rank lies."""
    return "cuda:0" if request.param == "all" or comm.rank % 2 == 0 else None


def own(local):
    return local if isinstance(local, np.ndarray) else reader.fetch(local)


@pytest.mark.parametrize("shape", [(7, 9), (12,), (), (0, 3)])
def test_patches_and_sums(cuda, device, comm, shape):
    values = np.arange(float(np.prod(shape))).reshape(shape)
    with Array(comm, shape, device=device) as field:
        if comm.rank == 0:
            field[...] = values
        field.fence()
        assert (field[...] == values).all()
        assert (own(field.padded) == values[field.where]).all()
        if not values.size:
            return
        assert field.sum() == values.sum()
        assert field.max() == values.max()
        field.add(..., cuda.Array.from_numpy(np.ones(shape)))
        field.fence()
        assert (field[...] == values + comm.size).all()
        if shape:
            index = (0,) * len(shape)
            assert field.fetch_add(index, 0.0) == comm.size
            with field.sum(axis=0) as sums:
                assert (sums[...] == (values + comm.size).sum(axis=0)).all()


@pytest.mark.parametrize("periodic", [False, True])
def test_ghosts(device, comm, periodic):
    """As those of an array on the host, corners too, several times."""
    how = {"ghosts": 1, "periodic": periodic}
    with Array(comm, (6, 8), **how) as host, Array(comm, (6, 8), device=device, **how) as field:
        for turn in range(3):
            values = np.arange(48.0).reshape(6, 8) * (turn + 1)
            if comm.rank == 0:
                host[...] = field[...] = values
            host.fence()
            field.fence()
            host.exchange()
            with field.exchanging():
                pass
            assert (own(field.padded) == host.padded).all()
            host.fence()
            field.fence()


def test_other_blocks_and_copies(device, comm):
    with Array(comm, (6, 8), device=device) as field, Array.like(field) as same:
        if comm.rank == 0:
            field[...] = np.arange(48.0).reshape(6, 8)
        field.copy_to(same)
        assert (same[...] == np.arange(48.0).reshape(6, 8)).all()
        with field.redistribute(grid=(1, 0)) as columns, Array(comm, (6, 8)) as host:
            assert isinstance(columns.padded, np.ndarray) == (device is None)
            columns.copy_to(host)
            assert (host[...] == np.arange(48.0).reshape(6, 8)).all()


def test_parts_of_new_memory(cuda, comm):
    with rmaext.Window.allocate(comm, (3, 4), "i8", device="cuda:0") as win:
        win.put(np.arange(12), comm.rank)
        win.fence()
        part = win.local[1]
        assert reader.fetch(part).tolist() == [4, 5, 6, 7]
        assert reader.fetch(win.local[np.int64(1)]).tolist() == [4, 5, 6, 7]
        assert reader.fetch(win.local[2, 3]) == 11
        assert win.local[:, 1:3].__cuda_array_interface__["strides"] == (32, 8)
        for wrong in ([0, 1], np.array([True, False, True]), 1.5, True, np.bool_(False)):
            with pytest.raises(TypeError, match="slices and integers"):
                win.local[wrong]
        with pytest.raises(ValueError, match="not C-contiguous"):
            win.put(win.local[:, 1:3], comm.rank)
        win.fence()


def test_published(cuda, device, comm):
    right = (comm.rank + 1) % comm.size
    with Published(comm, (2, 3), device=device) as state:
        assert state.read(right)[0] == 0
        comm.Barrier()
        for turn in range(1, 9):
            new = np.full((2, 3), 10.0 * comm.rank + turn)
            given = cuda.Array.from_numpy(new) if turn % 2 else new
            assert state.publish(given) == turn
            version, found = state.read(right, newer_than=turn - 1)
            assert version >= turn
            assert (found == 10 * right + version).all()
        out = cuda.Array.from_numpy(np.zeros((2, 3)))
        version, found = state.read(right, newer_than=7, out=out)
        assert found is out
        assert (out.to_numpy() == 10 * right + version).all()
        for wrong, error in (
            (cuda.Array.from_numpy(np.zeros(3)), ValueError),
            (cuda.Array.from_numpy(np.zeros((2, 3), "f4")), TypeError),
            ([0.0], TypeError),
        ):
            with pytest.raises(error):
                state.read(right, out=wrong)


def test_no_version_is_torn(device, comm):
    """Readers and writers at full speed, in more than one message."""
    size = 30_000
    with Published(comm, size, "i8", device=device, buffers=2 + comm.size) as state:
        done = 0
        for turn in range(30):
            if comm.rank == 0:
                state.publish(np.full(size, turn))
            version, found = state.read(0)
            assert found[0] == max(version - 1, 0)
            assert (found == found[0]).all()
            assert version >= done
            done = version
        comm.Barrier()


MAKES = {
    "Array": lambda comm, device: Array(comm, 5, device=device),
    "Published": lambda comm, device: Published(comm, 5, device=device),
    "Store": lambda comm, device: Store(comm, np.zeros(5), device=device),
    "Channel": lambda comm, device: Channel(comm, float, 5, device=device),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_bad_devices(cuda, comm, make):
    """One rank's is an error on all, and the next one is made."""
    last = comm.size - 1
    for wrong in "rocm:0", 0, "cuda:-1", b"cuda:0":
        with pytest.raises(ValueError, match="must be 'cuda:0'"):
            make(comm, wrong if comm.rank == last else "cuda:0")
    with pytest.raises(rmaext.RmaError, match="no such device"):
        make(comm, "cuda:5" if comm.rank == last else None)
    make(comm, "cuda:0").close()
