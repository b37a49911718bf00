# SPDX-License-Identifier: BSD-3-Clause
"""`Array` beside what is written by hand: patches, ghosts, other blocks; one rank of a job.

Each contestant has its own copy of the same array, and brings the same data to the same places;
what differs from that on any rank fails.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from rmaext.bench.job import main
from rmaext.bench.measure import Job, WrongDataError, once
from rmaext.containers import Array as Field

NAME = "rmaext.containers.Array"
PATCH = 64  # elements along both axes

Array = NDArray[Any]


def shown(what: str, found: Array, wanted: Array) -> str | None:
    """Say whether an array is wrong."""
    if np.array_equal(found, wanted):
        return None
    return f"{what}: {np.count_nonzero(found != wanted)} of {wanted.size} elements are wrong"


# -- patches of 64 x 64 ------------------------------------------------------------------


class OfArray:
    """Patches of an Array."""

    name = NAME

    def __init__(self, comm: MPI.Intracomm, side: int) -> None:
        self.field = Field(comm, (side, side))
        self.enter = self.leave = self.field.fence
        self.local, self.where = self.field.local, self.field.where

    def get(self, i: int, j: int) -> Array:
        """Read a patch."""
        patch: Array = self.field[i : i + PATCH, j : j + PATCH]
        return patch

    def put(self, i: int, j: int, values: Array) -> None:
        """Write a patch; it is there then."""
        self.field[i : i + PATCH, j : j + PATCH] = values
        self.field.flush()

    def add(self, i: int, j: int, values: Array) -> None:
        """Add to a patch."""
        self.field.add((slice(i, i + PATCH), slice(j, j + PATCH)), values)

    def close(self) -> None:
        """Collective."""
        self.field.close()


class OfMpi:
    """The same blocks in an MPI window, and a subarray datatype for each part of a patch."""

    def __init__(self, comm: MPI.Intracomm, side: int, form: str, blocks: Field) -> None:
        self.name = f"{form}: subarrays"
        self.comm = comm
        self.every = [blocks.where_of(rank) for rank in range(comm.size)]
        self.where = blocks.where
        shape = tuple(it.stop - it.start for it in self.where)
        nbytes = 8 * math.prod(shape)
        if form == "MPI.Win.Allocate":
            self.win = MPI.Win.Allocate(nbytes, 1, comm=comm)
            self.local = np.frombuffer(memoryview(self.win.tomemory())).reshape(shape)
        else:
            self.local = np.zeros(shape)
            self.win = MPI.Win.Create(self.local, 1, comm=comm)
        self.local[...] = 0
        self.win.Lock_all()
        self.enter = self.leave = comm.Barrier

    def parts(self, i: int, j: int) -> Any:
        """Yield rank, slices of the patch, and a datatype, for each rank that holds a part."""
        for rank, (rows, columns) in enumerate(self.every):
            top, bottom = max(i, rows.start), min(i + PATCH, rows.stop)
            left, right = max(j, columns.start), min(j + PATCH, columns.stop)
            if top < bottom and left < right:
                sizes = [rows.stop - rows.start, columns.stop - columns.start]
                first = [top - rows.start, left - columns.start]
                kind = MPI.DOUBLE.Create_subarray(sizes, [bottom - top, right - left], first)
                yield rank, (slice(top - i, bottom - i), slice(left - j, right - j)), kind.Commit()
                kind.Free()

    def get(self, i: int, j: int) -> Array:
        """Read a patch."""
        out = np.empty((PATCH, PATCH))
        pieces = []
        for rank, place, kind in self.parts(i, j):
            piece = np.empty_like(out[place])
            self.win.Get(piece, rank, (0, 1, kind))
            pieces.append((rank, place, piece))
        for rank, place, piece in pieces:
            self.win.Flush(rank)
            out[place] = piece
        return out

    def put(self, i: int, j: int, values: Array) -> None:
        """Write a patch; it is there then."""
        for rank, place, kind in self.parts(i, j):
            self.win.Put(np.ascontiguousarray(values[place]), rank, (0, 1, kind))
            self.win.Flush(rank)

    def add(self, i: int, j: int, values: Array) -> None:
        """Add to a patch."""
        for rank, place, kind in self.parts(i, j):
            piece = np.ascontiguousarray(values[place])
            self.win.Accumulate(piece, rank, (0, 1, kind), MPI.SUM)
            self.win.Flush(rank)

    def close(self) -> None:
        """Collective."""
        self.win.Unlock_all()
        self.win.Free()


def places(job: Job) -> tuple[int, Array]:
    """Return the length of the array's sides, and where patches begin."""
    side, count = (512, 30) if job.quick else (4096, 300)
    return side, np.random.default_rng(5).integers(0, side - PATCH, (count, 2))


def patches(job: Job) -> None:
    """Get, put and add patches at random places, from one rank; the others wait."""
    side, where = places(job)
    mine = OfArray(job.comm, side)
    forms = [OfMpi(job.comm, side, form, mine.field) for form in job.settings["forms"]]
    rivals: list[Any] = [mine, *forms]
    job.windows += rivals
    whole = np.zeros((side, side))
    job.expect(3 * job.rounds * len(rivals))
    values = np.random.default_rng(6).integers(0, 9, (PATCH, PATCH)).astype(float)

    def each(call: str) -> Any:
        def turn(rival: Any) -> list[float]:
            times = []
            method = getattr(rival, call)
            for i, j in where.tolist():
                start = time.perf_counter_ns()
                found = method(i, j) if call == "get" else method(i, j, values)
                times.append((time.perf_counter_ns() - start) * 1e-3)
                if call == "get" and (
                    wrong := shown(call, found, whole[i : i + PATCH, j : j + PATCH])
                ):
                    raise WrongDataError(f"{rival.name}: {wrong}")
            return times

        return turn

    for call in "put", "get", "add":
        samples = job.alternate(rivals, each(call))
        for i, j in where:
            if call == "put":
                whole[i : i + PATCH, j : j + PATCH] = values
            elif call == "add":
                whole[i : i + PATCH, j : j + PATCH] += job.rounds * values
        for rival in rivals:
            job.comm.Barrier()
            job.check(shown(f"{rival.name}, {call}", rival.local, whole[rival.where]))
        job.add(f"{call} of a patch", samples, "us", 8 * PATCH**2)


# -- ghosts of 64^3 ----------------------------------------------------------------------


class Exchange:
    """`exchange` of an Array."""

    name = NAME

    def __init__(self, comm: MPI.Intracomm, shape: Any, grid: Any) -> None:
        self.field = Field(comm, shape, grid=grid, ghosts=1, periodic=True)
        self.padded, self.run = self.field.padded, self.field.exchange
        self.close = self.field.close
        self.enter = self.leave = comm.Barrier


class Sendrecv:
    """One axis after another, so that corners come too: the classic by hand."""

    name = "MPI.Comm.Sendrecv"

    def __init__(self, comm: MPI.Intracomm, shape: Any, grid: Any) -> None:
        self.cart = comm.Create_cart(grid, [True] * len(grid))
        self.padded = np.zeros([n // count + 2 for n, count in zip(shape, grid, strict=True)])
        self.enter = self.leave = comm.Barrier
        self.steps = []
        for axis in range(len(grid)):
            for direction in 1, -1:
                source, target = self.cart.Shift(axis, direction)
                send, receive = [slice(None)] * len(grid), [slice(None)] * len(grid)
                send[axis] = slice(-2, -1) if direction == 1 else slice(1, 2)
                receive[axis] = slice(0, 1) if direction == 1 else slice(-1, None)
                here, there = self.padded[tuple(send)], self.padded[tuple(receive)]
                buffers = np.empty(here.shape), np.empty(there.shape)
                self.steps.append((source, target, here, there, *buffers))

    def run(self) -> None:
        """Fill the ghosts."""
        for source, target, here, there, packed, came in self.steps:
            packed[...] = here
            self.cart.Sendrecv(packed, target, 0, came, source, 0)
            there[...] = came

    def close(self) -> None:
        """Collective."""
        self.cart.Free()


class Neighbours(Sendrecv):
    """All neighbours at once, by Neighbor_alltoallw and datatypes for what they have."""

    name = "MPI.Comm.Neighbor_alltoallw"

    def __init__(self, comm: MPI.Intracomm, shape: Any, grid: Any) -> None:
        super().__init__(comm, shape, grid)
        sizes, ndim = list(self.padded.shape), len(grid)
        shifts = [it for it in itertools.product((-1, 0, 1), repeat=ndim) if any(it)]
        here = np.array(self.cart.coords)
        targets = [self.cart.Get_cart_rank(list((here + it) % grid)) for it in shifts]
        sources = [self.cart.Get_cart_rank(list((here - it) % grid)) for it in shifts]
        self.graph = comm.Create_dist_graph_adjacent(sources, targets)
        lengths = [[1 if k else n - 2 for k, n in zip(it, sizes, strict=True)] for it in shifts]
        first = {0: lambda _: 1, 1: lambda n: n - 2, -1: lambda _: 1}
        ghost = {0: lambda _: 1, 1: lambda _: 0, -1: lambda n: n - 1}

        def kinds(starts: Any) -> list[MPI.Datatype]:
            return [
                MPI.DOUBLE.Create_subarray(
                    sizes, length, [starts[k](n) for k, n in zip(it, sizes, strict=True)]
                ).Commit()
                for it, length in zip(shifts, lengths, strict=True)
            ]

        self.kinds = kinds(first), kinds(ghost)
        self.plain = [1] * len(shifts), [0] * len(shifts)

    def run(self) -> None:
        """Fill the ghosts."""
        sent, received = ((self.padded, *self.plain, kinds) for kinds in self.kinds)
        self.graph.Neighbor_alltoallw(list(sent), list(received))

    def close(self) -> None:
        """Collective."""
        for kind in itertools.chain(*self.kinds):
            kind.Free()
        self.graph.Free()
        super().close()


def ghosts(job: Job) -> None:
    """Fill the ghosts of blocks of three axes, corners too; all ranks at once."""
    side = 16 if job.quick else 64
    grid = MPI.Compute_dims(job.comm.size, 3)
    shape = tuple(side * count for count in grid)
    rivals: list[Any] = [kind(job.comm, shape, grid) for kind in (Exchange, Sendrecv, Neighbours)]
    job.windows += rivals
    whole = np.random.default_rng(5).random(shape)
    where = rivals[0].field.where
    index = np.ix_(
        *(np.arange(it.start - 1, it.stop + 1) % n for it, n in zip(where, shape, strict=True))
    )
    repeat = 3 if job.quick else 20
    job.expect(job.rounds * len(rivals))

    def turn(rival: Any) -> list[float]:
        rival.padded[...] = -1
        rival.padded[1:-1, 1:-1, 1:-1] = whole[where]
        times = []
        for _ in range(1 + repeat):  # the first to warm up
            job.comm.Barrier()
            times.append(once(rival.run))
        wrong = shown(rival.name, rival.padded, whole[index])
        if wrong:
            raise WrongDataError(wrong)
        return times[1:]

    samples = job.alternate(rivals, turn, everywhere=True)
    job.add(f"ghosts of {side}^3", samples, "us", 8 * ((side + 2) ** 3 - side**3))


# -- pencils of 256^3 --------------------------------------------------------------------


class Copy:
    """`copy_to` of an Array."""

    name = NAME

    def __init__(self, comm: MPI.Intracomm, shape: Any) -> None:
        self.first = Field(comm, shape, grid=(0, 0, 1))
        self.second = Field(comm, shape, grid=(1, 0, 0))
        self.enter = self.leave = comm.Barrier
        self.source, self.target = self.first.local, self.second.local

    def run(self) -> None:
        """Bring each element to its other place."""
        self.first.copy_to(self.second)

    def close(self) -> None:
        """Collective."""
        self.first.close()
        self.second.close()


class Alltoallw:
    """One collective call with subarray datatypes, as mpi4py-fft makes them."""

    name = "MPI.Comm.Alltoallw"

    def __init__(self, comm: MPI.Intracomm, like: Copy) -> None:
        self.comm = comm
        self.enter = self.leave = comm.Barrier
        self.source, self.target = (np.zeros(it.shape) for it in (like.source, like.target))
        one, two, ranks = like.first, like.second, range(comm.size)
        self.kinds = (
            [self.kind(one.where, two.where_of(rank), self.source) for rank in ranks],
            [self.kind(two.where, one.where_of(rank), self.target) for rank in ranks],
        )

    @staticmethod
    def kind(mine: Any, theirs: Any, array: Array) -> MPI.Datatype:
        """Return what both blocks have in common, as a part of an array."""
        starts = [max(a.start, b.start) for a, b in zip(mine, theirs, strict=True)]
        stops = [min(a.stop, b.stop) for a, b in zip(mine, theirs, strict=True)]
        lengths = [b - a for a, b in zip(starts, stops, strict=True)]
        first = [a - it.start for a, it in zip(starts, mine, strict=True)]
        if min(lengths) <= 0:
            return MPI.BYTE.Dup()
        return MPI.DOUBLE.Create_subarray(list(array.shape), lengths, first).Commit()

    def run(self) -> None:
        """Bring each element to its other place."""
        zeros = [0] * self.comm.size
        sent, received = (
            [array, [int(kind.size > 1) for kind in kinds], zeros, kinds]
            for array, kinds in zip((self.source, self.target), self.kinds, strict=True)
        )
        self.comm.Alltoallw(sent, received)

    def close(self) -> None:
        """Collective."""
        for kind in itertools.chain(*self.kinds):
            kind.Free()


def pencils(job: Job) -> None:
    """Bring pencils along one axis to pencils along another; all ranks at once."""
    side = 32 if job.quick else 256
    mine = Copy(job.comm, (side,) * 3)
    rivals: list[Any] = [mine, Alltoallw(job.comm, mine)]
    job.windows += rivals
    whole = np.arange(side**3, dtype=float).reshape((side,) * 3)
    repeat = 1 if job.quick else 3
    job.expect(job.rounds * len(rivals))

    def turn(rival: Any) -> list[float]:
        rival.source[...] = whole[mine.first.where]
        rival.target[...] = -1
        times = []
        for _ in range(1 + repeat):  # the first to warm up
            job.comm.Barrier()
            times.append(once(rival.run))
        wrong = shown(rival.name, rival.target, whole[mine.second.where])
        if wrong:
            raise WrongDataError(wrong)
        return times[1:]

    samples = job.alternate(rivals, turn, everywhere=True)
    job.add(f"pencils of {side}^3", samples, "ms", 8 * side**3)


if __name__ == "__main__":
    main({"patches": patches, "ghosts": ghosts, "pencils": pencils})
