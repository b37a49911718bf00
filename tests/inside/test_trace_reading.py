# SPDX-License-Identifier: BSD-3-Clause
"""The reader of traces: what is damaged or missing is told, and nothing in it trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import traces

from rmaext.__main__ import main
from rmaext._record import layout
from rmaext.inside.trace import clocks, timeline
from rmaext.inside.trace.arrows import Arrows
from rmaext.inside.trace.reading import PAGE, TraceError, find
from rmaext.inside.trace.sums import Sums

PUT = {"kind": "DID_PUT", "begin": 1000, "end": 3000, "bytes": 80, "window": 1, "target": 1}


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a job of two ranks, with four events each."""
    return traces.write(tmp_path, {rank: traces.events([PUT] * 4) for rank in (0, 1)})


def read(folder):
    (job,) = find([folder])
    return job


def refused(folder, *words):
    with pytest.raises(TraceError) as caught:
        find([folder])
    assert all(word in str(caught.value) for word in words), caught.value
    return str(caught.value)


def test_a_whole_trace_has_no_problems(folder):
    for path in (folder, folder.parent):
        job = read(path)
        assert job.problems == []
        assert (job.size, [len(rank.events) for rank in job.ranks]) == (2, [4, 4])
        assert job.ranks[0].targets(job).tolist() == [1] * 4


def change(path, at, data):
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("magic", b"another", "no trace of rmaext"),
        ("version", b"0.0.7", "written by rmaext 0.0.7"),
        ("layout", 99, "written by rmaext"),
        ("header_bytes", 5, "damaged header"),
        ("size", 0, "damaged header"),
        ("rank", 1, "trace of rank 1"),
        ("job", b"other", "several jobs"),
        ("size", 3, "several jobs"),
    ],
)
def test_files_that_are_refused(folder, field, value, words):
    page = traces.header(0, 2, **{field: value})
    change(folder / "rank-00000.0.events", 0, page)
    text = refused(folder, words, "job")
    assert ": " in text  # and what to do


@pytest.mark.parametrize("size", [0, 7, 100, PAGE - 1])
def test_a_file_cut_off_in_its_first_page(folder, size):
    path = folder / "rank-00001.0.events"
    path.write_bytes(path.read_bytes()[:size])
    refused(folder, str(path))


def test_no_folder_and_no_trace(tmp_path):
    refused(tmp_path, "has no trace", "RMAEXT_TRACE=")
    refused(tmp_path / "missing", "not a folder")


def test_the_command_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["rmaext", "trace", str(tmp_path)])
    assert main() == 1
    assert "has no trace" in capsys.readouterr().err


def test_the_command_goes_on_after_a_job_that_is_bad(tmp_path, capsys, monkeypatch):
    good = traces.write(tmp_path / "of", {0: traces.events([PUT])}).rename(tmp_path / "good")
    bad = tmp_path / "bad" / "rank-00000.0.events"
    bad.parent.mkdir()
    bad.write_bytes(b"garbage")
    unwritable = traces.write(tmp_path / "of", {0: traces.events([PUT])}).rename(tmp_path / "dir")
    (unwritable / "trace.json.gz").mkdir()
    monkeypatch.setattr("sys.argv", ["rmaext", "trace", str(tmp_path)])
    assert main() == 1
    done = capsys.readouterr()
    assert "job good: 1 of 1 ranks" in done.out
    assert (good / "summary.json").exists()
    assert f"{bad} is no trace of rmaext" in done.err
    assert f"Is a directory: '{unwritable / 'trace.json.gz'}'" in done.err


@pytest.mark.parametrize("between", ["5 1", "1 1", "nan 2", "1 nan"])
def test_a_part_of_the_timeline_that_is_none(folder, capsys, monkeypatch, between):
    monkeypatch.setattr("sys.argv", ["rmaext", "trace", str(folder), "--between", *between.split()])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "A must be 0 or more, and less than B" in capsys.readouterr().err


@pytest.mark.parametrize("fact", ["pid", "monotonic", "realtime"])
def test_files_of_an_earlier_job_are_refused(folder, fact):
    """Those of a rank, of which the job that began last is meant."""
    other = traces.header(0, 2, **{"realtime": 2 * 10**18, fact: 10**6})
    (folder / "rank-00000.7.events").write_bytes(other)
    earlier = "rank-00000.7.events" if fact == "realtime" else "rank-00000.0.events"
    text = refused(folder, "several jobs", "remove")
    assert text.endswith(f": {earlier}")


def test_ranks_of_a_larger_job_before_are_refused(tmp_path):
    traces.write(tmp_path, {rank: traces.events([PUT]) for rank in range(4)})
    rank = {0: traces.events([PUT])}
    folder = traces.write(tmp_path, rank, size=1, realtime=10**18 + 10**9)
    text = refused(folder, "several jobs", "Rank 0 began last")
    assert text.endswith("of another job: 1, 2, 3")


def test_a_rank_of_a_job_before_is_told(tmp_path):
    """The job has as many ranks as the one now, of which rank 1 has written no trace."""
    events = {rank: traces.events([PUT]) for rank in (0, 1)}
    folder = traces.write(tmp_path, events, monotonic=0)
    names = folder / "rank-00000.names.jsonl"
    names.write_text(names.read_text().replace(traces.COMM, "decaf"))
    assert read(folder).problems == []
    now = traces.header(0, 2, monotonic=PUT["end"] + 1, realtime=10**18 + PUT["end"] + 1)
    change(folder / "rank-00000.0.events", 0, now)
    (problem,) = read(folder).problems
    assert "when rank 0 began, these had ended" in problem
    assert "share no communicator with it: 1. If" in problem
    names.write_text(names.read_text().replace("decaf", traces.COMM))
    assert read(folder).problems == []


def test_a_file_cut_off_in_an_event(folder):
    path = folder / "rank-00000.0.events"
    path.write_bytes(path.read_bytes()[:-20])
    job = read(folder)
    assert [len(rank.events) for rank in job.ranks] == [3, 4]
    assert job.problems == ["rank-00000.0.events is cut off in its event 3, which is left out"]


def test_a_rank_without_a_trace(folder):
    (folder / "rank-00001.0.events").unlink()
    (problem,) = read(folder).problems
    assert "1 of 2 ranks have no trace: 1" in problem


def test_damaged_events_are_left_out_with_all_after_them(folder):
    change(folder / "rank-00000.0.events", PAGE + 2 * layout.EVENT.itemsize, b"\xff" * 8)
    job = read(folder)
    assert [len(rank.events) for rank in job.ranks] == [2, 4]
    assert "damaged from event 2 on" in job.problems[0]


@pytest.mark.parametrize(
    "wrong", [{"kind": 0}, {"kind": 200}, {"route": 9}, {"begin": -1}, {"end": 0}]
)
def test_an_event_that_makes_no_sense_is_left_out(tmp_path, wrong):
    folder = traces.write(tmp_path, {0: traces.events([PUT, PUT | wrong, PUT])})
    job = read(folder)
    assert len(job.ranks[0].events) == 2
    assert "1 events make no sense" in job.problems[0]


def test_files_that_were_removed_and_events_that_were_lost(tmp_path):
    """As RMAEXT_TRACE_SIZE has it: files 0 and 1 are gone, and an event between others."""
    events = traces.events([PUT] * 8, first=100)
    folder = traces.write(tmp_path, {0: events[:4]}, size=1)
    (folder / "rank-00000.0.events").rename(folder / "rank-00000.2.events")
    (folder / "rank-00000.3.events").write_bytes(traces.header(0, 1) + events[5:].tobytes())
    with (folder / "rank-00000.names.jsonl").open("a") as file:
        file.write(json.dumps({"lost": 1, "dropped": 100, "error": "No space left"}))
    job = read(folder)
    assert len(job.ranks[0].events) == 7
    text = "\n".join(job.problems)
    assert "first 100 events were removed" in text
    assert "1 events in between are not there" in text
    assert "could not write 1 events (No space left)" in text


@pytest.mark.parametrize(
    "line",
    [
        '{"site": 3, "at"',
        "[1]",
        '{"window": "x"}',
        '{"comm": "a", "size": 2, "rank": 5, "world": []}',
        '{"comm": "a", "size": 1, "rank": 0, "world": [0, 1]}',
        '{"comm": "a", "size": 1e300, "rank": 0, "world": []}',
        '{"comm": "a", "size": 1, "rank": 0, "world": [9999999999]}',
        "[" * 100_000,
        "\xff\xfe",
    ],
)
def test_a_definition_that_makes_no_sense(folder, line):
    path = folder / "rank-00000.names.jsonl"
    path.write_text(f"{line}\n{path.read_text()}", encoding="latin-1")
    (problem,) = read(folder).problems
    assert "1 lines make no sense" in problem


def test_a_rank_that_was_killed(folder):
    path = folder / "rank-00000.names.jsonl"
    path.write_text(path.read_text().rpartition('{"end"')[0])
    (problem,) = read(folder).problems
    assert "rank 0 still runs, or was killed" in problem
    path.unlink()
    assert "No such file" in read(folder).problems[0]


def test_two_nodes_of_a_job_are_one_and_two_jobs_are_two(tmp_path):
    one, two = ({rank: traces.events([PUT])} for rank in (0, 1))
    here = traces.write(tmp_path / "here", one, size=2, host=b"a")
    there = traces.write(tmp_path / "there", two, size=2, host=b"b")
    (job,) = find([here, there])
    assert [rank.host for rank in job.ranks] == ["a", "b"]
    assert job.problems == []
    again = traces.write(tmp_path / "again", one, size=2)
    assert [len(job.ranks) for job in find([here, again])] == [1, 1]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, PAGE + 4 * 64 - 1), st.binary(min_size=1, max_size=40), st.integers(0, 4000))
def test_any_bytes_are_told_or_merged(folder, at, data, cut):
    """Nothing but TraceError is raised, whatever is in a file."""
    path = folder / "rank-00000.0.events"
    before = path.read_bytes()
    try:
        change(path, at, data)
        path.write_bytes(path.read_bytes()[: len(before) - (cut if cut < 300 else 0)])
        for job in find([folder]):
            add = clocks.offsets(job)
            arrows = Arrows(job, add)
            Sums.of(job, arrows)
            timeline.write(job, arrows, add, folder.parent / "trace.json.gz")
    except TraceError:
        pass
    finally:
        path.write_bytes(before)
