# SPDX-License-Identifier: BSD-3-Clause
"""accumulate, get_accumulate, fetch_op: all operations on all dtypes, against NumPy.

A run has each operation and each dtype; test_concurrent_updates.py has all combinations, too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import launch
import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import Guarded, guarded, neighbour, same, sparse
from support.updates import (
    ANY,
    COMBINATIONS,
    COMPLEX,
    FLOATS,
    INTEGERS,
    LOC,
    MPI_OPERATIONS,
    OPERATIONS,
    PAIRS,
    SCALARS,
    apply,
    defined,
    dtype_of,
    equal,
    sample,
)

import rmaext
from rmaext._native._lib import ffi

X86 = platform.machine() == "x86_64"

REFUSED = [
    (op, name)
    for op in OPERATIONS
    for name in [*SCALARS, *PAIRS]
    if not defined(op, dtype_of(name))
]


# -- one origin ------------------------------------------------------------------


@pytest.mark.parametrize(("op", "name"), sparse(COMBINATIONS))
def test_operation(comm, op, name):
    """In each form: one or many elements, in bulk or not, with and without the old values."""
    dtype, rank, count = dtype_of(name), neighbour(comm), 3000
    want = sample(dtype, count, 1)
    with guarded(comm, count, dtype, want) as win:
        for at, length in (0, 1), (1, 7), (10, 2900), (2999, 1):
            operand = sample(dtype, length, 2, at)
            part = want[at : at + length]
            win.accumulate(operand, rank, at, op)
            part[:] = apply(op, part, operand)
            win.flush(rank)
            assert equal(win.get(rank, at, length), part)
            assert equal(win.get_accumulate(operand, rank, at, op), part)
            part[:] = apply(op, part, operand)
            value = operand[0]
            old = win.fetch_op(value, rank, at, op)
            assert type(old) is dtype.type
            assert equal(old, part[0])
            part[:1] = apply(op, part[:1], operand[:1])
        places = np.arange(0, 60, 2)
        values = sample(dtype, 30, 3)
        win.accumulate_many(rank, places, values, op)
        want[places] = apply(op, want[places], values)
        assert equal(win.fetch_op_many(rank, places, values, op), want[places])
        want[places] = apply(op, want[places], values)
        win.fence()
        assert equal(win.local, want)
        win.fence()


@pytest.mark.parametrize("op", OPERATIONS)
def test_operations_of_mpi4py(comm, op):
    dtype, rank = dtype_of("f8,i8" if op in LOC else "u4"), neighbour(comm)
    before, operand = sample(dtype, 4, 1), sample(dtype, 4, 2)
    with guarded(comm, 4, dtype, before) as win:
        assert equal(win.get_accumulate(operand, rank, op=MPI_OPERATIONS[op]), before)
        win.fence()
        assert equal(win.local, apply(op, before, operand))
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize("count", [1, 200, 3000])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_around(comm, name, count):
    rank, dtype = neighbour(comm), np.dtype(name)
    info = np.iinfo(dtype)
    for op, start, operand in (
        ("sum", info.max, 1),
        ("sum", info.min, info.max),
        ("prod", info.max, 3),
        ("prod", info.max, info.max),
        ("min", info.max, info.min),
        ("max", info.min, info.max),
        ("land", info.max, 0),
        ("lxor", info.max, info.max),
    ):
        with guarded(comm, count, dtype, start) as win:
            before, other = np.full(count, start, dtype), np.full(count, operand, dtype)
            win.accumulate(other, rank, 0, op)
            win.fence()
            assert same(win.local, apply(op, before, other)), (op, start, operand)
            win.fence()


def corners(dtype):
    """All pairs of numbers at the limits, and some of which each product is rounded."""
    info = np.finfo(dtype)
    real = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, info.max, info.smallest_subnormal]
    values = np.array(real, info.dtype).astype(dtype)
    if dtype.kind == "c":
        values = np.tile(values, len(real))
        values.imag = np.repeat(real, len(real))
    pairs = np.array(list(itertools.product(values, values)), dtype)
    drawn = np.random.default_rng(3).normal(size=(600, 2)) * (1 + (1j if dtype.kind == "c" else 0))
    drawn += np.random.default_rng(4).normal(size=(600, 2))
    return np.concatenate([pairs, drawn.astype(dtype)]).T.copy()


def alike(got, want, ties):
    """Bit by bit, but for the kind of NaN; and for either of two zeros, where ``ties``."""
    real = got.real.dtype
    got, want = (np.ascontiguousarray(it).view(real) for it in (got, want))
    signs = (np.signbit(got) == np.signbit(want)) | np.isnan(want) | ties
    return np.array_equal(got, want, equal_nan=True) and bool(signs.all())


@pytest.mark.pair
@pytest.mark.parametrize("form", ["bulk", "single", "many"])
@pytest.mark.parametrize("name", [*FLOATS, *COMPLEX])
def test_results_are_numpys_to_the_bit(comm, name, form):
    """With NaN, infinities, signed zeros, overflow and rounding, however many elements."""
    rank, dtype = neighbour(comm), np.dtype(name)
    before, operand = corners(dtype)
    if form == "single":  # a call for each: fewer of them
        step = before.size // 100 | 1
        before, operand = before[::step].copy(), operand[::step].copy()
    places = np.arange(before.size)
    with guarded(comm, before.size, dtype) as win:
        for op in ("sum", "prod", "min", "max", "land", "lor", "lxor", "replace"):
            if not defined(op, dtype):
                continue
            win.local[:] = before
            win.fence()
            if form == "bulk":
                win.accumulate(operand, rank, 0, op)
            elif form == "many":
                win.fetch_op_many(rank, places, operand, op)
            else:
                for i, value in enumerate(operand):
                    (win.fetch_op if i % 2 else win.accumulate)(value, rank, i, op)
            win.fence()
            # NumPy has other instructions for these on other CPUs
            free = op in ("min", "max") and not X86
            ties = (before == 0) & (operand == 0) if free else False
            assert alike(win.local, apply(op, before, operand), ties), op
            win.fence()


@pytest.mark.parametrize("name", ["f4,i4", "f8,i4", "f8,i8", "g,i4"])
def test_locations_are_those_of_argmin_and_argmax(comm, name):
    rank, dtype = neighbour(comm), dtype_of(name)
    values = [0.0, -0.0, 1.5, np.inf, -np.inf, np.nan]
    pairs = np.array(list(itertools.product(values, (-1, 0, 7))), dtype)
    before, operand = (it.ravel() for it in np.meshgrid(pairs, pairs))
    for op, arg in ("minloc", np.argmin), ("maxloc", np.argmax):
        want = before.copy()
        for i in range(before.size):
            both = sorted([before[i], operand[i]], key=lambda pair: pair[1])
            want[i] = both[arg([pair[0] for pair in both])]
        for form in "bulk", "single":
            with guarded(comm, before.size, dtype, before) as win:
                for i in range(0, before.size, 5 if form == "single" else before.size):
                    part = operand[i : i + 1] if form == "single" else operand
                    win.accumulate(part, rank, i, op)
                win.fence()
                seen = slice(None, None, 5 if form == "single" else 1)
                for k in range(2):
                    got, wanted = win.local[f"f{k}"][seen], want[f"f{k}"][seen]
                    assert np.array_equal(got, wanted, equal_nan=not k), (op, form)
                win.fence()


def test_float16_is_rounded_once(comm):
    rank = neighbour(comm)
    rng = np.random.default_rng(5)
    before, operand = rng.normal(size=(2, 2000)).astype("f2")
    for op in ("sum", "prod"):
        with guarded(comm, 2000, "f2", before) as win:
            win.accumulate(operand, rank, 0, op)
            win.fence()
            assert same(win.local, apply(op, before, operand))
            win.fence()


def test_bool_of_other_bytes_is_true(comm):
    rank = neighbour(comm)
    with guarded(comm, 4, "?") as win:
        win.local.view("u1")[:] = [0, 1, 2, 255]
        win.fence()
        win.accumulate(np.ones(4, "?"), rank, 0, "land")
        win.fence()
        assert win.local.view("u1").tolist() == [0, 1, 1, 1]
        win.fence()


# -- arguments -------------------------------------------------------------------


def test_forms_of_arguments(comm):
    rank = neighbour(comm)
    with guarded(comm, (3, 4), "i8") as win:
        win.accumulate(5, rank)
        win.accumulate(np.int64(5), rank, op="sum")
        win.accumulate(origin=np.array(5), rank=rank, offset=0)
        win.accumulate(np.array([5]), rank, 0, "".join(["s", "um"]))  # no interned string
        assert win.fetch_op(1, rank) == 20
        assert same(win.fetch_op(value=np.array(1), rank=rank, op=MPI.SUM), np.int64(21))
        zero_d = win.get_accumulate(1, rank)
        assert isinstance(zero_d, np.ndarray)
        assert zero_d.shape == ()
        assert zero_d == 22
        grid = np.arange(12).reshape(3, 4).T[:2]  # packed in C order
        win.accumulate(grid, rank, 4)
        win.flush(rank)
        assert same(win.get_accumulate(grid, rank, 4, "no_op"), grid)
        assert same(win.get_accumulate(np.empty((0, 3), "i8"), rank, 12), np.empty((0, 3), "i8"))
        win.accumulate(np.empty(0, "i8"), rank, 12, "prod")
        assert same(win.fetch_op_many(rank, [4, 5], 3, op="max"), grid.ravel()[:2])
        assert win.fetch_op_many(rank, 4, 1, "min") == 3
        win.fence()
        assert win.local.ravel()[0] == 23
        win.fence()


MISUSE = [
    (lambda w, r: w.accumulate(1, r, op="SUM"), ValueError, "one of sum"),
    (lambda w, r: w.accumulate(1, r, op=""), ValueError, "op"),
    (lambda w, r: w.accumulate(1, r, op=None), TypeError, "op"),
    (lambda w, r: w.accumulate(1, r, op=2), TypeError, "op"),
    (lambda w, r: w.get_accumulate(1, r, op=MPI.OP_NULL), ValueError, "op"),
    (lambda w, r: w.fetch_op(1, r, op=b"sum"), TypeError, "op"),
    (lambda w, r: w.accumulate_many(r, [0], 1, op="add"), ValueError, "one of sum"),
    (lambda w, r: w.accumulate(1.5, r), TypeError, "float"),
    (lambda w, r: w.accumulate(np.ones(2), r), TypeError, "float64"),
    (lambda w, r: w.accumulate([1, "2"], r), TypeError, "list"),
    (lambda w, r: w.accumulate([1, 2.5], r), TypeError, "float"),
    (lambda w, r: w.accumulate(2**63, r), OverflowError, "does not fit"),
    (lambda w, r: w.fetch_op(np.ones(1, "i8"), r), ValueError, "get_accumulate"),
    (lambda w, r: w.accumulate(1, r, op="minloc"), rmaext.Unsupported, "minloc"),
    (lambda w, r: w.accumulate(), TypeError, "origin"),
    (lambda w, r: w.accumulate(1, r, 0, "sum", 5), TypeError, "accumulate"),
    (lambda w, r: w.fetch_op(1, r, operation="sum"), TypeError, "operation"),
]


@pytest.mark.pair
@pytest.mark.parametrize("case", range(len(MISUSE)))
def test_misuse(comm, case):
    call, error, text = MISUSE[case]
    with guarded(comm, 4, "i8", 7) as win:
        rank = neighbour(comm)
        with pytest.raises(error, match=text):
            call(win, rank)
        win.accumulate(1, rank, 3)
        win.fence()
        assert win.local.tolist() == [7, 7, 7, 8]
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize(("op", "name"), sparse(REFUSED))
def test_undefined_operations_are_refused(comm, op, name):
    dtype = dtype_of(name)
    before = sample(dtype, 300, 1)
    with guarded(comm, 300, dtype, before) as win:
        for rank in range(comm.size):
            for count in 1, 300:
                for call in win.accumulate, win.get_accumulate:
                    with pytest.raises(rmaext.Unsupported) as caught:
                        call(sample(dtype, count, 2), rank, 0, op)
                    assert caught.value.rank == rank
                    assert op in str(caught.value)
            with pytest.raises(rmaext.Unsupported):
                win.fetch_op(before[0], rank, 0, op)
            for many in win.accumulate_many, win.fetch_op_many:
                with pytest.raises(rmaext.Unsupported):
                    many(rank, [0], before[:1], op)
        win.fence()
        assert equal(win.local, before)
        win.fence()


@pytest.mark.pair
@pytest.mark.parametrize(
    "dtype",
    [
        *("M8[s]", "S8", ">i4", ">f8", "i4,f8", "f8,i4,i4", "f4,f4"),
        np.dtype("f8,i4"),  # packed: not as C has it
        np.dtype([("value", ">f8"), ("index", ">i8")]),
        np.dtype([("value", "f4"), ("index", "i4", (1,))]),
    ],
    ids=str,
)
def test_dtypes_without_updates(comm, dtype):
    with guarded(comm, 3, dtype) as win:
        before = win.local.tobytes()
        rank, value = neighbour(comm), np.zeros(1, dtype)
        for op in OPERATIONS:
            with pytest.raises(rmaext.Unsupported):
                win.accumulate(value, rank, 0, op)
            with pytest.raises(rmaext.Unsupported):
                win.fetch_op(value[0] if np.dtype(dtype).names else value.reshape(()), rank, 0, op)
        win.fence()
        assert win.local.tobytes() == before
        win.fence()


def test_names_of_fields_do_not_matter(comm):
    dtype = np.dtype([("height", "f8"), ("place", "i4")], align=True)
    rank = neighbour(comm)
    with guarded(comm, 2, dtype, np.array((5.0, 9), dtype)) as win:
        win.accumulate(np.array((5.0, comm.rank), dtype), rank, 1, "maxloc")
        win.fence()
        assert win.local.tolist() == [(5.0, 9), (5.0, (comm.rank - 1) % comm.size)]
        win.fence()


@pytest.mark.parametrize("name", ["i2,i4", "f8,i4", "g", "G", "g,i4"])
def test_swap_ignores_padding(comm, name):
    dtype, rank = dtype_of(name), neighbour(comm)
    with guarded(comm, 3, dtype) as win:
        before = sample(dtype, 3, 1)
        win.local.view("u1")[:] = 0x5A
        for field in dtype.names or [...]:
            win.local[field] = before[field]
        win.fence()
        other = sample(dtype, 3, 2)
        old = win.compare_and_swap(before, other, rank)
        assert equal(old, before)
        win.fence()
        assert equal(win.local, other)
        win.fence()
        wrong = before[0]
        for count in 1, 3:
            wrong = np.zeros(count, dtype)
            old = win.compare_and_swap(wrong, before[:count], rank)
            assert equal(old, other[:count])
        win.fence()


# -- waiting for the guard ---------------------------------------------------------


class RingError(Exception):
    pass


@contextlib.contextmanager
def rings(seconds: float) -> Iterator[None]:
    """Raise RingError in the main thread after a while."""

    def ring(*_: object) -> NoReturn:
        raise RingError

    before = signal.signal(signal.SIGUSR1, ring)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


CALLS = {
    "single": lambda win, rank, ones: win.accumulate(ones[:1], rank),
    "bulk": lambda win, rank, ones: win.accumulate(ones, rank),
    "old": lambda win, rank, ones: win.get_accumulate(ones, rank),
    "packed": lambda win, rank, ones: win.accumulate(np.ones(2 * ones.size)[::2], rank),
    "many": lambda win, rank, ones: win.accumulate_many(rank, np.arange(ones.size), ones),
    "request": lambda win, rank, ones: win.raccumulate(ones, rank).wait(),
}


@pytest.mark.parametrize("call", CALLS)
def test_waiting_for_the_guard_ends(comm, call):
    """By a signal, or the time limit; also where no network is waited for."""
    rank, ones = comm.rank, np.ones(1000)
    with rmaext.Window.allocate(comm, 1000, timeout=20) as win:
        if win.route(rank) != "direct":
            pytest.skip("waits at the target: tests/c/exec/stopped_rank.c")
        holder = ffi.cast("unsigned int *", win._block.maps[rank])
        holder[0] = 1 + rank  # which is in bulk
        with pytest.raises(RingError), rings(0.1):
            CALLS[call](win, rank, ones)
        start = time.monotonic()
        with pytest.raises(rmaext.RmaTimeout):
            CALLS[call](win.dup(timeout=0.5), rank, ones)
        assert time.monotonic() - start > 0.3
        timer = threading.Timer(0.25, holder.__setitem__, (0, 0))
        timer.start()
        CALLS[call](win, rank, ones)
        timer.join()
        win.flush()
        assert win.local[0] == 1
        assert win.local.sum() == (1 if call == "single" else 1000)


# -- alignment and rights ----------------------------------------------------------


ALIGNMENTS = [(name, 1) for name in ("i2", "f4", "f8", "c16", "i4,i4", "f8,i8")]
ALIGNMENTS += [("f8", 4), ("c8", 4), ("c16", 4), ("g", 8), ("f4,i4", 4), ("i8,i8", 4), ("f2", 1)]


@pytest.mark.pair
@pytest.mark.parametrize(("name", "shift"), ALIGNMENTS)
def test_misaligned_memory(comm, name, shift):
    dtype, rank = dtype_of(name), neighbour(comm)
    if name == "g" and dtype.alignment <= 8:
        pytest.skip("long double is a double here")
    mine = Guarded(4, np.uint8 if dtype.names else dtype, shift)
    if dtype.names:
        mine = Guarded(4 * dtype.itemsize, np.uint8, shift)
        mine.array = mine.array.view(dtype)
    with rmaext.Window(comm, mine.array) as win:
        op = "maxloc" if dtype.names else "sum"
        value = sample(dtype, 1, 1)
        for call in (
            lambda: win.accumulate(value, rank, 1, op),
            lambda: win.get_accumulate(value, rank, 1, op),
            lambda: win.get_accumulate(value, rank, 1, "no_op"),
            lambda: win.fetch_op(value[0], rank, 1, op),
            lambda: win.compare_and_swap(value, value, rank, 1),
            lambda: win.accumulate_many(rank, [1], value, op),
            lambda: win.fetch_op_many(rank, [1], value, op),
        ):
            with pytest.raises(rmaext.AlignmentError):
                call()
        win.accumulate(value[:0], rank, 1, op)  # of nothing
        win.put(value, rank, 1)
        win.flush(rank)
        assert equal(win.get(rank, 1, 1), value)
        win.fence()
    mine.check()


def test_fields_of_packed_records(comm):
    """Every other record has its number out of line."""
    record = np.dtype([("flag", "i4"), ("number", "f8")])
    mine = Guarded(8 * record.itemsize, np.uint8)
    mine.array.view(record)["number"] = np.arange(8)
    fields = mine.array[4 : 4 + 7 * 12 // 8 * 8].view("f8")  # its first is record 0's
    with rmaext.Window(comm, fields) as win:
        with pytest.raises(rmaext.AlignmentError):
            win.accumulate(1.0, neighbour(comm), 0)
        win.fence()
    mine = Guarded(8 * record.itemsize, np.uint8)
    aligned = mine.array[16:].view("f8")  # record 1's number, then every third double is one
    with rmaext.Window(comm, aligned) as win:
        win.accumulate(1.5, neighbour(comm), 3)
        win.fence()
        assert mine.array.view(record)["number"].tolist() == [0, 0, 0, 1.5, 0, 0, 0, 0]
        win.fence()


def test_16_bytes_need_8(comm):
    for name in "c16", "f8,i8", "i8,i4":
        dtype, rank = dtype_of(name), neighbour(comm)
        mine = Guarded(4 * dtype.itemsize, np.uint8, 8)
        mine.array = mine.array.view(dtype)
        with rmaext.Window(comm, mine.array) as win:
            value = sample(dtype, 4, 3)
            win.accumulate(value, rank, 0, "replace")
            win.fence()
            assert equal(win.local, value)
            win.fence()
        mine.check()


# -- all origins at once -----------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "name"), sparse([(op, name) for op, name in COMBINATIONS if op not in ANY])
)
def test_all_ranks_at_once(comm, op, name):
    """Singles and bulk updates of all ranks, the target's own too: the order does not matter."""
    dtype, count, rounds = dtype_of(name), 700, 6
    before = sample(dtype, count, 1)
    if op == "prod" and dtype.kind == "f":
        before = np.where(before == 0, before, np.sign(before)).astype(dtype)

    def operand(rank: int, i: int) -> np.ndarray:
        values = sample(dtype, count, 2, rank, i)
        if op == "prod" and dtype.kind in "fc":  # exact: units, in few places 2
            units = np.array([1, -1, 1j, -1j] if dtype.kind == "c" else [1, -1])
            draw = np.random.default_rng([rank, i]).integers(0, len(units), count)
            values = units[draw].astype(dtype)
        if op == "sum" and name == "f2":
            values = np.sign(values).astype(dtype)
        return values

    with guarded(comm, count, dtype, before) as win:
        for i in range(rounds):
            mine = operand(comm.rank, i)
            for target in np.roll(range(comm.size), comm.rank):
                if i % 3 == 0:
                    win.accumulate(mine, target, 0, op)
                elif i % 3 == 1:
                    win.get_accumulate(mine, target, 0, op)
                else:
                    win.accumulate_many(target, np.arange(0, count, 2), mine[::2].copy(), op)
                    for k in range(1, 60, 2):
                        win.fetch_op(mine[k], target, k, op)
        win.fence()
        want = before.copy()
        for rank, i in itertools.product(range(comm.size), range(rounds)):
            its = operand(rank, i)
            touched = np.ones(count, bool)
            if i % 3 == 2:
                touched[61::2] = False
            want[touched] = apply(op, want[touched], its[touched])
        assert equal(win.local, want)
        win.fence()


def test_same_origin_in_order(comm):
    """Of whatever size: what came last stays."""
    count, rank = 60_000, neighbour(comm)
    with guarded(comm, count, "i8") as win:
        for i in range(1, 12):
            first = (0, 17, 30_000)[i % 3]
            length = (1, 100, 5000, count - first)[i % 4]
            win.accumulate(np.full(length, i), rank, first, "replace")
            win.accumulate(np.full(length, 1000), rank, first)
            old = win.fetch_op(i, rank, first, "replace")
            assert old == i + 1000
        win.accumulate(np.full(count, 7), rank, 0, "replace")
        win.accumulate(1, rank, 5)
        win.flush(rank)
        assert win.get(rank, 5, 1)[0] == 8
        win.fence()


def litmus(comm: Any, make: Callable[..., Any], singles: int, bulks: int) -> None:
    """Singles of all forms and bulk updates of all ranks on one target: nothing is lost."""
    count, target = 4096, comm.size - 1
    mine = make(count, "i8")
    with rmaext.Window(comm, mine) as win:
        ones, every = np.ones(count, "i8"), max(1, singles // bulks)
        places = np.arange(64)
        done = 0
        for i in range(singles):
            if i % 100 == 99:  # as many singles in one call
                win.accumulate_many(target, places, 1)
                done += 64
            elif i % 2:
                win.accumulate(1, target, i % 64)
                done += 1
            else:
                win.fetch_add(1, target, i % 64)
                done += 1
            if i % every == 0:
                win.accumulate(ones, target) if i % 3 else win.get_accumulate(ones, target)
        win.fence()
        rounds = len(range(0, singles, every))
        total = comm.allreduce(done)
        if comm.rank == target:
            assert (win.local[64:] == rounds * comm.size).all()
            assert int(win.local[:64].sum()) == total + 64 * rounds * comm.size
        win.fence()


@pytest.mark.parametrize("make", [np.zeros, rmaext.zeros], ids=["own", "arena"])
def test_singles_and_bulk_lose_nothing(comm, make):
    litmus(comm, make, 4000, 400)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", [np.zeros, rmaext.zeros], ids=["own", "arena"])
def test_a_million_singles_and_bulk_lose_nothing(world, make):
    litmus(world, make, 1_000_000 // world.size, 20_000)


@pytest.mark.parametrize("route", ["arena", "nodes", "own"])
def test_a_rank_is_killed_in_a_bulk_update(mpirun, route):
    program = launch.ROOT / "tests/ops/programs/killed_in_update.py"
    env = {"PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(3, program, route, env=env, survive=True, timeout=50)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("OK") == 2, done.stderr + done.stdout


def test_a_rank_is_stopped_in_a_bulk_update(mpirun):
    """One of the target's node; another's updates by the network wait for it, and nothing else."""
    program = launch.ROOT / "tests/ops/programs/stopped_in_update.py"
    done = mpirun(3, program, env={"PYTHONPATH": launch.PYTHONPATH}, timeout=55)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("OK") == 3, done.stderr + done.stdout


KEYS = [  # of a window of shape (6, 7, 5)
    (slice(1, 4), slice(None), slice(0, 5, 2)),
    (slice(None, None, -2), 3),
    (Ellipsis, slice(4, 1, -1)),
    (2, slice(2, 2)),
    (-1, None, slice(5, 2, -1)),
    ([0, 4], slice(None), 1),
    (1, 2, 3),
    Ellipsis,
]


@pytest.mark.pair
@pytest.mark.parametrize("key", range(len(KEYS)))
@pytest.mark.parametrize("name", ["f8", "i1", "c8"])
def test_a_part_by_its_key(comm, name, key):
    """Every rank adds to it, broadcast, in pieces or plain; nothing beside it changes."""
    key, target = KEYS[key], neighbour(comm)
    win = rmaext.Window.allocate(comm, (6, 7, 5), name)
    win.local[:] = np.arange(210).reshape(6, 7, 5) % 100
    expected = win.local.copy()
    shape = np.shape(expected[key])
    values = (np.arange(np.prod(shape, dtype=int)) % 7).astype(name).reshape(shape)
    win.fence()
    for given in (values, np.array(values, order="F"), 1, np.ones(shape, name).T[...].T):
        win.accumulate(given, target, key=key)
    win.fence()
    expected[key] += values + values + np.array(2, name)
    assert np.array_equal(win.local, expected)
    for more in ({"offset": 1}, {"op": "nothing"}):
        with pytest.raises(ValueError, match=r"key|nothing"):
            win.accumulate(values, target, key=key, **more)
    with pytest.raises(IndexError):
        win.accumulate(1, target, key=6)
    with pytest.raises((ValueError, TypeError)):
        win.accumulate(np.ones((9, 9), name), target, key=key)
    win.close()


@pytest.mark.pair
def test_parts_lose_nothing(comm):
    """Parts that cross each other are added to by all ranks at once, short and long ones."""
    win = rmaext.Window.allocate(comm, (300, 300), "i8")
    win.fence()
    for step in (20, 1):
        ones = np.ones((300 // step, 150), "i8")
        for _ in range(20):
            win.accumulate(ones, 0, key=(slice(None, None, step), slice(0, 300, 2)))
            win.accumulate(ones.T, 0, key=(slice(0, 300, 2), slice(None, None, step)))
    win.fence()
    if comm.rank == 0:
        expected = np.zeros((300, 300), "i8")
        for step in (20, 1):
            expected[::step, ::2] += 20 * comm.size
            expected[::2, ::step] += 20 * comm.size
        assert np.array_equal(win.local, expected)
    win.close()
