# SPDX-License-Identifier: BSD-3-Clause
"""`python -m rmaext trace` of real jobs: its sums are their counters, and computed by hand."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from launch import ROOT, mpirun
from support.timelines import arrows, reads, rows, timeline

from rmaext._record import tracing
from rmaext.inside.trace.merge import merge
from rmaext.inside.trace.reading import find

COUNTED = """
import json, os, pathlib, sys
sys.path.insert(0, sys.argv[2])
import heat
from mpi4py import MPI
from rmaext._record.record import find
status = heat.main()
(record,), _ = find([os.getpid()])
closed = record.closed()
sums = [[int((closed["plain"][n].sum() if r == 0 else 0) + closed["shared"][n][:, r].sum())
         for n in ("calls", "bytes")] for r in range(4)]
pathlib.Path(sys.argv[1], f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(sums))
sys.exit(status)
"""


@pytest.mark.parametrize("route", ["", "fabric"])
def test_heat(tmp_path, route):
    """The sums of its trace are its counters, and what can be computed by hand."""
    env = {"RMAEXT_TRACE": str(tmp_path / "trace"), "RMAEXT_ROUTE": route or None}
    done = mpirun(4, COUNTED, str(tmp_path), str(ROOT / "examples"), env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path / "trace"])
    assert job.problems == []
    text = merge(job, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())

    # 200 steps, in each of which the ranks put a row of 256 float64 to 6 neighbours in all;
    # then rank 0 gets 48 such rows from each rank.
    row = 256 * 8
    pairs = {
        (int(r["origin"]), int(r["target"])): (int(r["operations"]), int(r["bytes"]))
        for r in rows(tmp_path / "matrix.csv")
    }
    expected = {(a, b): (200, 200 * row) for a in range(4) for b in range(4) if abs(a - b) == 1}
    for rank in range(4):
        calls, size = expected.get((0, rank), (0, 0))
        expected[0, rank] = calls + 1, size + 48 * row
    assert pairs == expected
    assert (found["operations"], found["bytes"]) == (1204, (1200 + 4 * 48) * row)
    assert found["errors"] == 0

    names = ["direct", "cma", "fabric", "message"]
    for rank in found["ranks"]:
        counted = json.loads((tmp_path / f"{rank['rank']}.json").read_text())
        sums = [[0, 0] for _ in names]
        for kind in rank["kinds"]:
            sums[names.index(kind["route"])][0] += kind["operations"]
            sums[names.index(kind["route"])][1] += kind["bytes"]
        assert sums == counted
        assert rank["seconds_in_waits"] > 0

    source = (ROOT / "examples" / "heat.py").read_text().splitlines()
    for line in text.splitlines():
        if "heat.py:" in line and " put " in line:
            assert "win.put(" in source[int(line.rpartition(":")[2]) - 1]
    assert text.count(" put ") == 2
    slices, _ = timeline(tmp_path)
    # a rank that waits for long asks others what they have said
    its = [one for one in slices if one["args"].get("window") != "rmaext's own"]
    into = Counter((one[1], one[3]) for one in arrows(its).elements())
    assert into == {pair: calls for pair, (calls, _) in expected.items()}
    reads(tmp_path, arrows(slices).total())


CONTAINERS = """
import time
from mpi4py import MPI
from rmaext.containers import Channel, Dict
comm = MPI.COMM_WORLD
with Dict(comm, "i8", "i8", 100) as table, Channel(comm, float, 10) as channel:
    table.add_many(range(10), 1)
    time.sleep(0.2 * comm.rank)
    channel.send([1.0], 1 - comm.rank)
    channel.done()
    came = sum(records.sum() for _, records in channel)
"""


def test_containers_are_told_by_their_names(tmp_path):
    """Their calls and waits, at the line that made them, and whose the windows are."""
    done = mpirun(2, CONTAINERS, env={"RMAEXT_TRACE": str(tmp_path)}, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path])
    merge(job, tmp_path)
    lines = [line.split() for line in (tmp_path / "sites.txt").read_text().splitlines()]
    sites = {line[-2] for line in lines}  # the call, and where
    assert {"Dict", "Dict.add_many", "Channel.send", "Channel.receive"} <= sites, lines
    assert ["end", "of", "the", "program"] in [line[-4:] for line in lines], lines
    assert not any("unknown" in line for line in lines), lines
    (waited,) = (line for line in lines if line[-2] == "Channel.receive")
    assert waited[1] == "ms", waited
    slices, _ = timeline(tmp_path)
    named = (str(one["args"].get("window")) for one in slices)
    windows = {name.partition(",")[0].partition("(")[2] for name in named}
    assert {"containers.Dict", "containers.Channel"} <= windows, windows


MESSAGES = """
import json, pathlib, sys
import numpy as np
from mpi4py import MPI
import rmaext
comm = MPI.COMM_WORLD
with rmaext.Window.allocate(comm, 100) as win:
    win.fence()
    other = 1 - comm.rank
    for i in range(50):
        win.fetch_add(1.0, other, 7)
    for i in range(50):
        win.accumulate(np.ones(10), other, 20)
        win.flush()
    win.put_notify(np.ones(3), other, 40, 2)
    win.wait_notify(2)
    with win.lock(other, exclusive=True):
        win.get(other, 0, 5)
    win.fence()
    stats = sorted((r["kind"], r["route"], int(r["calls"]), int(r["bytes"])) for r in win.stats)
    pathlib.Path(sys.argv[1], f"{comm.rank}.json").write_text(json.dumps(stats))
"""


def test_operations_that_the_target_carries_out(tmp_path):
    """Each of them has an arrow to the target's thread that did it, within its own time.

    The sums are those of win.stats, without the operations that a lock takes.
    """
    env = {"RMAEXT_TRACE": str(tmp_path), "RMAEXT_ROUTE": "fabric"}
    done = mpirun(2, MESSAGES, str(tmp_path), env=env, timeout=40)
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path])
    merge(job, tmp_path)
    slices, _ = timeline(tmp_path)
    reads(tmp_path, arrows(slices).total())
    found = arrows([one for one in slices if one["args"]["window"] == "1 (Window, <f8)"])
    for rank in range(2):
        assert found["fetch", rank, "fetch for another", 1 - rank] == 50
        assert found["update", rank, "update for another", 1 - rank] == 50
        assert found["notify", rank, "notify for another", 1 - rank] == 1
        counted = json.loads((tmp_path / f"{rank}.json").read_text())
        kinds = json.loads((tmp_path / "summary.json").read_text())["ranks"][rank]["kinds"]
        assert counted == [[k[n] for n in ("kind", "route", "operations", "bytes")] for k in kinds]
    # a flush that has nothing left to wait for leaves no slice: one of fifty waits
    assert {one["name"] for one in slices} >= {"notify", "flush", "fence of window 1"}


def test_a_folder_that_one_rank_cannot_write(tmp_path):
    """All ranks raise the error, and none waits for it."""
    code = """
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
os.environ["RMAEXT_TRACE"] = "/proc/none" if comm.rank == 1 else sys.argv[1]
import rmaext
try:
    rmaext.Window.allocate(comm, 8)
except ValueError as exc:
    print("error:", exc, flush=True)
"""
    done = mpirun(2, code, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("error: rank 1: RMAEXT_TRACE='/proc/none': cannot be written") == 2


def test_a_forked_child_leaves_the_trace_alone(tmp_path):
    code = """
import os
from mpi4py import MPI
import rmaext
win = rmaext.Window.allocate(MPI.COMM_WORLD, 8)
win.put([1.0], 0)
pid = os.fork()
if not pid:
    try:
        win.get(0)
    except rmaext.ClosedError:
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
win.close()
"""
    done = mpirun(1, code, env={"RMAEXT_TRACE": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path])
    assert job.problems == []
    assert {call for _, call in job.ranks[0].sites.values()} >= {"put", "close"}
    assert "get" not in {call for _, call in job.ranks[0].sites.values()}


def test_a_job_that_slurm_starts_again(tmp_path):
    """Its trace has nothing of the first one, which was longer than RMAEXT_TRACE_SIZE."""
    code = """
import os, sys
from mpi4py import MPI
for name in ("PMIX_NAMESPACE", "PMI_RANK"):  # there is no other launcher
    os.environ.pop(name, None)
os.environ.update(SLURM_JOB_ID="4711", SLURM_STEP_ID="0")
import rmaext
with rmaext.Window.allocate(MPI.COMM_WORLD, 8) as win:
    for _ in range(int(sys.argv[1])):
        win.put([1.0], 0)
"""
    env = {"RMAEXT_TRACE": str(tmp_path), "RMAEXT_TRACE_SIZE": "0.4"}
    for puts in (30_000, 100):
        done = mpirun(2, code, str(puts), env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path])
    assert job.folder.name == "slurm-4711.0"
    assert job.problems == []
    merge(job, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["operations"] == 200


def test_names_that_are_not_utf_8(tmp_path):
    """That of a thread, and that of the job where the record has cut it."""
    code = r"""
import ctypes, os, threading
from mpi4py import MPI
os.environ["PMIX_NAMESPACE"] = "x" + 500 * "\u00e9"
import rmaext
win = rmaext.Window.allocate(MPI.COMM_WORLD, 8)
def put():
    ctypes.CDLL(None).prctl(15, b"ab\xff\xc3", 0, 0, 0)  # PR_SET_NAME
    win.put([1.0], 0)
thread = threading.Thread(target=put)
thread.start()
thread.join()
win.close()
"""
    done = mpirun(1, code, env={"RMAEXT_TRACE": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    (job,) = find([tmp_path])
    assert job.problems == []
    assert any(name.startswith("ab") for name in job.ranks[0].threads.values())


def test_an_error_of_the_trace_does_not_stop_the_exit(tmp_path):
    code = """
from mpi4py import MPI
import rmaext
from rmaext._record import tracing
from rmaext._runtime import lifetime
lifetime.on_exit(lambda: print("the last of all"))
rmaext.Window.allocate(MPI.COMM_WORLD, 8).close()
tracing.name = None
"""
    done = mpirun(1, code, env={"RMAEXT_TRACE": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the last of all" in done.stdout
    assert "the end of the trace could not be written: TypeError" in done.stderr


def test_no_trace_without_a_record(tmp_path):
    """One rank says so, once."""
    code = """
from mpi4py import MPI
import rmaext
for _ in range(2):
    rmaext.Window.allocate(MPI.COMM_WORLD, 8).close()
"""
    done = mpirun(2, code, env={"RMAEXT_TRACE": str(tmp_path), "RMAEXT_RECORD": "0"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("RMAEXT_TRACE is set, and RMAEXT_RECORD=0") == 1
    assert not list(tmp_path.iterdir())


def test_static_methods_of_an_object(tmp_path):
    code = """
from mpi4py import MPI
import rmaext
win = rmaext.Window.allocate(MPI.COMM_WORLD, 8)
request = win.rput([1.0], 0)
request.waitall([request])
win.close()
"""
    done = mpirun(1, code, env={"RMAEXT_TRACE": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = find([tmp_path])
    assert "waitall" in {call for _, call in job.ranks[0].sites.values()}


def test_a_signal_that_raises_where_a_call_begins(monkeypatch):
    """The calls after it are followed as before."""
    followed = tracing._followed(lambda: None, "put")
    seen = []

    def site(call):
        seen.append(call)
        raise KeyboardInterrupt

    monkeypatch.setattr(tracing, "_site", site)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            followed()
    assert seen == ["put", "put"]
