# SPDX-License-Identifier: BSD-3-Clause
"""Interrupted: operations of windows, requests, notifications, indexing, views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from support.interrupted import Case

import rmaext

world = MPI.COMM_WORLD
N = 64
_BUSY = slice(32, 64)  # where the others work


class OnWindow(Case):
    """On a window of 64 int64 on each rank."""

    win: Any
    inside = False

    def open(self) -> None:
        self.win = rmaext.Window.allocate(world, N, "i8")

    def close(self) -> None:
        self.win.close()

    def theirs(self) -> Any:
        """Every kind of call, to the interrupted rank and to oneself."""
        win, me = self.win, world.rank
        mine = 32 + 4 * me
        for rank in (0, me):
            before = win.get(rank, mine, 1)[0]
            win.put(before + 1, rank, mine)
            win.flush(rank)
            assert win.fetch_add(1, rank, mine) == before + 1
            win.rput(before + 3, rank, mine).wait(5)
            assert win.rget(rank, mine, 1).wait(5)[0] == before + 3
            with win.lock(rank, timeout=5):
                win.accumulate_many(rank, [mine, mine + 1], 1)
        with win.lock_all(timeout=5):
            win.flush()
        return win.local[:8].tolist()


class Operation(OnWindow):
    """One that changes elements 0 to 7 at rank 1, or returns them."""

    def __init__(
        self,
        name: str,
        call: Callable[[Any], Any],
        once: list[int],
        twice: list[int] | None = None,
        result: Any = None,
        parts: bool = False,
    ) -> None:
        self.name, self._call = name, call
        self.once, self.twice = _eight(once), _eight(once if twice is None else twice)
        self.stages = [_eight([]), self.once] + [[1, 2, 3, 4, 0, 0, 0, 0]] * parts
        self.result = result

    def ready(self, k: int) -> None:
        if world.rank == 0:
            self.win.put(_eight([]), 1)
            self.win.flush()

    def call(self) -> Any:
        self.value = self._call(self.win)
        return self.value

    def elements(self) -> list[int]:
        self.win.flush()
        return self.win.get(1, 0, 8).tolist()

    def after(self, done: bool, theirs: list[Any]) -> None:
        found = self.elements()
        assert found in ([self.once] if done else self.stages), (done, found)
        self.call()
        if self.result is not None:
            assert np.array_equal(self.value, self.result), self.value
        again = self.elements()
        assert again == (self.twice if found == self.once else self.once), (found, again)


def _eight(first: list[int]) -> list[int]:
    return [*first, *[0] * (8 - len(first))]


ONES = np.ones(8, "i8")
EIGHT = np.arange(8)
UP = list(range(1, 9))


def operations() -> Iterator[Case]:
    up = np.array(UP)

    def op(*args: Any, **keywords: Any) -> Operation:
        return Operation(*args, **keywords)

    def prepared(win: Any) -> Any:
        source = win.register(np.array(UP))
        win.prepare_put(source.array, 1, 0)()

    def waits(request: Any) -> Any:
        return request.wait()

    def tests(request: Any) -> Any:
        while not request.test():
            pass
        return request.result()

    def polled(win: Any) -> None:
        requests = [win.rput(up[:4], 1, 0), win.rput(up[4:], 1, 4)]
        while rmaext.Request.testany(requests) is None:
            pass
        while not rmaext.Request.testall(requests):
            pass

    def awaited(win: Any) -> None:
        requests = [win.rput(up[:4], 1, 0), win.rput(up[4:], 1, 4)]
        rmaext.Request.waitany(requests)
        rmaext.Request.waitall(requests)

    def freed(win: Any) -> None:
        win.rput(up, 1, 0).free()
        win.flush()

    def cancelled(win: Any) -> None:
        request = win.rget(1, 0, 8)
        if not request.cancel():
            request.wait()

    def set_item(win: Any) -> None:
        win[1, :8] = up

    def set_strided(win: Any) -> None:
        win[1, 0:8:2] = 5

    def set_picked(win: Any) -> None:
        win[1, [1, 3]] = 6

    add = ([1], [2])
    yield op("put", lambda w: w.put(up, 1, 0), UP)
    yield op("put a list", lambda w: w.put(UP, 1, 0), UP)
    yield op("put flush", lambda w: (w.put(up, 1, 0), w.flush(1)), UP)
    yield op("flush_all", lambda w: (w.put(up, 1, 0), w.flush_all()), UP)
    yield op("flush_local", lambda w: (w.put(up, 1, 0), w.flush_local(1)), UP)
    yield op("flush_local_all", lambda w: (w.put(up, 1, 0), w.flush_local_all()), UP)
    yield op("get", lambda w: w.get(1, 0, 8), [], result=np.zeros(8))
    yield op("get out", lambda w: w.get(1, 0, out=np.empty(8, "i8")), [], result=np.zeros(8))
    yield op("accumulate", lambda w: w.accumulate(ONES, 1, 0), [1] * 8, [2] * 8)
    yield op("accumulate max", lambda w: w.accumulate(up, 1, 0, "max"), UP)
    yield op("get_accumulate", lambda w: w.get_accumulate(ONES, 1, 0), [1] * 8, [2] * 8)
    yield op("fetch_op", lambda w: w.fetch_op(1, 1, 0), *add)
    yield op("fetch_add", lambda w: w.fetch_add(1, 1, 0), *add)
    yield op("fetch_add of many", lambda w: w.fetch_add(ONES, 1, 0), [1] * 8, [2] * 8)
    yield op("compare_and_swap", lambda w: w.compare_and_swap(0, 5, 1, 0), [5])
    yield op("load", lambda w: w.load(1, 0, 8), [], result=np.zeros(8))
    yield op("store", lambda w: w.store(up, 1, 0), UP)
    yield op("put_many", lambda w: w.put_many(1, EIGHT, up), UP)
    yield op("get_many", lambda w: w.get_many([1] * 8, EIGHT), [], result=np.zeros(8))
    yield op("fetch_add_many", lambda w: w.fetch_add_many(1, EIGHT, 1), [1] * 8, [2] * 8)
    yield op("accumulate_many", lambda w: w.accumulate_many(1, EIGHT, 1), [1] * 8, [2] * 8)
    yield op("fetch_op_many", lambda w: w.fetch_op_many(1, EIGHT, 1), [1] * 8, [2] * 8)
    yield op("compare_and_swap_many", lambda w: w.compare_and_swap_many(1, EIGHT, 0, 5), [5] * 8)
    yield op("put_ranges", lambda w: w.put_ranges(1, [0, 4], [4, 4], up), UP)
    yield op("get_ranges", lambda w: w.get_ranges(1, [0, 4], [4, 4]), [], result=np.zeros(8))
    yield op("set item", set_item, UP)
    yield op("set strided", set_strided, [5, 0] * 4)
    yield op("set picked", set_picked, [0, 6, 0, 6])
    yield op("get item", lambda w: w[1, :8], [], result=np.zeros(8))
    yield op("get strided", lambda w: w[1, 0:8:2], [], result=np.zeros(4))
    yield op("at add", lambda w: w.at(1).add(slice(0, 8), 1), [1] * 8, [2] * 8)
    yield op("at update", lambda w: w.at(1).update([0, 2], 3, "max"), [3, 0, 3])
    yield op("prepare_put", prepared, UP)
    yield op("prepare_get", lambda w: w.prepare_get(np.empty(8, "i8"), 1, 0)(), [])
    yield op("prepare_fetch_add", lambda w: w.prepare_fetch_add(1, 1, 0)(), *add)
    yield op("buffer put", lambda w: w.register(np.array(UP)).put(1, 0), UP)
    yield op("rput", lambda w: waits(w.rput(up, 1, 0)), UP)
    yield op("rput key", lambda w: waits(w.rput(5, 1, key=slice(0, 8, 2))), [5, 0] * 4)
    yield op("rget", lambda w: waits(w.rget(1, 0, 8)), [], result=np.zeros(8))
    yield op("rget test", lambda w: tests(w.rget(1, 0, 8)), [], result=np.zeros(8))
    yield op("rget key", lambda w: waits(w.rget(1, key=slice(0, 8, 2))), [], result=np.zeros(4))
    yield op("raccumulate", lambda w: waits(w.raccumulate(ONES, 1, 0)), [1] * 8, [2] * 8)
    yield op("rget_accumulate", lambda w: waits(w.rget_accumulate(ONES, 1, 0)), [1] * 8, [2] * 8)
    yield op("rfetch_op", lambda w: waits(w.rfetch_op(1, 1, 0)), *add)
    yield op("rcompare_and_swap", lambda w: waits(w.rcompare_and_swap(0, 5, 1, 0)), [5])
    yield op("rput_many", lambda w: waits(w.rput_many(1, EIGHT, up)), UP)
    yield op("rget_many", lambda w: waits(w.rget_many(1, EIGHT)), [], result=np.zeros(8))
    yield op("raccumulate_many", lambda w: waits(w.raccumulate_many(1, EIGHT, 1)), [1] * 8, [2] * 8)
    yield op("rfetch_op_many", lambda w: waits(w.rfetch_op_many(1, EIGHT, 1)), [1] * 8, [2] * 8)
    yield op(
        "rcompare_and_swap_many", lambda w: waits(w.rcompare_and_swap_many(1, EIGHT, 0, 5)), [5] * 8
    )
    yield op("rput_ranges", lambda w: waits(w.rput_ranges(1, [0, 4], [4, 4], up)), UP)
    yield op(
        "rget_ranges", lambda w: waits(w.rget_ranges(1, [0, 4], [4, 4])), [], result=np.zeros(8)
    )
    yield op("Request.waitall waitany", awaited, UP, parts=True)
    yield op("Request.testall testany", polled, UP, parts=True)
    yield op("Request.free", freed, UP)
    yield op("Request.cancel", cancelled, [])
    yield op("stats", lambda w: (w.stats, w.memory.describe(), w.route(1), w.size(1)), [])
    yield op("connect", lambda w: w.connect(), [])
    yield op("sync advise", lambda w: (w.sync(), w.advise("willneed"), w.refresh()), [])
    # views: none of them is closed by the one that an exception ends
    yield op("subwindow", lambda w: w.subwindow(0, 8).put(up, 1), UP)
    yield op("subwindow close", lambda w: (v := w.subwindow(0, 8), v.put(up, 1), v.close()), UP)
    yield op("dup", lambda w: w.dup().put(up, 1), UP)
    yield op("view", lambda w: w.view("u8").put(up.astype("u8"), 1), UP)
    yield op("peer_view", lambda w: w.route(1) == "direct" and w.peer_view(1), [])


# -- notifications -------------------------------------------------------------------------


class Notify(OnWindow):
    """Rank 0 notifies rank 1, which must learn of it once or not at all, and the data before."""

    def __init__(self, name: str, call: Callable[[Any], Any]) -> None:
        self.name, self._call = name, call

    def call(self) -> Any:
        return self._call(self.win)

    def theirs(self) -> Any:
        super().theirs()
        return int(self.win.notify_counts()[3])

    def after(self, done: bool, theirs: list[Any]) -> None:
        self.win.flush()

    def again(self) -> Any:
        """Count what has come: rank 0 has flushed."""
        if world.rank != 1:
            return None
        count = int(self.win.notify_counts()[3])
        for _ in range(count):
            self.win.wait_notify(3, timeout=5)
        return count, self.win.local[:8].tolist()

    def agree(self, results: list[Any]) -> None:
        count, _ = results[1]
        assert count <= 1, results


class NotifyOnce(Notify):
    def after(self, done: bool, theirs: list[Any]) -> None:
        super().after(done, theirs)
        self.done = done

    def agree(self, results: list[Any]) -> None:
        super().agree(results)
        assert results[1][0] == 1 or not self.done, results


class TakeNotify(OnWindow):
    """Rank 0 takes notifications, of which none may be lost."""

    def __init__(self, name: str, slots: list[int], call: Callable[[Any], Any]) -> None:
        self.name, self._call, self.slots = name, call, slots

    def ready(self, k: int) -> None:
        if world.rank == 0:
            for slot in self.slots:
                self.win.put_notify([], 0, slot=slot)
            self.win.flush()

    def call(self) -> Any:
        return self._call(self.win)

    def after(self, done: bool, theirs: list[Any]) -> None:
        counts = self.win.notify_counts()
        whole = [int(counts[slot]) for slot in {*self.slots}]
        if done:
            assert sum(whole) == 0, whole
        else:
            # taken, and the result lost, is one of the two that may be
            assert sum(whole) in (0, len(self.slots)), whole
            for slot in self.slots:
                while self.win.test_notify(slot):
                    pass


class AwaitNotify(OnWindow):
    """Rank 0 waits for a notification, which comes after the interruption only."""

    waits = True

    def __init__(self, name: str, call: Callable[[Any], Any]) -> None:
        self.name, self._call = name, call

    def call(self) -> Any:
        return self._call(self.win)

    def theirs(self) -> Any:
        if world.rank == 1:
            for slot in (3, 4):
                self.win.put_notify([7], 0, 0, slot=slot)
            self.win.flush()
        return super().theirs()

    def after(self, done: bool, theirs: list[Any]) -> None:
        assert not done
        self.call()
        assert self.win.local[0] == 7
        for slot in (3, 4):
            while self.win.test_notify(slot):
                pass
        self.win.local[0] = 0


def notifications() -> Iterator[Case]:
    up = np.array(UP)
    yield NotifyOnce("put_notify", lambda w: w.put_notify(up, 1, 0, slot=3))
    yield NotifyOnce("put_notify key", lambda w: w.put_notify(5, 1, slot=3, key=slice(0, 8, 2)))
    yield NotifyOnce("put_notify alone", lambda w: w.put_notify([], 1, slot=3))
    yield NotifyOnce("rput_notify", lambda w: w.rput_notify(up, 1, 0, slot=3).wait())
    yield NotifyOnce(
        "rput_notify key", lambda w: w.rput_notify(5, 1, slot=3, key=slice(0, 8, 2)).wait()
    )
    yield NotifyOnce("get_notify", lambda w: w.get_notify(1, 0, 8, slot=3))
    yield TakeNotify("take wait_notify", [3], lambda w: w.wait_notify(3))
    yield TakeNotify("take wait_notify count", [3, 3], lambda w: w.wait_notify(3, 2))
    yield TakeNotify("take test_notify", [3], lambda w: w.test_notify(3))
    yield TakeNotify("take wait_any", [3], lambda w: w.wait_any([2, 3]))
    yield TakeNotify("take wait_some", [3, 4], lambda w: w.wait_some([3, 4]))
    yield TakeNotify("take wait_all", [3, 4], lambda w: w.wait_all([3, 4]))
    yield AwaitNotify("wait_notify", lambda w: w.wait_notify(3))
    yield AwaitNotify("wait_notify timeout", lambda w: w.wait_notify(3, timeout=30))
    yield AwaitNotify("wait_any", lambda w: w.wait_any([3, 4]))
    yield AwaitNotify("wait_some", lambda w: w.wait_some([3, 4]))
    yield AwaitNotify("wait_all", lambda w: w.wait_all([3, 4]))
    yield AwaitNotify("wait_until", lambda w: w.wait_until(0, "==", 7))


# -- other kinds of windows -------------------------------------------------------------------


class Dynamic(OnWindow):
    """attach and detach: the memory is reached, or not; the others' windows go on."""

    def __init__(self, name: str, detach: bool) -> None:
        self.name, self.detach = name, detach

    def open(self) -> None:
        super().open()
        self.dynamic = rmaext.Window.dynamic(world, "i8")

    def close(self) -> None:
        self.dynamic.close()
        super().close()

    def ready(self, k: int) -> None:
        if world.rank == 0:
            self.array = np.arange(8)
            self.first = self.dynamic.attach(self.array) if self.detach else None

    def call(self) -> Any:
        if self.detach:
            return self.dynamic.detach(self.array)
        self.first = self.dynamic.attach(self.array)
        return self.first

    def theirs(self) -> Any:
        own = np.arange(8)
        first = self.dynamic.attach(own)
        self.dynamic.put(np.full(8, 3), world.rank, first)
        self.dynamic.flush()
        assert (own == 3).all()
        self.dynamic.detach(own)
        return super().theirs()

    def after(self, done: bool, theirs: list[Any]) -> None:
        if not self.detach:
            if self.first is None:
                try:
                    self.dynamic.detach(self.array)  # it may have been attached all the same
                except (ValueError, rmaext.RmaError):
                    pass
                self.first = self.dynamic.attach(self.array)
            assert (self.dynamic.get(0, self.first, 8) == np.arange(8)).all()
            self.dynamic.detach(self.array)
        else:
            try:
                self.dynamic.detach(self.array)
                assert not done
            except (ValueError, rmaext.RmaError):
                pass
            # the memory may be attached again
            self.dynamic.detach(self.array) if self.dynamic.attach(self.array) is None else None
            self.dynamic.detach(self.array)


def kinds() -> Iterator[Case]:
    yield Dynamic("attach", False)
    yield Dynamic("detach", True)


class Record(Operation):
    """Fields of records, and several arrays as one window."""

    def open(self) -> None:
        self.other = rmaext.Window.allocate(world, 8, [("a", "i8"), ("b", "f8")])
        self.joined = rmaext.Window(world, [np.zeros(3, "i8"), np.zeros(5, "i8")])
        super().open()

    def close(self) -> None:
        super().close()
        self.joined.close()
        self.other.close()

    def elements(self) -> list[int]:
        target = self.joined if self.joined_one else self.other.field("a")
        target.flush()
        return target.get(1, 0, 8).tolist()

    def ready(self, k: int) -> None:
        self.joined_one = self.name.startswith("joined")
        if world.rank == 0:
            for target in (self.joined, self.other.field("a")):
                target.put(np.zeros(8, "i8"), 1)
                target.flush()

    def call(self) -> Any:
        self.value = self._call(self)
        return self.value


def records() -> Iterator[Case]:
    up = np.array(UP)
    yield Record("field put", lambda c: c.other.field("a").put(up, 1), UP)
    yield Record(
        "field accumulate", lambda c: c.other.field("a").accumulate(ONES, 1), [1] * 8, [2] * 8
    )
    yield Record("joined put", lambda c: c.joined.put(up, 1), UP)
    yield Record("joined get", lambda c: c.joined.get(1), [], result=np.zeros(8))
    yield Record("joined accumulate", lambda c: c.joined.accumulate(ONES, 1), [1] * 8, [2] * 8)
    yield Record("joined rput", lambda c: c.joined.rput(up, 1).wait(), UP)


def cases() -> list[Case]:
    return [*operations(), *notifications(), *kinds(), *records()]
