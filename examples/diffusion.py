# SPDX-License-Identifier: BSD-3-Clause
"""Solve for what diffuses from sources and decays, by sweeps for which nobody waits.

    mpirun -n 4 python examples/diffusion.py

Each rank sweeps over its rows, beside the newest rows of its neighbours, however old they are,
until nobody's rows change any more.
"""

import numpy as np
from mpi4py import MPI

from rmaext.containers import Published

ROWS, COLUMNS, DECAY, TOLERANCE = 8, 32, 0.3, 1e-11  # rows of a rank


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
    mine, u = sources(comm.size)[comm.rank * ROWS :][:ROWS], np.zeros((ROWS, COLUMNS))
    above, below = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    sweeps, done, seen = 0, False, {}
    with Published(comm, u.shape) as parts:
        while not parts.settled(done, seen):
            read = {rank: parts.read(rank) for rank in (above, below)}
            seen = {rank: version for rank, (version, _) in read.items()}
            before, u = u, sweep(read[above][1], u, read[below][1], mine)
            done = abs(u - before).max() < TOLERANCE
            sweeps += 1
            if not done:
                parts.publish(u)
            pace(u)
        return np.vstack([parts.read(rank)[1] for rank in range(comm.size)]), sweeps


def direct(size):
    """Return the solution by the fast Fourier transform."""
    y, x = (4 * np.sin(np.pi * np.fft.fftfreq(n)) ** 2 for n in (size * ROWS, COLUMNS))
    return np.fft.ifft2(np.fft.fft2(sources(size)) / (DECAY + y[:, None] + x)).real


if __name__ == "__main__":
    good = np.allclose(solve(MPI.COMM_WORLD)[0], direct(MPI.COMM_WORLD.size), 0, 1e-8)
    raise SystemExit(0 if good else "diffusion: WRONG")
