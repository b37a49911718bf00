# SPDX-License-Identifier: BSD-3-Clause
"""A citizen of MPI: a rank that waits in rmaext moves MPI, as one that waits in MPI does.

The table is that of tests/comm/programs/mpi_progress.py: each call that waits for another rank,
against each kind of MPI traffic that needs the waiting rank's MPI.
"""

from __future__ import annotations

import os
import subprocess

import case_table
import launch
import numpy as np
import pytest

LEVELS = ["single", "funneled", "serialized", "multiple"]


CALLS, TRAFFIC = (case_table.names("mpi_progress.py", it) for it in ("CALLS", "TRAFFIC"))
BUSY = [name for name in CALLS if name.startswith("busy")]
WAITS = [name for name in CALLS if name not in BUSY]
NODE_ONLY = ["shared", "Allocate_shared"]  # memory that the ranks of one node share

# ranks, what they share, and the environment
DIRECT = (2, True, {})
FABRIC = (2, False, {"RMAEXT_ROUTE": "fabric"})
MIXED = (3, False, {"NODES": "2"})
ALONE = (2, False, {"RMAEXT_ROUTE": "fabric", "RMAEXT_PROGRESS": "0"})  # no progress thread
ROUTES = {"direct": DIRECT, "fabric": FABRIC, "mixed": MIXED}


def check(calls, route, level, traffic=TRAFFIC, mib=16, timeout=150):
    """No cell of a part of the table deadlocks."""
    size, node, env = route
    names = [name for name in calls if node or name not in NODE_ONLY]
    table = [f"{name}/{kind}" for name in names for kind in traffic]
    results = case_table.table(
        size, "mpi_progress.py", table, level, str(mib), env=env, timeout=timeout
    )
    assert not case_table.bad(results), case_table.bad(results)
    assert len(results) == len(table)


def test_the_table_is_there():
    assert len(WAITS) > 40, WAITS
    assert len(BUSY) > 15, BUSY
    assert TRAFFIC == ["ssend", "exchange", "large", "iallreduce", "win"]


# Each route, each level and each MPI once; all of them with `make test-matrix`.


@pytest.mark.timeout(240)
def test_waits_by_memory():
    check(WAITS, DIRECT, "multiple")


@pytest.mark.timeout(240)
def test_waits_by_memory_with_one_thread():
    check(WAITS, DIRECT, "single", ["ssend"])


@pytest.mark.timeout(240)
def test_waits_over_the_network():
    check(WAITS, FABRIC, "serialized", ["ssend", "win"])


@pytest.mark.matrix
@pytest.mark.timeout(240)
def test_waits_on_two_nodes():
    check(WAITS, MIXED, "funneled", ["large"])


@pytest.mark.timeout(240)
def test_operations_on_a_busy_target():
    """Without a progress thread there a get waits for the target as a fence does."""
    check(BUSY, ALONE, "funneled", ["ssend", "large", "win"])


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_wait(route, level):
    check(WAITS, ROUTES[route], level, mib=64, timeout=400)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", LEVELS)
def test_every_operation_on_a_busy_target(level):
    check(BUSY, ALONE, level, mib=64, timeout=400)


# -- who calls MPI -------------------------------------------------------------------------

CELLS = case_table.names("mpi_callers.py", "TABLE")
FINALIZE = 10  # its number in mpi_audit.c


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    """The auditor, compiled."""
    library = tmp_path_factory.mktemp("audit") / "audit.so"
    source = case_table.PROGRAMS / "mpi_audit.c"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run(
        [os.environ.get("CC", "gcc"), *flags, str(source), "-o", str(library)], check=True
    )
    return library


@pytest.fixture
def counts(tmp_path):
    """The file that the auditor counts in."""
    path = tmp_path / "counts"
    path.write_bytes(bytes(4096 * 64))
    return path


def audited(audit, counts):
    return {"LD_AUDIT": str(audit), "AUDIT_FILE": str(counts)}


def rows(counts):
    table = np.fromfile(counts, "i8").reshape(-1, 8)
    return [row for row in table.tolist() if row[0]]


@pytest.mark.parametrize(
    ("level", "route"),
    [(level, "direct") for level in LEVELS]
    + [("funneled", "fabric")]
    + [pytest.param(x, "fabric", marks=pytest.mark.matrix) for x in LEVELS if x != "funneled"],
)
def test_which_threads_call_mpi(audit, counts, level, route):
    names = [name for name in CELLS if level != "single" or "second" not in name]
    env = audited(audit, counts) | ROUTES[route][2]
    results = case_table.table(2, "mpi_callers.py", names, level, env=env, timeout=50, jobs=2)
    assert not case_table.bad(results), case_table.bad(results)
    late = [row for row in rows(counts) if row[5] and row[1] != FINALIZE]
    assert not late, f"MPI was called after MPI_Finalize: {late}"
    assert sum(row[1] == FINALIZE for row in rows(counts)) == 2


def test_the_auditor_sees_what_dlsym_finds(audit, counts, run_python):
    """Else the test above would prove nothing: with and without the GIL, in two threads."""
    code = """
        import ctypes, threading
        from mpi4py import MPI
        comm = MPI.COMM_SELF.Dup()
        kind = ctypes.c_int if MPI._sizeof(comm) == 4 else ctypes.c_void_p
        handle = kind.from_address(MPI._addressof(comm))
        flag, status = ctypes.c_int(), ctypes.create_string_buffer(64)

        def probe(library):
            library(MPI.__file__).MPI_Iprobe(
                MPI.ANY_SOURCE, 5, handle, ctypes.byref(flag), status)

        probe(ctypes.CDLL)
        probe(ctypes.PyDLL)
        thread = threading.Thread(target=lambda: comm.Iprobe())
        thread.start()
        thread.join()
    """
    done = run_python(code, env=audited(audit, counts))
    assert done.returncode == 0, done.stderr
    found = [row for row in rows(counts) if row[1] == 0]
    assert sorted((row[2] == row[3], row[4], row[6]) for row in found) == [
        (False, 0, 1),
        (True, 0, 1),
        (True, 1, 1),
    ]


def test_a_remote_window_needs_no_mpi(audit, counts, run_python, tmp_path):
    """It waits for its owner, which is stopped, in a process that has not initialised MPI."""
    code = """
        import os, subprocess, sys
        import rmaext
        from mpi4py import MPI

        win = rmaext.Window.allocate(MPI.COMM_SELF, 4)
        win.local[:] = 3
        client = '''if True:
            import os, signal, sys, threading, time
            import mpi4py
            mpi4py.rc.initialize = False
            import rmaext
            from mpi4py import MPI
            from support.processes import stop
            with rmaext.RemoteWindow.attach(bytes.fromhex(sys.argv[1])) as remote:
                stop(os.getppid())
                start = time.monotonic()
                threading.Timer(0.4, os.kill, (os.getppid(), signal.SIGCONT)).start()
                assert remote.get(0).tolist() == [3, 3, 3, 3]
                assert time.monotonic() - start > 0.3
            assert not MPI.Is_initialized()
            print("end")
        '''
        for name in "LD_AUDIT", "AUDIT_FILE":
            os.environ[name] = os.environ[f"MY_{name}"]
        subprocess.run([sys.executable, "-c", client, win.export().hex()], check=True)
    """
    env = {f"MY_{name}": value for name, value in audited(audit, counts).items()}
    env |= {"RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}
    done = run_python(code, env=env)
    assert done.returncode == 0, done.stderr
    assert "end" in done.stdout
    assert rows(counts) == []


MOVED = """
import sys, time
from mpi4py import MPI
import numpy as np, rmaext
comm = MPI.COMM_WORLD
win = rmaext.Window.allocate(comm, 2, "i8")
win.local[:] = 0
comm.Barrier()
data = np.zeros(1)
seen = True
if comm.rank == 0:
    while not win.get(1, 1, 1)[0]:  # a message before that would need no more of its MPI
        time.sleep(0.01)
    comm.Ssend(data, 1)
    win.put(1, 1)
    win.flush(1)
else:
    request = comm.Irecv(data, 0)
    win.local[1] = 1
    end = time.monotonic() + (10 if sys.argv[1] == "1" else 1)
    while not win.local[0] and time.monotonic() < end:  # no call of MPI, none of rmaext
        time.sleep(0.01)
    seen = bool(win.local[0])
    request.Wait()
assert comm.allreduce(seen, MPI.LAND) == (sys.argv[1] == "1")
win.close()
"""


@pytest.mark.parametrize("thread", ["0", "1"])
def test_a_thread_moves_mpi_while_the_program_computes(mpirun, tmp_path, thread):
    program = tmp_path / "moved.py"
    program.write_text(MOVED)
    done = mpirun(2, program, thread, env={"RMAEXT_MPI_PROGRESS": thread}, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_thread_that_may_not_call_mpi(mpirun, tmp_path):
    program = tmp_path / "level.py"
    program.write_text(f"import mpi4py; mpi4py.rc.thread_level = 'funneled'\n{MOVED}")
    done = mpirun(2, program, "1", env={"RMAEXT_MPI_PROGRESS": "1"}, timeout=40)
    assert done.returncode
    assert "RMAEXT_MPI_PROGRESS=1 needs MPI_THREAD_MULTIPLE" in done.stderr
