# SPDX-License-Identifier: BSD-3-Clause
"""Processes of other jobs that attach to a window: who dies, stops, forks or starts again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import launch
import numpy as np
import pytest
from clients import forge, refuses
from support import netns
from support.jobs import PRELUDE
from support.processes import stopped

import rmaext
from rmaext import RemoteWindow
from rmaext._remote.ticket import Ticket

CLIENT = """
import sys, time
import mpi4py
mpi4py.rc.initialize = False
import numpy as np
from rmaext import *
import rmaext
blob = sys.stdin.buffer.read()
"""


def client(program: str, blob: bytes, timeout: float = 30) -> str:
    """Run a process of no MPI job that has the ticket; return what it prints."""
    code = CLIENT + program
    env = launch.environment()
    it = subprocess.run(
        [sys.executable, "-c", code], input=blob, capture_output=True, timeout=timeout, env=env
    )
    assert not it.returncode, it.stderr.decode()
    return it.stdout.decode()


def test_a_process_without_mpi(alone):
    said = client(
        """
        with RemoteWindow.attach(blob) as far:
            print(far.get(0).sum(), far.fetch_add(1.0, 0, 3))
            far.put(np.full(2, 9.0), 0, 6)
        from mpi4py import MPI
        print(MPI.Is_initialized())
        """.replace("\n        ", "\n"),
        alone.export(),
    )
    assert said.split() == ["28.0", "3.0", "False"]
    assert alone.local.tolist() == [0, 1, 2, 4, 4, 5, 9, 9]


def test_owner_sleeps(alone):
    """Its program takes no part: here it waits in a system call, then computes."""
    blob = alone.export()
    it = subprocess.Popen(
        [sys.executable, "-c", CLIENT + "far = RemoteWindow.attach(blob)\nfar.fetch_add(1.0, 0)"],
        stdin=subprocess.PIPE,
        env=launch.environment(),
    )
    it.communicate(blob, timeout=30)
    assert it.returncode == 0
    assert alone.local[0] == 1


OWNER = """
import sys, time
import numpy as np
from mpi4py import MPI
import rmaext
win = rmaext.Window.allocate(MPI.COMM_SELF, 1000)
print(win.export().hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner():
    """A process that has exported a window, with its ticket as `blob`."""
    it = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=launch.environment(),
    )
    it.blob = bytes.fromhex(it.stdout.readline().decode())
    yield it
    it.kill()
    it.stdin.close()
    it.stdout.close()
    it.wait()


@pytest.mark.parametrize("how", ["killed", "left"])
def test_owner_gone(owner, how):
    far = RemoteWindow.attach(owner.blob, timeout=20)
    far.put(np.ones(1000), 0)
    far.flush()
    if how == "killed":
        owner.kill()
    else:
        owner.stdin.close()
    owner.wait()
    start = time.monotonic()
    refuses(lambda: far.get(0), rmaext.PeerLostError)
    # a cut connection may not be known as the owner's end yet: then flush says so
    refuses(lambda: (far.put(np.ones(1000), 0), far.flush(0)), rmaext.PeerLostError)
    refuses(lambda: RemoteWindow.attach(owner.blob, timeout=20), rmaext.PeerLostError)
    assert time.monotonic() - start < 10
    far.close()
    assert far.closed


def at_last(call):
    """What a call returns, though the owner may be late for the time limit now and then."""
    for _ in range(9):
        with contextlib.suppress(rmaext.RmaTimeout):
            return call()
    return call()


def test_owner_stopped(owner):
    far = at_last(lambda: RemoteWindow.attach(owner.blob, timeout=1))
    with stopped(owner.pid):
        start = time.monotonic()
        refuses(lambda: far.get(0), rmaext.RmaTimeout)
        refuses(lambda: RemoteWindow.attach(owner.blob, timeout=1), rmaext.RmaTimeout, "no answer")
        assert time.monotonic() - start < 10
    assert at_last(lambda: far.get(0, 3, 1))[0] == 0
    far.close()


def test_owner_restarted(owner, alone):
    """Another process at the same address knows nothing of the ticket, and does not answer."""
    mine, theirs = Ticket.parse(alone.export()), Ticket.parse(owner.blob)
    lie = forge(theirs, address=mine.address, beacon=mine.beacon, pid=mine.pid)
    # one with the secret of the endpoint, but a token of nothing, gets an answer
    late = forge(mine, token="ab" * 16)
    said = client(
        f"""
for it, limit in (blob, 0.5), (bytes.fromhex("{late.hex()}"), 9):
    start = time.monotonic()
    try:
        RemoteWindow.attach(it, timeout=limit)
    except RmaError as exc:
        print(type(exc).__name__, time.monotonic() - start < 10)
""",
        lie,
    )
    assert said.split() == ["RmaTimeout", "True", "ClosedError", "True"]


def test_client_dies(alone):
    """Amid an operation; the owner and other clients go on."""
    blob = alone.export()
    code = CLIENT + (
        "far = RemoteWindow.attach(blob)\nprint('here', flush=True)\n"
        "while True:\n    far.accumulate(np.ones(8), 0)\n    far.flush()\n"
    )
    it = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=launch.environment(),
    )
    it.stdin.write(blob)
    it.stdin.close()
    assert it.stdout.readline() == b"here\n"
    it.send_signal(signal.SIGKILL)
    it.wait()
    it.stdout.close()
    with RemoteWindow.attach(blob) as far:
        before = far.get(0, 0, 1)[0]
        assert far.fetch_add(1.0, 0) == before
    assert alone.local[0] == before + 1


def test_fork(alone):
    """The child has neither the grant nor the remote window."""
    given = alone.grant(0, 8)
    far = RemoteWindow.attach(given.export())
    pid = os.fork()
    if not pid:
        ok = given.revoked
        given.revoke()
        try:
            far.get(0)
        except rmaext.ClosedError:
            os._exit(0 if ok else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert far.get(0, 3, 1)[0] == 3
    far.close()
    given.revoke()


def test_another_host():
    """Over the cable; a ticket for the owner's host alone says so."""
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(2) as (first, second):
        second.decoy("docker0", "172.17.0.1/16")
        netns.join("cable", [(first, "10.77.0.1/24"), (second, "10.77.0.2/24")])

        def there(host, code, iface):
            command = ["nsenter", f"--net=/proc/{host.pid}/ns/net", sys.executable, "-c", code]
            env = launch.environment({"RMAEXT_IFACE": iface})
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )

        both = "print(win.export(scope='network').hex(), flush=True)\n"
        code = OWNER.replace("sys.stdin", both + "sys.stdin")
        with there(first, code, "cable") as owner:
            near, far = owner.stdout.readline().strip(), owner.stdout.readline().strip()
            code = CLIENT.replace("sys.stdin.buffer.read()", "b''") + (
                f"try:\n    RemoteWindow.attach(bytes.fromhex('{near}'))\n"
                "except NotLocalError:\n    print('not local')\n"
                f"with RemoteWindow.attach(bytes.fromhex('{far}')) as far:\n"
                "    print(far.fetch_add(1.0, 0), far.fabric.address)\n"
            )
            with there(second, code, None) as it:
                said = it.communicate(timeout=40)[0]
            owner.communicate("", timeout=20)
        assert said.splitlines()[0] == "not local"
        assert "0.0" in said
        assert "10.77.0.2" in said


def test_another_job(mpirun):
    """Two ranks own, each of another job's two ranks attaches to both."""
    code = (
        PRELUDE
        + """
    win = rmaext.Window.allocate(world, 4, "i8")
    blobs = world.gather(win.export().hex())
    if not rank:
        print(" ".join(blobs), flush=True)
        sys.stdin.read()  # until the clients have left
    world.Barrier()
    assert win.local[0] == 2
    win.close()
    """.replace("\n    ", "\n")
    )
    with subprocess.Popen(
        [*launch.mpi_command(2), sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=launch.environment(),
    ) as owners:
        try:
            tickets = owners.stdout.readline().split()
            done = mpirun(
                2,
                PRELUDE
                + """
for text in sys.argv[1:]:
    with rmaext.RemoteWindow.attach(bytes.fromhex(text)) as far:
        world.Barrier()
        print(far.fetch_add(1, 0))
        world.Barrier()
""",
                *tickets,
            )
            assert sorted(done.stdout.split()) == ["0", "0", "1", "1"], done
            owners.stdin.close()
            assert owners.wait(20) == 0
        finally:
            owners.kill()
