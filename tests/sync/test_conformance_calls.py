# SPDX-License-Identifier: BSD-3-Clause
"""Requests, notifications, calls that move nothing, and windows that are parts or many."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import NOTHING, Guarded, guarded, left_of, neighbour, noise, rounds, same

import rmaext

# -- requests --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1000, 200_000])
def test_request_of_every_kind(world, count):
    right = neighbour(world)
    ones = np.ones(count, "i8")
    with guarded(world, count + 2, "i8") as win:
        put = win.rput(np.full(count, 5), right)
        put.wait()
        win.flush(right)
        get = win.rget(right, 0, count)
        assert same(get.result(), np.full(count, 5))
        assert same(get.result(), np.full(count, 5)), "asked a second time"
        add = win.raccumulate(ones, right)
        add.wait()
        win.flush(right)
        swap = win.rget_accumulate(ones, right, op="replace")
        while not swap.test():
            pass
        assert same(swap.result(), np.full(count, 6))
        one = win.rfetch_op(3, right, count)
        assert one.result() == 0
        cas = win.rcompare_and_swap(3, 4, right, count)
        assert cas.result() == 3
        cas = win.rcompare_and_swap(3, 9, right, count)
        assert cas.result() == 4
        win.fence()
        assert win.local[count:].tolist() == [4, 0]
        assert same(win.local[:count], ones)
        out = np.zeros(count, "i8")
        assert win.rget(right, 0, out=out).result() is out
        assert same(out, ones)
        win.fence()


@pytest.mark.parametrize("order", ["forwards", "backwards", "all", "any", "test"])
def test_many_requests_outstanding(world, order):
    """To all ranks, of all kinds, ended in any order."""
    count, size = 120, world.size
    with guarded(world, 3 * count * size, "i8") as win:
        base = 3 * count * world.rank
        requests = []
        for i in range(count):
            rank = i % size
            requests.append(win.rput(np.array([i]), rank, base + i))
            requests.append(win.raccumulate(np.full(1, i), rank, base + count + i))
            requests.append(win.rfetch_op(i, rank, base + 2 * count + i))
        if order == "all":
            rmaext.Request.waitall(requests)
        elif order == "any":
            left = list(requests)
            while left:
                index = rmaext.Request.waitany(left)
                del left[index]
        elif order == "test":
            while not rmaext.Request.testall(requests):
                pass
        else:
            for request in requests if order == "forwards" else requests[::-1]:
                request.wait()
        assert all(request.result() == 0 for request in requests[2::3])
        win.fence()
        for writer in range(size):
            for i in range(count):
                if i % size == world.rank:
                    here = win.local[3 * count * writer + i :: count][:3]
                    assert here.tolist() == [i] * 3
        win.fence()


@rounds(300, 20_000)
def test_requests_own_temporaries(world, rounds):
    """Origins that nobody else keeps, while the collector runs."""
    right = neighbour(world)
    with guarded(world, (8, 200), "i8") as win:
        flat = win.local.reshape(-1)
        for i in range(rounds):
            if i % 8 == 0:
                win.flush(right)  # two puts to one place have no order otherwise
            win.rput(np.full(200, i), right, 200 * (i % 8))
            if i % 50 == 0:
                gc.collect()
                np.full(2000, -1)
        win.fence()
        for part in range(8):
            last = max(i for i in range(rounds) if i % 8 == part)
            assert (flat[200 * part : 200 * part + 200] == last).all()
        win.fence()


def test_request_is_done_after_flush_and_unlock(world):
    right = neighbour(world)
    with guarded(world, 50_000, "i8", 7) as win:
        put = win.rput(np.full(25_000, 8), right)
        win.flush(right)
        assert put.test()
        with win.lock(right, exclusive=False):
            get = win.rget(right, 25_000)
            add = win.raccumulate(np.ones(10, "i8"), right)
        assert get.test()
        assert add.test()
        assert (get.result() == 7).all()
        win.fence()
        assert win.local[9] == 9
        win.fence()


def test_requests_are_awaitable(world):
    right = neighbour(world)

    async def one(i):
        await win.rput(np.array([i]), right, i)
        old = await win.rfetch_op(10, right, i)
        got = await win.rget(right, i, 1)
        return int(old), int(got[0])

    async def everything():
        return await asyncio.gather(*map(one, range(20)))

    with guarded(world, 20, "i8") as win:
        assert asyncio.run(everything()) == [(i, i + 10) for i in range(20)]
        win.fence()
        assert same(win.local, np.arange(10, 30))
        win.fence()


# -- nothing at all, and oneself -------------------------------------------------------


def every_call(win, rank, offset, count):
    """One of each operation; returns what each gave."""
    data = np.ones(count, win.dtype)
    return {
        "put": win.put(data, rank, offset),
        "get": win.get(rank, offset, count),
        "accumulate": win.accumulate(data, rank, offset),
        "get_accumulate": win.get_accumulate(data, rank, offset),
        "fetch_add": win.fetch_add(data, rank, offset),
        "cas": win.compare_and_swap(data, data, rank, offset),
        "rput": win.rput(data, rank, offset).wait(),
        "rget": win.rget(rank, offset, count).result(),
        "raccumulate": win.raccumulate(data, rank, offset).wait(),
        "rget_accumulate": win.rget_accumulate(data, rank, offset).result(),
        "put_notify": win.put_notify(data, rank, offset, 3),
        "get_notify": win.get_notify(rank, offset, count, 4),
        "flush": win.flush(rank),
        "flush_local": win.flush_local(rank),
    }


def test_zero_counts(world):
    """At the end too, and where a rank has no elements; a notification comes all the same."""
    right = neighbour(world)
    with guarded(world, 3, "i8", 4) as win, guarded(world, 0, "i8") as none:
        for offset in 0, 2, 3:
            for name, got in every_call(win, right, offset, 0).items():
                assert got is None or got.size == 0, name
        win.put_many(right, [], NOTHING)
        assert win.get_many(right, []).size == 0
        for name, got in every_call(none, right, 0, 0).items():
            assert got is None or got.size == 0, name
        win.fence()
        none.fence()
        assert win.local.tolist() == [4] * 3
        win.wait_notify(3, 3)
        assert win.test_notify(4, 3)
        assert none.test_notify(3)
        assert not win.test_notify(3)
        win.fence()


def test_proc_null(world):
    """Nothing happens, wherever and however long."""
    with guarded(world, 2, "i8", proc_null=True) as win:
        for count in 0, 1, 70:
            for name, got in every_call(win, MPI.PROC_NULL, 5, count).items():
                assert got is None or got.size == 0, name
        nothing = np.empty(0, "i8")
        assert same(win.fetch_op(1, MPI.PROC_NULL), nothing)
        assert same(win.rfetch_op(1, MPI.PROC_NULL, 9).result(), nothing)
        assert same(win.rcompare_and_swap(1, 2, MPI.PROC_NULL, 9).result(), nothing)
        win.fence()
        assert not win.local.any()
        assert not np.any(win.notify_counts())
        win.fence()


def test_self_communication(world):
    """All operations on the own rank, from several kinds of epoch."""
    me = world.rank
    with guarded(world, 6, "i8") as win:
        for epoch in "fence", "lock", "lock_all", "pscw":
            win.local[:] = 0
            if epoch == "lock":
                win.lock(me, exclusive=True)
            elif epoch == "lock_all":
                win.lock_all()
            elif epoch == "pscw":
                win.post([me])
                win.start([me])
            win.put(np.array([1, 2, 3]), me)
            win.flush(me)
            win.accumulate(np.array([10, 10]), me, 1)
            assert win.fetch_op(1, me, 1) == 12
            assert win.get_accumulate(np.array([7]), me, 1, op="max").tolist() == [13]
            assert win.compare_and_swap(13, 0, me, 2) == 13
            win.flush(me)
            assert win.get(me).tolist() == [1, 13, 0, 0, 0, 0]
            assert win.rget(me, 1, 1).result().tolist() == [13]
            win.put_notify(np.array([8]), me, 5, 0)
            win.wait_notify(0)
            assert win.local.tolist() == [1, 13, 0, 0, 0, 8]
            if epoch == "lock":
                win.unlock(me)
            elif epoch == "lock_all":
                win.unlock_all()
            elif epoch == "pscw":
                win.complete()
                win.wait()
            else:
                win.fence()
        win.fence()


# -- notifications ---------------------------------------------------------------------


@rounds(60, 5000)
@pytest.mark.parametrize("count", [0, 1, 100, 30_000])
def test_notifications_are_counted(world, count, rounds):
    """From all ranks to all: none is lost, none is made."""
    rounds = max(5, rounds // (1 + count // 1000))
    size = world.size
    data = np.arange(count)
    with guarded(world, max(1, count * size), "i8") as win:
        for _ in range(rounds):
            for rank in range(size):
                win.put_notify(data, rank, count * world.rank, world.rank % 7)
        for slot in range(7):
            senders = sum(rank % 7 == slot for rank in range(size))
            if senders:
                win.wait_notify(slot, rounds * senders)
        assert same(win.local[: count * size], np.tile(data, size)) or not count
        win.fence()
        assert not np.any(win.notify_counts())
        assert not win.test_notify(0)
        win.fence()


def test_get_with_notification(world):
    """The target learns that its memory was read, and may use it again."""
    right, left = neighbour(world), left_of(world)
    for count in 1, 20_000:
        with guarded(world, count, "i8") as win:
            for i in range(1, 15):
                win.local[:] = i
                win.sync()
                world.sendrecv(i, left, source=right)
                got = win.get_notify(right, 0, count, 17)
                assert (got == i).all()
                win.wait_notify(17)
            win.fence()


def test_any_all_and_some_slots(world):
    right = neighbour(world)
    with guarded(world, 4, "i8") as win:
        for slot in 2, 5, 9:
            win.put_notify(np.array([slot]), right, 0, slot)
        win.wait_all([2, 5, 9])
        win.fence()
        win.put_notify(np.array([1]), right, 1, 5)
        assert win.wait_any([2, 5, 9]) == 5
        win.fence()
        for slot in 9, 2:
            win.put_notify(np.array([1]), right, 2, slot)
        win.fence()
        assert sorted(win.wait_some([2, 5, 9])) == [2, 9]
        assert not np.any(win.notify_counts())
        win.fence()


def test_slots_of_a_window_are_its_own(world):
    right = neighbour(world)
    with guarded(world, 1, "i8") as one, guarded(world, 1, "i8") as two:
        one.put_notify(np.array([1]), right, 0, 200)
        one.fence()
        assert not two.test_notify(200)
        assert one.test_notify(200)
        assert not one.test_notify(200)
        two.fence()


def test_notify_and_wait_until_time_out(world):
    with guarded(world, 2, "i8") as win:
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_notify(0, timeout=0.02)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_until(1, "==", 1, timeout=0.02)
        with pytest.raises(rmaext.RmaTimeout):
            win.wait_any([0, 1], timeout=0.02)
        world.Barrier()
        win.put_notify(np.array([1]), neighbour(world), 1, 0)
        win.wait_notify(0, timeout=30)
        win.wait_until(1, "==", 1, timeout=0.02)
        win.fence()


@pytest.mark.parametrize(
    ("compare", "value"), [("==", 5), ("!=", 0), (">=", 5), (">", 4), ("<=", -3), ("<", 0)]
)
@pytest.mark.parametrize("dtype", ["i8", "i4", "f8"])
def test_wait_until(world, dtype, compare, value):
    set_to = -3 if "<" in compare else 5
    with guarded(world, 3, dtype) as win:
        win.accumulate(np.full(1, set_to, dtype), neighbour(world), 1, op="replace")
        win.wait_until(1, compare, value)
        assert win.local[1] == set_to
        win.fence()


# -- windows that overlap, are many, are parts -----------------------------------------


def test_overlapping_windows(world):
    """What was flushed through one is seen through another."""
    mine = Guarded(600, "i8")
    right = neighbour(world)
    with (
        rmaext.Window(world, mine.array) as whole,
        rmaext.Window(world, mine.array[100:500]) as part,
    ):
        for i in range(1, 20):
            whole.put(np.full(600, i), right)
            whole.flush(right)
            assert (part.get(right) == i).all()
            part.put(np.full(400, -i), right)
            part.flush(right)
            got = whole.get(right)
            assert (got[100:500] == -i).all()
            assert (got[:100] == i).all()
            assert (got[500:] == i).all()
        whole.fence()
        for _ in range(50):  # single updates are atomic whatever the window
            whole.fetch_op(1, 0, 300)
            part.fetch_add(1, 0, 200)
            part.accumulate(1, 0, 200)
        whole.fence()
        part.fence()
        if world.rank == 0:
            assert mine.array[300] == 150 * world.size - 19
        whole.fence()
    mine.check()


@pytest.mark.parametrize("make", ["subwindow", "dup"])
def test_views_of_a_window(world, make):
    right = neighbour(world)
    with guarded(world, 100, "i8") as win:
        view = win.subwindow(20, 60) if make == "subwindow" else win.dup()
        shift = 20 if make == "subwindow" else 0
        assert view.size(right) == (40 if make == "subwindow" else 100)
        view.put(np.arange(40), right, 20 - shift)
        view.flush(right)  # a put and an update are not ordered
        view.accumulate(1, right, 30 - shift)
        view.flush(right)
        assert win.get(right, 20, 40).tolist() == [*range(10), 11, *range(11, 40)]
        with view.lock(right, exclusive=True):
            assert view.get(right, 59 - shift, 1)[0] == 39
        view.put_notify(np.array([5]), right, 59 - shift, 1)
        view.wait_notify(1)
        assert win.local[59] == 5
        with pytest.raises(rmaext.BoundsError):
            view.put(1, right, 40 if make == "subwindow" else 100)
        view.close()
        assert view.closed
        win.put(9, right, 99)
        win.fence()
        assert win.local[99] == 9
        win.fence()


@pytest.mark.parametrize("color", ["parity", "reversed", "alone"])
def test_everything_in_sub_communicators(world, color):
    """Beside a window of all ranks, whose locks and slots are others."""
    group = {"parity": world.rank % 2, "reversed": 0, "alone": world.rank}[color]
    sub = world.Split(group, -world.rank)
    right, left = neighbour(sub), left_of(sub)
    with guarded(world, 4, "i8") as outer, guarded(sub, 4, "i8") as win:
        for i in range(1, 6):
            with outer.lock(0, exclusive=False):
                with win.lock(0, exclusive=True):
                    win.put(win.get(0, 0, 1) + 1, 0)
                outer.accumulate(1, 0, 3)
            win.post([left])
            win.start([right])
            win.put(i, right, 1)
            win.complete()
            win.wait()
            assert win.local[1] == i
            win.put_notify(np.array([i]), right, 2, 30)
            win.wait_notify(30)
            assert win.local[2] == i
            win.fence()
        assert win.get(0, 0, 1)[0] == 5 * sub.size
        win.fence()
        outer.fence()
        assert outer.get(0, 3, 1)[0] == 5 * world.size
        assert not np.any(outer.notify_counts())
        outer.fence()
    sub.Free()


def test_many_windows_at_once(world):
    """Each with locks, slots, epochs and updates of its own."""
    right, left = neighbour(world), left_of(world)
    with contextlib.ExitStack() as stack:
        wins = [
            stack.enter_context(
                guarded(world, 3, "i8") if i % 2 else rmaext.Window.allocate(world, 3, "i8")
            )
            for i in range(24)
        ]
        for i, win in enumerate(wins):
            win.post([left])
            win.lock(right, exclusive=False)
            win.put_notify(np.array([i]), right, 0, i)
        for i, win in reversed([*enumerate(wins)]):
            win.start([right])
            win.accumulate(i, right, 1)
            win.wait_notify(i)
            assert win.local[0] == i
            win.unlock(right)
            win.complete()
        for i, win in enumerate(wins):
            win.wait()
            assert win.local.tolist() == [i, i, 0]
            assert not np.any(win.notify_counts())
        for one, two in itertools.pairwise(wins):
            with one.lock(0, exclusive=True), two.lock(0, exclusive=False):
                pass
        world.Barrier()


@rounds(4, 100)
def test_windows_come_and_go_with_their_state(world, rounds):
    """A new window starts with no lock, no notification and no exposure of an old one."""
    right, left = neighbour(world), left_of(world)
    for i in range(rounds):
        with guarded(world, 2, "i8") as win:
            assert not np.any(win.notify_counts())
            world.Barrier()
            with win.lock(right, exclusive=True):
                win.put(i, right)
            win.put_notify(np.array([i]), right, 1, i % 200)
            win.fence()  # the notification is left
            win.post([left])
            win.start([right])
            win.complete()
            win.wait()
            win.fence()


def test_structured_elements_take_part(world):
    dtype = np.dtype([("a", "i4"), ("b", "f8")], align=True)
    right = neighbour(world)
    values = np.zeros(50, dtype)
    values["a"], values["b"] = np.arange(50), noise("u1", 50, 3)
    with guarded(world, 50, dtype) as win:
        with win.lock(right, exclusive=True):
            win.put(values, right)
        assert same(win.rget(right).result(), values)
        win.put_notify(values[:1], right, 49, 2)
        win.wait_notify(2)
        assert win.local[49] == values[0]
        win.fence()
