# SPDX-License-Identifier: BSD-3-Clause
"""Fit an epidemic by searches that share what they have evaluated.

Those from many points come to the same ones: `mpirun -n 4 python examples/multistart.py`.
"""

import time

from mpi4py import MPI

from rmaext.containers import Dict

COUNTS = (3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4)  # ill; BMJ 1978 p. 587
STARTS = [(a, b) for a in range(-64, 97, 32) for b in range(-128, 33, 32)]


def error(point, steps=200):
    """Simulate with the rates of spread and recovery that a point stands for, and compare."""
    spread, recovery = (2 ** (number / 32) / steps for number in point)
    ill, well, total = 1.0, 762.0, 0.0
    for count in COUNTS:  # of each day
        for _ in range(steps):
            new = spread * ill * well / 763
            ill, well = ill + new - recovery * ill, well - new
        total += (ill - count) ** 2
    return total


def search(start, evaluate):
    """Go to the best of the points around, nearer ones when none is better; return the path."""
    path, step = [start], 16
    while step:
        a, b = path[-1]
        points = [(a, b), (a + step, b), (a - step, b), (a, b + step), (a, b - step)]
        path.append(min(zip(evaluate(points), points, strict=True))[1])
        step //= 1 + (path[-1] == (a, b))
    return path


def fit(comm):
    """Return the paths of this rank's searches, and what it has evaluated. Collective."""
    done, mine = [], -1.0 - comm.rank  # which stands for an error that is being computed
    with Dict(comm, "i4,i4", "f8", capacity=10_000) as errors:

        def evaluate(points):
            new = [point for point in points if errors.setdefault(point, mine) == mine]
            errors.set_many(new, [*map(error, new)])  # nobody has had these before
            done.extend(new)
            while (found := errors.get_many(points)).min() < 0:
                time.sleep(1e-4)  # another rank is at it
            return found

        return [search(start, evaluate) for start in STARTS[comm.rank :: comm.size]], done


if __name__ == "__main__":
    paths, done = map(MPI.COMM_WORLD.allreduce, fit(MPI.COMM_WORLD))  # lists of all ranks
    alone = sorted(search(start, lambda points: map(error, points)) for start in STARTS)
    raise SystemExit("WRONG" if sorted(paths) != alone or len(done) > len(set(done)) else 0)
