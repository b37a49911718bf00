# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that are lost while they hold, or wait for, locks and epochs."""

from __future__ import annotations

from pathlib import Path

import launch
import pytest
from support.jobs import PRELUDE

PROGRAM = Path(__file__).parent / "programs" / "locks.py"


# -- ranks that are lost -------------------------------------------------------------

SCENARIOS = [
    *("killed_writer", "killed_reader", "killed_in_the_queue", "killed_unrelated"),
    *(
        "killed_in_a_loop",
        "killed_in_a_program",
        "interrupted_in_the_queue",
        "left",
        "start",
        "wait",
    ),
]


def lose(mpirun, scenario, *args, timeout=50, **env):
    env = {"PYTHONPATH": launch.PYTHONPATH, **env}
    survive = scenario != "left"
    done = mpirun(4, PROGRAM, scenario, *args, env=env, survive=survive, timeout=timeout)
    assert done.stdout.count("OK") == 3, done.stdout + done.stderr
    assert done.returncode == 0 or not survive, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_rank(mpirun, scenario):
    lose(mpirun, scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_lost_rank_by_the_network(mpirun, scenario):
    lose(mpirun, scenario, RMAEXT_ROUTE="fabric")


@pytest.mark.parametrize("scenario", ["killed_writer", "killed_in_the_queue", "wait"])
def test_lost_rank_on_another_node(mpirun, scenario):
    lose(mpirun, scenario, "nodes")


GIVE_UP = """
from support.processes import stopped

pid = world.bcast(os.getpid(), 1)
for how in "lock", "unlock", "unlock_all", "post", "complete":
    win, kept = rmaext.Window.allocate(world, 4), None
    win.fence()
    block = win._block.slab, win._block.place
    if how == "complete":
        win.start([1]) if rank == 0 else win.post([0])
    elif how != "post" and rank == 0:
        {"unlock": lambda: win.lock(1, exclusive=False), "unlock_all": win.lock_all}.get(how, int)()
    calls = {name: partial(getattr(win, name), 1) for name in ("lock", "unlock")}
    calls |= {"unlock_all": win.unlock_all, "complete": win.complete, "post": lambda: win.post([1])}
    world.Barrier()
    if rank == 0:
        with stopped(pid):
            refuses(calls[how], rmaext.RmaTimeout)
    elif how == "complete":
        win.wait()  # so it has come
    try:
        win.close()
    except rmaext.SyncError:
        assert how == "post"
    other = rmaext.Window.allocate(world, 4)
    assert ((other._block.slab, other._block.place) == block) == (how == "complete"), how
    other.close()
print("end")
"""


def test_no_message_that_was_given_up_reaches_another_window(mpirun):
    """What it may still change, the control block, is not used again."""
    code = "from functools import partial\n" + PRELUDE + GIVE_UP
    env = {"RMAEXT_TIMEOUT": "2.5", "RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, code, env=env, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2, done.stderr


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("route", ["", "fabric"])
def test_many_ranks_lost_at_any_moment(mpirun, route):
    for seed in range(15):
        lose(mpirun, "killed_in_a_loop", f"seed={seed}", RMAEXT_ROUTE=route)
        lose(mpirun, "killed_in_a_program", f"seed={seed}", RMAEXT_ROUTE=route)
