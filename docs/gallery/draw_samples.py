# SPDX-License-Identifier: BSD-3-Clause
"""Draw what examples/samples.py fits, beside batches in the order in which samples lie."""

import sys

import numpy as np
import samples
from mpi4py import MPI

comm = MPI.COMM_WORLD
runs = {"random batches of all ranks": samples.train(comm), "in order": samples.train(comm, False)}
mixed, ordered = (weights[-1] for weights in runs.values())
if not np.allclose(mixed, samples.serial(comm), rtol=1e-9):
    sys.exit("samples: WRONG")
parts = comm.gather(samples.measured(comm.rank, comm.size))
if comm.rank == 0:
    from matplotlib import pyplot

    x, y = np.concatenate(parts).T
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for rank, part in enumerate(parts):
        left.plot(*part[::4].T, ".", ms=2, alpha=0.6, label=f"measured by rank {rank}")
    for (name, weights), style in zip(runs.items(), ("-", ":"), strict=True):
        errors = [np.mean((samples.features(x) @ each - y) ** 2) for each in weights]
        left.plot(
            np.sort(x), samples.features(np.sort(x)) @ weights[-1], style, color="gray", label=name
        )
        right.semilogy(errors, style, color="gray", label=name)
        print(f"{name}: mean squared error {errors[-1]:.3f}")
    left.set(xlabel="x", ylabel="y")
    right.set(xlabel=f"step, of {samples.BATCH} samples", ylabel="mean squared error")
    for axes in (left, right):
        axes.legend(fontsize="small")
    figure.savefig(sys.argv[1], dpi=120)
