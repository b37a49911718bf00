# SPDX-License-Identifier: BSD-3-Clause
"""The program of docs/guides/survivors.md, in which a rank is killed in the middle of its puts."""

from __future__ import annotations

import launch
import pytest
from support.documents import programs
from support.libraries import BOTH_IN_MATRIX

# Rank 2 ends in its 50th put, or right behind it; the others say what they have in the end.
KILLED = """
import faulthandler, os, signal, threading
faulthandler.dump_traceback_later(25, exit=True)
from mpi4py import MPI
import rmaext

put, puts = rmaext.Window.put, []

def counted(win, *args, **options):
    puts.append(0)
    if len(puts) == 50:
        threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
    for _ in range(1 if len(puts) < 50 else 10_000):
        put(win, *args, **options)

if MPI.COMM_WORLD.rank == 2:
    rmaext.Window.put = counted
"""
SAID = 'os.write(1, f"{comm.size} ranks, {number} steps: {result.sum()}\\n".encode())\n'


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_a_rank_that_dies_amid_puts(mpirun, route, library):
    (program,) = programs(launch.ROOT / "docs" / "guides" / "survivors.md")
    before, end = program.split("comm.Barrier()\n")
    env = {
        "RMAEXT_LIBFABRIC": library or None,
        "RMAEXT_ROUTE": "fabric" if route == "fabric" else None,
    }
    code = f"{KILLED}{before}{SAID}comm.Barrier()\n{end}"
    done = mpirun(3, code, survive=True, timeout=40, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"2 ranks, 6 steps: {4.0 * sum(range(64))}\n") == 2, done.stdout
