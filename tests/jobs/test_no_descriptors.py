# SPDX-License-Identifier: BSD-3-Clause
"""A rank that has no descriptor left: what it cannot do fails on all ranks, and nothing hangs."""

from __future__ import annotations

import pytest

FULL = """
import os, resource, sys
def full():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        return held
"""
STARVED = (
    FULL
    + """
import numpy as np
from mpi4py import MPI
import rmaext
comm = MPI.COMM_WORLD
before, after = sys.argv[1:]
held = []
if comm.rank and before == "first":
    held = full()
try:
    win = rmaext.Window(comm, np.zeros(10), timeout=8)
    if comm.rank:
        held = full()
    made = win.dup() if after == "dup" else win.subwindow(2, 4)
    text = "made"
    for fd in held:
        os.close(fd)
    made.close()
    win.close()
except (rmaext.RmaError, OSError) as exc:
    text = type(exc).__name__
    for fd in held:
        os.close(fd)
print(comm.rank, text, flush=True)
"""
)

WARNS = (
    FULL
    + """
from mpi4py import MPI
import rmaext
from rmaext._runtime.log import log
assert "logging" not in sys.modules
held = full()
log.warning("%s", "words")
log.info("%s", "words")
for fd in held:
    os.close(fd)
log.warning("%s", "more words")
"""
)


@pytest.mark.parametrize("after", ["dup", "subwindow"])
def test_after_a_window(mpirun, after):
    """What is made of a window needs none."""
    done = mpirun(2, STARVED, "later", after, timeout=40)
    assert sorted(done.stdout.splitlines()) == ["0 made", "1 made"], done.stdout + done.stderr


def test_before_the_first_window(mpirun):
    done = mpirun(2, STARVED, "first", "dup", timeout=40)
    said = sorted(done.stdout.splitlines())
    assert [line[:2] for line in said] == ["0 ", "1 "], done.stdout + done.stderr
    assert said[0][2:] == said[1][2:], said


def test_a_warning_is_not_lost(run_python):
    """Though `logging` is not imported yet, and cannot be."""
    done = run_python(WARNS)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == ["words", "more words"]
