# SPDX-License-Identifier: BSD-3-Clause
"""What a job is told that updates memory of its own: once, when it was often, and what it took."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import launch
import numpy as np
import pytest
from support.hung import hanging, job, why
from support.jobs import clean
from support.records import Written

from rmaext._native._lib import lib
from rmaext._record import hints, layout
from rmaext._record.record import Record

PROGRAM = launch.ROOT / "tests" / "inside" / "programs" / "updating.py"
LINES = PROGRAM.read_text().splitlines()
MARKED = [i for i, text in enumerate(LINES, 1) if text.endswith("  # own")]
TIME = r"[\d,]+(\.\d)? us each"
FROM = {"RMAEXT_HINTS": "20", "RMAEXT_ROUTE": None}


def run(how, folder, size=2, env=FROM, **options):
    env = {"PYTHONPATH": launch.PYTHONPATH} | env
    return launch.mpirun(size, PROGRAM, how, str(folder), env=env, **options)


def hint(line, number=1, ranks="rank 1", calls=60, memory="Window.allocate or rmaext.zeros"):
    """Return what matches a hint about the window that is made at a line of the program."""
    return (
        f"{ranks}: {calls} updates of window {number} \\(updating.py:{line}\\) went by messages, "
        f"{TIME}, as the memory is your own: in that of {memory} they take some 0.1 us"
    )


@pytest.mark.parametrize("how", ["closed", "left"])
def test_one_rank_tells_it_at_the_end_of_the_window(how, tmp_path):
    """Ranks 1 and 2 have it to say; rank 0 has updated its own memory, by its CPU."""
    done = run(how, tmp_path, 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("end") == 3
    words = hint(MARKED[1])
    assert re.fullmatch(rf"rmaext: {words} \(RMAEXT_HINTS=0: no hints\)\n", done.stderr), (
        done.stderr
    )


def test_by_the_drop_in_it_names_the_call_of_mpi4py(tmp_path):
    done = run("drop-in", tmp_path, dropin=True)
    assert done.returncode == 0, done.stderr
    assert re.search(hint(MARKED[0], memory="MPI.Win.Allocate"), done.stderr), done.stderr


def test_who_does_what_is_right_is_told_nothing(tmp_path):
    """Memory that is mapped, a file, a dynamic window; and stderr is closed."""
    clean(run("silent", tmp_path), ends=2)


@pytest.mark.parametrize(
    ("how", "env"), [("nodes", FROM), ("closed", FROM | {"RMAEXT_HINTS": "0"}), ("closed", {})]
)
def test_no_hint_between_nodes_nor_if_none_is_wanted_nor_of_few(how, env, tmp_path):
    clean(run(how, tmp_path, env=env), ends=2)


def test_why_and_top_show_it_while_the_job_runs():
    env = {"RMAEXT_HINTS": "20", "RMAEXT_ROUTE": ""}
    with hanging("shown", 3, PROGRAM, **env) as pids:
        pid = str(pids[0])
        text, quiet = why(pid).stdout, why(pid, RMAEXT_HINTS="0").stdout
        listed = job(why("--json", pid).stdout, pids)["hints"]
        line = [sys.executable, "-m", "rmaext", "top", "--once", "--interval", "0.05", pid]
        table, facts = (
            subprocess.run(
                line + more, env=launch.environment({}), capture_output=True, text=True, timeout=60
            ).stdout
            for more in ([], ["--json"])
        )
    words = hint(MARKED[1], ranks="ranks 1, 2", calls=120)
    assert re.search(f"^hint: {words}$", text, re.M), text
    assert re.search(f"^hint: {words}$", table, re.M), table
    assert "verdict:" in quiet
    assert "hint:" not in quiet
    for found in listed, json.loads(facts)["hints"]:
        assert len(found) == 1
        assert re.fullmatch(words, found[0]), found


# -- what is counted, of a record that the tests write -------------------------------------

US = 1000


def slow(*events, calls=100, size=800, kind=lib.RMAEXT_DID_FETCH, least=100):
    """Return what is noted of a window with so many updates by message to target 0.

    `events`: begin and end in us, number of updates, target.
    """
    one = Written(pid=os.getpid(), next=len(events))
    counts = np.zeros(3, layout.COUNTS)
    counts["hint_from"][0] = least
    counts["shared"]["calls"][:2, kind - 1, lib.RMAEXT_MESSAGE] = calls
    counts["shared"]["bytes"][:2, kind - 1, lib.RMAEXT_MESSAGE] = size
    os.pwrite(one.fd, counts.tobytes(), one.places["counters"])
    facts = {"state": 1, "comm": 5, "number": 7, "ranks": 2, "site": b"app.py:3"}
    one.entry("windows", 0, id=3, counts=one.places["counters"], targets=3, **facts)
    for i, (begin, end, updates, target) in enumerate(events):
        one.entry(
            *("events", i), seq=2 * (i + 1), begin=begin * US, end=end * US, window=3, kind=kind,
            route=lib.RMAEXT_MESSAGE, more=updates - 1, target=target,
        )  # fmt: skip
    with Record(os.getpid(), f"/proc/self/fd/{one.fd}") as record:
        snapshot = record.snapshot()
        hints.look(snapshot, record)
    one.close()
    return snapshot


def test_updates_that_overlap_are_not_counted_twice():
    """Two of 10 us at the same time and one of 10 us later: 20 us for three."""
    (found,) = slow((0, 10, 1, 0), (0, 10, 1, 0), (50, 60, 1, 0), (60, 900, 1, 1)).slow
    assert found.ns == pytest.approx(20 * US / 3)
    assert (found.calls, found.bytes, found.site) == (100, 800, "app.py:3")


def test_updates_that_share_messages_are_fast_enough():
    update = {"kind": lib.RMAEXT_DID_UPDATE}
    assert slow((0, 30, 40, 0), **update).slow == []
    assert len(slow((0, 30, 20, 0), **update).slow) == 1


def test_it_takes_as_many_as_were_said():
    assert slow((0, 10, 1, 0), least=101).slow == []
    assert slow((0, 10, 1, 0), least=0).slow == []


def test_or_fewer_that_took_a_second():
    """But a hundredth of them at least: of a few, one may just have been held up."""
    long, short = (0, 11_000, 1, 0), (0, 9_000, 1, 0)  # of 100 such: 1.1 s, 0.9 s
    (found,) = slow(long, least=10_000).slow
    assert (found.calls, found.ns) == (100, 11_000 * US)
    assert slow(short, least=10_000).slow == []
    assert slow(long, least=10_001).slow == []


def test_nothing_is_said_that_is_not_known():
    """No event of these updates is left; and of long ones nobody knows what they would take."""
    (text,) = hints.texts([slow(size=100_000)])
    words = "rank 0: 100 updates of window 7 (app.py:3) went by messages, as the memory is your own"
    assert text == f"{words}: in that of Window.allocate or rmaext.zeros they need none"


def test_0_is_0_however_it_is_written(monkeypatch):
    """The job and what looks at it have the same rule."""
    seen = slow()
    monkeypatch.setenv("RMAEXT_HINTS", "1")
    assert hints.texts([seen])
    monkeypatch.setenv("RMAEXT_HINTS", "00")
    assert hints.texts([seen]) == []
