# SPDX-License-Identifier: BSD-3-Clause
"""`python -m rmaext top`: its figures, its JSON, and a job that it follows on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import jsonschema
import numpy as np
import pyte
import pytest
from launch import ROOT, environment, mpirun
from support.records import Written

from rmaext._native._lib import lib
from rmaext._record import layout
from rmaext._runtime.steps import Step
from rmaext.inside.columns import COLUMNS, table
from rmaext.inside.sampling import Rank, Sample, Sampler

SCHEMA = json.loads((ROOT / "docs" / "guides" / "top.schema.json").read_text())
COMMAND = [sys.executable, "-m", "rmaext", "top"]


# -- figures, of a record that the tests write -----------------------------------


@pytest.fixture
def record():
    """Return a record of a process that does nothing, which a sampler finds."""
    made = Written()
    with subprocess.Popen(["sleep", "600"], pass_fds=[made.fd]) as process:
        made.pid = process.pid
        made.set(job=f"job {made.pid}".encode(), pid=made.pid)
        yield made
        process.kill()
    made.close()


@pytest.fixture
def sampler(record):
    made = Sampler([record.pid])
    yield made
    made.close()


def only(sample):
    """Return the one row."""
    (rank,) = sample.ranks
    return rank


def count(record, calls, size):
    """Set the counters of the record's one window, of two targets."""
    counts = np.zeros(2, layout.COUNTS)
    counts["plain"]["calls"][0, 0] = calls - 1
    counts["plain"]["bytes"][0, 0] = size
    counts["shared"]["calls"][1, 2, 3] = 1
    os.pwrite(record.fd, counts.tobytes(), record.places["counters"])


def test_rates_and_sums(record, sampler):
    window = {"id": 3, "state": 1, "comm": 5, "number": 7, "ranks": 2, "bytes": 800}
    counters = {"counts": record.places["counters"], "targets": 2}
    record.entry("windows", 0, **window, **counters)
    record.entry("windows", 1, **window | {"id": 4, "hidden": 1, "bytes": 10**6})
    record.entry("windows", 2, **window | {"id": 5, "state": 2, "bytes": 10**6})
    closed = np.zeros(1, layout.COUNTS)
    closed["shared"]["calls"][0, 1, 2] = 1000
    os.pwrite(record.fd, closed.tobytes(), layout.HEADER.fields["closed"][1])
    record.entry("threads", 0, tid=record.pid, waited=10**9)
    count(record, 50, 400)
    start = time.monotonic_ns()
    first = only(sampler.sample())
    assert (first.operations, first.bytes, first.window_bytes) == (1050, 400, 800)
    assert (first.operations_per_second, first.bytes_per_second, first.wait_share) == (0, 0, 0)
    assert (first.state, first.call, first.window) == ("runs", "", None)
    begin = time.monotonic_ns()
    count(record, 150, 8400)
    record.entry(
        *("threads", 0), tid=record.pid, waited=10**9, since=begin,
        kind=lib.RMAEXT_IN_MEETING, window=3, site=b"app.py:3", bytes=5,
        offset=Step("fence", 7, 2).word(),
    )  # fmt: skip
    time.sleep(0.2)
    second = only(sampler.sample())
    passed = (time.monotonic_ns() - start) / 1e9  # no less than between the two
    assert 100 / passed < second.operations_per_second < 100 / 0.2
    assert second.bytes_per_second == pytest.approx(80 * second.operations_per_second)
    assert 0.2 / passed < second.wait_share <= 1
    assert (second.state, second.call, second.window) == ("waits", "fence", 7)
    assert second.at == "app.py:3"
    assert second.container == ""
    record.entry("windows", 0, **window | {"kind": b"containers.Dict"}, **counters)
    third = only(sampler.sample())
    assert (third.window, third.container) == (7, "Dict")
    assert " 7 (Dict) " in table(Sample(1.0, [third]))
    words = {"kind": lib.RMAEXT_IN_CONTAINER, "window": 3, "text": b"Dict.pop, for readers"}
    record.entry("threads", 0, tid=record.pid, **words)
    assert only(sampler.sample()).call == "Dict.pop"
    text = table(Sample(1.0, [second], ["process 1 is refused"])).splitlines()
    assert text[1].split() == " ".join(column.title for column in COLUMNS).split()
    assert {"fence", "waits", "app.py:3", "800"} <= set(text[2].split())
    assert text[-1] == "process 1 is refused"


def test_counters_that_go_back(record, sampler):
    """As when a window is closed between two reads: no rate is negative."""
    record.entry("windows", 0, id=3, state=1, ranks=2, counts=record.places["counters"], targets=2)
    count(record, 50, 400)
    sampler.sample()
    count(record, 20, 100)
    found = only(sampler.sample())
    assert (found.operations_per_second, found.bytes_per_second) == (0, 0)


def test_a_record_that_breaks(record, sampler):
    """Its rank goes, and why is told."""
    assert only(sampler.sample())
    os.ftruncate(record.fd, 5000)
    sample = sampler.sample()
    assert not [one for one in sample.ranks if one.pid == record.pid]
    assert any(str(record.pid) in words and "truncated" in words for words in sample.refused)


def test_a_process_that_becomes_another_program():
    """As by os.execv: it has its number, its start and a new record."""
    first, second = Written(), Written()
    code = f"read x; exec {first.fd}>&-; echo; read x"
    files = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    fds = [first.fd, second.fd]
    with subprocess.Popen(["bash", "-c", code], pass_fds=fds, **files) as process:
        for record, name in (first, b"before"), (second, b"after"):
            record.set(pid=process.pid, job=f"job {process.pid}".encode(), program=name)
        sampler = Sampler([process.pid])
        assert only(sampler.sample()).program == "before"
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert only(sampler.sample()).program == "after"
        sampler.close()
        process.kill()
    first.close()
    second.close()


def test_no_process_and_another_ones():
    with subprocess.Popen(["sleep", "600"]) as process:
        for pid, words in (2**22 + 5, "there is no process"), (process.pid, "has no record"):
            sampler = Sampler([pid])
            assert words in sampler.sample().refused[0]
            sampler.close()
        process.kill()


def rank(number, **facts):
    """Return a row."""
    usual = {
        "job": "job", "rank": number, "size": 3, "host": "node", "pid": 100 + number,
        "program": "app.py", "state": "runs", "call": "", "window": None, "container": "",
        "at": "",
        "operations_per_second": 0.0, "bytes_per_second": 0.0, "wait_share": 0.0,
        "window_bytes": 0, "operations": 0, "bytes": 0,
    }  # fmt: skip
    return Rank(**usual | facts)


class Given:
    """A sampler that returns samples which are given."""

    def __init__(self, *samples):
        self.samples = list(samples)

    def sample(self):
        return self.samples.pop(0) if len(self.samples) > 1 else self.samples[0]


def test_sorting_and_keys():
    from textual.widgets import DataTable

    from rmaext.inside.top import Top

    rates = [5.0, 900.0, 20.0]
    sample = Sample(1.0, [rank(n, operations_per_second=rate) for n, rate in enumerate(rates)])

    async def use():
        app = Top(Given(sample), 60)
        async with app.run_test() as pilot:
            shown = app.query_one(DataTable)

            def ranks():
                titles = [str(column.label) for column in shown.ordered_columns]
                at = next(i for i, title in enumerate(titles) if title.startswith("rank"))
                return [int(str(shown.get_row_at(i)[at])) for i in range(shown.row_count)]

            assert ranks() == [0, 1, 2]
            for _ in range([column.title for column in COLUMNS].index("op/s")):
                await pilot.press("right")
            assert ranks() == [0, 2, 1]
            await pilot.press("r")
            assert ranks() == [1, 2, 0]
            assert [str(c.label) for c in shown.ordered_columns if "▼" in str(c.label)] == [
                "op/s ▼"
            ]
            await pilot.press("left", "r")
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(use()) == 0


def test_a_rank_with_markup_in_its_names():
    """What a program is called is no markup of the terminal's library."""
    from rmaext.inside.top import Top

    sample = Sample(1.0, [rank(0, program="[red]a[/b].py", at="[/x] f.py:3")], ["[/y]"])

    async def use():
        app = Top(Given(sample), 60)
        async with app.run_test() as pilot:
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(use()) == 0


def test_one_look_at_a_time(record):
    """A sampler is for one thread: a look that takes longer than the interval delays the next."""
    from rmaext.inside.top import Top

    class Slow(Sampler):
        looks, inside, overlaps = 0, 0, 0

        def sample(self):
            self.inside += 1
            self.overlaps += self.inside > 1
            time.sleep(0.1)
            try:
                return super().sample()
            finally:
                self.inside, self.looks = self.inside - 1, self.looks + 1

    sampler = Slow([record.pid])  # other jobs may be large

    async def use():
        app = Top(sampler, 0.02)
        async with app.run_test() as pilot:
            while sampler.looks < 4:
                await pilot.pause(0.02)
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(use()) == 0
    sampler.close()
    assert sampler.overlaps == 0


# -- once ------------------------------------------------------------------------

BODY = """
import os, sys, time
import numpy as np
from mpi4py import MPI
import rmaext
comm = MPI.COMM_WORLD
stop = sys.argv[1]
def phase():
    try:
        return open(stop).read()
    except FileNotFoundError:
        return ""
with rmaext.Window.allocate(comm, 1000) as win:
    other = (comm.rank + 1) % comm.size
    while not phase():
        win.put(np.ones(100), other)
        win.flush()
        time.sleep(0.01)
    while comm.rank == 0 and phase() != "end":
        time.sleep(0.01)
    win.fence()
"""


class Watched:
    """A job of two ranks that puts, then has rank 1 wait in a fence, then ends."""

    def __init__(self, folder):
        self.program, self.stop = folder / "watched.py", folder / "stop"
        self.program.write_text(BODY)
        self.done = []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        self.done.append(mpirun(2, self.program, str(self.stop), timeout=280))

    def say(self, word):
        self.stop.with_suffix(".new").write_text(word)
        self.stop.with_suffix(".new").rename(self.stop)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *args):
        self.say("end")
        self.thread.join()
        assert self.done[0].returncode == 0, self.done[0].stdout + self.done[0].stderr


def once(*arguments, status=0):
    done = subprocess.run(
        [*COMMAND, "--once", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done.stdout


def eventually(look, wanted, limit=100):
    """Return the first that is as wanted of what `look` returns again and again."""
    end = time.monotonic() + limit
    while not wanted(found := look()):
        assert time.monotonic() < end, found
    return found


@pytest.mark.timeout(300)  # it starts some ten processes, beside jobs of many ranks
def test_once(tmp_path):
    def ranks(*pids):  # of all jobs of this machine, unless there are PIDs
        found = json.loads(once("--json", "--interval", "0.3", *pids, status=None))
        jsonschema.validate(found, SCHEMA)
        return [one for one in found["ranks"] if "watched.py" in one["program"]]

    with Watched(tmp_path) as job:
        # it sleeps 10 ms each time; what looks at it may be held up
        found = eventually(
            ranks,
            lambda found: (
                len(found) == 2 and all(0 < r["operations_per_second"] < 110 for r in found)
            ),
        )
        assert [(one["rank"], one["size"]) for one in found] == [(0, 2), (1, 2)]
        for one in found:
            assert one["bytes_per_second"] == pytest.approx(800 * one["operations_per_second"])
            assert one["window_bytes"] == 8000
        pid = str(found[1]["pid"])
        text = once(pid, "--interval", "0.1").splitlines()
        assert len(text) == 4  # of one of its ranks' PIDs: the headline, the titles and both
        assert pid in text[3]
        job.say("wait")
        found = eventually(lambda: ranks(pid), lambda found: found[-1]["state"] == "waits")
        assert found[1]["call"] == "fence"
        assert found[1]["window"] == 1
        found = eventually(lambda: ranks(pid), lambda found: found[-1]["wait_share"] > 0.99)
        assert found[1]["at"] == f"{job.program}:{BODY.splitlines().index('    win.fence()') + 1}"
        assert found[0]["wait_share"] == 0
    assert ranks() == []


def once_status(*arguments):
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(), capture_output=True, text=True, timeout=100
    )


def test_what_the_command_refuses():
    done = once_status("--json")
    assert done.returncode == 2
    assert "add --once" in done.stderr
    done = once_status()
    assert done.returncode == 2
    assert "this is no terminal" in done.stderr
    for interval in ("abc", "0", "nan"):
        done = once_status("--once", "--interval", interval)
        assert done.returncode == 2
        assert f"'{interval}': must be from 0.05 to 3600 seconds" in done.stderr
    done = once_status("--once", str(2**22 + 5))
    assert done.returncode == 1
    assert "there is no process" in done.stdout


# -- on a terminal ---------------------------------------------------------------


class Terminal:
    """The command on a pseudo-terminal, and the screen that it draws."""

    def __init__(self, *arguments, size=(30, 160)):
        self.screen = pyte.Screen(size[1], size[0])
        self.stream = pyte.ByteStream(self.screen)
        env = environment({"TERM": "xterm-256color", "COLUMNS": None, "LINES": None})
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=env,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    def lines(self, seconds=0.2):
        """Return the screen after so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                try:
                    data = os.read(self.master, 1 << 16)
                except OSError:  # the other side is closed
                    break
                self.stream.feed(data)
        return [line.rstrip() for line in self.screen.display]

    def rows(self):
        """Return the words of the rows of the job that is watched."""
        pids = self.pids
        return [line.split() for line in self.lines() if any(f" {pid} " in line for pid in pids)]

    pids: tuple[str, ...] = ()

    def press(self, keys):
        os.write(self.master, keys.encode())


@pytest.mark.timeout(300)  # a job of many ranks may start beside it
def test_it_follows_a_job(tmp_path):
    """One that starts, works, waits, is stopped, goes on and ends."""
    with Terminal("--interval", "1") as terminal:
        eventually(terminal.lines, lambda lines: any("quit" in line for line in lines))
        with Watched(tmp_path) as job:
            eventually(terminal.lines, lambda lines: "watched.py" in lines[0])
            found = json.loads(once("--json", status=None))["ranks"]  # others may be broken
            terminal.pids = [str(r["pid"]) for r in found if "watched.py" in r["program"]]
            assert len(terminal.pids) == 2
            rows = eventually(terminal.rows, lambda rows: len(rows) == 2)
            assert all("Ki" in row for row in rows)  # bytes each second, and of the window
            job.say("wait")
            eventually(terminal.rows, lambda rows: any({"waits", "fence"} <= set(r) for r in rows))
            os.kill(int(terminal.pids[0]), signal.SIGSTOP)
            eventually(terminal.rows, lambda rows: any("stopped" in row for row in rows))
            os.kill(int(terminal.pids[0]), signal.SIGCONT)
            eventually(terminal.rows, lambda rows: not any("stopped" in row for row in rows))
            terminal.press("\x1b[C")
            eventually(terminal.lines, lambda lines: any("rank ▲" in line for line in lines))
            terminal.press("r")
            eventually(terminal.lines, lambda lines: any("rank ▼" in line for line in lines))
        eventually(terminal.lines, lambda lines: "watched.py" not in lines[0])
        assert terminal.rows() == []
        terminal.press("q")
        assert terminal.process.wait(30) == 0
