# SPDX-License-Identifier: BSD-3-Clause
"""Store with records, samples and results on devices, on all ranks or on some."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext._memory import cuda as reader
from rmaext.containers import Store

pytestmark = pytest.mark.mpi
RECORD = [("x", "f4"), ("n", "i8")]
DTYPES = ["?", "i1", "u2", "f2", "f4", "i8", "c16", ">i4", "S5", "U3", "M8[s]", "g", RECORD]


@pytest.fixture(params=["all", "some", "none"])
def device(request, cuda, comm):
    """Where the records of this rank lie."""
    here = request.param == "all" or (request.param == "some" and comm.rank % 2 == 0)
    return "cuda:0" if here else None


def host(it):
    return it if isinstance(it, np.ndarray) else reader.fetch(it)


def brought(comm, dtype, rows=3, tail=(4,)):
    """All ranks' records, of which each rank brings so many."""
    count = comm.size * rows * int(np.prod(tail))
    raw = np.random.default_rng(7).integers(48, 58, count * np.dtype(dtype).itemsize, "u1")
    if np.dtype(dtype).kind == "b":
        raw &= 1
    if np.dtype(dtype).kind == "U":
        raw.reshape(-1, 4)[:, 1:] = 0
    return raw.view(dtype).reshape(comm.size * rows, *tail)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(device, comm, dtype):
    every = brought(comm, dtype)
    with Store(comm, every[3 * comm.rank :][:3], device=device) as store:
        assert store.dtype == every.dtype
        order = np.random.default_rng(comm.rank).permutation(len(every))
        assert store.get(order).tobytes() == every[order].tobytes()
        assert store[-1].tobytes() == every[-1].tobytes()
        assert store.prefetch(order).result().tobytes() == every[order].tobytes()
        assert host(store.local).tobytes() == every[3 * comm.rank :][:3].tobytes()
        assert isinstance(store.local, np.ndarray) == (device is None)


@pytest.mark.parametrize("tail", [False, True])
def test_records_of_several_shapes(cuda, device, comm, tail, monkeypatch):
    from device import little_cupy

    lengths = range(1, 2 * comm.size + 1)
    every = [np.arange(n * (2 if tail else 1), dtype="f4") + 10 * n for n in lengths]
    every = [it.reshape(-1, 2) if tail else it for it in every]
    mine = every[2 * comm.rank :][:2]
    given = [cuda.Array.from_numpy(mine[0]), mine[1]]
    with Store(comm, given, device=device) as store:
        got = store.get(slice(None))
        assert all((a == b).all() for a, b in zip(got, every, strict=True))
        assert all((host(a) == b).all() for a, b in zip(store.local, mine, strict=True))
        total = sum(it.size for it in every)
        out = little_cupy.asarray(np.full(total + 3, 7, "f4"))
        got = store.get(slice(None), out=out)
        assert all((host(a) == b).all() for a, b in zip(got, every, strict=True))
        assert (host(out)[total:] == 7).all()
        values, starts = store.get([1], flat=True, out=out)
        assert (host(values) == every[1].reshape(-1)).all()
        assert starts.tolist() == [0, every[1].size]


@pytest.mark.parametrize("begin", ["get", "prefetch", "await"])
def test_results_on_a_device(cuda, device, comm, begin):
    """Behind the work of their stream, and there for the next kernel on it."""
    every = brought(comm, "f8")
    stream = cuda.Stream()
    out = cuda.Array.from_numpy(np.zeros((2, 4)), stream)
    with Store(comm, cuda.Array.from_numpy(every[3 * comm.rank :][:3]), device=device) as store:
        for turn in range(3):
            order = [turn, len(every) - 1 - turn]
            out.launch(lambda values: values.fill(9))
            if begin == "get":
                assert store.get(order, out=out) is out
            elif begin == "prefetch":
                future = store.prefetch(order, out=out)
                assert future.result() is out
                out.launch(lambda values: values.__imul__(-1))
                assert future.result() is out  # it is not copied there again
                assert (out.to_numpy() == -every[order]).all()
                continue
            else:

                async def one(indices):
                    return await store.prefetch(indices, out=out)

                assert asyncio.run(one(order)) is out
            assert (out.to_numpy() == every[order]).all()
    stream.close()


def test_what_lies_behind_a_batch_is_the_programs(cuda, device, comm):
    """It may write there meanwhile; and the array may have no parts of its own."""
    stream = cuda.Stream()
    for several in False, True:
        mine = [np.arange(2.0), np.arange(3.0) + 5] if several else np.arange(4.0).reshape(2, 2)
        out = cuda.Array.from_numpy(np.zeros(6), stream)
        with Store(comm, mine, device=device) as store:
            future = store.prefetch([1], flat=True, out=out)
            out.launch(lambda values: values.__setitem__(slice(4, 6), 9.0))
            values, starts = future.result()
            assert (host(values) == mine[1]).all()
            assert starts.tolist() == [0, len(mine[1])]
            assert out.to_numpy().tolist() == [*mine[1], *[0.0] * (4 - len(mine[1])), 9.0, 9.0]
            if several:
                (record,) = store.get([0], out=out)
                assert (host(record) == mine[0]).all()
    stream.close()


def test_time_limits_reach_the_device(cuda, comm):
    """That of the call, or of the store: RMAEXT_TIMEOUT is more."""
    stream, may_end = cuda.Stream(), threading.Event()
    out = cuda.Array.from_numpy(np.zeros((1, 2)), stream)
    stream.synchronize()
    with Store(comm, np.ones((2, 2)), timeout=0.4) as store:
        out.launch(lambda _: may_end.wait(30))
        begun = time.monotonic()
        try:
            future = store.prefetch([0], out=out)
            for limit in 0, 0.2:
                with pytest.raises(rmaext.RmaTimeout, match=r"wait for it again|not done"):
                    future.result(limit)
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]4 s"):
                future.result()
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]4 s"):
                Store(MPI.COMM_SELF, out, timeout=0.4)
            assert time.monotonic() - begun < 10
        finally:
            may_end.set()
        stream.synchronize()
        assert future.result(30) is out
        assert (out.to_numpy() == 1).all()
    stream.close()


def test_waiting_in_a_coroutine_stops_no_other(cuda, device, comm):
    """Nor is it done before the records are on the device."""
    stream, may_end = cuda.Stream(), threading.Event()
    out = cuda.Array.from_numpy(np.zeros((1, 2)), stream)
    stream.synchronize()

    async def both(future):
        waiting = asyncio.ensure_future(future_of(future))
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            await asyncio.sleep(0.01)
            assert not future.done()
            assert not waiting.done()
        may_end.set()
        return await waiting

    async def future_of(future):
        return await future

    with Store(comm, np.ones((2, 2)), device=device) as store:
        out.launch(lambda _: may_end.wait(3))
        assert asyncio.run(both(store.prefetch([0], out=out))) is out
        assert (out.to_numpy() == 1).all()
    stream.close()


def test_a_copy_that_fails_is_an_error_of_all_ranks(cuda, comm):
    """As the records of one come to their device; the communicator is as before."""
    if not cuda.SIMULATED:
        pytest.skip("no call fails at will")
    if comm.rank == comm.size - 1:
        cuda.cuda.device_fail(b"cuMemcpyHtoDAsync_v2:2:2")  # behind the zeros
    try:
        with pytest.raises(rmaext.RmaError, match=f"rank {comm.size - 1}: ") as caught:
            Store(comm, np.ones((2, 2)), device="cuda:0")
        assert not isinstance(caught.value, rmaext.SyncError)
    finally:
        cuda.cuda.device_fail(b"")
    Store(comm, np.ones((2, 2)), device="cuda:0").close()


def test_what_does_not_fit_leaves_it_as_it_was(cuda, device, comm):
    out = cuda.Array.from_numpy(np.full((2, 4), 7.0))
    with Store(comm, np.zeros((3, 4)), device=device) as store:
        for call in store.get, store.prefetch:
            for wrong, error in (
                (cuda.Array.from_numpy(np.zeros((2, 4), "f4")), TypeError),
                (cuda.Array.from_numpy(np.zeros((4, 2))), ValueError),
                ([0.0], TypeError),
            ):
                with pytest.raises(error, match="out"):
                    call([0, 1], out=wrong)
            with pytest.raises(rmaext.BoundsError):
                call([0, 99], out=out)
        assert (out.to_numpy() == 7).all()
        assert (store.get([0]) == 0).all()


def test_none_of_some_and_of_all(device, comm):
    count = 2 if comm.rank == 0 else 0
    with Store(comm, np.ones((count, 3)), device=device) as store:
        assert store.get([1, 0]).sum() == 6
        assert host(store.local).shape == (count, 3)
    with Store(comm, np.ones((0, 3)), device=device) as store:
        assert store.get([]).shape == (0, 3)


def test_closed_and_kept(cuda, comm):
    """What was taken of `local` stays."""
    store = Store(comm, np.full((2, 2), comm.rank), device="cuda:0")
    local = store.local
    store.close()
    assert (reader.fetch(local) == comm.rank).all()
    del local
    with pytest.raises(rmaext.ClosedError):
        _ = store.local
    with pytest.raises(rmaext.ClosedError):
        store.get([0], out=cuda.Array.from_numpy(np.zeros((1, 2), int)))


def test_arrays_of_the_library_that_is_there(cuda, comm, monkeypatch):
    from device import little_cupy

    monkeypatch.setitem(sys.modules, "cupy", little_cupy)
    with Store(comm, np.ones((2, 2), "f4"), device="cuda:0") as store:
        assert type(store.local) is little_cupy.ndarray
        assert (reader.fetch(store.local) == 1).all()
