# SPDX-License-Identifier: BSD-3-Clause
"""Two accesses to element 0 of rank 1 between two fences; RMARaceBench's conflict/016 to 039."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import has_none, has_race

Step = Callable[[Any], Any]


def put(win: Any) -> None:
    win.put([1], 1, 0)


def get(win: Any) -> None:
    win.get(1, 0, 1)


def accumulate(win: Any) -> None:
    win.accumulate([1], 1, 0)


def read_by_update(win: Any) -> None:
    win.get_accumulate([0], 1, 0, op="no_op")


def get_accumulate(win: Any) -> None:
    win.get_accumulate([1], 1, 0)


def fetch_op(win: Any) -> None:
    win.fetch_op(1, 1, 0)


def swap(win: Any) -> None:
    win.compare_and_swap(0, 1, 1, 0)


def load(win: Any) -> None:
    int(win.local[0])


def store(win: Any) -> None:
    win.local[0] = 42


def between_fences(first: Step, second: Step, other: int) -> Step:
    """Return a program: rank 0 takes the first step, another rank the second one."""

    def run(win: Any) -> None:
        if win.comm.rank == 0:
            first(win)
        if win.comm.rank == other:
            second(win)
        win.fence()

    return run


_OF_THE_TARGET = 1  # who loads and stores
_OF_ANOTHER = 2
for number, race, one, two, who in (
    (16, False, get, load, _OF_THE_TARGET),
    (17, False, get, get, _OF_ANOTHER),
    (18, True, get, store, _OF_THE_TARGET),
    (19, True, get, put, _OF_ANOTHER),
    (20, False, get, read_by_update, _OF_ANOTHER),
    (21, True, get, accumulate, _OF_ANOTHER),
    (22, True, put, load, _OF_THE_TARGET),
    (23, True, put, store, _OF_THE_TARGET),
    (24, True, put, put, _OF_ANOTHER),
    (25, True, put, read_by_update, _OF_ANOTHER),
    (26, True, put, accumulate, _OF_ANOTHER),
    (27, True, accumulate, load, _OF_THE_TARGET),
    (28, True, accumulate, store, _OF_THE_TARGET),
    (29, False, accumulate, accumulate, _OF_ANOTHER),
    (30, False, accumulate, read_by_update, _OF_ANOTHER),
    (31, False, read_by_update, read_by_update, _OF_ANOTHER),
    (32, False, read_by_update, load, _OF_THE_TARGET),
    (33, True, read_by_update, store, _OF_THE_TARGET),
    (34, True, get_accumulate, store, _OF_THE_TARGET),
    (35, False, get_accumulate, get_accumulate, _OF_ANOTHER),
    (36, False, fetch_op, fetch_op, _OF_ANOTHER),
    (37, True, fetch_op, store, _OF_THE_TARGET),
    (38, True, swap, store, _OF_THE_TARGET),
    (39, False, swap, swap, _OF_ANOTHER),
):
    name = f"conflict/{number:03} {one.__name__}, {two.__name__}"
    (has_race if race else has_none)(name)(between_fences(one, two, who))


# -- the buffers of requests: conflict/001 to 011, for put and get copy, or return what is there --


@has_none("conflict/001 the origin is read while a request puts it")
def origin_read(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.rput(buffer, 1)
        assert buffer[0] == 1
        request.wait()


@has_race("conflict/002 the origin is written while a request puts it")
def origin_written(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.rput(buffer, 1)
        buffer[0] = 42
        request.wait()


@has_none("conflict/002 the origin of a put is written: put has taken it when it returns")
def origin_of_put(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        win.put(buffer, 1)
        buffer[0] = 42


@has_none("conflict/003 two requests put the same origin")
def origin_twice(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        first, second = win.rput(buffer, 1, 0), win.rput(buffer, 1, 1)
        first.wait(), second.wait()


@has_race("conflict/004 what a request gets is read")
def result_read(win: Any) -> None:
    import rmaext

    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        request = win.rget(1, 0, out=buffer)
        int(buffer[0])
        request.wait()


@has_race("conflict/005 what a request gets is written")
def result_written(win: Any) -> None:
    import rmaext

    if win.comm.rank == 0:
        buffer = rmaext.zeros(1, np.int64)
        request = win.rget(1, 0, out=buffer)
        buffer[0] = 42
        request.wait()


@has_race("conflict/006 what a request gets is put")
def result_put(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.zeros(1, np.int64)
        request = win.rget(1, 0, out=buffer)
        win.put(buffer, 1, 1)
        request.wait()


@has_race("conflict/007 two requests get into the same memory")
def result_twice(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.zeros(1, np.int64)
        first, second = win.rget(1, 0, out=buffer), win.rget(1, 1, out=buffer)
        first.wait(), second.wait()


@has_race("conflict/008 the origin is written while a request accumulates it")
def operand_written(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.raccumulate(buffer, 1)
        buffer[0] = 42
        request.wait()


@has_none("conflict/009 the origin is read while a request accumulates it")
def operand_read(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.raccumulate(buffer, 1)
        assert buffer[0] == 1
        request.wait()


@has_race("conflict/010 the origin is written while a request fetches and accumulates")
def fetched_operand_written(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.rget_accumulate(buffer, 1)
        buffer[0] = 42
        request.wait()


@has_race("conflict/014 the origin is written while a request compares and swaps")
def swapped_written(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = np.ones(1, np.int64)
        request = win.rcompare_and_swap(np.zeros(1, np.int64), buffer, 1)
        buffer[0] = 42
        request.wait()
