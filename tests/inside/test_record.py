# SPDX-License-Identifier: BSD-3-Clause
"""The reader of records: what is whole is read, and nothing else is trusted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import launch
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.records import TABLES, Written

import rmaext
from rmaext._native._lib import lib
from rmaext._record import layout
from rmaext._record import record as record_module
from rmaext._record.record import Record, RecordError, count_notifications, find
from rmaext._record.snapshot import Snapshot

ME = os.getpid()


@pytest.fixture
def write():
    made = []

    def make(**facts):
        made.append(Written(**facts))
        return made[-1]

    yield make
    for one in made:
        one.close()


def opened(written):
    """Open it without a search: this process may have a record of its own, too."""
    return Record(ME, f"/proc/self/fd/{written.fd}")


def snapshot(written):
    with opened(written) as record:
        return record.snapshot()


def test_what_was_written_is_read(write):
    one = write(rank=3, job=b"a job\0rest", next=7, traced=1)
    one.entry("threads", 5, tid=12, kind=lib.RMAEXT_IN_LOCK, window=2, target=1, site=b"app.py:41")
    one.entry("windows", 0, id=2, state=1, comm=99, number=4, ranks=4, self=3, dtype=b"<f8")
    one.entry("comms", 1, id=99, size=4, rank=3, here=2, step=5, steps=6, came=7, left=8)
    one.entry("locks", 9, window=2, target=3, tid=12, exclusive=1, since=5)
    found = snapshot(one)
    assert (found.rank, found.size, found.job, found.state) == (3, 4, "a job", "runs")
    assert (found.traced, found.next, found.program, found.process) == (True, 7, "app.py", "R")
    (thread,), (window,), (comm,), (lock,) = (
        *(found.threads, found.windows),
        *(found.comms, found.locks),
    )
    assert (thread.kind, thread.wait, thread.target, thread.site) == ("lock", True, 1, "app.py:41")
    assert (window.id, window.comm, window.number, window.open) == (2, 99, 4, True)
    assert (comm.id, comm.here, comm.step, comm.steps, comm.came, comm.left) == (99, 2, 5, 6, 7, 8)
    assert (lock.window, lock.target, lock.exclusive) == (2, 3, True)
    assert Snapshot.from_json(found.to_json()) == found


def test_an_entry_that_is_being_written_is_left_out(write):
    one = write()
    one.entry("threads", 0, tid=1, seq=2)
    one.entry("threads", 1, tid=2, seq=3)
    found = snapshot(one)
    assert [thread.tid for thread in found.threads] == [1]
    assert found.unclear == 1


def test_the_ring_of_events(write):
    ring = lib.RMAEXT_RECORD_EVENTS
    one = write(next=ring + 3)
    for number in (2, 3, ring - 1, ring, ring + 1):  # the last one is not written yet
        one.entry("events", number % ring, seq=2 * (number + 1), bytes=number)
    one.entry("events", 5, seq=2 * 6 + 1)
    with opened(one) as record:
        events, until = record.events()
        assert until == ring + 3
        assert events["bytes"].tolist() == [3, ring - 1, ring, ring + 1]
        assert record.events(ring)[0]["bytes"].tolist() == [ring, ring + 1]
        assert not len(record.events(ring + 100)[0])


def test_counters(write):
    one = write()
    one.entry("windows", 0, id=1, state=1, ranks=2, counts=one.places["counters"], targets=2)
    counts = np.zeros(2, layout.COUNTS)
    counts[1]["plain"][4]["calls"] = 5
    os.pwrite(one.fd, counts.tobytes(), one.places["counters"])
    with opened(one) as record:
        (window,) = record.snapshot().windows
        assert record.counts(window)["plain"]["calls"].tolist() == [[0] * 5, [0, 0, 0, 0, 5]]
        assert record.counts(window, 1)[0]["plain"][4]["calls"] == 5
        assert not record.counts(window, 2)["plain"]["calls"].any()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"magic": b"nonsense"}, "corrupt: it does not begin as one"),
        ({"magic": b""}, "corrupt: it does not begin as one"),
        ({"version": b"9.8.7"}, "runs rmaext 9.8.7, this is .*: use that one's python -m rmaext"),
        ({"version": b""}, "corrupt: it names no version"),
        ({"layout": 77}, "of layout 77, not"),
        ({"bytes": 1 << 60}, "truncated: it has"),
        ({"header_bytes": 8}, "corrupt: its header"),
        ({"rank": 4}, "corrupt: its header"),
        ({"rank": -1}, "corrupt: its header"),
        ({"size": 1 << 40}, "corrupt: its header"),
        ({"events": 1 << 40}, "corrupt: its table of events"),
        ({"events": (1 << 64) - 8}, "corrupt: its table of events"),
        ({"threads": 0}, "corrupt: its table of threads"),
        ({"comms": layout.HEADER.itemsize + 1}, "corrupt: its table of comms"),
        ({"state": 9}, "corrupt: it is in state 9"),
    ],
)
def test_a_header_that_is_wrong(write, facts, words):
    with pytest.raises(RecordError, match=words):
        snapshot(write(**facts))


@pytest.mark.parametrize(
    ("table", "facts", "words"),
    [
        ("threads", {"tid": 1, "kind": 200}, "thread 1 is in a call 200"),
        ("threads", {"tid": 1, "target": -9}, "thread 1"),
        ("windows", {"state": 1, "id": 7, "ranks": 0}, "window 7 has 0 ranks"),
        ("windows", {"state": 1, "id": 7, "ranks": 2, "self": 2}, "window 7"),
        ("windows", {"state": 1, "id": 7, "ranks": 2, "targets": 1 << 40}, "window 7"),
        ("windows", {"state": 1, "id": 7, "ranks": 2, "targets": 9, "counts": 8}, "counters"),
        ("windows", {"state": 1, "id": 7, "ranks": 2, "counts": 1 << 50}, "counters"),
        ("comms", {"id": 5, "size": 2, "rank": 2}, "rank 2 of 2"),
        ("comms", {"id": 5, "size": 2, "here": 3}, "rank 0 of 2"),
        ("comms", {"id": 5, "size": 1 << 22}, "rank 0 of 4194304"),
    ],
)
def test_an_entry_that_is_wrong(write, table, facts, words):
    one = write()
    one.entry(table, 1, **facts)
    with pytest.raises(RecordError, match=f"process {ME} is corrupt: .*{words}"):
        snapshot(one)


def test_a_record_that_becomes_shorter(write):
    one = write()
    with opened(one) as record:
        os.ftruncate(one.fd, layout.HEADER.itemsize + 100)
        with pytest.raises(RecordError, match="truncated: it ends at byte"):
            record.snapshot()
    with pytest.raises(RecordError, match="truncated: it has"):
        opened(one)
    os.ftruncate(one.fd, 10)
    with pytest.raises(RecordError, match="truncated: it ends at byte 10"):
        opened(one)


def test_one_that_becomes_shorter_while_it_is_looked_at(write):
    """Its counters cannot be read any more: that is told, and the rest stays."""
    one = write(pid=ME)
    counters = {"counts": one.places["counters"], "targets": 2}
    one.entry("windows", 0, id=2, state=1, comm=9, number=4, ranks=4, **counters)
    one.entry("threads", 0, tid=ME, kind=lib.RMAEXT_IN_NOTIFY, window=2)
    with opened(one) as record:
        taken = record.snapshot()
        assert count_notifications([taken], [record]) == []
        assert taken.notified == []
        os.ftruncate(one.fd, one.places["counters"])
        (words,) = count_notifications([taken], [record])
    assert "truncated: it ends at byte" in words


def test_a_text_is_of_one_line_and_no_command(write):
    one = write(program="app\x1b[2J\nrank 0 é".encode())
    assert snapshot(one).program == "app\ufffd[2J\ufffdrank 0 é"


@pytest.mark.parametrize("uid", [0, 1000])
def test_what_the_kernel_refuses(monkeypatch, uid):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    words = str(record_module._denied(1 << 22))  # which user's is not known
    assert "does not let its own user look into it" in words
    assert ("run this as root" in words) == (uid != 0)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_bytes_are_refused_or_read(write, data):
    """Whatever the header and the first entries are: RecordError, or a snapshot."""
    one, said = write(), str(ME)
    places = [0, *one.places.values()]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 400))
        os.pwrite(one.fd, data.draw(st.binary(min_size=1, max_size=16)), place)
    try:
        with opened(one) as record:
            found = record.snapshot()
            assert Snapshot.from_json(found.to_json()) == found
            for window in found.windows:
                record.counts(window, 0)
            record.events()
    except RecordError as error:
        said = str(error)
    assert str(ME) in said
    one.close()
    one.fd = os.memfd_create("closed by the fixture")


# -- finding -----------------------------------------------------------------------

HOLDER = """
import os, sys, time
sys.argv[0] = "-m"  # without MPI
from support.records import Written
fork, state = sys.argv[1] == "fork", {}
one = Written(rank=2)
if fork and os.fork():
    os.close(one.fd)
    print("ready", flush=True)
    os.wait()
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture
def holder():
    """Start a process that has a record; or whose forked child has it only."""
    started = []

    def start(how="own"):
        env = launch.environment({"PYTHONPATH": launch.PYTHONPATH})
        line = [sys.executable, "-c", HOLDER, how]
        process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def close(records):
    for record in records:
        record.close()


def test_records_are_found(holder):
    process = holder()
    records, refused = find()
    assert process.pid in {record.pid for record in records}
    assert not [words for words in refused if str(process.pid) in words]
    close(records)
    (record,), refused = find([process.pid])
    assert not refused
    process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 5
    while record.process() != "T" and time.monotonic() < end:
        time.sleep(0.01)
    assert record.snapshot().process == "T"
    process.kill()
    process.wait()
    assert record.snapshot().process == ""
    record.close()


def test_a_launcher_stands_for_its_descendants(holder):
    """So it finds the record of a test's child under the test's own pid, if that has none."""
    process = holder()
    code = f"""
        import subprocess, sys
        sys.argv[:1] = ["-m"]
        from rmaext._record.record import find
        child = subprocess.Popen([sys.executable, "-c", {HOLDER!r}, "own"], stdout=-1)
        child.stdout.readline()
        import os
        try:
            (record,), refused = find([os.getpid()])
            print(record.pid == child.pid, refused)
        finally:
            child.kill()
    """
    done = launch.run_python(code, env={"PYTHONPATH": launch.PYTHONPATH})
    assert done.stdout == "True []\n", done.stdout + done.stderr
    assert process.poll() is None


def test_more_notifications_than_there_is_room_for(run_python):
    """What has no entry is counted all the same; entries of closed windows are had again."""
    done = run_python(
        """
        import os
        import numpy as np
        from mpi4py import MPI
        import rmaext
        from rmaext._record.record import find

        def notify(win):
            for slot in range(256):
                for _ in range(2):
                    win.put_notify(np.ones(1), 0, 0, slot)

        def notes():
            (record,), _ = find([os.getpid()])
            with record:
                open_ = [it for it in record.snapshot().windows if it.open and not it.hidden]
                return [list(record.notified(window, [0])) for window in open_]

        wins = [rmaext.Window.allocate(MPI.COMM_SELF, 1) for _ in range(40)]
        for win in wins:
            notify(win)
        found = notes()
        assert [sum(note.calls for note in one) for one in found] == [512] * 40
        told = [note for one in found for note in one if note.slot >= 0]
        assert all(note.calls == 2 and note.site for note in told), told[:3]
        unknown = [note.calls for one in found for note in one if note.slot < 0]
        assert sum(unknown) >= 2 * (40 * 256 - 8192), unknown
        for win in wins:
            win.close()
        with rmaext.Window.allocate(MPI.COMM_SELF, 1) as win:
            notify(win)
            (one,) = notes()
            assert sorted(note.slot for note in one) == list(range(256))
        print("end")
        """
    )
    assert done.stdout == "end\n", done.stderr


def test_a_forked_child_has_no_record_of_its_own(holder):
    process = holder("fork")
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    records, refused = find([int(child)])
    assert not records
    assert f"the record of process {process.pid}, which it was forked from" in refused[0]
    records, _ = find()
    assert int(child) not in {record.pid for record in records}
    close(records)


def test_what_is_asked_for_and_not_there():
    with subprocess.Popen(["sleep", "100"]) as process:
        records, refused = find([process.pid, 1 << 22])
        process.kill()
    assert not records
    assert refused[0].startswith(f"process {process.pid} has no record: ")
    assert refused[1] == f"there is no process {1 << 22} on this node"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a namespace")
def test_a_process_of_another_namespace():
    """As in a container: it has another number there, by which it knows itself."""
    env = launch.environment({"PYTHONPATH": launch.PYTHONPATH})
    line = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", HOLDER, "own"]
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            (record,), refused = find([process.pid])
            assert not refused
            assert (record.own, record.snapshot().own) == (1, 1)
            assert record.pid not in (1, process.pid)
            record.close()
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user(holder):
    process = holder()
    code = f"""
        import os, sys
        sys.argv[:1] = ["-m"]
        from rmaext._record.record import find
        os.setgid(65534); os.setuid(65534)
        print(find([{process.pid}]))
        print(find())
    """
    done = launch.run_python(code)
    said = f"process {process.pid} belongs to user root: run this as that user"
    assert done.stdout == f"([], ['{said}'])\n([], [])\n", done.stdout + done.stderr


def test_the_names_and_the_version():
    assert layout.kinds("IN")[lib.RMAEXT_IN_FLUSH] == "flush"
    assert layout.text(b"ab\0cd") == "ab"
    assert layout.text(b"\xff") == "\ufffd"
    assert rmaext.__version__
    assert all(dtype.itemsize == 64 for name, (dtype, _) in TABLES.items() if name == "events")


def test_no_operation_that_a_signal_handler_has_ended(mpirun):
    """Also where the handler raises before the first line of Python that waits on."""
    code = """
        import os, signal, threading
        import numpy as np, rmaext
        from mpi4py import MPI
        from rmaext._record.record import find

        comm = MPI.COMM_WORLD
        win = rmaext.Window.allocate(comm, 1000)
        out = np.zeros(1000)
        win.fence()

        class Ring(Exception):
            pass

        def handler(*_):
            raise Ring

        def state():
            (record,), _ = find([os.getpid()])
            with record:
                mine = [t for t in record.snapshot().threads if t.tid == threading.get_native_id()]
            return mine[0].kind

        signal.signal(signal.SIGALRM, handler)
        calls = [
            lambda: win.get(1, out=out),
            lambda: win.fetch_add(1.0, 1),
            lambda: [win.put(out, 1), win.flush()],
            lambda: win.get(1, 0, 5),
        ]
        if comm.rank == 0:
            comm.recv(source=1)  # it has left the fence
            for i in range(6):
                for call in calls:
                    try:
                        # again: one that strikes in a callback of Python's own is ignored
                        signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.01 * i, 5)
                        call()
                    except Ring:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        assert state() == "", (i, state())
                    else:
                        raise AssertionError("not interrupted")
            comm.send(None, 1)
        else:
            comm.send(None, 0)
            comm.recv(source=0)  # nobody serves the network meanwhile
        win.fence()
        win.close()
    """
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_PROGRESS": "0"}
    done = mpirun(2, code, env=env)
    assert done.returncode == 0, done.stderr
