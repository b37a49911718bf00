# SPDX-License-Identifier: BSD-3-Clause
"""win.stats against what the program did."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from mpi4py import MPI
from support.jobs import PRELUDE, start

import rmaext
from rmaext import BoundsError, ClosedError, compat, zeros


def totals(win):
    """Calls and elements by target and kind; several routes may have carried them out."""
    found = defaultdict(lambda: [0, 0])
    for row in win.stats:
        assert row["bytes"] == row["elements"] * win.dtype.itemsize
        assert not row["errors"]
        found[int(row["target"]), str(row["kind"])][0] += int(row["calls"])
        found[int(row["target"]), str(row["kind"])][1] += int(row["elements"])
    return {key: tuple(value) for key, value in found.items()}


def arena(comm):
    return rmaext.Window.allocate(comm, 64)


def plain(comm):
    return rmaext.Window(comm, np.zeros(64))


def refused(win, rank):
    with pytest.raises(BoundsError):
        win.put(ONE, rank, 63)


ONE = np.ones(3)
# call: what it is, with rank; kind, calls, elements
CALLS = {
    "put": (lambda w, r: w.put(ONE, r, 2), "put", 1, 3),
    "put of a number": (lambda w, r: w.put(1.0, r), "put", 1, 1),
    "put of nothing": (lambda w, r: w.put([], r), None, 0, 0),
    "put of a slice": (lambda w, r: w.put(np.ones(6)[::2], r), "put", 1, 3),
    "get": (lambda w, r: w.get(r, 1, 5), "get", 1, 5),
    "index": (lambda w, r: w[r, 3], "get", 1, 1),
    "assign": (lambda w, r: w.__setitem__((r, slice(3, 7)), 2.0), "put", 1, 4),
    "steps": (lambda w, r: w[r, 0:8:2], "get", 1, 4),
    "accumulate": (lambda w, r: w.accumulate(ONE, r), "update", 1, 3),
    "fetch_add": (lambda w, r: w.fetch_add(1.0, r), "fetch", 1, 1),
    "get_accumulate": (lambda w, r: w.get_accumulate(ONE, r), "fetch", 1, 3),
    "compare_and_swap": (lambda w, r: w.compare_and_swap(1.0, 2.0, r), "fetch", 1, 1),
    "load": (lambda w, r: w.load(r), "fetch", 1, 1),
    "put_notify": (lambda w, r: w.put_notify(ONE, r, 0, slot=9), "notify", 1, 3),
    "rput": (lambda w, r: w.rput(ONE, r).wait(), "put", 1, 3),
    "rget": (lambda w, r: w.rget(r, 0, 2).wait(), "get", 1, 2),
    "raccumulate": (lambda w, r: w.raccumulate(ONE, r).wait(), "update", 1, 3),
    "put_many at one": (lambda w, r: w.put_many(r, [1, 5, 9], [1.0, 2.0, 3.0]), "put", 1, 3),
    "get_many at one": (lambda w, r: w.get_many(r, [1, 5, 9]), "get", 1, 3),
    "prepared": (lambda w, r: w.prepare_put(ONE, r)(), "put", 1, 3),
    "view": (lambda w, r: w.subwindow(4, 9).put(1.0, r), "put", 1, 1),
    "refused": (refused, None, 0, 0),
}


@pytest.mark.mpi
@pytest.mark.parametrize("make", [arena, plain])
@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_counted_once(comm, make, call):
    act, kind, calls, elements = CALLS[call]
    with make(comm) as win:
        rank = (comm.rank + 1) % comm.size
        assert not totals(win)
        act(win, rank)
        win.flush()
        assert totals(win) == ({(rank, kind): (calls, elements)} if kind else {})
        act(win, rank)
        win.fence()
        assert totals(win) == ({(rank, kind): (2 * calls, 2 * elements)} if kind else {})


@pytest.mark.mpi
@pytest.mark.parametrize("make", [arena, plain])
@pytest.mark.parametrize("seed", range(3))
def test_random_programs_are_counted(comm, make, seed):
    names = [name for name in CALLS if name not in ("refused", "prepared")]
    choose = random.Random(100 * seed + comm.rank)
    wanted = defaultdict(lambda: [0, 0])
    with make(comm) as win:
        for _ in range(100):
            name, rank = choose.choice(names), choose.randrange(comm.size)
            act, kind, calls, elements = CALLS[name]
            act(win, rank)
            if kind:
                wanted[rank, kind][0] += calls
                wanted[rank, kind][1] += elements
        win.flush()
        assert totals(win) == {key: tuple(value) for key, value in wanted.items()}
        win.fence()


@pytest.mark.mpi
@pytest.mark.parametrize("make", [arena, plain])
def test_many_elements_of_several_targets(comm, make):
    with make(comm) as win:
        ranks = np.arange(12) % comm.size
        win.put_many(ranks, np.arange(12), np.ones(12))
        win.get_many(ranks, np.arange(12))
        found = totals(win)
        for kind in ("put", "get"):
            assert sum(elements for (_, k), (_, elements) in found.items() if k == kind) == 12
        if comm.size > 1 and win.route((comm.rank + 1) % comm.size) != "direct":
            for rank in range(comm.size):
                if win.route(rank) != "direct":
                    assert found[rank, "put"] == (1, int((ranks == rank).sum()))
        win.fence()


@pytest.mark.mpi
def test_a_long_put_is_one(comm):
    with rmaext.Window(comm, np.zeros(1 << 17)) as win:
        rank = (comm.rank + 1) % comm.size
        win.put(np.ones(1 << 17), rank)
        win.flush()
        assert totals(win) == {(rank, "put"): (1, 1 << 17)}
        win.fence()


@pytest.mark.mpi
def test_routes_are_told_apart(comm):
    with arena(comm) as win:
        rank = (comm.rank + 1) % comm.size
        win.put(ONE, rank)
        win.flush()
        (row,) = win.stats
        assert row["route"] in ("direct", "fabric", "message")
        assert (row["route"] == "direct") == (win.route(rank) == "direct")
        win.fence()


@pytest.mark.mpi
def test_kinds_of_windows(comm):
    peer = (comm.rank + 1) % comm.size
    with rmaext.Window(comm, [zeros(8), zeros(4)]) as win:
        win.put(ONE, peer, 6)  # two in the first array, one in the second
        win.flush()
        assert totals(win) == {(peer, "put"): (2, 3)}
        win.fence()
    with rmaext.Window.dynamic(comm, np.float64) as win:
        array = zeros(4)
        address = win.attach(array)
        addresses = comm.allgather(address)
        win.put(ONE, peer, addresses[peer])
        win.flush()
        assert totals(win) == {(peer, "put"): (1, 3)}
        win.fence()
        comm.Barrier()
        win.detach(array)
    mpi = compat.Win.Allocate(64, 8, comm=comm)
    mpi.Fence()
    mpi.Put(ONE, peer)
    mpi.Fence()
    mpi.Free()


@pytest.mark.mpi
def test_closed(comm):
    with arena(comm) as win:
        pass
    with pytest.raises(ClosedError):
        _ = win.stats


def test_snapshot():
    with arena(MPI.COMM_SELF) as win:
        win.put(ONE, 0)
        before = win.stats
        win.put(ONE, 0)
        assert before[0]["calls"] == 1
        assert win.stats[0]["calls"] == 2
        assert win.stats.dtype.names == (
            *("target", "kind", "route", "calls", "elements", "bytes", "errors"),
        )


def test_without_record(monkeypatch):
    code = """
os.environ.get("RMAEXT_RECORD") == "0" or sys.exit("no RMAEXT_RECORD")
with rmaext.Window.allocate(world, 1000) as win:
    exercise(win)
    text = refuses(lambda: win.stats, rmaext.Unsupported)
    assert "RMAEXT_RECORD" in text, text
    win.fence()
"""
    monkeypatch.setenv("RMAEXT_RECORD", "0")
    done = start(2, PRELUDE + code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("route", ["", "fabric"])
def test_what_goes_to_the_lost_is_an_error(route):
    code = """
win = rmaext.Window.allocate(world, 1000, timeout=5)
exercise(win)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
lost = False
while not lost:
    try:
        win.put(np.ones(10), 1)
        win.flush(1)
        time.sleep(0.05)
    except rmaext.PeerLostError:
        lost = True
assert set(win.stats["target"]) == {1}, win.stats
print("end", flush=True)
os._exit(0)
"""
    done = start(2, PRELUDE + code, env={"RMAEXT_ROUTE": route}, survive=True)
    assert done.stdout.count("end") == 1, done.stderr
