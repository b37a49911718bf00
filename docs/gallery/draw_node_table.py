# SPDX-License-Identifier: BSD-3-Clause
"""Draw the values that the ranks of examples/node_table.py draw, and what they are drawn from."""

import sys

import node_table
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
values = node_table.sample(comm)
if not np.array_equal(values, node_table.serial(comm)):
    sys.exit("node_table: WRONG")
if comm.rank == 0:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 4), layout="constrained")
    x = np.linspace(0, 1, 501)
    parts = np.split(values, comm.size)
    labels = [f"rank {rank}" for rank in range(comm.size)]
    axis.hist(parts, 100, range=(0, 1), density=True, stacked=True, label=labels)
    axis.plot(x, node_table.density(x) / node_table.density(x).mean(), "k", lw=1, label="wanted")
    axis.set(xlabel="value", ylabel="density")
    axis.legend()
    nbytes = node_table.BINS * 8 / 2**20
    print(f"{comm.size} ranks draw from one table of {nbytes:g} MiB on each node")
    figure.savefig(sys.argv[1], dpi=120)
