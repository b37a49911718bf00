# SPDX-License-Identifier: BSD-3-Clause
"""Wrong use of windows: a typed error, nothing written, and everything works afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support.misuse import COUNT, ONE, Cases, run

import rmaext
from rmaext import (
    AccessError,
    AlignmentError,
    AttachError,
    BoundsError,
    ClosedError,
    SyncError,
    Unsupported,
)

pytestmark = pytest.mark.pair

case = Cases()

# -- updates ---------------------------------------------------------------------------


@case
def op_of_another_kind(room):
    room.refuses(TypeError, room.win.accumulate, 1, room.peer, op=np.add)


@case
def op_of_no_use(room):
    room.refuses((ValueError, Unsupported), room.win.accumulate, 1, room.peer, op=MPI.OP_NULL)


@case
def op_of_the_user(room):
    op = MPI.Op.Create(lambda a, b, dt: None)
    room.refuses((ValueError, Unsupported), room.win.accumulate, 1, room.peer, op=op)
    op.Free()


@case
def op_undefined_for_dtype(room):
    floats, complexes = room.make(3, "f8"), room.make(3, "c16")
    room.refuses(Unsupported, floats.accumulate, 1.0, room.peer, op="bor")
    room.refuses(Unsupported, floats.fetch_op, 1.0, room.peer, op="bxor")
    room.refuses(Unsupported, complexes.accumulate, 1j, room.peer, op="max")
    room.refuses(Unsupported, room.win.accumulate, 1, room.peer, op="minloc")


@case
def update_of_records(room):
    records = room.make(3, "i4,f8")
    room.refuses(Unsupported, records.accumulate, np.zeros(1, "i4,f8"), room.peer)


@case
def update_does_not_fit(room):
    room.refuses(OverflowError, room.win.accumulate, 1 << 64, room.peer)


@case
def misaligned_on_the_fabric_too(room):
    win = room.make(300, "c16", shift=2)
    room.refuses(AlignmentError, win.accumulate, np.ones(300, "c16"), room.peer)


# -- put and get -----------------------------------------------------------------------


@case
def get_into_the_wrong_array(room):
    room.refuses(TypeError, room.win.get, room.peer, out=np.ones(COUNT))
    room.refuses(ValueError, room.win.rget, room.peer, out=np.ones((4, COUNT), "i8")[:, 0])
    frozen = np.ones(COUNT, "i8")
    frozen.flags.writeable = False
    room.refuses(ValueError, room.win.rget, room.peer, out=frozen)


@case
def flush_of_a_rank_too_large(room):
    room.refuses(BoundsError, room.win.flush, room.size)
    room.refuses(BoundsError, room.win.flush_local, room.size)


@case
def lock_of_a_rank_too_large(room):
    room.refuses(BoundsError, room.win.lock, room.size)
    room.refuses(BoundsError, room.win.lock, -9, exclusive=True)
    room.refuses(BoundsError, room.win.unlock, room.size)


@case
def lock_of_no_rank(room):
    room.refuses(TypeError, room.win.lock, None)
    room.refuses(TypeError, room.win.lock, "0")


# -- requests --------------------------------------------------------------------------


@case
def cancel_of_what_is_done(room):
    request = room.win.rget(room.peer)
    request.wait()
    assert not request.cancel()
    room.refuses(TypeError, request.wait, "soon")


@case
def freed_request(room):
    request = room.win.rget(room.peer)
    request.free()
    room.refuses(SyncError, request.wait)
    room.refuses(SyncError, request.result)
    room.refuses(SyncError, request.test)
    room.refuses(SyncError, request.free)
    room.refuses(SyncError, request.cancel)
    room.refuses(SyncError, rmaext.Request.waitall, [request])
    room.refuses(SyncError, rmaext.Request.waitany, [request])


@case
def wait_for_something_else(room):
    request = room.win.rget(room.peer)
    room.refuses(TypeError, rmaext.Request.waitall, [request, None])
    room.refuses(TypeError, rmaext.Request.waitany, [1, request])
    room.refuses(TypeError, rmaext.Request.testall, request)
    request.wait()


@case
def wait_for_any_of_no_requests(room):
    room.refuses(ValueError, rmaext.Request.waitany, [])


@case
def request_made_by_hand(room):
    room.refuses(TypeError, rmaext.Request)


# -- dynamic windows, parts ------------------------------------------------------------


@case
def attach_twice(room):
    win, array = room.dynamic(), room.array()
    win.attach(array)
    room.refuses(AttachError, win.attach, array)
    win.detach(array)


@case
def attach_overlap(room):
    win, array = room.dynamic(), room.array()
    win.attach(array[:4])
    room.refuses(AttachError, win.attach, array[3:])
    room.refuses(AttachError, win.attach, array)
    room.refuses(AttachError, win.attach, array[1:2])
    win.detach(array[:4])


@case
def detach_of_what_is_not_attached(room):
    win, array = room.dynamic(), room.array()
    room.refuses(AttachError, win.detach, array)
    win.attach(array)
    room.refuses(AttachError, win.detach, array[1:])
    win.detach(array)


@case
def detach_twice(room):
    win, array = room.dynamic(), room.array()
    win.attach(array)
    win.detach(array)
    room.refuses(AttachError, win.detach, array)


@case
def attach_nothing(room):
    win = room.dynamic()
    room.refuses(AttachError, win.attach, np.empty(0, "i8"))
    room.refuses(AttachError, win.detach, np.empty(0, "i8"))


@case
def attach_read_only(room):
    array = np.zeros(3, "i8")
    array.flags.writeable = False
    room.refuses(AccessError, room.dynamic().attach, array)


@case
def attach_wrong_dtype(room):
    room.refuses(TypeError, room.dynamic().attach, np.ones(3))


@case
def attach_no_array(room):
    win = room.dynamic()
    room.refuses(TypeError, win.attach, [1, 2, 3])
    room.refuses(TypeError, win.attach, None)


@case
def attach_strided(room):
    room.refuses(ValueError, room.dynamic().attach, room.array()[::2])


@case
def access_where_nothing_is_attached(room):
    win, array = room.dynamic(), room.array()
    room.refuses(BoundsError, win.put, ONE, room.peer, 0)
    there = room.world.sendrecv(win.attach(array), room.left, source=room.peer)
    room.refuses(BoundsError, win.put, np.ones(2, "i8"), room.peer, there + COUNT - 1)
    room.refuses(BoundsError, win.get, room.peer, there - 1, 1)
    room.refuses(BoundsError, win.fetch_op, 1, room.peer, there + COUNT)
    win.put(ONE, room.peer, there)
    win.fence()
    win.detach(array)


@case
def subwindow_out_of_bounds(room):
    room.refuses(BoundsError, room.win.subwindow, 0, COUNT + 1)
    room.refuses(BoundsError, room.win.subwindow, -1, 3)


@case
def subwindow_backwards(room):
    room.refuses((BoundsError, ValueError), room.win.subwindow, 4, 2)


@case
def misaligned_field(room):
    """Of packed records: put and get work, updates do not."""
    records = room.make(3, np.dtype([("a", "i1"), ("b", "i8")]))
    part = records.field("b")
    room.refuses(AlignmentError, part.fetch_op, 1, room.peer)
    room.refuses(AlignmentError, part.accumulate, ONE, room.peer, 2)
    room.refuses(AlignmentError, part.compare_and_swap, 0, 1, room.peer)
    part.close()


@case
def field_that_does_not_exist(room):
    records = room.make(3, np.dtype([("a", "i1"), ("b", "i8")]))
    room.refuses((KeyError, ValueError), records.field, "c")
    room.refuses((TypeError, ValueError), room.win.field, "a")


@case
def access_outside_a_subwindow(room):
    part = room.win.subwindow(2, 4)
    room.refuses(BoundsError, part.put, ONE, room.peer, 2)
    room.refuses(BoundsError, part.get, room.peer, 0, 3)
    room.refuses(BoundsError, part.fetch_op, 1, room.peer, -1)
    part.close()


# -- closed ----------------------------------------------------------------------------


@case
def closed_dynamic_window(room):
    win, array = room.dynamic(), room.array()
    win.close()
    room.refuses(ClosedError, win.attach, array)
    room.refuses(ClosedError, win.detach, array)


@case
def part_of_a_closed_window(room):
    win = room.make(3)
    part = win.subwindow(1, 2)
    part.close()
    win.close()
    room.refuses(ClosedError, part.put, ONE, room.peer)
    room.refuses(ClosedError, part.lock, room.peer)


def test_there_are_enough_cases():
    assert len(case) >= 33


@case.each()
def test_misuse(world, case):
    run(world, case)
