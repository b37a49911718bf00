# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of MPI's datatypes, compared with what MPI_Pack and MPI_Unpack do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from mpi4py import MPI

from rmaext.compat.layout import Layout, pack, unpack
from rmaext.compat.types import layout_of

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
    offsets, lengths = layout.runs
    order = np.argsort(offsets, kind="stable")
    return bool((offsets[order][1:] < (offsets + lengths)[order][:-1]).any())


def packed(datatype: MPI.Datatype, count: int, memory: np.ndarray) -> np.ndarray:
    """What MPI_Pack makes of elements whose origin is in the middle of memory."""
    many = datatype.Create_contiguous(count)
    whole = many.Create_resized(0, ROOM).Commit()
    try:
        out = np.zeros(whole.Get_size(), np.uint8)
        if out.size:
            assert whole.Pack(memory[ROOM:], out, 0, MPI.COMM_SELF) == out.size
        return out
    finally:
        whole.Free()
        many.Free()


def unpacked(datatype: MPI.Datatype, count: int, data: np.ndarray) -> np.ndarray:
    """The memory after MPI_Unpack."""
    many = datatype.Create_contiguous(count)
    whole = many.Create_resized(0, ROOM).Commit()
    memory = np.zeros(2 * ROOM, np.uint8)
    try:
        if data.size:
            whole.Unpack(data, 0, memory[ROOM:], MPI.COMM_SELF)
        return memory
    finally:
        whole.Free()
        many.Free()


NOISE = np.random.default_rng(1).integers(1, 256, 2 * ROOM, np.uint8)


@examples
@given(datatypes(), st.integers(0, 3))
def test_nested(datatype, count):
    """Every kind of datatype, in every other one."""
    note(f"{count} of {described(datatype)}")
    try:
        layout = layout_of(datatype).repeat(count)
        assume(not (OPEN_MPI and overlaps(layout)))  # which it packs wrongly
        want = packed(datatype, count, NOISE)
        base = NOISE.ctypes.data + ROOM
        assert layout.nbytes == want.size
        assert (pack(layout, base) == want).all()
        offsets, lengths = layout.runs
        assert int(lengths.sum()) == want.size
        assert (lengths > 0).all()
        assert (offsets[1:] != (offsets + lengths)[:-1]).all(), "runs could be merged"
        low, high = layout.span
        if want.size:
            assert (low, high) == (offsets.min(), (offsets + lengths).max())
        memory = np.zeros(2 * ROOM, np.uint8)
        unpack(layout, memory.ctypes.data + ROOM, want)
        assert (memory == unpacked(datatype, count, want)).all()
    finally:
        datatype.Free()


@examples
@given(datatypes(PAIRS), st.integers(0, 3))
def test_pairs_as_a_whole(datatype, count):
    """Pairs with their gaps: as many elements, at the same places."""
    try:
        layout = layout_of(datatype, whole=True).repeat(count)
        bare = layout_of(datatype).repeat(count)
        if not bare.nbytes:
            assert not layout.nbytes
        elif layout.basic is not None:
            pieces = sum(length for _, length in layout.basic.pieces)
            assert layout.nbytes * pieces == bare.nbytes * layout.basic.unit
            assert (layout.lengths % layout.basic.unit == 0).all()
            assert layout.offsets[0] == bare.offsets[0]
    finally:
        datatype.Free()


LONG = ["LONG_DOUBLE", "REAL16", "COMPLEX32", "C_LONG_DOUBLE_COMPLEX", "CXX_LONG_DOUBLE_COMPLEX"]
NAMES = sorted(name for name in dir(MPI) if isinstance(getattr(MPI, name), MPI.Datatype))


@pytest.mark.parametrize("name", NAMES)
def test_predefined(name):
    """Size, extent and bytes of each that there is."""
    datatype = getattr(MPI, name)
    if datatype == MPI.DATATYPE_NULL or datatype.Get_size() <= 0:
        pytest.skip("this MPI has no such type")
    layout = layout_of(datatype)
    assert layout.nbytes == datatype.Get_size()
    assert layout.extent == datatype.Get_extent()[1]
    assert layout_of(datatype) is layout
    same = pack(layout.repeat(3), NOISE.ctypes.data + ROOM) == packed(datatype, 3, NOISE)
    if name in LONG:  # MPI leaves the padding out
        same = same.reshape(-1, 16)[:, :10]
    assert same.all()


NUMPY = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "g", "c8", "c16", "G"]


@pytest.mark.parametrize("code", NUMPY)
def test_has_updates(code):
    """Each of NumPy's types has a type of MPI with updates."""
    dtype = np.dtype(code)
    basic = layout_of(MPI._typedict[dtype.char]).basic
    assert basic.number >= 0
    assert basic.unit == dtype.itemsize


@pytest.mark.parametrize(
    ("create", "arguments", "like"),
    [
        (MPI.Datatype.Create_f90_integer, (9,), MPI.INT),
        (MPI.Datatype.Create_f90_integer, (18,), MPI.LONG),
        (MPI.Datatype.Create_f90_real, (6, 30), MPI.FLOAT),
        (MPI.Datatype.Create_f90_real, (15, 300), MPI.DOUBLE),
        (MPI.Datatype.Create_f90_complex, (15, 300), MPI.C_DOUBLE_COMPLEX),
    ],
)
def test_f90(create, arguments, like):
    datatype = create(*arguments)
    assert layout_of(datatype).basic == layout_of(like).basic
    vector = datatype.Create_vector(2, 1, 3)
    assert layout_of(vector).basic == layout_of(like).basic
    vector.Free()


def test_mixed():
    """A struct of several types has none, one of one type has it."""
    one = MPI.Datatype.Create_struct([2, 1], [0, 16], [MPI.INT, MPI.INT])
    two = MPI.Datatype.Create_struct([2, 1], [0, 16], [MPI.INT, MPI.FLOAT])
    assert layout_of(one).basic == layout_of(MPI.INT).basic
    assert layout_of(two).basic is None
    one.Free()
    two.Free()


def test_many_elements_take_no_memory():
    """A regular datatype is not spread out, however many elements there are."""
    vector = MPI.DOUBLE.Create_vector(1 << 20, 1, 2)
    layout = layout_of(vector).repeat(1 << 30)
    assert layout.lengths.size == 1
    assert layout.nbytes == 8 << 50
    assert layout_of(MPI.DOUBLE).repeat(1 << 50).whole
    vector.Free()


def test_handle_used_again():
    """A freed datatype's layout is not that of the next one with its handle."""
    seen = set()
    for count in range(1, 200):
        datatype = MPI.INT.Create_contiguous(count)
        seen.add(datatype.handle)
        assert layout_of(datatype).nbytes == 4 * count
        datatype.Free()
    assert len(seen) < 199, "handles were not used again: nothing was tested"


def test_handles_are_freed():
    """Those that MPI gives out with the contents of a datatype."""
    inner = MPI.INT.Create_vector(2, 1, 3)
    outer = inner.Create_vector(2, 1, 3)
    inner.Free()
    layout = layout_of(outer)
    handles = set()
    for _ in range(50):
        again = outer.Dup()
        assert (layout_of(again).runs[0] == layout.runs[0]).all()
        again.Free()
        new = MPI.INT.Dup()
        handles.add(new.handle)
        new.Free()
    assert len(handles) < 10
    outer.Free()


def test_before_mpi_is_initialised(run_python):
    """A program may call MPI.Init() itself, after the import."""
    run = run_python(
        """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        from rmaext.compat.types import layout_of
        import rmaext.compat
        MPI.Init()
        vector = MPI.INT.Create_vector(2, 1, 2)
        print(layout_of(vector).nbytes)
        vector.Free()
        MPI.Finalize()
        """
    )
    assert (run.returncode, run.stdout) == (0, "8\n"), run.stderr
