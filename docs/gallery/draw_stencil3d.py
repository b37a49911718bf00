# SPDX-License-Identifier: BSD-3-Clause
"""Draw a cut through the block of examples/stencil3d.py, before and after."""

import sys

import numpy as np
import stencil3d
from mpi4py import MPI

comm = MPI.COMM_WORLD
cells, where = stencil3d.solve(comm)
if not np.array_equal(cells, stencil3d.serial()[where]):
    sys.exit("stencil3d: WRONG")
parts = comm.gather((cells, where))
if comm.rank == 0:
    from matplotlib import pyplot

    whole = np.empty(stencil3d.SHAPE)
    for cells, where in parts:
        whole[where] = cells
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    steps = f"after {stencil3d.STEPS} steps"
    for axis, block, title in zip(axes, (stencil3d.start(), whole), ("before", steps), strict=True):
        drawn = axis.imshow(block[:, :, block.shape[2] // 2])
        figure.colorbar(drawn, label="temperature")
        axis.set(title=title, xlabel="second axis", ylabel="first axis")
        for _, (rows, columns, _) in parts:
            axis.axhline(rows.start - 0.5, color="w", lw=0.5, ls="--")
            axis.axvline(columns.start - 0.5, color="w", lw=0.5, ls="--")
    print(f"{comm.size} ranks hold blocks of {', '.join(str(it.shape) for it, _ in parts)}")
    figure.savefig(sys.argv[1], dpi=120)
