# SPDX-License-Identifier: BSD-3-Clause
"""Draw from a distribution by a table that each node has once, not each rank.

One rank of each node fills it, all draw from it: `mpirun -n 4 python examples/node_table.py`.
"""

import numpy as np
from mpi4py import MPI

from rmaext.containers import NodeArray

BINS, DRAWS = 1 << 18, 20_000  # of the table, of a rank


def density(x):
    """How likely a value is: two peaks."""
    return np.exp(-(((x - 0.3) / 0.05) ** 2)) + 0.5 * np.exp(-(((x - 0.7) / 0.1) ** 2))


def load(table):
    """Fill the table: below which value each part of all draws lies."""
    x = np.linspace(0, 1, len(table))
    below = np.cumsum(density(x))
    table[:] = np.interp(x, below / below[-1], x)


def draws(rank, table):
    """Values of one rank."""
    return table[np.random.default_rng(rank).integers(0, len(table), DRAWS)]


def sample(comm=MPI.COMM_WORLD):
    """Return the values of all ranks, on each. Collective."""
    table = NodeArray(comm, BINS, fill=load)
    return NodeArray.assemble(comm, draws(comm.rank, table.array)).array  # which stays


def serial(comm=MPI.COMM_WORLD):
    """Return what one process finds, with a table of its own."""
    table = np.zeros(BINS)
    load(table)
    return np.concatenate([draws(rank, table) for rank in range(comm.size)])


if __name__ == "__main__":
    raise SystemExit(0 if np.array_equal(sample(), serial()) else "node_table: WRONG")
