# SPDX-License-Identifier: BSD-3-Clause
"""Fit a curve to samples of all ranks by stochastic gradient descent.

Each rank measured its own stretch of the curve: `mpirun -n 4 python examples/samples.py`.
"""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Store

COUNT, BATCH, EPOCHS, RATE = 1000, 100, 10, 0.2  # samples of a rank, samples of a step


def measured(rank, size):
    """Samples (x, y) of one rank's stretch, with noise."""
    x, noise = (rank + np.arange(COUNT) / COUNT) / size, np.random.default_rng(rank).normal
    return np.stack([x, np.exp(np.sin(7 * x)) + noise(0, 0.2, COUNT)], axis=1)


def features(x):
    """Cosine and sine of a few waves."""
    return np.exp(1j * np.pi * x[:, None] * np.arange(5)).view(float)


def step(weights, batch, everybody=np.asarray):
    """Follow the gradient of the squared errors, which `everybody` adds up."""
    f = features(batch[:, 0])
    return weights - RATE * everybody(f.T @ (f @ weights - batch[:, 1])) / BATCH


def batches(total, mix=True):
    """Indices of each step, the same on all ranks; without `mix` in the order of the samples."""
    draw = np.random.default_rng(1).permutation if mix else np.arange
    return np.reshape([draw(total) for epoch in range(EPOCHS)], (-1, BATCH))


def train(comm=MPI.COMM_WORLD, mix=True):
    """Return the weights after each step. Collective."""
    weights = [np.zeros(10)]
    with Store(comm, measured(comm.rank, comm.size)) as store:
        mine = batches(len(store), mix)[:, comm.rank :: comm.size]  # this rank's part of each
        future = store.prefetch(mine[0])
        for i in range(len(mine)):  # the next batch comes while this one is computed
            batch, future = future.result(), store.prefetch(mine[(i + 1) % len(mine)])
            weights.append(step(weights[-1], batch, comm.allreduce))
    return weights


def serial(comm=MPI.COMM_WORLD):
    """Return the weights that one process finds, which has all samples."""
    every, weights = np.concatenate(comm.allgather(measured(comm.rank, comm.size))), np.zeros(10)
    for batch in batches(len(every)):
        weights = step(weights, every[batch])
    return weights


if __name__ == "__main__":
    raise SystemExit(0 if np.allclose(train()[-1], serial(), rtol=1e-9) else "samples: WRONG")
