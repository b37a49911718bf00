# SPDX-License-Identifier: BSD-3-Clause
"""What a rank says at the end of its program of what it has begun and never ended."""

from __future__ import annotations

import pytest
from launch import mpirun

PROGRAM = """
import os, sys
import numpy as np
from mpi4py import MPI
import rmaext
from rmaext.compat import Win
world = MPI.COMM_WORLD
rank, right = world.rank, (world.rank + 1) % world.size
def window():
    return rmaext.Window.allocate(world, 10)
a, b = window(), window()
"""
CLEAN = [
    "pass",  # a window that nobody closes, whose memory is kept
    "a.lock(right); a.put(1.0, right); a.unlock(right); a.close(); b.close(); MPI.Finalize()",
    """
win = Win.Create(np.zeros(4), 8, comm=world)
win.Lock_all(); win.Put(np.ones(1), right); win.Unlock_all(); win.Free()
""",
    """
world.Barrier()
if os.fork() == 0:
    a.lock  # the parent's
    sys.stderr.flush()
    os._exit(0)
os.wait()
""",
]
DIRTY = {
    "if rank == 0: a.lock(1); b.lock(0, exclusive=False)": [
        "rank 0 has come to the end of its program: window 1: locks are held, of rank 1: unlock",
        "; window 2: locks are held, of rank 0: unlock",
    ],
    "a.lock_all(); b.fence()": ["window 1: locks are held, of rank 0, 1"],
    "if rank == 0: a.subwindow(2, 4).lock(1)": ["window 1: locks are held, of rank 1"],
    "if rank == 0: a.lock(1); MPI.Finalize()": ["window 1: locks are held, of rank 1"],
    "if rank == 0: a.post([1])": ["window 1: a post has no wait yet: call wait first"],
    """
win = Win.Create(np.zeros(4), 8, comm=world)
if rank == 0: win.Lock(1); win.Put(np.ones(1), 1)
""": ["window 3: locks are held, of rank 1"],
}


@pytest.mark.parametrize("code", CLEAN)
def test_clean_programs_end_in_silence(code):
    done = mpirun(2, PROGRAM + code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr


@pytest.mark.parametrize("code", DIRTY)
def test_what_was_never_ended_is_named_once_a_rank(code):
    if "Finalize" in code:
        code = code.replace("; MPI.Finalize()", "") + "\nMPI.Finalize()"
    done = mpirun(2, PROGRAM + code)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "has come to the end" in line]
    assert len(lines) == (2 if "lock_all" in code else 1), done.stderr
    for words in DIRTY.get(code) or ["locks are held"]:
        assert words in lines[0], done.stderr


def test_not_after_an_exception():
    done = mpirun(2, PROGRAM + "a.lock(rank)\nworld.Barrier()\nraise KeyError('mine')")
    assert done.returncode != 0
    assert "KeyError" in done.stderr
    assert "has come to the end" not in done.stderr
