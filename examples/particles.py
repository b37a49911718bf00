# SPDX-License-Identifier: BSD-3-Clause
"""Particles that change owners, by a Channel: `mpirun -n 4 python examples/particles.py`."""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Channel

COUNT, STEPS, DT = 1000, 50, 0.01  # particles of a rank, steps
PARTICLE = np.dtype([("x", float), ("v", float), ("step", int)])


def born(rank, size):
    """Particles on one rank's stretch of [0, 1)."""
    mine, draw = np.zeros(COUNT, PARTICLE), np.random.default_rng(rank)
    mine["x"], mine["v"] = (rank + draw.random(COUNT)) / size, draw.normal(0, 1, COUNT)
    return mine


def move(particles, step):
    """Move those that have made so many steps; some have come from a rank that is ahead."""
    now = particles["step"] == step
    particles["x"] = (particles["x"] + DT * now * particles["v"]) % 1.0
    particles["step"] += now
    return now


def walk(comm=MPI.COMM_WORLD):
    """Return this rank's particles after all steps. Collective."""
    mine, came = born(comm.rank, comm.size), np.zeros(STEPS + 2, int)
    with Channel(comm, PARTICLE, COUNT) as channel:
        for step in range(STEPS):
            now = move(mine, step)
            owner = (mine["x"] * comm.size).astype(int) % comm.size
            going = np.bincount(owner[now & (owner != comm.rank)], minlength=comm.size)
            for rank in np.flatnonzero(going):
                channel.send(mine[owner == rank], rank)
            mine, coming = mine[owner == comm.rank], np.zeros(1, int)
            comm.Reduce_scatter_block(going, coming)
            while came[step + 1] < coming[0]:
                _, new = channel.receive()
                came += np.bincount(new["step"], minlength=STEPS + 2)
                mine = np.concatenate([mine, new])
    return mine


def serial(comm=MPI.COMM_WORLD):
    """Return what one process finds, which has all particles."""
    every = np.concatenate([born(rank, comm.size) for rank in range(comm.size)])
    for step in range(STEPS):
        move(every, step)
    return every


if __name__ == "__main__":
    found = np.sort(np.concatenate(MPI.COMM_WORLD.allgather(walk())))
    raise SystemExit(0 if np.array_equal(found, np.sort(serial())) else "particles: WRONG")
