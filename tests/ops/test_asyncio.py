# SPDX-License-Identifier: BSD-3-Clause
"""Requests that coroutines await."""

from __future__ import annotations

import asyncio
import gc
import threading

import launch
import numpy as np
import pytest
from support.guarded import guarded, neighbour


async def waiting(request):
    return await request


def test_gather(comm):
    async def main():
        first = await win.rget(to, 5, 1)
        assert first.tolist() == [5]
        assert await win.rput(first, to, 1000) is None
        assert await win.rfetch_op(2, to, 1001) == 0
        requests = [win.rget(to, at, 1) for at in range(1000)]
        # one that two tasks wait for, and one that is waited for again
        requests += [requests[3], requests[4]]
        return await asyncio.gather(*requests)

    with guarded(comm, 1002, "i8") as win:
        win.local[:1000] = np.arange(1000)
        win.local[1000:] = 0
        comm.Barrier()
        to = neighbour(comm)
        old = 0 if win.fabric is None else win._fabric._in_flight
        got = asyncio.run(main())
        assert [one[0] for one in got] == [*range(1000), 3, 4]
        assert win.fabric is None or win._fabric._in_flight <= old
        comm.Barrier()


def test_cancelled_tasks(comm):
    """The operations go on, with their buffers."""

    async def main():
        tasks = [
            asyncio.create_task(waiting(win.rput(np.full(4000, i), to, 4000 * i)))
            for i in range(100)
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(results):
            # done at once on other routes, and then not cancelled
            assert result is None or (i % 2 == 0 and isinstance(result, asyncio.CancelledError))
        del tasks, results
        gc.collect()
        return await win.rget(to, 0, 1)

    with guarded(comm, 400_000, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        asyncio.run(main())
        win.fence()
        assert (win.local == np.repeat(np.arange(100), 4000)).all()
        comm.Barrier()


def test_several_loops(comm):
    """A loop in each of four threads, and one that ends too early."""

    def run(number):
        async def main():
            for i in range(20):
                at = 100 * number + i
                got = await asyncio.gather(*(win.rget(to, at, 1) for _ in range(10)))
                assert all(one[0] == at for one in got)

        asyncio.run(main())
        passed.append(number)

    async def hasty():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(win.rget(to) for _ in range(50)), asyncio.sleep(9)), 0.001
            )

    with guarded(comm, 400, "i8", fill=np.arange(400)) as win:
        comm.Barrier()
        to = neighbour(comm)
        passed = []
        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(hasty())
        for thread in threads:
            thread.join()
        assert sorted(passed) == [0, 1, 2, 3]
        comm.Barrier()


# -- targets that do not answer --------------------------------------------------------

FABRIC = {"RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}

# Rank 1 is stopped for a while, or dies.
STOPPED = """
    import asyncio, gc, os, signal, threading, time, traceback, weakref
    from mpi4py import MPI
    import numpy as np
    import rmaext
    from support.processes import stop

    comm = MPI.COMM_WORLD
    win = rmaext.Window(comm, np.arange(1000))
    pids = comm.allgather(os.getpid())
    later = threading.Timer(0.5, os.kill, (pids[1], signal.SIGCONT))

    async def waiting(request):
        return await request
"""


def test_function_that_raises_in_the_watcher(mpirun):
    """It is reported, and the coroutines that wait beside it, and later ones, go on."""
    code = (
        STOPPED
        + """
    reports = []
    threading.excepthook = lambda report: reports.append(report.exc_value)

    def fails(error):
        raise ZeroDivisionError(error)

    if comm.rank == 0:
        async def main():
            other = win.rget(1, 7, 1)
            win.rget(1)._then(fails)
            later.start()
            return await asyncio.gather(other, win.rget(1, 8, 1))
        stop(pids[1])
        assert [int(one[0]) for one in asyncio.run(main())] == [7, 8]
        end = time.monotonic() + 10
        while not reports:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert isinstance(reports[0], ZeroDivisionError)
        stop(pids[1])
        again = threading.Timer(0.5, os.kill, (pids[1], signal.SIGCONT))
        again.start()
        assert asyncio.run(asyncio.wait_for(waiting(win.rget(1, 9, 1)), 10))[0] == 9
        done = win.rget(1)
        done.wait()
        done._then(fails)  # at once, in this thread: reported too
        assert len(reports) == 2
    win.fence()
    win.close()
    """
    )
    done = mpirun(2, code, env=FABRIC, timeout=40)
    assert done.returncode == 0, done.stderr


def test_error_that_is_raised_again(mpirun):
    """Each time it is another object: no traceback grows, and nothing that it saw stays alive."""
    code = (
        STOPPED
        + """
    if comm.rank == 1:
        time.sleep(600)
    win.get(1, 0, 1)  # connected
    stop(pids[1])
    request = win.rget(1)
    os.kill(pids[1], signal.SIGKILL)

    def once():
        big = np.zeros(10**6)
        try:
            request.wait()
        except rmaext.PeerLostError as error:
            assert error.rank == 1
            return weakref.ref(big), len(traceback.extract_tb(error.__traceback__)), str(error)
        raise AssertionError("no error")

    got = [once() for _ in range(10)]
    assert len({(depth, text) for _, depth, text in got[1:]}) == 1, got
    assert not any(big() is not None for big, *_ in got), "kept by a traceback"

    async def several():
        return await asyncio.gather(*(waiting(request) for _ in range(5)), return_exceptions=True)

    errors = asyncio.run(several())
    assert all(isinstance(error, rmaext.PeerLostError) for error in errors)
    assert len({id(error) for error in errors}) == 5
    os._exit(0)
    """
    )
    done = mpirun(2, code, env=FABRIC, timeout=40, survive=True)
    assert done.returncode == 0, done.stderr


def test_late_request_of_several_coroutines(mpirun):
    """Each gets a RmaTimeout of its own."""
    code = (
        STOPPED.replace("np.arange(1000))", "np.arange(1000), timeout=0.3)")
        + """
    if comm.rank == 0:
        async def main():
            first, second = win.rget(1), win.rget(1)
            tasks = [waiting(r) for r in (first, first, second)]
            errors = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(error, rmaext.RmaTimeout) for error in errors), errors
            assert len({id(error) for error in errors}) == 3
        stop(pids[1])
        asyncio.run(main())
        os.kill(pids[1], signal.SIGCONT)
        end = time.monotonic() + 20
        while True:  # it answers, before the limit of a close is over
            try:
                win.flush(1)
                break
            except rmaext.RmaTimeout:
                assert time.monotonic() < end
    comm.Barrier()
    win.close()
    """
    )
    done = mpirun(2, code, env=FABRIC, timeout=40)
    assert done.returncode == 0, done.stderr
