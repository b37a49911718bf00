# SPDX-License-Identifier: BSD-3-Clause
"""The drop-in where signal handlers raise or call, ranks are lost, and memory runs out."""

from __future__ import annotations

import textwrap

import launch
import numpy as np
import pytest
from mpi4py import MPI

from rmaext.compat import Win

PRELUDE = """
import asyncio, errno, faulthandler, gc, os, signal, sys, threading, time, weakref
faulthandler.dump_traceback_later(25, exit=True)
import numpy as np
from mpi4py import MPI
from support.processes import ring_in_wait
import rmaext
from rmaext.compat import Win
world = MPI.COMM_WORLD
rank = world.rank

def made(nbytes=64):
    "A window that has no epoch, of ranks that have all used it"
    win = Win.Allocate(nbytes, 1, comm=world)
    win.Fence()
    win.Fence(MPI.MODE_NOSUCCEED)
    return win

def fails(call, *args):
    try:
        call(*args)
    except MPI.Exception as error:
        return str(error)
    raise AssertionError("passed")
"""

FABRIC = {"RMAEXT_ROUTE": "fabric"}


def start(body, ends, env=None, **options):
    """Run it with two ranks; as many of them say "end" as are left."""
    code = PRELUDE + textwrap.dedent(body)
    env = {"PYTHONPATH": launch.PYTHONPATH} | (env or {})
    done = launch.mpirun(2, code, env=env, timeout=50, **options)
    assert done.stdout.count("end\n") == ends, f"{done.returncode}\n{done.stdout}{done.stderr}"
    return done


def test_an_epoch_after_one_that_lost_a_rank():
    """A Complete that came late does not end the next exposure epoch."""
    start(
        """
        win, group = made(), world.Get_group()
        mine, both = group.Incl([0]), group.Incl([0, 1])
        world.Barrier()
        if rank:
            os._exit(0)
        one = np.ones(1, np.uint8)
        win.Post(both)
        win.Start(mine)
        win.Put(one, 0)
        assert "rank 1" in fails(win.Wait)
        win.Complete()
        win.Post(mine)
        win.Start(mine)
        win.Put(one, 0)
        assert not win.Test()
        win.Complete()
        assert win.Test()
        print("end", flush=True)
        os._exit(0)
        """,
        1,
        survive=True,
    )


def test_an_exception_where_others_requests_are_completed():
    """What ends while a signal handler raises in the thread that begins another one."""
    start(
        """
        win = made(1 << 22)
        data = np.zeros(1 << 22, np.uint8)
        if rank == 0:
            from rmaext._fabric.endpoint import Endpoint
            from rmaext._ops.watcher import Watcher
            win.Lock_all()
            win.Flush(1)
            real, main = Watcher._tell, threading.main_thread()
            # the thread is late
            Watcher._tell = lambda self, late: (
                real(self, late) if threading.current_thread() is main else None
            )
            fabric, = Endpoint._opened.values()
            below = None
            while below is None:  # perhaps it has ended already
                first = win.Rput(data, 1)
                below = next(iter(fabric.watcher._awaited if fabric.watcher else ()), None)
            watcher = fabric.watcher
            while not below.done:
                time.sleep(0.01)
            def trace(frame, event, _):
                if frame.f_code.co_name == "_tell" and frame.f_locals.get("calls"):
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return trace
            sys.settrace(trace)
            try:
                watcher.call(below, lambda error: None)
            except KeyboardInterrupt:
                pass
            sys.settrace(None)
            Watcher._tell = real
            end = time.monotonic() + 5
            while not first.Test():
                assert time.monotonic() < end
            win.Unlock_all()
        win.Free()
        print("end", flush=True)
        """,
        2,
        FABRIC,
    )


def test_no_memory_for_the_words_of_an_error():
    """Whoever waits for a request is told that it failed, whatever else fails."""
    start(
        """
        from rmaext.compat import requests
        win = made(1 << 24)
        data = np.zeros(1 << 24, np.uint8)
        def fail(self):
            raise MemoryError
        requests._Several._code = fail
        def hook(args):
            raise RuntimeError("the program's own")
        threading.excepthook = hook
        win.Lock_all()
        mine = [win.Rput(data, 1 - rank) for _ in range(4)]
        assert any(isinstance(request, MPI.Grequest) for request in mine)
        fails(MPI.Request.Waitall, mine)
        win.Unlock_all()
        win.Free()
        print("end", flush=True)
        """,
        2,
        FABRIC,
    )


def test_each_request_has_the_words_of_its_own_error():
    """Two that fail before either is waited for."""
    start(
        """
        one, two = made(1 << 24), made(1 << 24)
        data = np.zeros(1 << 24, np.uint8)
        pid = world.bcast(os.getpid(), 1)
        if rank:
            time.sleep(60)
        for win in one, two:
            win.Lock(1, MPI.LOCK_SHARED)
            win.Flush(1)
        os.kill(pid, signal.SIGSTOP)
        requests = [one.Rput(data, 1), two.Rget(np.zeros_like(data), 1)]
        time.sleep(4.5)
        words = [fails(request.Wait) for request in requests]
        assert words[0].startswith("rput: window 1, rank 1"), words
        assert words[1].startswith("rget: window 2, rank 1"), words
        print("end", flush=True)
        os.kill(pid, signal.SIGCONT)
        os._exit(7)
        """,
        1,
        FABRIC | {"RMAEXT_TIMEOUT": "2"},
    )


@pytest.mark.mpi(min_size=1)
def test_codes_of_errors_come_round(comm):
    """MPI has few codes for errors: each lasts for 63 errors of its class."""
    from rmaext import errors
    from rmaext.compat.errors import code_of

    made = [code_of(errors.SyncError(1, f"wörds {i}")) for i in range(200)]
    assert len(set(made)) == 64
    for i in range(200 - 63, 200):
        assert f"wörds {i}" in MPI.Get_error_string(made[i])
        assert MPI.Get_error_class(made[i]) == MPI.ERR_RMA_SYNC


def test_an_operation_in_a_handler_while_its_lock_is_taken():
    """It is refused, and does not wait for itself."""
    start(
        """
        win, data = made(), np.zeros(8, np.uint8)
        if rank == 0:
            win.Lock(0, MPI.LOCK_EXCLUSIVE)
            world.Barrier()
            world.recv(source=1)
            win.Unlock(0)
        else:
            world.Barrier()
            said = []
            def handler(*_):
                said.append(fails(win.Put, data, 0))
                world.send(None, 0)
            win.Lock_all()
            ring_in_wait(handler)
            win.Put(data, 0)
            assert "this thread holds the lock" in said[0], said
            win.Unlock_all()
        win.Free()
        print("end", flush=True)
        """,
        2,
    )


def test_ctrl_c_in_unlock_all():
    """Ranks are not flushed once more."""
    start(
        """
        win, data = made(1 << 24), np.zeros(1 << 22, np.uint8)
        pid = world.bcast(os.getpid(), 1)
        if rank:
            time.sleep(60)
        win.Lock_all()
        win.Put(data[:8], 1)
        win.Flush(1)
        os.kill(pid, signal.SIGSTOP)
        request = win.Rput(data, 1)
        def flush(rank=None, real=win._window.flush):
            flushed.append(rank)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            real(rank)
        flushed = []
        win._window.flush = flush
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            win.Unlock_all()
        except KeyboardInterrupt:
            assert flushed == [None], flushed
            print("end", flush=True)
        os.kill(pid, signal.SIGCONT)
        os._exit(7)
        """,
        1,
        FABRIC | {"RMAEXT_TIMEOUT": "5"},
    )


def test_event_loops_that_awaited_are_freed():
    """Also those that end right after it."""
    start(
        """
        win = rmaext.Window.allocate(world, 1 << 18)
        data, loops = np.ones(1 << 18), []
        async def wait():
            loops.append(weakref.ref(asyncio.get_running_loop()))
            await win.rput(data, 1 - rank)
        for _ in range(30):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(wait())
            loop.close()
        del loop
        win.flush()
        end = time.monotonic() + 10
        while (alive := sum(loop() is not None for loop in loops)) > 1:
            assert time.monotonic() < end, alive
            time.sleep(0.01)  # the thread lets go of the last
            gc.collect()
        win.close()
        print("end", flush=True)
        """,
        2,
        FABRIC,
    )


@pytest.mark.mpi(min_size=2)
def test_a_short_put_may_name_a_target_that_goes_beyond(world):
    """As in MPI, the bytes count that are moved."""
    win = Win.Allocate(64, 1, comm=world)
    local = np.frombuffer(win, np.uint8)
    local[:] = 0
    win.Fence()
    data = np.arange(1, 9, dtype=np.uint8)
    to = (world.rank + 1) % world.size
    win.Put([data, 3, MPI.BYTE], to, (60, 8, MPI.BYTE))
    win.Put([data, 0, MPI.BYTE], to, (64, 8, MPI.BYTE))
    with pytest.raises(MPI.Exception, match="64"):
        win.Put([data, 5, MPI.BYTE], to, (60, 8, MPI.BYTE))
    win.Fence()
    assert local[58:].tolist() == [0, 0, 1, 2, 3, 0]
    win.Free()
