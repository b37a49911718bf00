# SPDX-License-Identifier: BSD-3-Clause
"""Layouts of MPI's datatypes, compared with what MPI_Pack and MPI_Unpack do."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from datatypes import OPEN_MPI, PAIRS, ROOM, datatypes, described, examples, overlaps
from hypothesis import assume, given, note
from hypothesis import strategies as st
from mpi4py import MPI

from rmaext.compat import Win
from rmaext.compat import datatypes as compat_datatypes
from rmaext.compat.buffers import pack, runs_of, unpack
from rmaext.compat.datatypes import layout_of
from rmaext.compat.errors import library


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
        offsets, lengths = runs_of(layout)
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
            unit = layout.basic[1]
            size = next(pair.Get_size() for pair in PAIRS if layout_of(pair).basic == layout.basic)
            assert layout.nbytes * size == bare.nbytes * unit
            assert (runs_of(layout)[1] % unit == 0).all()
            assert layout.first == bare.first
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
    assert basic[0] >= 0
    assert basic[1] == dtype.itemsize


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


def test_loops_outermost_first():
    """Loops are told as nested loops are written."""
    inner = MPI.INT.Create_vector(3, 1, 2)
    outer = inner.Create_hvector(5, 1, 100)
    run, turns = layout_of(outer).loops
    assert run == 4
    assert turns.tolist() == [[5, 100], [3, 8]]
    outer.Free()
    inner.Free()


def test_many_elements_take_no_memory():
    """A regular datatype is not spread out, however many elements there are."""
    vector = MPI.DOUBLE.Create_vector(1 << 20, 1, 2)
    layout = layout_of(vector).repeat(1 << 30)
    assert layout.loops is not None
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


def test_object_with_another_datatype():
    """What was freed, and made anew in the same object, which a C extension may do."""
    mpi, datatype, win = library(), MPI.Datatype(), Win.Allocate(128, 8)
    at = ctypes.c_void_p(MPI._addressof(datatype))
    double = type(at).from_address(MPI._addressof(MPI.DOUBLE))
    if MPI._sizeof(MPI.Datatype) == ctypes.sizeof(ctypes.c_int):
        double = ctypes.c_int.from_address(MPI._addressof(MPI.DOUBLE))
    handles = set()
    win.Lock(0)
    for stride in (2, 5, 9, 3):
        assert mpi.MPI_Type_vector(2, 1, stride, double, at) == 0
        assert mpi.MPI_Type_commit(at) == 0
        handles.add(datatype.handle)
        win.Put([np.full(2, stride, float), 2, MPI.DOUBLE], 0, (0, 1, datatype))
        assert np.frombuffer(win.tomemory())[stride] == stride
        assert mpi.MPI_Type_free(at) == 0
    win.Unlock(0)
    assert len(handles) < 4, "handles were not used again: nothing was tested"
    win.Free()


def test_other_objects_of_predefined_types():
    """They are told by their handles, so that no more is taken than there is."""
    vector = MPI.DOUBLE.Create_vector(2, 1, 2)
    win = Win.Allocate(64, 8)
    others = [
        MPI.Datatype(MPI.DOUBLE),
        vector.decode()[0],
        MPI.Datatype.fromhandle(MPI.DOUBLE.handle),
    ]
    win.Lock(0)
    for double in [MPI.DOUBLE, *others]:
        win.Put([np.arange(2.0), 2, double], 0, (0, 2, double))
        for call in (win.Put, win.Get, win.Accumulate, win.Rput):
            with pytest.raises(ValueError, match="buffer too small"):
                call([bytearray(8), 2, double], 0, (0, 2, double))
    win.Unlock(0)
    assert np.frombuffer(win.tomemory())[:2].tolist() == [0.0, 1.0]
    win.Free()
    vector.Free()


def test_what_is_no_buffer():
    """MPI.IN_PLACE and its like have addresses that nobody may touch."""
    vector, win = MPI.DOUBLE.Create_vector(2, 1, 2).Commit(), Win.Allocate(64, 8)
    win.Lock(0)
    for it in (MPI.IN_PLACE, MPI.BUFFER_AUTOMATIC):
        for what in (it, [it, 0, MPI.DOUBLE], [it, MPI.DOUBLE], [it, 1, vector]):
            for call in (win.Put, win.Get, win.Accumulate, win.Rput):
                with pytest.raises(MPI.Exception) as caught:
                    call(what, 0)
                assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    win.Unlock(0)
    win.Free()
    vector.Free()


def test_first_bytes_of_a_large_datatype():
    """The rest of it is not written out, whatever it would take."""
    large, win = MPI.DOUBLE.Create_vector((1 << 31) - 1, 1, 2).Commit(), Win.Allocate(64, 8)
    head = layout_of(large).head(28)
    assert (head.nbytes, head.number) == (28, 4)
    win.Lock(0)
    with pytest.raises(MPI.Exception):
        win.Put(np.arange(9.0), 0, (0, 1, large))
    win.Unlock(0)
    win.Free()
    large.Free()


def test_first_bytes_take_little_memory(run_python):
    """No more than the runs that there are, however short one of them is."""
    run = run_python(
        """
        import resource
        from mpi4py import MPI
        from rmaext.compat.datatypes import layout_of
        large = MPI.Datatype.Create_struct([1, 1 << 30], [0, 8], [MPI.CHAR, MPI.FLOAT])
        layout = layout_of(large)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        print(layout.head(3 << 30).number)
        """
    )
    assert run.stdout == "2\n", run.stderr


def test_handles_are_freed():
    """Those that MPI gives out with the contents of a datatype."""
    inner = MPI.INT.Create_vector(2, 1, 3)
    outer = inner.Create_vector(2, 1, 3)
    inner.Free()
    layout = layout_of(outer)
    handles = set()
    for _ in range(50):
        again = outer.Dup()
        assert np.array_equal(layout_of(again).runs(), layout.runs())
        again.Free()
        new = MPI.INT.Dup()
        handles.add(new.handle)
        new.Free()
    assert len(handles) < 10
    outer.Free()


def test_an_exception_while_a_layout_is_made(monkeypatch):
    """A signal handler's: it is the caller's, and the next call goes well."""
    flatten, raised = compat_datatypes._flatten, []

    def once(*arguments):
        if not raised:
            raised.append(True)
            raise InterruptedError("a handler")
        return flatten(*arguments)

    vector, win = MPI.DOUBLE.Create_vector(2, 1, 2).Commit(), Win.Allocate(64, 8)
    win.Lock(0)
    for call in (win.Put, win.Get, win.Accumulate, win.Rput):
        again = vector.Dup()
        monkeypatch.setattr(compat_datatypes, "_flatten", once)
        with pytest.raises(InterruptedError):
            call([np.ones(2), 2, MPI.DOUBLE], 0, (0, 1, again))
        call([np.ones(2), 2, MPI.DOUBLE], 0, (0, 1, again))
        raised.clear()
        again.Free()
    win.Unlock(0)
    assert np.frombuffer(win.tomemory())[:4].tolist() == [1.0, 0.0, 1.0, 0.0]  # Rput's
    win.Free()
    vector.Free()


def test_before_mpi_is_initialised(run_python):
    """A program may call MPI.Init() itself, after the import."""
    run = run_python(
        """
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        from rmaext.compat.datatypes import layout_of
        import rmaext.compat
        MPI.Init()
        vector = MPI.INT.Create_vector(2, 1, 2)
        print(layout_of(vector).nbytes)
        vector.Free()
        MPI.Finalize()
        """
    )
    assert (run.returncode, run.stdout) == (0, "8\n"), run.stderr
