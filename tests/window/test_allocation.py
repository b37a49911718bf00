# SPDX-License-Identifier: BSD-3-Clause
"""Where window memory lies, what pages it has, and what is said of it."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import launch
import numpy as np
import pytest
from support.guarded import neighbour

import rmaext

A, W = rmaext.Window.allocate, rmaext.Window
PAGE = mmap.PAGESIZE
HUGE = 2 << 20
POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")


def room(nbytes, align=PAGE):
    """Return an address where nothing lies for so many bytes, and return it empty."""
    hole = mmap.mmap(-1, nbytes + align)
    start = np.frombuffer(hole, np.uint8).ctypes.data
    gc.collect()
    hole.close()
    return start + -start % align


def address_of(array):
    return array.__array_interface__["data"][0]


def use(win, comm):
    """Put, get and update, by whatever route."""
    n = win.local.size
    win.fence()
    win.put(np.arange(n, dtype=win.dtype), neighbour(comm))
    win.fence()
    assert (win.local == np.arange(n)).all()
    assert (win.get(neighbour(comm)) == np.arange(n)).all()
    win.fence()
    win.fetch_add(5, neighbour(comm), n - 1)
    win.fence()
    assert win.local[-1] == n + 4
    win.fence()


# -- the matrix of ucp_mem_map -------------------------------------------------

# ALLOCATE, FIXED, an address is given: what comes of it
MATRIX = [
    (0, 0, 0, TypeError),
    (1, 0, 0, "allocated"),
    (0, 1, 0, TypeError),
    (0, 0, 1, "registered"),
    (1, 1, 0, ValueError),
    (1, 0, 1, "near"),
    (0, 1, 1, TypeError),
    (1, 1, 1, "exactly"),
]


def ucp_mem_map(comm, allocate, fixed, address, lazy):
    """Translate: the address is an array's where nothing is to be allocated."""
    if allocate:
        name = "fixed_address" if fixed else "hint"
        where = {name: address} if fixed or address else {}
        return A(comm, 3000, "i4", lazy=lazy, **where)
    return W(comm, address, **({"fixed_address": True} if fixed else {}))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("allocate", "fixed", "given", "outcome"), MATRIX)
def test_combinations(comm, allocate, fixed, given, outcome, lazy):
    address = room(3000 * 4) if allocate else np.zeros(3000, "i4")
    if not given:
        address = 0 if allocate else None
    if isinstance(outcome, type):
        with pytest.raises(outcome) as info:
            ucp_mem_map(comm, allocate, fixed, address, lazy)
        if given or allocate:
            assert str(info.value).startswith(("rank 0", "ranks 0"))
        return
    with ucp_mem_map(comm, allocate, fixed, address, lazy) as win:
        use(win, comm)
        seen = win.memory.describe()
        assert seen["address"] == win.memory.base == address_of(win.local)
        assert seen["origin"] == ("array" if outcome == "registered" else "arena")
        if outcome == "registered":
            assert win.local is address
            assert seen["asked"] == {}
        if outcome in ("near", "exactly"):
            assert win.memory.base == address
            name = "hint" if outcome == "near" else "fixed_address"
            assert seen["asked"][name] == address
            assert seen["granted"][name] is True
        win.fence()


# -- addresses -----------------------------------------------------------------


def test_same_address_again_and_again(comm):
    address = room(HUGE)
    for n in (1000, 100_000, 10):
        with A(comm, n, fixed_address=address) as win:
            assert address_of(win.local) == address
            assert not win.local.any()
            use(win, comm)
        del win


def test_view_of_a_neighbour(comm):
    """The mapping that a peer has stays good when the file is used again."""
    for value in (1, 2, 3):
        with A(comm, 5000, "i8", fixed_address=room(40_000)) as win:
            win.local[:] = value * 100 + comm.rank
            win.fence()
            there = neighbour(comm)
            assert (win.get(there) == value * 100 + there).all()
            if win.route(there) == "direct":
                assert (win.peer_view(there) == value * 100 + there).all()
            win.fence()
        del win


def test_occupied(world):
    """Whatever lies there stays, and all ranks hear of it."""
    mine = mmap.mmap(-1, 4 * PAGE)
    mine[:] = b"\x5a" * len(mine)
    start = np.frombuffer(mine, np.uint8).ctypes.data
    last = world.size - 1
    for offset in (0, PAGE, -PAGE):
        wanted = start + offset if world.rank == last else None
        with pytest.raises(rmaext.AddressError, match=f"rank {last}: ") as info:
            A(world, 2 * PAGE, "u1", fixed_address=wanted)
        assert f"{start + offset:#x}" in str(info.value) or world.rank != last
        assert mine[:] == b"\x5a" * len(mine)
    gc.collect()
    mine.close()


def test_occupied_by_a_window(comm):
    with A(comm, 100) as win, pytest.raises(rmaext.AddressError):
        A(comm, 100, fixed_address=win.memory.base // PAGE * PAGE)


def test_hint_that_is_taken(comm):
    mine = mmap.mmap(-1, 4 * PAGE)
    wanted = np.frombuffer(mine, np.uint8).ctypes.data
    with A(comm, 1000, "i4", hint=wanted) as win:
        assert win.memory.base != wanted
        assert win.memory.describe()["granted"]["hint"] is False
        use(win, comm)
    gc.collect()
    mine.close()


ODD = [
    ({"fixed_address": PAGE + 8}, ValueError, "page size"),
    ({"fixed_address": 1}, ValueError, "page size"),
    ({"fixed_address": -PAGE}, ValueError, "address"),
    ({"fixed_address": 1 << 64}, ValueError, "address"),
    ({"fixed_address": "0x1000"}, TypeError, "integer"),
    ({"fixed_address": 4096.0}, TypeError, "integer"),
    ({"fixed_address": 1 << 62}, (MemoryError, rmaext.AddressError), "at address"),
    ({"hint": -1}, ValueError, "address"),
    ({"hint": b"x"}, TypeError, "integer"),
    ({"hint": PAGE, "fixed_address": 16 * PAGE}, ValueError, "one of the two"),
    ({"lazy": 1}, TypeError, "lazy"),
    ({"lazy": None}, TypeError, "lazy"),
    ({"hugepages": "yes"}, TypeError, "hugepages"),
    ({"hugepages": 1 << 30}, TypeError, "hugepages"),
    ({"hugepages": "require", "fixed_address": HUGE + PAGE}, ValueError, "huge page size"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), ODD)
def test_odd_arguments_of_one_rank(world, arguments, error, words):
    last = world.size - 1
    with pytest.raises(error, match=f"rank {last}: .*{words}"):
        A(world, 1000, **(arguments if world.rank == last else {}))
    if world.rank == 0:
        with pytest.raises(error, match=words):
            rmaext.empty(1000, **arguments)


def test_nothing_to_place(comm):
    """Without memory there is nothing that an address could be for."""
    with A(comm, 0, fixed_address=room(HUGE, HUGE), hugepages="require", lazy=False) as win:
        assert win.local.size == 0
        assert win.memory.describe()["resident"] == 0


def test_empty_takes_the_same(comm):
    address = room(8000)
    array = rmaext.empty(1000, "i8", fixed_address=address, lazy=False)
    assert address_of(array) == address
    with W(comm, array) as win:
        use(win, comm)
        assert win.memory.describe()["origin"] == "arena"


# -- pages ---------------------------------------------------------------------

BIG = 16 << 20  # at an address of its own: in memory that was in use, pages are there


def touched(win):
    """Whether the provider wanted all pages before it registered them."""
    return (
        "ALLOCATED" in win.memory.describe()["registration"]
        or "BASIC" in (win.memory.describe()["registration"])
    )


@pytest.mark.parametrize("lazy", [True, False])
def test_lazy(comm, lazy):
    with A(comm, BIG, "u1", fixed_address=room(BIG), lazy=lazy) as win:
        seen = win.memory.describe()
        there = not lazy or touched(win)
        assert seen["resident"] == (BIG if there else 0)
        assert seen["asked"]["lazy"] is lazy
        assert seen["granted"]["lazy"] is not there
        win.fence()
        win.put(np.uint8(1), neighbour(comm), BIG // 2)
        win.fence()
        seen = win.memory.describe()
        if there:
            assert seen["resident"] == BIG
        else:
            assert 0 < seen["resident"] <= HUGE


def test_pages_are_touched_where_the_provider_demands_it(run_python):
    """FI_MR_BASIC, which tcp has on request, wants memory that is there."""
    code = """
        import rmaext
        from mpi4py import MPI
        with rmaext.Window.allocate(MPI.COMM_SELF, 1 << 20, "u1") as win:
            seen = win.memory.describe()
            print(seen["resident"], seen["asked"]["lazy"], seen["granted"]["lazy"])
    """
    for mode, wanted in ("basic", f"{1 << 20} True False"), (None, "0 True True"):
        env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_MR_MODE": mode}
        done = run_python(code, env=env)
        assert done.stdout.strip() == wanted, done.stderr


def free_huge_pages():
    return int(POOL.read_text()) if POOL.exists() else 0


@pytest.mark.parametrize("hugepages", [True, "require"])
def test_huge_pages(comm, hugepages):
    comm.Barrier()
    enough = comm.allreduce(free_huge_pages()) >= 3 * comm.size * comm.size
    comm.Barrier()
    if not enough and hugepages == "require":
        with pytest.raises(MemoryError, match="huge pages"):
            A(comm, 3_000_000 << 20, "u1", hugepages=hugepages)
        return
    with A(comm, 3 << 20, "u1", hugepages=hugepages) as win:
        seen = win.memory.describe()
        if enough:
            assert seen["granted"]["hugepages"] == "pool"
        if seen["granted"]["hugepages"] == "pool":
            assert seen["granted"]["lazy"] is False
            assert seen["page_size"] == HUGE
            assert seen["resident"] == 3 << 20
            assert seen["address"] % HUGE == 0
        else:
            assert seen["granted"]["hugepages"] in ("none", "transparent")
            assert seen["page_size"] == PAGE
        assert seen["asked"]["hugepages"] is True or hugepages == "require"
        win.local[:] = 0
        win.fence()
        win.put(np.full(3 << 20, 7, "u1"), neighbour(comm))
        win.fence()
        assert (win.local == 7).all()
    del win


# -- advice ----------------------------------------------------------------------


def test_willneed(comm):
    with A(comm, BIG, "u1", fixed_address=room(BIG)) as win:
        if touched(win):
            pytest.skip("all pages are there")
        assert win.advise("willneed", slice(PAGE, 5 * PAGE)) is True
        assert win.memory.describe()["resident"] == 4 * PAGE
        assert win.advise("willneed", slice(BIG - 1, None))
        assert win.memory.describe()["resident"] == 5 * PAGE
        assert win.advise("normal")
        assert win.advise("willneed", slice(0, 0))
        assert win.memory.describe()["resident"] == 5 * PAGE
        assert win.advise("willneed")
        assert win.memory.describe()["resident"] == BIG
        # what is outside is left out, as in NumPy
        for part in (slice(-3, None), slice(0, BIG + 1), slice(BIG + 1, None), slice(5, 4)):
            assert win.advise("willneed", part)
            win.refresh(part)
        assert win.advise("normal", slice(-(1 << 70), 1 << 70))
        assert not win.local.any()


def test_advice_on_any_memory(comm, tmp_path):
    """The caller's own, at odd addresses, read-only, of a file: nothing changes."""
    own = np.arange(10_000)
    odd = np.frombuffer(bytearray(range(201)), "i4", 50, 1)
    held = odd.copy()
    path = tmp_path / f"{comm.rank}"
    np.arange(5000).tofile(path)
    arrays = [own, odd, np.memmap(path, int, "r+"), np.memmap(path, int, "r"), np.empty(0)]
    for array in arrays:
        with W(comm, array) as win:
            for advice in ("willneed", "normal"):
                assert win.advise(advice)
                assert win.advise(advice, slice(array.size // 2, None))
    assert (own == np.arange(10_000)).all()
    assert (odd == held).all()
    assert (arrays[2] == np.arange(5000)).all()


def test_advice_for_a_field(comm):
    with A(comm, 10_000, "i4,f8", fixed_address=room(BIG)) as win:
        part = win.field("f1")
        assert part.advise("willneed", slice(0, 5000))
        if not touched(win):
            assert win.memory.describe()["resident"] == -(-(4999 * 12 + 12) // PAGE) * PAGE


@pytest.mark.pair
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("sequential",), ValueError),
        (("",), ValueError),
        ((1,), TypeError),
        (("normal", 5), TypeError),
        (("normal", (0, 5)), TypeError),
        (("normal", slice(0, 5, 2)), ValueError),
        (("normal", slice(0.0, 5)), TypeError),
    ],
)
def test_bad_advice(comm, arguments, error):
    with A(comm, 100) as win:
        with pytest.raises(error):
            win.advise(*arguments)
        use(win, comm)
    with pytest.raises(rmaext.ClosedError):
        win.advise("normal")


def test_advice_needs_one_array(comm):
    with W(comm, [np.zeros(3), np.zeros(2)]) as win, pytest.raises(rmaext.Unsupported):
        win.advise("normal")


# -- what is said of it -------------------------------------------------------------


def test_describe(comm):
    with A(comm, (3, 5), "f4", access="r", hint=room(PAGE)) as win:
        seen = win.memory.describe()
        assert seen["size"] == 60
        assert seen["dtype"] == "float32"
        assert seen["shape"] == (3, 5)
        assert seen["access"] == "r"
        assert seen["key"] == win.memory.key
        assert seen["page_size"] == PAGE
        assert seen["routes"] == [win.route(rank) for rank in range(comm.size)]
        if launch.test_route() == "fabric":
            assert win.fabric.provider == seen["provider"]
            assert seen["registration"]
            assert seen["key"]
        text = str(seen)
        for word in ("address", hex(win.memory.base), "60", "float32", "arena", "resident"):
            assert word in text
        assert f"hint={hex(seen['asked']['hint'])}" in text
        assert text.count("\n") == len(seen) - 1
        win.fence()
    with pytest.raises(rmaext.ClosedError):
        win.memory.describe()


def test_describe_other_kinds(comm, tmp_path):
    path = tmp_path / f"{comm.rank}"
    np.zeros(100).tofile(path)
    with W(comm, np.memmap(path, float, "r")) as win:
        seen = win.memory.describe()
        assert (seen["origin"], seen["access"]) == ("file", "r")
        assert seen["file"] == str(path)
    with W(comm, [np.zeros(3), np.zeros(2)]) as win:
        assert [m.describe()["size"] for m in win.memory] == [24, 16]
    with A(comm, 10) as win:
        part = win.subwindow(2, 5).memory.describe()
        assert (part["size"], part["address"]) == (24, win.memory.base + 16)
