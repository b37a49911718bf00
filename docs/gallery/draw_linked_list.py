# SPDX-License-Identifier: BSD-3-Clause
"""Draw the list that examples/linked_list.py makes: where each node is, from the head on."""

import sys

import linked_list
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
values = np.array(linked_list.run(comm))
if comm.rank == 0:
    from matplotlib import pyplot

    if sorted(values) != list(range(comm.size * linked_list.NODES)):
        sys.exit("linked list: WRONG")
    owner = values // linked_list.NODES
    figure, axes = pyplot.subplots(figsize=(8, 2.5), layout="constrained")
    axes.plot(owner, "-", color="0.7", lw=0.8)
    axes.scatter(np.arange(owner.size), owner, c=owner, cmap="tab10", vmin=0, vmax=9, zorder=2)
    axes.set(xlabel="place in the list, from its head", ylabel="rank that has the node")
    axes.set_yticks(range(comm.size))
    figure.savefig(sys.argv[1], dpi=120)
    print(f"{values.size} nodes of {comm.size} ranks, none is lost")
