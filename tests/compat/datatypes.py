# SPDX-License-Identifier: BSD-3-Clause
"""Datatypes of MPI's, nested at random, for tests by hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from mpi4py import MPI

from rmaext._native.cmethods import Layout
from rmaext.compat.buffers import runs_of

BASIC = [MPI.BYTE, MPI.SHORT, MPI.INT, MPI.DOUBLE, MPI.C_DOUBLE_COMPLEX]
PAIRS = [MPI.FLOAT_INT, MPI.DOUBLE_INT, MPI.SHORT_INT, MPI.LONG_INT, MPI.TWOINT]
ROOM = 1 << 20  # bytes of a datatype, before and after its origin
MOST = 2000  # bytes of data in one

OPEN_MPI = MPI.Get_library_version().startswith("Open MPI")

small = st.integers(0, 4)
places = st.integers(-40, 40)
examples = settings(
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def made(kind: str, old: MPI.Datatype, draw: Any) -> MPI.Datatype:
    """Return a datatype that is made of another one."""
    if kind == "contiguous":
        return old.Create_contiguous(draw(small))
    if kind == "vector":
        return old.Create_vector(draw(small), draw(small), draw(places))
    if kind == "hvector":
        return old.Create_hvector(draw(small), draw(small), 8 * draw(places))
    if kind == "resized":
        return old.Create_resized(draw(places), draw(st.integers(1, 100)))
    if kind == "dup":
        return old.Dup()
    if kind == "subarray":
        sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        parts = [draw(st.integers(1, size)) for size in sizes]
        starts = [draw(st.integers(0, n - m)) for n, m in zip(sizes, parts, strict=True)]
        order = draw(st.sampled_from([MPI.ORDER_C, MPI.ORDER_F]))
        return old.Create_subarray(sizes, parts, starts, order)
    if kind == "darray":
        grid = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        how = [draw(st.sampled_from([MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC])) for _ in grid]
        how = [
            MPI.DISTRIBUTE_NONE if n == 1 and draw(st.booleans()) else h
            for n, h in zip(grid, how, strict=True)
        ]
        sizes = [draw(st.integers(n, 6)) for n in grid]
        given_ = []
        for n, h, size in zip(grid, how, sizes, strict=True):
            least = -(-size // n) if h == MPI.DISTRIBUTE_BLOCK else 1
            choices = [MPI.DISTRIBUTE_DFLT_DARG]
            if h != MPI.DISTRIBUTE_NONE:
                choices += [least, least + 1]
            given_.append(draw(st.sampled_from(choices)))
        ranks = int(np.prod(grid))
        order = draw(st.sampled_from([MPI.ORDER_C, MPI.ORDER_F]))
        mine = draw(st.integers(0, ranks - 1))
        return old.Create_darray(ranks, mine, sizes, how, given_, grid, order)
    at = draw(st.lists(places, max_size=5))
    counts = [draw(small) for _ in at]
    if kind == "indexed":
        return old.Create_indexed(counts, at)
    if kind == "hindexed":
        return old.Create_hindexed(counts, [8 * place for place in at])
    if kind == "indexed_block":
        return old.Create_indexed_block(draw(small), at)
    return old.Create_hindexed_block(draw(small), [8 * place for place in at])


KINDS = [
    "contiguous", "vector", "hvector", "resized", "dup", "subarray", "darray",
    "indexed", "hindexed", "indexed_block", "hindexed_block",
]  # fmt: skip


@st.composite
def datatypes(draw: Any, basics: Any = (*BASIC, *PAIRS)) -> MPI.Datatype:
    """A nested datatype, committed, that is not too large; the caller frees it."""
    current = draw(st.sampled_from(basics)).Dup()
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([*KINDS, "struct"]))
        if OPEN_MPI and not current.Get_size():
            break  # with what is empty it packs other things wrongly
        if kind == "struct":
            other = draw(st.sampled_from(basics))
            at = [draw(places), draw(places)]
            new = MPI.Datatype.Create_struct([draw(small), draw(small)], at, [current, other])
        else:
            try:
                new = made(kind, current, draw)
            except MPI.Exception:
                break  # Open MPI: a darray of which this rank has nothing
        low, extent = new.Get_true_extent()
        whole = new.Get_extent()
        if new.Get_size() > MOST or max(map(abs, (low, low + extent, *whole))) > ROOM // 8:
            new.Free()
            break
        current.Free()
        current = new
    return current.Commit()


def described(datatype: MPI.Datatype) -> str:
    """How it was made, for the report of a failure."""
    old, combiner, given = datatype.decode()
    if combiner == "NAMED":
        return datatype.Get_name()
    inner = [described(part) for part in given.pop("datatypes", [old])]
    return f"{combiner}({', '.join(inner)}, {given})"


def overlaps(layout: Layout) -> bool:
    offsets, lengths = runs_of(layout)
    order = np.argsort(offsets, kind="stable")
    return bool((offsets[order][1:] < (offsets + lengths)[order][:-1]).any())
