# SPDX-License-Identifier: BSD-3-Clause
"""Sets of bytes: arrays of two columns, where each run begins and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spans", "common", "merged", "of_array", "runs", "span", "strided"]

Spans = NDArray[np.int64]


def span(first: int, nbytes: int) -> Spans:
    """Return one run of bytes."""
    return np.array([[first, first + nbytes]], np.int64)


def runs(starts: Any, nbytes: Any) -> Spans:
    """Return runs that begin at these places."""
    starts = np.asarray(starts, np.int64).reshape(-1)
    return merged(np.stack([starts, starts + nbytes], 1))


def merged(spans: Spans) -> Spans:
    """Return the same bytes as runs in order, none of which touches the next one."""
    spans = spans[spans[:, 1] > spans[:, 0]]
    if len(spans) < 2:
        return spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], spans[1:, 0] > ends[:-1]]))
    lasts = np.append(begins[1:], len(spans)) - 1
    return np.stack([spans[begins, 0], ends[lasts]], 1)


def strided(first: int, shape: Sequence[int], steps: Sequence[int], unit: int) -> Spans:
    """Return the elements of `unit` bytes that lie at these steps in bytes."""
    dims = [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]
    if any(n == 0 for n, _ in dims):
        return np.empty((0, 2), np.int64)
    while dims and dims[-1][1] == unit:  # the last dimension lies in one piece
        unit *= dims.pop()[0]
    starts = np.array([first], np.int64)
    for n, step in dims:
        starts = (starts[:, None] + np.arange(n, dtype=np.int64) * step).reshape(-1)
    return runs(starts, unit)


def of_array(array: NDArray[Any]) -> Spans:
    """Return the addresses of an array's elements."""
    first = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return span(first, array.nbytes)
    return strided(first, array.shape, array.strides, array.itemsize)


def common(one: Spans, other: Spans) -> tuple[int, int] | None:
    """Return the first run of bytes that two sets of runs in order have in common."""
    if not len(one) or not len(other):
        return None
    at = np.searchsorted(other[:, 1], one[:, 0], side="right")
    found = np.flatnonzero(at < len(other))
    found = found[other[at[found], 0] < one[found, 1]]
    if not len(found):
        return None
    a, b = one[found[0]], other[at[found[0]]]
    return int(max(a[0], b[0])), int(min(a[1], b[1]))
