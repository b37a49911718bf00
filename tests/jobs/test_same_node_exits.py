# SPDX-License-Identifier: BSD-3-Clause
"""Same-node routes in jobs of their own: forks, threads, exits and Ctrl-C."""

from __future__ import annotations

import textwrap

import launch
import pytest
from same_node import PRELUDE, start
from support.jobs import clean, together

shared_job = together(PRELUDE, 2)

# -- fork ----------------------------------------------------------------------------------

FORKED = """
    made, array = allocate(), rmaext.zeros(5000)
    view = made.peer_view(peer)
    exercise(made)
    array[:] = rank + 1
    before = made.local.copy()

    def child():
        assert (array == rank + 1).all() and (made.local == before).all()
        for call in (
            lambda: made.put(1.0, peer), lambda: made.get(peer), lambda: made.peer_view(peer),
            lambda: made.fetch_add(1.0, rank), made.flush, made.fence, allocate, own,
        ):
            refuses(call)
        mine = [rmaext.zeros(5000) for _ in range(10)]
        assert not any(a.any() for a in mine)
        for a in mine:
            a[:] = -1
        assert view.shape == (1000,)

    def forked():
        "everything of the parent's goes away in the child"
        global array, made, view
        child()
        del array, made, view
        gc.collect()
        again = [rmaext.zeros(5000) for _ in range(10)]
        assert not any(a.any() for a in again)
        for a in again:
            a[:] = -1
        del again
        gc.collect()

    def fork(end):
        pid = os.fork()
        if not pid:
            try:
                forked()
                end()
            except Exception:
                traceback.print_exc()
                os._exit(1)
            except SystemExit:
                os._exit(0)
        return pid

    pids = [fork(lambda: os._exit(0)), fork(sys.exit)]
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    process.join()
    assert process.exitcode == 0
    assert (array == rank + 1).all() and (made.local == before).all()
    more = [rmaext.zeros(5000) for _ in range(20)]
    assert not any(a.any() for a in more)
    world.Barrier()
    made.local[:] = 0
    exercise(made)
    made.close()
    with allocate() as win:
        assert win.route(peer) == "direct"
        exercise(win)
    print("end")
"""


@pytest.mark.parametrize("size", [2, pytest.param(0, marks=pytest.mark.matrix)])
def test_fork(size):
    clean(start(size, FORKED), max(size, 1))


def test_fork_before_the_first_use():
    """The child has the package, and MPI's state, but no arena from its parent."""
    body = """
        pid = os.fork()
        if not pid:
            a = rmaext.zeros(3000)
            a[:] = 1
            refuses(allocate)
            os._exit(0 if a.all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with allocate() as win:
            exercise(win)
        print("end")
    """
    clean(start(0, body), 1)


UNINITIALIZED = """
import os
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
import numpy as np
from mpi4py import MPI
import rmaext
"""


def test_arrays_without_mpi():
    """Before MPI.Init, after MPI.Finalize, and without either."""
    body = """
        first = rmaext.zeros(1000)
        first[:] = 1
        pid = os.fork()
        if not pid:
            os._exit(int(not rmaext.zeros(3).any() and first.sum() == 1000) - 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        if INIT:
            MPI.Init()
            with rmaext.Window(MPI.COMM_WORLD, first) as win:
                win.put(2.0, 0)
                assert win.peer_view(0)[0] == 2
            MPI.Finalize()
        assert not rmaext.zeros(1000).any() and first.sum() > 999
        print("end")
    """
    for init in True, False:
        code = UNINITIALIZED + textwrap.dedent(body).replace("INIT", str(init))
        clean(launch.run_python(code), 1)


@pytest.mark.parametrize("end", ["sys.exit()", "again()"])
def test_child_forked_before_mpi(end):
    """What it does at its end is not taken for the parent's end."""
    body = f"""
        import sys
        first = rmaext.zeros(1000)
        def again():
            MPI.Init()
            with rmaext.Window(MPI.COMM_WORLD, rmaext.zeros(9)) as win:
                win.put(1.0, 0)
            MPI.Finalize()
            sys.exit()
        pid = os.fork()
        if not pid:
            job = {launch._launcher._JOB_VARIABLES}
            for name in [name for name in os.environ if name.startswith(job)]:
                del os.environ[name]
            {end}
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        MPI.Init()
        world = MPI.COMM_WORLD
        peer = 1 - world.rank
        with rmaext.Window(world, first) as win:
            assert win.route(peer) == "direct"
            for _ in range(2):
                win.put(2.0 + world.rank, peer)
                win.put_many(peer, [1, 2], 5.0)
                win.fence()
            assert win.local[:4].tolist() == [2.0 + peer, 5, 5, 0]
            assert win.peer_view(peer)[1] == 5
            win.fence()
        MPI.Finalize()
        print("end")
    """
    clean(launch.mpirun(2, UNINITIALIZED + textwrap.dedent(body)), 2)


def test_first_array_after_finalize():
    code = UNINITIALIZED + "MPI.Init(); MPI.Finalize(); rmaext.zeros(9)[:] = 1; print('end')"
    clean(launch.run_python(code), 1)


# -- threads -------------------------------------------------------------------------------


def test_arena_of_a_thread_that_has_ended():
    """Its end is not the process's; and the next communicator ends the doubts."""
    body = """
        slow = []

        def count(name):
            slower = getattr(rmaext.Window, name)
            def counted(*args):
                slow.append(name)
                return slower(*args)
            setattr(rmaext.Window, name, counted)

        names = "_put", "_get", "_fetch_add", "_compare_and_swap", "_put_many", "_get_many"
        for name in names:
            count(name)

        def calls(win):
            slow.clear()
            win.put(2.0, peer)
            win.get(peer, 0, 1)
            win.fetch_add(1.0, peer)
            win.compare_and_swap(0.0, 1.0, peer)
            win.put_many(peer, np.arange(3), np.ones(3))
            win.get_many(peer, np.arange(3))
            return tuple(slow)

        wins = []
        thread = threading.Thread(target=lambda: wins.append(allocate()))
        thread.start()
        thread.join()
        world.Barrier()
        end = time.monotonic() + 5
        while calls(wins[0]) != names:  # once the kernel has ended the thread
            assert time.monotonic() < end, slow
        wins.append(allocate(comm=world.Dup()))
        for win in wins:
            assert calls(win) == (), slow
            win.fence()
        wins.append(own(comm=world.Dup()))
        assert calls(wins[1]) == (), slow
        for win in wins:
            win.fence()
            win.close()
        print("end")
    """
    clean(start(2, body), 2)


# -- exits ---------------------------------------------------------------------------------

LEAVES = {
    "arrays alive": "keep = [rmaext.zeros(n) for n in (1, 5000, 10**6)]; w = allocate()",
    "in a cycle": "x = [rmaext.zeros(9)]; x.append(x); w = allocate(); w.me = w",
    "views alive": "w = allocate(); v = w.peer_view(peer); w.close()",
    "views of open": "w = allocate(); v = w.peer_view(peer); v[3] = 1",
    "Finalize": "w = allocate(); a = w.local; MPI.Finalize(); a[:] = 1; refuses(w.fence); del a, w",
    "array after Finalize": """
        w = allocate(); w.close(); MPI.Finalize()
        for _ in range(5): a = rmaext.zeros(10**5); a[:] = 1
    """,
    "thread": """
        w = allocate()
        def work():
            try:
                while True: w.put(1.0, peer); w.get(peer, 0, 10)
            except (rmaext.ClosedError, rmaext.PeerLostError): pass
        for _ in range(2): threading.Thread(target=work, daemon=True).start()
    """,
    "arena of a thread": """
        thread = threading.Thread(target=lambda: rmaext.zeros(1)); thread.start(); thread.join()
        w = allocate(); exercise(w); time.sleep(0.1); world.Barrier(); w.get(peer); w.close()
    """,
}


# These run always, all of them with `make test-matrix`.
ALWAYS = ["views of open", "array after Finalize", "thread", "arena of a thread"]


@pytest.mark.parametrize("name", ALWAYS)
def test_exit(name):
    leave(name, 2)


@pytest.mark.matrix
@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("name", LEAVES)
def test_every_exit(name, size):
    leave(name, size)


def leave(name, size):
    clean(start(size, textwrap.dedent(LEAVES[name]) + "\nprint('end')"), max(size, 1))


def test_exception_on_one_rank_only():
    """It leaves the with block and the program; the others are told, not stuck."""
    body = """
        win, other = allocate(), own()
        exercise(win)
        try:
            with win:
                if rank == 0:
                    raise RuntimeError("mine")
        except rmaext.SyncError as error:
            assert rank and "rank 0 has left window 1 (RuntimeError: mine" in str(error), error
            assert "program.py:" in str(error), error
            start = time.monotonic()
            while True:  # it is on its way out
                try:
                    other.get(0)
                except rmaext.PeerLostError:
                    break
                assert time.monotonic() - start < 5
            refuses(other.fence, rmaext.PeerLostError)
            say("told")
    """
    done = start(3, body)
    assert done.returncode, done.stderr
    assert "RuntimeError: mine" in done.stderr
    assert done.stdout.count("told") == 2, done.stdout + done.stderr


# -- Ctrl-C ----------------------------------------------------------------------------------

LATE = """
    def first(call):
        interrupted(call)
        world.send(None, 1)

    def late(call):
        world.recv(source=0)
        return call()
"""

WAITS = {
    "fence": """
        fenced, other = allocate(comm=world.Dup()), allocate()
        if rank == 0:
            first(fenced.fence)
            for call in fenced.fence, lambda: fenced.put(1.0, 1), lambda: fenced.get(1):
                refuses(call)
            refuses(lambda: allocate(comm=fenced.comm), rmaext.SyncError)
        else:
            late(lambda: refuses(fenced.fence, rmaext.SyncError))  # rank 0 had come
            fenced.put(1.0, 1)
        exercise(other)
        other.close()
    """,
    "close": """
        closed, other = allocate(comm=world.Dup()), allocate()
        if rank == 0:
            first(closed.close)
            assert closed.closed
            closed.close()
            refuses(lambda: allocate(comm=closed.comm), rmaext.SyncError)
        else:
            late(lambda: refuses(closed.close, rmaext.SyncError))
            assert closed.closed
        exercise(other)
        other.close()
    """,
    "creation": """
        win, comm = allocate(), world.Dup()
        with allocate(comm=comm):
            pass
        if rank == 0:
            first(lambda: allocate(comm=comm))
            refuses(lambda: allocate(comm=comm), rmaext.SyncError)
        else:
            late(lambda: refuses(lambda: allocate(comm=comm), rmaext.SyncError))
        exercise(win)
        win.close()
    """,
    "network": """
        win, comm = allocate(), world.Dup()
        with allocate(comm=comm):
            pass
        if rank == 0:
            first(lambda: own(comm=comm))
        else:
            late(lambda: refuses(lambda: own(comm=comm), rmaext.SyncError))
        refuses(lambda: allocate(comm=comm), rmaext.SyncError)
        exercise(win)
        win.close()
    """,
}


@pytest.mark.parametrize(
    "name", ["fence", "close", "creation", pytest.param("network", marks=pytest.mark.matrix)]
)
@shared_job
def test_interrupted_wait(name):
    return textwrap.dedent(LATE) + textwrap.dedent(WAITS[name]) + "\nprint('end')"


@shared_job
def test_interrupted_at_any_time():
    """A handler raises every few hundred microseconds; memory and counters stay right."""
    return """
        class Now(Exception): pass

        def handler(signum, frame):
            raise Now

        win = allocate()
        world.Barrier()
        counts = [0, 0]
        signal.signal(signal.SIGALRM, handler)
        end = time.monotonic() + 1
        while (now := time.monotonic()) < end or (min(counts) <= 5 and now < end + 10):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, np.random.uniform(1e-5, 1e-3))
                    while True:
                        win.put(np.ones(100), peer, 100)
                        rmaext.zeros(3000)[:] = 1
                        win.fetch_add(1.0, peer)
                        counts[0] += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Now:
                counts[1] += 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert min(counts) > 5, counts
        win.fence()
        all_counts = world.allgather(counts)[(rank - 1) % size]
        assert all_counts[0] <= win.local[0] <= sum(all_counts), (all_counts, win.local[0])
        assert not rmaext.zeros(100_000).any()
        win.close()
        print("end")
    """
