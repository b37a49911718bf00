# SPDX-License-Identifier: BSD-3-Clause
"""TaskQueue, interrupted at any bytecode: no task is lost or got twice, and the others go on."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from mpi4py import MPI

import rmaext
from rmaext.containers import TaskQueue, _ending, _ring, _taskqueue
from rmaext._runtime import locks

FILES = {module.__file__ for module in (_taskqueue, _ring, _ending, locks)}


class Interrupt(BaseException):
    """As KeyboardInterrupt: a signal handler raises it."""


class Tracing:
    """Calls a function before the k-th bytecode of the queue's, once."""

    def __init__(self, at, act):
        self.left, self.act = at, act
        self.acted = False

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)

    def _trace(self, frame, event, argument):
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and not self.acted:
            self.left -= 1
            if self.left <= 0:
                self.acted = True
                self.act()
        return self._trace


def interrupt():
    raise Interrupt


def places(scenario, stride):
    """Call scenario(k) for each stride-th k, until it says that there are no more bytecodes."""
    k = 1 + random.randrange(stride)
    tried = 0
    while scenario(k):
        k += stride
        tried += 1
    return tried


def got_by(queue, tracing, mine):
    """Run a loop, with a task that puts; again if it is interrupted."""
    ended = False
    while not ended:
        try:
            with tracing:
                for task in queue:
                    mine.append(int(task))
                    if task < 4:
                        put(queue, [10 * task + 100, 10 * task + 101], tracing)
                ended = True
        except Interrupt:
            pass


def put(queue, tasks, tracing):
    """Put tasks; if that is interrupted, see whether it was done."""
    before = queue.stats().put
    try:
        with tracing:
            queue.put(tasks)
    except Interrupt:
        done = queue.stats().put - before
        assert done in (0, len(tasks))
        if not done:
            queue.put(tasks)


WANT = sorted([*range(8), *(10 * i + 100 for i in range(4)), *(10 * i + 101 for i in range(4))])


def test_any_bytecode_on_one_rank():
    """In put, in each step of two loops, and at their ends."""

    def scenario(k):
        with TaskQueue(MPI.COMM_SELF, "i8", 40) as queue:
            tracing, mine = Tracing(k, interrupt), []
            put(queue, range(8), tracing)
            got_by(queue, tracing, mine)
            got_by(queue, tracing, mine)
            assert sorted(mine) == WANT, k
            assert queue.stats().done == len(WANT) == queue.stats().put
        return tracing.acted

    assert places(scenario, 7) > 100
