# SPDX-License-Identifier: BSD-3-Clause
"""Every order of the steps of locks, with ranks that die and that give up.

The steps are those of csrc/shm/ticket_lock.c, as messages of which each is taken apart into
single updates: where the block is mapped they are such.

What a rank does is a word: "a" locks target a shared, "B" target b alone, and "aB" the second
while it holds the first. All are released at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from rmaext._native._lib import ffi, lib
from rmaext._sync import ticket_lock

SIZE = 3
PLACES = ticket_lock.Places(0, 1, 2, 3, 4, 5, 5 + SIZE, 5 + 2 * SIZE)
WORDS = PLACES.slots + SIZE
QUEUED, READERS = lib.RMAEXT_SLOT_QUEUED, lib.RMAEXT_SLOT_READERS


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
    """The calls of one rank at one target, as steps."""

    def __init__(self, rank: int, target: int) -> None:
        self.first = target * WORDS
        self.state = ffi.new("struct rmaext_lock *")
        self.state.rank, self.state.words, self.state.slots = rank, PLACES.next, PLACES.slots

    def take(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_take, 1, exclusive)

    def join(self) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_join, 1)

    def wait(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_wait, exclusive, 0, 0)

    def leave(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_leave, exclusive)

    def undo(self, exclusive: bool) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_undo, 1, exclusive)

    def pass_on(self, rank: int, slot: int) -> Iterator[Any]:
        return self._call(lib.rmaext_lock_pass, rank, slot)

    def _call(self, function: Any, *arguments: int) -> Iterator[Any]:
        steps = singly(interrupted(function, ticket_lock.exchange(), self.state, *arguments))
        return placed(steps, self.first)


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


def placed(steps: Iterator[Any], first: int) -> Iterator[Any]:
    """The steps at the target whose words begin there."""
    answer = None
    while True:
        try:
            kind, place, *values = steps.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield kind, first + place, *values


def client(rank: int, word: str, gives_up: bool) -> Iterator[Any]:
    """Lock and unlock; one that gives up a wait tries again, or does not."""
    held: list[tuple[Lock, int, bool]] = []
    end = "done"
    for letter in word:
        target, exclusive = "ab".index(letter.lower()), letter.isupper()
        lock = Lock(rank, target)
        joins = may_join(held, exclusive)
        outcome = yield from enter(lock, rank, target, exclusive, joins, gives_up)
        if outcome != "inside":
            end = outcome
            break
        yield "enter", target, exclusive
        held.append((lock, target, exclusive))
    for lock, target, exclusive in reversed(held):
        yield "exit", target, exclusive
        yield from lock.leave(exclusive)
    return end


def may_join(held: list[Any], exclusive: bool) -> bool:
    return bool(held) and not exclusive


def enter(
    lock: Lock, rank: int, target: int, exclusive: bool, joins: bool, gives_up: bool
) -> Iterator[Any]:
    inside = yield from (lock.join() if joins else lock.take(exclusive))
    while not inside:
        ticket = None if joins else lock.state.ticket
        what = yield "wait", target, ticket, exclusive, gives_up
        if what == "try":
            inside = yield from lock.wait(exclusive)
            if not inside:
                yield ("resume",)
        elif what == "give up":
            gives_up = False
            yield from lock.undo(exclusive)
            if (yield "choose", ("stop", "again")) == "stop":
                return "gave up"
            inside = yield from (lock.join() if joins else lock.take(exclusive))
        else:
            gone = yield ("gone",)  # before the slots: those of the dead stay as they are
            turns = yield from read(lock.first, PLACES.turn, PLACES.inside)
            places = range(PLACES.slots, PLACES.slots + SIZE)
            slots = yield from read(lock.first, *places)
            if turns == (yield from read(lock.first, PLACES.turn, PLACES.inside)):
                look = ticket_lock.Look(*turns, slots)
                action, other = ticket_lock.judge(ticket, exclusive, look, gone)
                if action == "pass":
                    yield from lock.pass_on(other, slots[other])
                elif action == "lost":
                    yield from lock.undo(exclusive)
                    return f"lost {other}"
            yield ("resume",)
    return "inside"


def read(first: int, *places: int) -> Any:
    values = []
    for place in places:
        values.append((yield "add", first + place, 0))
    return values


class Model:
    """All states that ranks which do certain words can reach.

    A state: the words of the targets, for each rank the answers it has had (so where it
    is), who died, and who is inside what.
    """

    def __init__(self, words: tuple[str, ...], gives_up: int | None, dies: int | None) -> None:
        self.does, self.gives_up, self.dies = words, gives_up, dies
        self.targets = 1 + max("ab".index(letter) for letter in "".join(words).lower())
        self.known: dict[Any, Any] = {}

    def at(self, rank: int, answers: tuple[Any, ...]) -> Any:
        """What a rank does next."""
        key = rank, answers
        if key not in self.known:
            steps = client(rank, self.does[rank], rank == self.gives_up)
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
        for rank in range(len(self.does)):
            step = self.at(rank, past[rank])
            if step[0] == "end" or rank in dead:
                continue
            if rank == self.dies:
                yield words, past, dead | {rank}, inside
            for new_words, answer, new_inside in self.apply(rank, step, words, dead, inside):
                if answer == "resume":
                    # back to the wait, as if it had not looked
                    last = max(i for i, a in enumerate(past[rank]) if a in ("look", "try"))
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
            _, target, _, _, gives_up = step
            if self.is_ready(words, *step[1:4]):
                yield words, "try", inside
            elif dead or any(self.is_abandoned(r, words, target) for r in range(len(self.does))):
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
            _, target, exclusive = step
            others = {r: alone for at, r, alone in inside if at == target}
            if exclusive or any(others.values()):
                assert not others, f"{rank} and {set(others)} are inside"
            yield words, None, inside | {(target, rank, exclusive)}
        elif kind == "exit":
            _, target, exclusive = step
            yield words, None, inside - {(target, rank, exclusive)}

    def is_ready(self, words: Any, target: int, ticket: int | None, exclusive: bool) -> bool:
        """Whether a rank that waits may have the lock now."""
        turn = words[target * WORDS + PLACES.turn]
        count = words[target * WORDS + PLACES.inside]
        if ticket is None:
            return bool(count < ticket_lock.WRITER)
        assert turn <= ticket, "a turn was passed over"
        return bool(turn == ticket and not (exclusive and count))

    def is_abandoned(self, rank: int, words: Any, target: int) -> bool:
        slot = words[target * WORDS + PLACES.slots + rank]
        return bool(slot & lib.RMAEXT_SLOT_KINDS == lib.RMAEXT_SLOT_ABANDONED)

    def explore(self) -> dict[Any, set[Any]]:
        """Every state, with those it comes from; raise for a wrong one."""
        nobody: frozenset[int] = frozenset()
        first = ((0,) * WORDS * self.targets, ((),) * len(self.does), nobody, nobody)
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
        steps = [self.at(r, past[r]) for r in range(len(self.does)) if r not in dead]
        return [s[1] for s in steps] if all(s[0] == "end" for s in steps) else None

    def circle(self, state: Any) -> bool | None:
        """Whether ranks wait for holders in a circle; None if somebody goes on."""
        words, past, _, inside = state
        waits: dict[int, set[int]] = {}
        for rank in range(len(self.does)):
            step = self.at(rank, past[rank])
            if step[0] == "wait" and not self.is_ready(words, *step[1:4]):
                _, target, _, exclusive, _ = step
                inside_it = {r for at, r, alone in inside if at == target and (alone or exclusive)}
                waits[rank] = inside_it - {rank}
            elif step[0] != "end":
                return None
        for _ in waits:  # whoever waits for nobody who waits goes on
            waits = {r: kept for r, its in waits.items() if (kept := its & set(waits))}
        return bool(waits)


def replace(words: Any, place: int, value: int) -> Any:
    return (*words[:place], value, *words[place + 1 :])


def stuck(model: Model, before: dict[Any, set[Any]]) -> list[Any]:
    """Return the states from which the living do not all come to an end."""
    alive = {state for state in before if model.outcomes(state) is not None}
    todo = list(alive)
    while todo:
        for state in before[todo.pop()]:
            if state not in alive:
                alive.add(state)
                todo.append(state)
    return [state for state in before if state not in alive]


def check(words: tuple[str, ...], gives_up: int | None, dies: int | None) -> set[str]:
    """Check that nobody waits for ever in any state; return how they can end."""
    model = Model(words, gives_up, dies)
    before = model.explore()
    bad = stuck(model, before)
    assert not bad, f"{len(bad)} of {len(before)} states lead nowhere: {bad[0]}"
    ends = {state: end for state in before if (end := model.outcomes(state)) is not None}
    for (values, _, dead, _), outcome in ends.items():
        living = [word for rank, word in enumerate(words) if rank not in dead]
        for word, text in zip(living, outcome, strict=True):
            if text.startswith("lost"):
                assert_lost_with_the_lock(values, dead, int(text[5:]), word)
        if not dead and "gave up" not in outcome:
            for target in range(model.targets):
                its = values[target * WORDS : (target + 1) * WORDS]
                assert its[PLACES.turn] == its[PLACES.next]
                assert not its[PLACES.inside]
                assert not any(its[PLACES.slots :])
    return {text for outcome in ends.values() for text in outcome}


def assert_lost_with_the_lock(values: Any, dead: Any, rank: int, word: str) -> None:
    """A rank was not held to have had the lock if it only waited for it."""
    assert rank in dead
    for target in range(len(values) // WORDS):
        its = values[target * WORDS : (target + 1) * WORDS]
        slot = its[PLACES.slots + rank]
        kind = slot & 3
        had = slot & READERS if kind == QUEUED else kind
        if had or (slot and not word.islower()):
            return
    raise AssertionError("a rank that only waited was held to have had the lock")


PAIRS = list(itertools.product("aA", repeat=2))
TRIPLES = list(itertools.combinations_with_replacement("aA", 3))


@pytest.mark.parametrize("words", PAIRS)
def test_two(words):
    assert check(words, None, None) == {"done"}


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("words", PAIRS)
def test_two_one_gives_up(words, who):
    ends = check(words, who, None)
    assert ends == {"done", "gave up"}


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("words", PAIRS)
def test_two_one_dies(words, who):
    ends = check(words, None, who)
    assert ends == {"done", f"lost {who}"}


@pytest.mark.parametrize("words", [("ab", "B"), ("ab", "b"), ("ab", "ba"), ("Ab", "B")])
def test_one_joins(words):
    """A holder passes a writer that waits, gives up, and may die."""
    assert check(words, None, None) == {"done"}
    for who in 0, 1:
        assert check(words, who, None) <= {"done", "gave up"}
        assert check(words, None, who) <= {"done", f"lost {who}"}


def test_the_holder_is_named():
    """And not somebody who was lost in the queue behind it."""
    slots = [5 << 16 | QUEUED, 6 << 16 | QUEUED, lib.RMAEXT_SLOT_READER]
    look = ticket_lock.Look(5, 1, slots)
    assert ticket_lock.judge(5, True, look, {1, 2}) == ("lost", 2)
    assert ticket_lock.judge(5, True, look, {1}) == ("wait", -1)


# -- circles

LETTERS = {target: (target, target.upper()) for target in "ab"}
WORDS_OF_TWO = [
    *"aAbB",
    *(
        one + other
        for pair in ("ab", "ba")
        for one in LETTERS[pair[0]]
        for other in LETTERS[pair[1]]
    ),
]


def circles(words: tuple[str, ...]) -> int:
    """Check that who waits for ever waits in a circle of holders; return in how many states."""
    model = Model(words, None, None)
    before = model.explore()
    found = 0
    for state in stuck(model, before):
        circle = model.circle(state)
        assert circle in (True, None), f"{words}: no circle of holders, and no end: {state}"
        found += circle is True
    return found


def may_circle(words: tuple[str, ...]) -> bool:
    """Whether holders can wait in a circle: two orders, one of them exclusive where it matters."""
    return any(
        one[:1].lower() == other[1:].lower()
        and one[1:].lower() == other[:1].lower()
        and not (one[0].islower() and other[1].islower())
        and not (one[1].islower() and other[0].islower())
        for one, other in itertools.permutations([w for w in words if len(w) == 2], 2)
    )


@pytest.mark.parametrize("words", list(itertools.combinations_with_replacement(WORDS_OF_TWO, 2)))
def test_only_holders_wait_in_circles_two(words):
    assert bool(circles(words)) == may_circle(words)


THREE = [
    words
    for words in itertools.combinations_with_replacement(WORDS_OF_TWO, 3)
    if any(len(word) == 2 for word in words) and words[0][0] in "aA"
]


# All of them take hours: a tenth, another one each day.
@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("words", THREE[date.today().toordinal() % 10 :: 10], ids="-".join)
def test_only_holders_wait_in_circles_three(words):
    assert bool(circles(words)) == may_circle(words)


# -- the model itself


def test_the_model_finds_what_is_wrong(monkeypatch):
    """A writer that does not wait for readers; a slot that is cleared too early; no joining."""

    def eager(self, exclusive):
        return True
        yield

    def early(self, exclusive):
        steps = leave(self, exclusive)
        inside, turn = next(steps), steps.send(0)
        yield steps.send(0)  # the slot
        yield inside
        yield turn

    leave = Lock.leave
    with monkeypatch.context() as patch:
        patch.setattr(Lock, "wait", eager)
        patch.setattr(Model, "apply", never_wait(Model.apply))
        with pytest.raises(AssertionError, match="are inside"):
            check(("A", "A"), None, None)
    with monkeypatch.context() as patch:
        patch.setattr(Lock, "leave", early)
        with pytest.raises(AssertionError, match="lead nowhere"):
            check(("A", "A"), None, 0)


def test_without_joining_there_are_other_circles(monkeypatch):
    monkeypatch.setattr("test_lock_model.may_join", lambda held, exclusive: False)
    with pytest.raises(AssertionError, match="no circle of holders, and no end"):
        circles(("ab", "B", "bA"))


def never_wait(apply):
    def patched(self, rank, step, words, dead, inside):
        if step[0] == "wait":
            yield words, "try", inside
        else:
            yield from apply(self, rank, step, words, dead, inside)

    return patched


@pytest.mark.timeout(180)
def test_three():
    assert check(("a", "A", "A"), None, None) == {"done"}


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("who", range(3))
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("words", TRIPLES)
def test_three_one_dies_or_gives_up(words, dies, who):
    check(words, None if dies else who, who if dies else None)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", TRIPLES)
def test_three_of_all_kinds(words):
    assert check(words, None, None) == {"done"}


def test_a_message_of_a_dead_rank_that_is_looked_at_late():
    """Others have passed its ticket, 4; then the message applies with which it had its turn."""
    late = 1 - (4 << lib.RMAEXT_SLOT_TICKET | lib.RMAEXT_SLOT_FAR | QUEUED)
    look = ticket_lock.Look(11, 1 << 32, [0, late, 11 << lib.RMAEXT_SLOT_TICKET | QUEUED])
    assert ticket_lock.judge(11, True, look, {1}) == ("lost", 1)
    assert ticket_lock.judge(11, True, look, set()) == ("wait", -1)
