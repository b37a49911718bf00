# SPDX-License-Identifier: BSD-3-Clause
"""What published packages do with windows that MPI forbids or leaves open; it works here.

The packages themselves run in `make test-dropin`.
"""

from __future__ import annotations

from typing import Any

import launch
import numpy as np
import pytest

from rmaext import compat

SIZE = 100_000
ROUTES: list[dict[str, str]] = [{}, {"RMAEXT_ROUTE": "fabric"}]


@pytest.mark.mpi
def test_shared_memory_onto_itself(comm: Any) -> None:
    """deephyper gets and puts a whole window from and to the memory that it has mapped."""
    win = compat.Win.Allocate_shared(SIZE, 1, comm=comm)
    memory = np.frombuffer(win.Shared_query(0)[0], np.uint8)[:SIZE]
    expected = np.arange(SIZE) % 251
    if comm.rank == 0:
        memory[:] = expected
    comm.Barrier()
    for number in range(5):
        win.Lock(0)
        win.Get(memory, 0)
        win.Flush(0)
        assert np.array_equal(memory[1000:], expected[1000:])
        memory[comm.rank] = number
        win.Put(memory, 0)
        win.Unlock(0)
    comm.Barrier()
    win.Lock(0)
    assert np.all(memory[: comm.size] == 4)
    assert np.array_equal(memory[comm.size :], expected[comm.size :])
    win.Unlock(0)
    comm.Barrier()
    win.Free()


@pytest.mark.mpi
def test_results_are_read_before_the_flush(comm: Any) -> None:
    """mpi-channels reads what a Get and a Get_accumulate bring while it still holds the lock."""
    win = compat.Win.Allocate(24 if comm.rank == 0 else 0, 8, comm=comm)
    if comm.rank == 0:
        np.frombuffer(win, np.uint64)[:] = 0
    comm.Barrier()
    for _ in range(20):
        seen, before = np.full((2, 3), 99, np.uint64)
        win.Lock(0)
        win.Get(seen, 0)
        win.Get_accumulate(np.array([1, 2, 3], np.uint64), before, 0)
        assert np.array_equal(seen, before)
        assert np.array_equal(seen, seen[0] * np.array([1, 2, 3], np.uint64))
        win.Unlock(0)
    comm.Barrier()
    if comm.rank == 0:
        assert np.frombuffer(win, np.uint64)[0] == 20 * comm.size
    comm.Barrier()
    win.Free()


@pytest.mark.parametrize("env", ROUTES)
def test_windows_are_freed_as_python_ends(env: dict[str, str]) -> None:
    """deephyper's windows are freed by __del__, when the modules' names go; MPI runs on."""
    code = """
        import mpi4py
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
        import numpy as np

        MPI.Init_thread()

        class Mapping:
            kept = {}

            def __init__(self, make, number):
                self.win = make(4096, 1, comm=MPI.COMM_WORLD)
                self.number = number
                Mapping.kept[number] = self

            def __del__(self):
                self.win.Free()
                self.kept.pop(self.number)
                if self.number == 3:
                    print("freed", flush=True)

        for number in range(4):
            make = MPI.Win.Allocate_shared if number % 2 else MPI.Win.Allocate
            mapping = Mapping(make, number)
            mapping.win.Lock(0)
            mapping.win.Accumulate(np.ones(1, np.int64), 0)
            mapping.win.Unlock(0)
    """
    done = launch.mpirun(2, code, env=env, timeout=50, dropin=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("freed") == 2, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.parametrize("env", ROUTES)
def test_a_thread_pumps_until_python_ends(env: dict[str, str]) -> None:
    """mpilock's thread locks a window of its own all the time, which nobody frees."""
    code = """
        import atexit
        import threading
        import time
        import numpy as np
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        beats, counts = np.zeros(1, np.uint64), np.zeros(1, np.int64)
        pumped = MPI.Win.Create(beats, True, MPI.INFO_NULL, comm)
        win = MPI.Win.Create(counts, True, MPI.INFO_NULL, comm)
        stop, turns = threading.Event(), []

        def pump():
            beat = np.zeros(1, np.uint64)
            while not stop.wait(1e-4):
                pumped.Lock(0, MPI.LOCK_SHARED)
                pumped.Get([beat, MPI.UINT64_T], 0)
                pumped.Flush(0)
                pumped.Unlock(0)
                comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
                turns.append(1)

        if comm.rank == 0:
            thread = threading.Thread(target=pump, daemon=True)
            thread.start()

            @atexit.register
            def end():
                stop.set()
                thread.join(timeout=20)
                assert not thread.is_alive() and turns
                print("stopped", flush=True)

        for _ in range(50):
            win.Lock(0)
            win.Accumulate([np.ones(1, np.int64), MPI.INT64_T], 0)
            win.Unlock(0)
        while comm.rank == 0 and not turns:
            time.sleep(0.01)  # the thread may begin late
        comm.Barrier()
        assert comm.rank or counts[0] == 50 * comm.size
        comm.Barrier()
    """
    done = launch.mpirun(2, code, env=env, timeout=50, dropin=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stopped") == 1, done.stdout + done.stderr
