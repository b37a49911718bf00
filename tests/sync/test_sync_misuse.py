# SPDX-License-Identifier: BSD-3-Clause
"""Wrong use of locks, epochs and notifications."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support.misuse import Cases, run

import rmaext
from rmaext import (
    BoundsError,
    RmaTimeout,
    SyncError,
)

pytestmark = pytest.mark.pair

case = Cases()

# -- the order of synchronisation ------------------------------------------------------


@case
def unlock_without_lock(room):
    room.refuses(SyncError, room.win.unlock, room.peer)


@case
def unlock_twice(room):
    room.win.lock(room.peer, exclusive=False)
    room.win.unlock(room.peer)
    room.refuses(SyncError, room.win.unlock, room.peer)


@case
def unlock_of_another_rank(room):
    with room.win.lock(room.peer, exclusive=False):
        if room.size > 1:
            room.refuses(SyncError, room.win.unlock, (room.peer + 1) % room.size)
        else:
            room.refuses(BoundsError, room.win.unlock, 1)


@case
def lock_twice(room):
    with room.win.lock(room.peer, exclusive=False):
        room.refuses(SyncError, room.win.lock, room.peer)
        room.refuses(SyncError, room.win.lock, room.peer, exclusive=True)


@case
def exclusive_lock_twice(room):
    with room.win.lock(room.peer, exclusive=True):
        room.refuses(SyncError, room.win.lock, room.peer, exclusive=True)
        room.refuses(SyncError, room.win.lock, room.peer)


@case
def unlocked_within_its_block(room):
    def block():
        with room.win.lock(room.peer, exclusive=False):
            room.win.unlock(room.peer)

    room.refuses(SyncError, block)


@case
def lock_all_twice(room):
    with room.win.lock_all():
        room.refuses(SyncError, room.win.lock_all)


@case
def unlock_all_without_lock_all(room):
    room.refuses(SyncError, room.win.unlock_all)


@case
def unlock_all_of_single_locks(room):
    with room.win.lock(room.peer, exclusive=False):
        room.refuses(SyncError, room.win.unlock_all)


@case
def unlock_under_lock_all(room):
    with room.win.lock_all():
        room.refuses(SyncError, room.win.unlock, room.peer)


@case
def lock_under_lock_all(room):
    with room.win.lock_all():
        room.refuses(SyncError, room.win.lock, room.peer)


@case
def lock_all_under_lock(room):
    with room.win.lock(room.peer, exclusive=False):
        room.refuses(SyncError, room.win.lock_all)


@case
def unlock_through_another_window(room):
    other = room.make(2)
    with room.win.lock(room.peer, exclusive=False):
        room.refuses(SyncError, other.unlock, room.peer)


@case
def complete_without_start(room):
    room.refuses(SyncError, room.win.complete)


@case
def complete_twice(room):
    room.win.start([])
    room.win.complete()
    room.refuses(SyncError, room.win.complete)


@case
def start_twice(room):
    room.win.start([])
    room.refuses(SyncError, room.win.start, [])
    room.win.complete()


@case
def wait_without_post(room):
    room.refuses(SyncError, room.win.wait)


@case
def wait_for_the_exposure_twice(room):
    room.win.post([])
    room.win.wait()
    room.refuses(SyncError, room.win.wait)


@case
def poll_without_post(room):
    room.refuses(SyncError, room.win.test)


@case
def poll_after_it_was_true(room):
    room.win.post([])
    assert room.win.test() is True
    room.refuses(SyncError, room.win.test)


@case
def post_twice(room):
    room.win.post([])
    room.refuses(SyncError, room.win.post, [])
    room.win.wait()


@case
def complete_of_an_exposure(room):
    room.win.post([])
    room.refuses(SyncError, room.win.complete)
    room.win.wait()


@case
def wait_of_an_access_epoch(room):
    room.win.start([])
    room.refuses(SyncError, room.win.wait)
    room.win.complete()


@case
def complete_through_another_window(room):
    other = room.make(2)
    room.win.start([])
    room.refuses(SyncError, other.complete)
    room.win.complete()


# -- groups ----------------------------------------------------------------------------


@case
def start_with_a_rank_too_large(room):
    room.refuses(BoundsError, room.win.start, [room.size])


@case
def start_with_a_negative_rank(room):
    room.refuses(BoundsError, room.win.start, [-7])


@case
def start_with_a_rank_twice(room):
    room.refuses(ValueError, room.win.start, [room.peer, room.peer])


@case
def start_with_a_rank_alone(room):
    room.refuses(TypeError, room.win.start, room.peer)


@case
def start_with_names(room):
    room.refuses(TypeError, room.win.start, ["0"])


@case
def start_with_fractions(room):
    room.refuses(TypeError, room.win.start, [0.0])


@case
def start_with_a_null_group(room):
    room.refuses((ValueError, TypeError), room.win.start, MPI.GROUP_NULL)
    room.refuses(ValueError, room.win.post, MPI.GROUP_NULL)
    room.refuses(TypeError, room.win.start, None)


@case
def post_with_a_rank_too_large(room):
    room.refuses(BoundsError, room.win.post, [0, room.size + 3])


@case
def post_with_a_rank_twice(room):
    room.refuses(ValueError, room.win.post, [room.peer, room.peer])


@case
def post_with_a_communicator(room):
    room.refuses(TypeError, room.win.post, room.world)


@case
def post_with_strangers(room):
    """A group of processes that the window does not have."""
    with rmaext.Window(MPI.COMM_SELF, np.zeros(1)) as alone:
        if room.size > 1:
            strangers = room.world.Get_group().Excl([room.me])
            room.refuses((BoundsError, ValueError), alone.post, strangers)
            strangers.Free()
        room.refuses(BoundsError, alone.post, [0, 1])


# -- notifications ---------------------------------------------------------------------


@case
def get_notify_negative_count(room):
    room.refuses(ValueError, room.win.get_notify, room.peer, 0, -1, 0)


@case
def wait_notify_times_out(room):
    room.refuses(RmaTimeout, room.win.wait_notify, 0, timeout=0.01)


@case
def wait_until_times_out(room):
    room.refuses(RmaTimeout, room.win.wait_until, 0, "<", 5, timeout=0.01)


def test_there_are_enough_cases():
    assert len(case) >= 38


@case.each()
def test_sync_misuse(world, case):
    run(world, case)
