# SPDX-License-Identifier: BSD-3-Clause
"""`python -m rmaext trace`: what it makes of traces that the tests write."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import traces
from support.timelines import US, arrows, nested, reads, rows, timeline

from rmaext.__main__ import main
from rmaext.inside.trace import clocks, lanes
from rmaext.inside.trace.arrows import Arrows, _in_order
from rmaext.inside.trace.merge import merge
from rmaext.inside.trace.pictures import figures
from rmaext.inside.trace.reading import find
from rmaext.inside.trace.sums import Sums

BEGIN = 5 * 10**9
FENCE = 6 << 56 | 7 << 24 | 3  # the third call: a fence of window 7


def event(kind, begin, end, **facts):
    """Return an event of window 1, from one µs to another."""
    times = {"begin": BEGIN + begin * US, "end": BEGIN + end * US}
    return {"kind": kind, "window": 1, **times} | facts


@pytest.fixture
def folder(tmp_path):
    """Merge a job of two ranks, in which rank 1 carries out two operations of rank 0."""
    message = {"target": 1, "route": 3}
    one = [
        event("DID_PUT", 0, 10, offset=8, bytes=80, target=1, site=1),
        event("DID_PUT", 30, 90, bytes=80, site=1, **message),
        event("DID_FETCH", 40, 100, bytes=8, site=2, outcome=-5, **message),
        event("DID_PUT", 41, 99, bytes=80, site=1, more=3, **message),
        event("IN_FLUSH", 95, 120, target=-1, site=2),
        event("IN_MEETING", 150, 200, target=-2, site=2, offset=FENCE, bytes=9),
    ]
    served = {"target": 0, "route": 3, "thread": 1}
    other = [
        event("SERVED_PUT", 50, 52, bytes=80, **served),
        event("SERVED_FETCH", 60, 62, bytes=8, **served),
        event("SERVED_GET", 70, 72, bytes=8, **served),
        event("IN_MEETING", 180, 201, target=-2, offset=FENCE, bytes=9),
    ]
    found = traces.write(tmp_path, {0: traces.events(one), 1: traces.events(other)})
    (job,) = find([found])
    merge(job, found)
    return found


def test_the_timeline(folder):
    slices, titles = timeline(folder)
    assert arrows(slices) == {
        ("put", 0, "put for another", 1): 1,
        ("fetch", 0, "fetch for another", 1): 1,
        ("put", 0, "put of rank 0", 1): 2,  # the direct one, and the one that nobody served
    }
    titles = [one for one in titles if one["name"] == "thread_name"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in titles}
    assert {"main", "progress", "memory"} == {name for (pid, _), name in names.items() if pid == 1}
    (fence,) = (one for one in slices if one["name"] == "fence of window 7" and one["pid"] == 0)
    assert (fence["ts"], fence["dur"]) == (150, 50)
    assert fence["args"]["at"] == "app.py:2"
    assert fence["args"]["call"] == 3
    (fetch,) = (one for one in slices if one["name"] == "fetch")
    assert fetch["args"] == {
        "window": "7 (Window, <f8)",
        "rank": 1,
        "offset": 0,
        "bytes": 8,
        "operations": 1,
        "route": "message",
        "at": "app.py:2",
        "outcome": -5,
    }


def test_the_sums(folder):
    assert rows(folder / "matrix.csv") == [
        {"origin": "0", "target": "1", "operations": "7", "bytes": "248", "errors": "1"}
    ]
    found = json.loads((folder / "summary.json").read_text())
    assert (found["operations"], found["bytes"], found["errors"]) == (7, 248, 1)
    calls = [sum(kind["operations"] for kind in rank["kinds"]) for rank in found["ranks"]]
    assert calls == [7, 0]
    # 95-120 and 150-200, and the other's; what covers the same time counts once
    assert [rank["seconds_in_waits"] for rank in found["ranks"]] == [75e-6, 21e-6]
    sites = (folder / "sites.txt").read_text().splitlines()
    assert sites[1].split() == ["130", "µs", "75", "µs", "1", "8", "put", "app.py:2"]
    assert sites[2].split() == ["79", "µs", "0", "ns", "6", "240", "put", "app.py:1"]
    latencies = rows(folder / "latency.csv")
    assert sum(int(row["events"]) for row in latencies) == 7
    for row in latencies:
        if (row["kind"], row["route"]) == ("put", "direct"):
            assert float(row["from_us"]) <= 10 < float(row["to_us"])
    for name in ("matrix.png", "latency.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_pictures_have_a_legend(folder):
    (job,) = find([folder])
    made = figures(job, Sums.of(job, Arrows(job, clocks.offsets(job))))
    assert made.keys() == {"matrix.png", "latency.png"}
    matrix, latency = made.values()
    assert "row: the rank that operates; column: the rank whose memory" in matrix.get_supxlabel()
    (legend,) = latency.legends
    said = [text.get_text().partition(":")[0] for text in legend.texts]
    assert said == ["direct", "message", "a wait"]


def test_perfetto_reads_it(folder):
    reads(folder, 4)


def test_a_part_of_the_timeline(folder, monkeypatch, capsys):
    arguments = ["trace", str(folder), "--between", "0.00012", "0.00016"]
    monkeypatch.setattr("sys.argv", ["rmaext", *arguments])
    assert main() == 0
    assert "rank  operations" in capsys.readouterr().out
    slices, _ = timeline(folder)
    assert {one["name"] for one in slices} == {"flush", "fence of window 7"}


def test_without_matplotlib(tmp_path, monkeypatch):
    folder = traces.write(tmp_path, {0: traces.events([event("DID_PUT", 0, 1)])})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (job,) = find([folder])
    assert "the pictures need matplotlib (pip install 'rmaext[inside]')" in merge(job, folder)
    assert not list(folder.glob("*.png"))
    assert (folder / "latency.csv").exists()


def test_a_trace_without_events(tmp_path):
    folder = traces.write(tmp_path, {0: traces.events([]), 1: traces.events([])})
    (job,) = find([folder])
    assert "all           0" in merge(job, folder)
    assert timeline(folder)[0] == []


def test_several_jobs(tmp_path, monkeypatch, capsys):
    for name in "ab":
        traces.write(tmp_path / name, {0: traces.events([event("DID_PUT", 0, 1)])})
    folders = [str(tmp_path / name) for name in "ab"]
    monkeypatch.setattr("sys.argv", ["rmaext", "trace", *folders, "--output", str(tmp_path)])
    assert main() == 1
    assert "--output is for one job" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["rmaext", "trace", *folders])
    assert main() == 0
    assert capsys.readouterr().out.count("1 of 1 ranks") == 2


times = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=60)


@given(times)
def test_events_of_a_track_nest(spans):
    begin = np.array([first for first, _ in spans], np.int64)
    end = begin + np.array([length for _, length in spans], np.int64)
    lane, cut = lanes.distribute(begin, end)
    assert (lane < lanes.MOST).all()
    assert (cut == end)[lane < lanes.MOST - 1].all()
    assert (begin <= cut).all()
    columns = zip(lane.tolist(), (begin / US).tolist(), ((cut - begin) / US).tolist(), strict=True)
    nested([{"pid": 0, "tid": tid, "ts": ts, "dur": dur} for tid, ts, dur in columns])
    short = lanes.shorten(begin, end)
    assert ((begin <= short) & (short <= end)).all()
    order = np.argsort(begin, kind="stable")
    assert (short[order][:-1] <= begin[order][1:]).all()


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["both", "begun", "served"]))))
def test_pairs_where_some_are_missing(ops):
    """Of operations one after another, all are found of which both sides are there."""
    now, begin, end, done, expected = 0, [], [], [], []
    for length, there in ops:
        if there == "both":
            expected.append((len(begin), len(done)))
        if there != "served":
            begin.append(now)
            end.append(now + length)
        if there != "begun":
            done.append(now + length // 2)
        now += length + 1
    found = _in_order(*(np.array(times, np.int64) for times in (begin, end, done)))
    assert list(zip(*(side.tolist() for side in found), strict=True)) == expected


@pytest.mark.parametrize("error", [-3_000_000, 0, 40_000])
def test_clocks_of_two_nodes(tmp_path, error):
    """The times of day differ by an error; meetings put it right to half of how long one takes."""
    ahead = 123_456_789_000
    step = {"offset": FENCE, "bytes": 9, "target": -2}
    here = [event("IN_MEETING", 100 * i, 100 * i + 20, **step) for i in range(5)]
    there = [event("IN_MEETING", 100 * i + 16, 100 * i + 22, **step) for i in range(5)]
    for one in there:
        one["begin"] += ahead
        one["end"] += ahead
    paths = []
    for rank, events, host, shift in ((0, here, b"a", 0), (1, there, b"b", ahead)):
        clock = {"monotonic": BEGIN + shift, "realtime": 10**18 + error * rank}
        found = {rank: traces.events(events)}
        paths.append(traces.write(tmp_path / str(rank), found, size=2, host=host, **clock))
    (job,) = find(paths)
    add = clocks.offsets(job)
    assert add[0] == 0
    assert abs(add[1] + ahead) <= 20 * US
