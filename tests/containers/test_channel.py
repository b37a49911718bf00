# SPDX-License-Identifier: BSD-3-Clause
"""Channel: each record once, a writer's in its order, whoever waits, is interrupted or dies."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.bytecodes import Interrupt, Tracing, interrupt, places
from support.guarded import noise, same
from support.jobs import passes

import rmaext
from rmaext._runtime import locks
from rmaext.containers import Channel, _channel

RECORD = np.dtype([("mass", "f8"), ("count", "i4"), ("name", "S5")])


def received(channel, got=None):
    """Return what comes until the end, by source."""
    got = [[] for _ in range(channel.comm.size)] if got is None else got
    for source, records in channel:
        assert records.ndim == 1
        assert records.size
        assert records.dtype == channel.dtype
        got[source].append(records)
    assert channel.ended
    assert channel.receive() is None
    assert channel.try_receive() is None
    none = np.empty(0, channel.dtype)
    return [np.concatenate([none, *some], dtype=channel.dtype) for some in got]


# -- what comes ---------------------------------------------------------------------------


# Each dtype, and each capacity: what a ring does with both, test_like_a_queue tries, and in which
# order, test_channel_model.py.
@pytest.mark.parametrize(
    ("dtype", "capacity"),
    [
        *(("f8", capacity) for capacity in (1, 2, 3, 50, 100_000)),
        *zip(["?", "c16", "S3", "U2", ">i4", "M8[s]", RECORD], [1, 2, 3, 50, 1, 2, 3], strict=True),
    ],
    ids=str,
)
def test_everybody_to_everybody(comm, dtype, capacity):
    """Records of varying number, also more than there is room for, to oneself too."""
    rng = random.Random(comm.rank)
    count = 200
    ranks = range(comm.size)
    want = [[noise(np.dtype(dtype), count, a, b) for b in ranks] for a in ranks]
    with Channel(comm, dtype, capacity) as channel:
        at = [0] * comm.size
        while min(at) < count:
            to = rng.randrange(comm.size)
            some = rng.choice([0, 1, 2, 7, count])
            channel.send(want[comm.rank][to][at[to] : at[to] + some], to)
            at[to] = min(count, at[to] + some)
        assert channel.sent.tolist() == [count] * comm.size
        channel.done()
        for source, records in enumerate(received(channel)):
            assert same(records, want[source][comm.rank])
        assert "done" in repr(channel)
    assert channel.closed
    assert "closed" in repr(channel)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from(["i1", "i2", "i8", "V3", "V24"]),
    st.lists(st.integers(-8, 30), max_size=25),
)
def test_like_a_queue(capacity, dtype, steps):
    """Sends (so many records) and receives (negative) of one rank, against a list."""
    with Channel(MPI.COMM_SELF, dtype, capacity) as channel:
        unit, sent, got = channel.dtype.itemsize, bytearray(), bytearray()
        for step in steps:
            if step >= 0:
                records = np.random.default_rng(len(sent)).bytes(step * unit)
                channel.send(np.frombuffer(records, dtype), 0)
                sent += records
            for _ in range(-step):
                some = channel.try_receive()
                assert (some is None) == (len(got) == len(sent))
                got += b"" if some is None else some[1].tobytes()
            assert sent.startswith(got)
        assert received(channel)[0].tobytes() == sent[len(got) :]


def test_several_windows(comm, monkeypatch):
    """There is one for 256 writers."""
    monkeypatch.setattr(_channel, "_SLOTS", 2)
    with Channel(comm, int, 3) as channel:
        assert len(channel._rings) == (comm.size + 1) // 2
        for step in range(50):
            for rank in range(comm.size):
                channel.send(range(10 * step, 10 * step + step % 9), rank)
        channel.done()
        want = [10 * step + i for step in range(50) for i in range(step % 9)]
        assert all(records.tolist() == want for records in received(channel))


@pytest.mark.parametrize("what", [5, np.int64(5), [5], [[5, 6], [7, 8]], (), range(3)], ids=str)
def test_what_can_be_sent(what):
    with Channel(MPI.COMM_SELF, int, 3) as channel:
        channel.send(what, 0)
        got = received(channel)[0]
        assert got.tolist() == np.array(what, int).reshape(-1).tolist()


def test_records_are_copies():
    with Channel(MPI.COMM_SELF, int, 3) as channel:
        mine = np.array([1, 2])
        channel.send(mine[::-1], 0)
        mine[:] = 0
        _, got = channel.receive()
        channel.send([7, 7, 7], 0)
        assert got.tolist() == [2, 1]
        assert got.flags.writeable
        assert got.flags.aligned


def test_sub_communicators(world):
    part = world.Split(world.rank % 2, -world.rank)
    with Channel(part, int, 4) as channel:
        for rank in range(part.size):
            channel.send([part.rank, rank], rank)
        channel.done()
        assert [got.tolist() for got in received(channel)] == [
            [rank, part.rank] for rank in range(part.size)
        ]
    part.Free()


# -- who waits for whom ---------------------------------------------------------------------


def test_all_send_first(world):
    """More than there is room for, to all, before anybody receives: nobody waits for ever."""
    with Channel(world, "i8", 10) as channel:
        for step in range(20):
            for rank in range(world.size):
                channel.send(range(50 * step, 50 * step + 50), rank)
        channel.done()
        for records in received(channel):
            assert (records == np.arange(1000)).all()


@pytest.mark.mpi(min_size=2)
def test_a_reader_that_does_not_read(world):
    """A sender waits for its time limit, and says for whom; it goes on later."""
    with Channel(world, "i8", 100, timeout=0.5) as channel:
        if world.rank == 0:
            start = time.monotonic()
            with pytest.raises(rmaext.RmaTimeout, match=r"send: rank 1 has taken nothing") as info:
                channel.send(range(10_000), 1)
            assert 0.4 < time.monotonic() - start < 10
            assert info.value.rank == 1
            went = int(channel.sent[1])
            assert 100 <= went < 10_000
            world.Barrier()
            channel.send(range(went, 10_000), 1)
        else:
            world.Barrier()
        channel.done()
        got = received(channel)[0]
        assert got.tolist() == (list(range(10_000)) if world.rank == 1 else [])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("capacity", [1, 5, 100, 4000])
@pytest.mark.parametrize("dtype", ["u1", "V100"])
def test_capacity_is_what_waits(world, dtype, capacity):
    """However many were read before, and sent one by one: none of these sends has to wait."""
    with Channel(world, dtype, capacity, timeout=2) as channel:
        record = np.zeros((), dtype)
        for read in sorted({1, capacity // 5, capacity // 3}):
            for count in read, capacity:
                for _ in range(count if world.rank == 0 else 0):
                    channel.send(record, 1)
                world.Barrier()
                while world.rank == 1 and count > 0:
                    count -= channel.receive(timeout=20)[1].size
                world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_reader_that_sleeps_is_woken(world):
    """Each waits for the other's record in turn."""
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    with Channel(world, "i8", 10) as channel:
        for turn in range(30):
            if world.rank or turn:
                source, records = channel.receive(timeout=60)
                assert (source, records.tolist()) == (left, [turn - (world.rank == 0)])
            if turn % 10 == world.rank:
                time.sleep(0.05)
            channel.send(turn, right)
        if not world.rank:
            assert channel.receive()[1].tolist() == [29]
        world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_waits_end_for_what_comes(world, monkeypatch):
    """A wait takes one count off a slot; those of what was read with it end no later waits."""
    waits, wait_any = [], rmaext.Window.wait_any
    monkeypatch.setattr(rmaext.Window, "wait_any", lambda *args: waits.append(1) or wait_any(*args))
    with Channel(world, int, 100) as channel:
        for k in range(40):
            channel.send(k, world.rank)
        got = []
        while len(got) < 40:
            got += channel.receive()[1].tolist()
        assert got == list(range(40))
        with pytest.raises(rmaext.RmaTimeout):
            channel.receive(timeout=0.05)
        assert len(waits) < 20
        world.Barrier()  # nobody is done before


def test_time_limits(comm):
    with Channel(comm, int, 3) as channel:
        if comm.size == 1:
            assert channel.receive(timeout=1) is None  # there are no others
        else:
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            for limit in 0, 0.05:
                start = time.monotonic()
                with pytest.raises(rmaext.RmaTimeout, match="receive: nothing within") as info:
                    channel.receive(timeout=limit)
                assert time.monotonic() - start >= limit
                assert all(str(rank) in str(info.value) for rank in others)
            assert channel.try_receive() is None
            assert not channel.ended
        comm.Barrier()


def test_done(comm):
    with Channel(comm, int, 3) as channel:
        channel.send(range(3), comm.rank)
        channel.done()
        channel.done()
        for records in 5, []:
            with pytest.raises(rmaext.ClosedError, match="make a channel for each round"):
                channel.send(records, 0)
        got = received(channel)
        assert got[comm.rank].tolist() == [0, 1, 2]
        assert list(channel) == []
        channel._done = False
        channel.send([1, 2], comm.rank)
        channel._take_in()  # as a send that waits
    channel.close()
    for call in channel.receive, channel.try_receive, channel.done, lambda: channel.send(5, 0):
        if call != channel.done or comm.size > 1:
            with pytest.raises(rmaext.ClosedError):
                call()


@pytest.mark.mpi(min_size=2)
def test_full_and_done(world):
    """There is always room to say that this rank is done."""
    for capacity in 1, 2, 7:
        with Channel(world, "V5", capacity, timeout=0.2) as channel:
            right = (world.rank + 1) % world.size
            world.Barrier()
            full = False
            while not full:
                try:
                    channel._put_later = None  # nothing is taken in meanwhile
                    channel.send(b"abcde", right)
                except TypeError:
                    full = True
            del channel._put_later
            channel.done()
            count = sum(records.size for records in received(channel))
            assert count == world.allgather(channel.sent)[world.rank - 1][world.rank]
            assert count >= capacity
            world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_leaves_by_an_exception(world):
    """What it has sent comes, then the others know, once."""
    comm, last = world.Dup(), world.size - 1  # which nobody can use afterwards
    channel = Channel(comm, int, 10)
    if world.rank == last:
        with suppress(ZeroDivisionError), channel:
            channel.send(7, 0)
            raise ZeroDivisionError
        assert channel.closed
    else:
        channel.done()
        got = []
        with pytest.raises(rmaext.PeerLostError, match=f"rank {last} lost, or left") as info:
            got.extend(channel)
        assert info.value.ranks == (last,)
        assert got == ([(last, [7])] if world.rank == 0 else [])
        assert channel.receive() is None
        assert channel.ended
        with pytest.raises((rmaext.SyncError, rmaext.PeerLostError)):
            channel.close()
    world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_send_to_a_rank_that_has_left(world):
    """Who waits for room there is told at once, and whoever knows."""
    comm, last = world.Dup(), world.size - 1
    channel = Channel(comm, int, 10)
    if world.rank == last:
        with suppress(ZeroDivisionError), channel:
            raise ZeroDivisionError
    world.Barrier()
    if world.rank != last:
        start = time.monotonic()
        for records in range(1000), 5:
            with pytest.raises(rmaext.PeerLostError, match=f"rank {last} has left") as info:
                channel.send(records, last)
            assert info.value.rank == last
        assert time.monotonic() - start < 20
        with pytest.raises((rmaext.SyncError, rmaext.PeerLostError)):
            channel.close()
    world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_two_exceptions(world):
    """The second, while the others are told of the first: none of them waits for this rank."""
    comm = world.Dup()
    channel = Channel(comm, int, 10)
    if world.rank == 0:
        channel._end = lambda mark: interrupt()
        with pytest.raises(Interrupt), channel:
            raise ZeroDivisionError
        assert channel.closed
    else:
        with pytest.raises((rmaext.SyncError, rmaext.PeerLostError)):
            channel.close()
    world.Barrier()


@pytest.mark.mpi(min_size=2)
def test_lost_while_somebody_looks(world):
    """What a rank sends just before it is lost comes before the error."""
    with Channel(world, int, 10) as channel:
        if world.rank == 0:

            def lost():
                world.Barrier()  # it sends
                world.Barrier()
                while not channel._rings[0].notify_counts()[1]:
                    time.sleep(1e-3)  # it was on its way when `send` returned
                return {1}

            channel._lost = lost
            assert channel.try_receive() == (1, [5])
            del channel._lost
        else:
            world.Barrier()
            if world.rank == 1:
                channel.send(5, 0)
            world.Barrier()


# -- bad arguments --------------------------------------------------------------------------


def test_ranks_that_do_not_agree(world):
    for wrong, error in [
        ((int, 0), ValueError),
        ((int, 2**31 + 1), ValueError),
        ((int, "3"), TypeError),
        ((object, 3), TypeError),
        ((("f4", (2,)), 3), TypeError),
        (("V0", 3), TypeError),
    ]:
        with pytest.raises(error, match="rank") as info:
            Channel(world, *(wrong if world.rank == world.size - 1 else (int, 3)))
        assert len(set(world.allgather(str(info.value)))) == 1
    if world.size > 1:
        with pytest.raises(ValueError, match=r"capacity=4.*all need the same"):
            Channel(world, int, 4 if world.rank else 3)
        with pytest.raises(TypeError, match=r"float32.*all need the same"):
            Channel(world, "f4" if world.rank else "f8", 3)


def test_wrong_arguments():
    with Channel(MPI.COMM_SELF, "i4", 3) as channel:
        for records, rank, error in [
            ([1], 1, rmaext.BoundsError),
            ([1], -1, rmaext.BoundsError),
            ([1], 0.0, TypeError),
            (np.zeros(2), 0, TypeError),
            (np.zeros(2, "i8"), 0, TypeError),
            ("abc", 0, TypeError),
            ([2**40], 0, OverflowError),
            (np.ma.zeros(2, "i4"), 0, TypeError),
        ]:
            with pytest.raises(error):
                channel.send(records, rank)
        for timeout, error in (-1, ValueError), ("soon", TypeError), (True, TypeError):
            with pytest.raises(error):
                channel.receive(timeout=timeout)
        assert channel.sent.tolist() == [0]
        assert channel.receive() is None


# -- threads and interruptions --------------------------------------------------------------


def test_eight_threads(comm):
    """Half send to all, half receive, all at once."""
    with Channel(comm, "i8", 20) as channel, ThreadPoolExecutor(8) as pool:

        def send(thread):
            for k in range(60):
                for rank in range(comm.size):
                    channel.send(range(10_000 * thread + 5 * k, 10_000 * thread + 5 * k + 5), rank)

        def receive(_):
            return list(channel)

        senders = [pool.submit(send, thread) for thread in range(4)]
        readers = [pool.submit(receive, thread) for thread in range(4)] if comm.size > 1 else []
        for sender in senders:
            sender.result()
        channel.done()
        # They may have ended when the other ranks were done, before this one was.
        got = [item for reader in readers for item in reader.result()] + list(channel)
        want = sorted(10_000 * thread + k for thread in range(4) for k in range(300))
        for source in range(comm.size):
            mine = [number for it, some in got if it == source for number in some.tolist()]
            assert sorted(mine) == want


def test_the_last_are_in_the_inbox():
    """Where another thread has put them meanwhile: there is something left."""
    with Channel(MPI.COMM_SELF, int, 5) as channel:
        lost = channel._lost()
        channel.send(7, 0)
        channel._take_in()
        assert not channel._over(lost)
        assert channel.receive() == (0, [7])
        assert channel._over(lost)


def test_counts_of_a_message_have_32_bits(monkeypatch):
    """A message has no more bytes, however large the ring is."""
    monkeypatch.setattr(_channel, "_MOST", 1000)
    with Channel(MPI.COMM_SELF, "u1", 10_000) as channel:
        sent = noise(np.dtype("u1"), 5000, 1, 2)
        channel.send(sent, 0)
        assert channel._to[0].messages == 6
        assert same(received(channel)[0], sent)


def test_order_of_one_of_several_threads(comm):
    """That of each thread's calls stays."""
    with Channel(comm, "i8", 4) as channel, ThreadPoolExecutor(3) as pool:

        def send(thread):
            for k in range(100):
                channel.send(1000 * thread + k, comm.rank)

        list(pool.map(send, range(3)))
        channel.done()
        got = received(channel)[comm.rank]
        for thread in range(3):
            assert (got[got // 1000 == thread] == 1000 * thread + np.arange(100)).all()


MODULES = _channel, locks


def transfer(channel, tracing, count, step):
    """Send so many to all, and receive all, whatever interrupts: return what came."""
    comm, got = channel.comm, [[] for _ in range(channel.comm.size)]
    before = tracing.without(lambda: channel.sent)
    numbers = np.arange(count)

    def sent(rank):
        return int(tracing.without(lambda: channel.sent - before)[rank])

    for first in range(0, count, step):
        for rank in range(comm.size):
            while (went := sent(rank)) < first + step:
                try:
                    with tracing:
                        channel.send(numbers[max(first, went) : first + step], rank)
                except Interrupt:
                    pass
    left = [count] * comm.size
    while any(left):
        try:
            with tracing:
                for source, records in channel:
                    got[source].extend(records.tolist())
                    left[source] -= records.size
                    if not any(left):
                        break
        except Interrupt:
            pass
    return got


def every_place(comm, numbers, capacity=3):
    """Interrupt at these bytecodes, as far as there are so many; return how often."""
    with Channel(comm, "i8", capacity) as channel:
        for tried, k in enumerate(numbers):
            tracing = Tracing(MODULES, k, interrupt)
            for got in transfer(channel, tracing, 12, 4):
                assert got == list(range(12)), (k, got)
            assert not any(lock._is_owned() for lock in (channel._sending, channel._receiving))
            comm.Barrier()
            if not comm.allreduce(tracing.acted, MPI.MAX):
                return tried
        return len(numbers)


def test_bytecodes(comm):
    """A send is done or not, as `sent` says; a record comes once."""
    assert every_place(comm, range(1, 2000, 97 if comm.size > 1 else 37)) > 10


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_all_bytecodes(comm):
    assert every_place(comm, range(1, 4000)) > 500


def test_done_interrupted(comm):
    def scenario(k):
        with Channel(comm, "i8", 3) as channel:
            tracing, said = Tracing(MODULES, k, interrupt), False
            while not said:
                try:
                    with tracing:
                        channel.done()
                        said = True
                except Interrupt:
                    pass
            assert not any(map(len, received(channel)))
            return comm.allreduce(tracing.acted, MPI.MIN)

    assert places(scenario, 17) >= (5 if comm.size > 1 else 0)


def test_a_handler_that_sends(comm):
    """At any bytecode: it is done, or refused."""
    refused = tried = 0
    with Channel(comm, "i8", 50) as channel:

        def scenario(k):
            nonlocal refused
            by_it = []

            def handler():
                nonlocal refused
                try:
                    channel.send(1000, comm.rank)
                    by_it.append(1000)
                except rmaext.BusyError:
                    refused += 1

            tracing = Tracing(MODULES, k, handler)
            got = []
            with tracing:
                channel.send(range(5), comm.rank)
                for _ in range(3):
                    got += received_now(channel)
            while len(got) < 5 + len(by_it):
                got += received_now(channel)
            assert sorted(got) == [*range(5), *by_it], k
            return comm.allreduce(tracing.acted, MPI.MIN)

        tried = places(scenario, 23)
    assert tried > 5
    assert 0 < refused < tried


def received_now(channel):
    got = channel.try_receive()
    return [] if got is None else got[1].tolist()


def test_a_storm_of_signals(comm, monkeypatch):
    """Real ones, at places of their own choosing, in C too."""
    monkeypatch.setattr(sys, "unraisablehook", lambda it: None)  # in finalizers, too
    caught, armed = 0, False

    def handler(signum, frame):
        if armed:
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with Channel(comm, "i8", 30) as channel:
            right = (comm.rank + 1) % comm.size
            numbers, got, end = np.arange(3000), [], time.monotonic() + 20
            # At the end it sends and receives nothing, until a signal has struck.
            while len(got) < numbers.size or channel.sent[right] < numbers.size or not caught:
                assert time.monotonic() < end
                signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-6, 3e-4))
                went = int(channel.sent[right])
                try:
                    armed = True
                    channel.send(numbers[went : went + 17], right)
                    armed = False
                except Interrupt:
                    armed = False
                    caught += 1
                try:
                    armed = True
                    for _, records in iter(channel.try_receive, None):
                        armed = False
                        got += records.tolist()
                        armed = True
                    armed = False
                except Interrupt:
                    armed = False
                    caught += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert got == numbers.tolist()
            comm.Barrier()
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_thread_that_waits_while_others_send(comm):
    """It sleeps until something comes from its own rank, too."""
    with Channel(comm, int, 5) as channel:
        got = []

        def read():
            if comm.size == 1:
                while not got:
                    got.extend(channel.try_receive() or ())
            else:
                got.extend(channel.receive())

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.1)
        channel.send(9, comm.rank)
        reader.join(30)
        assert (got[0], got[1].tolist()) == (comm.rank, [9])
        comm.Barrier()


# -- ranks that are lost ----------------------------------------------------------------------


@pytest.mark.parametrize("where", [(), ("nodes",)])
@pytest.mark.parametrize("scenario", ["writer", "reader"])
def test_a_rank_that_dies(scenario, where):
    program = "containers/programs/channel_killed.py"
    passes(3, program, scenario, *where, oks=2, survive=True, timeout=60)
