# SPDX-License-Identifier: BSD-3-Clause
"""Random programs of locks, and a model that says whether one can deadlock.

A program is, for each thread, a list of steps on locks (window, rank). In the model a thread
waits only for those who hold a lock that excludes its own: it knows no queue. So what can
deadlock in the model has a circle of holders, and would with any locks; all else must end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

WINDOWS = 2


class Step(NamedTuple):
    """Take a lock, or drop it; with rank None those of all ranks, shared."""

    take: bool
    window: int
    rank: int | None
    exclusive: bool = False


Program = list[list[Step]]


def make(seed: int, threads: int, ranks: int) -> Program:
    """Return a program; one in three has ranks that nest exclusive locks."""
    dice = random.Random(seed)
    nests = dice.random() < 1 / 3
    return [
        [step for _ in range(dice.randint(1, 3)) for step in _section(dice, ranks, nests)]
        for _ in range(threads)
    ]


def _section(dice: random.Random, ranks: int, nests: bool) -> list[Step]:
    """Some locks that are held at once, and their release."""
    places = [(window, rank) for window in range(WINDOWS) for rank in range(ranks)]
    if dice.random() < 0.4:
        window, rank = dice.choice(places)
        return [Step(True, window, rank, True), Step(False, window, rank, True)]
    held = dice.sample(places, dice.randint(1, min(3, len(places))))
    modes = [nests and dice.random() < 0.4 for _ in held]
    taken = [Step(True, *place, mode) for place, mode in zip(held, modes, strict=True)]
    dropped = [step._replace(take=False) for step in dice.sample(taken, len(taken))]
    if dice.random() < 0.3:  # lock_all of one window, beside locks of the other
        window = dice.randrange(WINDOWS)
        taken = [step for step in taken if step.window != window]
        dropped = [step for step in dropped if step.window != window]
        taken.insert(dice.randint(0, len(taken)), Step(True, window, None))
        dropped.insert(dice.randint(0, len(dropped)), Step(False, window, None))
    return taken + dropped


def in_parts(steps: list[Step], order: Sequence[int]) -> list[Step]:
    """The steps, with lock_all taken apart into the locks of ranks in that order."""
    return [
        part
        for step in steps
        for part in ([step._replace(rank=r) for r in order] if step.rank is None else [step])
    ]


def nests_exclusive(program: Program) -> bool:
    """Whether a thread ever has an exclusive lock and another one: else no circle can be."""
    return any(
        len(held) > 1 and any(held.values())
        for steps in program
        for at in range(len(steps))
        if (held := _held(steps, at + 1))
    )


def can_deadlock(program: Program, orders: Sequence[Sequence[int]]) -> bool:
    """Whether threads can come to wait for holders in a circle.

    `orders` has for each thread the order in which its lock_all takes ranks.
    """
    program = [in_parts(steps, order) for steps, order in zip(program, orders, strict=True)]
    todo = [_free(program, tuple(0 for _ in program))]
    seen = set(todo)
    while todo:
        state = todo.pop()
        held = [_held(steps, at) for steps, at in zip(program, state, strict=True)]
        moves = 0
        for thread, steps in enumerate(program):
            if state[thread] < len(steps) and not _excluded(held, thread, steps[state[thread]]):
                moves += 1
                new = _free(program, (*state[:thread], state[thread] + 1, *state[thread + 1 :]))
                if new not in seen:
                    seen.add(new)
                    todo.append(new)
        if not moves and any(at < len(s) for at, s in zip(state, program, strict=True)):
            return True
    return False


def _free(program: Program, state: tuple[int, ...]) -> tuple[int, ...]:
    """The state after all releases that come next, as these wait for nobody."""
    ends = []
    for steps, at in zip(program, state, strict=True):
        while at < len(steps) and not steps[at].take:
            at += 1
        ends.append(at)
    return tuple(ends)


def _held(steps: list[Step], at: int) -> dict[tuple[int, int | None], bool]:
    held: dict[tuple[int, int | None], bool] = {}
    for step in steps[:at]:
        if step.take:
            held[step.window, step.rank] = step.exclusive
        else:
            del held[step.window, step.rank]
    return held


def _excluded(held: list[dict[tuple[int, int | None], bool]], thread: int, step: Step) -> bool:
    place = step.window, step.rank
    return any(
        place in its and (step.exclusive or its[place])
        for other, its in enumerate(held)
        if other != thread
    )
