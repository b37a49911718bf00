# SPDX-License-Identifier: BSD-3-Clause
"""A wave that some ranks have saved goes on on others: `mpirun -n 4 python examples/restart.py`."""

import tempfile

import numpy as np
from mpi4py import MPI

from rmaext.containers import Array

SHAPE, STEPS, SPEED = (60, 80), 60, 0.5  # steps before the restart, and after it
HOW = {"grid": (1, 0, 0), "ghosts": (0, 1, 1), "periodic": (False, True, True)}


def start():
    """The surface before the first step."""
    y, x = (np.arange(n) / n for n in SHAPE)
    return np.exp(-200 * ((y[:, None] - 0.3) ** 2 + (x - 0.4) ** 2))


def step(wide, before):
    """The next step of all points that have neighbours on each side."""
    now = wide[1:-1, 1:-1]
    around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
    return 2 * now - before + SPEED**2 * (around - 4 * now)


def go_on(wave):
    """Take the steps of the surface now, and one before. Collective."""
    for _ in range(STEPS):
        wave.exchange()
        wave.local[:] = np.stack([step(wave.padded[0], wave.local[1]), wave.local[0]])


def simulate(comm, path):
    """Return this rank's part, and where it is; all ranks but one save. Collective."""
    fewer = max(1, comm.size - 1)
    if comm.rank < fewer:
        with Array(comm.Create_group(comm.group.Incl(range(fewer))), (2, *SHAPE), **HOW) as wave:
            wave.local[:] = start()[wave.where[1:]]
            go_on(wave)
            wave.save(path)
    with Array.load(comm, path, **HOW) as wave:
        go_on(wave)
        return wave.local[0].copy(), wave.where[1:]


def serial():
    """The same in one process, without a restart."""
    now = before = start()
    for _ in range(2 * STEPS):
        now, before = step(np.pad(now, 1, "wrap"), before), now
    return now


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # of rank 0
        cells, where = simulate(MPI.COMM_WORLD, MPI.COMM_WORLD.bcast(f"{folder}/wave.npy"))
    raise SystemExit(0 if np.array_equal(cells, serial()[where]) else "restart: WRONG")
