# SPDX-License-Identifier: BSD-3-Clause
"""Window.allocate(device="cuda:0"): new memory of a device, and what it is for other libraries."""

from __future__ import annotations

import sys
import types
import weakref

import numpy as np
import pytest

import rmaext
from rmaext._memory import cuda as reader

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [7, (3, 4), (), (2, 0)])
@pytest.mark.parametrize("dtype", ["f8", "i2", "c16", "?", ">i4", "i4,f8", "M8[s]"])
def test_zeros_of_any_dtype(cuda, comm, shape, dtype):
    with rmaext.Window.allocate(comm, shape, dtype, device="cuda:0") as win:
        size = int(np.prod(shape))
        assert win.memory.kind == "cuda"
        assert win.local.shape == np.zeros(shape).shape
        assert win.local.dtype == np.dtype(dtype)
        zeros = np.zeros(size, dtype)
        for rank in range(comm.size):
            assert (win.get(rank) == zeros).all()
        win.fence()
        if size:
            values = (
                np.arange(4 * size, dtype="u1").repeat(8)[: size * win.dtype.itemsize] & 1
            ).view(dtype)
            win.put(values, (comm.rank + 1) % comm.size)
            win.fence()
            assert (win.get(comm.rank) == values).all()
        facts = win.memory.describe()
        assert (facts["origin"], facts["kind"], facts["resident"]) == ("device", "cuda", 0)


def test_more_than_is_cleared_at_once(cuda, comm):
    for _ in range(2):  # the second time it is memory that was used
        with rmaext.Window.allocate(comm, (1 << 22) + 3, "i8", device="cuda") as win:
            assert not win.get(comm.rank).any()
            win.put(np.full(win.size(comm.rank), -1), comm.rank)
            win.fence()


def test_some_ranks_on_the_host(cuda, comm):
    device = {"device": "cuda:0"} if comm.rank % 2 == 0 else {}
    with rmaext.Window.allocate(comm, 5, "i8", **device) as win:
        win.fetch_add(1, 0)
        win.fence()
        assert win.get(0, 0, 1) == comm.size
        win.fence()


def has_room(cuda):
    """Whether the device has all but the last MiB of its memory for this process."""
    try:
        made = cuda.Array((1 << 30) - (1 << 20), "u1")
    except cuda.CudaError:
        return False
    made.free()
    return True


def test_it_is_freed_with_the_last_array(cuda, comm):
    assert has_room(cuda)
    win = rmaext.Window.allocate(comm, 1 << 21, "u1", device="cuda:0")
    local = win.local
    assert win.local is local
    win.close()
    assert win.local is local  # for as long as the program has it
    assert not has_room(cuda)
    assert reader.fetch(local).sum() == 0
    gone = weakref.ref(local)
    del local
    assert gone() is None
    with pytest.raises(rmaext.ClosedError, match="keeps no memory"):
        win.local  # noqa: B018
    assert has_room(cuda)


def test_both_protocols(cuda, comm):
    """As rmaext itself reads them: of an array of another library."""
    with rmaext.Window.allocate(comm, (2, 3), "f4", device="cuda:0") as win:
        win.put(np.arange(6, dtype="f4"), comm.rank)
        win.fence()
        local = win.local
        assert local.__dlpack_device__() == (2, 0)

        class ByInterface:
            __cuda_array_interface__ = local.__cuda_array_interface__

        for it in (local, ByInterface()):
            assert (reader.fetch(it) == np.arange(6, dtype="f4").reshape(2, 3)).all()
        facts = local.__cuda_array_interface__
        assert (facts["version"], facts["shape"], facts["stream"]) == (3, (2, 3), None)
        win.put(local, comm.rank)  # an origin and a result like any other
        assert win.get(comm.rank, out=local) is local
        assert "cuda:0" in repr(local)


def test_arrays_of_other_libraries(cuda, comm, monkeypatch):
    """A library is asked for by name, and the first that the program has imported by itself.

    None of them is installed where this runs: modules in their place keep what they are given.
    """
    found = []
    for name, function in (("cupy", "asarray"), ("torch", "from_dlpack")):
        module = types.ModuleType(name)
        setattr(module, function, lambda it, name=name: found.append((name, it)) or it)
        monkeypatch.setitem(sys.modules, name, module)
        with rmaext.Window.allocate(comm, 3, device="cuda:0") as win:
            assert found.pop(0)[0] == "cupy"
            assert not found
            assert win.local_as("cupy") is win.local
            assert win.local_as(name) is win.local
            assert [it[0] for it in found] == ["cupy", name]
            assert all(it[1] is win.local for it in found)
            with pytest.raises(ValueError, match="'jax' must be one of 'cupy', 'torch', 'numba'"):
                win.local_as("jax")
        found.clear()
    with rmaext.Window.allocate(comm, 3) as win, pytest.raises(rmaext.Unsupported, match="host"):
        win.local_as("cupy")
    with rmaext.Window(comm, [np.zeros(3)]) as win, pytest.raises(rmaext.Unsupported):
        win.local_as("cupy")


@pytest.mark.parametrize(
    ("device", "more", "error", "words"),
    [
        ("cuda:9", {}, rmaext.RmaError, "INVALID_DEVICE .*no such device: see CUDA_VISIBLE"),
        ("cuda:99", {}, rmaext.RmaError, "no device 99"),
        ("rocm:0", {}, ValueError, "must be 'cuda:0' or another number"),
        ("cpu", {}, ValueError, "must be 'cuda:0' or another number"),
        ("cuda:-1", {}, ValueError, "must be 'cuda:0' or another number"),
        ("cuda:", {}, ValueError, "must be 'cuda:0' or another number"),
        ("", {}, ValueError, "must be 'cuda:0' or another number"),
        ("cuda:0", {"lazy": False}, ValueError, "are for the host's"),
        ("cuda:0", {"hint": 4096}, ValueError, "are for the host's"),
        ("cuda:0", {"persistent": True}, rmaext.Unsupported, "no file holds it"),
        ("cuda:0", {"shape": 1 << 50}, rmaext.RmaError, "OUT_OF_MEMORY .*free some"),
        ("cuda:0", {"shape": 1 << 61}, MemoryError, "no machine has as many"),
        ("cuda:0", {"shape": -1}, ValueError, "negative dimension"),
        ("cuda:0", {"dtype": object}, TypeError, "Python objects"),
    ],
)
def test_bad_devices_of_one_rank(cuda, comm, device, more, error, words):
    """Refused on all ranks, naming the one."""
    last = comm.size - 1
    given = {"shape": 3, **({"device": device, **more} if comm.rank == last else {})}
    with pytest.raises(error, match=rf"rank {last}: .*{words}" if last else words):
        rmaext.Window.allocate(comm, **given)
    with rmaext.Window.allocate(comm, 3, "i8", device="cuda:0") as win:
        assert win.fetch_add(1, comm.rank) == 0


def test_no_context(comm, run_python):
    """An own process, which has none: the error says how to make one."""
    if comm.size > 1:
        return
    program = """
        import ctypes, os
        import pytest
        import rmaext
        from mpi4py import MPI
        with pytest.raises(rmaext.Unsupported, match=r"cupy.zeros\\(1\\)"):
            rmaext.Window.allocate(MPI.COMM_SELF, 3, device="cuda:0")
        cuda = ctypes.CDLL(os.environ["RMAEXT_CUDA"])
        context = ctypes.c_void_p()
        assert not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        with rmaext.Window.allocate(MPI.COMM_SELF, 3, device="cuda:0") as win:
            assert win.get(0).tolist() == [0, 0, 0]
    """
    done = run_python(program)
    assert not done.returncode, done.stderr
