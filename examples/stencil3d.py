# SPDX-License-Identifier: BSD-3-Clause
"""Heat spreads in three dimensions; each rank computes what needs no ghosts while those come.

mpirun -n 4 python examples/stencil3d.py
"""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Array

SHAPE, STEPS, PERIODIC = (24, 30, 36), 20, (True, True, False)  # the last axis has cold ends


def start(where=np.s_[:, :, :]):
    """The cells of a part of the block before the first step: some are hot."""
    return np.random.default_rng(7).random(SHAPE)[where] ** 20


def step(padded):
    """One step, of all cells that have neighbours on each side."""
    for axis in range(3):
        a, b, c = (np.take(padded, range(k, padded.shape[axis] - 2 + k), axis) for k in range(3))
        padded = 0.25 * a + 0.5 * b + 0.25 * c
    return padded


def layer(axis, first, count):
    """Some layers of cells along an axis."""
    return (*[slice(None)] * axis, slice(first, first + count))


def solve(comm):
    """Return this rank's cells after all steps, and where they are. Collective."""
    with Array(comm, SHAPE, ghosts=1, periodic=PERIODIC) as heat:
        heat.local[...] = start(heat.where)
        for _ in range(STEPS):
            new = np.empty_like(heat.local)
            with heat.exchanging():
                new[1:-1, 1:-1, 1:-1] = step(heat.local)
            for axis, n in enumerate(new.shape):
                for k in (0, n - 1):  # what needs ghosts
                    new[layer(axis, k, 1)] = step(heat.padded[layer(axis, k, 3)])
            heat.local[...] = new
        return heat.local.copy(), heat.where


def serial():
    """The same in one process."""
    whole = start()
    for _ in range(STEPS):
        whole = np.pad(whole, ((1, 1), (1, 1), (0, 0)), "wrap")
        whole = step(np.pad(whole, ((0, 0), (0, 0), (1, 1))))
    return whole


if __name__ == "__main__":
    cells, where = solve(MPI.COMM_WORLD)
    raise SystemExit(0 if np.array_equal(cells, serial()[where]) else "stencil3d: WRONG")
