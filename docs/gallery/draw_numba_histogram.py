# SPDX-License-Identifier: BSD-3-Clause
"""Draw the histogram that examples/numba_histogram.py tallies, each rank's bins in a colour."""

import sys

import numba_histogram
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
parts = comm.gather(numba_histogram.run(comm))
if comm.rank == 0:
    from matplotlib import pyplot

    bins = np.concatenate(parts)
    if not np.array_equal(bins, numba_histogram.expected(comm.size)):
        sys.exit("histogram: WRONG")
    edges = np.linspace(0, 1, bins.size + 1)[:-1]
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for rank, part in enumerate(np.split(edges, comm.size)):
        axes.bar(part, parts[rank], width=1 / bins.size, align="edge", label=f"rank {rank}")
    axes.set(xlabel="energy that is left", ylabel="particles")
    axes.legend(title="bins of")
    figure.savefig(sys.argv[1], dpi=120)
    print(f"{bins.sum()} particles in {bins.size} bins: all bins as NumPy's")
