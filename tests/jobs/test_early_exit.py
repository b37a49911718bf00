# SPDX-License-Identifier: BSD-3-Clause
"""A rank that ends is not dead: its windows serve until all have come to their end.

Each test is a job of its own, in which the ranks leave the program at different times
and in different ways. No rank closes its windows, unless the test says so.
"""

from __future__ import annotations

import textwrap

import launch
import pytest
from support import jobs

FABRIC = {"RMAEXT_ROUTE": "fabric"}
# the ranks, and a line that sets the route
ROUTES = {
    "direct": (2, ""),
    "fabric": (2, "os.environ['RMAEXT_ROUTE'] = 'fabric'"),
    "mixed": (3, "os.environ['RMAEXT_NODE'] = f'node {rank % 2}'"),
}

PRELUDE = (
    jobs.PRELUDE
    + """
import faulthandler
faulthandler.dump_traceback_later(40, exit=True)
warnings.simplefilter("ignore", ResourceWarning)
from rmaext.compat import Win

def leave(how):
    if how == "Finalize":
        MPI.Finalize()
    elif how == "exit":
        sys.exit(0)

def use(win, other, first):
    "Every kind of access to a rank that may have come to its end"
    assert (win.get(other, 0, 4) == first).all(), win.get(other)
    win.put(np.full(4, 5.0), other, 4)
    win.flush(other)
    assert win.get(other, 4, 4).tolist() == [5, 5, 5, 5]
    before = win.fetch_add(1.0, other, 9)
    win.accumulate(np.ones(1), other, 9)
    win.flush()
    with win.lock(other, exclusive=True):
        assert win.compare_and_swap(before + 2, before, other, 9) == before + 2
    assert win.rget(other, 9, 1).wait()[0] == before
    win.put_notify(np.ones(1), other, 10, 3)
    win.flush(other)
    big = np.arange(100_000.0)
    win.put(big, other, 16)
    win.flush()
    assert (win.get(other, 16, big.size) == big).all()

def use_dropin(win, other, first):
    found, one = np.zeros(4), np.ones(1)
    win.Lock(other, MPI.LOCK_EXCLUSIVE)
    win.Get(found, other)
    win.Flush(other)
    assert (found == first).all(), found
    win.Put(np.full(4, 5.0), other, 4)
    win.Accumulate(one, other, 9)
    win.Fetch_and_op(one, found[:1], other, 9)
    win.Unlock(other)
    win.Lock_all()
    win.Rget(found, other, 4).Wait()
    assert found.tolist() == [5, 5, 5, 5], found
    win.Unlock_all()

MADE = {
    "allocate": lambda: rmaext.Window.allocate(world, 110_000),
    "Window": lambda: rmaext.Window(world, np.zeros(110_000)),
    "list": lambda: rmaext.Window(world, [np.zeros(50_000), np.zeros(60_000)]),
    "Win": lambda: Win.Allocate(8 * 110_000, 8, comm=world),
}

def made(kind):
    win = MADE[kind]()
    local = np.frombuffer(win) if kind == "Win" else win.local
    for part in local if isinstance(local, list) else [local]:
        part[:] = 0
        part[:4] = rank
    world.Barrier()
    return win, use_dropin if kind == "Win" else use
"""
)


def start(route, body, ends=None, **options):
    """Run it; all is well if the status is 0 and as many ranks said "end"."""
    size, line = ROUTES[route]
    code = PRELUDE + line + "\n" + textwrap.dedent(body)
    done = launch.mpirun(size, code, timeout=50, **options)
    if ends is not None:
        jobs.clean(done, ends)
    return done


# -- those that come to their end first ------------------------------------------------------


@pytest.mark.parametrize("how", ["return", "Finalize", "exit"])
@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_one_ends_early(route, how):
    """The other goes on with what it has there, for all kinds of windows."""
    body = f"""
        beside = rmaext.Window.allocate(MPI.COMM_SELF, 8)
        beside.put(np.ones(8), 0)
        wins = [made(kind) for kind in MADE]
        if rank == 1:
            time.sleep(1)
            for win, use in wins:
                use(win, 0, 0.0)
            print("end", flush=True)
        leave({how!r})
    """
    start(route, body, 1)


@pytest.mark.parametrize("kind", ["allocate", "Win"])
@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_the_last_rank_ends_early(route, kind):
    """Whoever it is; with a window that was closed and one that was dropped."""
    body = f"""
        win, use = made({kind!r})
        rmaext.Window.allocate(world, 3).close()
        rmaext.Window.allocate(world, 3)
        gc.collect()
        if rank == 0:
            time.sleep(1)
            use(win, 1, 1.0)
            print("end", flush=True)
    """
    start(route, body, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_runs_at_exit(when):
    """A rank waits for what another does in a function that it has registered.

    The rank that ends serves its windows until that has run: it was registered once rmaext
    had been imported.
    """
    body = f"""
        import atexit
        def last_words():
            if rank == 0:
                world.send("last words", 1, 7)
        if {when!r} == "before":
            atexit.register(last_words)
        win = rmaext.Window.allocate(world, 8)
        if {when!r} == "after":
            atexit.register(last_words)
        if rank == 1:
            assert world.recv(source=0, tag=7) == "last words"
            win.put(np.ones(8), 0)
            win.flush()
            print("end", flush=True)
    """
    start("direct", body, 1)


@pytest.mark.parametrize("order", ["012", "210", "120"])
def test_three_end_in_turn(order):
    """On two nodes; each uses all that have ended before, over two communicators."""
    body = f"""
        turn = {order!r}.index(str(rank))
        win, use = made("allocate")
        pair = world.Split(rank == 1)
        second = rmaext.Window.allocate(pair, 4)
        second.local[:] = rank
        world.Barrier()
        if turn:
            world.recv(source=int({order!r}[turn - 1]))
            time.sleep(0.5)  # it comes to its end
        for other in map(int, {order!r}[:turn]):
            use(win, other, float(other))
            if 1 not in (rank, other):
                assert (second.get(int(other == 2)) == other).all()
        if turn < 2:
            world.send(None, int({order!r}[turn + 1]))
        print("end", flush=True)
        if turn == 1:
            MPI.Finalize()
    """
    start("mixed", body, 3)


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_it_serves_while_another_computes(route):
    """The one that uses it is no faster than before: a thousand operations, and threads."""
    body = """
        win, use = made("allocate")
        if rank == 1:
            time.sleep(0.3)
            def work():
                for _ in range(300):
                    win.fetch_add(1.0, 0, 9)
            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            assert win.get(0, 9, 1)[0] == 900
            print("end", flush=True)
    """
    start(route, body, 1)


def test_programs_of_others():
    """As the RMA example of mpi4py's manual: nobody frees the window."""
    code = """
        import time
        import numpy as np
        from mpi4py import MPI
        from mpi4py.util import dtlib

        comm = MPI.COMM_WORLD
        rank = comm.Get_rank()
        datatype = MPI.FLOAT
        np_dtype = dtlib.to_numpy_dtype(datatype)
        itemsize = datatype.Get_size()
        n = 10
        win = MPI.Win.Allocate(n * itemsize if rank == 0 else 0, comm=comm)
        buf = np.empty(n, dtype=np_dtype)
        if rank == 0:
            buf.fill(42)
            win.Lock(rank=0)
            win.Put(buf, target_rank=0)
            win.Unlock(rank=0)
            comm.Barrier()
        else:
            comm.Barrier()
            time.sleep(1)
            win.Lock(rank=0)
            win.Get(buf, target_rank=0)
            win.Unlock(rank=0)
            assert np.all(buf == 42)
            print("end", flush=True)
    """
    for env in {}, FABRIC:
        done = launch.mpirun(2, code, env=env, timeout=40, dropin=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("end") == 1, done.stdout + done.stderr


# -- collective calls of those that go on ----------------------------------------------------


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_a_collective_call_beside_the_end(route):
    """It raises SyncError, which names the rank at its end; then all end well."""
    body = """
        win, use = made("allocate")
        if rank == 1:
            time.sleep(0.5)
            for call in win.fence, lambda: rmaext.Window.allocate(world, 4), win.fence, win.close:
                start = time.monotonic()
                text = refuses(call, rmaext.SyncError)
                assert time.monotonic() - start < 5, time.monotonic() - start
                assert "rank 0" in text and "end of" in text, text
                if call != win.close:
                    assert not win.closed
                    use(win, 0, 0.0)
            assert win.closed
            print("end", flush=True)
    """
    start(route, body, 1)


def test_one_that_waits_already_is_told():
    """It is in the fence when the other comes to its end."""
    body = """
        win, use = made("allocate")
        dropin, _ = made("Win")
        if rank == 0:
            time.sleep(0.5)
        else:
            text = refuses(win.fence, rmaext.SyncError)
            assert "rank 0" in text and "end of" in text, text
            try:
                dropin.Fence()
            except MPI.Exception as error:
                assert error.Get_error_class() == MPI.ERR_RMA_SYNC, error
                assert "end of" in str(error.__cause__), error.__cause__
                print("end", flush=True)
    """
    start("direct", body, 1)


def test_all_end_at_once():
    """Nothing but the end, many times: no order of hooks and barriers hangs."""
    body = """
        win, use = made("allocate")
        one = made("Win")
        time.sleep(random.random() / 10)
        print("end", flush=True)
    """
    for route in ["direct", "mixed", "direct", "fabric"]:
        start(route, body, ROUTES[route][0])


# -- those that are lost ---------------------------------------------------------------------

LOST = {
    "exception": "raise RuntimeError('mine')",
    "os._exit": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_who_leaves_otherwise_is_lost(route, how):
    body = f"""
        win, use = made("allocate")
        if rank == 0:
            {LOST[how]}
        start = time.monotonic()
        time.sleep(0.5)
        text = refuses(lambda: [(win.get(0, 0, 4), time.sleep(1e-3)) for _ in range(10_000)],
                       rmaext.PeerLostError)
        assert time.monotonic() - start < 12, time.monotonic() - start
        refuses(win.fence, (rmaext.PeerLostError, rmaext.SyncError, rmaext.ClosedError))
        os.write(1, b"told")
        os._exit(0)  # MPI's own end would wait for rank 0
    """
    survive = how != "exception"
    done = start(route, body, survive=survive)
    assert "told" in done.stdout, done.stdout + done.stderr


def test_a_late_exception():
    """It comes when another has already reached its end, which learns of it and ends too."""
    body = """
        win, use = made("allocate")
        if rank == 1:
            time.sleep(1)
            use(win, 0, 0.0)
            print("end", flush=True)
            raise RuntimeError("mine")
    """
    done = start("direct", body)
    assert done.returncode, done.stdout + done.stderr
    assert "RuntimeError: mine" in done.stderr
    assert done.stdout.count("end") == 1, done.stderr
    assert "Timeout" not in done.stderr, done.stderr


@pytest.mark.parametrize("how", ["os._exit", "SIGKILL"])
def test_one_that_dies_while_another_waits_at_its_end(how):
    """The one at its end does not wait for ever for the dead."""
    # Hooks run last in, first out: this one behind rmaext's. MPI_Finalize would wait.
    first = "import atexit, os\natexit.register(lambda: (os.write(1, b'told'), os._exit(0)))\n"
    body = f"""
        win, use = made("allocate")
        if rank == 1:
            time.sleep(0.7)
            {LOST[how]}
    """
    done = launch.mpirun(2, first + PRELUDE + textwrap.dedent(body), timeout=50, survive=True)
    assert "told" in done.stdout, done.stdout + done.stderr


def test_ctrl_c_at_the_end():
    """It ends the wait of the one that has come to its end; that is lost then."""
    body = """
        win, use = made("allocate")
        from rmaext._record.record import find
        pid = world.bcast(os.getpid())
        world.Barrier()
        if rank == 1:
            time.sleep(1)
            use(win, 0, 0.0)
            (record,), _ = find([pid])
            while record.snapshot().state != "leaves":
                time.sleep(0.01)
            time.sleep(0.5)
            os.kill(pid, signal.SIGINT)
            end = time.monotonic() + 10
            try:
                while time.monotonic() < end:
                    win.get(0, 0, 4)
                    time.sleep(1e-3)
            except rmaext.PeerLostError:
                os.write(1, b"told")
    """
    done = start("direct", body)
    assert "told" in done.stdout, done.stdout + done.stderr
