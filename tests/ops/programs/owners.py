# SPDX-License-Identifier: BSD-3-Clause
"""What keeps buffers for C, in the hands of signal handlers, other threads and the end.

    mpiexec -n 2 python owners.py

Rank 0 does it all; rank 1 is stopped for a while. All goes over the network.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mpi4py import MPI
from support.processes import stopped

import rmaext
from rmaext._fabric.endpoint import Endpoint
from rmaext._memory import arrays
from rmaext._native._lib import ffi, lib
from rmaext._native.cmethods import Owner
from rmaext._runtime import lifetime

N = 12000
comm = MPI.COMM_WORLD
pid = comm.bcast(os.getpid(), 1)
win = rmaext.Window(comm, np.full(2 * N, 7.0), timeout=20)
hasty = win.dup(timeout=0.5)
pool = ThreadPoolExecutor(4)
win.fence()


def a_handler_waits_for_the_same() -> None:
    """A handler may end the request that the main thread waits for, wherever that is."""
    waited = 0

    def handler(*_: object) -> None:
        nonlocal waited
        if (request := current) is not None:
            assert request.wait()[0] == 7
            waited += 1

    current: rmaext.Request | None = None
    signal.signal(signal.SIGALRM, handler)
    end, n = time.monotonic() + 3, 0
    while time.monotonic() < end or not waited:
        n += 1
        current = win.rget(1, 0, 2000)
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (n % 120 + 1))
        assert current.wait()[0] == 7
        signal.setitimer(signal.ITIMER_REAL, 0)
        current = None
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


class Rings(Exception):
    pass


def a_handler_raises_wherever_it_is() -> None:
    """Other threads may use what a call of this one was interrupted in."""

    def handler(*_: object) -> None:
        raise Rings

    rung = 0
    signal.signal(signal.SIGALRM, handler)
    for n in range(3000):
        request = win.rget(1, 0, 2000)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-6 * (n % 60 + 1))
            for _ in range(5):
                request.test()
                request.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Rings:
            rung += 1
        with contextlib.suppress(rmaext.SyncError):  # it was cancelled
            assert pool.submit(request.wait, 10).result()[0] == 7
    assert rung > 30
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def threads_wait_for_one() -> None:
    """All have its result, and they sleep until then."""
    with stopped(pid):
        request = win.rget(1, 0, 2000)
        waits = [pool.submit(request.wait, 20) for _ in range(4)]
        before = time.process_time()
        time.sleep(1)
        assert time.process_time() - before < 0.5
        assert not any(it.done() for it in waits)
    first, *others = (it.result() for it in waits)
    assert first[0] == 7
    assert all(it is first for it in others)


def late(begin: Callable[[Owner], int], buffers: tuple[object, ...]) -> Owner:
    """Return an owner of what has failed, after its time limit."""
    op = Owner(hasty._fabric, hasty._handle, buffers)
    code = begin(op)
    assert code == lib.RMAEXT_PENDING
    assert begin(op) == code, "it was begun before"
    while code == lib.RMAEXT_PENDING:
        code = op.wait(lib.RMAEXT_SLICE)
    assert code == -errno.ETIMEDOUT
    return op


def an_error_is_told_again() -> None:
    """Whoever lost it to a signal asks once more: it does not become a success."""
    value, where = np.ones(1), np.ones(1, np.int64)
    one = arrays.call_of(lib.RMAEXT_UPDATE, 1, value, None, np.empty(1), lib.RMAEXT_SUM)
    one.type, one.rank = lib.RMAEXT_DOUBLE, 1
    win.get(1, 0, 1)
    there = ffi.from_buffer("int64_t[]", where)
    asked = {"kind": lib.RMAEXT_GET, "unit": 8, "count": 1, "ranks": there, "offsets": there}
    many = ffi.new("struct rmaext_places_call *", asked)
    many.results = arrays.address(value)
    with stopped(pid):
        for op in (
            late(lambda op: op.start(one), (value,)),
            late(lambda op: op.start_many(many), (where, value)),
        ):
            for _ in range(3):
                assert op.wait(0) == -errno.ETIMEDOUT
            op.release()
            op.release()
            assert op.wait(0) == -errno.ETIMEDOUT
            assert not op.goes_on

    gone = Owner(hasty._fabric, hasty._handle, (value,))
    gone.release()
    assert gone.start(one) == -errno.ESHUTDOWN, "nobody would keep its buffers"


def requests_outlive_their_windows() -> None:
    """An operation of a view is its window's: that stays, until nobody has one any more."""
    own = rmaext.Window(comm, np.zeros(8))
    view = own.dup()
    own.fence()
    kept = [view.rget_accumulate(np.ones(2), 1 - comm.rank) for _ in range(20)]
    own.flush()
    own.close()
    del view, own
    kept.clear()


def what_was_freed_has_no_rank() -> None:
    """Another thread may ask, at any time, whom a request of many waits for."""
    ends = threading.Event()

    def ask() -> None:
        while not ends.is_set():
            assert op.rank in (-1, 0, 1)

    for _ in range(20):
        with stopped(pid):
            request = win.rget_ranges([0, 1], [0, N], [2000, 2000])
            op = request._op
            asker = threading.Thread(target=ask)
            asker.start()
            time.sleep(0.001)
            request.free()
            assert op.rank == -1
        win.flush()
        ends.set()
        asker.join()
        ends.clear()


def an_interrupted_close_keeps_the_buffers() -> None:
    """What C may still use at the end stays, also if a signal handler raises amid the end."""
    close = Endpoint.close

    def interrupted(self: Endpoint) -> None:
        Endpoint.close = close
        raise KeyboardInterrupt

    with stopped(pid):
        fabric, request = win._fabric, win.rget(1, 0, N)
        buffer = weakref.ref(request._result)
        assert not request.test()
        del request
        assert fabric._orphans == 1
        Endpoint.close = interrupted
        try:
            lifetime._shut_down()
        except KeyboardInterrupt:
            pass
        assert fabric._stuck
        assert fabric._orphans == 1
        assert buffer() is not None


requests_outlive_their_windows()
if comm.rank == 0:
    a_handler_waits_for_the_same()
    a_handler_raises_wherever_it_is()
    threads_wait_for_one()
    pool.shutdown()
    an_error_is_told_again()
    what_was_freed_has_no_rank()
    comm.send(None, 1)
    an_interrupted_close_keeps_the_buffers()
    os.write(1, b"rank 0: OK\n")
    comm.send(None, 1)
else:
    comm.recv(source=0)
    comm.recv(source=0)
    os.write(1, b"rank 1: OK\n")
lifetime._shut_down()
MPI.Finalize()
os._exit(0)
