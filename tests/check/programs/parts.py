# SPDX-License-Identifier: BSD-3-Clause
"""The accesses are through views of a window, or their origins are of other dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases import has_none, has_race
from mpi4py import MPI

import rmaext

RECORD = np.dtype([("kind", "i1"), ("x", "f8"), ("n", "i2", (3,))], align=True)


@has_none("puts to two halves of a rank")
def puts_to_halves(win: Any) -> None:
    if win.comm.rank == 0:
        win.subwindow(0, 8).put(np.ones(8, np.int64), 1)
        win.subwindow(8, 16).put(np.ones(8, np.int64), 1)


@has_race("puts to two parts of a rank that overlap")
def puts_to_parts(win: Any) -> None:
    if win.comm.rank == 0:
        win.subwindow(0, 9).put(np.ones(9, np.int64), 1)
        win.subwindow(8, 16).put(np.ones(8, np.int64), 1)


@has_none("a part is put to while another part is read there")
def a_part_and_another(win: Any) -> None:
    if win.comm.rank == 0:
        win.subwindow(4, 16).subwindow(4, 12).dup().put(np.ones(8, np.int64), 1)
    elif win.comm.rank == 1:
        int(win.local[:8].sum())


@has_race("a part is put to while it is read there")
def a_part_is_read(win: Any) -> None:
    if win.comm.rank == 0:
        win.subwindow(4, 16).subwindow(4, 12).dup().put(np.ones(8, np.int64), 1)
    elif win.comm.rank == 1:
        int(win.local[8:].sum())


@has_none("two ranks update other elements of the same part")
def ranks_of_a_part(win: Any) -> None:
    rank = win.comm.rank
    if rank:
        part = win.subwindow(8 * (rank - 1), 8 * rank).view("i4")
        part[0, ::2] = np.ones(8, np.int32)
        part.put_many([0, 0], [1, 3], [5, 6])


@has_race("two ranks write one element, by other views")
def other_views(win: Any) -> None:
    rank = win.comm.rank
    if rank == 1:
        win.subwindow(9, 16)[0, 1] = 1
    elif rank == 2:
        win.view("i4").put_many([0], [20], [2])


@has_none("two fields of the same records are put to")
def fields(win: Any) -> None:
    with rmaext.Window.allocate(win.comm, 5, RECORD) as other:
        rank, part = win.comm.rank, other.subwindow(1, 5)
        if rank == 1:
            part.field("x").put(np.ones(4), 0)
        elif rank == 2:
            part.field("n").put(np.ones((4, 3), np.int16), 0)


@has_race("a field and its record are put to")
def field_and_record(win: Any) -> None:
    with rmaext.Window.allocate(win.comm, 5, RECORD) as other:
        rank, part = win.comm.rank, other.subwindow(1, 5)
        if rank == 1:
            part.field("x").put(np.ones(4), 0)
        elif rank == 2:
            other.put(np.zeros(1, RECORD), 0, 4)


@has_none("the origins of requests stay as they are")
def origins(win: Any) -> None:
    with rmaext.Window.allocate(MPI.COMM_SELF, 32, RECORD) as other:
        raw = np.frombuffer(bytes(range(256)) * 6, "u1")
        records = raw[: 16 * RECORD.itemsize].view(RECORD)  # what lies between fields is not zero
        several = [
            other.rput(records, 0),
            other.rput(records[::3], 0, 16),
            other.field("x").rput(np.full(4, np.nan), 0, 24),
            other.field("n").rput(records["n"][:2], 0, 28 * 3),
            other.field("x").rput(np.asfortranarray(np.ones((2, 2))), 0, 28),
        ]
        rmaext.Request.waitall(several)


@has_race("the origin of a request, records, is written before it is done")
def records_change(win: Any) -> None:
    with rmaext.Window.allocate(win.comm, 8, RECORD) as other:
        if win.comm.rank == 0:
            records = np.zeros(8, RECORD)[::2]
            request = other.rput(records, 1)
            records["n"][3, 2] = 1
            request.wait()


@has_race("the value of a compare and swap is written before it is done")
def values_change(win: Any) -> None:
    if win.comm.rank == 0:
        compare, value = np.zeros(1, np.int64), np.ones(1, np.int64)
        request = win.rcompare_and_swap(compare, value, 1)
        value[0] = 2
        request.wait()
