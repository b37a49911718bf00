# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that are numbers: what mpi4py's own Win takes, and refuses."""

from __future__ import annotations

import decimal
import fractions

import numpy as np
import pytest
from mpi4py import MPI

from rmaext.compat import Win, attributes
from rmaext.compat.numbers import integer

ONE = np.ones(1, "i8")


class HasInt:
    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


def values(k):
    """Return ways to say k, and what is no number, or another one."""
    return {
        "int": k,
        "float": float(k),
        "cut": k + 0.5,
        "float64": np.float64(k),
        "float32": np.float32(k),
        "int64": np.int64(k),
        "array": np.array(k),
        "array of float": np.array(float(k)),
        "in an array": np.array([k]),
        "bool": np.bool_(k),
        "Fraction": fractions.Fraction(k),
        "Decimal": decimal.Decimal(k),
        "__int__": HasInt(k),
        "no __int__": HasInt(float(k)),
        "str": str(k),
        "str_": np.str_(k),
        "bytes": b"8",
        "None": None,
        "nan": float("nan"),
        "inf": float("inf"),
        "complex": complex(k),
        "list": [k],
    }


def locked(call):
    def inside(w, it):
        w.Lock(0)
        try:
            call(w, it)
        finally:
            w.Unlock(0)

    return inside


def lock(w, *args):
    w.Lock(*args)
    w.Unlock(0)


def unlock(w, it):
    w.Lock(0)
    try:
        w.Unlock(it)
    except BaseException:
        w.Unlock(0)
        raise


def lock_all(w, it):
    w.Lock_all(it)
    w.Unlock_all()


def fence(w, it):
    w.Fence(it)
    w.Fence(MPI.MODE_NOSUCCEED)


def post(w, it):
    group = MPI.COMM_SELF.Get_group()
    w.Post(group, it)
    w.Start(group, 0)
    w.Complete()
    w.Wait()
    group.Free()


def start(w, it):
    group = MPI.COMM_SELF.Get_group()
    w.Post(group)
    try:
        w.Start(group, it)
    except BaseException:
        w.Start(group)
        raise
    finally:
        w.Complete()
        w.Wait()
        group.Free()


def value_of_attribute(w, it):
    key = type(w).Create_keyval(nopython=True)
    try:
        w.Set_attr(key, it)
    finally:
        type(w).Free_keyval(key)


# the number that is meant, and the call
CALLS = {
    "size": (8, lambda w, it: type(w).Allocate(it, 8).Free()),
    "shared size": (8, lambda w, it: type(w).Allocate_shared(it, 8).Free()),
    "unit": (8, lambda w, it: type(w).Allocate(64, it).Free()),
    "shared unit": (8, lambda w, it: type(w).Allocate_shared(64, it).Free()),
    "unit of Create": (8, lambda w, it: type(w).Create(bytearray(8), it).Free()),
    "Lock": (0, lock),
    "lock type": (MPI.LOCK_SHARED, lambda w, it: lock(w, 0, it)),
    "Lock assertion": (0, lambda w, it: lock(w, 0, MPI.LOCK_SHARED, it)),
    "Unlock": (0, unlock),
    "Lock_all": (0, lock_all),
    "Fence": (0, fence),
    "Post": (0, post),
    "Start": (0, start),
    "Flush": (0, locked(lambda w, it: w.Flush(it))),
    "Flush_local": (0, locked(lambda w, it: w.Flush_local(it))),
    "Put": (0, locked(lambda w, it: w.Put(ONE, it))),
    "Get": (0, locked(lambda w, it: w.Get(ONE.copy(), it))),
    "Rput": (0, locked(lambda w, it: w.Rput(ONE, it).Wait())),
    "Rget": (0, locked(lambda w, it: w.Rget(ONE.copy(), it).Wait())),
    "Accumulate": (0, locked(lambda w, it: w.Accumulate(ONE, it))),
    "Raccumulate": (0, locked(lambda w, it: w.Raccumulate(ONE, it).Wait())),
    "Get_accumulate": (0, locked(lambda w, it: w.Get_accumulate(ONE, ONE.copy(), it))),
    "Rget_accumulate": (0, locked(lambda w, it: w.Rget_accumulate(ONE, ONE.copy(), it).Wait())),
    "Fetch_and_op": (0, locked(lambda w, it: w.Fetch_and_op(ONE, ONE.copy(), it))),
    "Fetch_and_op to": (2, locked(lambda w, it: w.Fetch_and_op(ONE, ONE.copy(), 0, it))),
    "Compare_and_swap": (0, locked(lambda w, it: w.Compare_and_swap(ONE, ONE, ONE.copy(), it))),
    "Compare_and_swap to": (
        2,
        locked(lambda w, it: w.Compare_and_swap(ONE, ONE, ONE.copy(), 0, it)),
    ),
    "target": (2, locked(lambda w, it: w.Put(ONE, 0, it))),
    "target's place": (2, locked(lambda w, it: w.Put(ONE, 0, [it]))),
    "target's count": (1, locked(lambda w, it: w.Put(ONE, 0, [0, it]))),
    "origin's count": (1, locked(lambda w, it: w.Put([ONE, it, MPI.INT64_T], 0))),
    "origin's place": (0, locked(lambda w, it: w.Put([ONE, 1, it, MPI.INT64_T], 0))),
    "value of an attribute": (8, value_of_attribute),
    "Shared_query": (0, lambda w, it: w.Shared_query(it)),
}


def outcome(call, w, it):
    """Return the type of the exception; None: it was taken."""
    try:
        call(w, it)
    except Exception as exc:
        return MPI.Exception if isinstance(exc, MPI.Exception) else type(exc)
    return None


@pytest.mark.mpi
def test_as_mpi4py():
    ours, theirs = Win.Allocate_shared(64, 8), attributes.MpiWin.Allocate_shared(64, 8)
    different = []
    for what, (number, call) in CALLS.items():
        for name, it in values(number).items():
            got, wanted = outcome(call, ours, it), outcome(call, theirs, it)
            if got != wanted:
                different.append((what, name, got, wanted))
    assert not different
    ours.Free()
    theirs.Free()


@pytest.mark.mpi
def test_empty_product():
    """The size of what has no dimensions is a float."""
    w = Win.Allocate(np.prod(()) * 8, np.float64(8))
    w.Lock(np.array(0))
    w.Put(np.full(1, 3.0), np.array(0))
    w.Unlock(np.array(0))
    assert np.frombuffer(w).tolist() == [3]
    assert w.attrs[1:] == (8, 8)
    w.Free()


def test_too_large():
    for it in (2**31, float(2**31), -(2**31) - 1):
        with pytest.raises(OverflowError):
            integer(it)
    assert integer(2**31, 64) == 2**31
    with pytest.raises(OverflowError):
        integer(2**63, 64)


def test_what_has_an_index():
    """More than mpi4py takes, as Window does."""

    class Index:
        def __index__(self):
            return 3

    assert integer(Index()) == 3
