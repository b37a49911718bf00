# SPDX-License-Identifier: BSD-3-Clause
"""No order of close, exit, exception, collection, fork or Ctrl-C crashes or corrupts.

Each test starts processes of its own: what matters is how they end.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import textwrap
from pathlib import Path

import launch
import pytest
from support import jobs
from support.jobs import clean
from support.libraries import SYSTEM, WHEEL

FABRIC = {"RMAEXT_ROUTE": "fabric"}
SYSTEMS = {"RMAEXT_LIBFABRIC": SYSTEM}

PRELUDE = (
    jobs.PRELUDE
    + """
def window(n=1000):
    return rmaext.Window(world, np.zeros(n))

def every_use(win):
    one = np.ones(1)
    return [
        lambda: win.put(one, peer), lambda: win.get(peer, 0, 1), lambda: win.get(0, out=one),
        lambda: win.fetch_add(1.0, peer), lambda: win.compare_and_swap(0.0, 1.0, peer),
        lambda: win.flush(), lambda: win.flush(peer), lambda: win.fence(),
        lambda: win.__enter__(),
    ]
"""
)


USED = "win = window()\nexercise(win)\nprint('end', flush=True)\n"


def start(size, body, env=None, timeout=40):
    """Run on that many ranks; size 0 is one process without mpiexec."""
    return jobs.start(size, PRELUDE + textwrap.dedent(body), env=env, timeout=timeout)


# -- the ways out ----------------------------------------------------------------

# After `win` was created and used; with a line of stderr for those that fail.
EXITS = {
    "close": ("win.close(); win.close()", 0, ""),
    "forgotten": ("", 0, ""),
    "forgotten, unflushed": ("win.put(np.ones(900), peer); world.Barrier()", 0, ""),
    "with": ("with win: pass", 0, ""),
    "deleted": ("del win; gc.collect()", 0, ""),
    "cycle": ("win.me = win; del win; gc.collect()", 0, ""),
    "many, any order": (
        """
        wins = [window() for _ in range(9)]
        for w in [*wins[::2], *wins[-2::-2]][:7]: w.close()
        """,
        0,
        "",
    ),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "exception": ("raise RuntimeError('mine')", 1, "RuntimeError: mine"),
    "exception in with": ("with win: raise RuntimeError('mine')", 1, "RuntimeError: mine"),
    "Finalize, open": ("MPI.Finalize()", 0, ""),
    "Finalize, closed": ("win.close(); MPI.Finalize()", 0, ""),
    "Finalize in with": ("with win: MPI.Finalize()", 0, ""),
    "use after Finalize": (
        """
        closed = window()
        closed.close()
        MPI.Finalize()
        for w in win, closed:
            assert w.closed
            for call in every_use(w): refuses(call)
            w.close()
        assert win.local.shape == (1000,)
        refuses(lambda: closed.local)  # nobody holds its memory any more
        refuses(window)
        refuses(lambda: rmaext.Window.allocate(MPI.COMM_SELF, 3))
        """,
        0,
        "",
    ),
    "thread in get": (
        """
        def work():
            try:
                while True: win.get(peer)
            except (rmaext.ClosedError, rmaext.PeerLostError): pass
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads: thread.start()
        time.sleep(0.1)
        """,
        0,
        "",
    ),
}
# These run always, all of them in every setting with `make test-matrix`.
ALONE = ["many, any order", "sys.exit", "use after Finalize"]
TOGETHER = ["forgotten, unflushed", "Finalize in with", "thread in get"]


def leave(name, size, env):
    body, status, words = EXITS[name]
    done = start(size, USED + textwrap.dedent(body), env)
    if size and status:  # the launchers have opinions and words of their own
        assert done.returncode, done.stdout + done.stderr
    else:
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}{done.stderr}"
        assert bool(done.stderr) == bool(words), done.stderr
    assert words in done.stderr
    assert done.stdout.count("end") == max(size, 1)
    for trouble in ("double free", "Segmentation", "Fatal", "corrupt", "ClosedError"):
        assert trouble not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ALONE)
def test_exit_of_one_process(name):
    """Without mpiexec, every transfer through the fabric."""
    leave(name, 0, FABRIC)


def test_exit_without_fabric():
    leave("use after Finalize", 0, {})


@pytest.mark.parametrize("name", TOGETHER)
def test_exit_of_two_ranks(name):
    leave(name, 2, FABRIC)


def test_exit_with_a_libfabric_of_our_own():
    leave("forgotten, unflushed", 2, FABRIC | SYSTEMS)


@pytest.mark.matrix
@pytest.mark.parametrize("env", [{}, FABRIC], ids=["direct", "fabric"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("library", [{}, SYSTEMS], ids=["preferred", "system"])
@pytest.mark.parametrize("name", EXITS)
def test_every_exit(name, library, size, env):
    leave(name, size, env | library)


# Forks a process for each exit, which loads MPI, rmaext and libfabric by itself; prints how
# often each status and output was seen, numbers apart.
REPEATED = """
import os, re, signal, sys, tempfile
from collections import Counter
import numpy

seen = Counter()
with tempfile.TemporaryFile() as told:
    for _ in range(1000):
        pid = os.fork()
        if not pid:
            signal.alarm(100)
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
            break
        _, status = os.waitpid(pid, 0)
        told.seek(0)
        text = re.sub(r"\\d+", "N", told.read().decode(errors="replace"))
        seen[os.waitstatus_to_exitcode(status), text] += 1
        told.seek(0)
        told.truncate()
if pid:
    print(dict(seen))
    sys.exit()
"""
ABRUPT = {
    "os._exit": ("os._exit(7)", 7, ""),
    "Abort": ("MPI.COMM_WORLD.Abort(9)", 9, "bort"),
}


@pytest.mark.stress
@pytest.mark.timeout(7300)
@pytest.mark.parametrize("kind", ["close", "forgotten", "sys.exit", "exception", *ABRUPT])
@pytest.mark.parametrize("library", ["preferred", "private", "system"])
def test_a_thousand_exits(library, kind, tmp_path):
    """A copy of libfabric 2.5 beside MPI's once ended in a double free, one time in many."""
    body, status, words = (EXITS | ABRUPT)[kind]
    path = {"preferred": "", "private": WHEEL, "system": SYSTEM}[library]
    if library == "private" and path:
        path = shutil.copy(path, tmp_path)
    if path and not Path(path).exists():
        pytest.skip(f"there is no {path}")
    code = REPEATED + PRELUDE + USED + textwrap.dedent(body)
    done = jobs.start(0, code, timeout=7200, env=FABRIC | {"RMAEXT_LIBFABRIC": path})
    seen = ast.literal_eval(done.stdout)
    assert list(seen.values()) == [1000], seen
    ((code, text),) = seen
    assert code == status, seen
    assert words in text if words else text == "end\n", seen


@pytest.mark.matrix
def test_os_exit():
    """Nothing of ours runs; the peers of a real job learn of it, see below."""
    done = start(0, "win = window(); exercise(win); os._exit(7)", FABRIC)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def test_one_rank_leaves_by_os_exit():
    """The others notice in an operation and in a collective, and go on."""
    body = """
        win, other = window(), window()
        exercise(win)
        if rank == 1:
            os._exit(0)
        start = time.monotonic()
        refuses(lambda: [win.get(1) for _ in range(10**6)], rmaext.PeerLostError)
        refuses(other.close, rmaext.PeerLostError)
        assert time.monotonic() - start < 10
        assert other.closed and (win.get(0) == win.local).all()
        os.write(1, b"end")
        os._exit(0)  # MPI's own end would wait for rank 1
    """
    done = launch.mpirun(2, PRELUDE + textwrap.dedent(body), env=FABRIC, survive=True)
    assert "end" in done.stdout, done.stdout + done.stderr


def test_exception_on_one_rank_only():
    """It leaves the with block and the program; the other is told, not stuck."""
    body = """
        win = window()
        exercise(win)
        try:
            with win:
                if rank == 0:
                    raise RuntimeError("mine")
        except rmaext.SyncError as error:
            assert rank == 1 and "rank 0 has left window 1" in str(error), error
            os.write(2, b"told\\n")
    """
    done = start(2, body, FABRIC)
    assert done.returncode, done.stderr
    assert "RuntimeError: mine" in done.stderr
    assert "told" in done.stderr


# -- collection ------------------------------------------------------------------


def test_memory_of_a_deleted_window_is_kept():
    """A peer still writes: neither a new window nor anything else gets that memory."""
    body = """
        for make in window, lambda: rmaext.Window.allocate(world, 1000):
            win = make()
            exercise(win)
            if rank == 1:
                alive = weakref.ref(win.local.base if win.local.base is not None else win.local)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    del win
                    gc.collect()
                assert [w.category for w in caught] == [ResourceWarning], caught
                assert "not closed" in str(caught[0].message)
                assert alive() is not None
            # objects where the deleted ones were
            more = [window() for _ in range(20)]
            noise = [np.zeros(1000) for _ in range(1000)]
            assert rank == 0 or alive() is not None
            world.Barrier()
            if rank == 0:
                for i in range(200):
                    win.put(np.full(1000, np.pi), 1)
                win.flush()
                assert (win.get(1) == np.pi).all()
            world.Barrier()
            assert not any(a.any() for a in [*noise, *(w.local for w in more)])
            for w in more:
                w.close()
        print("end")
        warnings.simplefilter("ignore")
    """
    clean(start(2, body, FABRIC), 2)


def test_warning_names_the_window():
    done = start(0, "window()", FABRIC | {"PYTHONWARNINGS": "always::ResourceWarning"})
    assert done.returncode == 0
    assert done.stderr.count("was not closed") == 1, done.stderr
    assert "float64" in done.stderr


@pytest.mark.parametrize(
    ("size", "env"), [(2, {}), pytest.param(0, FABRIC, marks=pytest.mark.matrix)]
)
def test_thousand_windows(size, env):
    """Descriptors, mappings and memory do not grow with those that were closed."""
    body = """
        def state():
            gc.collect()
            rss = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
            return len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines()), rss

        def rounds(n):
            for i in range(n):
                with rmaext.Window.allocate(world, 4000) if i % 2 else window(4000) as win:
                    win.put(np.ones(4000), peer)
            world.Barrier()
        rounds(100)
        before = state()
        rounds(1000)
        after = state()
        growth = np.subtract(after, before)
        assert growth[0] <= 0 and growth[1] <= 20 and growth[2] < 3 << 20, (before, after)
        print("end")
    """
    clean(start(size, body, env, timeout=60), max(size, 1))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a mount namespace")
def test_nothing_is_left_in_dev_shm():
    """In a job with a /dev/shm of its own."""
    body = f"""
        import ctypes, os, subprocess, sys
        sys.path.insert(0, {str(Path(launch.__file__).parent)!r})
        import launch
        assert ctypes.CDLL(None).unshare(0x20000) == 0  # CLONE_NEWNS
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
        done = launch.mpirun(2, sys.argv[1], env={FABRIC})
        print(done.stdout, done.stderr, done.returncode, os.listdir("/dev/shm"))
    """
    code = PRELUDE + (
        "win, other = window(), rmaext.Window.allocate(world, 1000)\n"
        "exercise(win); exercise(other); win.close(); print('end')"
    )
    done = launch.run_python(body, code)
    assert done.stdout.count("end") == 2
    assert done.stdout.split()[-2:] == ["0", "[]"], done.stdout + done.stderr


# -- fork ------------------------------------------------------------------------

FORK = """
    import multiprocessing, traceback
    made = window() if MAKE == "array" else rmaext.Window.allocate(world, 1000)
    exercise(made)
    mine = made.local.copy()

    def child():
        for call in every_use(made):
            refuses(call)
        refuses(window)
        refuses(lambda: rmaext.Window.allocate(MPI.COMM_SELF, 3))
        assert made.closed
        made.close()
        assert made.local.shape == (1000,)
        if MAKE == "array":  # arena memory is shared with children
            assert (made.local[:500] <= mine[:500]).all()
            made.local[:] = -1
        repr(made), repr(made.fabric), made.memory, made.size(peer), made.route(peer)
        gc.collect()

    def by_fork(end):
        pid = os.fork()
        if not pid:
            try:
                child()
                time.sleep(0.2)  # the parent goes on beside it
                end()
            except Exception:
                traceback.print_exc()
            os._exit(1)
        return pid

    pids = [by_fork(lambda: os._exit(0)) for _ in range(2)]
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert subprocess.run([sys.executable, "-c", "pass"]).returncode == 0
    assert (made.local == mine).all()
    world.Barrier()
    for i in range(50):  # into pages that the children share
        made.put(np.full(1000, i + rank + 0.0), peer)
        made.fence()
        assert (made.local == i + (rank - 1) % size).all()
        made.fence()
    process.join()
    assert process.exitcode == 0
    assert all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids)
    made.local[:] = 0
    exercise(made)
    with window() as another:
        exercise(another)
    made.close()
    print("end")
"""


@pytest.mark.parametrize(
    ("size", "make", "env"),
    [
        (2, "array", FABRIC),
        pytest.param(0, "allocate", FABRIC, marks=pytest.mark.matrix),
        pytest.param(0, "array", {}, marks=pytest.mark.matrix),
        pytest.param(2, "allocate", FABRIC | SYSTEMS, marks=pytest.mark.matrix),
    ],
)
def test_fork(size, make, env):
    clean(start(size, FORK.replace("MAKE", repr(make)), env), max(size, 1))


# -- Ctrl-C ----------------------------------------------------------------------

PIDS = "from support.processes import stop\npids = world.allgather(os.getpid())\n"

WAITS = {
    "get of a stopped peer, fence, close": """
        win = window()
        exercise(win)
        out = np.zeros(1000)
        if rank == 0:
            stop(pids[1])
            interrupted(lambda: win.get(1, out=out))
            interrupted(lambda: win.fetch_add(1.0, 1))
            interrupted(lambda: win.put(np.ones(900), 1) or win.flush())
            os.kill(pids[1], signal.SIGCONT)
            assert win.get(1)[999] == 1
        win.fence()
        assert rank == 0 or (win.local[1:900] == 1).all()
        win.close()

        fenced, closed, win = (rmaext.Window(world.Dup(), np.zeros(1000)) for _ in range(3))
        for call in fenced.fence, closed.close:
            if rank == 0:
                interrupted(call)
                world.send(None, 1)
            else:
                world.recv(source=0)
                call()
            world.Barrier()
        if rank == 0:  # out of step with the others
            for call in every_use(fenced) + every_use(closed): refuses(call)
            refuses(lambda: rmaext.Window(fenced.comm, np.zeros(3)), rmaext.SyncError)
        closed.close()
        exercise(win)
        win.close()
    """,
    "window creation": """
        win = window()
        if rank == 0:
            interrupted(window)
            world.send(None, 1)
            refuses(window, rmaext.SyncError)
        else:
            world.recv(source=0)
            refuses(window, rmaext.SyncError)
        exercise(win)
        with rmaext.Window(world.Dup(), np.zeros(1000)) as another:
            exercise(another)
    """,
    "first window creation": """
        if rank == 0:
            interrupted(window)
            world.send(None, 1)
        else:
            world.recv(source=0)
            refuses(window, rmaext.SyncError)
        world.Barrier()
    """,
}


@pytest.mark.parametrize("name", WAITS)
def test_interrupted_wait(name):
    body = PIDS + textwrap.dedent(WAITS[name]) + "\nprint('end')"
    done = start(2, body, FABRIC)
    # the duplicate of the communicator that was never made
    done.stderr = re.sub("MPICH: .* pending 1 references.\n", "", done.stderr)
    clean(done, 2)


@pytest.mark.parametrize("size", [2, pytest.param(0, marks=pytest.mark.matrix)])
def test_interrupted_at_any_time(size):
    """A handler raises every few milliseconds; no later operation suffers."""
    body = """
        class Now(Exception): pass

        def handler(signum, frame):
            raise Now

        win = rmaext.Window(world, np.zeros(300_000, "i8"))
        warm = win.get(peer)
        random.seed(rank)
        big, counts, longest = np.arange(100_000), [0, 0], 3e-3
        signal.signal(signal.SIGALRM, handler)
        end = time.monotonic() + SECONDS
        while (now := time.monotonic()) < end or (min(counts) <= 5 and now < end + 10):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, longest))
                    while True:
                        win.put(big[:100], peer, 100)
                        win.put(big, peer, 1000)
                        got = win.get(peer, 200_000, 100_000)
                        win.fetch_add(1, peer, 0)
                        win.flush(peer)
                        assert not got.any(), got
                        counts[0] += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Now:
                counts[1] += 1
                if counts[1] > 20 * counts[0] + 20:  # other processes take the cores
                    longest *= 1.1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        assert min(counts) > 5, counts
        win.flush()
        assert (win.get(peer, 1000, 100_000) == big).all()
        fabric, late = win._fabric, time.monotonic() + 20
        while fabric._orphans and time.monotonic() < late:
            time.sleep(0.01)
            win.get(peer, 0, 1)  # lets go of what was abandoned
        assert not fabric._orphans and not fabric._in_flight, (counts, fabric._in_flight)
        win.fence()
        theirs = world.sendrecv(counts, peer, source=peer)
        assert theirs[0] <= win.local[0] <= sum(theirs), (theirs, win.local[0])
        win.close()
        print("end")
    """.replace("SECONDS", "1")
    clean(start(size, body, FABRIC), max(size, 1))


def test_thread_in_a_blocked_get_at_exit():
    """Its peer is stopped, and wakes up after this process has begun to leave."""
    body = """
        pids = world.allgather(os.getpid())
        win = window()
        exercise(win)
        if rank == 0:
            os.kill(pids[1], signal.SIGSTOP)
            def get():
                with contextlib.suppress(rmaext.RmaError):  # or, on a busy machine, it is done
                    win.get(1)
            threading.Thread(target=get, daemon=True).start()
            time.sleep(0.1)
            wake = ["sh", "-c", f"sleep 0.5; kill -CONT {pids[1]}"]
            atexit.register(lambda: subprocess.Popen(wake))
        print("end", flush=True)
    """
    clean(start(2, "import atexit, contextlib\n" + textwrap.dedent(body), FABRIC), 2)
