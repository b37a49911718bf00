# SPDX-License-Identifier: BSD-3-Clause
"""Windows over memory that no CPU reaches: `make test-device`, which names the tests' libcuda."""

from __future__ import annotations

import numpy as np
import pytest

import rmaext

pytestmark = pytest.mark.mpi
N = 100_000  # elements: several messages


@pytest.fixture(params=["all", "some", "origins"])
def window(request, cuda, comm):
    """Over zeros: of a device on all ranks, on every second one, or on none."""
    there = request.param == "all" or (request.param == "some" and comm.rank % 2 == 0)
    memory = cuda.Array.from_numpy(np.zeros(N)) if there else np.zeros(N)
    with rmaext.Window(comm, memory) as win:
        assert win.local is memory
        assert win.memory.kind == ("cuda" if there else "system")
        yield win
        win.fence()


def test_every_rank_puts_and_gets(window, comm):
    for target in range(comm.size):
        window.put(np.full(5, comm.rank + 1.0), target, 10 * comm.rank)
    window.fence()
    for target in range(comm.size):
        for source in range(comm.size):
            assert (window.get(target, 10 * source, 5) == source + 1).all()


def test_all_of_it(window, comm):
    right = (comm.rank + 1) % comm.size
    window.put(np.arange(float(N)), right)
    window.fence()
    assert (window.get(comm.rank, 0, N) == np.arange(float(N))).all()


def test_updates_are_atomic(window, comm):
    many, size = 70_000, comm.size
    for _ in range(5):
        window.accumulate(np.ones(many), 0)
        window.fetch_add(1.0, 0, N - 1)
    window.accumulate_many([0] * 5, [3, 3, 7, many + 1, 3], 1.0)
    window.flush()
    window.fence()
    wanted = np.zeros(N)
    wanted[:many] = 5 * size
    wanted[[3, 7, many + 1, N - 1]] += np.array([3, 1, 1, 5]) * size
    assert (window.get(0, 0, N) == wanted).all()
    window.fence()
    found = window.compare_and_swap(-1.0, 2.0, comm.rank, 9)
    assert found == window[comm.rank, 9] != 2.0


def test_origins_and_results_on_a_device(window, cuda, comm):
    right = (comm.rank + 1) % comm.size
    source = cuda.Array.from_numpy(np.arange(6.0) + comm.rank)
    result = cuda.Array.from_numpy(np.zeros(6))
    window.put(source, right, 50)
    window.flush()
    assert window.get(right, 50, out=result) is result
    assert (result.to_numpy() == np.arange(6.0) + comm.rank).all()
    window.rput(source, right, 300).wait()
    assert window.rget(right, 301, out=result).wait() is result
    assert (result.to_numpy()[:5] == np.arange(1.0, 6.0) + comm.rank).all()
    window.accumulate(source, right, 50)
    window.flush()
    assert (window.get(right, 50, 6) == 2 * (np.arange(6.0) + comm.rank)).all()


def test_places_by_key(window, comm):
    right = (comm.rank + 1) % comm.size
    window[right, 20:60:4] = 5.0
    window.flush()
    assert (window[right, 20:60:4] == 5.0).all()
    assert window.get_many([right] * 3, [20, 21, 24]).tolist() == [5.0, 0.0, 5.0]
    assert window.get_ranges(right, [20, 23], [2, 3]).tolist() == [5.0, 0.0, 0.0, 5.0, 0.0]
    view = window.subwindow(10, 20)
    view.put(9.0, right, 1)
    view.flush()
    assert window[right, 11] == 9.0


def test_a_notification_comes_after_its_data(window, comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for length in (6, N):
        window.put_notify(np.full(length, comm.rank + 1.0), right, 0, slot=1)
        window.wait_notify(slot=1)
        assert (window.get(comm.rank, 0, length) == left + 1).all()
        window.fence()


def test_an_origin_waits_for_its_stream(window, cuda, comm):
    """What a kernel writes that was launched before the call is what is sent."""
    stream = cuda.Stream()
    source = cuda.Array.from_numpy(np.zeros(6), stream)
    source.launch(lambda it: it.__setitem__(slice(None), 4.0))
    window.put(source, comm.rank, 20)
    window.flush()
    assert (window.get(comm.rank, 20, 6) == 4.0).all()
    stream.close()


def test_memory_that_was_freed(cuda, comm):
    """The operation says so, where it began; the ranks go on."""
    memory = cuda.Array.from_numpy(np.zeros(8))
    with rmaext.Window(comm, memory) as win:
        win.fence()
        if comm.rank == 0:
            memory.free()
        comm.Barrier()
        # what another process has mapped of it CUDA leaves undefined
        if comm.rank == 0 or win.route(0) != "ipc":
            with pytest.raises(rmaext.RmaError, match="freed"):
                win.get(0, 0, 3)
        last = comm.size - 1
        if last:
            assert (win.get(last, 0, 3) == 0).all()
        comm.Barrier()


def test_errors_of_creation_are_those_of_all_ranks(cuda, comm):
    wrong = cuda.Array.from_numpy(np.zeros(3, "i4"))
    if comm.size > 1:
        with pytest.raises(TypeError, match="dtype"):
            rmaext.Window(comm, wrong if comm.rank == 0 else np.zeros(3))
    gone = cuda.Array.from_numpy(np.zeros(3))
    gone.free()
    with pytest.raises(rmaext.RmaError, match=r"rank 0: .*was it freed"):
        rmaext.Window(comm, gone if comm.rank == 0 else np.zeros(3))
    with rmaext.Window(comm, wrong) as win:
        assert win.fetch_add(1, comm.rank) == 0


def test_what_there_is_not(cuda, comm):
    with rmaext.Window(comm, cuda.Array.from_numpy(np.zeros(3))) as win:
        for call in (
            lambda: win.subwindow(0, 2).local,
            lambda: win.wait_until(0, ">", 1, 0.1),
            lambda: win.peer_view(comm.rank),
            lambda: np.asarray(win),
            lambda: win.advise("willneed"),
            lambda: rmaext.Window(comm, win.local, persistent=True),
            lambda: rmaext.Window(comm, [np.zeros(2), win.local]),
        ):
            with pytest.raises((rmaext.RmaError, TypeError)):
                call()
        win.fence()
