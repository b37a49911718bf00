# SPDX-License-Identifier: BSD-3-Clause
"""TaskQueue, interrupted at any bytecode: no task is lost or got twice, and the others go on."""

from __future__ import annotations

import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mpi4py import MPI
from support.bytecodes import Interrupt, Tracing, interrupt, places

import rmaext
from rmaext._runtime import locks
from rmaext.containers import TaskQueue, _ending, _ring, _taskqueue

MODULES = _taskqueue, _ring, _ending, locks


def got_by(queue, tracing, mine):
    """Run a loop, with a task that puts; again if it is interrupted before its end."""
    ended = queue.stats().loops + 1
    while queue.stats().loops < ended:
        try:
            with tracing:
                for task in queue:
                    mine.append(int(task))
                    if task < 4:
                        put(queue, [10 * task + 100, 10 * task + 101], tracing)
                assert queue.stats().loops == ended
        except Interrupt:
            pass


def put(queue, tasks, tracing):
    """Put tasks; if that is interrupted, see whether it was done."""
    before = tracing.without(queue.stats).put
    try:
        with tracing:
            queue.put(tasks)
    except Interrupt:
        done = tracing.without(queue.stats).put - before
        assert done in (0, len(tasks))
        if not done:
            queue.put(tasks)


WANT = sorted([*range(8), *(10 * i + 100 for i in range(4)), *(10 * i + 101 for i in range(4))])


def every_place(stride):
    with TaskQueue(MPI.COMM_SELF, "i8", 40) as queue:

        def scenario(k):
            tracing, mine, before = Tracing(MODULES, k, interrupt), [], queue.stats()
            put(queue, range(8), tracing)
            got_by(queue, tracing, mine)
            got_by(queue, tracing, mine)
            assert sorted(mine) == WANT, k
            after = queue.stats()
            assert after.done - before.done == after.put - before.put == len(WANT), k
            return tracing.acted

        return places(scenario, stride)


def test_bytecodes_of_one_rank():
    """In put, in the steps of two loops, and at their ends."""
    assert every_place(23) > 50


@pytest.mark.stress
@pytest.mark.timeout(400)
def test_all_bytecodes_of_one_rank():
    assert every_place(1) > 1000


def others_go_on(world, stride):
    """Rank 0 is interrupted, and then in no call of the queue: the others' loops end."""
    with TaskQueue(world, "i8", 100) as queue:

        def scenario(k):
            tracing, mine, ended = Tracing(MODULES, k, interrupt), [], False
            queue.put([world.rank * 1000 + i for i in range(4 if world.rank else 12)])
            world.Barrier()
            try:
                with tracing if not world.rank else tracing.without(lambda: tracing):
                    for task in queue:
                        mine.append(int(task))
                    ended = True
            except Interrupt:
                pass
            world.Barrier()  # the others have ended their loops
            if not ended:
                mine.extend(map(int, queue))
            got = sorted(task for some in world.allgather(mine) for task in some)
            want = [[1000 * r + i for i in range(4 if r else 12)] for r in range(world.size)]
            assert got == [task for some in want for task in some], k
            return world.bcast(tracing.acted)

        return places(scenario, stride)


@pytest.mark.pair
@pytest.mark.mpi(min_size=2)
def test_others_do_not_wait(world):
    assert others_go_on(world, 31) > 10


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(600)
def test_others_do_not_wait_wherever_it_is(world):
    assert others_go_on(world, 1) > 300


@pytest.mark.pair
def test_a_handler_that_puts(comm):
    """At any bytecode: it is done, or refused."""
    with TaskQueue(comm, "i8", 100) as queue:
        refused = 0

        def scenario(k):
            nonlocal refused
            put_by_it, mine = [], []

            def handler():
                nonlocal refused
                try:
                    queue.put(1000)
                    put_by_it.append(1000)
                except rmaext.BusyError:
                    refused += 1

            tracing = Tracing(MODULES, k, handler)
            with tracing:
                queue.put(range(8))
                for task in queue:
                    mine.append(int(task))
            comm.Barrier()
            mine.extend(map(int, queue))  # what the handler has put after the end
            made = comm.allreduce([*range(8), *put_by_it])
            assert sorted(comm.allreduce(mine)) == sorted(made), k
            return comm.allreduce(tracing.acted, MPI.MIN)

        tried = places(scenario, 41)
    assert tried > 10
    assert 0 < refused < tried


def test_a_storm_of_signals(monkeypatch):
    """Real ones, at the places of their own choosing, in C too, and some in quick succession."""
    monkeypatch.setattr(sys, "unraisablehook", lambda it: None)  # in finalizers, too
    in_body, caught, mine, made = False, 0, [], 0

    def handler(signum, frame):
        if not in_body:
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + 2
    try:
        with TaskQueue(MPI.COMM_SELF, "i8", 300) as queue:
            while time.monotonic() < end:
                in_body = True
                tasks = range(made, made + 200)
                queue.put(tasks)
                made += 200
                signal.setitimer(signal.ITIMER_REAL, 1e-5, random.choice([3e-5, 1e-4, 1e-3]))
                ended = False
                while not ended:
                    try:
                        in_body = False
                        for task in queue:
                            in_body = True
                            mine.append(int(task))
                            in_body = False
                        in_body = ended = True
                    except Interrupt:
                        in_body = True
                        caught += 1
                        if not caught % 64:  # lest it never ends
                            signal.setitimer(signal.ITIMER_REAL, 0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert sorted(mine) == list(range(made))
    finally:
        in_body = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- threads ------------------------------------------------------------------------------


def test_eight_threads(comm):
    """They put at once, and look; then one loops, and the others' puts are refused."""
    with TaskQueue(comm, "i8", 4000) as queue, ThreadPoolExecutor(8) as pool:

        def work(thread):
            for number in range(0, 400, 2):
                queue.put(thread * 1000 + number)
                assert queue.stats().put <= 8 * 400
                queue.put([thread * 1000 + number + 1])
                assert f"of {queue.capacity}" in repr(queue)

        list(pool.map(work, range(8)))
        assert queue.stats().put == 8 * 400
        comm.Barrier()
        mine, refused = [], []

        def loop():
            with pytest.raises(rmaext.SyncError):
                list(queue)
            with pytest.raises(rmaext.SyncError):
                queue.put(7)
            refused.append(1)

        for task in queue:
            if not mine:
                list(pool.map(lambda _: loop(), range(8)))
            mine.append(int(task))
        assert len(refused) == (8 if mine else 0)
        want = [1000 * thread + number for thread in range(8) for number in range(400)]
        assert sorted(comm.allreduce(mine)) == sorted(want * comm.size)
        assert not list(pool.submit(list, queue).result())  # a loop of another thread
