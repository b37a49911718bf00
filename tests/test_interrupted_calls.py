# SPDX-License-Identifier: BSD-3-Clause
"""Collective calls that an exception ends where nobody expects one, and deaths amid them."""

from __future__ import annotations

import textwrap

import launch
import pytest

PRELUDE = """
import errno, os, signal, sys, threading, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, last = world.rank, world.size - 1
import numpy as np
import rmaext

def raising(call):
    "Return what it raises, in words."
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "passed"
"""


def start(size, body, env=None, **options):
    return launch.mpirun(size, PRELUDE + textwrap.dedent(body), env=env, timeout=45, **options)


# functions of meeting.py, group.py and collective.py whose first line a signal handler precedes
ENTRIES = ["__enter__", "begin", "reduce", "_meet", "_announce", "complete", "finish", "__exit__"]


@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_a_signal_at_any_entry(route):
    """Both ranks learn of it at once or at the next call; none waits for ever."""
    body = f"""
        def at(name):
            def profile(frame, event, _):
                code = frame.f_code
                if event == "call" and code.co_name == name and "/rmaext/" in code.co_filename:
                    sys.setprofile(None)
                    raise KeyboardInterrupt
            return profile

        for name in {ENTRIES!r}:
            comm = world.Dup()
            win = rmaext.Window.allocate(comm, 4)
            win.fence()
            if rank:
                sys.setprofile(at(name))
            first = raising(win.fence)
            sys.setprofile(None)
            interrupted = first.startswith("KeyboardInterrupt")
            if interrupted and not win._group.meetings.over:
                first = raising(win.fence)  # it had not begun: nobody has been told
                interrupted = False
            told = world.allgather((interrupted, first, raising(win.fence)))
            if told[last][0]:
                for rank_, (_, one, two) in enumerate(told):
                    texts = [two] if rank_ == last else [one, two]
                    # over MPI's collectives the call of the one that had come takes place
                    if texts[0] == "passed":
                        texts = texts[1:]
                    for text in texts:
                        assert text.split(":")[0] in ("SyncError", "ClosedError"), (name, told)
            else:
                assert all(one == two == "passed" for _, one, two in told), (name, told)
        print("end", flush=True)
    """
    env = {"RMAEXT_ROUTE": "fabric"} if route == "fabric" else {}
    done = start(2, body, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end\n") == 2, done.stdout + done.stderr


def test_a_death_amid_a_fence():
    """One that comes later learns the same as the one that was there: all, or none."""
    body = """
        win = rmaext.Window.allocate(world, 4)
        win.fence()
        if rank == last:
            threading.Timer(0.5, os._exit, (0,)).start()
            win.fence()
        if rank == 1:
            time.sleep(3)
        os.write(1, (raising(win.fence) + "\\n").encode())
        time.sleep(4 if rank == 0 else 0)
        os._exit(0)
    """
    done = start(3, body, survive=True)
    assert done.stdout.count("PeerLostError: rank 2") == 2, done.stdout + done.stderr


@pytest.mark.parametrize("env", [{}, {"RMAEXT_ROUTE": "fabric"}], ids=["direct", "fabric"])
def test_one_at_its_end_serves_on_though_another_dies(env):
    body = """
        win = rmaext.Window.allocate(world, 4)
        win.fence()
        pid = world.bcast(os.getpid())
        if rank == last:
            time.sleep(0.5)
            os._exit(0)
        if rank == 1:
            for i in range(4):
                time.sleep(1)
                win.put(float(i), 0)
                win.flush()
                with win.lock(0):
                    assert win.get(0)[0] == i
            os.write(1, b"served\\n")
            os.kill(pid, signal.SIGKILL)  # MPI would not let it end, as one has died
            os._exit(0)
    """
    done = start(3, body, env, survive=True)
    assert "served" in done.stdout, done.stdout + done.stderr


def test_an_exit_from_a_signal_handler_at_the_end():
    """It ends the wait; what is to be shut down is, and the others notice."""
    body = """
        win = rmaext.Window.allocate(world, 4)
        win.fence()
        pid = world.bcast(os.getpid())
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        if rank:
            time.sleep(1)
            os.kill(pid, signal.SIGTERM)
            start = time.monotonic()
            while raising(lambda: (win.put(1.0, 0), win.flush())) == "passed":
                assert time.monotonic() - start < 10
                time.sleep(0.01)
            os.write(1, b"noticed\\n")
    """
    done = start(2, body)
    assert "noticed" in done.stdout, done.stdout + done.stderr


def test_a_setting_of_one_rank_is_all_ranks_error():
    body = """
        if rank:
            os.environ["RMAEXT_MPI_PROGRESS"] = "2"
        text = raising(lambda: rmaext.Window.allocate(world, 1))
        assert text.startswith("ValueError: rank 1: RMAEXT_MPI_PROGRESS"), text
        os.environ.pop("RMAEXT_MPI_PROGRESS", None)
        rmaext.Window.allocate(world, 1).close()
        print("end", flush=True)
    """
    done = start(2, body)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr


def test_words_that_cannot_be_encoded():
    body = r"""
        win = rmaext.Window.allocate(world, 1)
        try:
            with win:
                if rank:
                    raise OSError("no file \udc80")
                time.sleep(0.5)
        except (OSError, rmaext.SyncError) as error:
            assert win.closed
            assert "no file" in str(error), ascii(str(error))
            print("end", flush=True)
    """
    done = start(2, body)
    assert done.stdout.count("end") == 2, done.stdout + done.stderr
