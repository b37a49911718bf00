# SPDX-License-Identifier: BSD-3-Clause
"""Tables and quantities as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

__all__ = ["aligned", "quantity", "seconds"]


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[Any]], left: Collection[int] = ()
) -> str:
    """Return a table; the columns with these numbers stand left, the others right."""
    lines = [list(map(str, line)) for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = (
        [w.ljust(widths[i]) if i in left else w.rjust(widths[i]) for i, w in enumerate(line)]
        for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in words)


def quantity(number: float) -> str:
    """Return a number of bytes, or of anything, in four characters or so: "1.5 Ki"."""
    for unit in ("", " Ki", " Mi", " Gi", " Ti"):
        if abs(number) < 1024 or unit == " Ti":
            break
        number /= 1024
    return f"{number:.0f}{unit}" if not unit or number >= 100 else f"{number:.3g}{unit}"


def seconds(ns: float) -> str:
    """Return a duration: "1.23 ms"."""
    for unit, most in (("ns", 1e3), ("µs", 1e6), ("ms", 1e9)):
        if ns < most:
            return f"{ns / most * 1e3:.3g} {unit}"
    return f"{ns / 1e9:.4g} s"
