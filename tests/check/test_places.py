# SPDX-License-Identifier: BSD-3-Clause
"""RMAEXT_CHECK knows which bytes of other ranks operations touch, through all kinds of views."""

from __future__ import annotations

import pytest
from check.test_check import PROGRAMS, ROUTES, checked

TRIED = {"direct": 720, "fabric": 696}  # operations; over the fabric there are no shared windows


@pytest.mark.parametrize("route", ROUTES)
def test_the_bytes_that_are_noted_are_those_that_change(route):
    done = checked(3, PROGRAMS / "places.py", how="error", route=ROUTES[route], timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"tried {TRIED[route]}") == 3, done.stdout
    assert "rmaext check" not in done.stderr
