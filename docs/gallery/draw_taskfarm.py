# SPDX-License-Identifier: BSD-3-Clause
"""Draw the image that examples/taskfarm.py computes, and which rank did which row."""

import sys

import numpy as np
import taskfarm
from mpi4py import MPI

comm = MPI.COMM_WORLD
result = taskfarm.run(comm)
if not taskfarm.check(comm, result):
    sys.exit("task farm: WRONG")
drawn = comm.gather(result.tasks)
if comm.rank == 0:
    from matplotlib import pyplot

    owner = np.empty(len(result.image))
    for rank, tasks in enumerate(drawn):
        owner[tasks] = rank
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(8, 4), layout="constrained", width_ratios=[8, 1], sharey=True
    )
    left.imshow(np.log1p(result.image), cmap="magma", aspect="auto")
    left.set_ylabel("row, which is a task")
    right.imshow(owner[:, np.newaxis], cmap="tab10", vmin=0, vmax=9, aspect="auto")
    right.set(title="rank", xticks=[])
    for rank in range(comm.size):
        left.plot([], [], "s", color=pyplot.get_cmap("tab10")(rank), label=f"rank {rank}")
    left.legend(loc="upper left")
    figure.savefig(sys.argv[1], dpi=120)
    print(f"{len(owner)} tasks, each done once, and the image is the serial one")
    for rank, tasks in enumerate(drawn):
        print(f"rank {rank} did {len(tasks)}")
