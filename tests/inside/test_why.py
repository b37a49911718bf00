# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext why, on jobs that hang: it names the rank, the call and the line."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

import launch
import pytest
from support.hung import hanging, job, line, why
from support.processes import stopped
from support.records import Written

sys.path.insert(0, str(launch.ROOT / "docs" / "extensions"))
from public import public

ROUTES = {"direct": {}, "fabric": {"RMAEXT_ROUTE": "fabric"}}
LIMIT = 2.0  # seconds of the whole command, if it has a core for itself
SPY = pytest.mark.skipif(
    not shutil.which("py-spy", path=os.path.dirname(sys.executable)),
    reason="py-spy is not installed",
)


def asked(pids):
    """Return the job as `why` sees it, which takes no more than two seconds of a core."""
    for _ in range(3):  # other programs run on this machine, too
        start, before = time.monotonic(), os.times()
        done = why("--json", str(pids[0]))
        took, after = time.monotonic() - start, os.times()
        used = sum(after[2:4]) - sum(before[2:4])  # by it, and by what it starts
        if used < LIMIT and took < 5 * LIMIT:
            break
    assert used < LIMIT
    assert took < 5 * LIMIT
    assert done.returncode == 0, done.stdout + done.stderr
    found = job(done.stdout, pids)
    assert found["size"] == 3
    return found


@pytest.fixture(params=ROUTES)
def route(request):
    return ROUTES[request.param]


@pytest.fixture(scope="module")
def hung():
    """Return a function: the pids of a job, of three ranks mostly, that hangs in this way.

    The route is one of the two: what is read, `why` and its verdict do not know it, and
    `test_each_call_that_waits` has all calls by both. Tests that follow each other share a job.
    """
    kept, last = contextlib.ExitStack(), []

    def job_that(how, size=3, **env):
        if last[:2] != [how, env]:
            last.clear()
            kept.close()
            last[:] = [how, env, kept.enter_context(hanging(how, size, **env))]
        return last[2]

    with kept:
        yield job_that


def rank(found, number):
    return next(one for one in found["ranks"] if one["rank"] == number)


def verdict(found, kind, waiting, culprits):
    """Require that the first finding is this one, and return its text."""
    first = found["verdict"][0]
    assert (first["kind"], first["waiting"], first["culprits"]) == (kind, waiting, culprits), found
    return first["text"]


def as_nobody(*args):
    """Run a command of rmaext as another user."""
    code = f"""
        import argparse, os, sys
        sys.argv[:1] = ["-m"]
        from rmaext.cli import why  # all of it: that user may not read the installation
        parser = argparse.ArgumentParser()
        why.add(parser.add_subparsers())
        options = parser.parse_args({args!r})
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        sys.exit(options.function(options))
    """
    return launch.run_python(code)


# -- the six -----------------------------------------------------------------------------


def test_a_cycle_of_locks(hung, route):
    found = asked(hung("locks", **route))
    text = verdict(found, "cycle", [0, 1, 2], [0, 1, 2])
    for r in range(3):
        other = (r + 1) % 3
        since = r"since \d+(\.\d)? s"
        words = rf"rank {r} waits for the lock of rank {other} of window 1 {since}, held by "
        assert re.search(rf"{words}rank {other} {since}", text)
        assert rank(found, r)["at"] == line("second lock")


@SPY
def test_a_rank_that_leaves_a_loop_early(hung):
    found = asked(hung("early", **ROUTES["direct"]))
    text = verdict(found, "missing", [0, 2], [1])
    assert "all other ranks wait in fence #8 of window 1 since" in text
    assert f"for rank 1, which is in user code at {line('leaves early')} (early)" in text
    assert rank(found, 0)["at"] == rank(found, 2)["at"] == line("loop's fence")


def test_a_stopped_rank(hung):
    found = asked(hung("stops", **ROUTES["direct"]))
    text = verdict(found, "missing", [0, 1], [2])
    pid = rank(found, 2)["pid"]
    assert f"for rank 2, which is stopped by a signal (kill -CONT {pid} lets it go on)" in text
    assert rank(found, 0)["at"] == line("all's fence")
    assert rank(found, 2)["process"] == "T"


def test_for_people(hung):
    """One line a rank, then the verdict; the launcher's PID stands for the job."""
    pids = hung("stops", **ROUTES["direct"])
    with open(f"/proc/{pids[0]}/stat") as file:
        parent = file.read().rpartition(")")[2].split()[1]
    one, same = why(str(pids[2])).stdout, why(parent).stdout
    lines = one.splitlines()
    assert re.match(r"\S+hung.py stops \S+: 3 ranks, on \S+$", lines[0])
    assert re.match(rf"  rank 0 +pid {pids[0]} +waits in fence #3 of window 1 since ", lines[1])
    assert re.match(rf"  rank 2 +pid {pids[2]} +is stopped by a signal", lines[3])
    assert lines[4] == "verdict:"
    assert "rank 2, which is stopped" in lines[5]
    assert [text.split(" since ")[0] for text in same.splitlines()[1:4]] == [
        text.split(" since ")[0] for text in lines[1:4]
    ]


def test_several_nodes(hung):
    """Each process of the launcher sees this node: what they say is one job, told once."""
    pids = hung("stops", **ROUTES["direct"])
    done = why("--json", "--launcher", shlex.join(launch.mpi_command(2)))
    found = job(done.stdout, pids)  # it may meet jobs of other tests, too
    assert sorted(one["pid"] for one in found["ranks"]) == sorted(pids.values())
    assert "is stopped" in verdict(found, "missing", [0, 1], [2])


@SPY
def test_an_endless_loop_of_user_code(hung):
    found = asked(hung("endless", **ROUTES["fabric"]))
    text = verdict(found, "missing", [0, 2], [1])
    lines = [line("loop").rpartition(":")[2], line("endless").rpartition(":")[2]]
    assert re.search(rf"for rank 1, which is in user code at \S+hung.py:({'|'.join(lines)}) ", text)
    assert rank(found, 0)["at"] == line("others' fence")


def test_a_rank_that_is_stopped_in_a_wait(hung):
    """From outside, in the midst of it: who has come is not to blame."""
    pids = hung("endless", **ROUTES["fabric"])
    with stopped(pids[0]):
        text = verdict(asked({0: pids[1]}), "missing", [2], [1])
    assert text.startswith("rank 2 waits in fence #3")


def test_without_py_spy(hung):
    """The verdict is the same but for the line, and it says what to install."""
    code = """
        import sys
        sys.argv = ["-m", "why", sys.argv[1]]
        from rmaext.inside import lines
        lines.spy = lambda: None
        from rmaext.__main__ import main
        sys.exit(main())
    """
    done = launch.run_python(code, str(hung("endless", **ROUTES["fabric"])[0]))
    assert (
        "for rank 1, which is in no call of rmaext: it computes, or waits elsewhere" in done.stdout
    )
    install = f"{sys.executable} -m pip install py-spy"
    words = f"py-spy is not installed, which tells the lines of user code: {install}"
    assert done.stdout.splitlines()[-1] == words


def test_different_collectives(hung):
    found = asked(hung("mismatch", **ROUTES["fabric"]))
    text = verdict(found, "cycle", [0, 1, 2], [1])
    assert "Rank 1 called another collective than the others" in text
    assert len(set(re.findall(r"\(communicator (\w{4})\)", text))) == 2
    assert [rank(found, r)["at"] for r in range(3)] == [
        line(f"{name} fence") for name in ("right", "another", "right")
    ]


@pytest.mark.parametrize("how", ["notify", "slots"])
def test_a_notification_that_is_never_sent(hung, route, how):
    found = asked(hung(how, **route))
    text = verdict(found, "nobody", [1], [1])
    assert "rank 1 waits in wait_notify, slot 3, count 1, of window 1 since" in text
    assert ": no rank has notified it; " in text
    other = rf"; rank 0 has notified slot 2 instead, once, \d\S* s ago, at {line('wrong slot')}; "
    assert bool(re.search(other, text)) == (how == "slots"), text
    assert "; no rank is left that could. Ranks 0, 2 wait in fence #3 of window 1" in text
    assert rank(found, 1)["at"] == line("notify")


def test_a_notification_that_one_rank_has_not_sent(hung, route):
    found = asked(hung("rounds", **route))
    text = verdict(found, "nobody", [1], [1])
    at = line("right slot")
    assert re.search(rf"rank 0 \D*it,? 2 times, the last one \d\S* s ago, first at {at}", text)
    assert re.search(rf"rank 2 \D*it,? once, \d\S* s ago, at {at}", text)
    assert text.count("was the last to notify it") == 1
    assert "never" not in text
    assert "instead" not in text
    assert rank(found, 1)["at"] == line("third")


# -- others ------------------------------------------------------------------------------


def test_a_first_window_that_a_rank_does_not_make(hung):
    """It has no record, as it has made no other."""
    pids = hung("first")
    found = asked(pids)
    text = verdict(found, "missing", [0, 2], [1])
    words = "all other ranks wait in creation of the communicator's first window since "
    assert text.startswith(words)
    assert "for rank 1, which has no record here: it has made no window yet," in text
    assert [rank(found, r)["at"] for r in (0, 2)] == [line("first window")] * 2
    said = why(str(pids[0])).stdout
    assert "\n  rank 1    has no record here: it has made no window yet," in said


@SPY
def test_the_first_window_of_another_communicator(hung):
    found = asked(hung("again", **ROUTES["fabric"]))
    text = verdict(found, "missing", [0, 2], [1])
    assert "wait in creation of the communicator's first window since " in text
    assert text.endswith(f"for rank 1, which is in user code at {line('no window')} (first)")
    assert [rank(found, r)["at"] for r in (0, 2)] == [line("first window")] * 2


def test_a_rank_that_keeps_no_record(hung):
    """It lives: nobody says that it has ended."""
    text = verdict(asked(hung("unrecorded")), "missing", [0, 2], [1])
    words = "for rank 1, which has no record here: it has ended, keeps none (RMAEXT_RECORD=0), or"
    assert words in text


def test_a_word_that_nobody_writes(hung):
    found = asked(hung("until", **ROUTES["fabric"]))
    text = verdict(found, "nobody", [1], [1])
    assert "wait_until of window 1" in text
    assert rank(found, 1)["at"] == line("until")


@SPY
def test_a_lock_that_is_never_given_back(hung):
    found = asked(hung("holder", **ROUTES["direct"]))
    text = verdict(found, "missing", [0, 2], [1])
    assert "all other ranks wait for the lock of rank 0 of window 1" in text
    assert "held by rank 1 since" in text
    assert line("holds") in text
    assert rank(found, 0)["at"] == line("wanted")


def test_a_target_that_is_stopped(hung):
    """Over the network a put needs the target's progress thread; in memory it does not."""
    text = verdict(asked(hung("flush", **ROUTES["fabric"])), "missing", [0], [1])
    assert "rank 1 is stopped" in text
    text = verdict(asked(hung("flush", **ROUTES["direct"])), "fine", [], [])
    assert "rank 1 is stopped" in text


def test_a_rank_that_has_ended(hung):
    found = asked(hung("gone"))
    assert "rank 1 has no record here: it has ended," in verdict(found, "fine", [], [])


def test_a_thread_that_is_not_the_main_one(hung):
    pids = hung("thread", **ROUTES["fabric"])
    found = asked(pids)
    text = verdict(found, "missing", [1], [0])
    assert "rank 1 waits for the lock of rank 1 of window 1" in text
    assert "held by rank 0 since" in text
    assert "the thread that holds it" not in text  # that has ended
    said = why(str(pids[0])).stdout
    waits = rf"\n +thread \d+ \(.*\) waits for the lock of rank 1 .*, at {line('in a thread')}\n"
    assert re.search(waits, said), said


def while_fine(look):
    """Return the job that `look` returns, at a moment when no rank is held up for a second."""
    for _ in range(5):
        found = look()
        if found["verdict"][0]["kind"] == "fine":
            break
    return found


def test_a_job_that_is_fine(hung):
    pids = hung("fine", **ROUTES["direct"])
    found = while_fine(lambda: asked(pids))
    assert verdict(found, "fine", [], []) == "no rank waits longer than 1 s"


def test_several_jobs_at_once(hung):
    pids = hung("fine", **ROUTES["direct"])
    with hanging("stops", 1) as others:
        answers = []

        def first():
            answers.append(why("--json").stdout)
            return job(answers[-1], pids)

        one = while_fine(first)
        second = job(answers[-1], others)
    assert one["size"] == 3
    assert one["verdict"][0]["kind"] == "fine"
    assert one["job"] != second["job"]
    assert {one["pid"] for one in second["ranks"]} == set(others.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_job_of_another_user(hung):
    pid = hung("fine", **ROUTES["direct"])[0]
    done = as_nobody("why", str(pid))
    assert done.returncode == 1
    assert done.stdout == f"process {pid} belongs to user root: run this as that user\n"


@SPY
def test_the_end_of_a_program(hung):
    """Ranks that have come to it serve their windows until all have."""
    found = asked(hung("ends", **ROUTES["fabric"]))
    text = verdict(found, "missing", [0, 2], [1])
    assert text.startswith("all other ranks wait at the end of the program since")
    assert line("goes on") in text


# -- several jobs, and none ----------------------------------------------------------------


def test_a_launcher_that_fails():
    done = why("--launcher", "false")
    assert done.returncode == 1
    assert "false " in done.stdout
    assert "status 1" in done.stdout
    assert "/nonexistent" in why("--launcher", "/nonexistent").stdout
    done = why("--launcher", "mpiexec", "12")
    assert done.returncode == 2
    assert "leave out the PIDs" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a user who has no processes")
def test_nothing_to_see():
    done = as_nobody("why")
    assert done.returncode == 1
    assert done.stdout == "no process of this user on this node uses windows of rmaext\n"


def test_a_process_that_does_not_exist():
    done = why(str(1 << 22))
    assert done.returncode == 1
    assert done.stdout == f"there is no process {1 << 22} on this node\n"


BREAK = {
    "nonsense": lambda one: os.pwrite(one.fd, bytes(range(256)) * 100, 0),
    "version": lambda one: one.set(version=b"77.0"),
    "truncated": lambda one: os.ftruncate(one.fd, 5000),
    "entry": lambda one: one.entry("threads", 0, tid=1, kind=99),
}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nonsense", "the record of process {} is corrupt: it does not begin as one"),
        ("version", "process {} runs rmaext 77.0, this is .*: use that one's python -m rmaext"),
        ("truncated", "the record of process {} is truncated: it has 5000 of"),
        ("entry", "the record of process {} is corrupt: thread 1 is in a call 99"),
    ],
)
def test_a_record_that_is_broken(how, words):
    """It is told, whether it was asked for or met on the way; what else there is is shown."""
    one = Written()
    with subprocess.Popen(["sleep", "100"], pass_fds=[one.fd]) as process:
        try:
            one.set(pid=process.pid)
            BREAK[how](one)
            asked_for, met = why(str(process.pid)), why()
        finally:
            process.kill()
            one.close()
    words = words.format(process.pid)
    assert re.match(words, asked_for.stdout), asked_for.stdout
    assert re.search(f"^{words}", met.stdout, re.MULTILINE)
    assert asked_for.returncode == met.returncode == 1
    assert not asked_for.stderr


def test_mpi_is_not_initialised(run_python):
    code = """
        import sys
        sys.argv[:1] = ["-m"]
        from rmaext.inside import why
        why.look()
        assert "mpi4py.MPI" not in sys.modules
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


DICT = ["get", "get_many", "set", "set_many", "setdefault", "pop", "local_items"]
DICT += ["add", "add_many"]


def test_each_wait_of_a_container(hung):
    """One wait each, in the container's words, with the rank that it is for if that is one."""
    found = asked(hung("containers"))
    texts = [finding["text"] for finding in found["verdict"]]
    for call in [f"Dict.{name}, for [^:]*" for name in DICT]:
        words = rf"rank 0 waits in {call} since \d.* s: rank 1 is in "
        assert sum(bool(re.match(words, text)) for text in texts) == 1, (call, texts)
    assert any(
        re.match(r"rank 0 waits in Published.read since \d.* s: rank 1 is", t) for t in texts
    )
    words = r"rank 2 waits in TaskQueue loop since \d.* s: any other rank may end that"
    assert any(re.match(words, text) for text in texts), texts
    assert rank(found, 2)["at"] == line("queue's loop")


# What each call of `calls` in hung.py waits in; those of the second group by network only, those
# of the third by memory. A container's windows are told by its name, and where it was made.
CREATES, FENCES = "in creation of window 2", r"in fence #\d+ of window \d"


def of(name):
    return rf" \({name}, hung.py:\d+\)"


CONTAINERS = ["Array", "Channel", "Dict", "MultiDict", "Published", "Store", "TaskQueue", "counter"]
MADE = ["Window", "JoinedWindow", "allocate", "NodeArray", "NodeArray.assemble", *CONTAINERS]
CALLS = dict.fromkeys(MADE, CREATES)
CALLS |= dict.fromkeys(["fence", "View.fence"], "in fence #2 of window 1")
for calls in (
    *("Array.copy_to", "Array.fence", "Array.max", "Array.mean", "Array.min", "Array.save"),
    "Array.sum",
    *("Dict.clear", "Dict.items", "Dict.len"),
):
    CALLS[calls] = FENCES + of(calls.partition(".")[0])
for name in CONTAINERS:
    CALLS[f"{name}.close"] = rf"in close #\d+ of window \d{of(name)}"
for name in ("Array.like", "Array.load", "Array.redistribute"):
    CALLS[name] = r"in creation of window \d"
CALLS |= {
    "lock": "for the lock of rank 1 of window 1",
    "lock_all": "for the shared lock of rank 1 of window 1",
    "wait_notify": "in wait_notify, slot 1, count 1, of window 1",
    "wait_any": "in wait_any, slots 1, 2, of window 1",
    "wait_some": "in wait_some, slots 1, 2, of window 1",
    "wait_all": "in wait_all, slots 1, 2, of window 1",
    "wait_until": "in wait_until of window 1",
    "start": "in an epoch of window 1",
    "wait": "in an epoch of window 1",
    "close": "in close #2 of window 1",
    "dynamic": "in creation of dynamic window 2",
    "Channel.send": "in Channel.send",
    "Channel.receive": "in Channel.receive",
}
GHOSTS = f"(in wait_notify, slot 0, count 1, of|for requests to rank 1 of) window 4{of('Array')}"
CALLS |= dict.fromkeys(["Array.exchange", "Array.exchanging"], GHOSTS)
BY_MEMORY = {"shared": "in creation of shared window 2"}
BY_NETWORK = {
    "Store.get": f"for requests to rank 1 of window 3{of('Store')}",
    "Prefetch.result": f"for requests to rank 1 of window 3{of('Store')}",
    "Array.index": f"for requests to rank 1 of window 3{of('Array')}",
    "Array.points": f"in a get from rank 1 of window 3{of('Array')}",
}
for calls, words in {
    "flush flush_all flush_local flush_local_all unlock unlock_all complete": "in a flush of",
    "get get_many get_notify index prepare_get Buffer.get FieldView.get": "in a get from",
    "put_many": "in a put to",
    "get_ranges put_ranges": "for requests to",
    "Request.wait Request.result Request.waitall Request.waitany": "for requests to",
    "load store fetch_add fetch_op compare_and_swap get_accumulate": "in an update of",
    "accumulate_many fetch_add_many fetch_op_many compare_and_swap_many": "in an update of",
    "ElementUpdates.add ElementUpdates.update Buffer.fetch_add": "in an update of",
}.items():
    BY_NETWORK |= dict.fromkeys(calls.split(), f"{words} rank 1 of window 1")
for name in ("Array.add", "Array.add_points", "Array.fetch_add"):
    BY_NETWORK[name] = f"in an update of rank 1 of window 3{of('Array')}"
# What has "blocking" in its docstring, and is not told there
ELSEWHERE = {
    **dict.fromkeys(["Window.connect", "Window.export"], "what they make is there already"),
    **dict.fromkeys(["RemoteWindow.attach", "RemoteWindow.close"], "of another job"),
    "View.close": "waits for nobody",
    "containers.Array.flush": "waits in Window.flush alone",
    **dict.fromkeys(
        ["containers.MultiDict.append_many", "containers.MultiDict.get_many"],
        "wait in Dict.add_many, set_many and get_many",
    ),
}


def test_the_table_has_each_call_that_blocks():
    told = [*CALLS, *BY_NETWORK, *BY_MEMORY, *(f"Dict.{name}" for name in DICT)]
    named = {f"{prefix}{name}" for name in told for prefix in ("", "Window.", "containers.")}
    blocking = re.compile(r"\b(Local|Collective)[,;] blocking\b")
    missing = [
        name
        for name, value in public()
        if blocking.search(inspect.getdoc(getattr(value, "__func__", value)) or "")
        and name not in named | set(ELSEWHERE)
    ]
    assert not missing


@pytest.mark.parametrize("route", ROUTES)
def test_each_call_that_waits(hung, route):
    """In its words, with its line, and the rank that it waits for."""
    calls = CALLS | (BY_NETWORK if route == "fabric" else BY_MEMORY)
    waits = {
        call: rf"\n +thread .* waits {words} .*since [\d.]+ s, at {line(f'in {call}')}\n"
        for call, words in calls.items()
    }

    pids = hung("calls", size=2, **ROUTES[route])
    for _ in range(5):  # so many threads may be late
        said = why(str(pids[0])).stdout
        missing = [call for call, wait in waits.items() if not re.search(wait, said)]
        if not missing:
            break
    assert not missing, said
    findings = said.partition("verdict:\n")[2].partition("\n\n")[0].splitlines()
    for finding in findings:
        assert re.search(r"[Rr]ank 1(, which)? is stopped by a signal", finding), said
    assert len(findings) == len(calls), said
