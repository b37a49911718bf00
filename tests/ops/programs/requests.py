# SPDX-License-Identifier: BSD-3-Clause
"""Requests to a target that is stopped for a while.

    mpiexec -n 2 python requests.py SCENARIO [ranges]

Rank 0 stops rank 1, begins requests, and lets it run on. With "ranges" the gets are of ranges.
What waits for a stopped rank goes by `hasty`, a view with a short time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
from mpi4py import MPI
from support.processes import stop, stopped

import rmaext
from rmaext import Request

LIMIT = 1.0
N = 1 << 20  # 8 MiB: more than any socket takes
comm = MPI.COMM_WORLD
pid = comm.bcast(os.getpid(), 1)


def raises(error: type[BaseException], call, least: float = 0.0, most: float = 1.0) -> str:
    """Require an error in this time, in one of a few calls: others use this machine, too."""
    for _ in range(3):
        start = time.monotonic()
        try:
            call()
        except error as exc:
            text = str(exc)
        else:
            raise AssertionError(f"no {error.__name__}")
        took = time.monotonic() - start
        assert least - 0.01 <= took, f"raised after {took:.2f} s, not {least} to {most}"
        if took < most:
            return text
    raise AssertionError(f"raised after {took:.2f} s, not {least} to {most}")


def until_busy(request: Request) -> None:
    """Wait until another thread is in C with a request."""
    end = time.monotonic() + 20
    while not request._op.busy:
        assert time.monotonic() < end
        time.sleep(0.001)


def ten(win: rmaext.Window) -> Request:
    """Begin a get of ten elements, all 7, from the second half."""
    if "ranges" in sys.argv:
        return win.rget_ranges(1, [N, 2 * N - 6], [4, 6])
    return win.rget(1, N, 10)


def late(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """Time limits, the window's and one's own; afterwards it can be waited for again."""
    with stopped(pid):
        begun = time.monotonic()  # and with that the window's time limit
        put, get = hasty.rput(np.full(N, 3), 1), ten(hasty)
        assert not put.test()
        assert not get.test()
        assert not put.done
        assert not Request.testall([put, get])
        assert Request.testany([put, get]) is None
        least = LIMIT - (time.monotonic() - begun)
        for call in (put.wait, get.result, lambda: Request.waitall([put, get])):
            text = raises(rmaext.RmaTimeout, call, least, 2 * LIMIT)
            assert "rank 1" in text, text
        raises(rmaext.RmaTimeout, lambda: Request.waitany([put, get]), LIMIT, 2 * LIMIT)
        raises(rmaext.RmaTimeout, lambda: hasty.flush(1), LIMIT, 2 * LIMIT)
        for limit in (0, 0.02, 0.3, 1.5):
            raises(rmaext.RmaTimeout, lambda limit=limit: get.wait(limit), limit, limit + 0.3)
            some = [put, get]
            wait = lambda limit=limit, some=some: Request.waitany(some, limit)  # noqa: E731
            raises(rmaext.RmaTimeout, wait, limit, limit + 0.3)
        wait = lambda: Request.waitall([put, get], 0.3)  # noqa: E731
        raises(rmaext.RmaTimeout, wait, 0.3, 0.6)
        # another thread waits too long for the same
        thread = threading.Thread(
            target=lambda: raises(rmaext.RmaTimeout, lambda: put.wait(3 * LIMIT), 3 * LIMIT, 20)
        )
        thread.start()
        until_busy(put)
        assert not put.test()
        raises(rmaext.RmaTimeout, lambda: put.wait(0.2), 0.2, 0.5)
        until_busy(put)  # again: the two have waited by turns
        raises(rmaext.SyncError, put.free)
        assert not put.cancel()
        thread.join()
    assert put.wait(20) is None
    assert get.wait(20).tolist() == [7] * 10
    assert (win.get(1, 0, N) == 3).all()


class Ring(Exception):
    pass


def interrupted(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """Ctrl-C in a wait: the request goes on."""

    def ring(*_) -> None:
        assert not requests[0].test()  # it may look at what it interrupts
        raise Ring

    def rings_in(call) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        call()

    signal.signal(signal.SIGALRM, ring)
    with stopped(pid):
        requests = [win.rput(np.full(N, 4), 1), ten(win)]
        calls = (
            requests[0].wait,
            lambda: requests[1].wait(20),
            lambda: Request.waitall(requests),
            lambda: Request.waitany(requests),
        )
        for call in calls:
            raises(Ring, lambda call=call: rings_in(call), 0.2, 5)
            assert not requests[0].done
    Request.waitall(requests, 20)
    assert (win.get(1, 0, N) == 4).all()


def cancelled(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """What the network has not taken can be cancelled."""
    with stopped(pid):
        requests = [win.rput(i, 1, i) for i in range(1, 3000)]
        assert not requests[0].cancel()
        assert requests[-1].cancel()
        assert requests[-100].cancel()
        raises(rmaext.SyncError, requests[-1].wait)
        assert len([request for request in requests if request.done]) == 2
    Request.waitall(requests[:-100])
    win.flush(1)
    want = np.arange(3000)
    want[[-1, -100]] = 7
    want[0] = 7
    assert (win.get(1, 0, 3000) == want).all()


def awaited(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """The loop runs on; the time limit counts; tasks can be cancelled."""

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with stopped(pid):
            put, get = hasty.rput(np.full(N, 5), 1), ten(hasty)
            for _ in range(3):  # others use this machine, too
                ticks, used = 0, time.process_time()
                start = time.monotonic()
                results = await asyncio.gather(put, get, return_exceptions=True)
                took, used = time.monotonic() - start, time.process_time() - used
                assert all(isinstance(one, rmaext.RmaTimeout) for one in results), results
                assert took >= LIMIT - 0.01, took
                if took < 2.5 * LIMIT and ticks > 20 and used < took / 2:
                    break
            else:
                raise AssertionError(f"{ticks} ticks, busy: {used:.2f} of {took:.2f} s")
            for _ in range(3):
                try:
                    await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(wait(put))), 0.05)
                except asyncio.TimeoutError:
                    continue
                raise AssertionError("done")
            tasks = [asyncio.ensure_future(wait(hasty.rget(1, N, 1))) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            later = asyncio.ensure_future(at_last(get))
        assert (await later).tolist() == [7] * 10
        assert await at_last(put) is None
        ticking.cancel()

    async def wait(request: Request) -> object:
        return await request

    async def at_last(request: Request) -> object:
        for _ in range(20):
            with contextlib.suppress(rmaext.RmaTimeout):
                return await request
        raise AssertionError("not done")

    asyncio.run(main())
    assert (win.get(1, 0, N) == 5).all()


def abandoned(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """An error ends the `with` of a window: what was not done raises ClosedError."""
    other = rmaext.Window(comm, np.full(2 * N, 7), timeout=20)
    put, freed = np.full(N, 6), np.ones(N)
    if comm.rank == 0:
        other.get(1, 0, 1)
        comm.Barrier()
        with stopped(pid):
            try:
                with other:
                    put = other.rput(np.full(N, 6), 1)
                    dropped = other.rget(1, 0, N)
                    dropped = ten(other) if "ranges" in sys.argv else dropped
                    raise Ring
            except Ring:
                pass
            raises(rmaext.ClosedError, lambda: other.rget(1))
            assert not put.done
            raises(rmaext.ClosedError, put.wait)
            raises(rmaext.ClosedError, lambda: asyncio.run(asyncio.wait_for(put, 5)))
            assert not dropped.cancel()
            del dropped
            freed = [np.full(N, 9) for _ in range(4)]
    else:
        comm.Barrier()
        try:
            with other:
                comm.Barrier()
                raise Ring
        except Ring:
            pass
    if comm.rank == 0:
        comm.Barrier()
        assert all((one == 9).all() for one in freed)


def dropped(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """Too many that nobody waits for: the next one waits, but not for ever."""
    most = 0
    fabric = win._fabric
    rmaext._fabric.endpoint._PATIENCE = 2.0
    with stopped(pid):
        start = time.monotonic()
        for i in range(3000):
            win.rput(np.full(100, i), 1)
            if i == 1000:
                assert fabric._allowance == 1, "it has waited already"
            most = max(most, fabric._orphans)
        assert most > 2000
        assert 3.9 < time.monotonic() - start < 12, time.monotonic() - start
        assert fabric._orphans <= 3000
    win.flush(1)
    win.rput(1, 1).wait()
    fabric._reap(10_000)
    gc.collect()
    assert not fabric._orphans
    assert not fabric._in_flight
    assert (win.get(1, 0, 100)[1:] == 2999).any()


def left(win: rmaext.Window, hasty: rmaext.Window) -> None:
    """The process leaves while requests are on their way, and a coroutine waits."""
    if comm.rank:
        return
    stop(pid)
    left.kept = [win.rput(np.full(N, 8), 1), *(ten(win) for _ in range(2000))]

    async def main() -> None:
        task = asyncio.ensure_future(wait(left.kept[0]))
        await asyncio.sleep(0.1)
        assert not task.done()
        # before the interpreter ends: rank 1 must take part in MPI_Finalize
        threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)).start()

    async def wait(request: Request) -> None:
        await request

    asyncio.run(main())


def main() -> None:
    scenario = globals()[sys.argv[1]]
    win = rmaext.Window(comm, np.full(2 * N, 7), timeout=20)
    hasty = win.dup(timeout=LIMIT)
    win.fence()
    if comm.rank == 0:
        win.get(1, 0, 1)
    comm.Barrier()
    if comm.rank == 0 or scenario in (abandoned, left):
        scenario(win, hasty)
    if scenario is not left:
        comm.Barrier()
        win.close()
    os.write(1, f"rank {comm.rank}, {sys.argv[1]}: OK\n".encode())


try:
    main()
except BaseException:
    traceback.print_exc()
    comm.Abort(1)
