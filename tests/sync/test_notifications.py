# SPDX-License-Identifier: BSD-3-Clause
"""Notified access, and waiting for changes of the own memory, by every route."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from typing import Any, NoReturn

import numpy as np
import pytest
from support.guarded import Guarded, guarded, neighbour, same
from support.jobs import PRELUDE

import rmaext

SLOTS = 256
DATA, FREE, ROUND = 0, 1, 255  # slots
ENVIRONMENTS = [
    pytest.param({}, id="direct"),
    pytest.param({"ARRAY": "own"}, id="cma", marks=pytest.mark.matrix),
    pytest.param({"RMAEXT_ROUTE": "fabric"}, id="fabric"),
    pytest.param({"RMAEXT_ROUTE": "fabric", "RMAEXT_PROGRESS": "0"}, id="fabric, no thread"),
]
WINDOW = """
def window(n=1000, dtype=float):
    if os.environ.get("ARRAY") == "own":
        return rmaext.Window(world, np.zeros(n, dtype))
    return rmaext.Window.allocate(world, n, dtype)
"""


def by_memory(win, rank):
    return win.route(rank) != "fabric"


# -- data first, and every notification counted ----------------------------------------


def everything_is_there(comm, rounds):
    """Each rank sends to its neighbour, which finds all of it, and says so."""
    to, back = neighbour(comm), (comm.rank - 1) % comm.size
    lengths = [1, 3, 8, 600, 20_000, 70_000]
    with guarded(comm, max(lengths), "i8") as win:
        for number in range(rounds):
            n = lengths[number % len(lengths)]
            first = number % (max(lengths) - n + 1)
            win.put_notify(np.full(n, number + 1), to, first, DATA)
            assert win.wait_notify(DATA) == 1
            assert (win.local[first : first + n] == number + 1).all()
            win.put_notify(win.local[:0], back, slot=FREE)
            assert win.wait_notify(FREE) == 1
        win.fence()
        assert not win.notify_counts().any()


def test_data_is_there_before_its_notification(comm):
    everything_is_there(comm, 60)


def test_notifications_come_in_the_order_of_their_calls(comm):
    """Long ones are writes, several at a time, and messages, which do not overtake them."""
    right, rounds = neighbour(comm), 20
    sizes = [100_000, 1, 5000, 0, 33_000]
    where = np.cumsum([0, *sizes])
    with rmaext.Window.allocate(comm, where[-1], np.uint8) as win:
        for turn in range(rounds):
            comm.Barrier()  # else the next turn's data may be there already
            requests = []
            for slot, size in enumerate(sizes):
                data = np.full(size, turn + 1, np.uint8)
                begin = win.rput_notify if slot % 2 == 0 else win.put_notify
                requests.append(begin(data, right, where[slot], slot))
            for slot in reversed(range(len(sizes))):
                win.wait_notify(slot)
                last = where[slot + 1]
                assert (win.local[:last] == turn + 1).all(), (turn, slot)
            assert not any(request.wait() for request in requests if request is not None)
        assert not win.notify_counts().any()


def test_a_reader_tells_that_it_has_read(comm):
    """Who is told overwrites at once: the reader has what was there before."""
    origin, target = (comm.rank - 1) % comm.size, neighbour(comm)
    with guarded(comm, 5000, "i8") as win:
        out = np.empty(5000, np.int64)
        for number in range(20):
            win.local[:] = number
            win.put_notify(win.local[:0], origin, slot=ROUND)
            win.wait_notify(ROUND)
            assert win.get_notify(target, slot=FREE, out=out) is out
            assert (out == number).all()
            win.wait_notify(FREE)  # now the origin's copy is made
        assert win.get_notify(target, 10, 2, FREE).tolist() == [19, 19]
        assert win.get_notify(target, 10, 0, slot=FREE).size == 0
        assert win.wait_notify(FREE, 2) >= 2
        win.fence()
        assert not win.notify_counts().any()


def test_an_origin_is_answered_by_one_that_was_notified_and_sleeps(comm):
    """The answer may wait for a message back, but not for one that comes after it."""
    last = comm.size - 1
    mine = Guarded(1, "i8")
    with rmaext.Window(comm, mine.array, timeout=20) as win:
        for number in range(3):
            win.fence()
            if comm.rank == 0:
                win.put_notify(np.array([number]), last, 0, DATA)
                win.flush(last)
                answered = comm.isend(None, last)
            if comm.rank == last:
                win.wait_notify(DATA)
                while not comm.iprobe():
                    time.sleep(0.01)
                comm.recv()
                assert win.local[0] == number
            if comm.rank == 0:
                answered.wait()


def counted(comm, each):
    """All ranks, this one too, notify all slots of a few of all ranks at the same time."""
    slots = [0, 7, 255]
    with guarded(comm, comm.size, "i8") as win:
        for number in range(each):
            for rank in range(comm.size):
                slot = slots[(number + rank + comm.rank) % 3]
                win.put_notify(number + 1, (comm.rank + rank) % comm.size, comm.rank, slot)
        left = each * comm.size
        while left > 0:
            left -= len(win.wait_some(slots))
            if left:
                assert win.wait_any(slots) in slots
                left -= 1
        assert (win.local == each).all()
        win.fence()
        assert not win.notify_counts().any()


def test_notifications_of_many_origins_are_all_counted(comm):
    counted(comm, 40)


def one_slot(comm, each):
    with guarded(comm, 1, "i8") as win:
        for _ in range(each):
            for rank in range(comm.size):
                win.put_notify(1, rank, 0, 9)
        assert win.wait_notify(9, each * comm.size) == each * comm.size
        assert not win.notify_counts().any()
        win.fence()


def test_many_origins_count_up_one_slot(comm):
    one_slot(comm, 60)


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_million_notifications(world):
    one_slot(world, 1_000_000 // world.size**2)
    everything_is_there(world, 5000)


# -- waiting ---------------------------------------------------------------------------


def test_counts_are_taken_once(comm):
    with guarded(comm, 4, "f4") as win:
        me = comm.rank
        assert not win.test_notify(5)
        for _ in range(5):
            win.put_notify(1.5, me, 3, 5)
        win.flush()
        assert win.wait_notify(5, 2) == 5  # what was there
        assert not win.test_notify(5, 4)
        assert win.test_notify(5, 3) is True
        assert win.test_notify(5) is False
        counts = win.notify_counts()
        assert same(counts, np.zeros(SLOTS, np.int64))
        win.put_notify(2.5, me, 0, 255)
        win.flush()
        assert not counts.any(), "it is a copy"
        assert win.notify_counts()[255] == 1
        assert win.wait_notify(slot=255, count=1, timeout=5) == 1
        assert win.local.tolist() == [2.5, 0, 0, 1.5]


def test_several_slots(comm):
    with guarded(comm, 1, "u1") as win:

        def notify(*slots):
            for slot in slots:
                win.put_notify(np.uint8(1), comm.rank, 0, slot)
            win.flush()

        notify(3, 9, 200)
        assert win.wait_any([200, 3]) == 200
        assert win.wait_any(iter([200, 3, 9])) == 3
        assert win.wait_some((200, 9, 3)) == [9]
        notify(1, 2, 2, 4)
        assert win.wait_some([4, 0, 2, 1]) == [4, 2, 1]
        assert win.notify_counts()[2] == 1
        for wait in (win.wait_all, win.wait_some, win.wait_any):
            with pytest.raises(rmaext.RmaTimeout, match="slots 5, 6"):
                wait([5, 6], timeout=0.02)
        notify(5)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_all([2, 5, 6], timeout=0.02)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_all([2, 5, 2], timeout=0)
        assert win.notify_counts()[[2, 5, 6]].tolist() == [1, 1, 0], "all or nothing"
        notify(2)
        win.wait_all([2, 5, 2], timeout=0)
        assert not win.notify_counts().any()


def test_each_count_wakes_one_of_several_threads(comm):
    each, threads = 100, 3
    with guarded(comm, 1, "i8") as win:
        taken: list[int] = []

        def work():
            for _ in range(each):
                win.wait_notify(77, timeout=30)
                taken.append(1)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for _ in range(each * threads):
            win.put_notify(1, neighbour(comm), 0, 77)
        for worker in workers:
            worker.join()
        assert len(taken) == each * threads
        win.fence()
        assert not win.notify_counts().any()


class RingError(Exception):
    pass


NOTHING = np.empty(0)
WAITS = {
    "wait_notify": lambda win: win._wait_notify(3, 2),
    "test_notify": lambda win: win._test_notify(3, 2),
    "wait_any": lambda win: win.wait_any([2, 3]),
    "wait_some": lambda win: win.wait_some([3, 4, 3]),
    "wait_all": lambda win: win.wait_all([4, 3, 3]),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_handler_that_raises_takes_nothing(comm, wait):
    """It may raise between any two steps of Python, but not behind the last."""
    with rmaext.Window.allocate(comm, 1) as win:
        for _ in range(3):
            win.put_notify(NOTHING, comm.rank, 0, 3)
            win.put_notify(NOTHING, comm.rank, 0, 4)
        win.flush()
        while win.notify_counts().sum() < 6:
            pass

        def interrupted(after: int) -> bool:
            """Whether there are so many steps; an exception is raised at that one."""
            left = after
            depth = 0

            def step(frame: Any, event: str, _: object) -> None:
                nonlocal left, depth
                depth += {"call": 1, "return": -1}.get(event, 0)
                left -= 1
                if left < 0 and depth > 1:  # what comes after the call is its caller's
                    sys.setprofile(None)
                    raise RingError

            gc.disable()  # in what it calls, an exception is lost
            sys.setprofile(step)
            try:
                WAITS[wait](win)
            except RingError:
                return True
            finally:
                sys.setprofile(None)
                gc.enable()
            return False

        steps = 0
        while interrupted(steps):
            assert win.notify_counts().sum() == 6, f"step {steps}"
            steps += 1
        assert steps > 3
        assert win.notify_counts().sum() < 6


@pytest.mark.parametrize("count", [1, 2])
def test_a_signal_that_comes_with_a_notification(comm, count):
    """The counts are there when the handler raises, or the call has returned them."""

    def ring(*_: object) -> NoReturn:
        raise RingError

    before = signal.signal(signal.SIGUSR1, ring)
    with rmaext.Window.allocate(comm, 1) as win:
        for _ in range(10):
            go = threading.Event()

            def work(go: threading.Event = go) -> None:
                go.wait()
                time.sleep(0.01)
                for _ in range(count):
                    win.put_notify(NOTHING, comm.rank)
                win.flush()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

            thread = threading.Thread(target=work)
            thread.start()
            got = 0
            try:
                go.set()
                got = win.wait_notify(0, count)
                thread.join()  # it has rung
                time.sleep(1)
            except RingError:
                pass
            thread.join()
            if not got:
                assert win.wait_notify(0, count, timeout=10) == count
    signal.signal(signal.SIGUSR1, before)


def test_a_wait_ends_at_its_time_limit(comm):
    with guarded(comm, 3, "i8") as win:
        win.put_notify(1, comm.rank, 0, 8)
        win.flush()
        for wait in (
            lambda: win.wait_notify(8, 2, 0.2),
            lambda: win.wait_all([8, 9], 0.2),
            lambda: win.wait_any([9, 10], timeout=0.2),
            lambda: win.wait_until(1, ">", 0, 0.2),
        ):
            start = time.monotonic()
            with pytest.raises(rmaext.RmaTimeout, match=r"window \d+, .*not within 0.2 s"):
                wait()
            assert 0.19 < time.monotonic() - start < 20
        assert win.wait_notify(8, timeout=0) == 1
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_notify(8, timeout=0)


# -- waiting for the own memory --------------------------------------------------------

COMPARED = [
    ("==", [0, 1, 2], 1),
    ("!=", [0, 1], 0),
    ("<", [9, 5, 4], 5),
    ("<=", [9, 6, 5], 5),
    (">", [0, 5, 6], 5),
    (">=", [0, 4, 5], 5),
]


@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
)
def test_wait_until_compares(comm, dtype):
    with guarded(comm, 5, dtype) as win:
        for comparison, values, wanted in COMPARED:
            for value in values:
                win.local[3] = value
                holds = eval(f"value {comparison} wanted", None, {"value": value, "wanted": wanted})
                if holds:
                    seen = win.wait_until(3, comparison, wanted)
                    assert same(seen, np.dtype(dtype).type(value))
                else:
                    with pytest.raises(rmaext.RmaTimeout):
                        win.wait_until(3, comparison, wanted, timeout=0)
        if np.dtype(dtype).kind != "u":
            win.local[3] = -1
            assert win.wait_until(3, "<", 0) == -1
            win.local[3] = np.iinfo(dtype).min if np.dtype(dtype).kind == "i" else -np.inf
            assert win.wait_until(3, "<", -100) == win.local[3]


def test_wait_until_of_bools_and_nan(comm):
    with guarded(comm, 2, "?") as win:
        assert same(win.wait_until(0, "!=", True), np.bool_(False))
        win.put(True, comm.rank, 1)
        win.flush()
        assert same(win.wait_until(1, "==", True, timeout=5), np.bool_(True))
    with guarded(comm, 2, "f8", np.nan) as win:
        for comparison in ("==", "<", ">="):
            with pytest.raises(rmaext.RmaTimeout):
                win.wait_until(0, comparison, float("nan"), timeout=0)
        assert np.isnan(win.wait_until(0, "!=", 1.0))


CHANGES = {
    "put": lambda win, rank: (win.put(7, rank, 5), win.flush(rank)),
    "put, flush all": lambda win, rank: (win.put(7, rank, 5), win.flush()),
    "fetch_add": lambda win, rank: win.fetch_add(7, rank, 5),
    "compare_and_swap": lambda win, rank: win.compare_and_swap(0, 7, rank, 5),
    "accumulate_many": lambda win, rank: win.accumulate_many(rank, 5, 7),
    "put_notify": lambda win, rank: (win.put_notify(7, rank, 5, 1), win.flush(rank)),
}


@pytest.mark.parametrize("how", CHANGES)
def test_wait_until_sees_what_others_do(world, how):
    """By turns, after the waiter has gone to sleep, or while it spins."""
    with guarded(world, 6, "i8") as win:
        for number in range(8):
            waiter = number % world.size
            world.Barrier()
            if world.rank == (waiter + 1) % world.size and world.size > 1:
                time.sleep(0.02 * (number % 2))
                CHANGES[how](win, waiter)
            if world.rank == waiter:
                if world.size == 1:
                    CHANGES[how](win, waiter)
                assert win.wait_until(5, "==", 7, timeout=20) == 7
                win.local[5] = 0
            world.Barrier()
            if how == "put_notify" and world.rank == waiter:
                assert win.test_notify(1)


@pytest.mark.mpi(min_size=2)
def test_wait_until_sees_a_store_of_a_neighbour(world):
    with rmaext.Window.allocate(world, 8, "i4") as win:
        peer = neighbour(world)
        if any(win.route(rank) != "direct" for rank in range(world.size)):
            pytest.skip("no memory in common")
        view = win.peer_view(peer)
        world.Barrier()
        time.sleep(0.01)
        view[3] = 9
        assert win.wait_until(3, "==", 9, timeout=20) == 9
        del view
        win.fence()


# -- refusals --------------------------------------------------------------------------


@pytest.mark.pair
def test_slots_counts_and_places_are_checked(comm):
    with guarded(comm, 10, "i8") as win:
        me = comm.rank
        calls = [
            lambda slot: win.put_notify(1, me, 0, slot),
            lambda slot: win.get_notify(me, slot=slot),
            lambda slot: win.wait_notify(slot),
            lambda slot: win.test_notify(slot),
            lambda slot: win.wait_any([0, slot]),
            lambda slot: win.wait_some([slot]),
            lambda slot: win.wait_all([slot]),
        ]
        for call in calls:
            for slot in (-1, SLOTS, 2**70):
                with pytest.raises(rmaext.BoundsError, match="slots 0 to 255"):
                    call(slot)
            with pytest.raises(TypeError):
                call(1.5)
        for count in (0, -1, 2**63):
            with pytest.raises(ValueError, match="count"):
                win.wait_notify(0, count)
            with pytest.raises(ValueError, match="count"):
                win.test_notify(0, count)
        for wait in (win.wait_any, win.wait_some, win.wait_all):
            with pytest.raises(ValueError, match="no slots"):
                wait([])
        for offset in (-1, 10):
            with pytest.raises(rmaext.BoundsError):
                win.wait_until(offset, "==", 0)
        with pytest.raises(ValueError, match="=>"):
            win.wait_until(0, "=>", 0)
        with pytest.raises(TypeError):
            win.wait_until(0, "==", 0.5)
        with pytest.raises(ValueError, match="one value"):
            win.wait_until(0, "==", np.arange(2))
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                win.wait_notify(0, timeout=timeout)
        with pytest.raises(TypeError, match="timeout"):
            win.wait_until(0, "==", 1, timeout="1")
        win.fence()
        assert not win.notify_counts().any(), "who was refused notified"
        assert not win.local.any()


def test_rights(comm):
    with rmaext.Window(comm, rmaext.zeros(4, "i8"), access="r") as win:
        with pytest.raises(rmaext.AccessError):
            win.put_notify(1, neighbour(comm))
        assert win.get_notify(neighbour(comm), slot=1).tolist() == [0] * 4
        win.wait_notify(1)
        win.fence()
        assert not win.notify_counts().any()
    with rmaext.Window(comm, rmaext.zeros(4, "i8"), access="w") as win:
        with pytest.raises(rmaext.AccessError):
            win.get_notify(neighbour(comm))
        win.put_notify(3, neighbour(comm), 0, 2)
        win.wait_notify(2)
        assert win.local[0] == 3
        win.fence()


@pytest.mark.pair
def test_words_that_cannot_be_waited_for(comm):
    for dtype in ("c8", "c16", "g", "i4,i4", "M8[s]", ">i8"):
        dtype = np.dtype(dtype)
        with (
            rmaext.Window(comm, np.zeros(3, dtype)) as win,
            pytest.raises(rmaext.Unsupported, match="wait_until"),
        ):
            win.wait_until(0, "==", np.zeros((), dtype))
    with guarded(comm, 4, "i4", shift=2) as win, pytest.raises(rmaext.AlignmentError):
        win.wait_until(1, "==", 0)


def test_a_new_window_has_counted_nothing(comm):
    for _ in range(20):
        with rmaext.Window.allocate(comm, 1) as win:
            assert not win.notify_counts().any()
            win.fence()
            win.put_notify(1.0, neighbour(comm), 0, 17)
            win.fence()
            assert win.notify_counts()[17] == 1


KINDS = ["subwindow", "dup", "field", "joined", "dynamic"]


@pytest.mark.parametrize("kind", KINDS)
def test_windows_of_other_kinds_notify(comm, kind):
    """Data first, one count a call, whatever the window is made of; views share the slots."""
    to = neighbour(comm)
    records = np.dtype([("id", "i8"), ("x", "f4"), ("y", "f4")])
    arrays = [np.zeros(6, "i8"), np.zeros(20, "i8")]
    with rmaext.Window(comm, arrays[1], access="rw") as plain:
        at, win = 0, plain
        if kind == "subwindow":
            at, win = 3, plain.subwindow(5, 20)
        elif kind == "dup":
            win = plain.dup()
        elif kind == "field":
            base = rmaext.Window.allocate(comm, 20, records)
            win = base.field("id")
        elif kind == "joined":
            win = rmaext.Window(comm, arrays)
        elif kind == "dynamic":
            win = rmaext.Window.dynamic(comm, "i8")
            win.attach(arrays[1])
            places = comm.allgather(win.attach(arrays[0]))
            at = places[to]
        for number in range(1, 4):
            for n in (1, 5):
                win.put_notify(np.full(n, number), to, at, 7)
                assert win.wait_notify(7) >= 1  # the origin may be ahead
                win.flush(to)  # what this rank has sent there
                seen = win.get_notify(to, at, n, 8)
                assert (seen == number).all()
                assert win.wait_notify(8) >= 1
        win.put_notify(np.empty(0, "i8"), to, slot=9)
        win.wait_all([9])
        if kind in ("joined", "dynamic"):
            with pytest.raises(rmaext.Unsupported):
                win.wait_until(0, "==", 0)
        else:
            assert win.wait_until(at + 1, "==", 3, timeout=10) == 3
        assert not win.notify_counts().any()
        win.fence()
        win.close()
        if kind == "field":
            base.close()


def test_closing_ends_a_wait_of_another_thread(comm):
    win = rmaext.Window.allocate(comm, 4)
    raised: list[Exception] = []

    def wait():
        try:
            win.wait_notify(3)
        except Exception as exc:
            raised.append(exc)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    win.close()
    waiter.join(5)
    assert not waiter.is_alive()
    assert [type(exc) for exc in raised] == [rmaext.ClosedError]


# -- programs of their own -------------------------------------------------------------


SLEEPS = """
with window() as win:
    win.fence()
    for wait in (
        lambda: win.wait_notify(1),
        lambda: win.wait_any([1, 2]),
        lambda: win.wait_until(0, "==", 1.0),
    ):
        if rank:
            start, used = time.monotonic(), time.process_time()
            try:
                threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
                wait()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("not interrupted")
            assert 0.9 < time.monotonic() - start < 20
            used = time.process_time() - used
            assert used < 0.2, f"{used} s of CPU time in a second"
        world.Barrier()
    # all goes on after that
    win.put_notify(2.0, peer, 3, 4)
    assert win.wait_notify(4) == 1 and win.local[3] == 2
    win.fence()
print("OK")
"""

LOST = """
os.environ["RMAEXT_TIMEOUT"] = "3"
win = window()
win.fence()
survivors = world.Split(rank == 2)
if rank == 2:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)

def lost(call):
    start = time.monotonic()
    try:
        call()
    except rmaext.PeerLostError as exc:
        assert "2" in str(exc), exc
    else:
        raise AssertionError("no PeerLostError")
    return time.monotonic() - start

assert lost(lambda: win.wait_notify(1)) < 8
# reported once: now the two that are left wait for each other
other = 1 - rank
for number in range(20):
    win.put_notify(float(number), other, 0, 5)
    assert win.wait_notify(5) == 1
    assert win.local[0] == number
    time.sleep(0.05 * rank)
    win.put_notify(float(number), other, 1, 6)
    assert win.wait_any([6, 7]) == 6
    win.wait_until(1, "==", float(number))
# but nothing waits for ever
assert 2 < lost(lambda: win.wait_until(9, "==", 9.0)) < 12
print("OK", flush=True)
survivors.Barrier()  # one that had left would be a lost rank too
os._exit(0)  # MPI_Finalize would wait
"""


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_wait_takes_no_cpu_and_ends_at_ctrl_c(mpirun, env):
    done = mpirun(2, PRELUDE + WINDOW + SLEEPS, env=env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == 2


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_lost_rank_ends_waits_and_the_others_go_on(mpirun, env):
    done = mpirun(3, PRELUDE + WINDOW + LOST, env=env, survive=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("OK") == 2, done.stdout + done.stderr
