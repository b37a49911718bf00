# SPDX-License-Identifier: BSD-3-Clause
"""Same-node routes in jobs of their own: what they use, what they leave, where they cannot work."""

from __future__ import annotations

import os
import re
import textwrap
import time
from pathlib import Path

import launch
import pytest
from same_node import PRELUDE, start
from support.jobs import clean, together

MPICH = launch.launcher()[1] == "mpich"
shared_job = together(PRELUDE, 2)


# -- what is used ----------------------------------------------------------------------


def test_direct_windows_use_nothing_else(tmp_path):
    """No thread, no listening socket, no second libfabric, no named file."""
    body = """
        from support import netns
        def named():
            "what of ours has a name; no other test of ours names memory, and TMPDIR is our own"
            shared = {name for name in os.listdir("/dev/shm") if "rmaext" in name}
            return shared | set(os.listdir(os.environ["TMPDIR"]))

        allocate().close()
        world.Barrier()
        before = mapped(), len(os.listdir("/proc/self/task")), set(netns.listening())
        wins = [allocate() for _ in range(5)] + [rmaext.Window(world, rmaext.zeros(1000))]
        for win in wins:
            assert win.fabric is None
            exercise(win)
        new = mapped() - before[0]
        assert not [path for path in new if not path.startswith("/memfd:rmaext")], new
        assert "/memfd:rmaext (deleted)" in mapped()
        assert len(os.listdir("/proc/self/task")) == before[1]
        assert set(netns.listening()) == before[2]
        loaded = {path for path in mapped() if "/libfabric" in path and ".so.1" in path}
        assert len(loaded) <= 1, loaded  # MPI's own, if it has one
        assert not named(), named()
        for win in wins:
            win.close()
        print("end")
    """
    env = {"PYTHONPATH": launch.PYTHONPATH, "TMPDIR": str(tmp_path)}
    clean(start(2, body, env=env), 2)


@shared_job
def test_three_thousand_windows_at_once():
    """Descriptors and mappings do not grow with their number; memory goes back with the last."""
    return """
        allocate().close()
        def state():
            gc.collect()
            return len(links()), len(open("/proc/self/maps").readlines())
        wins = [allocate(100) for _ in range(200)]
        world.Barrier()
        before = state()
        wins += [allocate(100) for _ in range(2800)]
        for i, win in enumerate(wins):
            win.put(np.float64(i), peer, 7)
        wins[0].fence()
        assert all(win.local[7] == i for i, win in enumerate(wins))
        after = state()
        assert after[0] <= before[0] and after[1] <= before[1] + 30, (before, after)
        wins[0].fence()
        for win in wins:
            win.close()
        print("end")
    """


@shared_job
def test_large_windows():
    """More than the first segment, more than a doubling, more than there is memory for."""
    return """
        sizes = [17 << 20, 40 << 20, 3 << 30, 1 << 38]
        wins = [rmaext.Window.allocate(world, n, "u1") for n in sizes]
        for win, n in zip(wins, sizes):
            assert win.route(peer) == "direct"
            for at in 0, n // 2, n - 9:
                win.put(np.full(9, rank + 1, "u1"), peer, at)
            win.flush(peer)
            assert win.fetch_add(np.uint8(5), peer, n // 3) == 0
            win.fence()
            assert (win.local[n - 9:] == peer % size + 1).all() or size != 2
            assert win.local[n // 3] == 5 and not win.local[1000:20000].any()
            assert win.get(peer, n - 3, 3).tolist() == [rank + 1] * 3
        assert sum(os.stat(f"/proc/self/fd/{fd}").st_blocks for fd in os.listdir("/proc/self/fd")
                   if os.path.exists(f"/proc/self/fd/{fd}")
                   and "memfd:rmaext" in os.readlink(f"/proc/self/fd/{fd}")) * 512 < 200 << 20
        for win in wins:
            win.close()
        print("end")
    """


def test_few_descriptors():
    """An error on all ranks when none is left, and the next window works."""
    body = """
        exercise(allocate())
        big, taken = 600 << 20, []
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        try:
            while rank == 0:
                taken.append(os.dup(2))
        except OSError:
            pass
        text = refuses(lambda: rmaext.Window.allocate(world, big, "u1"), MemoryError)
        assert "rank 0" in text, text
        # rank 0 may not open rank 1's new segment
        mine = rmaext.zeros(big if rank else 8, "u1")
        refuses(lambda: rmaext.Window(world, mine), OSError)
        for fd in taken:
            os.close(fd)
        with rmaext.Window(world, mine) as win:
            assert win.route(peer) == "direct"
            win.put(np.uint8(3), peer)
            win.fence()
            assert win.local[0] == 3
        print("end")
    """
    clean(start(2, body), 2)


def test_no_descriptors_for_a_communicator():
    """Wherever rank 0 runs out of them: the same on all ranks, and no rank waits."""
    body = """
        assert len(set(world.allgather(os.getpid()))) == size  # MPI has what it needs
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        made = 0
        for left in range(30):
            comm, taken = world.Dup(), []
            try:
                while rank == 0:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            for _ in range(min(left, len(taken))):
                os.close(taken.pop())
            try:
                win = (allocate, own)[left % 2](10, comm)
            except OSError as error:
                win, outcome = None, type(error).__name__
            else:
                outcome = "made"
            for fd in taken:
                os.close(fd)
            assert len(set(outcomes := world.allgather(outcome))) == 1, (left, outcomes)
            if win:
                made += 1
                win.put(np.float64(left), peer, 3)
                win.fence()
                assert win.local[3] == left
                win.close()
            comm.Free()
            if made == 4:
                break
        assert made == 4 and left > 3, (made, left)
        print("end")
    """
    clean(start(3, body), 3)


@pytest.mark.parametrize("who", ["all", "one"])
def test_no_arena(who):
    """Files may not grow to the first segment, as under `ulimit -f`: the other routes serve."""
    body = f"""
        if {who!r} == "all" or rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        array = rmaext.zeros((3, 4))
        assert array.shape == (3, 4) and not array.any()
        for make in allocate, own, lambda: rmaext.Window(world, rmaext.zeros(1000)):
            with make() as win:
                # rank 1 may still map what rank 0 has
                assert rank == 1 or win.route(1) in ("cma", "fabric")
                assert win.fabric is not None
                exercise(win)
        print("end")
    """
    clean(start(2, body), 2)


# -- what is left ------------------------------------------------------------------------


def holders(inodes):
    """Processes that still have one of these anonymous files."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue
        found += [
            line
            for line in text.splitlines()
            if "memfd:rmaext" in line and line.split()[4] in inodes
        ]
    return found


ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "os._exit": "os._exit(0)",
    "SIGSEGV": "import ctypes; faulthandler.disable(); ctypes.string_at(0)",
}


@pytest.mark.parametrize(
    ("end", "make"),
    [
        ("SIGKILL", "allocate"),
        ("SIGKILL", "own"),
        pytest.param("os._exit", "allocate", marks=pytest.mark.matrix),
        pytest.param("os._exit", "own", marks=pytest.mark.matrix),
        pytest.param("SIGSEGV", "allocate", marks=pytest.mark.matrix),
        pytest.param("SIGSEGV", "own", marks=pytest.mark.matrix),
    ],
)
def test_memory_after_a_sudden_end(end, make):
    """200 MB of the lost rank: the others learn of it soon, and nothing holds it after the job."""
    body = f"""
        import faulthandler
        wins = [{make}(25_000_000) for _ in range(3)]
        survivors = world.Split(rank == 2, rank)
        wins[0].local[:] = 1
        win = wins[0]
        assert win.route(peer) == ("direct" if "{make}" == "allocate" else "cma")
        world.Barrier()
        inodes = {{line.split()[4] for line in open("/proc/self/maps") if "memfd:rmaext" in line}}
        assert "{make}" == "own" or len(inodes) > 2
        say(f"inodes {{' '.join(inodes)}}")
        view = wins[0].peer_view(peer) if "{make}" == "allocate" else wins[0].local
        world.Barrier()
        if rank == 2:
            {ENDS[end]}
        began = time.monotonic()
        while True:
            try:
                win.put(2.0, 2)
                win.flush(2)
                win.get(2, 0, 1)
            except rmaext.PeerLostError as error:
                assert error.rank == 2, error
                break
            assert time.monotonic() - began < 8, "not noticed"
        for call in (
            lambda: win.put(1.0, 2), lambda: win.get(2, 0, 1), lambda: win.get(2),
            lambda: win.fetch_add(1.0, 2), lambda: win.compare_and_swap(1.0, 2.0, 2),
            lambda: win.flush(2), win.fence, wins[1].close, lambda: {make}(),
        ):
            text = refuses(call, rmaext.PeerLostError)
            assert "rank 2" in text, text
        assert time.monotonic() - began < 12
        other = wins[2]
        other.put(5.0, 1 - rank)
        other.flush(1 - rank)
        assert other.get(1 - rank, 0, 1)[0] == 5
        assert view[3] == 1  # of the lost rank too: it stays mapped
        survivors.Barrier()
        say("end")
        os._exit(0)
    """
    done = start(3, body, survive=True)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr
    inodes = set(" ".join(re.findall("inodes (.*)", done.stdout)).split())
    last = time.monotonic() + 5
    while holders(inodes) and time.monotonic() < last:
        time.sleep(0.05)
    assert not holders(inodes)


@pytest.mark.parametrize("make", ["allocate", "own"])
@shared_job
def test_memory_after_close_is_not_written(make):
    """By a put, or a put_many, of another thread that was on its way in close()."""
    return f"""
        n = 6_000_000
        data, at = np.full(n, 7.0), np.arange(200_000)
        fresh = rmaext.zeros if "{make}" == "allocate" else np.zeros
        for turn in range(4):
            win, ended = {make}(n), []
            assert win.route(1 - rank) == ("direct" if "{make}" == "allocate" else "cma")
            call = (
                (lambda: win.put(data, 1)) if turn % 3 else
                (lambda: win.put_many(1, at * 30, data[:at.size]))
            )
            def work():
                try:
                    while True:
                        call()
                except rmaext.ClosedError:
                    ended.append(True)
            thread = threading.Thread(target=work)
            if rank == 0:
                thread.start()
                time.sleep(0.03)
            win.close()
            assert win.closed
            if rank == 1:
                del win
                arrays = [fresh(n) for _ in range(2)]
                for array in arrays:
                    array[:] = 0
                time.sleep(0.05)
                wrong = [np.count_nonzero(array) for array in arrays]
                assert not any(wrong), (turn, wrong)
                del array, arrays
            else:
                thread.join()
                assert ended
            world.Barrier()
        print("end")
    """


@pytest.mark.parametrize("make", ["allocate", "own"])
def test_rank_that_runs_another_program(make):
    """Its pid is alive, but what it has in its memory is not the window."""
    body = f"""
        win, pids = {make}(), world.allgather(os.getpid())
        win.fence()
        if rank == 1:
            wait = "while kill -0 $0 2>/dev/null; do sleep 0.1; done"
            os.execv("/bin/sh", ["sh", "-c", wait, str(pids[0])])
        while not open(f"/proc/{{pids[1]}}/cmdline").read().startswith("sh\\0"):
            time.sleep(0.01)  # has its arguments once it has let go of all files
        for call in (
            lambda: win.put(1.0, 1), lambda: win.get(1, 0, 1), lambda: win.get(1),
            lambda: win.put_many(1, [0, 1], 1.0), lambda: win.get_many([1, 0], [0, 1]),
            lambda: win.fetch_add(1.0, 1), lambda: win.flush(1),
        ):
            text = refuses(call, rmaext.PeerLostError)
            assert "rank 1" in text, text
        win.put(1.0, 0)
        assert win.get(0, 0, 1)[0] == 1
        say("end")
        os._exit(0)
    """
    done = start(2, body, survive=True)
    assert done.stdout.count("end") == 1, done.stdout + done.stderr


@shared_job
def test_board_is_not_reused_while_a_rank_wakes_up_in_it():
    """Rank 1 is stopped in the last meeting; meanwhile rank 0 frees all that it can."""
    return """
        from support.processes import stopped
        pids = world.allgather(os.getpid())
        for i in range(2):
            comm = world.Dup()
            win = allocate(10, comm)
            if rank == 0:
                time.sleep(0.3)
                with stopped(pids[1]):
                    # if it came too late to be in that meeting
                    awake = threading.Timer(3, os.kill, (pids[1], signal.SIGCONT))
                    awake.start()
                    win.close()
                    awake.cancel()
                    comm.Free()
                    del win, comm
                    gc.collect()
                    blocks = [rmaext.zeros(n, "u1") for n in (2100, 2240, 2300, 64) * 20]
                assert not any(block.any() for block in blocks)
            else:
                win.close()
                comm.Free()
            world.Barrier()
            if rank == 0:
                assert not any(block.any() for block in blocks), [
                    (i, block.nonzero()) for i, block in enumerate(blocks) if block.any()]
            world.Barrier()
        print("end")
    """


def test_fence_does_not_succeed_when_the_board_goes():
    """Rank 0 leaves the window by an exception that it catches, and forgets all."""
    body = """
        comm = world.Dup()
        win = allocate(10, comm)
        win.fence()
        if rank == 0:
            time.sleep(0.3)
            try:
                with win:
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            comm.Free()
            del win, comm
            gc.collect()
            blocks = [rmaext.zeros(n, "u1") for n in (2100, 2240, 2300, 64) * 20]
        else:
            refuses(win.fence, rmaext.SyncError)
        say("end")
        world.Barrier()  # one that has left would be a lost rank
        os._exit(0)
    """
    done = start(2, body, survive=True)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr


# -- pid namespaces ----------------------------------------------------------------------

NAMESPACE = """
import os, sys
if len(sys.argv) < 3:
    options = ["--pid", "--fork", "--kill-child", *sys.argv[1].split()]
    os.execvp("unshare", ["unshare", *options, sys.executable, *sys.argv, "inside"])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs pid namespaces")
@pytest.mark.skipif(not MPICH, reason="Open MPI itself needs one pid namespace")
@pytest.mark.parametrize("proc", ["--mount-proc", "--mount"], ids=["own proc", "host's proc"])
def test_pid_namespace_of_each_rank(proc):
    """All ranks are pid 1: nothing is copied to oneself."""
    body = """
        assert os.getpid() == 1
        for make in allocate, own, lambda: rmaext.Window(world, rmaext.zeros(1000)):
            with make() as win:
                for other in set(range(size)) - {rank}:
                    assert win.route(other) == "fabric"
                    assert win.fabric is not None
                    refuses(lambda: win.peer_view(other), rmaext.NotLocalError)
                exercise(win)
                win.fence()
        print("end")
    """
    code = NAMESPACE + PRELUDE + textwrap.dedent(body)
    clean(launch.mpirun(2, code, proc, timeout=40), 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a pid namespace")
@pytest.mark.skipif(not MPICH, reason="Open MPI itself looks for its pids in /proc")
def test_job_in_a_pid_namespace_with_the_hosts_proc():
    """The ranks' numbers are other processes' there."""
    body = """
        for make in allocate, own:
            with make() as win:
                assert win.route(peer) in ("direct", "cma", "fabric")
                exercise(win)
        print("end")
    """
    code = f"""
        import subprocess, sys
        sys.path.insert(0, {str(Path(launch.__file__).parent)!r})
        import launch
        if sys.argv[2:]:
            # By shared memory UCX, which MPICH has, takes a rank for dead there.
            env = {{"UCX_TLS": "self,tcp"}}
            done = launch.mpirun(2, sys.argv[1], env=env)
            print(done.stdout, done.stderr, done.returncode)
        else:
            options = ["--pid", "--fork", "--kill-child"]
            again = [sys.executable, *sys.orig_argv[1:], "inside"]
            sys.exit(subprocess.run(["unshare", *options, *again]).returncode)
    """
    done = launch.run_python(code, PRELUDE + textwrap.dedent(body), timeout=40)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "0", done.stdout + done.stderr
