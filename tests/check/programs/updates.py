# SPDX-License-Identifier: BSD-3-Clause
"""Updates of the same bytes; RMARaceBench's atomic/001 to 010. And many places at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import has_none, has_race


@has_none("atomic/001 four elements at once and one by one")
def pieces(win: Any) -> None:
    if win.comm.rank == 0:
        win.accumulate([1, 1, 1, 1], 1)
    if win.comm.rank == 2:
        win.accumulate_many(1, np.arange(4), [1, 2, 3, 4])
    win.fence()


def updates_as(first: str, second: str) -> Callable[[Any], None]:
    """Return a program in which two ranks update the same bytes, at places of its own."""
    text = f"""
def run(win):
    if win.comm.rank == 0:
        win.view("{first}").accumulate(np.ones(4, "{first}"), 1)
    if win.comm.rank == 2:
        win.view("{second}").accumulate(np.ones(4, "{second}"), 1)
    win.fence()
"""
    names: dict[str, Any] = {"np": np}
    exec(compile(text, f"{first} and {second}.py", "exec"), names)
    run: Callable[[Any], None] = names["run"]
    return run


has_race("atomic/005 int32 and int64")(updates_as("i4", "i8"))
has_race("atomic/006 float32 and int32")(updates_as("f4", "i4"))
has_race("atomic/008 float64 and float32")(updates_as("f8", "f4"))
has_none("atomic/009 int64 and int64")(updates_as("i8", "i8"))


@has_race("atomic/002 int32 and four of int64 in another way")
def pieces_of_others(win: Any) -> None:
    if win.comm.rank == 0:
        win.view("i4").accumulate(np.ones(4, "i4"), 1)
    if win.comm.rank == 2:
        win.accumulate_many(1, np.arange(4), [1, 2, 3, 4])
    win.fence()


@has_race("atomic/003 elements that overlap by half: int32 at 1, int64 at 0")
def shifted(win: Any) -> None:
    if win.comm.rank == 0:
        win.accumulate([1], 1)
    if win.comm.rank == 2:
        win.view("i4").accumulate([1], 1, 1)
    win.fence()


@has_none("atomic/004 int32 beside int64")
def beside(win: Any) -> None:
    if win.comm.rank == 0:
        win.accumulate([1], 1)
    if win.comm.rank == 2:
        win.view("i4").accumulate([1], 1, 2)
    win.fence()


@has_race("atomic/007 float32 and int32 of one rank")
def kinds_of_one(win: Any) -> None:
    if win.comm.rank == 0:
        win.view("f4").accumulate(np.ones(4, "f4"), 1)
        win.view("i4").accumulate(np.ones(4, "i4"), 1)
    win.fence()


@has_none("atomic/010 int64 twice of one rank")
def same_of_one(win: Any) -> None:
    if win.comm.rank == 0:
        win.accumulate([1, 2], 1)
        win.accumulate([3, 4], 1)
    win.fence()


# -- which elements: what NumPy's indexing and the calls on many places touch -----------------


@has_none("a column and the one beside it")
def columns(win: Any) -> None:
    if win.comm.rank == 0:
        win[1, ::2] = 1
    if win.comm.rank == 2:
        win[1, 1::2] = 2
    win.fence()


@has_race("two columns that cross")
def crossing(win: Any) -> None:
    if win.comm.rank == 0:
        win[1, ::2] = 1
    if win.comm.rank == 2:
        win[1, ::3] = 2
    win.fence()


@has_none("ranges that do not touch, and a part of the own memory between them")
def ranges(win: Any) -> None:
    if win.comm.rank == 0:
        win.put_ranges(1, [0, 8], [4, 4], np.arange(8))
    if win.comm.rank == 1:
        win.local[4:8] += 1
        win.local[[12, 15]] = 3
    win.fence()


@has_race("an index array of the own memory meets a range")
def picked(win: Any) -> None:
    if win.comm.rank == 0:
        win.put_ranges(1, [0, 8], [4, 4], np.arange(8))
    if win.comm.rank == 1:
        win.local[[5, 11]].sum()
    win.fence()


@has_race("a subwindow is the same memory as its window")
def subwindow(win: Any) -> None:
    if win.comm.rank == 0:
        win.subwindow(4, 8).put([1], 1, 1)
    if win.comm.rank == 1:
        win.local[5] = 2
    win.fence()


@has_race("two puts of one rank, no flush between")
def puts(win: Any) -> None:
    if win.comm.rank == 0:
        win.put([1, 2], 1, 0)
        win.put([3, 4], 1, 1)
    win.fence()
