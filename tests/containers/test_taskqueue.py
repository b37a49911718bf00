# SPDX-License-Identifier: BSD-3-Clause
"""TaskQueue: each task is got once, and the loops of all ranks end."""

from __future__ import annotations

import errno
import random
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.jobs import passes

import rmaext
from rmaext.containers import TaskQueue, TaskStats
from rmaext.containers._ring import CONTROL, EPOCHS, LARGEST, Ring

EDGE = np.dtype([("node", "i8"), ("cost", "f4"), ("name", "S3")])


@pytest.fixture
def alone():
    with TaskQueue(MPI.COMM_SELF, "i8", 8) as queue:
        yield queue


def once(comm, mine, want):
    """Require that all ranks together have got what was put, and nothing twice."""
    got = sorted(task for some in comm.allgather([int(task) for task in mine]) for task in some)
    assert got == sorted(int(task) for task in want)


def children(name, depth):
    """Return the nodes under one of a random tree: from a hash, so each rank knows it."""
    count = 100 if not depth else int(random.Random(name).expovariate(1 / 1.35)) * (depth < 60)
    return [((name * 7919 + child + 1) & 0x7FFFFFFF, depth + 1) for child in range(count)]


# -- one queue, some loops -------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 5000])
def test_unbalanced_start(comm, count):
    """All tasks are one rank's, another one in each of four loops."""
    with TaskQueue(comm, "i8", 5000) as queue:
        for turn in range(4):
            want = np.arange(count) + 10_000 * turn
            if comm.rank == turn % comm.size:
                queue.put(want)
            mine = list(queue)
            once(comm, mine, want)
        assert queue.stats().done == comm.allreduce(queue.stats().done, MPI.SUM) or comm.size > 1
        assert comm.allreduce(queue.stats().done) == 4 * count
    assert queue.closed


@pytest.mark.mpi(min_size=2)
def test_everybody_gets_some(world):
    """Of tasks that take a while and begin on one rank."""
    with TaskQueue(world, "i4", 400) as queue:
        if world.rank == world.size - 1:
            queue.put(np.arange(400, dtype="i4"))
        mine = []
        for task in queue:
            mine.append(task)
            if len(mine) == 1:
                world.Barrier()  # one that never gets any keeps all others here
            time.sleep(0.002)
        once(world, mine, range(400))
        stats = queue.stats()
        assert len(mine) == stats.done > 0
        assert (stats.stolen > 0) == (world.rank != world.size - 1) or stats.stolen
        assert 0 <= stats.waited < 60


@pytest.mark.mpi(min_size=2)
def test_long_tasks_do_not_wait_for_each_other(world):
    """Those that a rank has in hand are few, if they take long."""
    with TaskQueue(world, "i8", 100) as queue, rmaext.Window.allocate(world, 1, "i8") as taken:
        if not world.rank:
            queue.put(range(world.size))
        world.Barrier()
        mine = []
        for task in queue:
            mine.append(task)
            taken.fetch_add(1, 0)
            # until all are in somebody's hands; a rank may come late
            late = time.monotonic() + 3
            while taken.get(0)[0] < world.size and time.monotonic() < late:
                time.sleep(0.01)
        once(world, mine, range(world.size))
        assert len(mine) <= (1 if world.size == 2 else 2)


def test_tasks_that_make_tasks(comm):
    """A random tree, against a count by one process."""

    def serial():
        stack, nodes = [(1, 0)], 0
        while stack:
            stack += children(*stack.pop())
            nodes += 1
        return nodes

    node = np.dtype([("name", "i8"), ("depth", "i4")])
    nodes = 0
    with TaskQueue(comm, node, 4000) as queue:
        for _ in range(2):
            if comm.rank == comm.size - 1:
                queue.put((1, 0))
            for task in queue:
                nodes += 1
                made = children(*task.item())
                if made:
                    queue.put(made)
    assert comm.allreduce(nodes) == 2 * serial() > 1000


def test_structures_and_other_dtypes(comm):
    for dtype, tasks in [
        (EDGE, [(1, 0.5, b"a"), (2, 1.5, b"bcd")]),
        ("S4", [b"ab", b"cdef"]),
        ("?", [True, False]),
        ("c16", [1j, 2]),
        (">f4", [1.5, -2]),
    ]:
        with TaskQueue(comm, dtype, 10) as queue:
            assert queue.dtype == np.dtype(dtype)
            if not comm.rank:
                queue.put(tasks)
                queue.put(np.array(tasks[0], dtype))
                queue.put(np.array([tasks], dtype))
            got = [np.array(task, dtype).tobytes() for task in queue]
            want = np.array([*tasks, tasks[0], *tasks], dtype)
            all_of_them = sorted(task for some in comm.allgather(got) for task in some)
            assert all_of_them == sorted(want[i : i + 1].tobytes() for i in range(5))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=6), st.integers(1, 9))
def test_against_a_list(loops, capacity):
    """One rank: what is put at each step, over several loops, with full queues."""
    with TaskQueue(MPI.COMM_SELF, "i8", capacity) as queue:
        held, number = set(), 0

        def put(count):
            nonlocal number
            tasks = list(range(number, number + count))
            if len(held) + count > capacity:
                with pytest.raises(rmaext.CapacityError):
                    queue.put(tasks)
                return
            queue.put(tasks)
            held.update(tasks)
            number += count

        for loop in loops:
            steps = iter(loop)
            put(next(steps, 0))
            for task in queue:
                held.remove(int(task))
                put(next(steps, 0))
            assert not held
        assert queue.stats().done == number


def test_full(alone):
    alone.put(range(5))
    with pytest.raises(rmaext.CapacityError, match="capacity=8") as info:
        alone.put(range(4))
    assert info.value.errno == errno.ENOSPC
    alone.put([5, 6, 7])
    got = []
    for task in alone:
        got.append(int(task))
        if task < 3:
            with pytest.raises(rmaext.CapacityError):
                alone.put([100] * (len(got) + 1))
            alone.put([8 + task])
    assert sorted(got) == list(range(11))


def test_wrong_arguments(alone):
    for tasks, error in [
        (0.5, TypeError),
        ([1, 0.5], TypeError),
        (1j, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (np.float64(1), TypeError),
        (np.zeros(2, "i4"), TypeError),
        (2**63, OverflowError),
        (iter([1]), TypeError),
    ]:
        with pytest.raises(error):
            alone.put(tasks)
    assert list(alone) == []
    alone.put([])
    assert list(alone) == []
    assert alone.stats() == TaskStats(0, 0, alone.stats().waited, 0, loops=2)


def test_ranks_that_do_not_agree(world):
    last = world.size - 1
    for wrong, error in [
        (("i8", 0), ValueError),
        (("i8", 1 << 28), ValueError),
        (("i8", 2.5), TypeError),
        (("O", 10), TypeError),
        ((("i8", 3), 10), TypeError),
        (("nonsense", 10), TypeError),
    ]:
        with pytest.raises(error, match="rank") as info:
            TaskQueue(world, *(wrong if world.rank == last else ("i8", 10)))
        assert len(set(world.allgather(str(info.value)))) == 1
    with TaskQueue(world, "i8", 10 + world.rank) as queue:  # nobody is left behind
        queue.put(world.rank)
        once(world, list(queue), range(world.size))


def test_a_second_loop(alone):
    alone.put([1, 2])
    for _ in alone:
        with pytest.raises(rmaext.SyncError, match="under way"):
            next(iter(alone))
        failures = []

        def put(failures=failures):
            try:
                alone.put(3)
            except rmaext.SyncError as exc:
                failures.append(str(exc))

        thread = threading.Thread(target=put)
        thread.start()
        thread.join()
        assert failures
        assert "another thread" in failures[0]
    assert list(alone) == []


def test_after_close(alone):
    alone.close()
    for call in lambda: alone.put(1), lambda: list(alone):
        with pytest.raises(rmaext.ClosedError):
            call()
    assert "closed" in repr(alone)


def test_close_within_a_loop(alone):
    alone.put([1, 2, 3])
    with pytest.raises(rmaext.ClosedError):
        [alone.close() for _ in alone]


# -- loops that are left -----------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
def test_others_do_what_a_rank_leaves(world):
    """Rank 0 breaks out with tasks at hand; the others end without it, and it goes on."""
    left = 0
    with TaskQueue(world, "i8", 300) as queue:
        for _ in range(3):
            mine, ended = [], True
            if not world.rank:
                queue.put(range(300))
            world.Barrier()
            for task in queue:
                mine.append(task)
                if not world.rank and len(mine) == 5:
                    ended = False  # unless the others have taken all before
                    break
                time.sleep(1e-3)
            world.Barrier()  # the others have ended their loops without it
            if not ended:
                assert not list(queue)
                left += 1
            once(world, mine, range(300))
    assert left or world.rank


def test_break_and_exceptions(comm):
    """Loops that are left again and again; each task is still got once."""
    with TaskQueue(comm, "i8", 2000) as queue:
        for turn in range(3):
            mine, ended, made = [], False, 0
            queue.put(np.arange(200) + 1000 * comm.rank)
            while not ended:
                try:
                    for task in queue:
                        mine.append(task)
                        if task < 100_000 and task % 3 == 0:
                            queue.put(task + 100_000)
                            made += 1
                        if random.random() < 0.05:
                            break
                        if random.random() < 0.05:
                            raise ZeroDivisionError(turn)
                    else:
                        ended = True
                except ZeroDivisionError:
                    pass
            want = [i + 1000 * rank for rank in range(comm.size) for i in range(200)]
            once(comm, mine, want + [i + 100_000 for i in want if i % 3 == 0])


def test_tasks_of_a_left_loop_are_still_counted(alone):
    alone.put(range(8))
    mine = []
    for task in alone:
        mine.append(task)
        break
    with pytest.raises(rmaext.CapacityError):
        alone.put([8, 9])
    alone.put(8)
    assert sorted([*mine, *alone]) == list(range(9))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in finalizers
def test_signals(alone):
    """A handler that raises anywhere loses no task and gets none twice."""

    class Alarm(Exception):
        pass

    def handler(signum, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    mine, made, last = [], 8, 8
    alone.put(range(8))
    interrupted = 0
    end = time.monotonic() + 1.5
    try:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.random() * 2e-4 + 1e-6)
                try:
                    for task in alone:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        mine.append(int(task))
                        if time.monotonic() < end:
                            alone.put(last)
                            last += 1
                        signal.setitimer(signal.ITIMER_REAL, random.random() * 1e-4 + 1e-6)
                    else:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        if interrupted > 20:
                            break
                        alone.put(range(last, last + 8))  # each that it had just got is gone
                        last += 8
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    made = last
    assert interrupted > 20
    assert len(mine) == len(set(mine))
    # A task that the loop had just got when the handler raised counts as done.
    assert made - interrupted <= len(mine) <= made
    assert alone.stats().done == made


# -- the ring, by itself ---------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 8]), st.integers(0, 2**32 - 1))
def test_a_thief_between_any_two_steps(data, size, head):
    """What it has read is thrown away if it was taken meanwhile; heads wrap around."""
    with (
        rmaext.Window.allocate(MPI.COMM_SELF, 1, "i8") as words,
        rmaext.Window.allocate(MPI.COMM_SELF, size, "i8") as tasks,
    ):
        words.local[CONTROL] = head << 28
        ring, thief = Ring(words, tasks, 0, 100), Ring(words, tasks, 0, 100)
        held, number = [], 0

        def owner():
            nonlocal number
            for _ in range(data.draw(st.integers(0, 4))):
                if data.draw(st.booleans()):
                    count = data.draw(st.integers(0, size - len(held)))
                    ring.put(np.arange(number, number + count))
                    held.extend(range(number, number + count))
                    number += count
                else:
                    taken = ring.take(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)))
                    got = [] if taken is None else [int(task) for task in taken]
                    assert got == held[: len(got)]
                    del held[: len(got)]

        for _ in range(4):
            owner()
            word = int(words.local[CONTROL])
            if not word & LARGEST:
                continue
            got = thief.read(0, word)
            owner()
            if thief.steal(0, word, got):
                assert got.tolist() == held[: got.size]
                del held[: got.size]
            assert ring.count() == len(held)
        ring.begin(EPOCHS + 3)
        assert int(words.local[CONTROL]) >> 60 == 3
        assert ring.count() == len(held)


# -- more ranks ----------------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_many_ranks(world):
    with TaskQueue(world, "i8", 20_000) as queue:
        for turn in range(3):
            if world.rank == turn:
                queue.put(np.arange(20_000))
            mine = []
            for task in queue:
                mine.append(task)
                if turn == 2 and task < 1000:
                    queue.put(task + 50_000)
            more = range(50_000, 51_000) if turn == 2 else ()
            once(world, mine, [*range(20_000), *more])


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(400)
def test_thousands_of_short_loops(world):
    """The end is where it is hard."""
    short_loops(world, 5000)


def test_short_loops(comm):
    short_loops(comm, 20)  # test_taskqueue_model.py tries the orders


def short_loops(comm, turns):
    with TaskQueue(comm, "i8", 64) as queue:
        got = 0
        for turn in range(turns):
            if (turn * 7 + comm.rank) % 3 == 0:
                queue.put(range(turn % 5))
            for task in queue:
                got += 1
                if task == 3 and random.random() < 0.5:
                    queue.put([10, 11])
                    got -= 2
        made = sum(
            turn % 5
            for turn in range(turns)
            for rank in range(comm.size)
            if not (turn * 7 + rank) % 3
        )
        assert comm.allreduce(got) == made


def ends(world, turns):
    """When a loop ends on any rank, all tasks of it are done, and none of the next one."""
    with (
        rmaext.Window.allocate(world, turns, "i8") as done,
        TaskQueue(world, "i8", 64) as queue,
    ):
        dice = random.Random(world.rank)
        for turn in range(turns):
            if world.rank == turn % world.size:
                queue.put([8 * turn] * (turn % 7))
            wrong = 0
            for task in queue:
                wrong += task >> 3 != turn
                if task & 7 < 3 and turn % 2:
                    queue.put(task + 1)
                if dice.random() < 0.3:
                    time.sleep(dice.random() * 1e-3)
                done.fetch_add(1, 0, turn)
            assert not wrong, turn
            want = turn % 7 * (4 if turn % 2 else 1)
            assert done.fetch_op(0, 0, turn, "no_op") == want, turn


def test_no_rank_ends_early(world):
    ends(world, 30)


@pytest.mark.stress
@pytest.mark.timeout(400)
def test_no_rank_ends_early_in_many_loops(world):
    ends(world, 10_000)


# -- ranks that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "where"),
    [
        *(("working", ()), ("working", ("nodes",)), ("early", ("nodes",)), ("away", ())),
        pytest.param("early", (), marks=pytest.mark.matrix),
        pytest.param("away", ("nodes",), marks=pytest.mark.matrix),
    ],
)
def test_killed_rank(scenario, where):
    program = "containers/programs/taskqueue_killed.py"
    passes(4, program, scenario, *where, oks=3, survive=True, timeout=60)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", [(), ("nodes",)], ids=["one node", "nodes"])
def test_killed_at_many_points(where):
    program = "containers/programs/taskqueue_killed.py"
    for _ in range(30):
        passes(4, program, "working", *where, oks=3, survive=True, timeout=60)


def test_four_ranks_on_one_core():
    passes(4, "containers/programs/taskqueue_one_core.py", oks=4, timeout=60)
