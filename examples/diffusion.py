# SPDX-License-Identifier: BSD-3-Clause
"""Solve for what diffuses from sources and decays, by sweeps for which nobody waits.

    mpirun -n 4 python examples/diffusion.py

Each rank sweeps over its rows, beside the newest rows of its neighbours, however old they are.
"""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Published

ROWS, COLUMNS, DECAY, TOLERANCE = 8, 32, 0.05, 1e-10  # rows of a rank


def sources(size):
    """What is put in at each point of all ranks."""
    return np.random.default_rng(size).random((size * ROWS, COLUMNS)) ** 50


def sweep(above, u, below, source):
    """One step of Jacobi's method: (4 + DECAY) u = what is around + source, on a torus."""
    around = np.roll(u, 1, axis=1) + np.roll(u, -1, axis=1)
    around += np.vstack([above[-1:], u[:-1]]) + np.vstack([u[1:], below[:1]])
    return (around + source) / (4 + DECAY)


def solve(comm, pace=lambda u: None):
    """Return the solution, and how many sweeps this rank has made. Collective."""
    every, u = sources(comm.size), np.zeros((ROWS, COLUMNS))
    mine, left, right = every[comm.rank * ROWS :][:ROWS], comm.rank - 1, comm.rank + 1
    with Published(comm, u.shape) as parts, Published(comm, every.shape) as answer:
        while not answer.read(0)[0]:  # while rank 0 has published none
            above, below = (parts.read(rank % comm.size)[1] for rank in (left, right))
            u = sweep(above, u, below, mine)
            sweeps = parts.publish(u)
            pace(u)
            if comm.rank == 0 and sweeps % 10 == 0:
                whole = np.vstack([parts.read(rank)[1] for rank in range(comm.size)])
                if abs(sweep(whole, whole, whole, every) - whole).max() < TOLERANCE:
                    answer.publish(whole)
        return answer.read(0)[1], sweeps


def direct(size):
    """Return the solution by the fast Fourier transform."""
    y, x = (4 * np.sin(np.pi * np.fft.fftfreq(n)) ** 2 for n in (size * ROWS, COLUMNS))
    return np.fft.ifft2(np.fft.fft2(sources(size)) / (DECAY + y[:, None] + x)).real


if __name__ == "__main__":
    good = np.allclose(solve(MPI.COMM_WORLD)[0], direct(MPI.COMM_WORLD.size), 0, 1e-8)
    raise SystemExit(0 if good else "diffusion: WRONG")
