# SPDX-License-Identifier: BSD-3-Clause
"""Energy loss of particles, tallied from compiled code in a histogram on all ranks.

    mpirun -n 4 python examples/numba_histogram.py

Each rank follows particles through a slab, one collision after the other, and
counts each by the energy that it has left. The histogram is too large for one rank:
rank r has bins r*m to (r+1)*m - 1. The loop runs in a function compiled by numba,
which counts by a *fetch_add* at the rank that has the bin. Counts are integers, so
the sum over ranks is compared exactly with NumPy's histogram of the same particles.
"""

from __future__ import annotations

import sys

import numba
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import rmaext
from rmaext.jit import fetch_add_int64, flush

PARTICLES = 20_000  # a rank
BINS = 64  # a rank
COLLISIONS = 6  # in the slab, at most


@numba.njit
def follow(losses: NDArray[np.float64]) -> float:
    """Energy, from 1, that a particle has left after its collisions."""
    energy = 1.0
    for loss in losses:
        energy *= 1.0 - 0.5 * loss
    return energy


@numba.njit
def tally(handle: int, losses: NDArray[np.float64], bins: int, ranks: int) -> int:
    """Count all particles; the first code that is not 0, if there is one."""
    for i in range(losses.shape[0]):
        bin = int(follow(losses[i]) * bins * ranks)
        bin = min(bin, bins * ranks - 1)
        code = fetch_add_int64(handle, bin // bins, bin % bins, 1, 0)
        if code:
            return code
    return flush(handle, -1)


def sample(rank: int) -> NDArray[np.float64]:
    """Relative losses of a rank's particles, each collision a column."""
    return np.random.default_rng([1, rank]).random((PARTICLES, COLLISIONS))


def run(comm: MPI.Comm) -> NDArray[np.int64]:
    """Tally on all ranks; return this rank's bins. Collective."""
    with rmaext.Window.allocate(comm, BINS, np.int64) as win:
        win.check(tally(win.numba, sample(comm.rank), BINS, comm.size))
        win.fence()
        return win.local.copy()


def expected(ranks: int) -> NDArray[np.int64]:
    """All bins, by NumPy on one rank."""
    total = np.zeros(BINS * ranks, np.int64)
    for rank in range(ranks):
        energy = np.prod(1.0 - 0.5 * sample(rank), axis=1)
        total += np.histogram(energy, BINS * ranks, (0.0, 1.0))[0]
    return total


def main() -> int:
    """Compare with NumPy; 0 if every bin is right."""
    comm = MPI.COMM_WORLD
    mine = run(comm)
    want = expected(comm.size).reshape(comm.size, BINS)[comm.rank]
    wrong = comm.allreduce(int((mine != want).sum()))
    if comm.rank == 0:
        words = f"{wrong} bins are wrong" if wrong else "all bins as NumPy's"
        print(f"{PARTICLES * comm.size} particles in {BINS * comm.size} bins: {words}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
