# SPDX-License-Identifier: BSD-3-Clause
"""Particles that change owners, by a Channel: `mpirun -n 4 python examples/particles.py`."""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Channel

COUNT, STEPS, DT = 1000, 50, 0.01  # particles of a rank, steps
PARTICLE = np.dtype([("x", float), ("v", float)])


def born(rank, size):
    """Particles on one rank's stretch of [0, 1)."""
    mine, draw = np.zeros(COUNT, PARTICLE), np.random.default_rng(rank)
    mine["x"], mine["v"] = (rank + draw.random(COUNT)) / size, draw.normal(0, 1, COUNT)
    return mine


def move(particles):
    """Let them fly for a step."""
    particles["x"] = (particles["x"] + DT * particles["v"]) % 1.0


def walk(comm=MPI.COMM_WORLD):
    """Return this rank's particles after all steps. Collective."""
    mine = born(comm.rank, comm.size)
    with Channel(comm, PARTICLE, COUNT) as channel:
        for _ in range(STEPS):
            move(mine)
            owner = (mine["x"] * comm.size).astype(int) % comm.size
            going = np.bincount(owner[owner != comm.rank], minlength=comm.size)
            # it needs all ranks: none sends of the next step before this one has received its own
            coming = sum(comm.alltoall(going.tolist()))
            for rank in np.flatnonzero(going):
                channel.send(mine[owner == rank], rank)
            mine = mine[owner == comm.rank]
            while coming:
                _, new = channel.receive()
                coming -= len(new)
                mine = np.concatenate([mine, new])
    return mine


def serial(comm=MPI.COMM_WORLD):
    """Return what one process finds, which has all particles."""
    every = np.concatenate([born(rank, comm.size) for rank in range(comm.size)])
    for _ in range(STEPS):
        move(every)
    return every


if __name__ == "__main__":
    found = np.sort(np.concatenate(MPI.COMM_WORLD.allgather(walk())))
    raise SystemExit(0 if np.array_equal(found, np.sort(serial())) else "particles: WRONG")
