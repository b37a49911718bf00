# SPDX-License-Identifier: BSD-3-Clause
"""Run the programs of the table on three ranks; rank 0 prints what was found in each, as JSON."""

from __future__ import annotations

import json
import logging

import conflicts
import nesting
import numpy as np
import orders
import parts
import updates
from cases import CASES
from mpi4py import MPI

import rmaext


class Found(logging.Handler):
    """Keeps what the mode says."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


found = Found()
logging.getLogger("rmaext.check").addHandler(found)
world = MPI.COMM_WORLD
assert all([conflicts, nesting, orders, parts, updates])  # their import fills the table
results = []
for case in CASES:
    with rmaext.Window.allocate(world, 16, np.int64) as win:
        win.fence()
        case.run(win)
    texts = world.gather(found.texts)
    found.texts = []
    if texts is not None:
        flat = [text for some in texts for text in some]
        results.append({"name": case.name, "race": case.race, "found": flat})
if world.rank == 0:
    print(json.dumps(results))
