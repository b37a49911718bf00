# SPDX-License-Identifier: BSD-3-Clause
"""Times and what is made of them: turns, samples, medians, ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from mpi4py import MPI

ORIGIN = 0  # the rank that measures
Samples = dict[str, list[list[float]]]  # contestant -> round -> samples


class WrongDataError(Exception):
    """An operation reported success and did something else."""


class Contestant(Protocol):
    """What `Job.alternate` measures by turns."""

    @property
    def name(self) -> str:
        """As in the table."""

    def enter(self) -> None:
        """Begin: wait for all ranks. Collective."""

    def leave(self) -> None:
        """End: here all ranks but the origin wait meanwhile. Collective."""


C = TypeVar("C", bound=Contestant)


class Job:
    """The ranks of one job, and what the command wants of it.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        All ranks.
    settings : dict
        What the command passed on: "forms", "sizes", "rounds", "quick", ...
    figures : list of dict
        What was measured, see `add`. On the origin only.
    facts : dict
        What is worth knowing beside, as the routes in use.
    windows : list of Side
        To be freed when the result is written: one that hangs there costs nothing.
    """

    def __init__(self, settings: dict[str, Any], progress: Path) -> None:
        self.comm = MPI.COMM_WORLD
        self.settings = settings
        self.quick: bool = settings.get("quick", False)
        self.rounds: int = settings.get("rounds", 10)
        self.figures: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.windows: list[Any] = []
        self._progress = progress
        self._total = self._done = 0

    @property
    def is_origin(self) -> bool:
        """Whether this rank measures."""
        return self.comm.rank == ORIGIN

    def expect(self, turns: int) -> None:
        """Say how many turns there will be, for the progress bar."""
        self._total = turns

    def alternate(
        self,
        contestants: Sequence[C],
        turn: Callable[[C], list[float]],
        rounds: int | None = None,
        everywhere: bool = False,
    ) -> Samples:
        """Let each contestant have its turn in each round. Collective.

        `turn` runs on the origin, or `everywhere`, and returns samples; the
        other ranks wait for it in the contestant's own fence or barrier.
        """
        samples: Samples = {contestant.name: [] for contestant in contestants}
        for number in range(rounds or self.rounds):
            # In both orders: what one leaves behind must not favour the other.
            for contestant in contestants[:: -1 if number % 2 else 1]:
                contestant.enter()
                taken = turn(contestant) if everywhere or self.is_origin else []
                contestant.leave()
                samples[contestant.name].append(taken)
                self._step()
        return samples

    def _step(self) -> None:
        self._done += 1
        if self.is_origin and self._total:
            self._progress.write_text(f"{min(1.0, self._done / self._total):.3f}")

    def check(self, wrong: str | None) -> None:
        """Raise on all ranks if the data is wrong on one. Collective."""
        for rank, text in enumerate(self.comm.allgather(wrong)):
            if text:
                raise WrongDataError(f"rank {rank}: {text}")

    def add(
        self,
        operation: str,
        samples: Samples,
        unit: str,
        size: int | None = None,
        amount: float | None = None,
        percentile: float = 50,
    ) -> None:
        """Make a figure of samples in microseconds.

        With `amount`, what one sample moves or does, it is a rate: amount per
        microsecond. `unit` is then "GB/s" or "M/s", else "us" or "ms".
        The figure's value is the `percentile` of all samples; that of each
        round's samples is what the ratios are made of.
        """
        if not self.is_origin:
            return
        scale = 1e-3 if unit in ("ms", "GB/s") else 1.0

        def value(times: Sequence[float]) -> float:
            taken = float(np.percentile(times, percentile))
            return scale * (taken if amount is None else amount / taken)

        values = {
            name: {
                "value": value(np.concatenate(rounds).tolist()),
                "rounds": [value(times) for times in rounds],
                "samples": sum(map(len, rounds)),
            }
            for name, rounds in samples.items()
        }
        self.figures.append(
            {
                "operation": operation,
                "size": size,
                "unit": unit,
                "better": "lower" if amount is None else "higher",
                "values": values,
                "ratios": ratios(values, amount is None),
            }
        )


def ratios(values: Mapping[str, Mapping[str, Any]], lower: bool) -> list[dict[str, Any]]:
    """Return how many times as fast each rmaext form is as everything else.

    Each is the median of the rounds' ratios.
    """
    found = []
    for mine in (name for name in values if name.startswith("rmaext")):
        for other in (name for name in values if not name.startswith("rmaext")):
            quotients = np.divide(values[mine]["rounds"], values[other]["rounds"])
            speed = float(np.median(1 / quotients if lower else quotients))
            found.append({"of": mine, "to": other, "times_as_fast": speed})
    return found


def per_call(loop: Callable[[int], None], seconds: float, samples: int = 5) -> list[float]:
    """Return the mean time of a call, in microseconds, of several loops over `seconds` each.

    `loop(n)` calls n times. A clock around every single call would cost as much
    as the fastest calls do.
    """
    clock = time.perf_counter
    count, taken = 1, 0.0
    while True:  # to warm up, too
        start = clock()
        loop(count)
        taken = clock() - start
        if taken >= seconds / 4 or count >= 1 << 22:
            break
        count *= 2
    count = max(1, round(count * seconds / taken))
    times = []
    for _ in range(samples):
        start = clock()
        loop(count)
        times.append((clock() - start) / count * 1e6)
    return times


def once(call: Callable[[], object]) -> float:
    """Return the time of one call in microseconds."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) * 1e-3
