# SPDX-License-Identifier: BSD-3-Clause
"""The drop-in MPI.Win over arrays on a device, and with origins and results there."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from rmaext.compat import Win

pytestmark = pytest.mark.mpi
N = 12


@pytest.fixture(params=["all", "some", "origins"])
def window(request, cuda, comm):
    """Over 0.0, 1.0, ... in the memory of a device on all ranks, on every second one, or none."""
    there = request.param == "all" or (request.param == "some" and comm.rank % 2 == 0)
    values = np.arange(float(N))
    memory = cuda.Array.from_numpy(values) if there else values
    win = Win.Create(memory, 8, comm=comm)
    assert win.attrs[1:] == (8 * N, 8)
    win.Fence()
    yield win
    win.Fence()
    win.Free()


def test_put_and_get(window, cuda, comm):
    right = (comm.rank + 1) % comm.size
    window.Put(cuda.Array.from_numpy(np.full(3, comm.rank + 1.0)), right, 2)
    window.Put([cuda.Array.from_numpy(np.full(5, 7.0)), 2, MPI.DOUBLE], right, 8)
    window.Fence()
    got = cuda.Array.from_numpy(np.zeros(N))
    window.Get(got, right)
    wanted = np.arange(float(N))
    wanted[2:5], wanted[8:10] = comm.rank + 1.0, 7.0
    assert (got.to_numpy() == wanted).all()


def test_a_result_in_pieces_leaves_what_is_between(window, cuda, comm):
    every = MPI.DOUBLE.Create_vector(4, 1, 2)
    every.Commit()
    got = cuda.Array.from_numpy(np.full(N, -1.0))
    window.Get([got, 1, every], comm.rank, [2, 4, MPI.DOUBLE])
    wanted = np.full(N, -1.0)
    wanted[0:8:2] = [2.0, 3.0, 4.0, 5.0]
    assert (got.to_numpy() == wanted).all()
    window.Get([got, 2, 3, MPI.DOUBLE], comm.rank, 9)
    wanted[3:5] = [9.0, 10.0]
    assert (got.to_numpy() == wanted).all()
    every.Free()


def test_what_is_beside_a_result_is_the_programs(window, cuda, comm):
    """It may write there meanwhile."""

    class Written(cuda.Array):
        looks = 0

        def __dlpack__(self, **how):
            self.looks += 1
            if self.looks == 2:  # once when the call begins, once when its result is there
                self.launch(lambda values: values.__setitem__([5, 7], 9.0))
                self.stream.synchronize()
            return super().__dlpack__(**how)

    pairs = MPI.DOUBLE.Create_vector(2, 1, 2)
    pairs.Commit()
    got = Written.from_numpy(np.zeros(8))
    window.Get([got, 2, 3, MPI.DOUBLE], comm.rank, 10)
    assert got.to_numpy().tolist() == [0.0, 0.0, 0.0, 10.0, 11.0, 9.0, 0.0, 9.0]
    got = Written.from_numpy(np.zeros(8))
    window.Get([got, 1, pairs], comm.rank, [4, 2, MPI.DOUBLE])
    assert got.to_numpy().tolist() == [4.0, 0.0, 5.0, 0.0, 0.0, 9.0, 0.0, 9.0]
    pairs.Free()


@pytest.mark.parametrize("order", ["one", "two"])
def test_a_result_in_pieces_reads_nothing_of_the_array(cuda, comm, order):
    """So a kernel may write between the pieces, whenever it likes."""
    every = MPI.DOUBLE.Create_vector(4, 1, 2)
    two = every.Create_resized(0, 80)
    every.Commit()
    two.Commit()
    win = Win.Create(np.arange(20.0), 8, comm=comm)
    win.Fence()
    got = cuda.Array.from_numpy(np.full(20, -1.0))
    got.stream.synchronize()
    if cuda.SIMULATED:
        cuda.cuda.device_fail(b"cuMemcpyDtoHAsync_v2:1:1")
        begun = cuda.cuda.device_calls(b"cuMemcpy")
    count = 1 if order == "one" else 2
    win.Get([got, count, two], comm.rank, [2, 4 * count, MPI.DOUBLE])
    if cuda.SIMULATED:
        assert cuda.cuda.device_calls(b"cuMemcpy") - begun <= 2
        cuda.cuda.device_fail(b"")
    wanted = np.full(20, -1.0)
    wanted[[0, 2, 4, 6]] = [2.0, 3.0, 4.0, 5.0]
    if count == 2:
        wanted[[10, 12, 14, 16]] = [6.0, 7.0, 8.0, 9.0]
    assert (got.to_numpy() == wanted).all()
    win.Fence()
    win.Free()
    two.Free()
    every.Free()


def test_a_datatype_that_leads_out_of_an_array(window, cuda, comm):
    """Nothing is read or written there."""
    every = MPI.DOUBLE.Create_vector(4, 1, 2)
    every.Commit()
    short = cuda.Array.from_numpy(np.zeros(6))
    for call in window.Put, window.Get:
        with pytest.raises(ValueError, match="leads out of the array on a device"):
            call([short, 1, every], comm.rank, [0, 4, MPI.DOUBLE])
    every.Free()


def test_updates(window, cuda, comm):
    size = comm.size
    window.Accumulate(cuda.Array.from_numpy(np.ones(3)), 0, 1)
    window.Fence()
    old = cuda.Array.from_numpy(np.zeros(3))
    window.Get_accumulate(cuda.Array.from_numpy(np.ones(3)), old, 0, 1, op=MPI.NO_OP)
    assert (old.to_numpy() == np.arange(1.0, 4.0) + size).all()
    one, was = cuda.Array.from_numpy(np.ones(1)), cuda.Array.from_numpy(np.zeros(1))
    window.Fence()
    window.Fetch_and_op(one, was, 0, 6)
    assert 6.0 <= was.to_numpy()[0] < 6.0 + size
    window.Fence()
    compare = cuda.Array.from_numpy(np.array([float(7 + 100 * comm.rank)]))
    window.Compare_and_swap(one, compare, was, 0, 7)
    assert was.to_numpy()[0] in (7.0, 1.0)
    window.Fence()
    window.Get(was, 0, 7)
    assert was.to_numpy()[0] == 1.0


def test_requests(window, cuda, comm):
    right = (comm.rank + 1) % comm.size
    window.Fence(MPI.MODE_NOSUCCEED)
    window.Lock_all()
    window.Rput(cuda.Array.from_numpy(np.full(2, 5.0)), right, 3).Wait()
    window.Raccumulate(cuda.Array.from_numpy(np.ones(2)), right, 3).Wait()
    window.Flush(right)
    got = cuda.Array.from_numpy(np.zeros(2))
    window.Rget(got, right, 3).Wait()
    assert got.to_numpy().tolist() == [6.0, 6.0]
    window.Rget_accumulate(cuda.Array.from_numpy(np.ones(2)), got, right, 3).Wait()
    assert got.to_numpy().tolist() == [6.0, 6.0]
    window.Rget(got, right, 3).Wait()
    assert got.to_numpy().tolist() == [7.0, 7.0]
    window.Unlock_all()
    window.Fence()


def test_memory_that_cannot_be_used(cuda, comm):
    here, gone = (cuda.Array.from_numpy(np.zeros(3)) for _ in range(2))
    gone.free()
    words = "rank 0: wrong arguments" if comm.rank else "was it freed"
    with pytest.raises(MPI.Exception, match=words) as caught:
        Win.Create(gone if comm.rank == 0 else np.zeros(3), comm=comm)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    dynamic = Win.Create_dynamic(comm=comm)
    with pytest.raises(MPI.Exception, match="copy it to the host") as caught:
        dynamic.Attach(here)
    dynamic.Free()
    win = Win.Create(here, comm=comm)
    win.Fence()
    for call in (
        lambda: win.Put(gone, 0),
        lambda: win.Get(gone, 0),
        lambda: win.Fetch_and_op(gone, np.zeros(3), 0),
    ):
        with pytest.raises(MPI.Exception, match="was it freed") as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    if comm.rank == 0:
        assert not memoryview(win).nbytes  # nobody can look there
    win.Fence()
    win.Free()
