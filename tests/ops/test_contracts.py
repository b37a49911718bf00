# SPDX-License-Identifier: BSD-3-Clause
"""What every operation refuses, and how: the table of support/operations.py by contract.

The error is raised at the origin before anything is sent; it names call, window, rank, offset and
length; nothing has changed afterwards, nobody was notified, and the window goes on working.
"""

from __future__ import annotations

import contextlib
import inspect
import re

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import Guarded, guarded, neighbour
from support.operations import INDEXED, OF_A_RANK, OPERATIONS, OTHERS, done

import rmaext
from rmaext import AccessError, AlignmentError, BoundsError, ClosedError, Unsupported

pytestmark = pytest.mark.pair

SIZE = 10
FIRST = r"( (element|range) \[0(, 0)?\][,:])?"  # of several, where one alone is given
ALL = OPERATIONS | INDEXED
KINDS = {
    "reads": [name for name, it in ALL.items() if it.rights == "r"],
    "writes": [name for name, it in ALL.items() if it.rights == "w" and not it.atomic],
    "updates": [name for name, it in ALL.items() if it.rights == "w" and it.atomic],
    "fetches": [name for name, it in ALL.items() if it.rights == "rw"],
}
each_kind = pytest.mark.parametrize("names", KINDS.values(), ids=KINDS)


def call_of(name):
    """Return what its errors begin with."""
    return name.split()[0]


def several(name):
    """Whether it is about places that each have a rank of their own."""
    return "many" in name or "ranges" in name


def lengths(name, dtype="f8"):
    """Values of one element and of four, if the operation takes so many."""
    return [np.ones((), dtype)[()]] + [np.ones(4, dtype)] * (not ALL[name].single)


def refused(error, name, *args):
    """Return what is said, which begins with call and window; nothing else may be raised."""
    with pytest.raises(error) as caught:
        ALL[name].call(*args)
    text = str(caught.value)
    assert re.match(rf"({call_of(name)}|register): window {re.escape(str(args[0]._name))}", text)
    if f" rank {args[2]}, offset" in text and not several(name):
        assert caught.value.rank == args[2]
    return text


def unharmed(win, peer, kept):
    """Nothing has changed, nobody was notified, and all goes on."""
    win.fence()
    assert not win.notify_counts().any()
    assert (win.local == kept).all()
    win.fence()
    win.put(kept + np.ones(2), peer, 5)
    win.flush(peer)
    assert win.fetch_add(1, peer, 5) == kept + 1
    assert win.compare_and_swap(kept + 2, kept, peer, 5) == kept + 2
    assert win.get(peer, 4, 3).tolist() == [kept, kept, kept + 1]
    win.fence()


def test_each_operation_is_in_the_table():
    """Whatever takes a rank and an offset: a new one needs a row."""
    calls = {name: getattr(rmaext.Window, name) for name in dir(rmaext.Window) if name[0] != "_"}
    of_places = {
        name
        for name, call in calls.items()
        if callable(call) and re.search(r"\branks?\b.*\boffsets?\b", str(inspect.signature(call)))
    }
    assert of_places == {call_of(name) for name in OPERATIONS}


@each_kind
def test_ranks(comm, names):
    with guarded(comm, SIZE, fill=3) as win:
        for name in names:
            nothing = [] if ALL[name].single or several(name) else [np.ones(0)]
            for value in [*lengths(name), *nothing]:
                for wrong in (comm.size, comm.size + 98, 2**31 + 1, -1, -77, MPI.PROC_NULL):
                    text = refused(BoundsError, name, win, value, wrong, 0)
                    assert f"ranks 0 to {comm.size - 1}" in text
                    assert str(wrong) in text
                    assert ("proc_null=True" in text) == (wrong < 0)
                assert str(2**70) in refused(BoundsError, name, win, value, 2**70, 0)
        unharmed(win, neighbour(comm), 3)


FAR = [2**30, 2**31, 2**32 - 4, 2**61, 2**62, 2**63 - 1, -SIZE, -(2**62), -(2**63)]


@each_kind
def test_offsets(comm, names):
    """The place is told in elements of the window at hand, as the caller gave it."""
    peer = neighbour(comm)
    with contextlib.ExitStack() as stack:
        win = stack.enter_context(guarded(comm, SIZE))
        records = stack.enter_context(guarded(comm, SIZE, [("m", "f8"), ("k", "i8")]))
        joined = stack.enter_context(rmaext.Window(comm, [np.zeros(4), np.zeros(SIZE - 4)]))
        for it in (win, win.subwindow(2, 6), records.field("m"), joined):
            size = it.size(peer)
            for name in names:
                if name in INDEXED:
                    continue
                for value in lengths(name):
                    length = np.size(value)
                    if name.endswith("_many") and length > 1:
                        continue  # test_one_of_many
                    for wrong in (size - length + 1, size, size + 80, -1, *FAR):
                        text = refused(BoundsError, name, it, value, peer, wrong)
                        where = f"{FIRST} rank {peer}, offset {wrong}, length {length}"
                        assert re.search(rf",{where}: outside the {size} elements there$", text)
                    for wrong in (2**63, 2**70, -(2**63) - 1):
                        text = refused(BoundsError, name, it, value, peer, wrong)
                        assert re.search(rf"{wrong}.*outside", text)
        joined.fence()
        records.fence()
        win.fence()
        assert not win.local.any()
        assert not win.notify_counts().any()


def test_indices(comm):
    peer = neighbour(comm)
    with guarded(comm, SIZE, fill=3) as win:
        for name in INDEXED:
            for wrong in (SIZE, SIZE + 80, 2**40, -SIZE - 1, -(2**62)):
                text = refused(BoundsError, name, win, 1.0, peer, wrong)
                where = f"index {wrong} is out of bounds for axis 0 with size {SIZE}"
                assert text == f"{call_of(name)}: window {win._name}, rank {peer}: {where}"
        unharmed(win, peer, 3)


def test_one_of_many(comm):
    """The first element at fault is named by its index, too."""
    with guarded(comm, SIZE, fill=3) as win:
        offsets = np.array([[1, 2], [SIZE, 3], [-4, 5]])
        for name in OPERATIONS:
            if name.endswith("_many"):
                text = refused(BoundsError, name, win, 1.0, comm.rank, offsets)
                where = rf"element \[(1, 0|2)\][,:] rank {comm.rank}, offset {SIZE}, length 1"
                assert re.search(rf", {where}: outside the {SIZE} elements there$", text), text
        unharmed(win, neighbour(comm), 3)


@each_kind
def test_bounds_are_those_of_the_target(world, names):
    """Not of the origin, whose window is larger or smaller."""
    size = 4 + 3 * world.rank
    with guarded(world, size, fill=3) as win:
        calls = [(name, lengths(name)[-1]) for name in names if name in OPERATIONS]
        for name, value in calls:
            for target in range(world.size):
                wrong = 5 + 3 * target - np.size(value)
                text = refused(BoundsError, name, win, value, target, wrong)
                assert f"outside the {4 + 3 * target} elements there" in text
        win.fence()
        assert (win.local == 3).all()
        win.fence()
        for name, value in calls:
            for target in range(world.size):
                done(ALL[name].call(win, value, target, 4 + 3 * target - np.size(value)))
        win.fence()


@each_kind
def test_types(comm, names):
    """What is no integer, and arguments in another order: the call is shown."""
    peer = neighbour(comm)
    with guarded(comm, SIZE, fill=3) as win:
        for name in names:
            if name in INDEXED:
                continue
            for what, rank, offset in (
                ("rank", peer + 0.5, 0),
                ("rank", float(peer), ["a"] if several(name) else np.ones(2)),
                ("rank", None, 0),
                ("rank", str(peer), 0),
                ("offset", peer, 1.5),
                ("offset", peer, None),
                ("offset", peer, "1"),
            ):
                text = refused(TypeError, name, win, 1.0, rank, offset)
                shown = rf"(be|as) (an integer|integers)\b.*; the call is {call_of(name)}\("
                assert re.search(shown, text), text
                assert what in text.split(";")[0] or "NoneType" in text
                assert text.count(f"{call_of(name)}(") == 1
        unharmed(win, peer, 3)


@each_kind
def test_values(comm, names):
    """Nothing is cast that has a dtype."""
    peer = neighbour(comm)
    with guarded(comm, SIZE, fill=3) as win:
        for name in names:
            if ALL[name].rights == "r" and name not in ("get out", "prepare_get", "get buffer"):
                continue  # has no value
            for wrong in (np.ones((), "c8"), np.ones(2, "f4"), np.ones(2, ">f8"), np.ones(2, "i8")):
                if not (ALL[name].single and wrong.ndim):
                    text = refused(TypeError, name, win, wrong, peer, 0)
                    kind = wrong.dtype if wrong.dtype.isnative else "big-endian float64"
                    assert re.search(rf"dtype {kind}\b.* (of|dtype|window) float64", text), text
        unharmed(win, peer, 3)


@pytest.mark.parametrize("access", ["r", "w", "rw", "read-only"])
@pytest.mark.parametrize("count", [1, 600])
def test_rights(comm, count, access):
    """A put writes, a get reads, an update writes, and one that fetches reads, too."""
    peer = neighbour(comm)
    mine = Guarded(count + 3)
    mine.array[...] = 3
    mine.array.flags.writeable = access != "read-only"
    given, access = (None, "r") if access == "read-only" else (access, access)
    with rmaext.Window(comm, mine.array, given) as win:
        assert win.memory.access == access
        for allowed in (False, True):
            for name, it in ALL.items():
                value = np.ones(count) if count > 1 and not it.single else 1.0
                if (set(it.rights) <= set(access)) != allowed:
                    continue
                if allowed:
                    done(it.call(win, value, peer, 3))
                else:
                    text = refused(AccessError, name, win, value, peer, 3)
                    where = rf"{FIRST} rank {peer}, offset 3, length \d+"
                    assert re.search(rf",{where}: the window there allows {access}$", text), text
            win.fence()
            if not allowed:
                assert not win.notify_counts().any()
            if access == "r" or not allowed:
                assert (mine.array == 3).all()
            win.fence()
    mine.check()


@pytest.mark.parametrize(("dtype", "shift"), [("i4", 1), ("i8", 4), ("f8", 2), ("f4", 3)])
def test_alignment(comm, dtype, shift):
    """Updates want it of their target; moving data does not."""
    peer = neighbour(comm)
    with guarded(comm, SIZE, dtype, 1, shift) as win:
        for name, it in ALL.items():
            for value in lengths(name, dtype):
                if it.atomic:
                    text = refused(AlignmentError, name, win, value, peer, 1)
                    assert f"rank {peer}, offset 1, length" in text
                else:
                    done(it.call(win, value, peer, 1))
        win.fence()
        assert (win.local == 1).all()
        win.fence()
        win.put(np.array([7, 8], dtype), peer, 3)
        win.put_many(peer, [5, 7], np.array([9, 10], dtype))
        win.flush(peer)
        assert win.get(peer, 2, 4).tolist() == [1, 7, 8, 9]
        assert win.get_many(peer, [7, 8]).tolist() == [10, 1]
        win.fence()


def test_alignment_is_that_of_the_target(world):
    """Not of the origin."""
    with guarded(world, SIZE, shift=0 if world.rank else 1) as win:
        for name, it in ALL.items():
            for target in range(world.size):
                if it.atomic and target == 0:
                    refused(AlignmentError, name, win, 1.0, target, 0)
                else:
                    done(it.call(win, 1.0, target, 0))
        win.fence()


@pytest.mark.parametrize("dtype", [">i4", "S4", "M8[s]", "i4,f8"])
def test_dtypes_without_updates(comm, dtype):
    peer = neighbour(comm)
    with guarded(comm, SIZE, dtype) as win:
        for name, it in ALL.items():
            for value in (np.zeros((), dtype), np.zeros(2, dtype))[: 1 if it.single else 2]:
                if not it.atomic:
                    done(it.call(win, value, peer, 1))
                elif dtype != "i4,f8" or call_of(name) not in ("load", "store"):
                    refused(Unsupported, name, win, value, peer, 1)
        win.fence()
        assert (win.local[1:3] == np.zeros(2, dtype)).all()
        win.fence()


@pytest.mark.parametrize("kind", ["array", "allocate", "part"])
def test_closed(comm, kind):
    array = np.full(SIZE, 3.0)
    whole = rmaext.Window.allocate(comm, SIZE) if kind == "allocate" else rmaext.Window(comm, array)
    win = whole.subwindow(1, 4) if kind == "part" else whole
    win.close()
    whole.close()
    for _ in range(2):
        for name in ALL:
            assert refused(ClosedError, name, win, 1.0, 0, 0).endswith(" is closed")
        for name, call in OTHERS.items():
            with pytest.raises(ClosedError) as caught:
                call(win)
            assert str(caught.value) == f"{call_of(name)}: window {win._name} is closed"
    assert (array == 3).all()
    with guarded(comm, SIZE, fill=3) as again:
        unharmed(again, neighbour(comm), 3)


WINDOWS = {
    "array": lambda comm, **how: rmaext.Window(comm, np.zeros(SIZE), **how),
    "part": lambda comm, **how: rmaext.Window(comm, np.zeros(SIZE), **how),
    "allocate": lambda comm, **how: rmaext.Window.allocate(comm, SIZE, **how),
    "shared": lambda comm, **how: rmaext.Window.shared(comm, SIZE, **how),
    "dynamic": lambda comm, **how: rmaext.Window.dynamic(comm, **how),
    "joined": lambda comm, **how: rmaext.Window(comm, [np.zeros(SIZE)], **how),
}


@pytest.mark.parametrize("consent", [False, True])
@pytest.mark.parametrize("kind", WINDOWS)
def test_proc_null_by_consent_only(world, kind, consent):
    """One rule for all calls and kinds of windows: an error, or nothing if that was asked for."""
    null = MPI.PROC_NULL
    try:
        whole = WINDOWS[kind](world, proc_null=consent)
    except rmaext.NotLocalError:
        return  # the routes are forced
    win = whole.subwindow(0, SIZE) if kind == "part" else whole
    for name, it in OPERATIONS.items() if kind in ("joined", "dynamic") else ALL.items():
        for value in lengths(name):
            if not consent:
                for rank in {null, -1, -2, -3}:
                    assert "proc_null=True" in refused(BoundsError, name, win, value, rank, 99)
                continue
            got = it.call(win, value, null, 99)
            assert not isinstance(got, rmaext.Request) or got.test()
            got = done(got)
            assert got is None or got.dtype == win.dtype
            if any(word in name for word in ("out", "prepare_get", "get buffer")):
                assert (got == 7).all(), name  # as it was
            elif several(name):
                assert got is None or not np.any(got), name  # left out
            else:
                assert got is None or got.size == 0, name
            refused(BoundsError, name, win, value, null - 1, 0)
    for call in OF_A_RANK.values():
        if consent:
            call(win, null)
        for rank in (null - 1,) if consent else (null, null - 1):
            with pytest.raises(BoundsError):
                call(win, rank)
    for call in (win.size, win.route):
        with pytest.raises((BoundsError, Unsupported)):
            call(null)
    assert not consent or kind == "dynamic" or win.get(null).size == 0
    whole.fence()
    if kind != "dynamic":
        assert not np.any(whole.local)
    assert not np.any(whole.notify_counts())
    whole.close()
