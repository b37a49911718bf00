# SPDX-License-Identifier: BSD-3-Clause
"""Every public call, ended by a signal handler's exception at every place where that may be.

What is done or not done, who gets on meanwhile, and how the places are found:
support/places.py and support/interrupted.py. For single calls, with all their places:

    python tests/launch.py --run 2 tests/interrupts/programs/calls.py NAME
"""

from __future__ import annotations

import re

import launch
import pytest

PROGRAM = "tests/interrupts/programs/calls.py"
SUMMARY = re.compile(
    r"(\d+) calls, (\d+) places tried, (\d+) left somebody waiting, (\d+) wrong otherwise"
)


def run(size, route, *arguments, timeout):
    env = {"PYTHONPATH": launch.PYTHONPATH, "RMAEXT_ROUTE": route or None}
    arguments = map(str, arguments)
    done = launch.mpirun(size, launch.ROOT / PROGRAM, *arguments, env=env, timeout=timeout)
    print(done.stdout)
    found = SUMMARY.search(done.stdout)
    assert found, done.stdout + done.stderr
    calls, places, waiting, wrong = map(int, found.groups())
    assert done.returncode == 0, done.stdout + done.stderr
    assert not waiting + wrong, done.stdout
    return calls, places


@pytest.mark.timeout(300)
@pytest.mark.parametrize("route", ["", "fabric"], ids=["direct", "fabric"])
def test_some_places_of_each_call(route):
    """Few of each, spread over the call."""
    calls, places = run(2, route, "--share", 3, timeout=280)
    assert calls > 150
    assert places > 2 * calls


@pytest.mark.stress
@pytest.mark.timeout(7300)
@pytest.mark.parametrize("route", ["", "fabric"], ids=["direct", "fabric"])
@pytest.mark.parametrize("size", [2, 3])
def test_each_place_once(size, route):
    """Those that differ by the function, or the line of its caller; two kinds of exceptions."""
    run(size, route, "--once", timeout=7200)


@pytest.mark.stress
@pytest.mark.timeout(14500)
@pytest.mark.parametrize("route", ["", "fabric"], ids=["direct", "fabric"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_place(size, route):
    """All of them, other turns of loops, too: hours."""
    run(size, route, timeout=14400)
