# SPDX-License-Identifier: BSD-3-Clause
"""What a window takes of memory and time: for each rank, and for itself."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmaext
from rmaext._comm import collective
from rmaext._comm.agreement import encode
from rmaext._comm.columns import Told, Ways
from rmaext._comm.group import Group
from rmaext._comm.meeting import Meetings
from rmaext._comm.window_record import WindowRecord
from rmaext._native._lib import ffi, lib
from rmaext._runtime import mpi_progress
from rmaext.errors import KeyRecordError

PAGE = os.sysconf("SC_PAGE_SIZE")
LINE = 64  # bytes of struct rmx_target
BOTH = lib.RMAEXT_READ | lib.RMAEXT_WRITE


# -- a simulated exchange, for more ranks than there are processes -------------------------


class Exchange(Group):
    """A group whose other ranks are records: the rest of it is the product's."""

    def __init__(self, records: bytes, lengths: np.ndarray) -> None:
        self.rank, self.size, self.here = 0, len(lengths), [0]
        self.processes = {}
        self.forced = True
        self.spin = 0.0
        self._members = {}
        self._segments = set()
        self._whole = records, lengths

    def gather_whole(self, record: bytes) -> tuple[Any, Any]:
        data, lengths = self._whole
        assert data[: lengths[0]] == record
        return self._whole


def alike(count: int) -> tuple[WindowRecord, bytes, np.ndarray]:
    """Return the own record, and those of so many ranks: one key, one size."""
    own = WindowRecord(4096, 0, BOTH, "<f8", b"8 bytes.", 1 << 20, (512,))
    record = encode(own.pack())
    return own, record * count, np.full(count, len(record), np.int32)


def different(count: int) -> tuple[WindowRecord, bytes, np.ndarray]:
    """Return the same where all differ in all: the provider chose keys and bases."""
    own = None
    records = []
    for rank in range(count):
        n, access = 1 + rank % 1000, 1 + rank % 3
        key, base = (rank * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "little"), rank << 16
        record = WindowRecord(8 * n, base, access, "<f8", key, base + 8 * rank % 64, (n,))
        own = own or record
        records.append(encode(record.pack()))
    return own, b"".join(records), np.array([*map(len, records)], np.int32)


def resident() -> int:
    """Return the bytes that this process has in memory, without what malloc() keeps free."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


class Made:
    """A window over a simulated exchange, with what it keeps."""

    def __init__(self, group: Exchange, own: WindowRecord) -> None:
        start = time.process_time()
        told = Told.by(group, lambda: (own, 8))
        self.records = told.records(0, 8)
        columns = told.columns()
        ways = Ways([0])
        self.handle = group.window(None, columns, ways, 1.0, bytes(16))
        self.records.lie_in(self.handle)
        self.seconds = time.process_time() - start

    def check(self, rank: int, first: int, nbytes: int, access: int) -> int:
        return int(lib.rmaext_window_check(self.handle, rank, first, nbytes, access, -1))


SIZES = [100, 1_000, 10_000, pytest.param(1_000_000, marks=pytest.mark.stress)]


@pytest.mark.parametrize("count", SIZES)
def test_memory_where_all_are_alike(count):
    """A window of a million ranks takes what one of a hundred does."""
    own, data, lengths = alike(count)
    group = Exchange(data, lengths)
    made = [Made(group, own)]  # the table of ranks, which all share
    gc.collect()
    tracemalloc.start()
    before, python = resident(), tracemalloc.get_traced_memory()[0]
    made += [Made(group, own) for _ in range(8)]
    seconds = min(window.seconds for window in made[1:])  # others use this machine, too
    gc.collect()
    python = tracemalloc.get_traced_memory()[0] - python
    tracemalloc.stop()
    took = (resident() - before) / 8
    print(f"{count} ranks: {took:.0f} bytes resident, {python / 8:.0f} of Python, {seconds:.6f} s")
    # up to 255 targets are allocated at once; then it is pages, the own one's first
    assert took <= 6 * PAGE + LINE * min(count, 256)
    assert python / 8 <= 8192
    assert seconds <= 5e-3 + 10e-6 * count  # 0.6 us of a CPU, measured
    # one that was not used yet, and the last one
    for window in made[-2:]:
        for rank in (count // 2, count - 1):
            assert window.check(rank, 0, 4096, BOTH) == 0
            assert window.check(rank, 0, 4097, BOTH) == -errno.ERANGE
            assert window.records[rank].size == 4096
            assert window.records.shape[rank] == (512,)
        assert window.check(count, 0, 1, BOTH) == -errno.ERANGE


@pytest.mark.parametrize("count", SIZES)
def test_memory_where_all_differ(count):
    """64 bytes a rank, and nothing besides."""
    own, data, lengths = different(count)
    group = Exchange(data, lengths)
    made = Made(group, own)
    gc.collect()
    tracemalloc.start()
    before, python = resident(), tracemalloc.get_traced_memory()[0]
    many = [Made(group, own) for _ in range(2)]
    seconds = min(window.seconds for window in many)  # others use this machine, too
    gc.collect()
    python = (tracemalloc.get_traced_memory()[0] - python) / 2
    tracemalloc.stop()
    took = (resident() - before) / 2
    print(f"{count} ranks: {took / count:.1f} bytes a rank resident, {python:.0f} of Python")
    assert python <= 8192  # however many they are
    if count > 1000:  # what malloc() keeps of the exchange is more than that
        assert took <= LINE * count + 64 * PAGE
    assert seconds <= 5e-3 + 20e-6 * count  # 1.5 us of a CPU, measured
    for window in (made, *many):
        for rank in {0, 1, count // 3, count - 1}:
            n, access = 1 + rank % 1000, 1 + rank % 3
            assert window.check(rank, 0, 8 * n, access) == 0
            assert window.check(rank, 8 * n - 7, 8, 0) == -errno.ERANGE
            if access != BOTH:
                assert window.check(rank, 0, 8, BOTH) == -errno.EACCES
            record = window.records[rank]
            assert (record.size, record.access, record.shape) == (8 * n, access, (n,))
            assert record.address % 64 == 8 * rank % 64


def test_records_that_are_not_in_order():
    """Whatever C refuses, Python has words for; nothing is read past the end."""
    own, data, lengths = different(3)
    second = int(lengths[0])
    for at in range(second, second + int(lengths[1])):
        if at == second + 7:  # which says nothing
            continue
        broken = bytearray(data)
        broken[at] ^= 0x41
        with pytest.raises(KeyRecordError, match="rank 1: malformed record"):
            Told.by(Exchange(bytes(broken), lengths), lambda: (own, 8))
    for cut in range(int(lengths[2])):
        short = lengths.copy()
        short[2] = cut
        with pytest.raises(KeyRecordError, match="rank 2: malformed record"):
            Told.by(Exchange(data[: int(short.sum())], short), lambda: (own, 8))
    for change in (
        {"shape": (3,)},  # not of that size
        {"shape": (1 << 62, 1 << 62, 2)},
        {"key": b"seven b", "shape": (2,)},
        {"access": 11, "key": b"", "exported": bytes(87), "shape": (2,)},
    ):
        odd = encode(WindowRecord(16, 0, BOTH, "<f8", b"8 bytes.")._replace(**change).pack())
        whole = data[:second] + odd
        with pytest.raises(KeyRecordError, match=r"rank 1|remote keys"):
            Told.by(Exchange(whole, np.array([second, len(odd)], np.int32)), lambda: (own, 8))


def test_views_where_all_are_alike():
    """A view of a million ranks takes no memory a rank either."""
    own, data, lengths = alike(10_000)
    made = Made(Exchange(data, lengths), own)
    before = resident()
    sizes, views = ffi.new("uint64_t *", 64), []
    for first in range(0, 4096, 64):
        what = ffi.new("struct rmaext_view *", [first, 0, sizes, True, lib.RMAEXT_READ, 10**9])
        handle = ffi.new("rmaext_window **")
        assert lib.rmaext_window_view(made.handle, what, handle) == 0
        views.append(ffi.gc(handle[0], lib.rmaext_window_free))
    assert (resident() - before) / len(views) <= 4 * PAGE
    for view in views:
        for rank in (0, 5_000, 9_999):
            assert lib.rmaext_window_check(view, rank, 0, 64, lib.RMAEXT_READ, -1) == 0
            assert lib.rmaext_window_check(view, rank, 0, 64, BOTH, -1) == -errno.EACCES
            assert lib.rmaext_window_check(view, rank, 1, 64, 0, -1) == -errno.ERANGE


# -- real ones --------------------------------------------------------------------------


def collectives_of(win_of: Any, monkeypatch: Any) -> int:
    """Return how many collectives a creation has."""
    calls = []
    for place, name in ((Meetings, "_meet"), (collective, "complete")):
        real = getattr(place, name)
        count = lambda *args, real=real: (calls.append(1), real(*args))[1]  # noqa: E731
        monkeypatch.setattr(place, name, count)
    win_of().close()
    monkeypatch.undo()
    return len(calls) - 1  # that of close


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["allocate", "array"])
def test_collectives_of_a_creation(world, kind, monkeypatch):
    """One exchange, of any number of ranks; two where some memory is no arena's."""

    def make() -> Any:
        if kind == "allocate":
            return rmaext.Window.allocate(world, 1 << 17, "f8")
        return rmaext.Window(world, np.zeros(100))

    # the network is opened, segments are mapped, and a slab of control blocks is made
    first = [make() for _ in range(3)]
    all_direct = first[0]._group.all_direct
    # by MPI a reduction first tells whether all ranks are in the same call
    wanted = 1 + (kind == "array") if all_direct else 2
    assert collectives_of(make, monkeypatch) == wanted
    for win in first:
        win.close()


@pytest.mark.mpi
@pytest.mark.parametrize("most", [0, 1, 123, 124, 125, 5_000])
def test_lengths_of_records(world, most):
    """One collective where all are short, two where one is long: the same records."""
    own = [bytes([rank]) * max(most - 60 * rank, 0) for rank in range(world.size)]
    mpi_progress.begin()
    data, lengths = collective.allgather(world, own[world.rank], collective.Nobody())
    assert bytes(data) == b"".join(own)
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [len(record) for record in own]


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
def test_collectives_with_many_ranks(world, monkeypatch):
    """No more than with two."""
    first = [rmaext.Window.allocate(world, 100) for _ in range(3)]
    assert collectives_of(lambda: rmaext.Window.allocate(world, 100), monkeypatch) == 1
    for win in first:
        win.close()


def used() -> tuple[int, int, int]:
    """Return the descriptors, the mappings and the resident bytes of this process."""
    maps = Path("/proc/self/maps").read_text().count("\n")
    return len(os.listdir("/proc/self/fd")), maps, resident()


def many_windows(world: Any, count: int) -> None:
    right = (world.rank + 1) % world.size
    with rmaext.Window.allocate(world, 1, "i8") as win:  # a connection takes megabytes
        win.put(1, right)
        win.flush(right)
    descriptors, maps, before = used()
    windows = []
    for k in range(count):
        win = rmaext.Window.allocate(world, 1, "i8")
        win.put(k * world.size + world.rank, right)
        win.flush(right)
        windows.append(win)
    world.Barrier()
    left = (world.rank - 1) % world.size
    assert all(win.local[0] == k * world.size + left for k, win in enumerate(windows))
    now = used()
    each = (now[2] - before) / count
    if world.rank == 0:
        print(
            f"{count} windows, {world.size} ranks: {each:.0f} bytes each, {windows[0].route(right)}"
        )
    assert now[0] - descriptors <= 40  # segments, and the connection
    assert now[1] - maps <= 400
    # Python's objects, the C window with its error record, pages of control blocks
    assert each <= 20_000 + 200 * world.size
    for win in windows:
        win.close()


@pytest.mark.mpi(min_size=2)
def test_a_hundred_windows_at_once(world):
    many_windows(world, 100)


@pytest.mark.mpi(min_size=2)
@pytest.mark.stress
@pytest.mark.timeout(900)
def test_twenty_thousand_windows_at_once(world):
    many_windows(world, 20_000)
