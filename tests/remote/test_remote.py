# SPDX-License-Identifier: BSD-3-Clause
"""export, RemoteWindow.attach and grants: memory for processes of other jobs."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import fields, replace

import launch
import numpy as np
import pytest
from support import netns
from support.guarded import Guarded, neighbour, noise, same
from support.prelude import PRELUDE
from support.processes import stopped

import rmaext
from rmaext import RemoteWindow
from rmaext._remote.ticket import Ticket

GUEST = """
import sys, time
import mpi4py
mpi4py.rc.initialize = False
import numpy as np
from rmaext import *
import rmaext
blob = sys.stdin.buffer.read()
"""


def guest(program: str, blob: bytes, timeout: float = 30) -> str:
    """Run a process of no MPI job that has the ticket; return what it prints."""
    code = GUEST + program
    env = launch.environment()
    it = subprocess.run(
        [sys.executable, "-c", code], input=blob, capture_output=True, timeout=timeout, env=env
    )
    assert not it.returncode, it.stderr.decode()
    return it.stdout.decode()


@pytest.fixture
def win(comm):
    """A window of 40 float64, 4 by 10, with 0, 1, 2, ... on each rank."""
    with rmaext.Window.allocate(comm, (4, 10)) as it:
        it.local[:] = np.arange(40).reshape(4, 10)
        comm.Barrier()
        yield it


def refuses(call, error=rmaext.ClosedError, match=None):
    with pytest.raises(error, match=match) as caught:
        call()
    return caught.value


# -- operations --------------------------------------------------------------------


def test_operations(comm, win):
    """Of a neighbour's memory: as those of a window of one rank."""
    blob = comm.allgather(win.export())[neighbour(comm)]
    with RemoteWindow.attach(blob) as far:
        assert (far.dtype, far.size(0), far.route(0)) == (np.dtype(float), 40, "fabric")
        assert same(far.get(0), np.arange(40.0))
        comm.Barrier()
        far.put(noise(float, 3, comm.rank), 0, 5)
        far.flush()
        assert same(far.get(0, 5, 3), noise(float, 3, comm.rank))
        assert far.fetch_add(2.0, 0, 8) == 8
        assert far.compare_and_swap(10.0, -1.0, 0, 8) == 10
        assert far.fetch_op(5.0, 0, 8, "replace") == -1
        far.accumulate(np.ones(10), 0, 10)
        assert same(far.get_accumulate(np.ones(10), 0, 10), np.arange(11.0, 21))
        far.put_many(0, [20, 22], np.array([1.5, 2.5]))
        far.accumulate_many(0, [20, 22], 1.0)
        assert far.get_many(0, [20, 21, 22]).tolist() == [2.5, 21, 3.5]
        far[0, 3, ::2] = -1
        far.flush()
        assert far[0, 3].tolist() == [-1, 31, -1, 33, -1, 35, -1, 37, -1, 39]
        far.at(0).add(([3, 3], [1, 1]), 1.0)
        assert far.rget(0, 30, 2).result().tolist() == [-1, 33]
        far.rput(np.zeros(2), 0, 30).wait()
        with pytest.raises(rmaext.BoundsError):
            far.put(np.ones(1), -1)
    comm.Barrier()
    assert same(win.local[1], np.arange(10, 20) + 2.0)
    assert win.local[0, 8] == 5
    assert win.local[3, :2].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["i1", "c16", "M8[s]", "V5", "U3", "i4,f8", "f8,i4"])
def test_dtypes(world, dtype):
    made = np.dtype(dtype, align=True) if dtype == "f8,i4" else np.dtype(dtype)
    mine = Guarded(100, made)
    with rmaext.Window(world, mine.array) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            assert far.dtype == made
            data = noise(made, 100, world.rank)
            far.put(data, 0)
            far.flush()
            assert same(far.get(0), data)
    mine.check()


@pytest.mark.parametrize("length", range(2008, 2018))
def test_rows_as_long_as_a_message(world, length):
    with rmaext.Window.allocate(world, (3, 2020)) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            rows = noise(float, 3 * length, world.rank).reshape(3, length)
            far[0, :, :length] = rows
            far.flush()
            assert same(far[0, :, :length], rows)
            assert not far[0, :, length:].any()


def test_long_transfers(world):
    """Of several messages; what is outside stays as it is."""
    mine = Guarded(200_000)
    with rmaext.Window(world, mine.array) as win:
        blob = world.allgather(win.export())[neighbour(world)]
        with RemoteWindow.attach(blob) as far:
            data = np.arange(200_000.0) + world.rank
            far.put(data, 0)
            far.flush()
            assert same(far.get(0), data)
            far.accumulate(data, 0)
            assert same(far[0, ::1000], 2 * data[::1000])
    mine.check()


def test_atomic_against_the_windows_own(world):
    with rmaext.Window.allocate(world, 3, "i8") as win:
        blob = world.bcast(win.export() if not world.rank else None)
        with RemoteWindow.attach(blob) as far:
            for _ in range(50):
                far.fetch_add(1, 0, 0)
                win.fetch_add(1, 0, 0)
                far.accumulate_many(0, [0, 1], 1)
            far.flush()
        win.fence()
        assert win.get(0).tolist() == [150 * world.size, 50 * world.size, 0]


def test_checks_at_the_origin(world):
    """The same as a window's, and nothing is sent."""
    array = np.arange(9.0)
    array.flags.writeable = False
    with (
        rmaext.Window(world, array) as shut,
        rmaext.Window.allocate(world, 9) as open_,
    ):
        with RemoteWindow.attach(shut.export()) as far:
            refuses(lambda: far.put(np.ones(1), 0), rmaext.AccessError, "allows r")
            refuses(lambda: far.fetch_add(1.0, 0), rmaext.AccessError)
            refuses(lambda: far.put_many(0, [1], 1.0), rmaext.AccessError)
            assert far.fetch_op(0.0, 0, 3, "no_op") == 3
        with RemoteWindow.attach(open_.export("w")) as far:
            refuses(lambda: far.get(0), rmaext.AccessError, "allows w")
            far.accumulate(np.ones(9), 0)
        with RemoteWindow.attach(open_.export()) as far:
            refuses(lambda: far.put(np.ones(3), 0, 7), rmaext.BoundsError, "offset 7, length 3")
            refuses(lambda: far.get(1), rmaext.BoundsError)
            refuses(lambda: far.get_many(0, [9]), rmaext.BoundsError)
            refuses(lambda: far[0, 9], rmaext.BoundsError)
            refuses(lambda: far.put(np.ones(3, "f4"), 0), TypeError)
            refuses(lambda: far.fetch_op(1.0, 0, 0, "bor"), rmaext.Unsupported)
            assert same(far.get(0), np.ones(9))
        refuses(lambda: far.get(0), rmaext.ClosedError)
        refuses(lambda: shut.export("rw"), rmaext.AccessError)
        refuses(lambda: open_.export("x"), ValueError)
        refuses(lambda: open_.export(scope="world"), ValueError)
        world.Barrier()


def test_alignment(world):
    records = np.zeros(4, [("a", "i1"), ("b", "i8")])
    memory = np.zeros(65, "i1")[1:].view("i8")
    with rmaext.Window(world, memory) as win, RemoteWindow.attach(win.export()) as far:
        refuses(lambda: far.fetch_add(1, 0), rmaext.AlignmentError)
        far.put(np.array([7]), 0)
        far.flush()
        assert far.get(0)[0] == 7
    with rmaext.Window(world, records) as win:
        field = win.field("b")
        refuses(field.export, rmaext.Unsupported)
    world.Barrier()


def test_what_it_is_not(world, win):
    with RemoteWindow.attach(win.export()) as far:
        calls = [
            *(lambda: far.local, lambda: far.comm, lambda: far.memory, lambda: far.numba),
            *(far.refresh, lambda: far.writes_received, lambda: far.advise("normal")),
            *(far.fence, far.notify_counts, far.export, lambda: far.grant(0, 1)),
            *(
                lambda: far.lock(0, exclusive=False),
                far.lock_all,
                lambda: far.post([0]),
                lambda: far.start([0]),
            ),
            *(lambda: far.put_notify(np.ones(1), 0), lambda: far.wait_notify(0)),
            *(lambda: far.wait_until(0, ">", 1), lambda: far.subwindow(0, 1), far.dup),
            *(lambda: far.field("a"), lambda: far.unlock(0), far.complete, far.wait, far.test),
        ]
        for call in calls:
            refuses(call, rmaext.Unsupported, "RemoteWindow")
        refuses(lambda: far.peer_view(0), rmaext.NotLocalError)
        far.connect()
    world.Barrier()


def test_other_windows(world):
    """Views and shared windows can be exported; those of several arrays cannot."""
    with rmaext.Window.allocate(world, 10) as win:
        win.local[:] = np.arange(10)
        part = win.subwindow(2, 6)
        with RemoteWindow.attach(part.export("r")) as far:
            assert far.get(0).tolist() == [2, 3, 4, 5]
        with part.grant(1, 3) as given, RemoteWindow.attach(given.export()) as far:
            assert far.get(0).tolist() == [3, 4]
            assert win.grants == part.grants == (given,)
        world.Barrier()
    with rmaext.Window(world, [np.zeros(3), np.zeros(2)]) as win:
        refuses(win.export, rmaext.Unsupported)
    with rmaext.Window.dynamic(world) as win:
        refuses(lambda: win.grant(0, 0), rmaext.Unsupported)


@pytest.mark.mpi(min_size=2)
def test_shared_window(world):
    if launch.test_route() in ("fabric", "mixed"):
        pytest.skip("no shared memory")
    with rmaext.Window.shared(world, 5, "i8") as win:
        win.local[:] = world.rank
        blobs = world.allgather(win.export())
        with RemoteWindow.attach(blobs[-1]) as far:
            assert far.get(0).tolist() == [world.size - 1] * 5
        world.Barrier()


def test_outside_the_communicator(world):
    """Rank 0 attaches to a window of the last rank alone, which takes no part in that."""
    last = world.size - 1
    alone = world.Split(world.rank == last)
    if world.rank == last:
        win = rmaext.Window.allocate(alone, 6)
        win.local[:] = np.arange(6)
        if last:
            world.send(win.export(), 0)
            assert world.recv(source=0) == "done"
            assert win.local.tolist() == [0, 1, 2, 3, 4, 9]
        win.close()
    if world.rank == 0 and last:
        with RemoteWindow.attach(world.recv(source=last)) as far:
            far.put(np.array([9.0]), 0, 5)
        world.send("done", last)
    alone.Free()
    world.Barrier()


# -- ends --------------------------------------------------------------------------


def test_closed_while_attached(comm):
    """The owner does not wait; whoever comes later gets ClosedError, and nothing lands."""
    win = rmaext.Window.allocate(comm, 1000)
    memory = win.local
    far = RemoteWindow.attach(win.export())
    unused = win.export("r")
    far.put(np.ones(1000), 0)
    far.flush()
    comm.Barrier()
    win.close()
    after = memory.copy()
    refuses(lambda: far.get(0), rmaext.ClosedError, "closed, or the grant revoked")
    far.put(np.full(1000, 7.0), 0)
    refuses(far.flush, rmaext.ClosedError)
    refuses(lambda: far.fetch_add(1.0, 0), rmaext.ClosedError)
    refuses(lambda: far.get_many(0, [1]), rmaext.ClosedError)
    assert same(memory, after)
    for blob in (unused, unused):
        start = time.monotonic()
        refuses(lambda blob=blob: RemoteWindow.attach(blob), rmaext.ClosedError)
        assert time.monotonic() - start < 5
    refuses(win.export, rmaext.ClosedError)
    refuses(lambda: win.grant(0, 1), rmaext.ClosedError)
    far.close()


def test_revoke(comm, win):
    """Only that grant ends, at once, for all who have its ticket."""
    with win.grant(10, 20) as given:
        other = win.grant(10, 20, "r")
        assert (given.start, given.stop, given.access, given.revoked) == (10, 20, "rw", False)
        assert set(win.grants) == {given, other}
        far, near = RemoteWindow.attach(given.export()), RemoteWindow.attach(other.export())
        assert far.size(0) == 10
        refuses(lambda: far.get(0, 9, 2), rmaext.BoundsError)
        far.put(np.zeros(10), 0)
        far.flush()
        assert same(win.local.reshape(-1)[9:21], np.r_[9, np.zeros(10), 20])
        blob = given.export()
    assert given.revoked
    assert "revoked" in repr(given)
    assert win.grants == (other,)
    given.revoke()
    before = win.local.copy()
    far.put(np.ones(10), 0)
    refuses(far.flush)
    refuses(lambda: far.fetch_add(1.0, 0))
    refuses(lambda: far.get(0))
    refuses(lambda: RemoteWindow.attach(blob))
    refuses(given.export)
    assert same(win.local, before)
    assert same(near.get(0), np.zeros(10))
    refuses(lambda: near.put(np.ones(1), 0), rmaext.AccessError)
    other.revoke()
    refuses(lambda: near.get(0))
    far.close()
    near.close()


def test_many_revoked(comm, win):
    """The owner remembers the last 64 that ended; older ones are refused as fast."""
    blob = win.grant(0, 1)
    first = blob.export()
    blob.revoke()
    for _ in range(100):
        win.grant(0, 1).revoke()
    start = time.monotonic()
    refuses(lambda: RemoteWindow.attach(first))
    assert time.monotonic() - start < 5


def test_revoke_while_used(comm):
    """Not one element changes after it has returned."""
    with rmaext.Window.allocate(comm, 4096) as win:
        given = win.grant(0, 4096)
        far, stop, errors_ = RemoteWindow.attach(given.export()), threading.Event(), []

        def write():
            value = 1.0
            while not stop.is_set():
                try:
                    far.put(np.full(4096, value), 0)
                    far.accumulate(np.ones(4096), 0)
                    far.flush()
                except rmaext.RmaError as exc:
                    errors_.append(exc)
                    return
                value += 1

        thread = threading.Thread(target=write)
        thread.start()
        while not win.local[0]:
            time.sleep(0.001)
        given.revoke()
        seen = win.local.copy()
        thread.join(10)
        stop.set()
        assert same(win.local, seen)
        assert [type(it) for it in errors_] == [rmaext.ClosedError]
        far.close()


@pytest.mark.mpi(min_size=1)
def test_close_refuses(world):
    """On all ranks alike while any rank's grant lives; the window can be used and closed later."""
    win = rmaext.Window.allocate(world, 10)
    part, shut = win.subwindow(0, 3), win.subwindow(0, 2)
    shut.close()
    last = world.size - 1
    given = win.grant(2, 5) if world.rank == last else None
    error = refuses(win.close, rmaext.GrantError, rf"rank {last}: .*\[2:5\]")
    assert error.errno == errno.EBUSY
    assert not win.closed
    assert not part.closed
    assert part.get(0).size == 3
    assert shut.closed
    win.put(np.ones(10), neighbour(world))
    win.fence()
    assert same(win.local, np.ones(10))
    if given:
        given.revoke()
    win.close()
    assert win.closed
    win.close()


def test_exception_ends_grants(comm):
    win = rmaext.Window.allocate(comm, 3)
    given = win.grant(0, 3)
    blob = given.export()

    def fail():
        with win:
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert given.revoked
    refuses(lambda: RemoteWindow.attach(blob))


def test_bounds_of_a_grant(world, win):
    for start, stop in ((-1, 3), (3, 2), (0, 41)):
        refuses(lambda a=start, b=stop: win.grant(a, b), rmaext.BoundsError)
    refuses(lambda: win.grant(0, 1.5), TypeError)
    with win.grant(5, 5) as given, RemoteWindow.attach(given.export()) as far:
        assert far.get(0).size == 0
    with win.dup("r").grant(0, 3) as given:
        assert given.access == "r"
    refuses(lambda: win.dup("r").grant(0, 3, "w"), rmaext.AccessError)
    world.Barrier()


# -- a process of its own ------------------------------------------------------------


@pytest.fixture
def alone():
    """A window of this process alone."""
    from mpi4py import MPI

    with rmaext.Window.allocate(MPI.COMM_SELF, 8) as win:
        win.local[:] = np.arange(8)
        yield win


def test_a_process_without_mpi(alone):
    said = guest(
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
        [sys.executable, "-c", GUEST + "far = RemoteWindow.attach(blob)\nfar.fetch_add(1.0, 0)"],
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


def test_owner_stopped(owner):
    far = RemoteWindow.attach(owner.blob, timeout=1)
    with stopped(owner.pid):
        start = time.monotonic()
        refuses(lambda: far.get(0), rmaext.RmaTimeout)
        refuses(lambda: RemoteWindow.attach(owner.blob, timeout=1), rmaext.RmaTimeout, "no answer")
        assert time.monotonic() - start < 10
    assert far.get(0, 3, 1)[0] == 0
    far.close()


def test_owner_restarted(owner, alone):
    """Another process at the same address knows nothing of the ticket, and does not answer."""
    mine, theirs = Ticket.parse(alone.export()), Ticket.parse(owner.blob)
    lie = forge(theirs, address=mine.address, beacon=mine.beacon, pid=mine.pid)
    # one with the secret of the door, but a token of nothing, gets an answer
    late = forge(mine, token="ab" * 16)
    said = guest(
        f"""
for it in (blob, bytes.fromhex("{late.hex()}")):
    start = time.monotonic()
    try:
        RemoteWindow.attach(it, timeout=0.5)
    except RmaError as exc:
        print(type(exc).__name__, time.monotonic() - start < 10)
""",
        lie,
    )
    assert said.split() == ["RmaTimeout", "True", "ClosedError", "True"]


def test_guest_dies(alone):
    """Amid an operation; the owner and other guests go on."""
    blob = alone.export()
    code = GUEST + (
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
            code = GUEST.replace("sys.stdin.buffer.read()", "b''") + (
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
    while win.local[0] != 2:
        time.sleep(0.01)
    win.close()
    """.replace("\n    ", "\n")
    )
    with subprocess.Popen(
        [*launch.mpi_command(2), sys.executable, "-c", code],
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
            assert owners.wait(20) == 0
        finally:
            owners.kill()


# -- tickets ---------------------------------------------------------------------------


def forge(it: Ticket, **changes) -> bytes:
    record = {field.name: getattr(it, field.name) for field in fields(it)} | changes
    return Ticket(**record).pack()


def frame(payload: bytes, magic=b"rmxT", version=1, length=None) -> bytes:
    body = struct.pack("<4sII", magic, version, len(payload) if length is None else length)
    return body + payload + struct.pack("<I", zlib.crc32(body + payload))


def test_ticket_round_trip(alone):
    blob = alone.export()
    it = Ticket.parse(blob)
    assert it.pack() == blob
    assert len(blob) < 2048
    assert Ticket.parse(bytearray(blob)) == it
    assert alone.export() == blob  # and no second grant
    assert (it.size, it.access, it.shape, it.scope) == (64, 3, [8], "host")
    assert it.endpoint.address.startswith("127.")


def test_damaged_tickets(alone):
    blob = alone.export()
    for bit in range(0, 8 * len(blob)):
        bad = bytearray(blob)
        bad[bit // 8] ^= 1 << bit % 8
        refuses(lambda bad=bad: RemoteWindow.attach(bytes(bad)), rmaext.KeyRecordError)
    for end in range(len(blob)):
        refuses(lambda end=end: RemoteWindow.attach(blob[:end]), rmaext.KeyRecordError)
    refuses(lambda: RemoteWindow.attach(blob + b"x"), rmaext.KeyRecordError)
    refuses(lambda: RemoteWindow.attach(bytes(1 << 17)), rmaext.KeyRecordError)
    for it in ("text", None, 3, np.zeros(3)):
        refuses(lambda it=it: RemoteWindow.attach(it), TypeError)


def test_other_versions(alone):
    payload = alone.export()[12:-4]
    assert Ticket.parse(frame(payload)).size == 64
    for bad, why in (
        (frame(payload, version=2), "version 2"),
        (frame(payload, magic=b"rmx1"), "begins with"),
        (frame(payload, length=3), "length"),
        (frame(payload.replace(b'"little"', b'"big"')), "byte order"),
    ):
        refuses(lambda bad=bad: Ticket.parse(bad), rmaext.KeyRecordError, why)


BAD = {
    "order": ["", 1, "middle"],
    "scope": ["", "world", None],
    "pid": [-1, 1.5, True, "1", 1 << 63],
    "beacon": ["", "zz", "ab"],
    "endpoint": [None, [], {}, {"provider": 1}],
    "address": ["", "0", "ab" * 239],
    "door": ["", "ab", 3],
    "token": ["ab" * 15, None],
    "size": [63, -1, 1 << 63],
    "access": [0, 4],
    "align": [64, -1],
    "dtype": [
        "O",
        "V0",
        "x",
        "",
        3,
        None,
        [],
        [[]],
        [["a"]],
        [["a", "O"]],
        ["f8"],
        "f8,f8",
    ],
    "shape": [[7], [-8], [1 << 63], [2.0, 4], 8, "8", None, [1] * 65, {}],
}


@pytest.mark.parametrize("field", BAD)
def test_nonsense_in_tickets(alone, field):
    record = json.loads(alone.export()[12:-4])
    for value in BAD[field]:
        changed = frame(json.dumps(record | {field: value}).encode())
        refuses(lambda it=changed: Ticket.parse(it), rmaext.KeyRecordError)
    less = {key: it for key, it in record.items() if key != field}
    refuses(lambda: Ticket.parse(frame(json.dumps(less).encode())), rmaext.KeyRecordError)


@pytest.mark.parametrize("payload", [b"", b"[]", b"3", b"{}", b"nonsense", b"[" * 10000, b"\xff"])
def test_no_json(payload):
    refuses(lambda: Ticket.parse(frame(payload)), rmaext.KeyRecordError)


def test_forged_tickets(alone):
    """With a checksum that fits: refused by the owner, or before anything is sent."""
    it = Ticket.parse(alone.export("r"))
    # more than there is, and more rights: the owner looks, too
    with RemoteWindow.attach(forge(it, size=800, shape=[100], access=3)) as far:
        refuses(lambda: far.get(0, 8, 1), rmaext.BoundsError)
        assert far.get(0, 7, 1)[0] == 7
        far.put(np.ones(1), 0)
        refuses(far.flush, rmaext.AccessError)
        refuses(lambda: far.fetch_add(1.0, 0, 99), rmaext.RmaError)
    assert alone.local.tolist() == list(range(8))
    refuses(lambda: RemoteWindow.attach(forge(it, address="ab" * 16)), rmaext.RmaError)
    refuses(lambda: RemoteWindow.attach(forge(it, address="ab" * 15)), rmaext.RmaError)
    refuses(lambda: RemoteWindow.attach(forge(it, net="elsewhere")), rmaext.NotLocalError)
    none = replace(it.endpoint, provider="none")
    refuses(lambda: RemoteWindow.attach(forge(it, endpoint=none)), rmaext.NoProviderError)
    lost = forge(it, beacon="ab" * 16)
    refuses(lambda: RemoteWindow.attach(lost), rmaext.PeerLostError, "has left")
