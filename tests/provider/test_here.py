# SPDX-License-Identifier: BSD-3-Clause
"""tests/here.py (`make test-here`), where there may be no more than tcp."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile

import launch
import pytest
from here import verdict

ONE = ["tests/ops/test_values.py", "-k", "test_arrays_are_not_cast"]


def here(folder, *args):
    """Return the command's status, and what the files of the one archive say."""
    line = [sys.executable, str(launch.ROOT / "tests" / "here.py"), "--output", str(folder), *args]
    env = launch.environment({"RMAEXT_PROVIDER": "tcp;ofi_rxm"})
    done = subprocess.run(
        line, env=env, cwd=launch.ROOT, stdout=subprocess.PIPE, text=True, timeout=170
    )
    (packed,) = folder.glob("*.tar.gz")
    assert done.stdout.splitlines()[-1] == f"all of it is in {packed}", done.stdout
    with tarfile.open(packed) as archive:
        files = {
            member.name.rpartition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive
            if member.isfile()
        }
    return done.returncode, files


@pytest.mark.timeout(180)
def test_here(tmp_path):
    code, files = here(tmp_path, "--minutes", "2.5", "--sizes", "2:fabric", *ONE)
    summary = json.loads(files["summary.json"])
    assert code == 0, files
    assert summary["environment"]["RMAEXT_PROVIDER"] == "tcp;ofi_rxm"
    assert {name: step["status"] for name, step in summary["steps"].items()} == dict.fromkeys(
        ["info", "doctor", "bench", "tests"], 0
    )
    assert summary["steps"]["tests"]["tests"]["passed"] > 0
    assert re.search(r"^ok +tcp;ofi_rxm \(default\): put, get", files["doctor.txt"], re.M)
    assert {job["case"] for job in json.loads(files["bench.json"])["jobs"]} >= {"latency", "rate"}
    assert json.loads(files["info.txt"])["versions"]


def test_what_is_not_done_in_time_is_cut_off(tmp_path):
    code, files = here(tmp_path, "--minutes", "0.005", *ONE)
    steps = json.loads(files["summary.json"])["steps"]
    assert code == 3
    assert {step["status"] for step in steps.values()} == {None}


@pytest.mark.parametrize(
    ("doctor", "tests", "status"),
    [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, None, 1), (0, None, 3), (None, 0, 3), (None, None, 3)],
)
def test_the_status(doctor, tests, status):
    assert verdict({"doctor": {"status": doctor}, "tests": {"status": tests}}) == status
