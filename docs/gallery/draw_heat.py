# SPDX-License-Identifier: BSD-3-Clause
"""Draw the temperatures that examples/heat.py computes, and who has computed them."""

import sys

import heat
from mpi4py import MPI

comm = MPI.COMM_WORLD
result = heat.solve(comm)
if not heat.check(comm, result):
    sys.exit("heat: WRONG")
if comm.rank == 0:
    from matplotlib import pyplot

    rows, cols = result.field.shape
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    image = axes.imshow(result.field, cmap="inferno")
    figure.colorbar(image, label="temperature")
    for rank, (first, last) in enumerate(heat.split(rows, comm.size)):
        axes.text(cols - 4, (first + last) / 2, f"rank {rank}", color="w", ha="right", va="center")
        if rank:
            axes.axhline(first - 0.5, color="w", lw=0.5, ls="--")
    figure.savefig(sys.argv[1], dpi=120)
    print(f"{rows} x {cols} points on {comm.size} ranks: equal to the serial answer")
    for rank, route in result.routes.items():
        print(f"rank 0 reaches rank {rank} by route {route}")
