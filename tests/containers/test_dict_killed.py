# SPDX-License-Identifier: BSD-3-Clause
"""A rank is killed at a random moment while all use a `Dict`."""

from __future__ import annotations

import pytest
from support.jobs import passes

PROGRAM = "containers/programs/dict_killed.py"


def kill(seed, *how):
    passes(3, PROGRAM, str(seed), *how, oks=2, survive=True, timeout=50)


@pytest.mark.parametrize("how", [(), ("wide",), ("nodes",), ("nodes", "wide")], ids=" ".join)
def test_survivors_go_on(how):
    kill(1, *how)


def test_room_that_was_set_aside():
    passes(3, "containers/programs/dict_room.py", oks=2, survive=True)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", [(), ("wide",), ("nodes",), ("nodes", "wide")], ids=" ".join)
def test_many_kills(how):
    for seed in range(2, 30):
        kill(seed, *how)
