# SPDX-License-Identifier: BSD-3-Clause
"""Traces that tests write themselves, as RMAEXT_TRACE has them written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import rmaext
from rmaext._native._lib import lib
from rmaext._record import layout
from rmaext.inside.trace.reading import PAGE

COMM = "c0ffee"


def header(rank: int, size: int, /, **facts: Any) -> bytes:
    """Return the first page of a file."""
    made = np.zeros(1, layout.HEADER)
    usual = {
        "magic": b"rmaextR",
        "layout": lib.RMAEXT_RECORD_LAYOUT,
        "header_bytes": layout.HEADER.itemsize,
        "version": rmaext.__version__.encode(),
        "pid": 1000 + rank,
        "job": b"job",
        "rank": rank,
        "size": size,
        "host": b"node",
        "monotonic": 10**9,
        "realtime": 10**18,
        "traced": 1,
    }
    for name, value in (usual | facts).items():
        made[name] = value
    return made.tobytes().ljust(PAGE, b"\0")


def events(rows: Iterable[dict[str, Any]], first: int = 0) -> np.ndarray[Any, Any]:
    """Return events, numbered in their order; `kind` may be the name of a constant."""
    rows = list(rows)
    made = np.zeros(len(rows), layout.EVENT)
    for i, row in enumerate(rows):
        kind = row["kind"]
        row = row | {"kind": getattr(lib, f"RMAEXT_{kind}") if isinstance(kind, str) else kind}
        for name, value in row.items():
            made[name][i] = value
    made["seq"] = 2 * (np.arange(len(rows), dtype=np.uint64) + np.uint64(first + 1))
    return made


def names(rank: int, size: int, sites: Iterable[str] = ("app.py:1", "app.py:2")) -> str:
    """Return the definitions of a rank with a window, 1, over all ranks."""
    world = list(range(size))
    window = {"number": 7, "kind": "Window", "dtype": "<f8", "ranks": size, "bytes": 80, "unit": 8}
    lines = [
        {"comm": COMM, "size": size, "rank": rank, "world": world},
        {"window": 1, "comm": COMM} | window,
        *({"site": n, "at": at, "call": "put"} for n, at in enumerate(sites, 1)),
        {"thread": 0, "tid": 1000 + rank, "name": "main"},
        {"thread": 1, "tid": 2000 + rank, "name": "progress"},
        {"end": True},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def write(folder: Path, ranks: dict[int, Any], size: int | None = None, **facts: Any) -> Path:
    """Write the traces of a job, folder/job, from the events of each rank; return their folder."""
    folder = folder / "job"
    folder.mkdir(parents=True, exist_ok=True)
    size = size or len(ranks)
    for rank, found in ranks.items():
        name = folder / f"rank-{rank:05}"
        data = header(rank, size, **facts) + found.tobytes()
        name.with_suffix(".0.events").write_bytes(data)
        name.with_suffix(".names.jsonl").write_text(names(rank, size))
    return folder
