# SPDX-License-Identifier: BSD-3-Clause
"""Draw the cells of examples/quadrature.py, and which rank has added up each."""

import math
import sys

import numpy as np
import quadrature
from mpi4py import MPI

comm = MPI.COMM_WORLD
done = comm.allgather(quadrature.integrate(comm))
cells = sorted(cell for part in done for cell in part)
total = sum(amount for _, amount in cells)
if cells != sorted(quadrature.serial()) or not math.isclose(total, quadrature.LIGHT):
    sys.exit("quadrature: WRONG")
if comm.rank == 0:
    from matplotlib import collections, patches, pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 4.7), layout="constrained", sharex=True, sharey=True
    )
    x = np.linspace(-1, 1, 500)
    left.imshow(quadrature.light(x, x[:, None]), extent=(-1, 1, -1, 1), origin="lower", cmap="hot")
    left.set(title="light")
    for rank, part in enumerate(done):
        squares = [patches.Rectangle((x, y), side, side) for (x, y, side), _ in part]
        style = {"facecolor": f"C{rank}", "edgecolor": "w", "linewidth": 0.3}
        right.add_collection(collections.PatchCollection(squares, **style))
        right.plot([], [], "s", color=f"C{rank}", label=f"rank {rank}: {len(part)}")
    right.set(title="cells, and who has added them up", aspect="equal")
    right.legend(loc="center", fontsize="small")
    figure.savefig(sys.argv[1], dpi=120)
    print(f"light {total:.9f}, as it should be: {quadrature.LIGHT:.9f}")
    print(f"{len(cells)} cells, those of one process")
