# SPDX-License-Identifier: BSD-3-Clause
"""Collective calls that an exception ends where nobody expects one, and deaths amid them."""

from __future__ import annotations

import textwrap

import launch
import pytest
from support.jobs import together

PRELUDE = """
import errno, os, signal, sys, threading, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, last = world.rank, world.size - 1
import numpy as np
from support.processes import ring_in_wait, waits
import rmaext

def raising(call):
    "Return what it raises, in words."
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "passed"
"""

AT = """
def at(name, error):
    "Return a profile function that raises at the beginning of a function of rmaext"
    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name == name and "/rmaext/" in code.co_filename:
            sys.setprofile(None)
            sys._clear_type_cache()  # a look-up that goes on from here may lose what is raised
            raise error
    return profile
"""


# The route of communicators that are made from here on.
ROUTES = {
    "direct": "os.environ.pop('RMAEXT_ROUTE', None)",
    "fabric": "os.environ['RMAEXT_ROUTE'] = 'fabric'",
}
shared_job = together(PRELUDE + AT, 2)


def start(size, body, env=None, before="", **options):
    code = before + PRELUDE + AT + textwrap.dedent(body)
    env = {"PYTHONPATH": launch.PYTHONPATH} | (env or {})
    return launch.mpirun(size, code, env=env, timeout=45, **options)


# functions of meeting.py, group.py and collective.py whose first line a signal handler precedes
ENTRIES = ["__enter__", "begin", "reduce", "_meet", "_announce", "complete", "finish", "__exit__"]


HANDED = ["_fence_on", "collective", "__enter__", "begin", "reduce", "_meet", "_come", "_now"]


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("route", ROUTES)
@shared_job
def test_a_signal_while_python_goes_on_with_a_fence_of_c(route, error):
    """This rank has come to the meeting by then; the call is given up, and the other one learns."""
    return f"""
        {ROUTES[route]}
        for name in {HANDED!r}:
            comm = world.Dup()
            win = rmaext.Window.allocate(comm, 4)
            win.fence()
            if rank:
                sys.setprofile(at(name, {error}))
            else:
                world.recv(source=1)  # it waited in C before it went on in Python
            first = raising(win.fence)
            sys.setprofile(None)
            if rank:
                world.send(None, 0)
            assert first.startswith("{error}" if rank else ("passed", "SyncError")), (name, first)
            second = raising(win.fence)
            closed = "ClosedError" if rank else "SyncError"  # an interrupted fence may close it
            assert second.startswith(("SyncError", closed)), (name, second)
        print("end")
        """


def test_no_exception_of_a_signal_handler_is_lost_in_a_fence():
    """However often it comes, and whichever line it meets."""
    body = """
        win = rmaext.Window.allocate(MPI.COMM_SELF, 4)
        sent = 0
        def handler(*_):
            global sent
            sent += 1
            raise TimeoutError
        signal.signal(signal.SIGALRM, handler)
        caught = 0
        while caught < 500:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + caught % 50 * 1e-6)
                while True:
                    win.fence()
            except TimeoutError:
                caught += 1
        assert caught == sent, (caught, sent)
        print("end", flush=True)
        """
    done = start(1, body)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "end" in done.stdout


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("route", ROUTES)
@shared_job
def test_a_signal_at_any_entry(route, error):
    """Both ranks learn of it at once or at the next call; none waits for ever."""
    return f"""
        {ROUTES[route]}
        for name in {ENTRIES!r}:
            comm = world.Dup()
            win = rmaext.Window.allocate(comm, 4)
            win.fence()
            if rank:
                sys.setprofile(at(name, {error}))
            first = raising(win._fence)  # C's runs no line of Python meanwhile
            sys.setprofile(None)
            interrupted = first.startswith("{error}")
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
        print("end")
    """


# those that a creation runs on the way
STAGES = ["exchange", "by", "gather_whole", "records", "take", "connect", "_adopt", "finish"]


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "TimeoutError"])
@pytest.mark.parametrize("route", ROUTES)
@shared_job
def test_a_signal_at_any_stage_of_a_creation(route, error):
    """The next creation takes place on all ranks, or is refused on all: none waits for ever."""
    return f"""
        {ROUTES[route]}
        outcomes = set()
        for name in {STAGES!r}:
            comm = world.Dup()
            first = rmaext.Window.allocate(comm, 4)
            create = lambda: rmaext.Window.allocate(comm, 4)
            meetings = first._group.meetings
            number = meetings._numbers.number
            if rank:
                sys.setprofile(at(name, {error}))
            said = [raising(create)]
            sys.setprofile(None)
            assert said[0].startswith("{error}") or not rank, (name, said)
            if rank and meetings._numbers.number == number and not meetings.over:
                raising(create)  # it had not begun, and the other rank waits for it
            said += [raising(create), raising(create)]
            told = world.allgather([text.split(":")[0] for text in said])
            assert len({{words[2] for words in told}}) == 1, (name, told)
            assert told[0][2] in ("passed", "SyncError"), (name, told)
            outcomes.add(told[0][2])
        assert "SyncError" in outcomes, outcomes
        print("end")
    """


def test_others_go_on_after_a_refused_call():
    """A thread that an exception left early does not keep the turn; nor does a call in a call."""
    done = start(
        2,
        """
        win = rmaext.Window.allocate(world, 4)

        def in_a_thread():
            said = []
            thread = threading.Thread(target=lambda: said.append(raising(win.fence)))
            thread.start()
            thread.join()
            return said[0]

        def profile(frame, event, function):  # just after the turn has been taken
            if event == "c_return" and function.__name__ == "rmaext_meetings_turn":
                if "/rmaext/_comm/meeting" in frame.f_code.co_filename:
                    sys.setprofile(None)
                    raise TimeoutError
        sys.setprofile(profile)
        first = raising(win._fence)  # C's runs no line of Python meanwhile
        sys.setprofile(None)
        assert first.startswith("TimeoutError"), first
        assert in_a_thread() == "passed"
        # a handler that calls during a call is refused, and the outer call goes on
        inner = []
        def handler(*_):
            inner.append(raising(win.fence))
            inner.append(in_a_thread())
            world.send(None, 1)
        if rank == 0:
            ring_in_wait(lambda *_: handler())
            win.fence()
            assert inner[0].startswith("SyncError"), inner
            assert inner[1].startswith("BusyError"), inner
        else:
            world.recv(source=0)  # it has been in the fence, and still is
            win.fence()
        win.fence()
        print("end", flush=True)
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end\n") == 2, done.stdout + done.stderr


def test_many_ranks_that_are_lost_fit_into_what_is_told():
    """Those who come later to a meeting learn of as many of them as there is room for."""
    code = """
        from rmaext._comm.abandoned import MOST, cancelled, lost_ranks
        for count in (1, 5, 60, 500):
            error = rmaext.PeerLostError(errno.ENOTCONN, "wörds " * 90, rank=0)
            error.ranks = tuple(range(count))
            said = lost_ranks(error)
            assert len(said.encode()) <= MOST, len(said)
            again = cancelled(said)
            assert again.ranks[:60] == error.ranks[:60], again.ranks
        print("end", flush=True)
    """
    done = start(1, code)
    assert done.stdout.count("end\n") == 1, done.stdout + done.stderr


def test_a_first_creation_interrupted_below_thread_multiple():
    """The others are told at the next call, since no thread may do so."""
    done = start(
        2,
        """
        comm, beside = world.Dup(), world.Dup()
        create = lambda: rmaext.Window.allocate(comm, 4)
        if rank:
            ring_in_wait(signal.default_int_handler)
            said = raising(create)
            assert said.startswith("KeyboardInterrupt"), said
            world.Barrier()
            time.sleep(0.5)  # the other has come by now, and moves MPI
            rmaext.Window.allocate(MPI.COMM_SELF, 1)
        else:
            world.Barrier()
            said = raising(create)
            assert said.startswith("SyncError: rank 1 has given up the creation"), said
        rmaext.Window.allocate(beside, 4).fence()
        print("end", flush=True)
        """,
        before="import mpi4py; mpi4py.rc.thread_level = 'serialized'",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end\n") == 2, done.stdout + done.stderr


def test_a_signal_after_a_flush_that_failed():
    """Wherever it comes, the lock is released."""
    done = start(
        1,
        """
        win = rmaext.Window.allocate(world, 4)
        def fail(rank=None):
            sys.setprofile(profile)
            raise rmaext.RmaTimeout(errno.ETIMEDOUT, "not flushed")
        def profile(frame, event, _):
            if event == "call" and frame.f_code.co_filename.endswith("sync.py"):
                sys.setprofile(None)
                raise KeyboardInterrupt
        for lock, unlock in ((lambda: win.lock(0), lambda: win.unlock(0)),
                             (win.lock_all, win.unlock_all)):
            lock()
            win.flush = fail
            said = raising(unlock)
            sys.setprofile(None)
            del win.flush
            assert said.split(":")[0] in ("KeyboardInterrupt", "RmaTimeout"), said
            win.lock(0, timeout=0)
            win.unlock(0)
        print("end", flush=True)
        """,
    )
    assert done.stdout.count("end\n") == 1, done.stdout + done.stderr


def test_a_death_amid_a_fence():
    """One that comes later learns the same as the one that was there: all, or none."""
    body = """
        survivors = world.Split(rank == last)
        win = rmaext.Window.allocate(world, 4)
        win.fence()
        if rank == last:
            threading.Timer(0.5, os._exit, (0,)).start()
            win.fence()
        if rank == 1:
            time.sleep(3)
        os.write(1, (raising(win.fence) + "\\n").encode())
        survivors.Barrier()  # one that had left would be lost, too
        os._exit(0)
    """
    done = start(3, body, survive=True)
    assert done.stdout.count("rank 2: the process is gone") == 2, done.stdout + done.stderr


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
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        pid = world.bcast(os.getpid())
        if rank:
            while waits(pid) != "meeting":  # with which it ends
                time.sleep(0.01)
            time.sleep(0.3)
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
