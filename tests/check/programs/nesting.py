# SPDX-License-Identifier: BSD-3-Clause
"""The accesses stand deep in functions, or use other names; RMARaceBench's misc/001 to 018."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import has_none, has_race

import rmaext


def deep(function: Any, depth: int = 20) -> None:
    function() if depth == 0 else deep(function, depth - 1)


def other_name(array: Any) -> Any:
    return array.reshape(4, 4)[0]


@has_none("misc/001 the origin is read, deep in functions")
def origin_deep(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(4, np.int64)
        request = win.rput(buffer, 1)
        deep(lambda: int(buffer[0]))
        request.wait()


@has_race("misc/002 the result is read, deep in functions")
def result_deep(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(4, np.int64)
        request = win.rget(1, 0, out=buffer)
        deep(lambda: int(buffer[0]))
        request.wait()


@has_none("misc/003 the origin is read by another name")
def origin_by_name(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(16, np.int64)
        request = win.rput(buffer, 1)
        int(other_name(buffer)[0])
        request.wait()


@has_race("misc/004 the result is read by another name")
def result_by_name(win: Any) -> None:
    if win.comm.rank == 0:
        buffer = rmaext.zeros(16, np.int64)
        request = win.rget(1, 0, out=buffer)
        int(other_name(buffer)[0])
        request.wait()


@has_none("misc/009 the own memory is read while another gets it, deep in functions")
def get_deep(win: Any) -> None:
    if win.comm.rank == 0:
        deep(lambda: win.get(1, 0, 1))
    if win.comm.rank == 1:
        deep(lambda: int(win.local[0]))
    win.fence()


@has_race("misc/010 the own memory is written while another gets it, deep in functions")
def store_deep(win: Any) -> None:
    if win.comm.rank == 0:
        deep(lambda: win.get(1, 0, 1))
    if win.comm.rank == 1:
        deep(lambda: win.local.fill(3))
    win.fence()


@has_none("misc/011 the same, by functions in a table")
def get_by_table(win: Any) -> None:
    table = [lambda: win.get(1, 0, 1), lambda: int(win.local[0]), lambda: None]
    table[win.comm.rank]()
    win.fence()


@has_race("misc/012 the same with a store, by functions in a table")
def store_by_table(win: Any) -> None:
    def store() -> None:
        win.local[0] = 42

    [lambda: win.get(1, 0, 1), store, lambda: None][win.comm.rank]()
    win.fence()


@has_none("misc/013 the own memory is read by another name")
def load_by_name(win: Any) -> None:
    if win.comm.rank == 0:
        win.get(1, 0, 1)
    if win.comm.rank == 1:
        np.sum(other_name(win.local))
    win.fence()


@has_race("misc/014 the own memory is written by another name")
def store_by_name(win: Any) -> None:
    if win.comm.rank == 0:
        win.get(1, 0, 1)
    if win.comm.rank == 1:
        other_name(win.local)[:] += 1
    win.fence()


@has_race("misc/018 the own memory is written by np.copyto")
def store_by_copy(win: Any) -> None:
    if win.comm.rank == 0:
        win.get(1, 0, 1)
    if win.comm.rank == 1:
        np.copyto(other_name(win.local), 42)
    win.fence()
