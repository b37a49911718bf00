# SPDX-License-Identifier: BSD-3-Clause
"""The operations of compat.Win, between any two datatypes, against NumPy; on all routes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
import pytest
from datatypes import datatypes, examples, overlaps
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.guarded import UPDATES, Guarded, guarded, in_threads, neighbour, sparse
from support.updates import COMBINATIONS, MPI_OPERATIONS, apply, dtype_of, equal, sample

import rmaext
from rmaext._native import cmethods
from rmaext.compat import transfer
from rmaext.compat.buffers import pack, unpack
from rmaext.compat.datatypes import layout_of

SIZE = 4096  # bytes of a rank's window
UNITS = [1, 4, 8]


class Win(cmethods.Win):
    """The operations of compat.Win without epochs: each rank may be accessed."""

    _Put, _Get, _Accumulate = transfer.put, transfer.get, transfer.accumulate
    _Get_accumulate, _Fetch_and_op = transfer.get_accumulate, transfer.fetch_and_op
    _Compare_and_swap = transfer.compare_and_swap

    def __init__(self, window: Any, units: list[int]) -> None:
        self._window, self._units = window, units
        self._be(False, window, units, set(range(len(units))), set())

    def _enter(self, call: str, rank: int) -> None:
        """Of MPI.PROC_NULL, which is not among them."""

    def _report(self, cause: Exception) -> NoReturn:
        raise cause


@contextlib.contextmanager
def window(comm: Any, size: int = SIZE, fill: Any = 0, shift: int = 0) -> Iterator[Any]:
    """A Win with other displacement units on each rank."""
    with guarded(comm, size, np.uint8, fill, shift) as win:
        units = [UNITS[rank % len(UNITS)] for rank in range(comm.size)]
        yield Win(win, units)


@contextlib.contextmanager
def dynamic(comm: Any, size: int = SIZE) -> Iterator[tuple[Any, list[int]]]:
    """The same with attached memory; and where it is on each rank."""
    memory = Guarded(size, np.uint8)
    with rmaext.Window.dynamic(comm, np.uint8) as win:
        places = comm.allgather(win.attach(memory.array))
        yield Win(win, [1] * comm.size), places
        comm.Barrier()
        win.detach(memory.array)
    memory.check()


def contents(win: Any, rank: int) -> np.ndarray:
    """A rank's memory, after all that was sent there."""
    win._window.flush(rank)
    return win._window.get(rank)


def struct() -> MPI.Datatype:
    """Two ints, a gap, a double: which no loop describes."""
    return MPI.Datatype.Create_struct([2, 1], [0, 16], [MPI.INT, MPI.DOUBLE])


# 24 doubles each, of whatever layout: as many bytes
LAYOUTS = {
    "contiguous": (24, lambda: MPI.DOUBLE.Dup()),
    "vector": (2, lambda: MPI.DOUBLE.Create_vector(4, 3, 5)),
    "backwards": (1, lambda: MPI.DOUBLE.Create_hvector(24, 1, -16).Create_resized(0, 8)),
    "subarray": (1, lambda: MPI.DOUBLE.Create_subarray([7, 5, 4], [2, 4, 3], [3, 1, 0])),
    "fortran": (1, lambda: MPI.DOUBLE.Create_subarray(
        [7, 5, 4], [2, 4, 3], [3, 1, 0], MPI.ORDER_F)),
    "indexed": (2, lambda: MPI.DOUBLE.Create_indexed([3, 1, 6, 2], [20, 3, 7, 0])),
    "hindexed": (1, lambda: MPI.DOUBLE.Create_hindexed([10, 14], [200, 8])),
    "blocks": (3, lambda: MPI.DOUBLE.Create_indexed_block(2, [9, 1, 4, 20])),
    "resized": (24, lambda: MPI.DOUBLE.Create_resized(-8, 24)),
    "nested": (2, lambda: MPI.DOUBLE.Create_vector(2, 3, 5).Create_hindexed([1, 1], [304, 16])),
    "unaligned": (2, lambda: MPI.DOUBLE.Create_hvector(12, 1, 21)),
    "darray": (1, lambda: MPI.DOUBLE.Create_darray(
        4, 1, [8, 12], [MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_BLOCK], [1, 6], [2, 2])),
}  # fmt: skip
ALIGNED = [name for name in LAYOUTS if name != "unaligned"]
BEFORE = 1024  # bytes that a layout may reach back


def layout_named(name: str) -> tuple[MPI.Datatype, int, Any]:
    count, make = LAYOUTS[name]
    datatype = make().Commit()
    return datatype, count, layout_of(datatype).repeat(count)


def local(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, 2 * SIZE, np.uint8)


def start_of(memory: np.ndarray, first: int = BEFORE) -> int:
    return int(memory.ctypes.data) + first


PAIRS = [("contiguous", name) for name in LAYOUTS] + [(name, "contiguous") for name in LAYOUTS]
PAIRS += [(name, "indexed") for name in LAYOUTS] + [("subarray", "fortran"), ("vector", "darray")]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_as_long(name):
    datatype, _, layout = layout_named(name)
    assert layout.nbytes == 24 * 8
    low, high = layout.span
    assert -BEFORE <= low < high <= SIZE - BEFORE
    datatype.Free()


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_put_and_get(comm, here, there):
    """From any layout to any other: these bytes, and no others."""
    origin, ocount, olayout = layout_named(here)
    target, tcount, tlayout = layout_named(there)
    rank, noise = neighbour(comm), local(1)[:SIZE]
    with window(comm, fill=noise) as win:
        comm.Barrier()
        disp = BEFORE // win._units[rank]
        where = (disp, tcount, target)
        source = local(2)
        want = noise.copy()
        unpack(tlayout, start_of(want), pack(olayout, start_of(source)))
        Win.Put(win, [source[BEFORE:], ocount, origin], rank, where)
        assert (contents(win, rank) == want).all()
        result = local(3)
        expected = result.copy()
        unpack(olayout, start_of(expected), pack(tlayout, start_of(want)))
        Win.Get(win, [result[BEFORE:], ocount, origin], rank, where)
        assert (result == expected).all()
        again = local(3)
        for request in transfer.get(win, [again[BEFORE:], ocount, origin], rank, where, begin=True):
            request.wait()
        assert (again == expected).all()
        source = local(4)
        unpack(tlayout, start_of(want), pack(olayout, start_of(source)))
        spec = [source[BEFORE:], ocount, origin]
        for request in transfer.put(win, spec, rank, where, begin=True):
            request.wait()
        assert (contents(win, rank) == want).all()
    origin.Free()
    target.Free()


def test_random(comm):
    """Any nested datatype on either side, anywhere in the window."""
    rank = neighbour(comm)
    want = local(9)[:SIZE]

    @settings(examples, max_examples=60)
    @given(datatypes(), st.integers(1, 3), st.integers(0, 7))
    def check(datatype: MPI.Datatype, count: int, shift: int) -> None:
        try:
            layout = layout_of(datatype).repeat(count)
            low, high = layout.span
            assume(layout.nbytes and not overlaps(layout))
            there, plain = shift - min(low, 0), (layout.nbytes, MPI.BYTE)
            assume(low >= -SIZE and high <= SIZE and there + high <= SIZE)
            assume(layout.nbytes < SIZE - 5)
            data = local(layout.nbytes)[: layout.nbytes]
            Win.Put(win, [data, *plain], rank, (there, count, datatype))
            unpack(layout, start_of(want, there), data)
            assert (contents(win, rank) == want).all()
            got = np.zeros(layout.nbytes, np.uint8)
            Win.Get(win, [got, *plain], rank, (there, count, datatype))
            assert (got == data).all()
            mine = np.zeros(2 * SIZE, np.uint8)
            spec = [mine[SIZE:], count, datatype]
            Win.Get(win, spec, rank, (3, *plain))
            got = pack(layout, start_of(mine, SIZE))
            assert (got == want[3 : 3 + layout.nbytes]).all()
            assert np.count_nonzero(mine) <= layout.nbytes
            Win.Put(win, spec, rank, (5, *plain))
            want[5 : 5 + layout.nbytes] = got
            assert (contents(win, rank) == want).all()
        finally:
            datatype.Free()

    with window(comm, fill=want) as win:
        win._units[:] = [1] * comm.size
        comm.Barrier()
        check()
        comm.Barrier()


@pytest.mark.parametrize(
    ("op", "name"), sparse([*itertools.product(("sum", "replace", "max", "no_op"), ALIGNED)])
)
def test_accumulate_layouts(comm, name, op):
    """Derived datatypes on both sides; each element once, in its place."""
    target, tcount, tlayout = layout_named(name)
    origin, ocount, olayout = layout_named("indexed")
    rank = neighbour(comm)
    start = np.arange(SIZE // 8, dtype=float)
    with window(comm, fill=start.view("u1")) as win:
        comm.Barrier()
        where = (BEFORE // win._units[rank], tcount, target)
        source = np.random.default_rng(5).integers(-9, 900, SIZE // 8).astype(float)
        memory = source.view("u1")
        operand = pack(olayout, start_of(memory)).view(float)
        want = start.copy()
        places = pack(tlayout, start_of(start.view("u1"))).view(float).astype(int)
        old = want[places]
        want[places] = UPDATES[op](old, operand)
        spec = [memory[BEFORE:], ocount, origin]
        Win.Accumulate(win, spec, rank, where, MPI_OPERATIONS[op])
        assert (contents(win, rank).view(float) == want).all()
        for result in (np.zeros(24), np.zeros(SIZE)):
            given = [result, 24, MPI.DOUBLE]
            if result.size > 24:
                given = [result.view("u1")[BEFORE:], ocount, origin]
            Win.Get_accumulate(win, spec, given, rank, where, MPI_OPERATIONS[op])
            old = want[places]
            want[places] = UPDATES[op](old, operand)
            got = (
                result
                if result.size == 24
                else pack(olayout, start_of(result.view("u1"))).view(float)
            )
            assert (got == old).all()
            assert np.count_nonzero(result) <= 24
        begun = transfer.accumulate(win, spec, rank, where, MPI_OPERATIONS[op], begin=True)
        result = np.zeros(24)
        begun += transfer.get_accumulate(
            win, spec, result, rank, where, MPI_OPERATIONS[op], begin=True
        )
        for request in begun:
            request.wait()
        want[places] = UPDATES[op](want[places], operand)
        assert (result == want[places]).all()
        want[places] = UPDATES[op](want[places], operand)
        assert (contents(win, rank).view(float) == want).all()
    origin.Free()
    target.Free()


@pytest.mark.parametrize(
    ("op", "name"), sparse([*itertools.product(("sum", "replace", "max", "no_op"), ALIGNED)])
)
@pytest.mark.parametrize("times", [1, 200])
def test_updates_by_memory_stay_in_c(comm, name, op, times, monkeypatch):
    """Long and short ones, of derived types on any side: Python would take tens of us."""
    rank, (target, tcount, _), (origin, ocount, _) = (
        neighbour(comm),
        layout_named(name),
        layout_named("indexed"),
    )
    tcount, ocount = tcount * times, ocount * times
    tlayout, olayout = layout_of(target).repeat(tcount), layout_of(origin).repeat(ocount)
    low, high = (f(f(layout.span) for layout in (tlayout, olayout)) for f in (min, max))
    size = (high - low) // 8 + 2
    start = np.arange(size, dtype=float)
    with window(comm, size * 8, start.view("u1")) as win:
        if not comm.allreduce(win._window.route(rank) == "direct", MPI.LAND):
            pytest.skip("not by memory")
        win._units[:] = [8] * comm.size
        for python in ("_Accumulate", "_Get_accumulate"):
            monkeypatch.delattr(Win, python)
        comm.Barrier()
        first, where = -(low // 8), (-(low // 8), tcount, target)
        source, into = np.random.default_rng(5).random(size), np.zeros(size)
        spec, old = ([memory[first:], ocount, origin] for memory in (source, into))
        want, overlapping = start.copy(), overlaps(tlayout)
        places = pack(tlayout, start_of(start.view("u1"), 8 * first)).view(float).astype(int)
        operand = pack(olayout, start_of(source.view("u1"), 8 * first)).view(float)
        for given in (None, old):
            if given is None:
                win.Accumulate(spec, rank, where, MPI_OPERATIONS[op])
            else:
                win.Get_accumulate(spec, given, rank, where, MPI_OPERATIONS[op])
            before = want[places]
            want[places] = UPDATES[op](before, operand)
            assert overlapping or (contents(win, rank).view(float) == want).all()
        got = pack(olayout, start_of(into.view("u1"), 8 * first)).view(float)
        assert overlapping or overlaps(olayout) or (got == before).all()
        comm.Barrier()
    origin.Free()
    target.Free()


def test_datatypes_of_threads(comm):
    """Made, used and freed by each of several threads, while another changes what they give."""
    rank, doubles = neighbour(comm), 3000  # so many that the GIL is released
    with window(comm, 4 * 2 * doubles * 8) as win:
        comm.Barrier()

        def work(number: int) -> None:
            data = np.full(doubles, number + 1.0)
            for _ in range(20):
                vector = MPI.DOUBLE.Create_vector(doubles, 1, 2).Commit()
                spec = [data, doubles, MPI.DOUBLE]
                changer = threading.Thread(target=spec.clear)
                changer.start()
                at = number * 2 * doubles * 8 // win._units[rank]
                with contextlib.suppress(ValueError, TypeError):  # it was cleared before
                    Win.Put(win, spec, rank, (at, 1, vector))
                Win.Put(win, data, rank, (at, 1, vector))
                got = np.zeros(doubles)
                Win.Get(win, got, rank, (at, 1, vector))
                assert (got == data).all()
                Win.Accumulate(win, data, rank, (at, 1, vector))
                Win.Get(win, got, rank, (at, 1, vector))
                assert (got == 2 * data).all()
                changer.join()
                vector.Free()

        in_threads(4, work)
        win._window.flush()
        comm.Barrier()


PAIR_TYPES = {
    "f4,i4": MPI.FLOAT_INT, "f8,i4": MPI.DOUBLE_INT, "i2,i4": MPI.SHORT_INT,
    "i4,i4": MPI.TWOINT, "i8,i4": MPI.LONG_INT,
}  # fmt: skip


def datatype_named(name: str) -> MPI.Datatype | None:
    """MPI's type for a dtype; not all have one, nor does an MPI have all (Open MPI 4 no f2)."""
    datatype = PAIR_TYPES.get(name) or MPI._typedict.get(dtype_of(name).char)
    return datatype if datatype and datatype.handle else None


@pytest.mark.parametrize(("op", "name"), sparse([c for c in COMBINATIONS if datatype_named(c[1])]))
def test_all_operations(comm, op, name):
    """Every operation on every type, elements in a row and not."""
    dtype, rank = dtype_of(name), neighbour(comm)
    datatype = datatype_named(name)
    number = MPI_OPERATIONS[op]
    first = sample(dtype, 100, 1)
    with window(comm, 100 * dtype.itemsize, first.view("u1")) as win:
        win._units[:] = [dtype.itemsize] * comm.size
        comm.Barrier()
        want = first.copy()

        def check(places: Any, old: Any, operand: np.ndarray) -> None:
            assert equal(old, want[places])
            want[places] = apply(op, want[places], operand)
            assert equal(contents(win, rank).view(dtype), want)

        operand = sample(dtype, 7, 2)
        old = np.zeros(7, dtype)
        spec, into = [operand, datatype], [old, datatype]
        Win.Get_accumulate(win, spec, into, rank, (3, 7, datatype), number)
        check(slice(3, 10), old, operand)
        step = datatype.Create_vector(7, 1, 3).Commit()
        Win.Get_accumulate(win, spec, into, rank, (20, 1, step), number)
        check(slice(20, 41, 3), old, operand)
        Win.Accumulate(win, spec, rank, (50, 1, step), number)
        check(slice(50, 71, 3), want[50:71:3].copy(), operand)
        step.Free()
        one, old = operand[:1].copy(), np.zeros(1, dtype)
        Win.Fetch_and_op(win, [one, datatype], [old, datatype], rank, 90, number)
        check(slice(90, 91), old, one)


@pytest.mark.parametrize("code", "?bBhHiIlLqQfdgFD")
def test_compare_and_swap(comm, code):
    rank = neighbour(comm)
    first = sample(np.dtype(code), 10, 1)
    with window(comm, first.nbytes, first.view("u1")) as win:
        win._units[:] = [first.itemsize] * comm.size
        comm.Barrier()
        old = np.zeros(1, code)
        new = (1 - first[5:6]).astype(code)
        other = (first[5:6] + 2).astype(code) if code != "?" else new.copy()
        Win.Compare_and_swap(win, new, other, old, rank, 5)
        assert old == first[5]
        assert (contents(win, rank) == first.view("u1")).all()
        Win.Compare_and_swap(win, new, first[5:6].copy(), old, rank, 5)
        assert old == first[5]
        first[5:6] = new
        assert (contents(win, rank) == first.view("u1")).all()


def test_struct(comm):
    """Elements of several types: put and get, but no updates."""
    datatype = struct().Commit()
    rank, data = neighbour(comm), local(7)
    with window(comm) as win:
        comm.Barrier()
        Win.Put(win, [data, 5, datatype], rank)
        got = np.zeros(SIZE, np.uint8)
        Win.Get(win, [got, 5, datatype], rank)
        layout = layout_of(datatype).repeat(5)
        assert (pack(layout, start_of(got, 0)) == pack(layout, start_of(data, 0))).all()
        assert (contents(win, rank) == got).all()
        assert np.count_nonzero(got) <= 80
        comm.Barrier()
        with pytest.raises(MPI.Exception) as caught:
            Win.Accumulate(win, [data, 5, datatype], rank)
        assert caught.value.Get_error_class() == MPI.ERR_TYPE
    datatype.Free()


def test_absolute_addresses(comm):
    """MPI.BOTTOM, and datatypes that lead out of the buffer which begins them."""
    rank = neighbour(comm)
    numbers = np.arange(10)
    at = MPI.Get_address(numbers)
    datatype = MPI.LONG.Create_hindexed([1, 2], [at + 72, at + 8]).Commit()
    back = MPI.LONG.Create_hindexed([1, 1], [-16, 8]).Commit()
    with window(comm) as win:
        comm.Barrier()
        Win.Put(win, [MPI.BOTTOM, 1, datatype], rank, (0, 3, MPI.LONG))
        assert contents(win, rank)[:24].view(int).tolist() == [9, 1, 2]
        Win.Put(win, [numbers[5:], 1, back], rank, (0, 2, MPI.LONG))
        assert contents(win, rank)[:24].view(int).tolist() == [3, 6, 2]
        numbers[:] = 0
        Win.Get(win, [MPI.BOTTOM, 1, datatype], rank, (0, 3, MPI.LONG))
        assert numbers.tolist() == [0, 6, 2, 0, 0, 0, 0, 0, 0, 3]
        Win.Accumulate(win, [MPI.BOTTOM, 1, datatype], rank, (0, 3, MPI.LONG))
        assert contents(win, rank)[:24].view(int).tolist() == [6, 12, 4]
    datatype.Free()
    back.Free()


BUFFERS = {
    "array": lambda: np.arange(1, 9.0),
    "fortran": lambda: np.arange(1, 9.0).reshape(2, 4).T,
    "bytearray": lambda: bytearray(range(64)),
    "bytes": lambda: bytes(range(64)),
    "memoryview": lambda: memoryview(np.arange(8)),
    "typed": lambda: [np.arange(8), MPI.LONG],
    "part": lambda: [np.arange(20), (8, 3), MPI.LONG],
    "letter": lambda: (np.arange(8), "l"),
    "scalar": lambda: np.float64(7.5),
    "allocated": lambda: MPI.Alloc_mem(64),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers(comm, name):
    """Whatever has memory, where it goes by itself and where it does not."""
    rank = neighbour(comm)
    given = BUFFERS[name]()
    whole = given[0] if isinstance(given, list | tuple) else given
    data = (
        np.asarray(whole).ravel(order="K").view("u1")
        if name != "bytes"
        else np.frombuffer(whole, "u1")
    )
    data = data[24:88] if name == "part" else data
    count = data.size // 8
    with window(comm) as win:
        comm.Barrier()
        for target in (
            None,
            8,
            (16,),
            (24, count if name not in ("bytearray", "bytes", "allocated") else data.size),
        ):
            disp = target if isinstance(target, int) else target[0] if target else 0
            Win.Put(win, given, rank, target)
            at = disp * win._units[rank]
            assert (contents(win, rank)[at : at + data.size] == data).all()
            if name in ("bytes", "scalar"):
                continue
            saved = data.copy()
            data[:] = 0
            Win.Get(win, given, rank, target)
            assert (data == saved).all()


def test_nothing(comm):
    """Operations on MPI.PROC_NULL, and on no elements."""
    one, nothing = np.ones(1), np.empty(0)
    with window(comm) as win:
        Win.Put(win, None, MPI.PROC_NULL)
        Win.Get(win, None, MPI.PROC_NULL, (0, 1, MPI.INT))
        Win.Accumulate(win, [None, MPI.INT], MPI.PROC_NULL)
        Win.Get_accumulate(win, one, one, MPI.PROC_NULL)
        Win.Fetch_and_op(win, one, one, MPI.PROC_NULL)
        Win.Compare_and_swap(win, one, one, one, MPI.PROC_NULL)
        assert transfer.put(win, one, MPI.PROC_NULL, begin=True) == []
        for rank in range(comm.size):
            Win.Put(win, nothing, rank)
            Win.Get(win, nothing, rank)
            Win.Accumulate(win, nothing, rank)
            Win.Get_accumulate(win, nothing, nothing, rank)
            Win.Put(win, [one, 0, MPI.DOUBLE], rank)
            assert not contents(win, rank).any()
        comm.Barrier()


def refused(code: int, call: Any, *arguments: Any) -> None:
    with pytest.raises(MPI.Exception) as caught:
        call(*arguments)
    assert caught.value.Get_error_class() == code


@pytest.mark.pair
def test_refused(comm):
    """Before anything is sent; the next operation works."""
    rank, data, old = neighbour(comm), np.ones(4), np.zeros(4)
    with window(comm) as win:
        last = SIZE // win._units[rank]
        vector = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
        op = MPI.Op.Create(lambda a, b, datatype: None)
        for call in (Win.Put, Win.Get, Win.Accumulate):
            short, long = [data, 3, MPI.DOUBLE], (0, 1, vector)
            if call is Win.Get:
                refused(MPI.ERR_TRUNCATE, call, win, short, rank, long)
            else:
                refused(MPI.ERR_TRUNCATE, call, win, data, rank, (0, 3))
            if call is Win.Accumulate:
                refused(MPI.ERR_TRUNCATE, call, win, short, rank, long)
            for target in (last, (last - 1, 4, MPI.DOUBLE), (1 << 60,), (last - 1, 1, vector)):
                with pytest.raises(rmaext.BoundsError):
                    call(win, data, rank, target)
            with pytest.raises(rmaext.BoundsError):
                call(win, data, comm.size)
            refused(MPI.ERR_DISP, call, win, data, rank, -1)
        refused(MPI.ERR_OP, Win.Accumulate, win, data, rank, None, op)
        refused(MPI.ERR_TYPE, Win.Accumulate, win, data, rank, (0, 8, MPI.INT))
        refused(MPI.ERR_TYPE, Win.Get_accumulate, win, data, [old, MPI.LONG], rank)
        refused(MPI.ERR_TRUNCATE, Win.Get_accumulate, win, data, old[:3], rank)
        with pytest.raises(rmaext.Unsupported):
            Win.Accumulate(win, data, rank, None, MPI.BOR)
        with pytest.raises(rmaext.AlignmentError):
            Win.Accumulate(win, data, rank, (0, 1, MPI.DOUBLE.Create_hvector(4, 1, 12)))
        with pytest.raises(TypeError):
            Win.Accumulate(win, data, rank, None, "sum")
        for wrong in (data, data.view("i4")[:1], data[:0]):
            with pytest.raises(ValueError, match=r"expecting a single|mismatch"):
                Win.Fetch_and_op(win, data[:1], wrong, rank)
            with pytest.raises(ValueError, match=r"expecting a single|mismatch"):
                Win.Compare_and_swap(win, data[:1], wrong, old[:1], rank)
        with pytest.raises((BufferError, ValueError)):
            Win.Get(win, b"12345678", rank)
        assert not contents(win, rank).any()
        comm.Barrier()
        Win.Put(win, data, rank)
        assert (contents(win, rank)[:32].view(float) == 1).all()
        vector.Free()
        op.Free()


def test_memory_out_of_line(comm):
    """What counts is where an element is, not how far from the start of the window."""
    rank, data, old = neighbour(comm), np.arange(1, 5.0), np.zeros(4)
    vector = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    with window(comm, shift=4) as win:
        win._units[:] = [1] * comm.size
        comm.Barrier()
        for target in ((4, 4, MPI.DOUBLE), (4, 1, vector)):
            Win.Accumulate(win, data, rank, target)
            Win.Get_accumulate(win, data, old, rank, target)
            assert old[0] in (1, 3)
        # twice 1, 2, 3, 4, and twice the same at every other place
        assert contents(win, rank)[4:60].view(float).tolist() == [4, 4, 10, 8, 6, 0, 8]
        for target in ((0, 4, MPI.DOUBLE), (8, 1, vector)):
            with pytest.raises(rmaext.AlignmentError):
                Win.Accumulate(win, data, rank, target)
        comm.Barrier()
    vector.Free()


def test_no_read_beyond_the_rights(comm):
    """A window that may be read only."""
    memory = Guarded(64, np.uint8)
    with rmaext.Window(comm, memory.array, access="r") as inner:
        win = Win(inner, [1] * comm.size)
        data, rank = np.ones(2), neighbour(comm)
        vector = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        for target in (None, (0, 1, vector)):
            Win.Get(win, data, rank, target)
            assert not data.any()
            for call in (Win.Put, Win.Accumulate):
                with pytest.raises(rmaext.AccessError):
                    call(win, data, rank, target)
        vector.Free()
    memory.check()


@pytest.mark.parametrize("name", ALIGNED)
def test_attached(comm, name):
    """Of a dynamic window displacements are addresses."""
    target, tcount, tlayout = layout_named(name)
    rank = neighbour(comm)
    with dynamic(comm) as (win, places):
        where = (places[rank] + BEFORE, tcount, target)
        data = np.random.default_rng(8).integers(0, 99, 24).astype(float)
        Win.Put(win, data, rank, where)
        want = np.zeros(SIZE, np.uint8)
        unpack(tlayout, start_of(want), data.view("u1"))
        got = np.empty(SIZE, np.uint8)
        Win.Get(win, got, rank, places[rank])
        assert (got == want).all()
        old = np.zeros(24)
        Win.Get_accumulate(win, data, old, rank, where)
        assert (old == data).all()
        for request in transfer.accumulate(win, data, rank, where, begin=True):
            request.wait()
        win._window.flush()
        back = np.zeros(24)
        for request in transfer.get(win, back, rank, where, begin=True):
            request.wait()
        assert (back == 3 * data).all()
        Win.Fetch_and_op(win, data[:1], old[:1], rank, places[rank])
        long = np.arange(SIZE // 8.0)
        comm.Barrier()
        Win.Put(win, long, rank, places[rank])
        Win.Get(win, got, rank, places[rank])
        assert (got.view(float) == long).all()
        with pytest.raises(rmaext.BoundsError):
            Win.Put(win, long, rank, places[rank] + 8)
    target.Free()


def test_long_runs(comm):
    """Runs that are worth a call each, and more elements than C sorts at a time."""
    rank, count = neighbour(comm), 300_000
    data = np.arange(float(count))
    runs = MPI.DOUBLE.Create_indexed([100_000, 3, 50_000], [160_000, 10, 20_000]).Commit()
    pairs = MPI.DOUBLE.Create_indexed_block(1, [2 * k ^ (k & 1) for k in range(0, 2000)])
    many = pairs.Create_resized(0, 4000 * 8).Create_contiguous(140).Commit()
    with window(comm, 8 * 600_000) as win:
        win._units[:] = [8] * comm.size
        comm.Barrier()
        for _ in range(2):
            Win.Accumulate(win, [data, 150_003, MPI.DOUBLE], rank, (5, 1, runs))
        want = np.zeros(600_000)
        places = np.r_[160_000:260_000, 10:13, 20_000:70_000] + 5
        want[places] = 2 * data[:150_003]
        assert (contents(win, rank).view(float) == want).all()
        Win.Put(win, [data, 150_003, MPI.DOUBLE], rank, (5, 1, runs))
        want[places] = data[:150_003]
        assert (contents(win, rank).view(float) == want).all()
        got = np.zeros(count)
        Win.Get(win, [got, 150_003, MPI.DOUBLE], rank, (5, 1, runs))
        assert (got[:150_003] == data[:150_003]).all()
        assert not got[150_003:].any()
        inner = np.array([2 * k ^ (k & 1) for k in range(2000)])
        places = (np.arange(140)[:, None] * 4000 + inner).ravel()
        Win.Accumulate(win, [data, 280_000, MPI.DOUBLE], rank, (0, 1, many))
        want[places] += data[:280_000]
        assert (contents(win, rank).view(float) == want).all()
        comm.Barrier()
    runs.Free()
    many.Free()


def test_order(comm):
    """Accumulates of one rank to one place, of any form, apply in their order."""
    rank = neighbour(comm)
    vector = MPI.LONG.Create_vector(3, 1, 2).Commit()
    with window(comm) as win:
        comm.Barrier()
        for k in range(200):
            one = np.full(3, k)
            if k % 3 == 0:
                Win.Accumulate(win, one, rank, (0, 1, vector), MPI.REPLACE)
            elif k % 3 == 1:
                Win.Accumulate(win, one[:1], rank, 0, MPI.REPLACE)
            else:
                transfer.accumulate(win, one[:1], rank, 0, MPI.REPLACE, begin=True)
        old = np.zeros(1, int)
        Win.Fetch_and_op(win, old, old, rank, 0, MPI.NO_OP)
        assert old == 199
        comm.Barrier()
    vector.Free()


def test_atomic(comm):
    """Derived and plain accumulates of all ranks and threads to the same elements."""
    vector = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    with window(comm) as win:
        comm.Barrier()

        def work(number: int) -> None:
            ones, old = np.ones(4), np.zeros(1)
            for _ in range(100):
                if number % 2:
                    Win.Accumulate(win, ones, 0, (0, 1, vector))
                else:
                    for k in range(0, 12, 3):
                        at = 8 * k // win._units[0]
                        Win.Fetch_and_op(win, ones[:1], old, 0, at)

        in_threads(2, work)
        win._window.flush()
        comm.Barrier()
        assert (contents(win, 0).view(float)[0:12:3] == 200 * comm.size).all()
        comm.Barrier()
    vector.Free()


@pytest.mark.parametrize("n", [50, 600, 40_000])
def test_atomic_long(comm, n):
    """The same in bulk, with and without the GIL, beside those in one piece."""
    vector = MPI.DOUBLE.Create_vector(n, 1, 3).Commit()
    with window(comm, 3 * n * 8) as win:
        comm.Barrier()

        def work(number: int) -> None:
            ones, old = np.ones(3 * n), np.zeros(3 * n)
            for turn in range(20):
                where = (0, 1, vector) if number % 2 else None
                operand = ones[:n] if number % 2 else ones
                if turn % 2:
                    Win.Accumulate(win, operand, 0, where)
                else:
                    Win.Get_accumulate(win, operand, old[: operand.size], 0, where)

        in_threads(2, work)
        win._window.flush()
        comm.Barrier()
        got = contents(win, 0).view(float)
        assert (got[::3] == 40 * comm.size).all()
        assert (got[1::3] == 20 * comm.size).all()
        comm.Barrier()
    vector.Free()


@pytest.mark.pair
@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("n", [0, 5, 23])
@pytest.mark.parametrize("name", LAYOUTS)
def test_less_than_there_is_room_for(comm, name, n, begin):
    """A short origin of a put, and a long one of a get: what there is is moved, as in MPIs."""
    rank, mine = neighbour(comm), np.arange(1.0, n + 1)
    put, get = Win.Put, Win.Get
    if begin:
        put, get = partial(transfer.put, begin=True), partial(transfer.get, begin=True)
    datatype, count, layout = layout_named(name)
    with window(comm) as win:
        win._units[:] = [1] * comm.size
        comm.Barrier()
        for request in put(win, mine, rank, (BEFORE, count, datatype)) or ():
            request.wait()
        want, found = np.zeros(SIZE, np.uint8), contents(win, rank)
        data = np.append(mine, np.zeros(24 - n))
        unpack(layout, start_of(want), data.view(np.uint8))
        assert (found == want).all()
        other = local(1)
        want = other.copy()
        whole = pack(layout, start_of(want))
        whole[: 8 * n] = mine.view(np.uint8)
        unpack(layout, start_of(want), whole)
        into = np.full(24, -1.0)
        for request in get(win, into, rank, (BEFORE, 0, datatype)) or ():
            request.wait()
        assert (into == -1).all()
        Win.Put(win, mine, rank, 0)
        there = (0, n, MPI.DOUBLE)
        spec = [other[BEFORE:], count, datatype]
        for request in get(win, spec, rank, there) or ():
            request.wait()
        assert (other == want).all()
        comm.Barrier()
    datatype.Free()


@pytest.mark.parametrize("rank", [0, MPI.PROC_NULL])
def test_negative_displacements_of_single_elements(comm, rank):
    one, number = np.ones(1), np.ones(1, int)
    with window(comm) as win:
        refused(MPI.ERR_DISP, Win.Fetch_and_op, win, one, one.copy(), rank, -1)
        swap = (number, number.copy(), number.copy())
        refused(MPI.ERR_DISP, Win.Compare_and_swap, win, *swap, rank, -1)


def test_a_read_of_nothing(comm):
    """By NO_OP, whose origin counts the target's elements: 0, into whatever room."""
    into = np.full(2, 7.0)
    with window(comm) as win:
        Win.Get_accumulate(win, [None, 0, MPI.DOUBLE], into, 0, None, MPI.NO_OP)
    assert (into == 7).all()


def test_counts_beyond_32_bits(comm):
    """A large count is refused for what it is, and one of a type without size done."""
    rank = neighbour(comm)
    nothing = MPI.DOUBLE.Create_contiguous(0).Commit()
    with window(comm) as win:
        with pytest.raises(rmaext.BoundsError):
            Win.Get(win, [MPI.BOTTOM, 1 << 40, MPI.DOUBLE], rank)
        Win.Put(win, [MPI.BOTTOM, 1 << 40, nothing], rank)
        refused(MPI.ERR_TRUNCATE, Win.Put, win, np.ones(1), rank, (0, 1 << 40, nothing))
        comm.Barrier()
    nothing.Free()


def test_freed_datatype(comm):
    """Whatever was known of it, it is none any more; its handle may be another's."""
    rank, data = neighbour(comm), np.arange(4.0)
    with window(comm) as win:
        comm.Barrier()
        for stride in 1, 2, 3:
            vector = MPI.DOUBLE.Create_vector(4, 1, stride).Commit()
            for _ in range(3):  # C knows it from the second time on
                Win.Put(win, data, rank, (0, 1, vector))
            got = contents(win, rank).view(float)[: 4 * stride : stride]
            assert (got == data).all()
            vector.Free()
            for call in (Win.Put, Win.Get, Win.Accumulate):
                refused(MPI.ERR_TYPE, call, win, data, rank, (0, 1, vector))
                refused(MPI.ERR_TYPE, call, win, [data, 1, vector], rank)
        comm.Barrier()


def test_more_datatypes_than_are_remembered(comm):
    rank, data = neighbour(comm), np.array([6, 7])
    with window(comm) as win:
        win._units[:] = [8] * comm.size
        comm.Barrier()
        vectors = [MPI.LONG.Create_vector(2, 1, step).Commit() for step in range(2, 202)]
        for _ in range(2):
            for step, vector in enumerate(vectors, 2):
                Win.Put(win, data, rank, (1, 1, vector))
                got = contents(win, rank).view(int)
                assert (got[1], got[1 + step]) == (6, 7)
                Win.Put(win, np.zeros(2, int), rank, (1, 1, vector))
        for vector in vectors:
            vector.Free()
        comm.Barrier()
