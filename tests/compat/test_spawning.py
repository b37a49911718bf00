# SPDX-License-Identifier: BSD-3-Clause
"""`python -m rmaext run` hands itself on to Python programs that the program spawns."""

from __future__ import annotations

import sys

import launch
import pytest

from rmaext.cli.run import handed_on

RUN = ["-m", "rmaext", "run"]
PYTHON = sys.executable
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
how, parent = sys.argv[1], MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    python, args = sys.executable, [__file__, how]
    if how == "Spawn":
        inter = MPI.COMM_WORLD.Spawn(python, args, maxprocs=2)
    else:
        inter = MPI.COMM_WORLD.Spawn_multiple([python] * 2, [args, ["-u", *args]], [1, 1])
else:
    inter = parent
everyone = inter.Merge(high=parent != MPI.COMM_NULL)
win = MPI.Win.Create(np.zeros(4), 8, comm=everyone)
win.Fence()
win.Accumulate(np.ones(1), 0)
win.Fence()
assert type(win).__module__ == "rmaext.compat.win", type(win)
if everyone.rank == 0:
    print(everyone.size, np.frombuffer(win.tomemory())[0])
win.Free()
everyone.Free()
inter.Disconnect()
"""


@pytest.mark.parametrize("how", ["Spawn", "Spawn_multiple"])
def test_a_window_of_parent_and_children(how):
    done = launch.mpirun(
        1, PROGRAM, how, dropin=True, timeout=50, env={"PYTHONPATH": str(launch.ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "3 3.0\n"


@pytest.mark.parametrize(
    ("command", "given", "becomes"),
    [
        (PYTHON, ["a.py", "-m"], [*RUN, "a.py", "-m"]),
        (PYTHON, ["-u", "-X", "dev", "a.py"], ["-u", "-X", "dev", *RUN, "a.py"]),
        (PYTHON, ["-m", "mpi4py", "a.py"], [*RUN, "-m", "mpi4py", "a.py"]),
        (PYTHON, ["-c", "pass"], [*RUN, "-c", "pass"]),
        (PYTHON, "a.py", [*RUN, "a.py"]),
        (PYTHON, [*RUN, "a.py"], [*RUN, "a.py"]),
        (PYTHON, ["-um", "child"], ["-um", "child"]),  # not understood: left alone
        (PYTHON, ["-V"], ["-V"]),
        (PYTHON, None, None),
        ("/elsewhere/bin/python3", ["a.py"], ["a.py"]),
        ("./solver", ["a.py"], ["a.py"]),
        (None, None, None),
    ],
)
def test_arguments(command, given, becomes):
    assert handed_on(command, given) == becomes


def test_ranks_that_do_not_come_are_asked_for(tmp_path):
    """The wait says what to look at, and goes on when they come."""
    code = """
    import logging, sys, time
    from pathlib import Path
    from mpi4py import MPI
    told = Path(sys.argv[1], "told")
    if MPI.COMM_WORLD.rank == 0:
        import rmaext
        from rmaext._runtime import reports
        class Tell(logging.Handler):
            def emit(self, record):
                told.write_text(record.getMessage())
        reports.WARN_AFTER = 0.5
        logging.getLogger("rmaext").addHandler(Tell())
    while MPI.COMM_WORLD.rank and not told.exists():
        time.sleep(0.01)  # without rmaext
    import rmaext
    rmaext.Window.allocate(MPI.COMM_WORLD, 3).close()
    """
    done = launch.mpirun(2, code, str(tmp_path), env={"PYTHONPATH": str(launch.ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "told").read_text()
    assert "the first window" in text or "creation" in text, text
    assert "do all ranks" in text.lower()
    assert "python -m rmaext run" in text
