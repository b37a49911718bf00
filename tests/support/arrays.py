# SPDX-License-Identifier: BSD-3-Clause
"""Arrays over all ranks that are drawn by chance, the same on all, and what NumPy makes of them."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

RECORD = [("a", "i4"), ("b", "f8")]
DTYPES = ["f8", "i4", "c16", "u1", "?", ">i4", "S5", "M8[s]", RECORD]


class Drawn(NamedTuple):
    """The arguments of an Array, but for its dtype."""

    shape: tuple[int, ...]
    grid: tuple[int, ...] | None
    splits: list[list[int] | None] | None
    ghosts: tuple[int, ...]
    periodic: tuple[bool, ...]


def drawn(draw: random.Random, size: int, most: int = 9) -> Drawn:
    """Draw an array for so many ranks: also of no axes, or elements, or fewer than ranks."""
    ndim = draw.choice([0, 1, 1, 2, 2, 3, 3, 4])
    shape = tuple(draw.choice([0, 1, *[draw.randint(2, most)] * 6]) for _ in range(ndim))
    left, grid = size, []
    for _ in range(ndim):
        grid.append(draw.randint(1, left))
        left //= grid[-1]
    draw.shuffle(grid)
    splits: list[list[int] | None] | None = None
    if draw.random() < 0.4:
        splits = [
            sorted(draw.randint(0, n) for _ in range(count - 1)) if draw.random() < 0.6 else None
            for n, count in zip(shape, grid, strict=True)
        ]
    how = tuple(grid) if splits is not None or draw.random() < 0.5 else None
    ghosts = tuple(draw.choice([0, 1, 1, 2, 3]) for _ in range(ndim))
    return Drawn(shape, how, splits, ghosts, tuple(draw.random() < 0.5 for _ in range(ndim)))


def key_for(draw: random.Random, shape: tuple[int, ...]) -> Any:
    """Draw a key: integers, slices with any step, None, ..., or fewer of them."""
    key: list[Any] = []
    for n in shape:
        if n and draw.random() < 0.3:
            i = draw.randint(-n, n - 1)
            key.append(draw.choice([i, np.int64(i)]))
        else:
            bounds = [None, *range(-n - 1, n + 2)]
            step = draw.choice([None, None, 1, 2, 3, -1, -2])
            key.append(slice(draw.choice(bounds), draw.choice(bounds), step))
    if draw.random() < 0.2:
        key.insert(draw.randint(0, len(key)), None)
    if draw.random() < 0.3:
        at = draw.randint(0, len(key))
        key = [*key[:at], ..., *key[draw.randint(at, len(key)) :]]
    return key[0] if len(key) == 1 and draw.random() < 0.5 else tuple(key)


def with_ghosts(whole: Any, where: Any, case: Drawn, empty: Any) -> Any:
    """Return what a block and its ghosts are to hold; `empty` beyond an end of the array."""
    along = [
        np.arange(it.start - width, it.stop + width)
        for it, width in zip(where, case.ghosts, strict=True)
    ]
    inside: Any = np.ones((), bool)
    indices = []
    for index, n, periodic in zip(np.ix_(*along), case.shape, case.periodic, strict=True):
        inside = inside & (((index >= 0) & (index < n)) | periodic)
        indices.append(index % n)
    found = np.where(inside, whole[tuple(indices)], np.asarray(empty, whole.dtype))
    return found.astype(whole.dtype, copy=False)  # whose byte order where() changes
