# SPDX-License-Identifier: BSD-3-Clause
"""Ranks whose memory the kernel does not copy any more go on by the network."""

from __future__ import annotations

import pytest
from support.jobs import passes


@pytest.mark.parametrize("when", ["before a put", "after a put", "one rank"])
def test_goes_on(when):
    passes(3, "jobs/programs/not_dumpable.py", when, oks=3)
