# SPDX-License-Identifier: BSD-3-Clause
"""Add up the light of a thin ring, in ever smaller cells where it is not smooth.

Nobody knows before how many there will be: `mpirun -n 4 python examples/quadrature.py`.
"""

import math

import numpy as np
from mpi4py import MPI

from rmaext.containers import TaskQueue

CELL = np.dtype([("x", "f8"), ("y", "f8"), ("side", "f8")])  # a square, by its lower left corner
PLANE = (-1.0, -1.0, 2.0)
X, Y, RADIUS, WIDTH, TOLERANCE = 0.1, -0.05, 0.6, 0.02, 1e-12
LIGHT = 2 * math.pi**1.5 * RADIUS * WIDTH
RULES = [(1 + p, w) for p, w in map(np.polynomial.legendre.leggauss, (6, 8))]


def light(x, y):
    """Brightness of the ring."""
    return np.exp(-(((np.hypot(x - X, y - Y) - RADIUS) / WIDTH) ** 2))


def examine(x, y, side):
    """Return the light of a cell, and its quarters if two rules differ on it."""
    half = side / 2
    values = [light(x + half * p[:, None], y + half * p) for p, _ in RULES]
    rough, fine = (half**2 * w @ f @ w for f, (_, w) in zip(values, RULES, strict=True))
    if side < 0.3 and abs(fine - rough) < TOLERANCE:
        return float(fine), []
    return 0.0, [(x + i, y + j, half) for i in (0, half) for j in (0, half)]


def integrate(comm):
    """Return the cells that this rank has not cut, and the light of each. Collective."""
    done = []
    with TaskQueue(comm, CELL, capacity=10_000) as queue:
        if comm.rank == 0:
            queue.put(PLANE)
        for cell in queue:
            amount, quarters = examine(*cell.item())
            queue.put(quarters)
            done += [] if quarters else [(cell.item(), amount)]
    return done


def serial(cell=PLANE):
    """Return what all ranks together should."""
    amount, quarters = examine(*cell)
    return [it for quarter in quarters for it in serial(quarter)] or [(cell, amount)]


if __name__ == "__main__":
    cells = sorted(MPI.COMM_WORLD.allreduce(integrate(MPI.COMM_WORLD)))  # of all ranks
    good = math.isclose(sum(amount for _, amount in cells), LIGHT) and cells == sorted(serial())
    raise SystemExit(0 if good else "quadrature: WRONG")
