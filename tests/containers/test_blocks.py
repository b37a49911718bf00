# SPDX-License-Identifier: BSD-3-Clause
"""The arithmetic of blocks and keys, for all ranks in one process, against NumPy."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import drawn, key_for, with_ghosts

from rmaext.containers._array.blocks import Blocks, Plan
from rmaext.containers._array.files import _chunks, _keys


def divided(draw):
    """Return blocks, and the padded block of each rank of a whole that counts its elements."""
    size = draw.choice([1, 2, 3, 4, 6, 12])
    case = drawn(draw, size)
    blocks = Blocks(Plan.make(size, *case))
    whole = np.arange(math.prod(case.shape)).reshape(case.shape)
    padded = [np.full(blocks.padded(rank), -1) for rank in range(size)]
    for rank in range(blocks.count):
        padded[rank][blocks.inside(rank)] = whole[blocks.where(rank)]
    return case, blocks, whole, padded


def check_key(draw):
    case, blocks, whole, padded = divided(draw)
    key = key_for(draw, case.shape)
    want = whole[key]
    some = blocks.select("test", key)
    assert some.shape == want.shape
    assert some.scalar == (not isinstance(want, np.ndarray))
    out = np.full(some.shape, -2)
    for rank, inside, place in blocks.pieces(some.ranges):
        assert (out[some.back][place] == -2).all(), "none twice"
        out[some.back][place] = padded[rank][inside]
    assert (out == want).all()
    flat = [block.reshape(-1) for block in padded]
    ranks, offsets = blocks.every(some.ranges)
    assert [
        flat[r][o] for r, o in zip(ranks.flat, offsets.flat, strict=True)
    ] == want.ravel().tolist()
    runs = zip(*(it.flat for it in blocks.runs(some.ranges)), strict=True)
    assert [x for r, o, n in runs for x in flat[r][o : o + n]] == want.ravel().tolist()
    one = blocks.one(key)
    if one is not None:
        assert (padded[one[0]][one[1:]] == want).all()
        if some.scalar:
            assert flat[one[0]][blocks.offset(one)] == want


def check_halo(draw):
    case, blocks, whole, padded = divided(draw)
    for rank, block in enumerate(padded):
        filled = block.copy()
        for other, there, here in blocks.halo(rank):
            assert (filled[here] == -1).all(), "none twice"
            filled[here] = padded[other][there]
            assert rank in {piece.rank for piece in blocks.halo(other)}, "neighbours of each other"
        if block.size and rank < blocks.count:
            assert (filled == with_ghosts(whole, blocks.where(rank), case, -1)).all()


def check_pieces_of_files(draw):
    shape = drawn(draw, 1).shape
    whole = np.arange(math.prod(shape)).reshape(shape)
    chunks = _chunks(shape, draw.choice([1, 2, 5, 30, 1000]))
    parts = draw.randint(1, 5)
    found = [whole[key] for part in range(parts) for key in _keys(shape, chunks, part, parts)]
    assert [x for piece in found for x in piece.ravel()] == whole.ravel().tolist()


@pytest.mark.parametrize("check", [check_key, check_halo, check_pieces_of_files])
def test_against_numpy(check):
    run = settings(max_examples=300, derandomize=True, deadline=None, database=None)
    run(given(st.integers(0, 2**40))(lambda seed: check(random.Random(seed))))()


@pytest.mark.parametrize(
    ("size", "shape", "given", "grid"),
    [
        (4, (100, 100), None, (2, 2)),
        (6, (10, 100), None, (2, 3)),
        (6, (100, 10), None, (3, 2)),
        (4, (1, 100), None, (1, 4)),
        (16, (2, 1000), None, (2, 8)),
        (7, (100, 100, 3), (0, 2, 1), (3, 2, 1)),
        (4, (100, 100), (1, 0), (1, 4)),
        (4, (0, 0), None, (1, 1)),
        (4, (), None, ()),
    ],
)
def test_the_grid(size, shape, given, grid):
    """More blocks along longer axes, none that would be empty, and what is given stays."""
    assert Blocks(Plan.make(size, shape, given, None, None, False)).grid == grid
