# SPDX-License-Identifier: BSD-3-Clause
"""Jobs that a job has spawned: each has a trace of its own, and `why` and `top` tell them apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import launch
import pytest
from support.hung import hanging, why

from rmaext._record import jobname
from rmaext.inside.trace.reading import OPERATIONS, find

PROGRAM = launch.ROOT / "tests" / "inside" / "programs" / "spawning.py"


@pytest.mark.parametrize("route", ["", "fabric"])
def test_each_job_keeps_its_trace(tmp_path, route):
    env = {"RMAEXT_TRACE": str(tmp_path / "trace"), "RMAEXT_ROUTE": route}
    env["PYTHONPATH"] = launch.PYTHONPATH
    done = launch.mpirun(1, PROGRAM, "ends", str(tmp_path), env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = find([tmp_path / "trace"])
    assert [job.problems for job in jobs] == [[]] * 3
    assert sorted((job.size, len(job.ranks)) for job in jobs) == [(1, 1), (1, 1), (2, 2)]
    puts = [sum(OPERATIONS.get(kind) == "put" for kind in _kinds(job)) for job in jobs]
    # the parent puts 3 times, and once in each of two windows with others; a child 5 and 1
    assert sorted(puts) == [5, 6, 12]


def _kinds(job):
    """Return what its ranks have done in windows of the program."""
    for rank in job.ranks:
        own = [number for number, window in rank.windows.items() if not window.hidden]
        for event in rank.events:
            if event["window"] in own:
                yield int(event["kind"])


def test_why_and_top_tell_them_apart():
    # the third job has no communicator of rmaext with the others yet
    with hanging("hangs", 1, PROGRAM) as pids:
        jobs = json.loads(why("--json", str(pids[1])).stdout)["jobs"]
        text = why(str(pids[1])).stdout
        command = [sys.executable, "-m", "rmaext", "top", "--once", "--json", str(pids[1])]
        top = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert [sorted(one["rank"] for one in job["ranks"]) for job in jobs] == [[0]] * 2
    assert len({job["job"] for job in jobs}) == 2
    kinds = {job["verdict"][0]["kind"] for job in jobs}
    assert kinds == {"fine", "missing"}
    (stuck,) = (job for job in jobs if job["verdict"][0]["kind"] == "missing")
    (finding,) = stuck["verdict"]
    assert (finding["waiting"], finding["culprits"]) == ([0], [])
    assert re.search(r"for rank 0 of spawning.py \(job .*\), which is in ", text), text
    assert "no record here" not in text
    assert len({one["job"] for one in json.loads(top.stdout)["ranks"]}) == 2


def test_names_of_jobs():
    """A launcher's proxy says more than Slurm's step, in which there may be several launchers."""
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert jobname.job(slurm) == "slurm 7.0"
    assert jobname.folder(slurm) == "slurm-7.0"
    assert jobname.job({"PMIX_NAMESPACE": "a b@1", **slurm}) == "a b@1"
    assert jobname.folder({"PMIX_NAMESPACE": "a b@1"}) == "a-b@1"
    own = jobname.job({})
    assert re.fullmatch(r"process \d+", own)
    assert re.fullmatch(own.replace(" ", "-") + r"-\d+", jobname.folder({}))
    code = f"""
import os
from mpi4py import MPI
from rmaext._record import jobname
inside = {slurm!r} | dict(os.environ)
names = MPI.COMM_WORLD.allgather((jobname.job(inside), jobname.folder(inside)))
assert len(set(names)) == 1, names
if MPI.COMM_WORLD.rank == 0:
    print(names[0][0])
"""
    first, second = (launch.mpirun(2, code).stdout for _ in range(2))
    assert first != second, "two jobs in a step"
    assert "slurm" not in first
