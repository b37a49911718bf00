# SPDX-License-Identifier: BSD-3-Clause
"""Draw where the particles of examples/particles.py are before and after, and on which rank."""

import sys

import numpy as np
import particles
from mpi4py import MPI

comm = MPI.COMM_WORLD
before, after = comm.gather(particles.born(comm.rank, comm.size)), comm.gather(particles.walk(comm))
if comm.rank == 0:
    from matplotlib import pyplot

    if not np.array_equal(np.sort(np.concatenate(after)), np.sort(particles.serial(comm))):
        sys.exit("particles: WRONG")
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
    titles = "before the first step", f"after {particles.STEPS} steps"
    for axis, ranks, title in zip(axes, (before, after), titles, strict=True):
        for rank, mine in enumerate(ranks):
            axis.plot(mine["x"], mine["v"], ".", ms=2, label=f"rank {rank}: {len(mine)}")
        axis.set(title=title, xlabel="place", ylabel="velocity")
        axis.legend(fontsize="x-small", loc="upper right")
    print(f"particles of ranks 0, 1, ... at last: {', '.join(str(len(mine)) for mine in after)}")
    figure.savefig(sys.argv[1], dpi=120)
