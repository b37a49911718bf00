# SPDX-License-Identifier: BSD-3-Clause
"""Waits for a device: their limits, signal handlers that raise meanwhile, and what never waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import rmaext
from rmaext._memory import cuda as memory
from rmaext._memory import devices
from rmaext._native._lib import ffi, lib
from rmaext.containers import Store

pytestmark = pytest.mark.mpi
N = 300_000  # elements: more than both halves of a stream's pinned memory


@pytest.fixture
def hung(cuda):
    """Let the next copy hang from then on that is called."""
    if not cuda.SIMULATED:
        pytest.skip("no copy of a GPU hangs when it is told to")
    yield lambda: cuda.cuda.device_hang(2)
    cuda.cuda.device_hang(0)


@pytest.fixture
def win(cuda, comm):
    with rmaext.Window(comm, cuda.Array.from_numpy(np.zeros(N)), timeout=40) as win:
        yield win
        win.fence()


def near(win):
    """Return a rank whose memory a stream of this rank copies."""
    here = win._group.here
    rank = here[(here.index(win._group.rank) + 1) % len(here)]
    if win.route(rank) != "ipc":
        pytest.skip("no stream of this rank copies")
    return rank


OUT = np.empty(N)
CALLS = {
    "put": lambda cuda, win, to: win.put(np.ones(N - 9), to),
    "get": lambda cuda, win, to: win.get(to, out=OUT),
    "rget": lambda cuda, win, to: win.rget(to, out=OUT),
    "put_many": lambda cuda, win, to: win.put_many([to] * 3, [1, 9, 5], 1.0),
    "rput_many": lambda cuda, win, to: win.rput_many([to] * 3, [1, 9, 5], np.ones(3)),
    "get_ranges": lambda cuda, win, to: win.get_ranges(to, [1, 70_000], [3, 66_000]),
    "part": lambda cuda, win, to: win.__setitem__((to, slice(0, 9000, 3)), 1.0),
    "put_notify": lambda cuda, win, to: win.put_notify(np.ones(5), to, slot=1),
    "from a device": lambda cuda, win, to: win.put(cuda.Array.from_numpy(np.ones(5)), to, 7),
    "to a device": lambda cuda, win, to: win.get(to, 0, 5, out=cuda.Array(5, "f8")),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_signal_handler_that_raises(cuda, win, hung, call):
    """It is called amid the wait; nothing of the caller's is used later, and all goes on."""
    to = near(win)
    OUT[:] = -1
    hung()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call(cuda, win, to)
    assert time.monotonic() - begun < 5  # of 40 s
    win.put(np.full(9, 2.0), to, N - 9)  # others go on meanwhile
    assert (win.get(to, N - 9, 9) == 2).all()
    cuda.cuda.device_hang(0)
    end = time.monotonic() + 20
    while True:
        try:
            win.put(np.full(N, 3.0), to)
            break
        except rmaext.RmaTimeout:  # over which it may still come
            assert time.monotonic() < end
            time.sleep(0.01)
    assert (win.get(to) == 3).all()
    assert (OUT == -1).all()


def interrupted(call):
    """A signal handler raises amid it."""
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()


def test_interrupted_copies_pin_no_memory(cuda, win, hung, comm):
    """That may wait for them; who comes when all streams are in use waits for these."""
    to = near(win)
    cuda.cuda.device_hang(1)
    pinned = cuda.cuda.device_calls(b"cuMemHostAlloc")
    for _ in range(6):
        interrupted(lambda: win.get(to, 0, 9))
    origin = cuda.Array(9, float)
    with rmaext.Window(comm, np.zeros(9), timeout=0.3) as host:
        with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
            host.put(origin, comm.rank)
        assert cuda.cuda.device_calls(b"cuMemHostAlloc") == pinned
        timer = threading.Timer(0.5, cuda.cuda.device_hang, [0])
        timer.start()
        assert (win.get(to, 0, 9) == 0).all()  # once the others have ended
        timer.join()
        host.fence()
    assert cuda.cuda.device_calls(b"cuMemHostAlloc") == pinned


def test_a_copy_that_was_late_goes_on_where_it_was(cuda, hung):
    array, values = cuda.Array(N, float), np.random.default_rng(3).random(N)
    with memory.Passage(array, 0.2) as way:
        cuda.cuda.device_hang(1)
        begun = cuda.cuda.device_calls(b"cuMemcpyHtoD")
        way.copy(True, values)
        with pytest.raises(rmaext.RmaTimeout):
            way.finish()
        cuda.cuda.device_hang(0)
        way.finish()
        pieces = -(-values.nbytes // (256 << 10))  # halves of a stream
        assert cuda.cuda.device_calls(b"cuMemcpyHtoD") - begun == pieces
    assert (array.to_numpy() == values).all()


def test_an_owner_whose_streams_are_in_use(cuda, win, hung, comm):
    """It says so, and serves others."""
    to = (comm.rank + 1) % comm.size
    if not all(comm.allgather(win.route(to) == "fabric")):
        pytest.skip("no owner copies")
    with rmaext.Window(comm, np.arange(3.0), timeout=40) as host:
        win.get(to, 0, 1)
        comm.Barrier()
        cuda.cuda.device_hang(1)
        for _ in range(8):
            with pytest.raises(rmaext.RmaTimeout):
                memory.fetch(win.local, 0.05)
        comm.Barrier()
        with pytest.raises(rmaext.RmaError, match="copies that were given up go on there"):
            win.get(to, 0, 1)
        assert host.get(to, 2, 1) == [2]
        comm.Barrier()
        cuda.cuda.device_hang(0)
        end = time.monotonic() + 20
        while True:
            try:
                assert win.get(to, 0, 1) == [0]
                break
            except rmaext.RmaError:
                assert time.monotonic() < end
        host.fence()


def test_no_stream_is_lost(cuda, comm):
    """Wherever a signal handler raises between taking one and having given it back."""

    class Stop(BaseException):
        pass

    class Origin(cuda.Array):  # DLPack's capsules of the tests end with ctypes, amid an exception
        has_all_dtypes = True

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename.endswith("_memory/cuda.py"):
            frame.f_trace_opcodes = True
            if frame.f_code.co_name in ("_take", "close", "_let_go"):
                left -= event == "opcode"
            if left < 0:
                sys.settrace(None)
                raise Stop
        return trace

    if not cuda.SIMULATED:
        pytest.skip("no driver tells what it was asked")
    origin = Origin.from_numpy(np.ones(10))
    with rmaext.Window(comm, np.zeros(10)) as win:
        win.put(origin, comm.rank)
        made, raised = cuda.cuda.device_calls(b"cuStreamCreate"), 0
        while True:
            left = raised
            sys.settrace(trace)
            try:
                win.put(origin, comm.rank)
                break
            except Stop:
                raised += 1
            finally:
                sys.settrace(None)
        assert raised > 30
        assert cuda.cuda.device_calls(b"cuStreamCreate") == made
        assert not memory._in_use
        win.fence()


def test_a_signal_handler_that_uses_the_window(cuda, win, hung, comm):
    to, seen = near(win), []

    def handler(*_):
        win.put(6.0, to, N - 1)
        seen.append(win.get(to, N - 1, 1)[0])
        cuda.cuda.device_hang(0)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        hung()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        win.put(np.full(N - 1, 4.0), to)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [6]
    assert (win.get(to) == [4.0] * (N - 1) + [6.0]).all()


def test_a_handler_that_closes_the_window(cuda, comm, hung):
    """The operation says so."""
    win = rmaext.Window(comm, cuda.Array.from_numpy(np.zeros(N)))
    if win.route(comm.rank) != "ipc" or comm.size > 1:
        win.close()
        pytest.skip("closing is collective")

    def handler(*_):
        win.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        hung()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(rmaext.ClosedError):
            win.put(np.ones(N), comm.rank)
    finally:
        signal.signal(signal.SIGUSR1, before)


# -- limits of origins and results


def held(cuda, dtype=float, may_end=None):
    """Return an array whose stream has a kernel that does not end before the event is set."""
    array = cuda.Array.from_numpy(np.full(10, 7, dtype), cuda.Stream())
    array.stream.synchronize()
    may_end = may_end or threading.Event()

    def kernel(_):
        assert may_end.wait(30)

    array.launch(kernel)
    return array, may_end


def test_an_origin_has_the_limit_of_the_window(cuda, comm):
    with rmaext.Window(comm, np.zeros(10), timeout=0.3) as win:
        origin, may_end = held(cuda)
        begun = time.monotonic()
        try:
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
                win.put(origin, comm.rank)
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
                win.accumulate(origin, comm.rank)
        finally:
            may_end.set()
        assert time.monotonic() - begun < 5  # RMAEXT_TIMEOUT is more
        origin.stream.synchronize()
        win.put(origin, comm.rank)
        assert (win.get(comm.rank) == 7).all()
        win.fence()


def test_a_result_has_the_limit_of_the_window(cuda, comm):
    with rmaext.Window(comm, np.arange(10.0), timeout=0.3) as win:
        out, may_end = held(cuda)
        try:
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
                win.get(comm.rank, out=out)
        finally:
            may_end.set()
        out.stream.synchronize()
        end = time.monotonic() + 20
        while True:
            try:
                assert win.get(comm.rank, out=out) is out
                break
            except rmaext.RmaTimeout:  # the copy that was given up goes on
                assert time.monotonic() < end
                time.sleep(0.01)
        assert (out.to_numpy() == np.arange(10.0)).all()
        win.fence()


WAITS = {
    "wait": lambda request: request.wait(),
    "waitany": lambda request: rmaext.Request.waitany([request]),
    "waitall": lambda request: rmaext.Request.waitall([request]),
    "await": lambda request: asyncio.run(asyncio.wait_for(_awaited(request), 5)),
}


@pytest.mark.parametrize("tested", [False, True], ids=["alone", "tested"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_each_wait_has_the_limit_of_the_window(cuda, comm, wait, tested):
    """Also where another thread looks at the request all the time, and meets the limit first."""
    with rmaext.Window(comm, np.arange(10.0), timeout=0.3) as win:
        if win.route(comm.rank) != "fabric":
            pytest.skip("by memory the call waits, not the request")
        out, may_end = held(cuda)
        request = win.rget(comm.rank, out=out)
        alarm = threading.Timer(5, may_end.set)
        ended = threading.Event()

        def look():
            while not ended.wait(0.001):
                request.test()

        looks = threading.Thread(target=look if tested else ended.wait)
        alarm.start()
        looks.start()
        try:
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
                wait(request)
        finally:
            ended.set()
            may_end.set()
            looks.join()
            alarm.cancel()
        assert request.wait() is out
        win.fence()


# -- what never waits


@pytest.fixture
def begun(cuda, comm):
    """A get by message into an array whose kernel goes on."""
    with rmaext.Window(comm, np.arange(10.0)) as win:
        if win.route(comm.rank) != "fabric":
            pytest.skip("by memory it is done, and copied, at once")
        out, may_end = held(cuda)
        try:
            yield win.rget(comm.rank, out=out), out, may_end
        finally:
            may_end.set()
            out.stream.synchronize()
        win.fence()


@pytest.mark.parametrize("ask", ["done", "test", "testany", "testall"])
def test_a_look_does_not_wait(begun, ask):
    request, out, may_end = begun
    looks = {
        "done": lambda: request.done,
        "test": request.test,
        "testany": lambda: rmaext.Request.testany([request]) is not None,
        "testall": lambda: rmaext.Request.testall([request]),
    }
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        start = time.monotonic()
        assert not looks[ask]()
        assert time.monotonic() - start < 5  # the kernel takes 30 s
    with pytest.raises(rmaext.RmaTimeout):
        request.wait(timeout=0.05)
    with pytest.raises(rmaext.RmaTimeout):
        rmaext.Request.waitany([request], timeout=0.05)
    may_end.set()
    end = time.monotonic() + 20
    while not looks[ask]():
        assert time.monotonic() < end
    assert request.wait() is out
    assert (out.to_numpy() == np.arange(10.0)).all()


def test_many_requests_that_are_looked_at(cuda, comm):
    """They take turns; whoever waits need not, and a coroutine has the limit of the window."""
    with rmaext.Window(comm, np.arange(10.0), timeout=1) as win:
        if win.route(comm.rank) != "fabric":
            pytest.skip("by memory it is done, and copied, at once")
        may_end = threading.Event()
        outs = [held(cuda, float, may_end)[0] for _ in range(20)]
        spare = cuda.Array(10, float)
        win.get(comm.rank, out=spare)  # the streams are there then
        made = cuda.cuda.device_calls(b"cuStreamCreate") if cuda.SIMULATED else 0
        requests = [win.rget(comm.rank, out=out) for out in outs]
        win.flush()
        for _ in range(3):
            assert not any(request.test() for request in requests)
        if cuda.SIMULATED:
            win.get(comm.rank, out=spare)  # there is one for it, and no memory to be pinned
            assert cuda.cuda.device_calls(b"cuStreamCreate") == made
        with pytest.raises(rmaext.RmaTimeout, match="others are copied"):
            asyncio.run(_awaited(requests[-1]))
        may_end.set()
        assert requests[-2].wait() is outs[-2]
        end = time.monotonic() + 20
        while not all(request.test() for request in requests):
            assert time.monotonic() < end
        for out in outs:
            assert (out.to_numpy() == np.arange(10.0)).all()
            out.stream.close()
        win.fence()


@pytest.fixture(params=["request", "prefetch"])
def bring(request, cuda, comm):
    """Return what brings ten numbers to an array, in a limit of 0.3 s: all but the last copy."""

    def begin(out):
        if request.param == "prefetch":
            brought = it.prefetch([comm.rank], flat=True, out=out)
            one = brought._request
        else:
            one = brought = it.rget(comm.rank, out=out)
        while one._goes_on():
            it.flush() if one is brought else one.test()
        return brought

    if request.param == "prefetch":
        with Store(comm, np.arange(10.0)[None], timeout=0.3) as it:
            yield begin
        return
    with rmaext.Window(comm, np.arange(10.0), timeout=0.3) as it:
        if it.route(comm.rank) != "fabric":
            pytest.skip("by memory it is done, and copied, at once")
        yield begin
        it.fence()


def ended(brought):
    while True:
        with contextlib.suppress(rmaext.RmaTimeout):  # it goes on
            return brought.result()


def test_who_is_late_at_the_look_of_another(cuda, bring):
    """Has the error at its own next look."""
    may_end = threading.Event()
    outs = [held(cuda, float, may_end)[0] for _ in range(devices._MOST + 1)]
    begun = [bring(out) for out in outs]

    async def late():
        waits = [one.__await__() for one in begun]
        assert all(map(next, waits))
        await asyncio.sleep(0.4)
        with pytest.raises(rmaext.RmaTimeout, match="others are copied"):
            next(waits.pop())
        for one in waits:
            with pytest.raises(rmaext.RmaTimeout, match=r"not ended in 0[.]3 s"):
                next(one)

    try:
        asyncio.run(late())
    finally:
        may_end.set()
    for out, one in zip(outs, begun, strict=True):
        ended(one)
        assert (out.to_numpy() == np.arange(10.0)).all()
        out.stream.close()


def test_who_looks_seldom(cuda, bring, monkeypatch):
    """It is not late where others have come and gone meanwhile, but has its limit from then on."""
    now = [time.monotonic()]
    monkeypatch.setattr(devices, "time", SimpleNamespace(monotonic=lambda: now[0]))
    may_end, may_end_later = threading.Event(), threading.Event()
    first = [held(cuda, float, may_end)[0] for _ in range(devices._MOST)]
    later = [held(cuda, float, may_end_later)[0] for _ in range(devices._MOST + 1)]
    out = later.pop()
    brought = bring(out)

    async def looks():
        begun = [bring(one) for one in first]
        assert all(next(one.__await__()) for one in begun)
        wait = brought.__await__()
        assert next(wait)
        await asyncio.sleep(0.01)
        now[0] += 0.4
        may_end.set()
        assert all(map(ended, begun))
        begun[:] = map(bring, later)
        assert all(next(one.__await__()) for one in begun)
        assert next(wait)
        await asyncio.sleep(0.01)
        now[0] += 0.4
        with pytest.raises(rmaext.RmaTimeout, match="others are copied"):
            next(wait)

    try:
        asyncio.run(looks())
    finally:
        may_end.set()
        may_end_later.set()
    ended(brought)
    assert (out.to_numpy() == np.arange(10.0)).all()
    for one in [out, *first, *later]:
        one.stream.close()


def test_threads_that_look_at_requests_of_their_own(cuda, comm):
    """Each look at the others', too, and these come and go meanwhile."""

    def looks(outs):
        cuda.begin()
        for _ in range(20):
            requests = [win.rget(comm.rank, out=out) for out in outs]
            while sum(request.test() for request in requests) < len(requests):
                pass
        return sum(request.result() is out for request, out in zip(requests, outs, strict=True))

    interval = sys.getswitchinterval()
    with rmaext.Window(comm, np.arange(10.0)) as win, ThreadPoolExecutor(3) as pool:
        outs = [cuda.Array(10, float, cuda.Stream()) for _ in range(18)]
        sys.setswitchinterval(1e-6)
        try:
            assert sum(pool.map(looks, (outs[n::3] for n in range(3)), timeout=120)) == 18
        finally:
            sys.setswitchinterval(interval)
        for out in outs:
            assert (out.to_numpy() == np.arange(10.0)).all()
            out.stream.close()
        win.fence()


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_looks_beside_a_copy_that_was_interrupted(cuda, comm, hung, wait):
    """No look waits, nor says that it is late; who waits has the limit of the window."""
    with rmaext.Window(comm, np.arange(10.0), timeout=30) as win:
        if win.route(comm.rank) != "fabric":
            pytest.skip("by memory it is done, and copied, at once")
        may_end = threading.Event()
        origin, *outs = (held(cuda, float, may_end)[0] for _ in range(7))
        interrupted(lambda: win.put(origin, comm.rank))
        requests = [win.rget(comm.rank, out=out) for out in outs]
        win.flush()
        for _ in range(3):
            assert not any(request.test() for request in requests)
        assert not any(request._result.late for request in requests)
        timer = threading.Timer(1, may_end.set)
        timer.start()
        win.put(cuda.Array.from_numpy(np.arange(10.0) + 1), comm.rank)
        timer.join()
        for request, out in zip(requests, outs, strict=True):
            wait(request)
            assert (out.to_numpy() == np.arange(10.0)).all()
            out.stream.close()
        win.fence()


def test_a_coroutine_lets_others_run(begun):
    request, out, may_end = begun

    async def other():
        await asyncio.sleep(0.1)
        may_end.set()

    async def both():
        return (await asyncio.gather(_awaited(request), other()))[0]

    assert asyncio.run(both()) is out
    assert (out.to_numpy() == np.arange(10.0)).all()


async def _awaited(request):
    return await request


def test_a_request_that_is_freed(begun):
    request, out, may_end = begun
    assert not request.test()
    request.free()
    may_end.set()
    out.stream.synchronize()
    with pytest.raises(rmaext.SyncError, match="freed"):
        request.wait()


def test_a_result_over_one_that_was_given_up(cuda, begun, comm):
    """However often it is looked at, it needs one stream, and is copied once that is over."""
    first, out, may_end = begun
    while first._goes_on():
        first.test()
    assert not first.test()
    made = cuda.cuda.device_calls(b"cuStreamCreate")
    with rmaext.Window(comm, np.arange(10.0) + 1) as win:
        request = win.rget(comm.rank, out=out)
        first.free()
        win.flush()
        for _ in range(20):
            assert not request.test()
        assert cuda.cuda.device_calls(b"cuStreamCreate") == made
        may_end.set()
        out.stream.synchronize()
        end = time.monotonic() + 20
        while not request.test():
            assert time.monotonic() < end
        assert (out.to_numpy() == np.arange(10.0) + 1).all()
        win.fence()


def test_a_request_in_a_forked_child(begun):
    """It has an error there, and nothing is done to its stream: a thread may have had its lock."""
    request, _, _ = begun
    while request._goes_on() or request._result.way is None:
        request.test()
    child = os.fork()
    if not child:
        called = []
        sys.setprofile(lambda _, event, it: event == "c_call" and called.append(it.__name__))
        try:
            request.wait()
        except rmaext.ClosedError:
            os._exit(any("_stream_" in name or "_device_" in name for name in called))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert not request.done


# -- how often the driver is called


def calls(cuda, call):
    before = cuda.cuda.device_calls(b"cuMemcpy")
    call()
    return cuda.cuda.device_calls(b"cuMemcpy") - before


def test_copies_of_a_part(cuda, win, hung):
    """Rows at equal distances are one copy, and so is what lies in a row."""
    to = near(win)
    assert calls(cuda, lambda: win.__setitem__((to, slice(10, 3010, 3)), 5.0)) == 1
    assert calls(cuda, lambda: win.__getitem__((to, slice(10, 3010, 3)))) == 1
    offsets = np.arange(10, 3010, 3)
    assert calls(cuda, lambda: win.put_many([to] * 1000, offsets, np.arange(1000.0))) == 1
    wanted = np.zeros(3100)
    wanted[10:3010:3] = np.arange(1000)
    assert (win.get(to, 0, 3100) == wanted).all()
    assert (win.get_many([to] * 1000, offsets) == np.arange(1000)).all()
    assert calls(cuda, lambda: win.put_ranges(to, [20, 25, 30], [5, 5, 5], np.ones(15))) == 1
    wanted[20:35] = 1
    assert (win.get(to, 0, 3100) == wanted).all()


def test_places_in_any_order(cuda, win, hung):
    """Each is a copy, the last of those to one place the one that stays."""
    to, chosen = near(win), np.random.default_rng(5)
    offsets = chosen.integers(0, 4000, 3000)
    values = chosen.random(3000)
    wanted = np.zeros(4000)
    for offset, value in zip(offsets, values, strict=True):
        wanted[offset] = value
    assert calls(cuda, lambda: win.put_many([to] * 3000, offsets, values)) <= 3000
    assert (win.get(to, 0, 4000) == wanted).all()
    assert (win.get_many([to] * 3000, offsets) == wanted[offsets]).all()
    lengths = chosen.integers(0, 40, 300)
    starts = chosen.permutation(300) * 40
    win.put_ranges(to, starts, lengths, np.arange(float(lengths.sum())))
    assert (win.get_ranges(to, starts, lengths) == np.arange(float(lengths.sum()))).all()


def test_streams_are_made_with_the_window(cuda, win, hung):
    """Pinning memory may wait for the application's kernels."""
    before = cuda.cuda.device_calls(b"cuMemHostAlloc"), cuda.cuda.device_calls(b"cuStreamCreate")
    to = near(win)
    win.put(np.ones(N), to)
    win.accumulate(1.0, to)
    win.get_many([to] * 2, [1, 2])
    assert before == (
        cuda.cuda.device_calls(b"cuMemHostAlloc"),
        cuda.cuda.device_calls(b"cuStreamCreate"),
    )


def test_the_driver_is_opened_once(cuda, win):
    """It is not looked for again, under whatever name."""
    where = ffi.cast("void *", win.local.address)
    assert lib.rmaext_device_find(b"/nowhere/libcuda.so.1", where, 8, ffi.new("int *")) == 0
