# SPDX-License-Identifier: BSD-3-Clause
"""Ranks whose memory the kernel does not copy any more go on by the network."""

from __future__ import annotations

import pytest
from support.jobs import passes

WHEN = ["before a put", "before a part", "before many", "before ranges", "after a put", "one rank"]


@pytest.mark.parametrize("when", WHEN)
def test_goes_on(when):
    size = 3 if when == "one rank" else 2  # two of those that hide, one that does not
    passes(size, "jobs/programs/not_dumpable.py", when, oks=size)
