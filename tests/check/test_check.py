# SPDX-License-Identifier: BSD-3-Clause
"""RMAEXT_CHECK: what it finds in programs with mistakes, and that it finds nothing in others."""

from __future__ import annotations

import contextlib
import json
import re

import launch
import pytest

ROUTES = {"direct": "", "fabric": "fabric"}
PROGRAMS = launch.ROOT / "tests" / "check" / "programs"
WANTED = 0.9  # of precision and of recall
BEGIN = """
import sys
import numpy as np
from mpi4py import MPI
import rmaext
comm = MPI.COMM_WORLD
win = rmaext.Window.allocate(comm, 8)
"""


def checked(size, code, *args, how="1", route="", **options):
    """Run a program in the mode."""
    env = {"RMAEXT_CHECK": how, "RMAEXT_ROUTE": route, "PYTHONPATH": str(launch.ROOT)}
    env["PYTHONWARNINGS"] = "ignore"  # a window that is not closed warns
    return launch.mpirun(size, code, *args, env=env, **options)


def found(size, code, **options):
    """Run a program that ends well; return the lines that the mode has printed."""
    done = checked(size, BEGIN + code, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stderr.splitlines() if "rmaext check" in line]


@pytest.mark.parametrize("route", ROUTES)
def test_races_of_the_table_are_found_and_no_others(route):
    env = {"RMAEXT_CHECK": "1", "RMAEXT_ROUTE": ROUTES[route]}
    env["PYTHONPATH"] = f"{PROGRAMS}:{launch.PYTHONPATH}"
    done = launch.mpirun(3, PROGRAMS / "run.py", env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)
    racy = [it for it in results if it["race"]]
    reported = [it for it in results if it["found"]]
    right = [it["name"] for it in racy if it["found"]]
    wrong = [it["name"] for it in results if it["race"] != bool(it["found"])]
    assert len(racy) >= 40, "cases with a race"
    assert len(results) - len(racy) >= 40, "cases without"
    assert len(right) / len(reported) >= WANTED, f"precision: {wrong}"
    assert len(right) / len(racy) >= WANTED, f"recall: {wrong}"
    assert not wrong, [it for it in results if it["name"] in wrong]


@pytest.mark.parametrize(
    "ends",
    ["assert comm.rank, 'late'", "if comm.rank: win.close()"],
    ids=["an error", "a window that one does not close"],
)
def test_the_end_does_not_wait_for_who_has_ended(ends):
    code = f"""
from rmaext._check import install
install._PATIENCE = 600
{BEGIN}
win.fence()
{ends}
"""
    done = checked(3, code, survive=True, timeout=100)
    assert "not all ranks have come to the end of the program" in done.stderr, done.stderr


@pytest.mark.parametrize("route", ROUTES)
def test_both_places_are_named(route):
    code = """
if comm.rank == 0:
    win.put(np.ones(3), 1)
else:
    print(win.local[2:4])
win.close()
"""
    lines = found(2, code, route=ROUTES[route])
    assert len(lines) == 2, lines
    assert "window 1, rank 1, element 2 (float64)" in lines[0]
    assert "put by rank 0 at" in lines[0]
    assert "load by rank 1 at" in lines[0]
    assert lines[0].count(":10") >= 1, "the line of the put"
    assert lines[0].count(":12") == 1, "the line of the load"
    assert lines[1] == "rmaext check: 1 race"


READS = """
    print(it, file=io.StringIO())
    str(it)
    repr(it)
    f"{it}"
    np.save(io.BytesIO(), it)
    np.savez(io.BytesIO(), it)
    np.savetxt(io.StringIO(), it)
    it.tofile("/dev/null")
    pickle.dumps(it)
    pickle.dumps(it, 5)
    copy.copy(it)
    copy.deepcopy(it)
    bytes(it)
    list(it)
    3.0 in it
    it == 3.0
"""


def test_what_shows_or_saves_an_array_reads_it():
    code = "import copy, io, pickle\nit = win.local\n"
    code += "if comm.rank == 0:\n    win.put(np.ones(3), 1)\n"
    lines = found(2, f"{code}else:{READS}win.close()")
    assert lines[-1] == f"rmaext check: {READS.count(chr(10)) - 1} races", lines


def test_what_is_to_be_done_is_said_whole():
    """After what the text names first the program is right: with a flush alone it was not."""
    lines = found(2, "win.put(np.ones(3), 1 - comm.rank)\nit = win.local.sum()\nwin.close()\n")
    assert "are not ordered: let a fence come between them; or " in lines[0], lines
    assert re.search(r"complete what rank \d began \(flush or unlock after put at \S+\)", lines[0])
    assert lines[0].endswith("then tell the other rank, by a notification, a lock or a message")


def test_a_request_never_waited_for_is_named():
    code = """
if comm.rank == 0:
    waited = [win.rput(np.ones(2), 1), win.rget(1, 4, 2)]
    rmaext.Request.waitall(waited)
    win.rput(np.ones(2), 1).free()
    win.flush()
    win.rput(np.ones(2), 1, 2)
    win.flush()
    dropped = win.rget(1, 4, 2)
win.close()
"""
    lines = found(2, code)
    assert len(lines) == 2, lines
    assert "the rget that rank 0 began at" in lines[0]
    assert "was never waited for" in lines[0]
    assert ":16" in lines[0]
    assert lines[1] == "rmaext check: 1 request never waited for"


def test_a_request_of_the_drop_in_never_waited_for_is_named():
    code = """
from rmaext.compat import Win
other = Win.Allocate(80, 8, comm=comm)
buffer = np.ones(2)
other.Lock_all()
if comm.rank == 0:
    other.Rput(buffer, 1).Wait()
    MPI.Request.Waitall([other.Rget(buffer, 1)])
    request = other.Rget(buffer, 1)
other.Unlock_all()
other.Free()
win.close()
"""
    lines = found(2, code)
    assert len(lines) == 2, lines
    assert "the Rget that rank 0 began at" in lines[0]
    assert ":16" in lines[0]


@pytest.mark.parametrize("end", ["", "MPI.Finalize()"], ids=["exit", "finalize"])
def test_a_window_never_closed_is_named_and_compared(end):
    code = f"""
if comm.rank == 0:
    win.put(np.ones(3), 1)
else:
    win.local[0] = 2
{end}
"""
    lines = found(2, code)
    assert len(lines) == 3, lines
    assert any("window 1, made at" in line and "never closed" in line for line in lines)
    assert any("race: window 1, rank 1, element 0" in line for line in lines)
    assert lines[-1] == "rmaext check: 1 race, 1 window never closed"


def test_containers_never_closed_are_named():
    """Once each, whatever windows they have; a NodeArray ends with the object."""
    code = """
from rmaext.containers import Array, Dict, NodeArray, TaskQueue
table, queue = Dict(comm, "i8", "i8", 10), TaskQueue(comm, "i8", 10)
copied = NodeArray(comm, 3, fill=id)
with Array(comm, (3, 3), ghosts=1) as field:
    field.exchange()
win.close()
"""
    lines = found(2, code)
    assert len(lines) == 3, lines
    for name in ("Dict", "TaskQueue"):
        words = rf"rmaext check: a {name}, made at \S+:\d+, was never closed: call close"
        assert sum(bool(re.match(words, line)) for line in lines) == 1, lines
    assert lines[-1] == "rmaext check: 2 containers never closed"


def test_the_drop_in_has_mpi_s_rules():
    code = """
from rmaext.compat import Win
other = Win.Allocate(80, 8, comm=comm)
buffer = np.ones(2)
if comm.rank == 0:
    other.Lock(1)
    other.Put(buffer, 1)
    other.Flush(1)
    other.Get(buffer, 1)
    other.Put(buffer, 1)
    other.Unlock(1)
other.Lock(0, MPI.LOCK_SHARED)
other.Fetch_and_op(buffer[:1], buffer[1:], 0)
other.Unlock(0)
comm.Barrier()
other.Lock(0)
other.Put(buffer, 0)
other.Unlock(0)
other.Free()
win.close()
"""
    lines = found(2, code)
    assert len(lines) == 2, lines
    assert "Get by rank 0" in lines[0]
    assert "Put by rank 0" in lines[0]


def test_programs_without_mistakes_end_in_silence():
    code = """
win.local[:] = comm.rank
win.fence()
peer = (comm.rank + 1) % comm.size
assert (win.get(peer, 0, 8) == peer).all()
win.fence()
win.local[2:4] += np.ones(2)
np.copyto(win.local[:2], [1.0, 2.0])
total = comm.allreduce(win.local.sum())
win.put(win.local[:2], peer, 6)
win.fence()
assert win.local[6:].tolist() == [1.0, 2.0]
with rmaext.Window.allocate(comm, 1, "i8") as counter:
    while counter.fetch_add(1, 0) < 10:
        pass
win.close()
"""
    assert found(3, code) == []


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_is_found_in_what_correct_programs_do(route):
    env = {"RMAEXT_CHECK": "error", "RMAEXT_ROUTE": ROUTES[route], "PYTHONPATH": str(launch.ROOT)}
    done = launch.mpirun(3, PROGRAMS / "correct.py", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 3
    assert not done.stderr


@pytest.mark.parametrize(("how", "status"), [("1", 0), ("error", 1)])
def test_error_makes_the_status_of_the_job(how, status):
    code = BEGIN + "win.put(np.ones(3), 0)\nwin.close()\nprint('end')\n"
    done = checked(2, code, how=how)
    assert bool(done.returncode) == bool(status), done.stdout + done.stderr
    assert done.stdout.count("end") == 2
    assert "rmaext check: 1 race" in done.stderr


def test_programs_of_mpi_win_are_looked_at_unchanged():
    code = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
win = MPI.Win.Allocate(80, 8, comm=comm)
win.Fence()
win.Put(np.ones(2), 0)
win.Fence()
win.Free()
"""
    env = {"RMAEXT_CHECK": "1", "PYTHONPATH": str(launch.ROOT)}
    done = launch.mpirun(2, code, env=env, dropin=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("race: window 1, rank 0, elements 0 to 15") == 1, done.stderr


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"])
def test_a_rank_that_does_not_come_to_compare_ends_no_other(end):
    code = f"""
import os, time
from rmaext._check import world
from rmaext._check.shadow import Shadow
world._LONG = 3
def leave(*args):
    {end}
if comm.rank == 2:
    Shadow.exchange = leave
try:
    win.fence()
except KeyboardInterrupt:
    time.sleep(6)
    os._exit(0)
if comm.rank == 0:
    win.put_notify(np.ones(1), 1, slot=0)
    win.wait_notify(0)
else:
    win.wait_notify(0)
    win.put_notify([], 0, slot=0)
print("goes on", flush=True)
os._exit(0)
"""
    done = checked(3, BEGIN + code, survive=True)
    assert done.stdout.count("goes on") == 2, done.stdout + done.stderr
    assert done.stderr.count("window 1 is not followed any more") == 2, done.stderr


def test_other_values_are_refused():
    done = launch.run_python("import rmaext", env={"RMAEXT_CHECK": "yes"})
    assert done.returncode == 1
    assert "RMAEXT_CHECK='yes': must be one of 0, 1, error" in done.stderr


def test_nothing_of_it_is_imported_unless_asked_for():
    code = "import sys, rmaext; print([it for it in sys.modules if it.startswith('rmaext._check')])"
    done = launch.run_python(code, env={"RMAEXT_CHECK": None})
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


ARGUMENTS = {
    "beside_mpi.py": ["rmaext", "busy", "updates", "offset"],
    "both_routes.py": ["--rows", "24", "--cols", "32", "--steps", "20", "--tasks", "16"],
}
# demo.py starts others; the last two need a GPU
LEFT_OUT = {"demo.py", "gpu_heat.py", "gpu_parameter_server.py"}
EXAMPLES = {path.name for path in launch.ROOT.glob("examples/*.py")} - LEFT_OUT


# Those that are to run, one after the other.
SHARED = """
import json, os, runpy, sys
from mpi4py import MPI
for sys.argv in json.loads(sys.argv[1]):
    sys.path[0] = os.path.dirname(sys.argv[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    MPI.COMM_WORLD.Barrier()
"""


def without_mistakes(code, *args, timeout):
    done = checked(3, code, *args, how="error", timeout=timeout)
    return done.returncode == 0 and "rmaext check" not in done.stderr, done.stdout + done.stderr


def command(example):
    return [str(launch.ROOT / "examples" / example), *ARGUMENTS.get(example, ())]


@pytest.fixture(scope="module")
def all_right(request):
    """Whether all of them have no mistakes in one job; if not, each has a job of its own."""
    wanted = [it.callspec.id for it in request.session.items if "example" in it.fixturenames]
    with contextlib.suppress(AssertionError):  # a time limit
        return without_mistakes(SHARED, json.dumps([*map(command, wanted)]), timeout=120)[0]


@pytest.mark.parametrize("example", sorted(EXAMPLES))
def test_the_examples_have_no_mistakes(example, all_right):
    if not all_right:
        right, said = without_mistakes(*command(example), timeout=50)
        assert right, said
