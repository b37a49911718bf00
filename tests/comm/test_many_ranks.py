# SPDX-License-Identifier: BSD-3-Clause
"""What a communicator keeps of its ranks, of which only few are processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("programs") / "many_ranks.py"
FEW = 1_000


def run(run_python: Any, count: int, timeout: float, *how: str) -> Any:
    code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    done = run_python(code, str(PROGRAM), str(count), *how, timeout=timeout)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return json.loads(done.stdout)


@pytest.mark.timeout(240)
def test_no_object_for_a_rank(run_python):
    """Eight times as many ranks, as many objects."""
    few, many = (run(run_python, n, 100, "traced") for n in (FEW, 8 * FEW))
    for part in ("communicator", "first window", "window"):
        assert abs(many[part]["objects"] - few[part]["objects"]) <= 8, part
        assert abs(many[part]["blocks"] - few[part]["blocks"]) <= 100, part
    more = many["communicator"]["python"] - few["communicator"]["python"]
    assert more <= 2 * 7 * FEW  # one byte of each, in an array
    # a window where all are alike: nothing; one that is used has its peer
    assert many["window"]["python"] - few["window"]["python"] <= 2_000
    assert many["used"]["python"] < 4


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_million_ranks(run_python):
    """200 bytes of each, of which Python has one, and no object."""
    count = 1_000_000
    few, many = run(run_python, FEW, 100), run(run_python, count, 800)
    took = {
        part: many[part]["resident"] - few[part]["resident"] for part in many if part != "seconds"
    }
    print({part: f"{nbytes / count:.1f} bytes a rank" for part, nbytes in took.items()})
    assert (took["communicator"] + took["first window"]) / count <= 200
    assert took["window"] <= 1 << 16
    for part in ("communicator", "first window", "window"):
        assert abs(many[part]["objects"] - few[part]["objects"]) <= 8, part
