# SPDX-License-Identifier: BSD-3-Clause
"""rput_notify, and rput and rget of what a key names."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, left_of, neighbour, same

import rmaext

SHAPE = (12, 9, 20)
EVERYTHING = slice(None)
KEYS = {
    "plane": (3,),
    "rows": (EVERYTHING, 2),
    "column": (EVERYTHING, EVERYTHING, 5),
    "element": (1, 2, 3),
    "strided": (slice(1, None, 3), slice(None, None, -2), slice(2, 17, 5)),
    "arrays": (np.array([4, 0, 11]), 2),
    "broadcast": (EVERYTHING, np.array([[1], [3]]), np.array([0, 19])),
    "mask": (np.arange(12) % 4 == 1,),
    "all": (...,),
    "nothing": (slice(0, 0),),
}
every_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)


def values(rank, shape, seed):
    return np.random.default_rng([rank, seed]).integers(1, 1 << 40, shape).astype(float)


@every_key
def test_rput_notify_of_a_key(comm, key):
    """All of it is there once the slot has counted; nothing else is touched."""
    want = np.zeros(SHAPE)
    with guarded(comm, SHAPE) as win:
        for seed in range(5):
            given = values(comm.rank, want[key].shape, seed)
            request = win.rput_notify(given, neighbour(comm), slot=7, key=key)
            assert win.wait_notify(7, timeout=50) == 1
            want[key] = values(left_of(comm), want[key].shape, seed)
            assert same(win.local, want)
            assert request.wait() is None
            assert not win.notify_counts().any()
            comm.Barrier()
        win.fence()


@pytest.mark.parametrize("count", [0, 1, 100, 4000, 16_193, 300_000])
def test_rput_notify_in_one_piece(comm, count):
    with guarded(comm, count + 2) as win:
        for seed in range(4):
            given = values(comm.rank, count, seed)
            request = win.rput_notify(given, neighbour(comm), 1, slot=255)
            assert win.wait_notify(255, timeout=50) == 1
            assert same(win.local[1:-1], values(left_of(comm), count, seed))
            request.wait()
            comm.Barrier()
        assert win.local[0] == win.local[-1] == 0
        win.fence()


def test_many_at_once(comm):
    """To one target and slot; what was dropped goes on, and a flush waits for it."""
    peer, plane = neighbour(comm), (9, 20)
    with guarded(comm, SHAPE) as win:
        for k in range(12):
            win.rput_notify(np.full(plane, k + 1.0), peer, key=k, slot=1).free()
        win.flush(peer)
        assert win.wait_notify(1, count=12, timeout=50) >= 12
        assert (win.local == np.arange(1.0, 13).reshape(12, 1, 1)).all()
        win.fence()


def test_origins_that_lie_in_pieces(comm):
    """They are packed; a scalar is broadcast."""
    peer = neighbour(comm)
    field = values(comm.rank, (20, 9), 1)
    with guarded(comm, SHAPE) as win:
        requests = [
            win.rput_notify(field.T, peer, key=2),
            win.rput_notify(5.0, peer, key=(3, 4), slot=0),
            win.rput_notify(field[::2, 3], peer, offset=11, slot=0),
        ]
        win.wait_notify(0, count=3, timeout=50)
        there = values(left_of(comm), (20, 9), 1)
        assert same(win.local[2], np.ascontiguousarray(there.T))
        assert (win.local[3, 4] == 5).all()
        assert same(win.local.reshape(-1)[11:21], there[::2, 3].copy())
        rmaext.Request.waitall(requests)
        win.fence()


@pytest.mark.pair
def test_refused(comm):
    """Before anything is sent: nobody is notified."""
    peer = neighbour(comm)
    with guarded(comm, SHAPE, fill=1.0) as win:
        reader = win.dup("r")
        for error, call in (
            (rmaext.BoundsError, lambda: win.rput_notify(1.0, peer, key=12)),
            (rmaext.BoundsError, lambda: win.rput_notify(1.0, peer, slot=256)),
            (rmaext.AccessError, lambda: reader.rput_notify(2.0, peer, key=1)),
            (rmaext.AccessError, lambda: reader.rput_notify(np.ones(40_000)[:900], peer)),
            (ValueError, lambda: win.rput_notify(np.ones(3), peer, key=1)),
            (ValueError, lambda: win.rput_notify(1.0, peer, 3, key=1)),
            (IndexError, lambda: win.rput_notify(1.0, peer, key="a")),
        ):
            with pytest.raises(error, match=r"^rput_notify: window"):
                call()
        win.fence()
        assert not win.notify_counts().any()
        assert (win.local == 1).all()
        win.fence()


def test_nobody(comm):
    with guarded(comm, SHAPE, proc_null=True) as win:
        nobody = MPI.PROC_NULL
        assert win.rput_notify(1.0, nobody, 5).wait() is None
        assert win.rput_notify(1.0, nobody, key=5).wait() is None
        assert win.rput(1.0, nobody, key=5).wait() is None
        assert win.rget(nobody, key=5).wait().size == 0
        win.fence()
        assert not win.local.any()


def test_other_kinds_of_windows(comm):
    """Where one operation is several in C it is done when it returns."""
    peer = neighbour(comm)
    with rmaext.Window(comm, [np.zeros(2), np.zeros(3)]) as win:
        win.rput_notify(np.arange(1.0, 5), peer, 1, slot=2).wait()
        win.wait_notify(2, timeout=50)
        assert [array.tolist() for array in win.local] == [[0, 1], [2, 3, 4]]
        win.fence()
    with guarded(comm, 6, [("n", "i4"), ("x", "f8", 3)]) as win:
        x = win.field("x")
        request = x.rput_notify(np.arange(1.0, 4), peer, key=(slice(1, 6, 2), 2), slot=3)
        x.wait_notify(3, timeout=50)
        assert win.local["x"][1::2, 2].tolist() == [1, 2, 3]
        assert win.local["x"].sum() == 6
        request.wait()
        assert x.rget(peer, key=(3,)).wait().tolist() == [0, 0, 2]
        assert not win.local["n"].any()
        win.fence()
    with guarded(comm, SHAPE) as win:
        part = win.subwindow(180, 360)
        part.rput_notify(2.0, peer, key=slice(0, 180, 3), slot=4).wait()
        win.wait_notify(4, timeout=50)
        assert (win.local[1].reshape(-1)[::3] == 2).all()
        assert win.local.sum() == 120
        win.fence()


@every_key
def test_rput_and_rget_of_a_key(comm, key):
    peer, want = neighbour(comm), np.zeros(SHAPE)
    with guarded(comm, SHAPE) as win:
        given = values(comm.rank, want[key].shape, 1)
        win.rput(given, peer, key=key).wait()
        assert same(np.asarray(win.rget(peer, key=key).wait()), given)
        out = np.full(given.shape, -1.0)
        assert win.rget(peer, key=key, out=out).wait() is out
        assert same(out, given)
        comm.Barrier()
        want[key] = values(left_of(comm), want[key].shape, 1)
        assert same(win.local, want)
        for call in (
            lambda: win.rget(peer, 3, key=key),
            lambda: win.rget(peer, count=3, key=key),
            lambda: win.rput(1.0, peer, 3, key=key),
            lambda: win.rget(peer, key=key, out=np.zeros((7, 7, 7))),
        ):
            with pytest.raises(ValueError, match=r"^r(put|get): window"):
                call()
        win.fence()


@pytest.mark.mpi(min_size=2)
def test_the_data_comes_first(world):
    """A target that only looks at the slot never finds less than all of it."""
    peer, rounds = neighbour(world), 60
    face = (EVERYTHING, 4, EVERYTHING)
    with guarded(world, (40, 9, 50)) as win:
        requests = []
        for k in range(rounds):
            requests.append(win.rput_notify(np.full((40, 50), k + 1.0), peer, key=face, slot=k))
            while not win.test_notify(k):
                pass
            assert (win.local[face] >= k + 1).all()
            win.put_notify([], left_of(world), slot=200)  # it was looked at
            win.wait_notify(200, timeout=50)
        rmaext.Request.waitall(requests)
        win.fence()


@every_key
def test_the_blocking_forms_do_the_same(comm, key):
    """put_notify of a key, and what rget returns: an element where brackets return one."""
    peer, want = neighbour(comm), np.zeros(SHAPE)
    with guarded(comm, SHAPE) as win:
        given = values(comm.rank, want[key].shape, 3)
        assert win.put_notify(given, peer, key=key, slot=9) is None
        assert win.wait_notify(9, timeout=50) == 1
        want[key] = values(left_of(comm), want[key].shape, 3)
        assert same(win.local, want)
        blocking, got = win[(peer, *key)], win.rget(peer, key=key).wait()
        assert type(got) is type(blocking)
        assert same(np.asarray(got), np.asarray(blocking))
        win.fence()


@pytest.mark.parametrize(
    "key", [12, -13, (0, 9), "a", (0, 0, 0, 0), (..., ...), 1.5, [0, 12]], ids=str
)
def test_bad_keys_are_the_same_error(comm, key):
    """Of all forms; nobody is notified, nothing is written."""
    peer = neighbour(comm)
    with guarded(comm, SHAPE, fill=1.0) as win:
        items = key if isinstance(key, tuple) else (key,)
        with pytest.raises(IndexError) as wanted:
            win[(peer, *items)]
        for call in (
            lambda: win.rget(peer, key=key),
            lambda: win.rput(2.0, peer, key=key),
            lambda: win.put_notify(2.0, peer, key=key),
            lambda: win.rput_notify(2.0, peer, key=key),
        ):
            with pytest.raises(wanted.type, match=r"^r?(get|put)(_notify)?: window") as found:
                call()
            assert type(found.value) is wanted.type
        for call in (
            lambda: win.put_notify(1.0, peer, 3, key=1),
            lambda: win.put_notify(np.ones(3), peer, key=1),
        ):
            with pytest.raises(ValueError, match=r"^put_notify: window"):
                call()
        with pytest.raises(TypeError):
            win.put_notify(1.0, peer, 0, 0, 1)  # the key is given by its name
        win.fence()
        assert not win.notify_counts().any()
        assert (win.local == 1).all()
        win.fence()


FORMS = {
    "put": lambda win, value, rank, key: win.__setitem__((rank, key), value),
    "rput": lambda win, value, rank, key: win.rput(value, rank, key=key).wait(),
    "put_notify": lambda win, value, rank, key: win.put_notify(value, rank, key=key, slot=3),
    "rput_notify": lambda win, value, rank, key: win.rput_notify(
        value, rank, key=key, slot=3
    ).wait(),
}
every_form = pytest.mark.parametrize("form", FORMS)
RECORD = np.dtype([("a", "<i4"), ("b", ">f8")])


@every_form
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<i2", "S5", RECORD], ids=str)
def test_a_key_of_any_dtype(comm, form, dtype):
    peer = neighbour(comm)
    given = np.zeros(4, dtype)
    given[:] = (7, 2.5) if given.dtype == RECORD else 7
    with rmaext.Window.allocate(comm, (6, 4), dtype=dtype) as win:
        win.fence()
        FORMS[form](win, given, peer, 2)
        if "notify" in form:
            win.wait_notify(3, timeout=50)
        win.fence()
        assert (win.local[2] == given).all()
        assert same(np.asarray(win.rget(peer, key=2).wait()), given)
        out = np.zeros(4, given.dtype.newbyteorder())
        for wrong in (out, np.zeros(4, "i8")):
            if wrong.dtype != win.dtype:
                with pytest.raises((TypeError, ValueError), match=r"^rget: window"):
                    win.rget(peer, key=2, out=wrong)
        out = np.zeros(4, dtype)
        out.flags.writeable = False
        with pytest.raises(ValueError, match=r"^rget: window"):
            win.rget(peer, key=2, out=out)
        win.fence()


@every_form
def test_a_key_with_odd_ranks(comm, form):
    """Nothing is done of those that are none, and by those of other types what they mean."""
    peer = neighbour(comm)
    with guarded(comm, SHAPE, fill=1.0) as win:
        for rank in (None, "0", 0.0, comm.size, -7, MPI.PROC_NULL):
            with pytest.raises((TypeError, IndexError, ValueError, rmaext.BoundsError)):
                FORMS[form](win, 2.0, rank, 1)
        win.fence()
        assert (win.local == 1).all()
        assert not win.notify_counts().any()
        win.fence()
        FORMS[form](win, 2.0, np.uint8(peer), 1)
        if "notify" in form:
            win.wait_notify(3, timeout=50)
        win.fence()
        assert (win.local[1] == 2).all()
        assert win.local.sum() == 2 * win.local[1].size + win.local[2:].size + win.local[0].size
        win.fence()
    with pytest.raises(rmaext.ClosedError):
        FORMS[form](win, 2.0, peer, 1)


class Handlers(Exception):
    """What a signal's handler raises."""


@every_form
def test_what_a_handler_raises_while_a_key_is_looked_at(comm, form):
    """Where the ranks' shapes differ, Python says which it is: nothing there swallows it."""

    def raises(frame, event, _):
        if frame.f_globals["__name__"] == "rmaext._comm.columns":
            sys.settrace(None)
            raise Handlers

    with rmaext.Window.allocate(comm, (5 + comm.rank, 4)) as win:
        win.fence()
        known = isinstance(win._shapes, tuple)  # of one rank, they do not differ
        sys.settrace(raises)
        try:
            FORMS[form](win, 2.0, neighbour(comm), 1)
        except Handlers:
            known = True
        finally:
            sys.settrace(None)
        assert known
        win.fence()
