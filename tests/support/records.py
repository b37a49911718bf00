# SPDX-License-Identifier: BSD-3-Clause
"""Records that tests write themselves, as processes of rmaext keep them (csrc/rmaext.h)."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import rmaext
from rmaext._native._lib import lib
from rmaext._record import layout

TABLES = {
    "threads": (layout.THREAD, lib.RMAEXT_RECORD_THREADS),
    "windows": (layout.WINDOW, lib.RMAEXT_RECORD_WINDOWS),
    "comms": (layout.COMM, lib.RMAEXT_RECORD_COMMS),
    "locks": (layout.LOCK, lib.RMAEXT_RECORD_LOCKS),
    "sent": (layout.SENT, lib.RMAEXT_RECORD_SENT),
    "sites": (layout.SITE, lib.RMAEXT_RECORD_SITES),
    "events": (layout.EVENT, lib.RMAEXT_RECORD_EVENTS),
}


class Written:
    """A record of this process; `fd` is its file, which goes with `close`."""

    def __init__(self, **facts: Any) -> None:
        self.fd = os.memfd_create(layout.NAME)
        header = np.zeros(1, layout.HEADER)
        self.places = {}
        place = layout.HEADER.itemsize
        for name, (dtype, count) in TABLES.items():
            self.places[name] = place
            place += dtype.itemsize * count
        self.places["counters"] = place
        place += 4 * layout.COUNTS.itemsize
        usual = {
            "magic": b"rmaextR",
            "layout": lib.RMAEXT_RECORD_LAYOUT,
            "header_bytes": layout.HEADER.itemsize,
            "version": rmaext.__version__.encode(),
            "bytes": place,
            "pid": os.getpid(),
            "job": b"job",
            "size": 4,
            "host": b"node",
            "program": b"app.py",
            "monotonic": time.monotonic_ns(),
            "state": lib.RMAEXT_RUNS,
        }
        for name, value in (usual | self.places | facts).items():
            header[name] = value
        os.pwrite(self.fd, header.tobytes(), 0)
        os.ftruncate(self.fd, place)

    def set(self, **facts: Any) -> None:
        """Change the header."""
        for name, value in facts.items():
            dtype, place = layout.HEADER.fields[name][:2]
            os.pwrite(self.fd, np.array(value, dtype).tobytes(), place)

    def entry(self, table: str, index: int, /, **facts: Any) -> None:
        """Write an entry, whole unless `seq` is given."""
        dtype = TABLES[table][0]
        row = np.zeros(1, dtype)
        for name, value in ({"seq": 2} | facts).items():
            row[name] = value
        os.pwrite(self.fd, row.tobytes(), self.places[table] + index * dtype.itemsize)

    def close(self) -> None:
        os.close(self.fd)
