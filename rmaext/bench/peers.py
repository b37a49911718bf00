# SPDX-License-Identifier: BSD-3-Clause
"""rmaext and MPI.Win behind one interface: loops written for each."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext

Array = NDArray[Any]
Block = tuple[Array, int]  # data and its offset in the window

WORD = 8  # bytes of an element
MANY = ("put_many", "get_many", "fetch_add_many", "accumulate_many")


def pages(count: int) -> Array:
    """Return zeros on huge pages, alike for all: the kernel copies them faster."""
    huge = 2 << 20
    room = mmap.mmap(-1, (WORD * count // huge + 2) * huge)
    room.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(room, np.uint8).ctypes.data % huge
    return np.frombuffer(room, np.int64, count, start)


class Side(ABC):
    """A window of one library, with `count` elements on this rank.

    Its methods contain the loops, so that each library runs at its best from
    Python: nothing stands between the loop and the library's own call.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Its ranks all make the window. Collective.
    count : int
        Elements on this rank.
    targets : sequence of int
        Whom the ranks that call `lock` will reach.
    dtype : numpy.dtype
        Of 8 bytes.
    """

    name = ""
    win: Any
    memory: Array

    def __init__(
        self,
        comm: MPI.Intracomm,
        count: int,
        targets: Sequence[int] = (1,),
        dtype: Any = np.int64,
    ) -> None:
        self.comm = comm
        self.targets = targets
        self.dtype = np.dtype(dtype)
        self.added = 0  # fetch_adds so far
        self.open(count)

    @abstractmethod
    def open(self, count: int) -> None:
        """Make the window. Collective."""

    @abstractmethod
    def close(self) -> None:
        """Free the window. Collective."""

    @abstractmethod
    def meet(self) -> None:
        """Wait for all ranks, in this library. Collective."""

    def enter(self) -> None:
        """Begin to measure. Collective."""
        self.meet()

    def leave(self) -> None:
        """End of measuring; here the targets wait. Collective."""
        self.meet()

    @abstractmethod
    def put_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        """Put and flush n times."""

    @abstractmethod
    def get(self, n: int, out: Array, rank: int, offset: int) -> None:
        """Get n times."""

    @abstractmethod
    def fetch_add(self, n: int, rank: int, offset: int) -> None:
        """Add 1 and fetch what was there, n times."""

    @abstractmethod
    def accumulate_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        """Add to what is there and flush, n times."""

    @abstractmethod
    def puts(self, blocks: Sequence[Block], rank: int) -> None:
        """Put all blocks, then flush."""

    @abstractmethod
    def gets(self, blocks: Sequence[Block], rank: int) -> None:
        """Get all blocks."""

    @abstractmethod
    def prepared(self, blocks: Sequence[Block], rank: int) -> Callable[[], None]:
        """Return what does `puts`, prepared as far as the library can."""

    @abstractmethod
    def many(
        self, call: str, ranks: Array, offsets: Array, values: Array, out: Array
    ) -> Callable[[], Array]:
        """Return what does `call`, one of MANY, completely; it returns what was fetched."""


class _Rmaext(Side):
    """rmaext.Window; the targets wait in win.fence()."""

    def close(self) -> None:
        self.win.close()

    def meet(self) -> None:
        self.win.fence()

    def put_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        put, flush = self.win.put, self.win.flush
        for _ in repeat(None, n):
            put(data, rank, offset)
            flush(rank)

    def get(self, n: int, out: Array, rank: int, offset: int) -> None:
        get = self.win.get
        for _ in repeat(None, n):
            get(rank, offset, out=out)

    def fetch_add(self, n: int, rank: int, offset: int) -> None:
        fetch_add = self.win.fetch_add
        for _ in repeat(None, n):
            fetch_add(1, rank, offset)
        self.added += n

    def accumulate_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        accumulate, flush = self.win.accumulate, self.win.flush
        for _ in repeat(None, n):
            accumulate(data, rank, offset)
            flush(rank)
        self.added += n

    def puts(self, blocks: Sequence[Block], rank: int) -> None:
        put = self.win.put
        for data, offset in blocks:
            put(data, rank, offset)
        self.win.flush(rank)

    def gets(self, blocks: Sequence[Block], rank: int) -> None:
        get = self.win.get
        for data, offset in blocks:
            get(rank, offset, out=data)

    def prepared(self, blocks: Sequence[Block], rank: int) -> Callable[[], None]:
        operations = [self.win.prepare_put(data, rank, offset) for data, offset in blocks]
        flush = self.win.flush

        def run() -> None:
            for operation in operations:
                operation()
            flush(rank)

        return run

    def many(
        self, call: str, ranks: Array, offsets: Array, values: Array, out: Array
    ) -> Callable[[], Array]:
        win = self.win

        def put() -> Array:
            win.put_many(ranks, offsets, values)
            win.flush()
            return out

        def get() -> Array:
            win.get_many(ranks, offsets, out=out)
            return out

        def fetch_add() -> Array:
            fetched: Array = win.fetch_add_many(ranks, offsets, values)
            return fetched

        def accumulate() -> Array:
            win.accumulate_many(ranks, offsets, values)
            win.flush()
            return out

        return dict(zip(MANY, (put, get, fetch_add, accumulate), strict=True))[call]


class RmaextAllocate(_Rmaext):
    """rmaext.Window.allocate."""

    name = "rmaext.Window.allocate"

    def open(self, count: int) -> None:  # noqa: D102
        self.win = rmaext.Window.allocate(self.comm, count, self.dtype)
        self.memory = self.win.local


class RmaextCreate(_Rmaext):
    """rmaext.Window over an array of the caller's."""

    name = "rmaext.Window"

    def open(self, count: int) -> None:  # noqa: D102
        self.memory = pages(count).view(self.dtype)
        self.win = rmaext.Window(self.comm, self.memory)


class _Mpi(Side):
    """MPI.Win in passive epochs; the targets wait in comm.Barrier()."""

    def close(self) -> None:
        self.win.Free()

    def meet(self) -> None:
        self.comm.Barrier()

    def enter(self) -> None:
        # Lock, not Lock_all, and one window at a time: with two of them locked
        # Open MPI over UCX hangs in Fetch_and_op.
        self.comm.Barrier()
        for target in self._locked():
            self.win.Lock(target, MPI.LOCK_SHARED)

    def leave(self) -> None:
        for target in self._locked():
            self.win.Unlock(target)
        self.comm.Barrier()

    def _locked(self) -> Sequence[int]:
        # A rank that is a target only must not open an epoch.
        everybody = len(self.targets) == self.comm.size
        return self.targets if everybody or self.comm.rank not in self.targets else ()

    def put_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        put, flush = self.win.Put, self.win.Flush
        for _ in repeat(None, n):
            put(data, rank, offset)
            flush(rank)

    def get(self, n: int, out: Array, rank: int, offset: int) -> None:
        get, flush = self.win.Get, self.win.Flush
        for _ in repeat(None, n):
            get(out, rank, offset)
            flush(rank)

    def fetch_add(self, n: int, rank: int, offset: int) -> None:
        fetch, flush, add = self.win.Fetch_and_op, self.win.Flush, MPI.SUM
        one, out = np.ones(1, np.int64), np.zeros(1, np.int64)
        for _ in repeat(None, n):
            fetch(one, out, rank, offset, add)
            flush(rank)
        self.added += n

    def accumulate_flush(self, n: int, data: Array, rank: int, offset: int) -> None:
        accumulate, flush, add = self.win.Accumulate, self.win.Flush, MPI.SUM
        for _ in repeat(None, n):
            accumulate(data, rank, offset, add)
            flush(rank)
        self.added += n

    def puts(self, blocks: Sequence[Block], rank: int) -> None:
        put = self.win.Put
        for data, offset in blocks:
            put(data, rank, offset)
        self.win.Flush(rank)

    def gets(self, blocks: Sequence[Block], rank: int) -> None:
        get = self.win.Get
        for data, offset in blocks:
            get(data, rank, offset)
        self.win.Flush(rank)

    def prepared(self, blocks: Sequence[Block], rank: int) -> Callable[[], None]:
        return lambda: self.puts(blocks, rank)

    def many(
        self, call: str, ranks: Array, offsets: Array, values: Array, out: Array
    ) -> Callable[[], Array]:
        # All that a loop can do ahead is done: what is left is MPI's calls.
        places = list(zip(ranks.tolist(), offsets.tolist(), strict=True))
        mine = [values[i : i + 1] for i in range(len(values))]
        outs = [out[i : i + 1] for i in range(len(out))]
        win, targets, add = self.win, self.targets, MPI.SUM

        def flush() -> Array:
            for target in targets:
                win.Flush(target)
            return out

        def put() -> Array:
            for data, (rank, offset) in zip(mine, places, strict=True):
                win.Put(data, rank, offset)
            return flush()

        def get() -> Array:
            for data, (rank, offset) in zip(outs, places, strict=True):
                win.Get(data, rank, offset)
            return flush()

        def fetch_add() -> Array:
            for data, old, (rank, offset) in zip(mine, outs, places, strict=True):
                win.Fetch_and_op(data, old, rank, offset, add)
            return flush()

        def accumulate() -> Array:
            for data, (rank, offset) in zip(mine, places, strict=True):
                win.Accumulate(data, rank, offset, add)
            return flush()

        return dict(zip(MANY, (put, get, fetch_add, accumulate), strict=True))[call]


class MpiAllocate(_Mpi):
    """MPI.Win.Allocate."""

    name = "MPI.Win.Allocate"

    def open(self, count: int) -> None:  # noqa: D102
        self.win = MPI.Win.Allocate(count * WORD, WORD, comm=self.comm)
        self.memory = np.frombuffer(memoryview(self.win.tomemory()), self.dtype)


class MpiCreate(_Mpi):
    """MPI.Win.Create over an array of the caller's."""

    name = "MPI.Win.Create"

    def open(self, count: int) -> None:  # noqa: D102
        self.memory = pages(count).view(self.dtype)
        self.win = MPI.Win.Create(self.memory, WORD, comm=self.comm)


FORMS: dict[str, type[Side]] = {
    side.name: side for side in (RmaextAllocate, RmaextCreate, MpiAllocate, MpiCreate)
}
