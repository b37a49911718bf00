# SPDX-License-Identifier: BSD-3-Clause
"""Draw the searches of examples/multistart.py, and which rank has evaluated which point."""

import functools
import sys

import multistart
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
paths, done = map(comm.allgather, multistart.fit(comm))
points = [point for part in done for point in part]
caches = []  # of each search, alone
for path in (path for some in paths for path in some):
    caches.append(functools.cache(multistart.error))
    if path != multistart.search(path[0], lambda some: map(caches[-1], some)):
        sys.exit(f"multistart: WRONG path from {path[0]}")
if len(points) != len(set(points)):
    sys.exit("multistart: WRONG, a point was evaluated twice")
alone = sum(cache.cache_info().currsize for cache in caches)
if comm.rank == 0:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 4.5), layout="constrained", width_ratios=[3, 2]
    )
    for rank, (some, part) in enumerate(zip(paths, done, strict=True)):
        left.plot(*2 ** (np.array(part).T / 32), "o", ms=4, label=f"evaluated by rank {rank}")
        for path in some:
            left.plot(*2 ** (np.array(path).T / 32), "k-", lw=0.5, alpha=0.4)
    best = min(points, key=multistart.error)
    rates = [2 ** (number / 32) for number in best]
    left.plot(*rates, "k*", ms=14, label="best")
    left.set(xscale="log", yscale="log", xlabel="spread, a day", ylabel="recovery, a day")
    bars = {"each search alone": [alone], "sharing": [len(part) for part in done]}
    for name, parts in bars.items():
        for rank, (count, start) in enumerate(zip(parts, np.cumsum([0, *parts]), strict=False)):
            right.bar(name, count, bottom=start, color=f"C{rank}" if len(parts) > 1 else "gray")
        right.text(name, sum(parts), sum(parts), ha="center", va="bottom")
    right.set(ylabel="evaluations")
    right.legend(*left.get_legend_handles_labels(), fontsize="small", loc="upper right")
    figure.savefig(sys.argv[1], dpi=120)
    print(f"best: spread {rates[0]:.2f}, recovery {rates[1]:.2f} a day")
    print(f"{len(points)} points evaluated, each once; {alone} by searches that share nothing")
