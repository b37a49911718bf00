# SPDX-License-Identifier: BSD-3-Clause
"""A request whose copies by the kernel take long, and which has long writes, too."""

from __future__ import annotations

import launch
import pytest

PROGRAM = launch.ROOT / "tests" / "ops" / "programs" / "slow_copies.py"


@pytest.mark.parametrize(("how", "said"), [("plain", "done"), ("signal", "interrupted")])
def test_slow_copies(how, said):
    """An exception amid the copies ends it, and nothing of it uses memory that is let go of."""
    done = launch.mpirun(3, PROGRAM, how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
