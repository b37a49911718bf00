# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints outlive messages that are cut short, and peers that die in the middle of one."""

from __future__ import annotations

import pytest
from support.jobs import passes
from support.libraries import BOTH

# rxm lost a buffer of its 128 to each cut message, of 4,096 where MPI has started the copy.
COUNTS = {"header": 5000, "half": 10000, "long": 1500, "promise": 50, "killed": 60}


# 2.5.1 may crash when it fetches a long message whose sender is gone.
CASES = [
    (kind, *one.values) for kind in COUNTS for one in BOTH if kind != "long" or not one.values[0]
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("kind", "library"), CASES)
def test_messages_are_cut_short(kind, library):
    args = (kind, str(COUNTS[kind]))
    said = passes(2, "jobs/programs/endure.py", *args, oks=2, library=library, timeout=180)
    assert f"{kind}: " in said


@pytest.mark.parametrize("library", BOTH)
def test_an_endpoint_that_has_no_room(library):
    """rxm frees the buffers of one that could not be enabled twice, if it is closed."""
    passes(1, "jobs/programs/no_room.py", oks=1, library=library, RMAEXT_ROUTE="fabric")
