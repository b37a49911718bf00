# SPDX-License-Identifier: BSD-3-Clause
"""What stands for an integer, for a rank and for an array in any call."""

from __future__ import annotations

import array

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import guarded, neighbour

import rmaext

pytestmark = pytest.mark.pair

SIZE = 10
START = np.arange(SIZE, dtype="i4") + 100
I4 = np.ones(4, "i4")


def waits(win, timeout):
    win.post([])
    try:
        win.wait(timeout=timeout)
    except (TypeError, ValueError):
        win.wait()  # the epoch goes on
        raise


TIMEOUTS = {
    "lock": lambda w, t: (w.lock(0, timeout=t), w.unlock(0)),
    "lock shared": lambda w, t: (w.lock(0, exclusive=False, timeout=t), w.unlock(0)),
    "lock_all": lambda w, t: (w.lock_all(timeout=t), w.unlock_all()),
    "wait": waits,
    "wait_notify": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_notify(0, 1, t)),
    "wait_any": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_any([0], t)),
    "wait_some": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_some([0], t)),
    "wait_all": lambda w, t: (w.put_notify(I4[:0], w.comm.rank), w.wait_all([0], t)),
    "wait_until": lambda w, t: w.wait_until(0, ">=", -(2**31), t),
    "request.wait": lambda w, t: w.rget(w.comm.rank).wait(t),
    "waitall": lambda w, t: rmaext.Request.waitall([w.rget(w.comm.rank)], t),
    "waitany": lambda w, t: rmaext.Request.waitany([w.rget(w.comm.rank)], t),
    "dup": lambda w, t: w.dup(timeout=t).close(),
    "window": lambda w, t: rmaext.Window(w.comm, np.zeros(3), timeout=t).close(),
    "allocate": lambda w, t: rmaext.Window.allocate(w.comm, 3, timeout=t).close(),
    "dynamic": lambda w, t: rmaext.Window.dynamic(w.comm, timeout=t).close(),
}


@pytest.mark.parametrize("call", TIMEOUTS.values(), ids=TIMEOUTS)
def test_one_rule_for_time_limits(comm, call):
    """None, inf, what is huge and NumPy's numbers are taken everywhere; the rest nowhere."""
    with guarded(comm, SIZE, "i4", START) as win:
        for good in (None, np.inf, 1e300, 10**400, 10**12, 60, np.float32(60), np.int64(60)):
            call(win, good)
        for wrong in (-1, -0.5, -np.inf, np.nan, np.float64("nan"), np.int64(-1)):
            with pytest.raises(ValueError, match="timeout"):
                call(win, wrong)
        for wrong in ("1", b"1", [1], True, False, 1j, object()):
            with pytest.raises(TypeError, match="timeout"):
                call(win, wrong)
        comm.Barrier()
        while win.test_notify(0):
            pass


class Index:
    """No number, but an integer wherever one is wanted."""

    def __init__(self, value):
        self._value = int(value)

    def __index__(self):
        return self._value


ONE = np.ones(1, "i4")
OTHER = np.full(1, 2, "i4")

# call(win, rank, n, zero): each integer that is given is one of the last three, n is 1
INTEGERS = {
    "put": lambda w, r, n, o: (w.put(ONE, r, o), w.flush(r)),
    "put scalar": lambda w, r, n, o: w.put(1, r, o),
    "get": lambda w, r, n, o: w.get(r, o, n),
    "get out": lambda w, r, n, o: w.get(r, o, n, ONE.copy()),
    "get rest": lambda w, r, n, o: w.get(r, n),
    "fetch_add": lambda w, r, n, o: w.fetch_add(1, r, o),
    "fetch_add array": lambda w, r, n, o: w.fetch_add(ONE, r, o),
    "cas": lambda w, r, n, o: w.compare_and_swap(0, 1, r, o),
    "accumulate": lambda w, r, n, o: w.accumulate(ONE, r, o, "max"),
    "get_accumulate": lambda w, r, n, o: w.get_accumulate(ONE, r, o),
    "fetch_op": lambda w, r, n, o: w.fetch_op(1, r, o),
    "rput": lambda w, r, n, o: w.rput(ONE, r, o).wait(),
    "rget": lambda w, r, n, o: w.rget(r, o, n).wait(),
    "raccumulate": lambda w, r, n, o: w.raccumulate(ONE, r, o).wait(),
    "rget_accumulate": lambda w, r, n, o: w.rget_accumulate(ONE, r, o).wait(),
    "rfetch_op": lambda w, r, n, o: w.rfetch_op(1, r, o).wait(),
    "rcas": lambda w, r, n, o: w.rcompare_and_swap(0, 1, r, o).wait(),
    "flush": lambda w, r, n, o: w.flush(r),
    "flush_local": lambda w, r, n, o: w.flush_local(r),
    "connect": lambda w, r, n, o: w.connect([r]),
    "prepare_put": lambda w, r, n, o: w.prepare_put(ONE, r, o)(),
    "prepare_get": lambda w, r, n, o: w.prepare_get(ONE.copy(), r, o)(),
    "prepare_fetch_add": lambda w, r, n, o: w.prepare_fetch_add(ONE, r, o)(),
    "buffer put": lambda w, r, n, o: w.register(ONE).put(r, o),
    "buffer get": lambda w, r, n, o: w.register(ONE.copy()).get(r, o),
    "buffer fetch_add": lambda w, r, n, o: w.register(ONE).fetch_add(r, o),
    "put_many": lambda w, r, n, o: w.put_many(r, o, 1),
    "put_many lists": lambda w, r, n, o: w.put_many([r, r], [o, n], OTHER),
    "get_many": lambda w, r, n, o: w.get_many(r, o),
    "get_many list": lambda w, r, n, o: w.get_many(r, [o, n]),
    "accumulate_many": lambda w, r, n, o: w.accumulate_many(r, o, 1),
    "fetch_op_many list": lambda w, r, n, o: w.fetch_op_many(r, [n, o], 1),
    "fetch_add_many": lambda w, r, n, o: w.fetch_add_many(r, o, 1),
    "put_notify": lambda w, r, n, o: w.put_notify(ONE, r, o, n),
    "get_notify": lambda w, r, n, o: w.get_notify(r, o, n, n),
    "wait_notify": lambda w, r, n, o: (
        w.put_notify(ONE[:0], w.comm.rank, o, 7),
        w.wait_notify(Index(7), n),
    ),
    "test_notify": lambda w, r, n, o: w.test_notify(n, n),
    "lock": lambda w, r, n, o: (w.lock(r), w.unlock(r)),
    "lock again": lambda w, r, n, o: [(w.lock(r, False), w.unlock(r)) for _ in range(2)],
    "start": lambda w, r, n, o: (w.post([w.comm.rank]), w.start([w.comm.rank])) and ends(w),
    "index": lambda w, r, n, o: w[r, o],
    "index array": lambda w, r, n, o: w[r, [3, 4]],
    "index slice": lambda w, r, n, o: w[r, o:n],
    "index set": lambda w, r, n, o: w.__setitem__((r, o), 1),
    "at": lambda w, r, n, o: w.at(r).add(o, 1),
    "size": lambda w, r, n, o: w.size(r),
    "route": lambda w, r, n, o: w.route(r),
    "subwindow": lambda w, r, n, o: w.subwindow(o, n).close(),
    "advise": lambda w, r, n, o: w.advise("willneed", slice(o, n)),
    "refresh": lambda w, r, n, o: w.refresh(slice(o, n)),
    "wait_until": lambda w, r, n, o: w.wait_until(o, ">=", -(2**31)),
}
# calls that take no rank, and those whose integers NumPy calls masks
NO_RANK = {"wait_notify", "test_notify", "start", "subwindow", "advise", "refresh", "wait_until"}


def ends(win):
    win.complete()
    win.wait()


def kinds():
    """Ways to write an integer: Python's, NumPy's, and of a class of one's own."""
    return [int, np.int8, np.int64, np.uint64, lambda n: np.array(n), Index, Index]


@pytest.mark.parametrize("kind", ["array", "joined", "field"])
@pytest.mark.parametrize("name", INTEGERS)
def test_whatever_has_an_index_is_an_integer(comm, name, kind):
    """In every argument that is a rank, an offset, a count or a slot; floats and text are not."""
    call = INTEGERS[name]
    lacking = {
        "joined": {"index", "at", "subwindow", "advise", "wait_until"},
        "field": {"refresh"},
    }
    if kind != "array" and any(word in name for word in lacking[kind]):
        return
    if kind == "joined":
        whole = rmaext.Window(comm, [np.zeros(3, "i4"), np.zeros(7, "i4")])
        win = whole
    elif kind == "field":
        whole = rmaext.Window(comm, np.zeros(SIZE, np.dtype("i4,i8", align=True)))
        win = whole.field("f0")
    else:
        win = whole = rmaext.Window(comm, np.zeros(SIZE, "i4"))
    rank = comm.size - 1
    for make in kinds():
        call(win, make(rank), make(1), make(0))
    if rank <= 1 and "index" not in name and "list" not in name:
        call(win, bool(rank), True, False)  # Python's bools are integers
    wrong = [float, str, complex, lambda n: np.array(float(n)), lambda n: np.float32(n)]
    for make in [] if name in NO_RANK else wrong:
        with pytest.raises(TypeError):
            call(win, make(rank), 1, 0)
    whole.fence()
    while kind != "field" and win.test_notify(1):
        pass
    whole.close()


def test_wrong_proc_null(comm):
    for wrong in (1, None, "yes", MPI.PROC_NULL):
        with pytest.raises(TypeError, match="proc_null"):
            rmaext.Window(comm, np.zeros(3), proc_null=wrong)


class Offers:
    """An array by `__array__` only."""

    def __init__(self, values, dtype):
        self._array = np.array(values, dtype)

    def __array__(self, dtype=None, copy=None):
        return self._array


class Interface:
    """An array by `__array_interface__` only."""

    def __init__(self, values, dtype):
        self._array = np.array(values, dtype)
        self.__array_interface__ = self._array.__array_interface__


def alike(dtype):
    """What NumPy takes for an array of three elements of a dtype: 1, 2 and 3."""
    made = np.array([1, 2, 3], dtype)
    code = {"i1": "b", "u2": "H", "i4": "i", "i8": "q", "f4": "f", "f8": "d"}
    both = [memoryview(made), Offers([1, 2, 3], dtype), Interface([1, 2, 3], dtype), [*made]]
    if dtype in code:
        both += [array.array(code[dtype], [1, 2, 3]), (np.ctypeslib.as_ctypes(made))]
    if dtype == "u1":
        both += [bytearray(b"\1\2\3"), memoryview(b"\1\2\3")]
    if made.dtype.kind in "iufc":
        both += [[1, 2, 3], (1, 2, 3), [True, 2, 3]]
    if made.dtype.kind in "fc":
        both += [[1.0, 2, 3], [1.0, 2.0, 3.0]]
    if made.dtype.kind == "c":
        both += [[1 + 0j, 2, 3.0]]
    return both


@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "u2", "i4", "i8", "u8", "f4", "f8", "g", "c8", "c16"]
)
def test_array_likes_are_origins(comm, dtype):
    """As NumPy takes them, without a cast of anything that has a dtype."""
    want, rank = np.array([1, 2, 3], dtype), neighbour(comm)
    with guarded(comm, 3, dtype) as win:
        for given in alike(dtype):
            for call in (
                lambda given=given: win.put(given, rank),
                lambda given=given: win.rput(given, rank).wait(),
                lambda given=given: win.accumulate(given, rank, 0, "replace"),
                lambda given=given: win.put_many(rank, [0, 1, 2], given),
                lambda given=given: win.put_notify(given, rank, 0, 3),
                lambda given=given: win.__setitem__((rank, slice(None)), given),
                lambda given=given: win.at(rank).update([0, 1, 2], given, "replace"),
            ):
                win.put(np.zeros(3, dtype), rank)
                call()
                win.flush()
                assert win.get(rank).tolist() == want.tolist(), type(given)
                comm.Barrier()
        win.put([], rank)
        win.put([[1, 2], [3, 4]][:1], rank, 1)
        win.flush()
        assert win.get(rank).tolist() == [1, 1, 2]
        comm.Barrier()
        while win.test_notify(3):
            pass
    nested = rmaext.Window(comm, np.zeros((2, 2), dtype))
    nested.put([[1, 2], [3, 4]], rank)
    nested.fence()
    assert nested.local.tolist() == [[1, 2], [3, 4]]
    nested.close()


NO_ORIGINS = {
    "i4": [
        *([1.5], [1, 2.0], [2j], ["1"], [None], [[1], [2, 3]], [np.float64(1)], [np.ones(1, "i8")]),
        *({1, 2}, {1: 2}, range(3).__iter__(), object(), b"abcd", "abcd", None, Index(3)),
        *(memoryview(np.ones(2)), array.array("d", [1]), Offers([1], "i8"), Interface([1], "f8")),
    ],
    "?": [[1], [1.0], [2], array.array("b", [1])],
    "f4": [[1j], [np.float64(0.1)], Offers([1], "f8"), [b"1"], memoryview(b"1234")],
    "M8[s]": [[1], [1.0]],
    "i4,i4": [[(1, 2.0)], [(1,)], [1], 1],
}
TOO_LARGE = {
    "i4": [[2**31], [0, -(2**31) - 1], [10**30], [[1], [2**40]]],
    "u8": [[-1], [2**64], [1, 10**30]],
    "i1": [[128], [True, 200]],
    "f4": [[1e39], [float("nan"), 1e300], [1, 10**60], [float("inf"), -1e300]],
    "f2": [[70000], [1.0, 1e6]],
    "f8": [[10**400]],
    "c8": [[1e300j], [1.0, 1e39]],
}


@pytest.mark.parametrize("dtype", sorted({*NO_ORIGINS, *TOO_LARGE}))
def test_no_origins(comm, dtype):
    """Refused before anything is sent."""
    rank = neighbour(comm)
    with guarded(comm, 3, dtype) as win:
        before = win.local.tobytes()
        for given in NO_ORIGINS.get(dtype, []):
            with pytest.raises((TypeError, ValueError)) as caught:
                win.put(given, rank)
            assert not isinstance(caught.value, OverflowError)
        for given in TOO_LARGE.get(dtype, []):
            with pytest.raises(OverflowError):
                win.put(given, rank)
        win.fence()
        assert win.local.tobytes() == before
        win.fence()
