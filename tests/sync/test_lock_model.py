# SPDX-License-Identifier: BSD-3-Clause
"""Every order of the steps of the lock, with ranks that die and that give up.

The steps are those of csrc/shm/ticket_lock.c, as messages of which each is taken apart into
single updates: where the block is mapped they are such.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from rmaext._native._lib import ffi, lib
from rmaext._sync import ticket_lock

SIZE = 3
PLACES = ticket_lock.Places(0, 1, 2, 3, 4, 4 + SIZE, 4 + 2 * SIZE)
WORDS = 4 + SIZE
QUEUED = lib.RMAEXT_SLOT_QUEUED


def singly(steps: Any) -> Iterator[Any]:
    """The steps, each update by itself."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(step, tuple):
            answer = [(yield "swap", *step)]
        else:
            answer = []
            for place, value in step:
                answer.append((yield "add", place, value))


class Lock:
    """The calls of one rank, as steps."""

    def __init__(self, rank: int) -> None:
        self.state = ffi.new("struct rmaext_lock *")
        self.state.rank, self.state.words, self.state.slots = rank, PLACES.next, PLACES.slots

    def take(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_take, 1, exclusive)

    def wait(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_wait, exclusive, 0, 0)

    def leave(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_leave, exclusive)

    def undo(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_undo, 1, exclusive)

    def pass_on(self, rank: int, slot: int) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_pass, rank, slot)

    def _call(self, function: Any, *arguments: int) -> Iterator[Any]:
        return singly(interrupted(function, ticket_lock.exchange(), self.state, *arguments))


def interrupted(*call: Any) -> Iterator[Any]:
    """The steps of a call that a signal ends before each of them, and that is made again."""
    answers: list[Any] = []
    while True:
        steps = ticket_lock.steps(*call)
        try:
            step = next(steps)
            for answer in answers:
                assert step
                step = steps.send(answer)
        except StopIteration as end:
            return end.value
        again = ticket_lock.steps(*call)
        assert [next(again), *map(again.send, answers)][-1] == step
        answers.append((yield step))


def client(rank: int, exclusive: bool, gives_up: bool) -> Iterator[Any]:
    """Lock and unlock once; one that gives up tries again, or does not."""
    lock = Lock(rank)
    turn = PLACES.writers if exclusive else PLACES.readers
    inside = yield from lock.take(exclusive)
    while not inside:
        ticket = lock.state.ticket
        what = yield "wait", turn, ticket, gives_up
        if what == "turn":
            inside = yield from lock.wait(exclusive)
            assert inside, "the turn went by"
        elif what == "give up":
            gives_up = False
            yield from lock.undo(exclusive)
            if (yield "choose", ("stop", "again")) == "stop":
                return "gave up"
            inside = yield from lock.take(exclusive)
        else:
            gone = yield ("gone",)  # before the slots: those of the dead stay as they are
            turns = yield from read(PLACES.readers, PLACES.writers)
            slots = yield from read(*range(PLACES.slots, PLACES.slots + SIZE))
            if turns == (yield from read(PLACES.readers, PLACES.writers)):
                look = ticket_lock.Look(*turns, slots)
                action, other = ticket_lock.judge(ticket, exclusive, rank, look, gone)
                if action == "pass":
                    yield from lock.pass_on(other, slots[other])
                elif action == "lost":
                    yield from lock.undo(exclusive)
                    return f"lost {other}"
            yield ("resume",)
    yield "enter", exclusive
    yield "exit", exclusive
    yield from lock.leave(exclusive)
    return "done"


def read(*places: int) -> Any:
    values = []
    for place in places:
        values.append((yield "add", place, 0))
    return values


class Model:
    """All states that ranks of given behaviour can reach.

    A state: the words, for each rank the answers it has had (so where it is),
    who died, and who is inside.
    """

    def __init__(self, modes: str, gives_up: int | None, dies: int | None) -> None:
        self.modes, self.gives_up, self.dies = modes, gives_up, dies
        self.known: dict[Any, Any] = {}

    def at(self, rank: int, answers: tuple[Any, ...]) -> Any:
        """What a rank does next."""
        key = rank, answers
        if key not in self.known:
            steps = client(rank, self.modes[rank] == "w", rank == self.gives_up)
            try:
                step = next(steps)
                for answer in answers:
                    step = steps.send(answer)
            except StopIteration as end:
                step = ("end", end.value)
            self.known[key] = step
        return self.known[key]

    def next(self, state: Any) -> Iterator[Any]:
        words, past, dead, inside = state
        for rank in range(len(self.modes)):
            step = self.at(rank, past[rank])
            if step[0] == "end" or rank in dead:
                continue
            if rank == self.dies:
                yield words, past, dead | {rank}, inside
            for new_words, answer, new_inside in self.apply(rank, step, words, dead, inside):
                if answer == "resume":
                    # back to the wait, as if it had not looked
                    last = max(i for i, a in enumerate(past[rank]) if a == "look")
                    own = past[rank][:last]
                else:
                    own = (*past[rank], answer)
                yield new_words, (*past[:rank], own, *past[rank + 1 :]), dead, new_inside

    def apply(self, rank: int, step: Any, words: Any, dead: Any, inside: Any) -> Iterator[Any]:
        kind = step[0]
        if kind == "add":
            _, place, value = step
            yield replace(words, place, words[place] + value), words[place], inside
        elif kind == "swap":
            _, place, old, new = step
            changed = replace(words, place, new) if words[place] == old else words
            yield changed, words[place], inside
        elif kind == "wait":
            _, turn, ticket, gives_up = step
            assert words[turn] <= ticket, "a turn was passed over"
            if words[turn] == ticket:
                yield words, "turn", inside
            else:
                yield words, "look", inside
            if gives_up:
                yield words, "give up", inside
        elif kind == "choose":
            for answer in step[1]:
                yield words, answer, inside
        elif kind == "gone":
            yield words, dead, inside
        elif kind == "resume":
            yield words, "resume", inside
        elif kind == "enter":
            if step[1] or any(self.modes[r] == "w" for r in inside):
                assert not inside, f"{rank} and {set(inside)} are inside"
            yield words, None, inside | {rank}
        elif kind == "exit":
            yield words, None, inside - {rank}

    def explore(self) -> dict[Any, set[Any]]:
        """Every state, with those it comes from; raise for a wrong one."""
        nobody: frozenset[int] = frozenset()
        first = ((0,) * WORDS, ((),) * len(self.modes), nobody, nobody)
        before: dict[Any, set[Any]] = {first: set()}
        todo = [first]
        while todo:
            state = todo.pop()
            for new in self.next(state):
                if new not in before:
                    before[new] = set()
                    todo.append(new)
                before[new].add(state)
        return before

    def outcomes(self, state: Any) -> list[str] | None:
        """How the living ended; None if some have not."""
        _, past, dead, _ = state
        steps = [self.at(r, past[r]) for r in range(len(self.modes)) if r not in dead]
        return [s[1] for s in steps] if all(s[0] == "end" for s in steps) else None


def replace(words: Any, place: int, value: int) -> Any:
    return (*words[:place], value, *words[place + 1 :])


def check(modes: str, gives_up: int | None, dies: int | None) -> set[str]:
    """Check that nobody waits for ever in any state; return how they can end."""
    model = Model(modes, gives_up, dies)
    before = model.explore()
    ends = {state: outcome for state in before if (outcome := model.outcomes(state)) is not None}
    alive, todo = set(ends), list(ends)
    while todo:
        for state in before[todo.pop()]:
            if state not in alive:
                alive.add(state)
                todo.append(state)
    stuck = [state for state in before if state not in alive]
    assert not stuck, f"{len(stuck)} of {len(before)} states lead nowhere: {stuck[0]}"
    for (words, _, dead, _), outcome in ends.items():
        alive_modes = [mode for rank, mode in enumerate(modes) if rank not in dead]
        for mode, text in zip(alive_modes, outcome, strict=True):
            if not text.startswith("lost"):
                continue
            rank = int(text[5:])
            assert rank in dead
            kind = words[PLACES.slots + rank] & 3
            assert kind or mode == "w", "a reader does not wait for a reader inside"
            assert kind != QUEUED or words[PLACES.readers] > words[PLACES.slots + rank] >> 16, (
                "a rank that only waited was held to have had the lock"
            )
        if not dead and "gave up" not in outcome:
            drawn = words[PLACES.next]
            assert words[PLACES.readers] == words[PLACES.writers] == drawn
            assert not any(words[PLACES.slots :])
    return {text for outcome in ends.values() for text in outcome}


PAIRS = ["".join(modes) for modes in itertools.product("rw", repeat=2)]
TRIPLES = ["".join(m) for m in itertools.combinations_with_replacement("rw", 3)]


@pytest.mark.parametrize("modes", PAIRS)
def test_two(modes):
    assert check(modes, None, None) == {"done"}


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("modes", PAIRS)
def test_two_one_gives_up(modes, who):
    ends = check(modes, who, None)
    assert ends == {"done", "gave up"}


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("modes", PAIRS)
def test_two_one_dies(modes, who):
    ends = check(modes, None, who)
    assert ends == {"done", f"lost {who}"}


def test_the_model_finds_what_is_wrong(monkeypatch):
    """A writer that does not wait for readers; a slot that is cleared too early."""

    def eager(self, exclusive):
        steps = wait(self, exclusive)
        next(steps)
        return (yield from goes_on(steps, self.state.ticket))  # whatever the turn is

    wait = Lock.wait
    with monkeypatch.context() as patch:
        patch.setattr(Lock, "wait", eager)
        patch.setattr(Model, "apply", never_wait(Model.apply))
        with pytest.raises(AssertionError, match="are inside"):
            check("ww", None, None)

    def early(self, exclusive):
        steps = leave(self, exclusive)
        readers, writers = next(steps), steps.send(0)
        yield steps.send(0)  # the slot
        yield readers
        yield writers

    leave = Lock.leave
    with monkeypatch.context() as patch:
        patch.setattr(Lock, "leave", early)
        with pytest.raises(AssertionError, match="lead nowhere"):
            check("ww", None, 0)


def goes_on(steps: Any, answer: int) -> Iterator[Any]:
    """The steps that follow the answer."""
    while True:
        try:
            answer = yield steps.send(answer)
        except StopIteration as end:
            return end.value


def never_wait(apply):
    def patched(self, rank, step, words, dead, inside):
        if step[0] == "wait":
            yield words, "turn", inside
        else:
            yield from apply(self, rank, step, words, dead, inside)

    return patched


@pytest.mark.timeout(180)
def test_three():
    assert check("rww", None, None) == {"done"}


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("who", range(3))
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("modes", TRIPLES)
def test_three_one_dies_or_gives_up(modes, dies, who):
    check(modes, None if dies else who, who if dies else None)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("modes", TRIPLES)
def test_three_of_all_kinds(modes):
    assert check(modes, None, None) == {"done"}
