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
    assert "count 1, of window 1 since" in text and ": no rank has notified it. " in text, text
    world.send(None, 0)
    world.recv(source=0)
    text = text_of(lambda: win.wait_notify(3, timeout=1.5))
    assert "no rank has notified it; rank 0 has notified slot 2 instead, once" in text, text
    # a limit that is over at once, and a wait that was another one's, have no cause to tell
    assert "held by" not in text_of(lambda: win.test_notify(3) or win.wait_notify(3, timeout=0))
else:
    world.recv(source=1)
    win.put_notify(np.ones(1), 1, slot=2)
    world.send(None, 1)
world.Barrier()
if rank == 0:
    win.unlock(1)
world.Barrier()
pids = world.allgather(os.getpid())
if rank == 0 and os.environ.get("RMAEXT_ROUTE"):
    with stopped(pids[1]):
        win.put(np.ones(4), 1)
        texts = [text_of(win.flush)]
        request, other = win.rget(1, 0, 4), win.rget(1, 4, 4)
        texts.append(text_of(lambda: request.wait(timeout=1.5)))
        texts.append(text_of(lambda: rmaext.Request.waitall([request, other], timeout=1.5)))
        texts.append(text_of(lambda: rmaext.Request.waitany([other, request], timeout=1.7)))
        # those are over: a limit that is over at once has nothing of theirs to tell
        short = [text_of(lambda: request.wait(timeout=0))]
        short.append(text_of(lambda: rmaext.Request.waitany([request], timeout=0.05)))
    for text in texts:
        assert "rank 1 is stopped by a signal" in text, text
    for text in short:
        assert "stopped" not in text, text
    assert rmaext.Request.waitall([request, other])[1].tolist() == [0.0] * 4
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


LOST = (
    PRELUDE
    + """
from support.processes import waits

win = rmaext.Window.allocate(world, 10)
win.fence()
pids = world.allgather(os.getpid())
if rank == 1:
    while not waits(pids[0]):
        time.sleep(0.01)
    time.sleep(1.2)
    os._exit(0)
if os.environ["CALL"] == "fence":
    text = refuses(win.fence, rmaext.PeerLostError)
    wait = "Rank 0 waits in fence #3 of window 1 since "
    cause = " for rank 1, which has "
else:
    text = refuses(lambda: win.wait_notify(3), rmaext.PeerLostError)
    wait = "Rank 0 waits in wait_notify, slot 3, count 1, of window 1 since "
    cause = ": no rank has notified it; no rank is left that could"
assert wait in text and cause in text.partition(wait)[2], text
assert text.count("Rank 0 waits") == 1, text
print("end", flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize("route", ["", "fabric"])
@pytest.mark.parametrize("call", ["fence", "wait_notify"])
def test_lost_ranks_are_said_to_be_waited_for(route, call):
    env = {"RMAEXT_ROUTE": route, "CALL": call, "PYTHONPATH": launch.PYTHONPATH}
    done = start(2, LOST, env=env, survive=True, timeout=40)
    assert done.stdout.count("end") == 1, done.stdout + done.stderr


def test_without_a_record_they_say_what_they_said(monkeypatch):
    code = """
with rmaext.Window.allocate(world, 10) as win:
    text = refuses(lambda: win.wait_notify(3, timeout=1.2), rmaext.RmaTimeout)
    assert text.endswith("not within 1.2 s"), text
"""
    monkeypatch.setenv("RMAEXT_RECORD", "0")
    done = start(0, PRELUDE + code)
    assert done.returncode == 0, done.stderr
