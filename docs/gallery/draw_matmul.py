# SPDX-License-Identifier: BSD-3-Clause
"""Draw the product of examples/matmul.py, and which rank did which task."""

import sys

import matmul
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
block, where, mine = matmul.multiply(comm)
a, b = matmul.matrices()
if not np.array_equal(block, (a @ b)[where]):
    sys.exit("matmul: WRONG")
parts, tasks = comm.gather((block, where)), comm.gather(mine)
if comm.rank == 0:
    from matplotlib import pyplot

    whole = np.empty((matmul.N, matmul.N))
    for block, where in parts:
        whole[where] = block
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 4), layout="constrained", width_ratios=[2, 3]
    )
    figure.colorbar(left.imshow(whole), label="product")
    for rank, some in enumerate(tasks):
        right.plot(some, np.full(len(some), rank), "|", label=f"rank {rank}: {len(some)}")
    right.set(xlabel="task", ylabel="rank that did it", yticks=range(comm.size))
    right.legend(fontsize="x-small")
    print(f"tasks of ranks 0, 1, ...: {', '.join(str(len(some)) for some in tasks)}")
    figure.savefig(sys.argv[1], dpi=120)
