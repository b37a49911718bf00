# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts, from what processes have said: no process is needed."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmaext._record.job import Job, jobs
from rmaext._record.snapshot import Comm, Lock, Notified, Snapshot, Thread, Window
from rmaext._record.verdict import span, verdict
from rmaext._runtime.steps import Step

NOW = 100_000_000_000
SINCE = NOW - 12_000_000_000
COMM = 0xABCD
FENCE = Step("fence", 2, 17).word()


def member(rank, size, waits=None, *, steps=0, here=None, comm=COMM, **facts):
    """A rank whose main thread waits as said, in window 2 of a communicator of all ranks."""
    thread = Thread(tid=1, since=SINCE, window=7, target=-2)
    for name, value in (waits or {}).items():
        setattr(thread, name, value)
    thread.wait = bool(thread.kind)
    usual = {
        "pid": 1000 + rank,
        "job": "job",
        "host": "node",
        "own": 1,
        "now": NOW,
        "threads": [thread],
        "windows": [Window(7, comm, 2, ranks=size, self=rank)],
        "comms": [Comm(comm, size, rank, here=here or size, step=FENCE, steps=steps)],
    }
    return Snapshot(rank=rank, size=size, **usual | facts)


def fence(comm=COMM, word=FENCE):
    return {"kind": "meeting", "offset": word, "bytes": comm}


def lock(target, exclusive=1):
    return {"kind": "lock", "target": target, "offset": exclusive}


def holds(target, **facts):
    return [Lock(7, target, tid=1, since=SINCE, **facts)]


def found(*members):
    """Return the verdict on one job, and that it survives the way between nodes."""
    again = [Snapshot.from_json(json.loads(json.dumps(one.to_json()))) for one in members]
    assert again == list(members)
    (job,) = jobs(members)
    return verdict(job)


def one(*members):
    (finding,) = found(*members)
    return finding


def test_nobody_waits():
    assert one(member(0, 2), member(1, 2)).text == "no rank waits longer than 1 s"
    short = member(0, 2, fence() | {"since": NOW - 900_000_000})
    assert one(short, member(1, 2)).kind == "fine"
    ended = one(member(0, 2), member(1, 2, state="leaves", raised="ValueError: no data, app.py:3"))
    assert "; rank 1 has ended by ValueError: no data, app.py:3. Calls of MPI" in ended.text
    stopped = one(member(0, 2), member(1, 2, process="T"))
    assert "rank 1 is stopped by a signal (kill -CONT 1001 lets it go on)" in stopped.text


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"process": "T"}, "is stopped by a signal"),
        ({"process": "t"}, "is stopped by a debugger"),
        ({"process": ""}, "has ended"),
        ({"process": "D"}, "is in a system call that cannot be interrupted"),
        ({"state": "leaves"}, "is at the end of its program"),
        ({"line": "app.py:9 (step)"}, "is in user code at app.py:9 (step)"),
        ({}, "is in no call of rmaext"),
    ],
)
def test_who_misses_a_fence(facts, words):
    finding = one(member(0, 3, fence()), member(1, 3, **facts), member(2, 3, fence()))
    assert finding.kind == "missing"
    assert (finding.waiting, finding.culprits) == ([0, 2], [1])
    start = f"all other ranks wait in fence #17 of window 2 since 12 s for rank 1, which {words}"
    assert finding.text.startswith(start)


def test_a_stopped_rank_that_has_come_is_not_to_blame():
    finding = one(
        member(0, 3, fence()), member(1, 3, fence(), process="T"), member(2, 3, line="app.py:1")
    )
    assert finding.culprits == [2]
    assert finding.waiting == [0]


def test_who_has_left_already_is_not_to_blame():
    """Rank 1 is one meeting ahead, and computes."""
    finding = one(member(0, 3, fence()), member(1, 3, steps=1), member(2, 3))
    assert finding.culprits == [2]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step("close", 3, 4), "in close #4 of window 3"),
        (Step("creation of a shared window", 5, 9), "in creation of shared window 5"),
        (Step("creation of the communicator's first window", 0, 0), "in creation of the comm"),
        (Step("end of the program", 0, 7), "at the end of the program since"),
    ],
)
def test_collective_calls_in_words(step, words):
    finding = one(member(0, 2, fence(word=step.word())), member(1, 2))
    assert finding.text.startswith(f"rank 0 waits {words}")


def test_all_have_come():
    finding = one(member(0, 2, fence()), member(1, 2, fence()))
    assert finding.kind == "unclear"
    assert "all ranks have come" in finding.text


def test_many_that_miss_it():
    members = [member(rank, 40) for rank in range(1, 40)]
    finding = one(member(0, 40, fence()), *members)
    assert finding.culprits == list(range(1, 40))
    assert "for ranks 1, 2, 3" in finding.text
    assert "which are in no call of rmaext: they compute, or wait elsewhere" in finding.text
    assert len(finding.text) < 300


def test_a_rank_that_has_ended():
    finding = one(member(0, 3, fence()), member(2, 3, fence()))
    assert finding.culprits == [1]
    assert finding.text.endswith(
        "for rank 1, which has no record here: it has ended, keeps none (RMAEXT_RECORD=0), or its "
        "record could not be read (`python -m rmaext why PID`, of that process, says why)"
    )
    two = one(member(0, 3, fence()))
    assert "for ranks 1, 2, which have no record here: they have ended, keep none (" in two.text
    gone = one(member(0, 2, fence()), member(1, 2, process=""))
    assert gone.text.endswith("for rank 1, which has ended: its process is gone")


def test_a_rank_on_another_node():
    finding = one(member(0, 2, fence(), here=1))
    assert "for rank 1, which is on another node, or has no record here: look " in finding.text


def test_two_nodes():
    """What was said on one and the other is one job, whatever each launcher calls it."""
    there = member(1, 2, here=1, host="other", job="another", process="T")
    finding = one(member(0, 2, fence(), here=1), there)
    assert finding.culprits == [1]
    assert "is stopped" in finding.text


def test_jobs_are_kept_apart():
    members = [
        *(member(0, 2, fence()), member(1, 2)),
        *(member(0, 1, comm=5, job="b", pid=1), member(0, 1, comm=6, job="c", pid=2)),
    ]
    assert [len(job.members) for job in jobs(members)] == [2, 1, 1]


def test_two_locks():
    finding = one(
        member(0, 3, lock(1), locks=holds(0)),
        member(1, 3, lock(0), locks=holds(1)),
        member(2, 3),
    )
    assert finding.kind == "cycle"
    assert finding.culprits == [0, 1]
    assert finding.text.endswith(
        "rank 0 waits for the lock of rank 1 of window 2 since 12 s, held by rank 1 since 12 s; "
        "rank 1 waits for the lock of rank 0 of window 2 since 12 s, held by rank 0 since 12 s"
    )


def test_a_lock_against_a_fence():
    finding = one(
        member(0, 3, lock(1)), member(1, 3, lock(1)), member(2, 3, fence(), locks=holds(1))
    )
    assert finding.kind == "cycle"
    assert finding.culprits == [0, 1, 2]
    assert "ranks 0, 1 wait for the lock of rank 1" in finding.text
    assert "to which ranks 0, 1 have not come" in finding.text


def test_a_lock_whose_holder_computes():
    finding = one(
        member(0, 3, lock(0)), member(1, 3, line="app.py:5", locks=holds(0)), member(2, 3, lock(0))
    )
    assert finding.kind == "missing"
    assert finding.culprits == [1]
    assert "held by rank 1 since 12 s; rank 1 is in user code at app.py:5" in finding.text


def test_a_lock_that_several_share():
    finding = one(
        member(0, 3, lock(0)),
        member(1, 3, locks=holds(0, exclusive=False)),
        member(2, 3, process="T", locks=holds(0, exclusive=False)),
    )
    assert finding.culprits == [1, 2]
    assert "held by ranks 1, 2" in finding.text


def test_a_lock_that_nobody_holds():
    assert "no process here holds it" in one(member(0, 2, lock(1)), member(1, 2)).text
    gone = one(member(0, 3, lock(1)), member(1, 3))
    assert gone.culprits == [2]
    stopped = one(member(0, 2, lock(1)), member(1, 2, process="T"))
    assert stopped.culprits == [1]


def test_a_lock_of_another_window_is_not_it():
    other = Window(8, COMM, 3, ranks=2, self=1)
    windows = [Window(7, COMM, 2, ranks=2, self=1), other]
    held = [Lock(8, 1, tid=1, since=SINCE)]
    finding = one(member(0, 2, lock(1)), member(1, 2, windows=windows, locks=held))
    assert "no process here holds it" in finding.text


def test_the_thread_that_holds_a_lock_counts():
    """It waits itself, in a cycle, while the main thread computes."""
    two = [Thread(tid=1), Thread(2, "lock", True, 7, 0, SINCE, 1)]
    held = [Lock(7, 1, tid=2, since=SINCE)]
    finding = one(member(0, 2, lock(1), locks=holds(0)), member(1, 2, threads=two, locks=held))
    assert finding.kind == "cycle"


def test_two_threads_of_a_rank():
    """The main thread waits for a lock that another thread has, which computes: no cycle."""
    waits, other = Thread(1, "lock", True, 7, 1, SINCE, 1), Thread(tid=2)
    held = [Lock(7, 1, tid=2, since=SINCE)]
    finding = one(member(0, 2, threads=[waits, other], locks=held), member(1, 2))
    assert (finding.kind, finding.culprits) == ("missing", [0])
    assert "held by rank 0 since 12 s" in finding.text
    assert finding.text.endswith("is in no call of rmaext in the thread that holds it, 2")
    other.ended = True  # with the lock, which nobody will give back: the rank waits for itself
    finding = one(member(0, 2, threads=[waits, other], locks=held), member(1, 2))
    assert (finding.kind, finding.culprits) == ("cycle", [0])


def test_different_collectives():
    """Each of another communicator: rmaext cannot tell the ranks that they differ."""

    def rank(r, comm, size=3):
        comms = [Comm(c, size, r, here=size) for c in (COMM, 5)]
        windows = [Window(7 + i, c, 2, ranks=size, self=r) for i, c in enumerate((COMM, 5))]
        return member(r, size, fence(comm), comms=comms, windows=windows)

    finding = one(rank(0, COMM), rank(1, 5), rank(2, COMM))
    assert finding.kind == "cycle"
    assert finding.culprits == [1]
    assert "fence #17 of window 2 (communicator abcd)" in finding.text
    assert "fence #17 of window 2 (communicator 0005)" in finding.text
    assert finding.text.endswith(". Rank 1 called another collective than the others")
    pair = one(rank(0, COMM, 2), rank(1, 5, 2))
    assert pair.culprits == [0, 1]
    assert pair.text.endswith(". They called different collectives")


def notify(**facts):
    return {"kind": "notify", "offset": 3, "bytes": 2} | facts


def test_a_notification_that_nobody_sends():
    finding, turn = found(member(0, 3, fence()), member(1, 3, notify()), member(2, 3, fence()))
    assert (finding.kind, turn.kind) == ("nobody", "turn")
    assert finding.culprits == [1]
    assert finding.text == (
        "rank 1 waits in wait_notify, slot 3, count 2, of window 2 since 12 s: no rank has "
        "notified it; no rank is left that could. Ranks 0, 2 wait in fence #17 of window 2"
    )
    assert turn.waiting == [0, 2]


def sent(rank, calls, ago, slot=3, site="", **facts):
    """Return what a rank has sent to rank 1, so many seconds ago."""
    note = {"comm": COMM, "number": 2, "target": 1} | facts
    return Notified(calls=calls, slot=slot, last=NOW - int(ago * 1e9), site=site, **note)


def test_who_was_the_last_to_notify_a_slot():
    finding = one(
        member(0, 5, notified=[sent(0, 7, 14, site="app.py:17"), sent(0, 1, 2, slot=4)]),
        member(1, 5, notify()),
        member(2, 5, notified=[sent(2, 6, 15.2), sent(2, 1, 16, 5), sent(2, 9, 3, target=0)]),
        *(member(3, 5, line="app.py:1"), member(4, 5, line="app.py:1")),
    )
    assert finding.text == (
        "rank 1 waits in wait_notify, slot 3, count 2, of window 2 since 12 s: rank 0 was the "
        "last to notify it, 7 times, the last one 14 s ago, first at app.py:17; rank 2 has "
        "notified it 6 times, the last one 15 s ago; ranks 3, 4 never did; rank 2 has notified "
        "slot 5 too, once, 16 s ago. Ranks 0, 2 are in no call of rmaext: they "
        "compute, or wait elsewhere (MPI, a file); ranks 3, 4 are in user code at app.py:1"
    )


def test_who_has_notified_another_slot():
    elsewhere = [sent(0, 1, 5, number=3), sent(0, 4, 5, comm=5), sent(0, 2, 5, target=2)]
    finding = one(
        member(0, 4, notified=[*elsewhere, sent(0, 1, 2, slot=2, site="app.py:9")]),
        member(1, 4, notify()),
        member(2, 4, notified=[sent(2, 2, 9, slot=5), sent(2, 3, 4, slot=7)]),
        member(3, 4, notified=[Notified(COMM, 2, 1, 8)]),
    )
    assert (
        ": no rank has notified it; rank 0 has notified slot 2 instead, once, 2.0 s ago, at "
        "app.py:9; rank 2 has notified slot 7 instead, 3 times, the last one 4.0 s ago; rank 3 "
        "has notified slots that are not known instead, 8 times. Ranks 0"
    ) in finding.text
    assert "no rank is left" not in finding.text


def test_a_wait_for_several_slots():
    """A number that the record has cut off is none."""
    several = "wait_any: window 2, slots 3, 5"
    sends = [sent(0, 1, 4, slot=5), sent(0, 1, 2, slot=35)]
    finding = one(
        member(0, 3, notified=sends), member(1, 3, notify() | {"text": several}), member(2, 3)
    )
    assert "waits in wait_any, slots 3, 5, of window 2 since" in finding.text
    said = "rank 0 was the last to notify slot 5, once, 4.0 s ago; rank 2 never did. Ranks"
    assert said in finding.text
    many = "wait_all: window 2, slots " + ", ".join(map(str, range(1, 300)))
    wait = notify() | {"text": many[:63]}
    finding = one(member(0, 3), member(1, 3, wait), member(2, 3))
    assert "in wait_all, slots 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, of window" in finding.text
    assert "no rank has notified any of them" in finding.text


def test_many_that_notify():
    members = [member(r, 40, notified=[sent(r, 1, 20 - r / 10)]) for r in range(2, 40)]
    finding = one(member(0, 40), member(1, 40, notify()), *members)
    assert "rank 39 was the last to notify it, once, 16 s ago; rank 38 has" in finding.text
    assert "30 more before; rank 0 never did" in finding.text
    assert len(finding.text) < 900


def test_wait_until():
    finding = one(member(0, 2, {"kind": "until"}), member(1, 2))
    assert finding.kind == "nobody"
    assert "no rank has written there what it waits for" in finding.text


@pytest.mark.parametrize("kind", ["put", "get", "flush", "request", "update", "guard"])
def test_a_target_that_is_stopped_or_answers(kind):
    waits = {"kind": kind, "target": 1}
    finding = one(member(0, 3, waits), member(1, 3, process="T"), member(2, 3))
    assert (finding.kind, finding.culprits) == ("missing", [1])
    assert "rank 1 of window 2" in finding.text
    assert finding.text.endswith("rank 1 is stopped by a signal (kill -CONT 1001 lets it go on)")
    finding = one(member(0, 3, waits), member(1, 3), member(2, 3))
    assert finding.kind == "unclear"
    assert "progress thread" in finding.text


def test_a_flush_of_all():
    waits = {"kind": "flush", "target": -1}
    finding = one(member(0, 3, waits), member(1, 3), member(2, 3, process="T"))
    assert finding.culprits == [2]
    assert "a flush of all ranks of window 2" in finding.text


def test_an_epoch():
    finding = one(member(0, 2, {"kind": "epoch", "target": 1}), member(1, 2, line="app.py:3"))
    assert finding.culprits == [1]
    assert "for rank 1" in finding.text


def test_ranks_of_another_communicator_have_their_own_numbers():
    """Rank 0 of the communicator is rank 5 of MPI_COMM_WORLD."""
    members = [
        member(5, 8, comms=[Comm(COMM, 2, 0, here=2)]),
        member(3, 8, fence(), comms=[Comm(COMM, 2, 1, here=2)]),
    ]
    finding = one(*members)
    assert (finding.waiting, finding.culprits) == ([3], [5])
    finding = one(members[1])
    assert "rank 0 of communicator abcd, which has no record here: it has ended" in finding.text


def test_what_is_not_known_is_left_open():
    """A window or a communicator that has no entry."""
    bare = member(0, 2, lock(1), windows=[])
    finding = one(bare, member(1, 2))
    assert (finding.kind, finding.text.rpartition(": ")[2]) == (
        "unclear",
        "no process here holds it",
    )
    finding = one(member(0, 2, fence(), comms=[]), member(1, 2, line="app.py:5 (step)"))
    assert (finding.kind, finding.culprits) == ("unclear", [1])
    assert finding.text == (
        "rank 0 waits in fence #17 of window 2 since 12 s: its communicator is not known yet; "
        "rank 1 is in user code at app.py:5 (step)"
    )
    mpi = one(member(0, 2, {"kind": "mpi"}), member(1, 2, {"kind": "mpi"}))
    assert mpi.text.startswith("ranks 0, 1 wait in a collective call of MPI, made by rmaext since")
    assert "all ranks here wait in rmaext, perhaps over different communicators" in mpi.text


def first(size):
    """A wait for the others to come to a communicator's first window: it has no entry yet."""
    return fence(size, Step("creation of the communicator's first window", 0, 0).word())


def test_a_communicators_first_window():
    others = {"windows": [], "comms": []}
    members = [member(0, 3, first(3), **others), member(2, 3, first(3), **others)]
    finding = one(*members)  # rank 1 has made no window, so it has no record
    assert (finding.kind, finding.waiting, finding.culprits) == ("missing", [0, 2], [1])
    assert finding.text == (
        "all other ranks wait in creation of the communicator's first window since 12 s for "
        "rank 1, which has no record here: it has made no window yet, is on another node, has "
        "ended, keeps none (RMAEXT_RECORD=0), or its record could not be read (`python -m rmaext "
        "why PID`, of that process, says why)"
    )
    finding = one(*members, member(1, 3, line="app.py:5 (step)", **others))
    assert (finding.kind, finding.culprits) == ("missing", [1])
    assert finding.text.endswith("for rank 1, which is in user code at app.py:5 (step)")
    finding = one(*members, member(1, 3, first(3), **others))
    assert (finding.kind, finding.culprits) == ("unclear", [])
    assert "all ranks have come" not in finding.text
    cycle = one(*(member(r, 3, fence() if r == 1 else first(3)) for r in range(3)))
    assert (cycle.kind, cycle.culprits) == ("cycle", [1])


def test_the_first_window_of_some_ranks():
    """Which these are is not known."""
    finding = one(member(0, 3, first(2)), member(1, 3, line="app.py:5 (step)"), member(2, 3))
    assert (finding.kind, finding.waiting, finding.culprits) == ("unclear", [0], [1, 2])
    assert finding.text == (
        "rank 0 waits in creation of the communicator's first window (2 ranks) since 12 s: its "
        "communicator is not known yet; rank 1 is in user code at app.py:5 (step); rank 2 is in "
        "no call of rmaext: it computes, or waits elsewhere (MPI, a file)"
    )


@pytest.mark.parametrize("kind", ["flush", "lock", "meeting", "until"])
def test_many_ranks_take_no_long_time(kind):
    """64 of them are here, as on one of 64 nodes."""
    waits = {"kind": kind, "target": -1 if kind == "flush" else 0, "offset": FENCE, "bytes": COMM}
    members = [member(rank, 4096, waits, here=64) for rank in range(64)]
    start = time.process_time()
    (job,) = jobs(members)
    findings = verdict(job)
    assert time.process_time() - start < 2
    assert {rank for finding in findings for rank in finding.waiting} == set(range(64))
    assert all(len(finding.text) < 1000 for finding in findings)


def test_times_in_words():
    assert [span(s) for s in (0.31, 12, 400, 9000)] == ["0.3 s", "12 s", "7 min", "2.5 h"]


# -- any job ---------------------------------------------------------------------------


def ring(targets):
    """Return who is in a cycle, where each rank waits for the lock of one other, or computes."""
    inside = set()
    for rank in range(len(targets)):
        seen, at = [], rank
        while at is not None and at not in seen:
            seen.append(at)
            at = targets[at]
        if at is not None:
            inside |= set(seen[seen.index(at) :])
    return inside


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_locks_in_any_order(data):
    """Each rank holds its own lock. Who is in a cycle is told, and nobody else."""
    size = data.draw(st.integers(2, 9))
    others = [st.sampled_from([None, *(t for t in range(size) if t != r)]) for r in range(size)]
    targets = [data.draw(other) for other in others]
    members = [
        member(r, size, None if t is None else lock(t), locks=holds(r))
        for r, t in enumerate(targets)
    ]
    findings = found(*members)
    cycles = [finding for finding in findings if finding.kind == "cycle"]
    assert sorted(rank for cycle in cycles for rank in cycle.culprits) == sorted(ring(targets))
    assert {rank for finding in findings for rank in finding.waiting} == {
        r for r, t in enumerate(targets) if t is not None
    }
    idle = {t for t in targets if t is not None and targets[t] is None}
    blamed = {rank for f in findings if f.kind == "missing" for rank in f.culprits}
    assert blamed == idle


KINDS = ["", "meeting", "mpi", "lock", "notify", "until", "flush", "get", "epoch", "guard"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.integers(-2, 4),
            st.integers(0, 2),
            st.sampled_from(["R", "T", "", "D"]),
            st.lists(st.integers(-1, 5), max_size=2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_state_has_a_verdict(states):
    """Whatever the ranks say, there are sentences, and each long wait is in one."""
    members = [
        member(
            *(rank, 5, {"kind": kind, "target": target, "offset": FENCE, "bytes": COMM}),
            steps=steps,
            process=process,
            locks=[Lock(7, held) for held in locks],
        )
        for rank, (kind, target, steps, process, locks) in enumerate(states)
    ]
    findings = found(*members)
    assert all(finding.text for finding in findings)
    long = {w.of.rank for w in Job(members).long() if w.of.process in ("R", "D")}
    assert {rank for finding in findings for rank in finding.waiting} == long
