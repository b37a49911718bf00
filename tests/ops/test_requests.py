# SPDX-License-Identifier: BSD-3-Clause
"""Requests: operations that are begun now and waited for later, or never."""

from __future__ import annotations

import asyncio
import dis
import gc
import resource
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, in_threads, neighbour, noise, rounds, same
from support.jobs import kill, passes

import rmaext
from rmaext import Request

DTYPES = ["i1", "u2", "f4", "i8", "c16", "S5", [("a", "i4"), ("b", "f8")]]


async def waiting(request):
    return await request


def begin_all(win, rank):
    """One request of each kind on elements 0 to 5 of an int64 window, with what to expect."""
    return [
        (win.rput(np.arange(4), rank), None),
        (win.rfetch_op(5, rank, 4), 0),
        (win.rcompare_and_swap(0, 7, rank, 5), 0),
        (win.raccumulate(np.array([1, 1]), rank, 6), None),
        (win.rget_accumulate(np.array([2, 3]), rank, 8), [0, 0]),
        (win.rget(rank, 10, 2), [0, 0]),
    ]


# -- what they do ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_put_and_get(comm, dtype):
    """Any size, on every route; done means that the data is there, without a flush."""
    with guarded(comm, 300_000, dtype) as win:
        to = neighbour(comm)
        at = 0
        for count in (1, 7, 4100, 250_000):
            data = noise(dtype, count, comm.rank, count)
            put = win.rput(data, to, at)
            assert put.wait() is None
            assert put.done
            comm.Barrier()
            assert same(
                win.local[at : at + count], noise(dtype, count, (comm.rank - 1) % comm.size, count)
            )
            got = win.rget(to, at, count)
            assert same(got.wait(), data)
            assert got.wait() is got.result()
            out = np.empty(count, dtype)
            assert win.rget(to, at, out=out).wait() is out
            assert same(out, data)
            comm.Barrier()
            at += count


def test_each_kind(comm):
    with guarded(comm, 16, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        for request, want in begin_all(win, to):
            got = request.wait()
            assert request.test()
            assert request.done
            if want is None:
                assert got is None
            else:
                assert (got == want).all()
                assert np.ndim(got) == np.ndim(want)
        comm.Barrier()
        assert win.local.tolist() == [0, 1, 2, 3, 5, 7, 1, 1, 2, 3, 0, 0, 0, 0, 0, 0]
        comm.Barrier()


def test_nothing_to_do(comm):
    """No elements, no rank: done at once."""
    with guarded(comm, 4, "i8", proc_null=True) as win:
        to = neighbour(comm)
        nothing = np.empty(0, "i8")
        for request in (
            win.rput(nothing, to, 4),
            win.rget(to, 4),
            win.rput(1, MPI.PROC_NULL),
            win.rget(MPI.PROC_NULL, 0, 3),
            win.rget(MPI.PROC_NULL, out=nothing),
            win.raccumulate(nothing, to),
            win.rget_accumulate(nothing, to),
            win.rfetch_op(1, MPI.PROC_NULL),
            win.rcompare_and_swap(1, 2, MPI.PROC_NULL),
        ):
            assert request.test()
            result = request.wait(0)
            assert result is None or not len(result)


def test_a_put_that_is_done_is_seen_by_a_third_rank(comm):
    """Without flush: MPI's Rput promises only that the origin may be used again."""
    with guarded(comm, 1000, "i8") as win:
        comm.Barrier()
        for turn in range(1, 20):
            if comm.rank == 0:
                win.rput(np.full(1000, turn), neighbour(comm)).wait()
            comm.Barrier()
            assert (win.get(neighbour(MPI.COMM_SELF) if comm.size == 1 else 1) == turn).all()
            comm.Barrier()


def test_updates_of_one_origin_apply_in_order(comm):
    """Requests and calls mixed, more than the network takes at a time."""
    with guarded(comm, 2, "i8") as win:
        comm.Barrier()
        if comm.rank == 0:
            to = neighbour(comm)
            requests = [win.rfetch_op(1, to) for _ in range(1500)]
            assert win.fetch_add(1, to) == 1500
            requests.append(win.rfetch_op(1, to))
            olds = Request.waitall(requests)
            assert olds == [*range(1500), 1501]
        comm.Barrier()


def test_concurrent_updates(comm):
    with guarded(comm, 2, "i8") as win:
        comm.Barrier()
        olds = Request.waitall([win.rfetch_op(1, 0) for _ in range(300)])
        assert olds == sorted(olds)
        every = comm.gather(olds)
        comm.Barrier()
        if comm.rank == 0:
            assert sorted(old for olds in every for old in olds) == list(range(300 * comm.size))
            assert win.local[0] == 300 * comm.size
        comm.Barrier()


def test_other_windows(comm):
    """A part, one field, several arrays, attached memory."""

    def exercise(win, first):
        to = neighbour(comm)
        comm.Barrier()
        requests = [win.rput(np.arange(3), to, first), win.raccumulate(7, to, first + 3)]
        Request.waitall(requests)
        assert win.rfetch_op(5, to, first + 3).wait() == 7
        assert win.rcompare_and_swap(12, 1, to, first + 3).wait() == 12
        assert win.rget_accumulate(np.ones(4, int), to, first).wait().tolist() == [0, 1, 2, 1]
        # applied: a third rank, told so, sees it
        comm.Barrier()
        assert win.rget(comm.rank, mine, 4).wait().tolist() == [1, 2, 3, 2]
        comm.Barrier()

    mine = 2
    with guarded(comm, 20, "i8") as win:
        with win.subwindow(4, 12) as part:
            exercise(part, 2)
        assert win.local.tolist() == [0] * 6 + [1, 2, 3, 2] + [0] * 10
    with guarded(comm, 20, [("a", "i8"), ("b", "i8")]) as win:
        with win.field("b") as field:
            exercise(field, 2)
        assert win.local["b"].tolist() == [0, 0, 1, 2, 3, 2] + [0] * 14
        assert not win.local["a"].any()
    with rmaext.Window(comm, [np.zeros(4, int), np.zeros(4, int)]) as win:
        exercise(win, 2)
        assert [part.tolist() for part in win.local] == [[0, 0, 1, 2], [3, 2, 0, 0]]
    with rmaext.Window.dynamic(comm, "i8") as win:
        memory = np.zeros(4, int)
        mine = win.attach(memory)
        exercise(win, comm.allgather(mine)[neighbour(comm)])
        assert memory.tolist() == [1, 2, 3, 2]
        comm.Barrier()
        win.detach(memory)


# -- several ---------------------------------------------------------------------------


def test_waitall_keeps_the_order(comm):
    with guarded(comm, 5000, "i8", fill=np.arange(5000)) as win:
        comm.Barrier()
        to = neighbour(comm)
        places = np.random.default_rng(comm.rank).permutation(5000 - 3)
        requests = [win.rget(to, int(at), 3) for at in places]
        got = Request.waitall(iter(requests))
        assert len(got) == len(places)
        assert all(g.tolist() == [at, at + 1, at + 2] for g, at in zip(got, places, strict=True))
        assert Request.testall(requests)
        assert Request.waitall([]) == []
        comm.Barrier()


def test_waitall_with_failures(comm):
    """All the others are waited for; the first error is raised."""
    with guarded(comm, 3000, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        requests = [win.rput(np.full(3, i), to, 3 * i) for i in range(1000)]
        requests[10].free()
        with pytest.raises(rmaext.SyncError, match="freed"):
            Request.waitall(requests)
        assert all(request.done for request in requests if request is not requests[10])
        win.fence()
        assert (win.local == np.repeat(np.arange(1000), 3)).all()
        comm.Barrier()


def test_waitany(comm):
    with guarded(comm, 200, "i8", fill=np.arange(200)) as win:
        comm.Barrier()
        requests = {at: win.rget(neighbour(comm), at, 1) for at in range(200)}
        while requests:
            at = list(requests)[
                Request.waitany(requests.values(), 30 if len(requests) % 2 else None)
            ]
            request = requests.pop(at)
            assert request.done
            assert request.wait().tolist() == [at]
        with pytest.raises(ValueError, match="no requests"):
            Request.waitany([])
        assert Request.testany([]) is None
        comm.Barrier()


def test_testany_and_testall(comm):
    with guarded(comm, 100, "i8", fill=np.arange(100)) as win:
        comm.Barrier()
        requests = [win.rget(neighbour(comm), at, 1) for at in range(100)]
        late = time.monotonic() + 30
        while (index := Request.testany(requests)) is None:
            assert time.monotonic() < late
        assert requests[index].wait().tolist() == [index]
        while not Request.testall(requests):
            assert time.monotonic() < late
        assert [request.wait(0)[0] for request in requests] == list(range(100))
        comm.Barrier()


def test_of_several_windows(comm):
    """One endpoint or two: a communicator of one rank has its own."""
    with guarded(MPI.COMM_SELF, 100, "i8", 1) as one, guarded(comm, 100, "i8", 2) as two:
        comm.Barrier()
        requests = [one.rget(0), two.rget(neighbour(comm))] * 50
        left = list(requests)
        while left:
            left.pop(Request.waitany(left))
        assert [got[0] for got in Request.waitall(requests)] == [1, 2] * 50
        comm.Barrier()


# -- buffers ---------------------------------------------------------------------------


def kept(fabric):
    """How many operations have their buffers kept, of which somebody still has some."""
    return 0 if fabric is None else fabric._in_flight + fabric._orphans


@rounds(25_000, 100_000)
def test_temporaries_are_kept_and_let_go(comm, rounds):
    """Requests that nobody waits for, of arrays that nobody has."""
    n = rounds // comm.size
    with guarded(comm, 4 * n, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        fabric = win._fabric
        old = kept(fabric)
        most = 0
        win.put(0, to)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(n):
            win.rput(np.full(4, i), to, 4 * i)
            if i % 10_000 == 0:
                gc.collect()
            if fabric is not None:
                most = max(most, kept(fabric) - old)
        win.flush()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert most <= 1100
        assert grown < rounds // 5  # KiB; the window's own pages are touched by its neighbour
        comm.Barrier()
        assert (win.local == np.repeat(np.arange(n), 4)).all()
        if fabric is not None:
            fabric._reap(10_000)
            assert kept(fabric) <= old
            assert not fabric._orphans
            assert fabric._orphan_bytes == 0


def test_large_temporaries_are_bounded(comm):
    """256 MiB, of which 64 may be on their way."""
    with guarded(comm, 1 << 17, "i8") as win:
        comm.Barrier()
        most = 0
        for i in range(256):
            win.rput(np.full(1 << 17, i), neighbour(comm))
            most = max(most, win._fabric._orphan_bytes if win.fabric else 0)
        win.flush()
        assert most <= (64 << 20) + (1 << 20)
        comm.Barrier()
        assert (win.local >= 0).all()


def test_kept_requests_let_go_of_their_buffers(comm):
    """Once they are waited for; and of all else when they go."""
    with guarded(comm, 1000, "i8") as win:
        comm.Barrier()
        fabric = win._fabric
        old = kept(fabric)
        data = np.ones(1000, int)
        alive = weakref.ref(data)
        request = win.rput(data, neighbour(comm))
        del data
        gc.collect()
        request.wait()
        gc.collect()
        assert alive() is None
        requests = [win.rget(neighbour(comm)) for _ in range(3000)]
        Request.waitall(requests)
        assert kept(fabric) <= old
        result = weakref.ref(requests[0].wait())
        del requests, request
        gc.collect()
        assert result() is None
        comm.Barrier()


def test_dropped_requests_count_for_flush_fence_and_close(comm):
    big, mine = np.arange(200_000), np.zeros(600_000, int)
    win = rmaext.Window(comm, mine)
    win.rput(big, neighbour(comm))
    win.flush(neighbour(comm))
    comm.Barrier()
    assert (win.local[:200_000] == big).all()
    win.rput(big, neighbour(comm), 200_000)
    win.fence()
    assert (win.local[200_000:400_000] == big).all()
    for i in range(100):
        win.rput(big[i * 2000 : i * 2000 + 2000], neighbour(comm), 400_000 + i * 2000)
    win.close()
    assert (mine[400_000:] == big).all()


# -- the end of a request --------------------------------------------------------------


def test_close_completes_what_is_open(comm):
    """Results are still there after it."""
    win = rmaext.Window(comm, np.arange(300_000))
    comm.Barrier()
    requests = [win.rget(neighbour(comm), at, 1000) for at in range(0, 300_000, 1000)]
    win.close()
    assert all(request.done for request in requests)
    assert (np.concatenate(Request.waitall(requests)) == np.arange(300_000)).all()
    with pytest.raises(rmaext.ClosedError):
        win.rget(0)


@pytest.mark.pair
def test_freed(comm):
    with guarded(comm, 1000, "i8") as win:
        comm.Barrier()
        for request in (win.rput(np.ones(1000, int), neighbour(comm)), win.rget(comm.rank)):
            request.free()
            uses = (
                request.test,
                request.wait,
                request.result,
                request.cancel,
                request.free,
                lambda request=request: request.done,
                lambda request=request: Request.waitany([request]),
                lambda request=request: Request.testall([request]),
                lambda request=request: asyncio.run(waiting(request)),
            )
            for use in uses:
                with pytest.raises(rmaext.SyncError, match="freed"):
                    use()
        win.fence()
        assert (win.local == 1).all()
        comm.Barrier()


def test_cancel(comm):
    """True only of what was not sent, and then it never is."""
    n = 3000
    with guarded(comm, n, "i8") as win:
        comm.Barrier()
        requests = [win.rput(i + 1, neighbour(comm), i) for i in range(n)]
        gone = [request.cancel() for request in reversed(requests)][::-1]
        for request, was_cancelled in zip(requests, gone, strict=True):
            if was_cancelled:
                assert request.done
                assert request.test()
                assert request.cancel()
                with pytest.raises(rmaext.SyncError, match="cancelled"):
                    request.wait()
            else:
                assert request.wait() is None
                assert not request.cancel()
        win.flush()
        every = comm.allgather(gone)
        comm.Barrier()
        want = np.where(every[(comm.rank - 1) % comm.size], 0, np.arange(n) + 1)
        assert (win.local == want).all()
        assert win.route(neighbour(comm)) == "fabric" or not any(gone)
        comm.Barrier()


@pytest.mark.pair
def test_wrong_arguments(comm):
    """Refused at once; nothing is sent."""
    with guarded(comm, 10, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        readonly = np.zeros(10, "i8")
        readonly.flags.writeable = False
        refused = [
            (rmaext.BoundsError, lambda: win.rget(to, 5, 6)),
            (TypeError, lambda: win.rput(1.5, to)),
            (TypeError, lambda: win.rget(to, out=[1, 2])),
            (ValueError, lambda: win.rget(to, out=readonly)),
            (ValueError, lambda: win.rget(to, 0, -1)),
            (ValueError, lambda: win.rget(to, 0, 3, np.empty(4, "i8"))),
            (OverflowError, lambda: win.rfetch_op(1 << 64, to)),
            (ValueError, lambda: win.rfetch_op(1, to, op="plus")),
            (ValueError, lambda: win.rcompare_and_swap(1, np.ones(2, int), to)),
            (TypeError, Request),
            (TypeError, lambda: win.rget(to).wait("1")),
            (ValueError, lambda: win.rget(to).wait(-1)),
        ]
        for number, (error, call) in enumerate(refused):
            if number > 9 and win.route(to) != "fabric":
                continue  # done at once
            with pytest.raises(error):
                call()
        win.fence()
        assert not win.local.any()
        comm.Barrier()


# -- threads ---------------------------------------------------------------------------


def test_threads_begin_and_wait(comm):
    def work(number):
        for turn in range(30):
            at = 1000 * number
            puts = [win.rput(np.full(10, turn), to, at + 10 * i) for i in range(100)]
            if number % 2:
                win.flush()
                assert all(put.done for put in puts)
            Request.waitall(puts)
            assert (win.rget(to, at, 1000).wait() == turn).all()

    with guarded(comm, 4000, "i8") as win:
        comm.Barrier()
        to = neighbour(comm)
        in_threads(4, work)
        comm.Barrier()


def test_threads_share_requests(comm):
    """All of them wait for, test or drop the same ones."""

    def work(number):
        for i, request in enumerate(shared):
            if number == 0:
                while not request.test():
                    pass
            assert request.wait(30 if number % 2 else None)[0] == i
            assert request.wait() is request.result()
        assert Request.testall(shared)

    with guarded(comm, 500, "i8", fill=np.arange(500)) as win:
        comm.Barrier()
        for _ in range(5):
            shared = [win.rget(neighbour(comm), at, 1) for at in range(500)]
            in_threads(4, work)
        comm.Barrier()


# -- targets that do not answer; each a job of its own ---------------------------------


@pytest.mark.parametrize(
    "scenario", ["late", "interrupted", "cancelled", "awaited", "abandoned", "dropped", "left"]
)
def test_stopped_target(scenario):
    passes(2, "ops/programs/requests.py", scenario, oks=2, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize("scenario", ["late", "interrupted", "awaited", "abandoned", "left"])
def test_stopped_target_of_ranges(scenario):
    passes(2, "ops/programs/requests.py", scenario, "ranges", oks=2, RMAEXT_ROUTE="fabric")


def test_owners_of_buffers():
    """Signal handlers, other threads and the end of the process, wherever they come."""
    env = {"RMAEXT_ROUTE": "fabric", "MALLOC_PERTURB_": "165"}  # freed memory is of no use
    passes(2, "ops/programs/owners.py", oks=2, **env)


def test_a_request_ends_in_one_step():
    """Threads and signal handlers run at calls, and with Python 3.10 where a look has jumped to."""
    steps = list(dis.get_instructions(Request._end))
    at = {(step.opname, step.argval): i for i, step in enumerate(steps)}
    between = steps[at["LOAD_ATTR", "_state"] + 1 : at["STORE_ATTR", "_state"]]
    assert ("STORE_ATTR", "_error") in [(step.opname, step.argval) for step in between]
    assert not [step for step in between if step.is_jump_target or "CALL" in step.opname]


MORE = [pytest.param(how, marks=pytest.mark.matrix) for how in ("test", "waitany", "waitall")]


@pytest.mark.parametrize("how", ["wait", "await", "flush", *MORE])
def test_killed_target(how):
    kill(f"requests {how}", RMAEXT_ROUTE="fabric")
