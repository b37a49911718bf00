# SPDX-License-Identifier: BSD-3-Clause
"""Grants: parts of a window for others, until they are revoked or the window closes."""

from __future__ import annotations

import errno
import threading
import time

import numpy as np
import pytest
from clients import refuses
from support.guarded import neighbour, same

import rmaext
from rmaext import RemoteWindow

# -- ends --------------------------------------------------------------------------


def test_closed_while_attached(comm):
    """The owner does not wait; whoever comes later gets ClosedError, and nothing lands."""
    win = rmaext.Window.allocate(comm, 1000)
    memory = win.local
    far = RemoteWindow.attach(win.export())
    unused = win.export("r")
    far.put(np.ones(1000), 0)
    far.flush()
    comm.Barrier()
    win.close()
    after = memory.copy()
    refuses(lambda: far.get(0), rmaext.ClosedError, "closed, or the grant revoked")
    far.put(np.full(1000, 7.0), 0)
    refuses(far.flush, rmaext.ClosedError)
    refuses(lambda: far.fetch_add(1.0, 0), rmaext.ClosedError)
    refuses(lambda: far.get_many(0, [1]), rmaext.ClosedError)
    assert same(memory, after)
    for blob in (unused, unused):
        start = time.monotonic()
        refuses(lambda blob=blob: RemoteWindow.attach(blob), rmaext.ClosedError)
        assert time.monotonic() - start < 5
    refuses(win.export, rmaext.ClosedError)
    refuses(lambda: win.grant(0, 1), rmaext.ClosedError)
    far.close()


def test_revoke(comm, win):
    """Only that grant ends, at once, for all who have its ticket."""
    with win.grant(10, 20) as given:
        other = win.grant(10, 20, "r")
        assert (given.start, given.stop, given.access, given.revoked) == (10, 20, "rw", False)
        assert set(win.grants) == {given, other}
        far, near = RemoteWindow.attach(given.export()), RemoteWindow.attach(other.export())
        assert far.size(0) == 10
        refuses(lambda: far.get(0, 9, 2), rmaext.BoundsError)
        far.put(np.zeros(10), 0)
        far.flush()
        assert same(win.local.reshape(-1)[9:21], np.r_[9, np.zeros(10), 20])
        blob = given.export()
    assert given.revoked
    assert "revoked" in repr(given)
    assert win.grants == (other,)
    given.revoke()
    before = win.local.copy()
    far.put(np.ones(10), 0)
    refuses(far.flush)
    refuses(lambda: far.fetch_add(1.0, 0))
    refuses(lambda: far.get(0))
    refuses(lambda: RemoteWindow.attach(blob))
    refuses(given.export)
    assert same(win.local, before)
    assert same(near.get(0), np.zeros(10))
    refuses(lambda: near.put(np.ones(1), 0), rmaext.AccessError)
    other.revoke()
    refuses(lambda: near.get(0))
    far.close()
    near.close()


def test_many_revoked(comm, win):
    """The owner remembers the last 64 that ended; older ones are refused as fast."""
    blob = win.grant(0, 1)
    first = blob.export()
    blob.revoke()
    for _ in range(100):
        win.grant(0, 1).revoke()
    start = time.monotonic()
    refuses(lambda: RemoteWindow.attach(first))
    assert time.monotonic() - start < 5


def test_revoke_while_used(comm):
    """Not one element changes after it has returned."""
    with rmaext.Window.allocate(comm, 4096) as win:
        given = win.grant(0, 4096)
        far, stop, errors_ = RemoteWindow.attach(given.export()), threading.Event(), []

        def write():
            value = 1.0
            while not stop.is_set():
                try:
                    far.put(np.full(4096, value), 0)
                    far.accumulate(np.ones(4096), 0)
                    far.flush()
                except rmaext.RmaError as exc:
                    errors_.append(exc)
                    return
                value += 1

        thread = threading.Thread(target=write)
        thread.start()
        while not win.local[0]:
            time.sleep(0.001)
        given.revoke()
        seen = win.local.copy()
        thread.join(10)
        stop.set()
        assert same(win.local, seen)
        assert [type(it) for it in errors_] == [rmaext.ClosedError]
        far.close()


@pytest.mark.mpi(min_size=1)
def test_close_refuses(world):
    """On all ranks alike while any rank's grant lives; the window can be used and closed later."""
    win = rmaext.Window.allocate(world, 10)
    part, shut = win.subwindow(0, 3), win.subwindow(0, 2)
    shut.close()
    last = world.size - 1
    given = win.grant(2, 5) if world.rank == last else None
    error = refuses(win.close, rmaext.GrantError, rf"rank {last}: .*\[2:5\]")
    assert error.errno == errno.EBUSY
    assert not win.closed
    assert not part.closed
    assert part.get(0).size == 3
    assert shut.closed
    win.put(np.ones(10), neighbour(world))
    win.fence()
    assert same(win.local, np.ones(10))
    if given:
        given.revoke()
    win.close()
    assert win.closed
    win.close()


def test_exception_ends_grants(comm):
    win = rmaext.Window.allocate(comm, 3)
    given = win.grant(0, 3)
    blob = given.export()

    def fail():
        with win:
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert given.revoked
    refuses(lambda: RemoteWindow.attach(blob))


def test_bounds_of_a_grant(world, win):
    for start, stop in ((-1, 3), (3, 2), (0, 41)):
        refuses(lambda a=start, b=stop: win.grant(a, b), rmaext.BoundsError)
    refuses(lambda: win.grant(0, 1.5), TypeError)
    with win.grant(5, 5) as given, RemoteWindow.attach(given.export()) as far:
        assert far.get(0).size == 0
    with win.dup("r").grant(0, 3) as given:
        assert given.access == "r"
    refuses(lambda: win.dup("r").grant(0, 3, "w"), rmaext.AccessError)
    world.Barrier()
