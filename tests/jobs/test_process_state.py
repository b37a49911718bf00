# SPDX-License-Identifier: BSD-3-Clause
"""What a process has once, whoever asks first, and what of it a forked child may use."""

from __future__ import annotations

import textwrap

import launch
import pytest

# each(work): what eight threads get that call work(i) at once
AT_ONCE = """
import sys, threading
import mpi4py
mpi4py.rc.thread_level = "multiple"
from mpi4py import MPI
import numpy as np
import rmaext
from rmaext._native._lib import ffi, lib
sys.setswitchinterval(1e-6)
THREADS = 8

def each(work):
    start, got = threading.Barrier(THREADS), [None] * THREADS
    def run(i):
        start.wait()
        try:
            got[i] = work(i)
        except BaseException as error:
            got[i] = error
    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    [t.start() for t in threads]
    [t.join(50) for t in threads]
    errors = [g for g in got if isinstance(g, BaseException)]
    assert not errors, errors
    return got

def one(things):
    assert len({id(thing) for thing in things}) == 1, things
"""

FIRST = {
    "library": "from rmaext._fabric.library import open_library\n"
    "one(each(lambda i: open_library('')))",
    "beacon": "from rmaext._comm.host import Beacon\none(each(lambda i: Beacon.own()))",
    "arena": "from rmaext._memory.node import Arena\none(each(lambda i: Arena.own()))",
    "storage": "from rmaext._window.storage import Storage\none(each(lambda i: Storage.own()))",
    "key of communicators": """
        from rmaext._comm.group import Group
        comms = [MPI.COMM_SELF.Dup() for _ in range(THREADS)]
        groups = each(lambda i: Group.of(comms[i]))
        assert groups == [Group.of(comm) for comm in comms]
    """,
    "boards": """
        from rmaext._memory.node import Team
        boards = each(lambda i: [Team.board(8) for _ in range(20)])
        kept = {id(board) for board, _ in Team._boards}
        assert all(id(board) in kept for some in boards for board in some), "freed while in use"
    """,
    "pidfds": """
        import os, subprocess
        from rmaext._runtime.config import Config
        from rmaext._comm.host import Hello, pidfd_of
        own = Hello.make(Config.read(), "")
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        stat = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()
        peer = own._replace(pid=child.pid, started=int(stat[19]))
        before = len(os.listdir("/proc/self/fd"))
        assert len(set(each(lambda i: pidfd_of(own, peer)))) == 1
        assert len(os.listdir("/proc/self/fd")) == before + 1, "descriptors leak"
        child.communicate(b"")
    """,
}


@pytest.mark.parametrize("what", FIRST.values(), ids=FIRST)
def test_made_once(run_python, what):
    """Eight threads ask first, at once, and get the same."""
    for _ in range(3):
        done = run_python(AT_ONCE + textwrap.dedent(what))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [0, 2])
def test_first_windows_of_several_threads(run_python, mpirun, size):
    """Each over its own communicator: there is one libfabric, and one endpoint."""
    code = (
        AT_ONCE
        + """
comms = [MPI.COMM_WORLD.Dup() for _ in range(THREADS)]
def first(i):
    comm = comms[i]
    win = rmaext.Window(comm, np.zeros(1000))
    win.put(np.full(1000, i + 1.0), (comm.rank + 1) % comm.size)
    win.fence()
    assert (win.local == i + 1).all()
    return win
windows = each(first)
one([win.fabric for win in windows])
assert windows[0].fabric.provider
for win in windows:
    win.close()
"""
    )
    env = {"RMAEXT_ROUTE": "fabric"}
    done = mpirun(size, code, env=env) if size else run_python(code, env=env)
    assert done.returncode == 0, done.stderr


def test_probes_of_several_threads(mpirun):
    """Threads that wait at once look for signs of life of the same peer, which is stopped."""
    code = (
        AT_ONCE
        + """
import os, signal, time
comm = MPI.COMM_WORLD
os.environ["RMAEXT_NODE"] = f"node {comm.rank}"
win = rmaext.Window(comm, np.zeros(10))
network, pids = win._group.network(), comm.allgather(os.getpid())

def mine():
    return win._fabric._in_flight

def work(i):
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        network.probe()

win._group.watch.near = [comm.rank]  # as if on hosts of their own
if comm.rank == 0:
    os.kill(pids[1], signal.SIGSTOP)
    try:
        each(work)
    finally:
        os.kill(pids[1], signal.SIGCONT)
    assert mine() <= THREADS, mine()
    end = time.monotonic() + 20
    while mine():
        assert time.monotonic() < end, "nobody looks at them"
        network.probe()
win.fence()
win.close()
"""
    )
    done = mpirun(2, code, timeout=60)
    assert done.returncode == 0, done.stderr


def test_child_of_a_process_with_locks_taken(run_python):
    """A thread of the parent held all locks at the fork, and is not there in the child."""
    code = """
        import os, threading
        import numpy as np
        import rmaext
        from rmaext._comm.host import Beacon
        from rmaext._fabric.library import open_library
        from rmaext._memory.node import Arena, Team
        from rmaext._window.storage import Storage

        array = rmaext.zeros(100)
        locks = {Arena._lock, Storage._lock}
        try:
            from rmaext._runtime import locks as made
        except ImportError:
            pass
        else:
            locks |= set(made._locks)
        taken, done = threading.Event(), threading.Event()
        def hold():
            for lock in locks:
                lock.acquire()
            taken.set()
            done.wait(30)
        threading.Thread(target=hold, daemon=True).start()
        taken.wait()
        pid = os.fork()
        if not pid:
            import faulthandler
            faulthandler.dump_traceback_later(20, exit=True)
            more = rmaext.zeros(100)
            more[:] = 1
            del array
            Beacon.own(), open_library(""), Team.board(2), Storage.own()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        done.set()
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_child_of_a_process_that_waits(mpirun):
    """Another thread waits for a request at the fork: in the child it has ended, by ClosedError."""
    code = """
        import asyncio, os, signal, threading, time
        from mpi4py import MPI
        import numpy as np
        import rmaext
        from support.processes import stop

        comm = MPI.COMM_WORLD
        win = rmaext.Window(comm, np.zeros(1000))
        pids = comm.allgather(os.getpid())

        def refused(call):
            try:
                call()
            except rmaext.ClosedError:
                return
            raise AssertionError("not refused")

        async def awaits(request):
            return await request

        if comm.rank == 0:
            stop(pids[1])
            requests = [win.rget(1) for _ in range(5)]
            threads = [threading.Thread(target=request.wait) for request in requests]
            [thread.start() for thread in threads]
            time.sleep(0.3)
            pid = os.fork()
            if not pid:
                import faulthandler
                faulthandler.dump_traceback_later(20, exit=True)
                refused(lambda: asyncio.run(awaits(requests[0])))
                refused(requests[1].wait)
                while not requests[2].test():
                    pass
                refused(lambda: requests[2].wait(5))
                requests[3].free()
                requests[4].cancel()
                del requests
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            os.kill(pids[1], signal.SIGCONT)
            [thread.join() for thread in threads]
        win.fence()
        win.close()
    """
    env = {"RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, code, env=env, timeout=50)
    assert done.returncode == 0, done.stderr
