# SPDX-License-Identifier: BSD-3-Clause
"""The table of small programs, each with a race or without; `run.py` runs them all.

They have the meaning of RMARaceBench's cases, over rmaext's own calls. A program gets a window
of 16 int64 on each of three ranks, filled with zeros after a fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A program, the case that it stands for, and whether it has a race."""

    name: str
    race: bool
    run: Callable[[Any], None]


CASES: list[Case] = []


def has_race(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Add a program in which two accesses are not ordered."""
    return _adder(name, True)


def has_none(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Add a program in which all accesses are ordered."""
    return _adder(name, False)


def _adder(name: str, race: bool) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(run: Callable[[Any], None]) -> Callable[[Any], None]:
        CASES.append(Case(name, race, run))
        return run

    return add
