# SPDX-License-Identifier: BSD-3-Clause
"""Aligns the clocks of nodes.

The processes of a node read the same CLOCK_MONOTONIC. That of another node differs from it
by what it does from CLOCK_REALTIME, as good as the nodes keep that; and no rank can leave a
meeting before the last one has come to it, which bounds the difference from both sides.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..._native._lib import lib
from .reading import Job

__all__ = ["offsets"]


def offsets(job: Job) -> dict[int, int]:
    """Return the ns to add to the times of each rank."""
    hosts: dict[str, list[int]] = {}
    for rank in job.ranks:
        difference = int(rank.header["realtime"]) - int(rank.header["monotonic"])
        hosts.setdefault(rank.host, []).append(difference)
    first, *others = hosts
    real = {host: int(np.median(found)) for host, found in hosts.items()}
    add = dict.fromkeys(hosts, 0)
    if others:
        met = {host: _meetings(job, host) for host in hosts}
        for host in others:
            add[host] = _refined(real[host] - real[first], met[first], met[host])
    return {rank.rank: add[rank.host] for rank in job.ranks}


def _meetings(job: Job, host: str) -> dict[tuple[int, int, int], tuple[int, int]]:
    """Return when the last rank of a host came to each meeting, and the first left it."""
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    for rank in job.ranks:
        if rank.host != host:
            continue
        events, times = rank.events, Counter[tuple[int, int]]()
        rows = np.isin(events["kind"], [lib.RMAEXT_IN_MEETING, lib.RMAEXT_IN_MPI])
        for event in events[rows & (events["outcome"] == 0)]:
            step = int(event["bytes"]), int(event["offset"])
            key = *step, times[step]
            times[step] += 1
            came, left = found.get(key, (0, 1 << 62))
            found[key] = max(came, int(event["begin"])), min(left, int(event["end"]))
    return found


def _refined(
    guess: int,
    here: dict[tuple[int, int, int], tuple[int, int]],
    there: dict[tuple[int, int, int], tuple[int, int]],
) -> int:
    """Return what to add there: the guess, or the middle of what the meetings allow."""
    both = here.keys() & there.keys()
    if not both:
        return guess
    least = max(here[key][0] - there[key][1] for key in both)
    most = min(here[key][1] - there[key][0] for key in both)
    # bounds that exclude each other come from meetings that are not the same
    return (least + most) // 2 if least <= most else guess
