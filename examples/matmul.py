# SPDX-License-Identifier: BSD-3-Clause
"""Multiply matrices of all ranks: each gets blocks, multiplies them, and adds where they belong.

    mpirun -n 4 python examples/matmul.py

As programs of quantum chemistry do it with Global Arrays: whoever is free takes the next task,
wherever its blocks lie, and nobody waits for anybody before the end.
"""

import itertools

import numpy as np
from mpi4py import MPI

from rmaext.containers import Array

N, BLOCK = 300, 64  # of the matrices, and of a task


def matrices():
    """The two factors: integers, so that their product is the same in any order."""
    return np.random.default_rng(3).integers(-9, 9, (2, N, N)).astype(float)


def multiply(comm):
    """Return this rank's block of the product, where it is, and its tasks. Collective."""
    cuts = [slice(i, min(i + BLOCK, N)) for i in range(0, N, BLOCK)]
    tasks, mine = list(itertools.product(cuts, cuts, cuts)), []
    with (
        Array(comm, (N, N)) as a,
        Array(comm, (N, N)) as b,
        Array(comm, (N, N)) as c,
        Array(comm, (), int) as counter,
    ):
        for factor, values in zip((a, b), matrices(), strict=True):
            factor.local[...] = values[factor.where]
            factor.fence()
        while (number := counter.fetch_add((), 1)) < len(tasks):
            i, k, j = tasks[number]
            c.add((i, j), a[i, k] @ b[k, j])
            mine.append(number)
        c.fence()
        return c.local.copy(), c.where, mine


if __name__ == "__main__":
    block, where, _ = multiply(MPI.COMM_WORLD)
    a, b = matrices()
    raise SystemExit(0 if np.array_equal(block, (a @ b)[where]) else "matmul: WRONG")
