# SPDX-License-Identifier: BSD-3-Clause
"""What `python -m rmaext trace` has made, read back, and checked by others' rules."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter

import jsonschema
import pytest
from support import perfetto

# What the Trace Event Format wants of the events that are used here, all times in µs.
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "required": ["ph", "pid", "tid", "ts", "dur", "name", "cat", "args"],
                        "properties": {
                            "ph": {"const": "X"},
                            "pid": {"type": "integer"},
                            "tid": {"type": "integer"},
                            "ts": {"type": "number", "minimum": 0},
                            "dur": {"type": "number", "minimum": 0},
                            "name": {"type": "string", "minLength": 1},
                            "cat": {"type": "string"},
                            "args": {"type": "object"},
                            "bind_id": {"type": "string", "pattern": "^0x[0-9a-f]{1,8}$"},
                            "flow_in": {"const": True},
                            "flow_out": {"const": True},
                        },
                        "dependentRequired": {"flow_in": ["bind_id"], "flow_out": ["bind_id"]},
                        "additionalProperties": False,
                    },
                    {
                        "required": ["ph", "pid", "name", "args"],
                        "properties": {
                            "ph": {"const": "M"},
                            "pid": {"type": "integer"},
                            "tid": {"type": "integer"},
                            "name": {"pattern": "^(process|thread)_(name|sort_index)$"},
                            "args": {"type": "object", "minProperties": 1, "maxProperties": 1},
                        },
                        "additionalProperties": False,
                    },
                ]
            },
        },
    },
}
US = 1000


def timeline(folder):
    """Return the events of a timeline that is as the format wants it: slices, and the others."""
    whole = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    jsonschema.validate(whole, SCHEMA)
    slices = [one for one in whole["traceEvents"] if one["ph"] == "X"]
    nested(slices)
    return slices, [one for one in whole["traceEvents"] if one["ph"] == "M"]


def nested(slices):
    """Require that the slices of each track nest, as both viewers want it."""
    tracks = {}
    for one in slices:
        begin = round(one["ts"] * US)
        track = tracks.setdefault((one["pid"], one["tid"]), [])
        track.append((begin, -begin - round(one["dur"] * US)))
    for track in tracks.values():
        ends = []
        for begin, end in sorted(track):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or -end <= ends[-1], (begin, -end, ends)
            ends.append(-end)


def arrows(slices):
    """Return from which name of which rank to which an arrow leads, and how many do."""
    out = {one["bind_id"]: one for one in slices if "flow_out" in one}
    into = {one["bind_id"]: one for one in slices if "flow_in" in one}
    assert into.keys() <= out.keys()
    return Counter((out[i]["name"], out[i]["pid"], into[i]["name"], into[i]["pid"]) for i in into)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def reads(folder, flows):
    """Require that Perfetto reads all slices and arrows of a timeline, and has no complaint."""
    if why := perfetto.missing():
        pytest.skip(why)
    slices, _ = timeline(folder)
    with perfetto.TraceProcessor(folder / "trace.json.gz") as trace:
        sql = "select name, value from stats where severity != 'info' and value != 0"
        assert trace.query(sql) == []
        sql = "select pid, count(1) as n from slice join thread_track t on track_id = t.id "
        sql += "join thread using (utid) join process using (upid) group by 1"
        assert dict(trace.query(sql)) == Counter(one["pid"] for one in slices)
        assert trace.query("select count(1) as n, sum(dur) as ns from slice") == [
            (len(slices), sum(round(one["dur"] * US) for one in slices))
        ]
        sql = "select count(1) as n from flow join slice a on slice_out = a.id "
        sql += "join slice b on slice_in = b.id where a.ts <= b.ts and b.ts <= a.ts + a.dur"
        assert trace.query(sql) == [(flows,)]
        assert trace.query("select count(1) as n from flow") == [(flows,)]
