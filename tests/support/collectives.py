# SPDX-License-Identifier: BSD-3-Clause
"""A collective call that some ranks call wrongly: the same error everywhere, and then it works."""

from __future__ import annotations

import re

import numpy as np
from support.guarded import guarded, neighbour


def fails_alike(comm, faulty, error, call, right):
    """Return the message, the same on all ranks, which names those at fault."""
    caught = None
    try:
        win = call(comm) if comm.rank in faulty else right(comm)
        win.close()
    except Exception as exception:  # every rank must reach the next collective
        caught = exception
    everywhere = comm.allgather((type(caught).__name__, str(caught)))
    assert len(set(everywhere)) == 1, everywhere
    assert isinstance(caught, error), repr(caught)
    return str(caught)


def works(comm):
    with guarded(comm, 5, "i4", 7) as win:
        win.put(np.int32(8), neighbour(comm), 4)
        win.fence()
        assert win.local.tolist() == [7, 7, 7, 7, 8]
        win.fence()


def names(message, ranks):
    """The numbers after the word rank are those of the ranks at fault."""
    found = re.search(r"\branks?\b((?:\s*(?:,|and|to|-)?\s*\d+)+)", message)
    assert found, message
    assert list(map(int, re.findall(r"\d+", found[1]))) == list(ranks), message
