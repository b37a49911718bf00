# SPDX-License-Identifier: BSD-3-Clause
"""counter: each number once, whoever draws it, and whatever interrupts or kills who does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.bytecodes import Interrupt, Tracing, interrupt, places
from support.jobs import passes

import rmaext
from rmaext._runtime import locks
from rmaext.containers import _counter, counter


def of_all(comm, mine):
    return sorted(number for some in comm.allgather(mine) for number in some)


@pytest.mark.parametrize(("n", "chunk"), [(0, 1), (1, 5), (7, 7), (1000, 1), (1000, 17)])
def test_each_number_once(comm, n, chunk):
    with counter(comm, n, chunk) as numbers:
        mine = list(numbers)
        assert mine == sorted(mine)
        assert list(numbers) == []  # the next loop ends at once
        assert of_all(comm, mine) == list(range(n))
        assert f"{n} numbers" in repr(numbers)
    assert numbers.closed
    assert "closed" in repr(numbers)


def test_the_most_there_are(comm):
    """The word on rank 0 does not overflow, whoever draws once more at the end."""
    most = 1 << 62
    with counter(comm, most, most) as numbers:
        firsts = of_all(comm, [first for first, _ in zip(numbers, range(1), strict=False)])
        assert firsts == sorted(set(firsts))
        assert firsts[0] == 0
        assert firsts[-1] < most


def test_after_close(comm):
    numbers = counter(comm, 5)
    numbers.close()
    numbers.close()
    with pytest.raises(rmaext.ClosedError):
        next(iter(numbers))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 60), st.integers(1, 70), st.lists(st.integers(0, 9), max_size=8))
def test_loops_that_are_left(n, chunk, breaks):
    """The next one goes on behind the last number."""
    with counter(MPI.COMM_SELF, n, chunk) as numbers:
        mine = []
        for after in breaks:
            for number in numbers:
                mine.append(number)
                if after == 0:
                    break
                after -= 1
        assert [*mine, *numbers] == list(range(n))


def test_a_rank_waits_for_nobody(world):
    """Rank 0 draws nothing, and is in no call of the library."""
    with counter(world, 500, 3) as numbers:
        mine = []
        if world.rank or world.size == 1:
            mine = list(numbers)
        assert of_all(world, mine) == list(range(500))


def test_sub_communicators(world):
    part = world.Split(world.rank % 2, -world.rank)
    with counter(part, 20 + world.rank % 2) as numbers:
        assert of_all(part, list(numbers)) == list(range(20 + world.rank % 2))
    part.Free()


@pytest.mark.pair
def test_wrong_arguments(world):
    for wrong, error in [
        ((-1,), ValueError),
        ((2**62 + 1,), ValueError),
        ((5, 0), ValueError),
        ((5.0,), TypeError),
        ((5, "1"), TypeError),
    ]:
        mine = wrong if world.rank == world.size - 1 else (5,)
        with pytest.raises(error, match="rank") as info:
            counter(world, *mine)
        assert len(set(world.allgather(str(info.value)))) == 1
    if world.size > 1:
        with pytest.raises(ValueError, match=r"n=6, chunk=1.*all need the same"):
            counter(world, 6 if world.rank else 5)


def test_eight_threads(comm):
    with counter(comm, 4000, 3) as numbers, ThreadPoolExecutor(8) as pool:
        mine = [number for some in pool.map(lambda _: list(numbers), range(8)) for number in some]
        assert of_all(comm, mine) == list(range(4000))


def test_interrupted_at_any_bytecode(comm):
    """No number is lost or had twice."""

    def scenario(k):
        with counter(comm, 12, 2) as numbers:
            tracing, mine = Tracing((_counter, locks), k, interrupt), []
            try:
                with tracing:
                    for number in numbers:
                        mine.append(number)
            except Interrupt:
                pass
            with ThreadPoolExecutor(1) as other:  # no lock is left locked
                mine += other.submit(list, numbers).result()
            assert of_all(comm, mine) == list(range(12)), k
            return comm.allreduce(tracing.acted, MPI.MIN)

    assert places(scenario, 5) > (8 if comm.size == 1 else 1)


def test_in_a_signal_handler(monkeypatch):
    """As if it came while the loop draws: it is refused, and nothing is lost."""
    with counter(MPI.COMM_SELF, 3) as numbers:
        draw = numbers._draw

        def handler():
            with pytest.raises(rmaext.BusyError, match="counter"):
                next(iter(numbers))
            return draw()

        monkeypatch.setattr(numbers, "_draw", handler)
        assert list(numbers) == [0, 1, 2]


@pytest.mark.parametrize("where", [(), ("nodes",)])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies(victim, where):
    """It takes its chunk with it; rank 0 takes all that is not drawn."""
    program = "containers/programs/counter_killed.py"
    passes(3, program, str(victim), *where, oks=2, survive=True, timeout=60)
