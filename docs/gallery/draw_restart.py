# SPDX-License-Identifier: BSD-3-Clause
"""Draw the wave of examples/restart.py, and whose blocks it lies in before and after."""

import sys
import tempfile

import numpy as np
import restart
from mpi4py import MPI

comm = MPI.COMM_WORLD
with tempfile.TemporaryDirectory() as folder:
    cells, where = restart.simulate(comm, comm.bcast(f"{folder}/wave.npy"))
if not np.array_equal(cells, restart.serial()[where]):
    sys.exit("restart: WRONG")
with restart.Array(comm.Split(comm.rank < comm.size - 1), (2, *restart.SHAPE), **restart.HOW) as it:
    parts = comm.gather((cells, where, it.where[1:]))
if comm.rank == 0:
    from matplotlib import pyplot

    whole = np.empty(restart.SHAPE)
    for cells, where, _ in parts:
        whole[where] = cells
    first, second = [it for _, _, it in parts[:-1]], [it for _, it, _ in parts]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    surfaces = (restart.start(), first, "first step"), (whole, second, f"step {2 * restart.STEPS}")
    for axis, (surface, blocks, title) in zip(axes, surfaces, strict=True):
        drawn = axis.imshow(surface)
        figure.colorbar(drawn, label="height")
        axis.set(title=f"{title}: {len(blocks)} ranks")
        for rank, (rows, columns) in enumerate(blocks):
            axis.text(columns.start + 1, rows.start + 1, f"rank {rank}", color="w", va="top")
            axis.axhline(rows.start - 0.5, color="w", lw=0.5, ls="--")
            axis.axvline(columns.start - 0.5, color="w", lw=0.5, ls="--")
    print(f"saved by {len(first)} ranks, loaded by {len(second)}")
    figure.savefig(sys.argv[1], dpi=120)
