# SPDX-License-Identifier: BSD-3-Clause
"""What the errors of waits say of their cause."""

from __future__ import annotations

import launch
import pytest
from support.jobs import PRELUDE, start

CODE = (
    PRELUDE
    + """
from support.processes import stopped

win = rmaext.Window.allocate(world, 10, timeout=4)
win.fence()

def text_of(call):
    return refuses(call, rmaext.RmaTimeout)

if rank == 0:
    win.lock(1, exclusive=True)
world.Barrier()
if rank == 1:
    text = text_of(lambda: win.lock(1, timeout=1.5))
    assert "held by rank 0" in text and "rank 0 is in no call of rmaext" in text, text
    text = text_of(lambda: win.wait_notify(3, timeout=1.5))
    assert "no rank has put anything there with a notification" in text, text
    # a limit that is over at once, and a wait that was another one's, have no cause to tell
    assert "held by" not in text_of(lambda: win.test_notify(3) or win.wait_notify(3, timeout=0))
else:
    time.sleep(4)
world.Barrier()
if rank == 0:
    win.unlock(1)
world.Barrier()
pids = world.allgather(os.getpid())
if rank == 0 and os.environ.get("RMAEXT_ROUTE"):
    with stopped(pids[1]):
        win.put(np.ones(4), 1)
        text = text_of(win.flush)
    assert "rank 1 is stopped by a signal" in text, text
world.Barrier()
print("end", flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize("route", ["", "fabric"])
def test_timeouts_say_who_is_waited_for(route):
    env = {"RMAEXT_ROUTE": route, "PYTHONPATH": launch.PYTHONPATH}
    done = start(2, CODE, env=env, survive=True, timeout=40)
    assert done.stdout.count("end") == 2, done.stderr


def test_without_a_record_they_say_what_they_said(monkeypatch):
    code = """
with rmaext.Window.allocate(world, 10) as win:
    text = refuses(lambda: win.wait_notify(3, timeout=1.2), rmaext.RmaTimeout)
    assert text.endswith("not within 1.2 s"), text
"""
    monkeypatch.setenv("RMAEXT_RECORD", "0")
    done = start(0, PRELUDE + code)
    assert done.returncode == 0, done.stderr
