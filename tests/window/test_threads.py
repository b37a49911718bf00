# SPDX-License-Identifier: BSD-3-Clause
"""One window, several Python threads."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time

import numpy as np
import pytest
from support.guarded import guarded, neighbour, same

import rmaext
from rmaext.containers import Array

THREADS = 8


@pytest.fixture(autouse=True)
def often():
    """Threads take turns more often than every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@contextlib.contextmanager
def at_once(*works):
    """Run functions in threads, to their end; raise the first of their errors."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        for thread in threads:
            thread.join(50)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_put_and_get(comm):
    """Each thread in a part of its own, with short and long transfers."""
    peer, part = neighbour(comm), 20_000
    with guarded(comm, THREADS * part) as win:

        def work(number):
            rng = np.random.default_rng((comm.rank, number))
            here = np.zeros(part)
            for k in range(40):
                count = int(rng.integers(1, 200 if k % 4 else part))
                at = int(rng.integers(0, part - count + 1))
                here[at : at + count] = data = rng.random(count)
                win.put(data, peer, number * part + at)
                data[:] = -1  # it may be reused at once
                if k % 3 == 0:
                    win.flush(peer)
                    assert same(win.get(peer, number * part, part), here)
            win.flush()
            assert same(win.get(peer, number * part, part), here)

        with at_once(*[lambda n=n: work(n) for n in range(THREADS)]):
            pass
        win.fence()


def test_atomics(comm):
    """Every number is given out once, whoever asks and how."""
    p, each = comm.size, 50
    with guarded(comm, 4, "i8") as win:
        got = [[] for _ in range(THREADS)]

        def work(number):
            add = win.prepare_fetch_add(1, 0, 1)
            for k in range(each):
                if (k + number) % 4 == 0:
                    got[number].append(int(add()))
                elif (k + number) % 4 == 1:
                    got[number] += win.fetch_add_many(0, [1], 1).tolist()
                elif (k + number) % 4 == 2:
                    got[number].append(int(win.fetch_add(1, 0, 1)))
                else:
                    old = int(win.get(0, 1, 1)[0])
                    while (now := int(win.compare_and_swap(old, old + 1, 0, 1))) != old:
                        old = now
                    got[number].append(old)
                win.accumulate_many(0, 2, 1)

        with at_once(*[lambda n=n: work(n) for n in range(THREADS)]):
            pass
        everything = np.concatenate(comm.allgather(np.concatenate(got)))
        assert np.sort(everything).tolist() == list(range(p * THREADS * each))
        assert win.get(0, 2, 1)[0] == p * THREADS * each
        win.fence()


@contextlib.contextmanager
def numbers(comm, kind):
    """Yield what draws the next number from rank 0, and the window to put by, if any."""
    room = 1 + THREADS * comm.size
    with contextlib.ExitStack() as stack:

        def made(thing):
            return stack.enter_context(contextlib.closing(thing))

        if kind == "Array":
            field = made(Array(comm, room, np.int64))
            yield lambda: field.fetch_add(0, 1), None
        elif kind == "DynamicWindow":
            win = made(rmaext.Window.dynamic(comm, np.int64))
            first = comm.bcast(win.attach(np.zeros(room, np.int64)))
            yield lambda: win.fetch_add(1, 0, first), None
        elif kind == "JoinedWindow":
            win = made(rmaext.Window(comm, [np.zeros(n, np.int64) for n in (1, 3, room)]))
            yield lambda: win.fetch_add(1, 0), win
        elif kind == "SharedWindow":
            try:
                win = made(rmaext.Window.shared(comm, room, np.int64))
            except rmaext.NotLocalError:
                pytest.skip("no memory in one piece here")
            yield lambda: win.fetch_add(1, 0), win
        elif kind == "FieldView":
            win = made(rmaext.Window.allocate(comm, room, "i8,i8")).field("f1")
            yield lambda: win.fetch_add(1, 0), win
        else:
            win = made(rmaext.Window.allocate(comm, room, np.int64))
            view, element, buffer = win.subwindow(0, room), win.at(0), win.register(np.int64([1]))
            there = made(rmaext.RemoteWindow.attach(comm.bcast(win.export())))
            draws = {
                "Window": lambda: win.fetch_add(1, 0),
                "View": lambda: view.fetch_add(1, 0),
                "ElementUpdates": lambda: element.add([0], 1),
                "Buffer": lambda: buffer.fetch_add(0),
                "Prepared": win.prepare_fetch_add(1, 0),
                "RemoteWindow": lambda: there.fetch_add(1, 0),
            }
            yield draws[kind], view if kind == "View" else win


KINDS = ["Window", "View", "FieldView", "JoinedWindow", "SharedWindow", "DynamicWindow", "Array"]
KINDS += ["ElementUpdates", "Buffer", "Prepared", "RemoteWindow"]


@pytest.mark.parametrize("kind", KINDS)
def test_eight_threads_of_each_kind(comm, kind):
    """One object in all of them: each number is drawn once, and each put is there."""
    each, peer, got = 20, neighbour(comm), [[] for _ in range(THREADS)]
    with numbers(comm, kind) as (draw, win):

        def work(number):
            place = 1 + comm.rank * THREADS + number
            for k in range(each):
                got[number].append(draw())
                if win is not None:
                    win.put(k, peer, place)
                    win.flush(peer)
                    assert win.get(peer, place, 1)[0] == k

        with at_once(*[lambda n=n: work(n) for n in range(THREADS)]):
            pass
        every, many = comm.allgather(list(itertools.chain(*got))), comm.size * THREADS * each
        if kind != "ElementUpdates":  # which returns nothing
            drawn = [int(np.ravel(number)[0]) for its in every for number in its]
            assert sorted(drawn) == list(range(many))
        assert win is None or win.get(0, 0, 1)[0] == many
        comm.Barrier()


def test_flush_from_all_threads_ends(comm):
    """Also while others put without pause."""
    peer, stop = neighbour(comm), threading.Event()
    with guarded(comm, 100) as win:
        flushes = []

        def put():
            while not stop.is_set():
                win.put(np.ones(50), peer, 3)

        def flush(rank):
            for _ in range(100):
                win.flush(rank)
            flushes.append(rank)

        with at_once(
            put, put, lambda: flush(peer), lambda: flush(None), lambda: flush(comm.rank)
        ) as errors:
            end = time.monotonic() + 40
            while len(flushes) < 3 and not errors and time.monotonic() < end:
                time.sleep(0.01)
            stop.set()
        assert len(flushes) == 3
        win.fence()


def test_everything_at_once(comm):
    """Results are right though threads use one window, its views and buffers."""
    p, peer = comm.size, neighbour(comm)
    with guarded(comm, 64 + 64 * p, "i8") as win:
        mine = 64 * (1 + comm.rank)  # words of this rank in each window

        def put():
            buffer = win.register(np.arange(8))
            for k in range(60):
                buffer.array[:] = k
                buffer.put(peer, mine)
                win.flush(peer)
                assert (win.get(peer, mine, 8) == k).all()

        def add():
            for _ in range(60):
                win.fetch_add(np.ones(4, "i8"), 0, 4)

        def many():
            at = np.arange(mine + 8, mine + 40)
            for k in range(30):
                win.put_many(peer, at, k)
                assert (win.get_many(peer, at) == k).all()

        def views():
            for k in range(60):
                with win.subwindow(mine + 40, mine + 60) as view:
                    view.put(np.full(20, k), peer)
                    view.flush()
                    assert (view.get(peer, 3, 10) == k).all()

        with at_once(put, add, many, views):
            pass
        win.fence()
        assert (win.get(0, 4, 4) == 60 * p).all()
        want = [59] * 8 + [29] * 32 + [59] * 20 + [0] * 4
        start = 64 * (1 + (comm.rank - 1) % p)
        assert win.local[start : start + 64].tolist() == want
        win.fence()


@pytest.mark.parametrize("what", ["put", "get", "fetch_add", "many", "flush", "long", "notify"])
def test_close_while_others_are_inside(comm, what):
    """They get ClosedError; nothing waits for ever, and nothing crashes."""
    peer, slots = neighbour(comm), itertools.count()
    for _ in range(3):
        win = rmaext.Window(comm, np.zeros(300_000))
        calls = {
            "put": lambda win=win: win.put(np.ones(10), peer),
            "get": lambda win=win: win.get(peer, 5, 20),
            "fetch_add": lambda win=win: win.fetch_add(1.0, peer, 1),
            "many": lambda win=win: win.accumulate_many(peer, [1, 2, 3], 1.0),
            "flush": lambda win=win: (win.put(1.0, peer), win.flush()),
            "long": lambda win=win: win.put(np.ones(300_000), peer),
            "notify": lambda win=win: win.put_notify(np.ones(2), peer, 0, next(slots) % 256),
        }
        started, ends = threading.Barrier(THREADS, timeout=30), []

        def work(call=calls[what], started=started, ends=ends):
            call()
            started.wait()
            try:
                while True:
                    call()
            except rmaext.ClosedError as error:
                ends.append(error)

        with at_once(*[work] * (THREADS - 1)) as errors:
            started.wait()
            comm.Barrier()  # else a rank closes while others begin
            win.close()
        assert not errors
        assert len(ends) == THREADS - 1
        assert win.closed


def test_windows_in_many_threads_of_self(comm):
    """Operations in threads while the main thread makes and closes other windows."""
    peer, stop = neighbour(comm), threading.Event()
    with guarded(comm, 100, "i8") as win:
        counts = [0] * 3

        def work(number):
            while not stop.is_set():
                win.fetch_add(1, peer, number)
                counts[number] += 1

        with at_once(*[lambda n=n: work(n) for n in range(3)]):
            for k in range(15):
                with rmaext.Window.allocate(comm, 10 + k) as other:
                    other.put(float(k), peer, k)
                    other.fence()
                    assert other.local[k] == k
            stop.set()
        win.fence()
        theirs = comm.allgather(counts)[(comm.rank - 1) % comm.size]
        assert win.local[:3].tolist() == theirs
        win.fence()


def test_without_the_gil(run_python):
    """A free-threaded Python is told so at the import."""
    done = run_python(
        """
        import sys
        sys._is_gil_enabled = lambda: False
        try:
            import rmaext
        except ImportError as error:
            print(error)
        assert "rmaext._native._lib" not in sys.modules
        sys._is_gil_enabled = lambda: True
        import rmaext
        print(rmaext.Window)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "does not support Python without the GIL" in done.stdout
    assert "rmaext._window.window.Window" in done.stdout
