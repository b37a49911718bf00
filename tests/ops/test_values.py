# SPDX-License-Identifier: BSD-3-Clause
"""One rule for what a value may become, at every entrance: docs/reference/values.md."""

from __future__ import annotations

import datetime
import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from mpi4py import MPI
from support.guarded import neighbour

import rmaext
from rmaext.containers import Dict, Published, Store, TaskQueue

pytestmark = pytest.mark.pair

PARTS = np.dtype([("n", "i1"), ("in", [("name", "S3"), ("x", "f4", 2)])])
LAID_OUT = np.dtype({"names": ["f0", "f1"], "formats": ["<i8", ">f8"], "offsets": [0, 16]})
UTC = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)


def masked(value, dtype):
    return np.ma.array(value, dtype, mask=True)


# dtype: values, each with what it becomes; where that is left out, the same by NumPy
TAKEN = {
    "?": [True, False, np.True_, np.array(True)],
    "i1": [1, -128, True, np.int64(-128), np.uint64(127), np.True_, np.array(5)],
    "u1": [255, np.int8(3), np.uint64(255), np.array(255, ">i4")],
    "i4": [2**31 - 1, np.int64(-(2**31)), np.longlong(7), np.array(1, ">i2")],
    ">i4": [1, np.int32(1), np.int64(-2), np.array(3, "i4")],
    "i8": [-(2**63), np.uint64(2**63 - 1), np.int8(-1)],
    "u8": [2**64 - 1, np.uint64(2**64 - 1), np.int64(2**63 - 1)],
    "f2": [1, 2**11, 0.1, np.inf, np.float64(0.5), np.int8(3), True],
    "f4": [0.1, -0.0, 2**24, 2**60, -np.inf, np.float64(0.5), np.float16(3), np.int64(2**24)],
    "f8": [0.1, 2**53, 10**22, np.nan, np.float32(0.1), np.uint64(2**63), np.array(1.5, "f4")],
    ">f8": [0.1, 1, np.float64(0.1), np.float32(2)],
    "g": [0.1, 2**63 + 1, np.float64(0.1)],
    "c8": [0.1, 1 + 2j, 3, complex(np.nan, 1), np.complex128(1 + 2j), np.float64(0.5)],
    "c16": [0.1j, 2**53, np.complex64(0.1j), np.float32(0.1)],
    "S4": [b"", b"abcd", np.bytes_(b"ab"), (b"ab\0\0\0", b"ab"), np.array(b"abc")],
    "U3": ["", "abc", "\u00e4\U0001f600", np.str_("ab"), ("ab\0\0", "ab"), np.array("a")],
    "V3": [(b"abc", np.void(b"abc")), (b"a\0\0", np.void(b"a\0\0")), np.void(b"abc")],
    "m8[s]": [
        np.timedelta64(2, "m"),
        np.timedelta64(3000, "ms"),
        np.timedelta64("NaT", "s"),
        datetime.timedelta(days=1, seconds=2),
        5,
    ],
    "M8[D]": [
        np.datetime64("2020-01-02"),
        np.datetime64("2020-01-02T00:00"),
        np.datetime64("2020-02"),
        np.datetime64("NaT", "s"),
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2),
    ],
    "M8[us]": [datetime.datetime(2020, 1, 2, 3, 4, 5, 6), np.datetime64("2020-01-02")],
    "i4,f8": [
        (1, 2.0),
        (np.int64(1), 0.1),
        (True, np.float32(2)),
        np.array((3, 0.1), "i4,f8")[()],
        np.array((3, 0.1), LAID_OUT)[()],
        np.array((3, 0.1), LAID_OUT),
    ],
    PARTS: [
        (1, (b"abc", [0.1, 2])),
        (-128, (b"", np.array([1, 2], "f4"))),
        np.array((1, (b"a", [1, 2])), PARTS)[()],
    ],
}

TYPE, RANGE, CUT = TypeError, OverflowError, ValueError
# what is nothing of any of the dtypes
NOTHING = [None, object(), {1}, {1: 2}, Fraction(1, 2), slice(3), np.array(None), UTC]
REFUSED = {
    "?": [(TYPE, 1, 0, 1.0, "a", np.int8(1))],
    "i1": [(RANGE, 128, -129, 2**70, np.int64(300)), (TYPE, 1.0, np.float64(1), "1", 1j)],
    "u1": [(RANGE, -1, np.int64(-1), 256, np.array(-1)), (TYPE, np.timedelta64(1, "s"))],
    "i4": [(RANGE, 2**31, np.uint64(2**63)), (TYPE, np.float32(1), np.datetime64("2020"))],
    ">i4": [(RANGE, 2**31, np.int64(2**31)), (TYPE, 1.0)],
    "i8": [(RANGE, 2**63, np.uint64(2**63))],
    "u8": [(RANGE, -1, 2**64, np.int8(-1))],
    "f2": [(RANGE, 70000, 1e6, np.float32(1e6)), (CUT, 2**11 + 1, np.float64(0.1))],
    "f4": [
        (RANGE, 1e300, -1e39, 10**60, 10**400, np.float64(1e300)),
        (CUT, 2**24 + 1, np.float64(0.1), np.int64(2**24 + 1), np.longdouble(1) / 3),
        (TYPE, 1j, np.complex64(1), "1", b"1"),
    ],
    "f8": [
        (RANGE, 10**400),
        (CUT, 2**53 + 1, -(2**53) - 1, np.int64(2**63 - 1), np.uint64(2**64 - 1), 10**23),
    ],
    ">f8": [(CUT, 2**53 + 1), (TYPE, 1j)],
    "g": [(TYPE, 1j, np.complex64(1))],
    "c8": [(RANGE, 1e300j, 1e39), (CUT, 2**24 + 1, np.complex128(0.1j)), (TYPE, "1")],
    "c16": [(CUT, 2**53 + 1)],
    "S4": [(CUT, b"abcde", np.bytes_(b"abcde"), b"\0\0\0\0a"), (TYPE, "abcd", 1, bytearray(b"a"))],
    "U3": [(CUT, "abcd", np.str_("abcd")), (TYPE, b"abc", 1)],
    "V3": [(CUT, b"ab", b"abcd", np.bytes_(b"ab")), (TYPE, "abc", 1, np.void(b"ab"))],
    "m8[s]": [
        (CUT, np.timedelta64(1, "ms"), datetime.timedelta(microseconds=1)),
        (RANGE, 2**63, -(2**63), np.uint64(2**63)),
        (TYPE, 1.0, True, "1", np.datetime64("2020"), np.timedelta64(1, "Y")),
    ],
    "M8[D]": [
        (CUT, np.datetime64("2020-01-02T01"), datetime.datetime(2020, 1, 2, 3)),
        (TYPE, 1, "2020-01-02", np.timedelta64(1, "D"), datetime.timedelta(1)),
    ],
    "M8[us]": [(CUT, np.datetime64("2020-01-02T00:00:00.0000001"), np.datetime64(10**7, "Y"))],
    "i4,f8": [
        (TYPE, 1, (1.0, 2), [1, 2.0], ("1", 2), np.array((1, 2), "i4,i4").view("i4,V4")[()]),
        (TYPE, np.array((1, 2), [("a", "i4"), ("b", "f8")])[()], np.void(bytes(12))),
        (CUT, (1,), (1, 2, 3), (1, 2**53 + 1)),
        (RANGE, (2**31, 1.0), np.array((2**31, 1), LAID_OUT)[()]),
        (TYPE, masked((1, 2.0), "i4,f8"), (1, np.ma.masked)),
    ],
    PARTS: [
        (CUT, (1, (b"geneA", [1, 2])), (1, (b"a", [1])), (1, (b"a", 1)), (1, (b"a",))),
        (RANGE, (128, (b"", [1, 2])), (1, (b"", [1, 1e300]))),
        (TYPE, (1, ("a", [1, 2])), (1, (b"a", np.ones(2))), (1, b"a"), (1, (b"", masked(1, "f4")))),
    ],
}


def same(element, wanted):
    """The same bytes but for padding; NaN is NaN."""
    element, wanted = np.asarray(element), np.asarray(wanted)
    if element.dtype.kind not in "SU":  # a scalar of which is as long as it is
        assert element.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("=")
    if element.dtype.names:
        return all(same(element[name], wanted[name]) for name in element.dtype.names)
    if element.dtype.kind in "fcmM" and (element != element).all():
        return bool((wanted != wanted).all())
    return element.shape == wanted.shape and element.tolist() == wanted.tolist()


def pairs(dtype):
    for it in TAKEN[dtype]:
        if isinstance(it, tuple) and np.dtype(dtype).names is None:
            yield it[0], np.array(it[1], dtype)
        else:
            yield it, np.array(it, dtype)


def some(values, number):
    """All for the first entrance, each third for the others: each value goes through many."""
    return (it for at, it in enumerate(values) if not number or (at + number) % 3 == 0)


def refusals(dtype):
    for error, *values in REFUSED[dtype]:
        yield from ((error, value) for value in values)
    yield from ((TypeError, value) for value in NOTHING)
    if np.dtype(dtype).names is None:
        yield TypeError, masked(np.zeros((), dtype), dtype)
        yield TypeError, np.ma.masked


# entrance: call(win, rank, value), which leaves it in the first element there
PUTS = {
    "put": lambda w, r, v: w.put(v, r),
    "put list": lambda w, r, v: w.put([v], r),
    "rput": lambda w, r, v: w.rput(v, r).wait(),
    "rput key": lambda w, r, v: w.rput(v, r, key=0).wait(),
    "put_notify": lambda w, r, v: w.put_notify(v, r),
    "rput_notify": lambda w, r, v: w.rput_notify(v, r).wait(),
    "rput_notify key": lambda w, r, v: w.rput_notify(v, r, key=0).wait(),
    "put_many": lambda w, r, v: w.put_many(r, 0, v if not isinstance(v, tuple) else [v]),
    "rput_many": lambda w, r, v: w.rput_many(r, [0], [v]).wait(),
    "put_ranges": lambda w, r, v: w.put_ranges([r], [0], [1], [v]),
    "index": lambda w, r, v: w.__setitem__((r, 0), v),
    "index slice": lambda w, r, v: w.__setitem__((r, slice(0, 1)), v),
    "index array": lambda w, r, v: w.__setitem__((r, [0]), v),
    "index list": lambda w, r, v: w.__setitem__((r, slice(0, 1)), [v]),
}
UPDATES = {
    "accumulate": lambda w, r, v: w.accumulate(v, r, 0, "replace"),
    "raccumulate": lambda w, r, v: w.raccumulate(v, r, 0, "replace").wait(),
    "get_accumulate": lambda w, r, v: w.get_accumulate(v, r, 0, "replace"),
    "rget_accumulate": lambda w, r, v: w.rget_accumulate(v, r, 0, "replace").wait(),
    "fetch_op": lambda w, r, v: w.fetch_op(v, r, 0, "replace"),
    "rfetch_op": lambda w, r, v: w.rfetch_op(v, r, 0, "replace").wait(),
    "store": lambda w, r, v: w.store(v, r),
    "swap": lambda w, r, v: w.compare_and_swap(w.get(r, 0, 1)[0], v, r),
    "rswap": lambda w, r, v: w.rcompare_and_swap(w.get(r, 0, 1)[0], v, r).wait(),
    "accumulate_many": lambda w, r, v: w.accumulate_many(r, [0], [v], "replace"),
    "raccumulate_many": lambda w, r, v: w.raccumulate_many(r, [0], [v], "replace").wait(),
    "fetch_op_many": lambda w, r, v: w.fetch_op_many(r, [0], [v], "replace"),
    "swap_many": lambda w, r, v: w.compare_and_swap_many(r, [0], w.get(r, 0, 1), [v]),
    "at": lambda w, r, v: w.at(r).update(0, v, "replace"),
}
# numbers only, of which the sum with 0 is the same
SUMS = {
    "fetch_add": lambda w, r, v: w.fetch_add(v, r),
    "fetch_add_many": lambda w, r, v: w.fetch_add_many(r, [0], [v]),
    "at add": lambda w, r, v: w.at(r).add([0], v),
    "prepare_fetch_add": lambda w, r, v: w.prepare_fetch_add(v, r)(),
}
VALUES = {
    "set": lambda d, v: d.__setitem__(1, v),
    "setdefault": lambda d, v: d.setdefault(1, v),
    "set_many": lambda d, v: d.set_many([1], [v]),
}
KEYS = {
    "set": lambda d, v: d.__setitem__(v, 1),
    "add": lambda d, v: d.add(v, 1),
    "setdefault": lambda d, v: d.setdefault(v, 1),
    "set_many": lambda d, v: d.set_many([v], [1]),
    "add_many": lambda d, v: d.add_many([v], 1),
}
LOOKS = {
    "get": lambda d, v: d.get(v),
    "pop": lambda d, v: d.pop(v, None),
    "in": lambda d, v: v in d,
    "get_many": lambda d, v: d.get_many([v], 0),
    "rank_of": lambda d, v: d.rank_of([v]),
}

each_dtype = pytest.mark.parametrize("dtype", TAKEN, ids=str)


def refused(error, call, *args):
    """The error itself, and not one that derives from it by chance; the words say why."""
    with pytest.raises(error) as caught:
        call(*args)
    assert not isinstance(caught.value, rmaext.RmaError), args
    assert isinstance(caught.value, OverflowError) == (error is OverflowError), (args, caught.value)
    return str(caught.value)


@each_dtype
def test_windows(world, dtype):
    rank = neighbour(world)
    with rmaext.Window.allocate(world, 2, dtype) as win:
        blank = np.zeros(1, dtype)
        atomic = win.dtype.isnative and (win.dtype.kind in "biufc")
        calls = PUTS | (UPDATES if atomic else {}) | (SUMS if atomic else {})
        for number, (name, call) in enumerate(calls.items()):
            for value, wanted in some(pairs(dtype), number):
                if name == "prepare_fetch_add" and not np.isscalar(value):
                    continue
                win.put(blank, rank)
                win.flush(rank)
                call(win, rank, value)
                win.flush(rank)
                assert same(win.get(rank, 0, 1)[0], wanted), name
        win.put(blank, rank)
        for number, (name, call) in enumerate((PUTS | UPDATES).items()):
            for error, value in some(refusals(dtype), number):
                text = refused(error, call, win, rank, value)
                assert f"window {win._name}" in text, (name, text)
        win.fence()
        assert win.local.tobytes() == np.zeros(2, dtype).tobytes()
        while win.test_notify(0):
            pass


class Exporter:
    """What has DLPack only, as arrays of other libraries."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_buffers_and_what_has_dlpack(world):
    rank = neighbour(world)
    with rmaext.Window.allocate(world, 4, "u1") as win:
        for made in (bytes, bytearray, memoryview):
            win.put(made(b"\x01\xff\x02"), rank, 1)
            win.flush()
            assert win.get(rank).tolist() == [0, 1, 255, 2]
            win.put([0, 0, 0, 0], rank)
        win.put(Exporter(np.arange(4, dtype="u1")), rank)
        win.flush()
        assert win.get(rank).tolist() == [0, 1, 2, 3]
        assert "int64" in refused(TypeError, win.put, Exporter(np.arange(4)), rank)
        win.fence()


@each_dtype
def test_containers(world, dtype):
    with Published(world, (), dtype) as state, TaskQueue(world, dtype, 9) as queue:
        for value, wanted in pairs(dtype):
            state.publish(value)
            assert same(state.read(world.rank)[1], wanted)
            # tasks are got by all ranks: how they are made is what counts here
            assert same(rmaext.elements(value, dtype), wanted)
            assert same(rmaext.elements([value], dtype)[0], wanted)
        for error, value in refusals(dtype):
            assert "publish" in refused(error, state.publish, value)
            for tasks in (value, [value]):
                assert "put" in refused(error, queue.put, tasks)
        assert not queue._ring.holds()
        if world.size == 1:
            for value, wanted in pairs(dtype):
                queue.put(value)
                queue.put([value])
                for got in queue:
                    assert same(got, wanted)


@each_dtype
def test_values_of_a_dict(dtype):
    for name, call in VALUES.items():
        with Dict(MPI.COMM_SELF, "i8", dtype, 9) as table:
            for value, wanted in pairs(dtype):
                table.pop(1, None)
                call(table, value)
                assert same(table[1], wanted), name
                assert same(table.get_many([2], value)[0], wanted)
            for error, value in some(refusals(dtype), list(VALUES).index(name)):
                assert "value" in refused(error, call, table, value), name
                assert "default" in refused(error, table.get_many, [2], [value])
            assert same(table[1], wanted)


def of_keys(dtype):
    """A dtype that keys can have, and the same for a value."""
    return np.dtype([("k", dtype)]) if np.dtype(dtype).kind in "fcb" else np.dtype(dtype)


@each_dtype
def test_keys_of_a_dict(dtype):
    kind = of_keys(dtype)
    wrap = (lambda value: (value,)) if kind != np.dtype(dtype) else (lambda value: value)
    with Dict(MPI.COMM_SELF, kind, "i8", 99) as table:
        for value, wanted in pairs(dtype):
            if isinstance(value, bool | np.bool_) and kind.kind in "iu":
                continue
            key = wrap(value)
            try:
                rmaext.elements(key, kind, exact=True)
            except (TypeError, ValueError):
                assert dtype in ("f2", "f4", "c8", "i4,f8", PARTS) or isinstance(
                    value, bool | np.bool_
                )
                continue
            for name, call in KEYS.items():
                call(table, key)
                assert key in table, name
                got = table.local_items().key_array
                assert len(got) == 1
                assert same(got["k"][0] if wrap(1) == (1,) else got[0], wanted), name
                assert table.pop(key) == 1
        for number, call in enumerate((KEYS | LOOKS).values()):
            for error, value in some(refusals(dtype), number):
                assert "key" in refused(error, call, table, wrap(value))
        assert len(table) == 0


def test_two_keys_are_never_one():
    with Dict(MPI.COMM_SELF, [("chromosome", "i4"), ("name", "S4")], "i8", 9) as table:
        for gene in (b"geneA", b"geneB"):
            with pytest.raises(ValueError, match=r"key: field 'name': .* takes 4"):
                table.add((1, gene), 5)
        assert len(table) == 0
    with Dict(MPI.COMM_SELF, [("x", "f4")], "i8", 9) as table:
        with pytest.raises(ValueError, match="rounded"):
            table[(0.1,)] = 1
        table[(np.float32(0.1),)] = 1
        table[(np.nan,)] = table[(0.0,)] = table[(-0.0,)] = 2
        assert len(table) == 4
        assert (math.nan,) in table
    with Dict(MPI.COMM_SELF, "i4", "i8", 9) as table:
        with pytest.raises(TypeError):
            table[True] = 1
        table.set_many(np.arange(3), 7)  # of int64, each of which fits
        with pytest.raises(OverflowError, match="key"):
            table.set_many(np.arange(3) << 40, 7)
    records = np.zeros(2, np.dtype("i2,i8", align=True))
    records["f0"] = 1, 2
    with Dict(MPI.COMM_SELF, records.dtype, "i8", 9) as table:  # which keeps them packed
        table.set_many(records, [3, 4])
        assert table.get_many(records).tolist() == [3, 4]
        assert table[records[1]] == table[2, 0] == 4


def test_arrays_are_not_cast(comm):
    """What has a dtype and dimensions is of the dtype, in windows and what stands on them."""
    with rmaext.Window.allocate(comm, 2, "i4") as win, TaskQueue(comm, "i4", 9) as queue:
        for call in (
            lambda v: win.put(v, comm.rank),
            lambda v: win.__setitem__((comm.rank, 0), v),
            lambda v: win.at(comm.rank).add(0, v),
            queue.put,
        ):
            for wrong in (np.ones(1, "i8"), np.ones(1, ">i4"), [np.ones(1, "i2")], np.ones(0)):
                assert "astype('int32')" in refused(TypeError, call, wrong)
            for wrong in (np.ma.ones(1, "i4"), [np.ma.ones(1, "i4")], [1, np.ma.masked]):
                assert "filled()" in refused(TypeError, call, wrong)
        for call in (
            win.register,
            lambda v: win.prepare_put(v, 0),
            lambda v: win.prepare_get(v, 0),
            lambda v: win.get(0, out=v),
        ):
            assert "mask" in refused(TypeError, call, np.ma.ones(2, "i4"))
        win.fence()
    with pytest.raises(TypeError, match="mask"):
        rmaext.Window(comm, np.ma.ones(2))


class OnDevice:
    """As arrays of libraries for GPUs are."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (1,), "typestr": "<f8", "data": (0x10000, False), "version": 3}


def test_memory_of_a_device(world, monkeypatch):
    """Where no driver is, the words say what is missing, from all that take values."""
    monkeypatch.setenv("RMAEXT_CUDA", "/no/libcuda.so")
    with rmaext.Window.allocate(world, 2) as win, TaskQueue(world, "f8", 9) as queue:
        calls = [lambda: win.put(OnDevice(), 0), lambda: win.at(0).add(0, OnDevice())]
        for call in (*calls, lambda: queue.put([OnDevice()])):
            with pytest.raises(rmaext.LibraryError, match=r"OnDevice on a device: .*RMAEXT_CUDA"):
                call()


def test_what_is_no_list():
    for wrong in ([[1], [1, 2]], [1, [2]], [[1, 2], 3]):
        assert "inhomogeneous" in refused(ValueError, rmaext.elements, wrong, "i4")
    endless = []
    endless.append(endless)
    assert "within" in refused(ValueError, rmaext.elements, endless, "i4")
    assert rmaext.elements(range(3), "i2").tolist() == [0, 1, 2]
    assert rmaext.elements([[], []], "U2").shape == (2, 0)
    assert rmaext.elements([[1, True], (2.5, np.float32(3))], "f4").tolist() == [[1, 1], [2.5, 3]]
    assert rmaext.elements([1.0, math.inf, 2], "f4").tolist() == [1.0, math.inf, 2.0]
    assert "item 1 of a list: field 'f0'" in refused(
        OverflowError, rmaext.elements, [(1, 2), (300, 2)], "i1,i1"
    )


def test_samples_of_a_store(world):
    """They have no dtype that they must fit; but none is cast to that of another."""
    for wrong in ([[1, "a"]], [[2**53 + 1, 0.5]], [[1.0, np.ma.masked]], [[np.ma.ones(1)]]):
        with pytest.raises((TypeError, ValueError)):
            Store(world, wrong)
    with Store(world, [[1, 0.5], (True, 2.0)]) as store:
        assert store[0].tolist() == [1.0, 0.5]
        assert store[1].tolist() == [1.0, 2.0]


FIELDS = {
    "i1": st.integers(-200, 200) | st.floats(),
    "u8": st.integers(-1, 2**64),
    "f4": st.floats() | st.floats(width=32) | st.integers(-(2**25), 2**25),
    "f8": st.floats() | st.integers(-(2**60), 2**60),
    "S3": st.binary(max_size=4) | st.text(max_size=2),
    "U2": st.text(max_size=3) | st.just(b"a"),
    "m8[s]": st.timedeltas(),
    "M8[D]": st.dates() | st.datetimes(),
}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_records(data):
    """A record reads back as what was given, or it was refused; what NumPy makes so is taken."""
    names = data.draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4))
    value = tuple(data.draw(FIELDS[name]) for name in names)
    dtype = np.dtype([(f"f{number}", name) for number, name in enumerate(names)])
    try:
        got = rmaext.elements(value, dtype, exact=True).item()
    except (TypeError, ValueError, OverflowError):
        got = None
    if got is not None:
        for one, two in zip(got, value, strict=True):
            if isinstance(two, str | bytes):
                two = two.rstrip("\0" if isinstance(two, str) else b"\0")
            if isinstance(one, datetime.date) and isinstance(two, datetime.datetime):
                one = datetime.datetime(one.year, one.month, one.day)
            assert one == two or (one != one and two != two)
        return
    with np.errstate(all="ignore"):
        try:
            made = np.array(value, dtype).item()
        except (TypeError, ValueError, OverflowError):
            return
    assert [type(one) for one in made] != [type(one) for one in value] or made != value
