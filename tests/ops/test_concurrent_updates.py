# SPDX-License-Identifier: BSD-3-Clause
"""Operations on dtypes: exact against NumPy, from all ranks at once, or refused.

Whatever the order in which the ranks' updates of one element come, each finds what another one
has left: the previous values and the last one are the first one and the new values. This needs
no operation whose order is no matter, and shows a lost update, a torn and a wrong one alike.
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest
from support.guarded import UPDATES, guarded, neighbour, noise, same

import rmaext

DTYPES = [*"?bBhHiIqQefdgFDG"]
EXTREMES = {"min", "max"}
LOGICAL = {"land", "lor", "lxor"}
BITWISE = {"band", "bor", "bxor"}
ANY_BITS = {"replace", "no_op"}
PAIRS = ["f,i", "d,i", "h,i", "i,i", "q,i", "d,q", "q,q", "g,i"]
OTHERS = ["M8[s]", "m8[us]", "S8", "S5", "i4,f8"]


def defined(op, dtype):
    kind = np.dtype(dtype).kind
    return not ((op in BITWISE and kind in "fc") or (op in EXTREMES and kind == "c"))


PER_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def ops_of(dtype):
    return [op for op in UPDATES if defined(op, dtype)]


def pair_dtype(name):
    value, index = name.split(",")
    return np.dtype([("value", value), ("index", index)], align=True)


def reference(op, old, new):
    """What NumPy makes of the two arrays, in their dtype."""
    if op in ("minloc", "maxloc"):
        sign = 1 if op == "minloc" else -1
        value_old, value_new = sign * old["value"], sign * new["value"]
        later = (value_new < value_old) | ((value_new == value_old) & (new["index"] < old["index"]))
        return np.where(later, new, old)
    with np.errstate(all="ignore"):
        return UPDATES[op](old, new).astype(old.dtype)


def draw(op, dtype, shape, *seed):
    """Values of the dtype, of which few take part in one element so that it stays finite."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([zlib.crc32(f"{op} {dtype}".encode()), *seed])
    if dtype.names:
        values = np.zeros(shape, dtype)
        values["value"] = rng.integers(-3, 4, shape)
        values["index"] = rng.integers(0, 1000, shape)
        return values
    count = int(np.prod(shape))
    if dtype.kind in "bui" or op in ANY_BITS:
        if op in LOGICAL and dtype.kind != "b":
            return rng.integers(0, 2, shape).astype(dtype)
        values = noise(dtype, count, *rng.integers(0, 1 << 30, 4)).reshape(shape)
        if dtype.kind in "fc":  # as bits: a signalling NaN would not survive NumPy's copies
            values = rng.normal(size=shape).astype(dtype)
        return values
    if op in LOGICAL:
        return (rng.integers(0, 2, shape) * 0.5).astype(dtype)
    if op == "prod" and dtype.kind == "c":  # NumPy's own products differ in the last bit
        return rng.choice([1, -1, 1j, -1j, 1 + 1j], shape).astype(dtype)
    if op == "prod":
        return (rng.choice([-1, 1], shape) * rng.uniform(0.8, 1.25, shape)).astype(dtype)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-2, 3, shape)).astype(dtype)


def as_sets(*arrays):
    """Sort the values that each element took."""
    joined = np.concatenate(arrays)
    if joined.dtype.names:
        return np.sort(joined, axis=0, order=list(joined.dtype.names))
    return np.sort(joined, axis=0)


def equal(one, two):
    """Equal as numbers: 0.0 is -0.0, NaN is NaN."""
    if one.dtype.names or one.dtype.kind not in "fc":
        return bool((one == two).all())
    return np.array_equal(one, two, equal_nan=True)


def check_chain(op, first, last, olds, values):
    """The values that were replaced and the last one: the first one and the new values."""
    news = reference(op, olds, values)
    got, want = as_sets(olds, last[None]), as_sets(news, first[None])
    wrong = [i for i in range(got.shape[1]) if not equal(got[:, i], want[:, i])]
    assert not wrong, f"{op}: elements {wrong[:5]}: {got[:, wrong[0]]}, not {want[:, wrong[0]]}"


LONG = 1100  # elements: an update in bulk, whatever the dtype
CROSSED = 777  # this one is updated singly, too


def chain(world, ops, dtype, rounds):
    """All ranks at one target: fetch_op and short and long get_accumulate."""
    short = 5
    with guarded(world, short + LONG, dtype) as win:
        for number, op in enumerate(ops):
            target = number % world.size
            first = draw(op, dtype, short + LONG, 99)
            win.local[:] = first
            win.fence()
            size = world.size

            def values(rank, i, count, op=op, size=size):
                return draw(op, dtype, count, rank, size, i, count)

            olds = []
            for i in range(rounds):
                a = win.get_accumulate(values(world.rank, i, short), target, op=op)
                single = values(world.rank, i, 1)[0]
                b = win.fetch_op(single, target, short + CROSSED, op=op)
                c = win.get_accumulate(values(world.rank, i, LONG), target, short, op=op)
                assert a.dtype == c.dtype == b.dtype == win.dtype
                olds.append((np.concatenate([a, c]), b))
            win.fence()
            everything = world.gather((olds, win.local.copy()))
            if world.rank == 0:
                last = everything[target][1]
                calls = [(rank, i) for rank in range(size) for i in range(rounds)]
                arrays = np.array([everything[rank][0][i][0] for rank, i in calls])
                given = np.array(
                    [np.concatenate([values(*call, short), values(*call, LONG)]) for call in calls]
                )
                # the crossed element by itself, with the single updates
                where = short + CROSSED
                singles = np.array([everything[rank][0][i][1] for rank, i in calls], dtype)
                added = np.array([values(*call, 1)[0] for call in calls], dtype)
                check_chain(
                    op,
                    first[where : where + 1],
                    last[where : where + 1],
                    np.concatenate([arrays[:, where], singles])[:, None],
                    np.concatenate([given[:, where], added])[:, None],
                )
                rest = np.arange(short + LONG) != where
                check_chain(op, first[rest], last[rest], arrays[:, rest], given[:, rest])
            win.fence()


@PER_DTYPE
def test_every_operation_from_all_ranks_at_once(world, dtype):
    chain(world, ops_of(dtype), dtype, rounds=2)


@pytest.mark.stress
@pytest.mark.timeout(300)
@PER_DTYPE
def test_every_operation_from_all_ranks_many_times(world, dtype):
    chain(world, [op for op in ops_of(dtype) if op != "prod"], dtype, rounds=60)


@pytest.mark.parametrize("name", PAIRS)
def test_minloc_and_maxloc_from_all_ranks_at_once(world, name):
    chain(world, ["minloc", "maxloc", "replace", "no_op"], pair_dtype(name), rounds=3)


def neutral(op, dtype, count, *seed):
    """Values whose order does not change the outcome in the last bit."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng([zlib.crc32(op.encode()), *seed])
    if dtype.kind in "fc" and op == "sum":
        return rng.integers(0, 3, count).astype(dtype)
    if dtype.kind in "fc" and op == "prod":
        return rng.choice([1, -1, 2] if dtype.kind == "f" else [1, -1, 1j], count).astype(dtype)
    return draw(op, dtype, count, *seed)


@PER_DTYPE
def test_accumulate_from_all_ranks_at_once(world, dtype):
    """Without previous values: short, long and single ones, and by request."""
    count = 2 * LONG
    with guarded(world, count, dtype) as win:
        for number, op in enumerate(ops_of(dtype)):
            if op in ANY_BITS:
                continue
            target = number % world.size
            first = neutral(op, dtype, count, 3)
            win.local[:] = first
            win.fence()

            def calls(rank, op=op):
                for i, (offset, n) in enumerate([(0, count), (5, 3), (9, 1), (7, LONG), (400, 90)]):
                    yield offset, neutral(op, dtype, n, rank, i)

            requests = []
            for i, (offset, values) in enumerate(calls(world.rank)):
                if i % 2:
                    requests.append(win.raccumulate(values, target, offset, op=op))
                else:
                    win.accumulate(values, target, offset, op=op)
            for request in requests:
                request.wait()
            win.fence()
            if world.rank == target:
                want = first.copy()
                for rank in range(world.size):
                    for offset, values in calls(rank):
                        part = want[offset : offset + len(values)]
                        part[:] = reference(op, part, values)
                assert equal(win.local, want), op
            else:
                assert same(win.local, first)
            win.fence()


@PER_DTYPE
def test_compare_and_swap_from_all_ranks_at_once(world, dtype):
    """An element that all replace in turn, if it is what they have seen."""
    dtype = np.dtype(dtype)
    steps = np.arange(2 if dtype.kind == "b" else 60).astype(dtype)
    home = world.size - 1
    with guarded(world, 3, dtype, steps[0]) as win:
        won = [
            k
            for k in range(len(steps) - 1)
            if win.compare_and_swap(steps[k], steps[k + 1], home, 1) == steps[k]
        ]
        win.fence()
        winners = sorted(itertools.chain(*world.allgather(won)))
        assert winners == list(range(len(winners))), "two ranks have won the same"
        assert winners
        assert win.get(home).tolist() == [steps[0], steps[len(winners)], steps[0]]
        win.fence()


# -- one at a time: every pair of special values ---------------------------------------


def special(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "ui":
        info = np.iinfo(dtype)
        return np.array([0, 1, 2, 3, 5, 64, info.max, info.max - 1, info.min, info.min + 1], dtype)
    info = np.finfo(dtype)
    real = [0.0, 1, -1, 0.5, 3, info.max, info.tiny, info.smallest_subnormal, 1 + info.eps]
    real += [np.inf, -np.inf, np.nan, -info.max, 1 / info.dtype.type(3)]
    real = np.array(real, info.dtype)
    if dtype.kind == "f":
        return real
    return np.array([1, -1, 1j, -1j, 2 + 3j, -4 + 1j, 0, 0.5 - 8j], dtype)


@pytest.mark.pair
@PER_DTYPE
def test_special_values_are_as_numpy_has_them(world, dtype):
    """Overflow wraps or is infinite, NaN is kept, float16 and longdouble round as they should."""
    values = special(dtype)
    old, new = (grid.ravel() for grid in np.meshgrid(values, values))
    right = neighbour(world)
    with guarded(world, old.size, dtype) as win:
        for op in ops_of(dtype):
            for way in "accumulate", "get_accumulate", "fetch_op":
                win.local[:] = old
                win.fence()
                if way == "accumulate":
                    win.accumulate(new, right, op=op)
                elif way == "get_accumulate":
                    assert equal(win.get_accumulate(new, right, op=op), old)
                else:
                    for i in range(0, old.size, 7):
                        assert equal(win.fetch_op(new[i], right, i, op=op), old[i])
                win.fence()
                want = reference(op, old, new)
                if way == "fetch_op":
                    want = np.where(np.arange(old.size) % 7, old, want)
                wrong = [
                    f"{old[i]!r} {op} {new[i]!r} is {want[i]!r}, not {win.local[i]!r}"
                    for i in range(old.size)
                    if not equal(win.local[i], want[i])
                ]
                assert not wrong, f"{way}: {len(wrong)}: {wrong[:5]}"
                win.fence()


@pytest.mark.parametrize("name", PAIRS)
def test_locations_of_extremes(world, name):
    """The smaller index where values are equal, as MPI has it."""
    dtype = pair_dtype(name)
    pairs = np.array([(v, i) for v in (-2, 0, 7) for i in (0, 1, 100)], dtype)
    old, new = (grid.ravel() for grid in np.meshgrid(pairs, pairs))
    right = neighbour(world)
    with guarded(world, old.size, dtype) as win:
        for op in "minloc", "maxloc":
            win.local[:] = old
            win.fence()
            got = win.get_accumulate(new, right, op=op)
            assert (got == old).all()
            win.fence()
            assert (win.local == reference(op, old, new)).all()
            win.fence()
            assert win.fetch_op(old[0], right, 5, op=op) is not None
            win.fence()


# -- what is undefined -----------------------------------------------------------------

LOCATIONS = ["minloc", "maxloc"]
REFUSED = {dtype: [op for op in UPDATES if not defined(op, dtype)] + LOCATIONS for dtype in DTYPES}
REFUSED |= {dtype: [*UPDATES, *LOCATIONS] for dtype in (*OTHERS, ">i4", ">f8")}
REFUSED |= {name: [op for op in UPDATES if op not in ANY_BITS] for name in PAIRS}


@pytest.mark.pair
@pytest.mark.parametrize("dtype", REFUSED)
def test_undefined_is_refused(world, dtype):
    """Before anything is sent, on every route, and the next operation works."""
    ops = REFUSED[dtype]
    with guarded(world, 4, pair_dtype(dtype) if dtype in PAIRS else dtype) as win:
        value = np.ones(1, "u1").repeat(win.dtype.itemsize).view(win.dtype)
        before = win.local.tobytes()
        for op, rank in itertools.product(ops, range(world.size)):
            for call in win.accumulate, win.get_accumulate, win.fetch_op, win.raccumulate:
                given = value.reshape(()) if call == win.fetch_op else value
                with pytest.raises(rmaext.Unsupported) as caught:
                    call(given, rank, 1, op=op)
                assert op in str(caught.value)
                assert caught.value.rank == rank
            if len(ops) > len(UPDATES):  # nothing is defined
                with pytest.raises(rmaext.Unsupported):
                    win.compare_and_swap(value, value, rank, 1)
        win.fence()
        assert win.local.tobytes() == before
        win.fence()
        win.put(value, neighbour(world), 3)
        win.fence()
        assert win.local[3:].tobytes() == value.tobytes()
        win.fence()
