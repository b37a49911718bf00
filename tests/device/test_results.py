# SPDX-License-Identifier: BSD-3-Clause
"""Results that are for arrays on a device: copied there once, at the end, and not before."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mpi4py import MPI

import rmaext

pytestmark = pytest.mark.mpi
N = 6
REQUESTS = {
    "rget": lambda win, rank, out: win.rget(rank, 2, out=out),
    "rget key": lambda win, rank, out: win.rget(rank, key=slice(2, 2 + N), out=out),
    "rget_many": lambda win, rank, out: win.rget_many(rank, np.arange(2, 2 + N), out=out),
    "rget_ranges": lambda win, rank, out: win.rget_ranges(rank, [2, 5], [3, 3], out=out),
}
CALLS = {
    "get": lambda win, rank, out: win.get(rank, 2, out=out),
    "get_notify": lambda win, rank, out: win.get_notify(rank, 2, out=out),
    "get_many": lambda win, rank, out: win.get_many(rank, np.arange(2, 2 + N), out=out),
    "get_ranges": lambda win, rank, out: win.get_ranges(rank, [2, 5], [3, 3], out=out),
}
each_request = pytest.mark.parametrize("begin", REQUESTS.values(), ids=REQUESTS)


@pytest.fixture(params=["device", "host"])
def window(request, cuda, comm):
    """Over 0.0, 1.0, ...: of a device or of the host."""
    values = np.arange(10.0)
    memory = cuda.Array.from_numpy(values) if request.param == "device" else values
    with rmaext.Window(comm, memory) as win:
        yield win
        win.fence()


@pytest.fixture
def out(cuda):
    """Of sevens, on a stream of its own."""
    stream = cuda.Stream()
    made = cuda.Array.from_numpy(np.full(N, 7.0), stream)
    yield made
    stream.close()


WANTED = np.arange(2.0, 2.0 + N)


async def _awaited(request):
    return await request


ENDS = {
    "wait": lambda request, out: request.wait() is out,
    "result": lambda request, out: request.result() is out,
    "done": lambda request, out: _until(lambda: request.test() and request.done),
    "done alone": lambda request, out: _until(lambda: request.done),
    "waitany": lambda request, out: rmaext.Request.waitany([request]) == 0,
    "waitall": lambda request, out: rmaext.Request.waitall([request])[0] is out,
    "testany": lambda request, out: _until(lambda: rmaext.Request.testany([request]) == 0),
    "testall": lambda request, out: _until(lambda: rmaext.Request.testall([request])),
    "await": lambda request, out: asyncio.run(_awaited(request)) is out,
}


def _until(ended):
    while not ended():
        pass
    return True


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@each_request
def test_it_is_there_once_the_request_is_done(window, comm, out, begin, end):
    request = begin(window, (comm.rank + 1) % comm.size, out)
    assert end(request, out)
    assert (out.to_numpy() == WANTED).all()
    assert request.wait() is out


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_returns_the_array(window, comm, out, call):
    assert call(window, (comm.rank + 1) % comm.size, out) is out
    assert (out.to_numpy() == WANTED).all()


@each_request
def test_a_request_waits_for_no_kernel(cuda, comm, out, begin):
    """That of the array runs yet when it is begun; the result comes behind it."""
    may_end = threading.Event()

    def kernel(values):
        assert may_end.wait(30)
        values[:] = 9.0

    with rmaext.Window(comm, cuda.Array.from_numpy(np.arange(10.0))) as win:
        out.launch(kernel)
        target = (comm.rank + 1) % comm.size
        if win.route(target) != "fabric":  # the call copies, and comes behind the kernel
            may_end.set()
        request = begin(win, target, out)
        assert not request._goes_on() or not request.cancel()
        may_end.set()
        assert request.wait() is out
        assert (out.to_numpy() == WANTED).all()
        win.fence()


@each_request
def test_it_is_copied_once(window, comm, out, begin):
    """What the program writes after the end stays, whoever asks the request again."""
    request = begin(window, comm.rank, out)
    threads = [threading.Thread(target=request.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    request.wait()
    out.launch(lambda values: values.__setitem__(slice(None), 5.0))
    for thread in threads:
        thread.join()
    assert request.done
    assert request.wait() is out
    assert (out.to_numpy() == 5.0).all()


@pytest.mark.parametrize("within", ["handler", "thread"])
def test_a_wait_within_a_wait(cuda, comm, within):
    """Amid the copy there: it is made once, and what was written after the inner wait stays."""

    class Interrupted(cuda.Array):
        inner = None

        def __dlpack__(self, *, stream=None, **how):
            inner, self.inner = self.inner, None
            if inner is not None:
                signal.raise_signal(signal.SIGUSR1)
            return super().__dlpack__(stream=stream, **how)

    stream = cuda.Stream()
    out = Interrupted.from_numpy(np.full(N, 7.0), stream)
    memory = cuda.Array.from_numpy(np.arange(10.0))
    with rmaext.Window(comm, memory) as win, ThreadPoolExecutor(1) as pool:
        request = win.rget(comm.rank, 2, out=out)

        def wait():
            cuda.begin()
            assert request.wait() is out
            out.launch(lambda values: values.__setitem__(slice(None), 5.0))

        def handle(*_):
            if within == "handler":
                wait()
            else:
                begun.append(pool.submit(wait))

        begun, out.inner = [], wait
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            assert request.wait() is out
        finally:
            signal.signal(signal.SIGUSR1, before)
        if win.route(comm.rank) == "fabric":  # else it was there before
            assert out.inner is None
            for one in begun:
                one.result(60)
            assert (out.to_numpy() == 5.0).all()
        win.fence()
    stream.close()


@pytest.fixture
def kept(cuda, comm):
    """A request for an array that keeps who copies there, until the event is set; and both."""
    amid, may_end = threading.Event(), threading.Event()

    class Keeps(cuda.Array):
        def __dlpack__(self, *, stream=None, **how):
            if stream != -1:
                amid.set()
                assert may_end.wait(30)
            return super().__dlpack__(stream=stream, **how)

    with rmaext.Window(comm, np.arange(10.0), timeout=0.5) as win:
        if win.route(comm.rank) != "fabric":
            pytest.skip("by memory the call copies")
        out = Keeps.from_numpy(np.full(N, 7.0), cuda.Stream())
        request = win.rget(comm.rank, 2, out=out)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(request.wait, 30)
            assert amid.wait(30)
            try:
                yield request, may_end, waits
            finally:
                may_end.set()
        out.stream.close()
        win.fence()


def test_free_amid_the_copy(kept):
    """The thread that copies has the stream in use."""
    request, may_end, waits = kept
    with pytest.raises(rmaext.SyncError, match="a thread waits"):
        request.free()
    assert not request.done
    may_end.set()
    assert (waits.result(30).to_numpy() == WANTED).all()
    request.free()


def test_who_waits_for_the_thread_that_copies_has_a_limit(kept):
    request, may_end, waits = kept
    with pytest.raises(rmaext.RmaTimeout, match=r"in its copy for 0[.]5 s"):
        request.wait()
    may_end.set()
    assert request.wait() is waits.result(30)


def test_every_handler_that_raises(cuda, comm, out):
    """At no line of the copy does that keep others from it."""

    class Stop(BaseException):
        pass

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename.endswith("_memory/devices.py"):
            left -= event == "line"
            if left < 0:
                raise Stop
        return trace

    with rmaext.Window(comm, np.arange(10.0), timeout=5) as win, ThreadPoolExecutor(1) as pool:
        raised = 0
        while True:
            request, left = win.rget(comm.rank, 2, out=out), raised
            win.flush()
            sys.settrace(trace)
            try:
                request.wait()
                break
            except Stop:
                raised += 1
            finally:
                sys.settrace(None)
            assert pool.submit(request.wait).result(30) is out
            assert (out.to_numpy() == WANTED).all()
        assert raised > 5 or win.route(comm.rank) != "fabric"
        win.fence()


def test_a_device_that_hangs_at_the_end(cuda, comm, out):
    """It is RmaTimeout, the request goes on, and what is written after its end stays."""
    if not cuda.SIMULATED:
        pytest.skip("no device hangs at will")
    memory = cuda.Array.from_numpy(np.arange(10.0))
    with rmaext.Window(comm, memory, timeout=1) as win:
        request = win.rget(comm.rank, 2, out=out)
        if win.route(comm.rank) != "fabric":  # it is there already
            win.fence()
            return
        comm.Barrier()
        while request._goes_on():
            request._op.wait(0)
        cuda.cuda.device_hang(1)
        try:
            for _ in range(2):
                with pytest.raises(rmaext.RmaTimeout, match="has not ended in 1 s"):
                    request.wait()
        finally:
            cuda.cuda.device_hang(0)
        assert request.wait() is out
        for _ in range(20):
            out.launch(lambda values: values.__setitem__(slice(None), 5.0))
            time.sleep(0.002)
            assert (out.to_numpy() == 5.0).all()
        win.fence()


@each_request
def test_what_fails_leaves_it_as_it_was(cuda, comm, out, begin):
    memory = cuda.Array.from_numpy(np.arange(10.0))
    with rmaext.Window(comm, memory) as win:
        with pytest.raises(rmaext.BoundsError):
            begin(win, comm.size, out)
        target = (comm.rank + 1) % comm.size
        win.fence()
        if comm.size > 1 and comm.allreduce(win.route(target) == "ipc", MPI.LOR):
            return  # CUDA leaves undefined what others find in freed memory
        memory.free()
        comm.Barrier()
        with pytest.raises(rmaext.RmaError, match=r"was (it )?freed"):
            begin(win, target, out).wait()
        assert (out.to_numpy() == 7.0).all()
        comm.Barrier()


@each_request
def test_an_array_that_is_gone(cuda, comm, window, begin):
    """Before it is begun, and at the end: the request says so each time, and all goes on."""
    out = cuda.Array.from_numpy(np.zeros(N))
    request = begin(window, comm.rank, out)
    out.free()
    if "done" not in repr(request):  # else it was there before
        for _ in range(2):
            with pytest.raises(rmaext.RmaError, match="was it freed"):
                request.wait()
    with pytest.raises(rmaext.RmaError, match="was it freed"):
        begin(window, comm.rank, out)
    assert (window.get(comm.rank, 2, N) == WANTED).all()


def test_an_array_with_errors_of_its_own(cuda, comm):
    class Broken(cuda.Array):
        def __dlpack__(self, *, stream=None, **_):
            if stream == -1:
                return super().__dlpack__(stream=stream)
            raise cuda.CudaError("cuEventRecord", 700)

    memory = cuda.Array.from_numpy(np.zeros(N))
    with rmaext.Window(comm, memory) as win:
        if win.route(comm.rank) == "ipc":  # the call copies
            with pytest.raises(cuda.CudaError, match="cuEventRecord"):
                win.rget(comm.rank, 0, out=Broken(N, "f8"))
            return
        request = win.rget(comm.rank, 0, out=Broken(N, "f8"))
        for _ in range(2):
            with pytest.raises(cuda.CudaError, match="cuEventRecord"):
                request.wait()
        win.fence()


@pytest.mark.parametrize("name", ["get", "get_many", "get_ranges"])
def test_nowhere_leaves_it_as_it_was(cuda, comm, out, name):
    null = MPI.PROC_NULL
    with rmaext.Window(comm, cuda.Array.from_numpy(np.arange(10.0)), proc_null=True) as win:
        if name == "get":
            assert win.get(null, 2, out=out) is out
        elif name == "get_many":
            assert win.get_many([null, 0, null, 0, null, null], 3, out=out) is out
        else:
            assert win.get_ranges([null, 0], [2, 3], [5, 1], out=out) is out
        wanted = {"get": [7.0] * N, "get_many": [7.0, 3.0, 7.0, 3.0, 7.0, 7.0]}
        wanted["get_ranges"] = [7.0] * 5 + [3.0]
        assert out.to_numpy().tolist() == wanted[name]
        win.fence()


def test_what_is_no_result(window, cuda, comm):
    for wrong, error in (
        (cuda.Array.from_numpy(np.zeros(N, "f4")), TypeError),
        (cuda.Array.from_numpy(np.zeros(N + 20)), rmaext.BoundsError),
    ):
        with pytest.raises(error):
            window.get(comm.rank, 0, out=wrong)
        with pytest.raises(error):
            window.rget(comm.rank, 0, out=wrong)
