# SPDX-License-Identifier: BSD-3-Clause
"""Endpoints outlive messages that are cut short, and peers that die in the middle of one."""

from __future__ import annotations

import pytest
from support.jobs import passes
from support.libraries import PREFERRED, SYSTEM_THERE

# rxm lost a buffer of its 128 to each cut message, of 4,096 where MPI has started the copy.
COUNTS = {"header": 5000, "half": 5000, "long": 1500, "promise": 50, "killed": 60}


# Only rxm fetches long messages. 2.5.1's may crash when their sender is gone. rxm is what the
# system's has; the other library's provider has no buffers to lose, and comes with the matrix.
CASES = [
    pytest.param(kind, *one.values, id=f"{kind}-{one.id}", marks=(*one.marks, *more))
    for kind in COUNTS
    for one, more in ((SYSTEM_THERE, ()), (PREFERRED, (pytest.mark.matrix,)))
    if kind != "long" or one is SYSTEM_THERE
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("kind", "library"), CASES)
def test_messages_are_cut_short(kind, library):
    args = (kind, str(COUNTS[kind]))
    said = passes(2, "jobs/programs/endure.py", *args, oks=2, library=library, timeout=180)
    assert f"{kind}: " in said


@pytest.mark.parametrize("library", [PREFERRED, SYSTEM_THERE])
def test_an_endpoint_that_has_no_room(library):
    """rxm frees the buffers of one that could not be enabled twice, if it is closed."""
    passes(1, "jobs/programs/no_room.py", oks=1, library=library, RMAEXT_ROUTE="fabric")
