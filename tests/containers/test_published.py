# SPDX-License-Identifier: BSD-3-Clause
"""Published: reads are whole and never go back, and nobody holds up the owner."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.bytecodes import Interrupt, Tracing, interrupt, places
from support.guarded import noise, same
from support.jobs import passes

import rmaext
from rmaext._runtime import locks
from rmaext.containers import Published, _published

RECORD = np.dtype([("mass", "f8"), ("count", "i4"), ("name", "S5")])
SECONDS = 0.4  # of reading and publishing at full speed


@pytest.fixture
def alone():
    with Published(MPI.COMM_SELF, 4, "i8") as state:
        yield state


# -- one rank after the other --------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "?", "c16", "S3", ">i4", RECORD, ("f4", (2,))], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), 5, (3, 0, 2), (2, 3)], ids=str)
def test_everybody_reads_everybody(comm, shape, dtype):
    with Published(comm, shape, dtype) as state:
        want = {rank: np.zeros(shape, dtype) for rank in range(comm.size)}
        assert state.dtype == np.dtype(dtype).base
        for version in range(7):
            for rank in range(comm.size):
                out = np.empty_like(want[rank]) if version % 2 else None
                number, got = state.read(rank, out=out)
                assert number == version
                assert same(got, want[rank])
                assert out is None or got is out
            comm.Barrier()
            for rank in range(comm.size):
                count = want[rank].size
                want[rank] = noise(state.dtype, count, version, rank).reshape(state.shape)
            assert state.publish(want[comm.rank]) == version + 1
            comm.Barrier()
    assert state.closed


@pytest.mark.mpi(min_size=2)
def test_waiting_for_the_next(world):
    """A token goes round: each rank waits for the left one's next version."""
    left = (world.rank - 1) % world.size
    with Published(world, 2, "i8") as state:
        for turn in range(20):
            if world.rank:
                version, got = state.read(left, newer_than=turn)
                assert (version, got.tolist()) == (turn + 1, [turn, left])
            state.publish([turn, world.rank])
            if not world.rank:
                version, got = state.read(left, newer_than=turn, timeout=60)
                assert (version, got.tolist()) == (turn + 1, [turn, left])


def test_time_limits(comm):
    with Published(comm, 3) as state:
        for rank in range(comm.size):
            for limit in 0, 0.05, np.float32(0.01):
                start = time.monotonic()
                with pytest.raises(rmaext.RmaTimeout, match=f"rank {rank}.* newer than 0") as info:
                    state.read(rank, newer_than=0, timeout=limit)
                assert time.monotonic() - start >= float(limit)
                assert (info.value.rank, info.value.errno) == (rank, errno.ETIMEDOUT)
            assert state.read(rank, newer_than=-1, timeout=0)[0] == 0


def test_ranks_that_do_not_agree(world):
    if world.size == 1:
        pytest.skip("one rank agrees")
    last = world.size - 1
    for wrong, error in [
        ({"shape": -1}, ValueError),
        ({"shape": (2, "3")}, TypeError),
        ({"shape": 3, "buffers": 1}, ValueError),
        ({"shape": 3, "buffers": 257}, ValueError),
        ({"shape": 3, "buffers": 5}, ValueError),
        ({"shape": 4}, ValueError),
        ({"shape": 3, "dtype": "i8"}, TypeError),
        ({"shape": 3, "dtype": object}, TypeError),
    ]:
        mine = wrong if world.rank == last else {"shape": 3}
        with pytest.raises(error, match=r"rank") as info:
            Published(world, **mine)
        assert len(set(world.allgather(str(info.value)))) == 1
    with Published(world, 3) as state:  # nobody is left behind
        assert state.read(last)[0] == 0


def test_wrong_arguments(alone):
    alone.publish([1, 2, 3, 4])
    for array, error in [
        (np.zeros(3, "i8"), ValueError),
        (np.zeros((4, 1), "i8"), ValueError),
        (np.zeros(4), TypeError),
        (np.zeros(4, ">i8"), TypeError),
        ([2**63, 0, 0, 0], (OverflowError, TypeError)),
        (["a"] * 4, TypeError),
        (7, ValueError),
    ]:
        with pytest.raises(error):
            alone.publish(array)
    assert alone.read(0)[0] == 1
    assert alone.read(0)[1].tolist() == [1, 2, 3, 4]
    closed = np.zeros(4, "i8")
    closed.flags.writeable = False
    for keywords, error in [
        ({"rank": 1}, rmaext.BoundsError),
        ({"rank": -1}, rmaext.BoundsError),
        ({"rank": 0.0}, TypeError),
        ({"rank": 0, "out": np.zeros(4)}, TypeError),
        ({"rank": 0, "out": [0] * 4}, TypeError),
        ({"rank": 0, "out": np.zeros(5, "i8")}, ValueError),
        ({"rank": 0, "out": np.zeros(8, "i8")[::2]}, (TypeError, ValueError)),
        ({"rank": 0, "out": closed}, (TypeError, ValueError, PermissionError)),
        ({"rank": 0, "newer_than": 0.5}, TypeError),
        ({"rank": 0, "newer_than": 5, "timeout": -1}, ValueError),
        ({"rank": 0, "newer_than": 5, "timeout": True}, TypeError),
        ({"rank": 0, "newer_than": 5, "timeout": "soon"}, TypeError),
    ]:
        with pytest.raises(error):
            alone.read(**keywords)
    assert alone.publish([5, 6, 7, 8]) > 1
    assert alone.read(0)[1].tolist() == [5, 6, 7, 8]


def test_masked_arrays(alone):
    with pytest.raises(TypeError, match="mask"):
        alone.publish(np.ma.zeros(alone.shape, alone.dtype))
    assert alone.read(0)[0] == 0


def test_after_close(alone):
    alone.close()
    for call in lambda: alone.read(0), lambda: alone.publish([1, 2, 3, 4]):
        with pytest.raises(rmaext.ClosedError):
            call()
    assert "closed" in repr(alone)


def test_publish_within_publish(alone):
    """As a signal handler would."""

    state, caught = alone, []
    sync = state._control.sync

    def handler():
        with pytest.raises(rmaext.SyncError, match="another call"):
            state.publish([0] * 4)
        caught.append(True)
        sync()

    state._control.sync = handler
    assert state.publish(np.arange(4)) == 1
    assert caught
    state._control.sync = sync
    assert state.publish(np.arange(4)) == 2


# -- every interleaving of a read with publishes ---------------------------------------


class Interleaved:
    """A window between whose steps others act; a get has two steps."""

    def __init__(self, window, act):
        self._window, self._act = window, act

    def get(self, rank, offset, count, out):
        half, flat = count // 2, out.reshape(-1)
        for first, last in (0, half), (half, count):
            self._act()
            self._window.get(rank, offset + first, last - first, flat[first:last])

    def __getattr__(self, name):
        value = getattr(self._window, name)
        if not callable(value) or name in ("sync", "put", "flush"):
            return value

        def step(*arguments):
            self._act()
            return value(*arguments)

        return step


def interleave(plan, buffers, reads=3, change=lambda state: None):
    """Read while the owner publishes plan[i] versions before step i; return the steps taken."""
    with Published(MPI.COMM_SELF, 4, "i8", buffers=buffers) as state:
        owner, steps = {"newest": 0}, [0]

        def act():
            for _ in range(plan[steps[0] % len(plan)]):
                owner["newest"] += 1
                windows = state._data, state._control
                state._data, state._control = state._data._window, state._control._window
                state.publish(np.full(4, owner["newest"]))
                state._data, state._control = windows
            steps[0] += 1
            assert steps[0] < 400, "a read does not end"

        state._data = Interleaved(state._data, act)
        state._control = Interleaved(state._control, act)
        change(state)
        for _ in range(reads):
            before = owner["newest"]
            version, got = state.read(0)
            assert (got == version).all(), f"torn: {got} of version {version}"
            assert before <= version <= owner["newest"]
    return steps[0]


PLANS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(PLANS, st.integers(3, 6))
@example([5], 3)
def test_reads_are_whole_and_end(plan, buffers):
    """However many versions come between any two steps."""
    interleave(plan, buffers)


@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_two_buffers_are_enough_for_what_is_right(plan):
    """But a reader may have to wait until the owner pauses."""
    interleave([*plan, *[0] * 12], 2)


def test_the_check_finds_a_broken_protocol():
    """Without a look at BEGUN, and with a look before the data instead of behind."""

    def blind(state):
        get = state._get
        state._get = lambda *arguments: get(*arguments) or True

    def early(state):
        def get(rank, word, out):
            version, buffer = word >> 8, word & 255
            good = int(state._control.fetch_op(0, rank, 1 + buffer, "no_op")) == version
            state._data.get(rank, buffer * state._size, state._size, out)
            return good

        state._get = get

    def tried(change):
        for first in range(8):
            interleave([0] * first + [9], 3, change=change)

    for change in blind, early:
        with pytest.raises(AssertionError, match="torn"):
            tried(change)


def test_kept_versions_let_a_slow_reader_end():
    """Without them it would begin anew for ever."""
    assert interleave([9], 3) < 40

    def unkept(state):
        state._keep = lambda *arguments: None

    with pytest.raises(AssertionError, match="does not end"):
        interleave([9], 3, change=unkept)


# -- at full speed -------------------------------------------------------------------


def at_full_speed(world, count, buffers, seconds, owners=1):
    """Some ranks publish constants, the others read them; nothing is torn, nor goes back."""
    with Published(world, count, "i8", buffers=buffers) as state:
        world.Barrier()
        end, steps = time.monotonic() + seconds, 0
        if world.rank < owners:
            array = np.empty(count, "i8")
            while steps < 2 or time.monotonic() < end:
                steps += 1
                array[:] = steps
                assert state.publish(array) == steps
        else:
            out, seen = np.empty(count, "i8"), [0] * owners
            # an owner may begin late
            while (now := time.monotonic()) < end or (max(seen) < 2 and now < end + 20):
                owner = steps % owners
                version, _ = state.read(owner, out=out)
                assert (out == version).all(), f"torn: {version}, {np.unique(out)}"
                assert version >= seen[owner]
                seen[owner] = version
                steps += 1
            assert max(seen) > 1, "nobody published meanwhile"
        assert steps
        world.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [1, 1000, 1 << 17])
def test_at_full_speed(world, count):
    at_full_speed(world, count, 4, SECONDS)


@pytest.mark.mpi(min_size=2)
def test_at_full_speed_with_few_buffers(world):
    at_full_speed(world, 1 << 14, 3, SECONDS, owners=max(1, world.size - 2))


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [1, 1000, 1 << 17])
def test_long_at_full_speed(world, count):
    at_full_speed(world, count, 4, 60)


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_many_ranks(world):
    at_full_speed(world, 1000, 4, 5, owners=world.size // 2)


@pytest.mark.mpi(min_size=2)
def test_threads_that_read(world):
    """They share the rank's request."""
    with Published(world, 500, "i8") as state:
        world.Barrier()
        end, wrong = time.monotonic() + SECONDS, []

        def read():
            seen = 0
            while time.monotonic() < end:
                version, got = state.read(0)
                if version < seen or (got != version).any():
                    wrong.append((seen, version, got))
                seen = version

        if world.rank:
            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            version = 0
            while time.monotonic() < end:
                version += 1
                state.publish(np.full(500, version))
        assert not wrong
        world.Barrier()


def test_eight_threads(comm):
    """Any publish and read at once: versions come one after the other, and whole."""
    with Published(comm, 300, "i8") as state, ThreadPoolExecutor(8) as pool:

        def work(thread):
            seen = 0
            for turn in range(30):
                number = state.publish(np.full(300, 1000 * thread + turn))
                for rank in range(comm.size):
                    version, got = state.read(rank)
                    assert (got == got[0]).all()
                    if rank == comm.rank:
                        assert version >= number > seen
                        seen = number
            return seen

        assert max(pool.map(work, range(8))) == 8 * 30
        comm.Barrier()


# -- interruptions -------------------------------------------------------------------------


@pytest.mark.pair
def test_interrupted_at_any_bytecode(comm):
    """A publish is done or not, a read is whole, and nobody waits for a rank that was in one."""
    with Published(comm, 8, "i8", buffers=2) as state:

        def scenario(k):
            tracing = Tracing((_published, locks), k, interrupt)
            before, _ = state.read(comm.rank)
            state._overtaken[0] = 1  # so that a read asks rank 0 to keep a version
            try:
                with tracing:
                    state.publish(np.full(8, k))
                    state.read(0)
            except Interrupt:
                pass
            comm.Barrier()
            after, got = state.read(comm.rank)
            assert after == before or (got == k).all()
            with ThreadPoolExecutor(1) as other:  # no lock is left locked
                newer = other.submit(state.publish, np.full(8, -k)).result()
                assert newer > after
                for rank in range(comm.size):
                    version, got = other.submit(state.read, rank).result()
                    assert (got == got[0]).all()
                    assert abs(got[0]) <= k  # of the round before, if that rank is behind
                    assert rank != comm.rank or version == newer
            comm.Barrier()
            return comm.allreduce(tracing.acted, MPI.MIN)

        assert places(scenario, 3) > 30


# -- ranks that are stopped or lost -----------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "where"),
    [
        *(("stopped", ()), ("killed", ("nodes",))),
        pytest.param("stopped", ("nodes",), marks=pytest.mark.matrix),
        pytest.param("killed", (), marks=pytest.mark.matrix),
    ],
)
def test_readers_that_stop_or_die(scenario, where):
    oks = {"stopped": 3, "killed": 2}[scenario]
    program = "containers/programs/published_faults.py"
    passes(3, program, scenario, *where, oks=oks, survive=scenario == "killed", timeout=60)
