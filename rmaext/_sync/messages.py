# SPDX-License-Identifier: BSD-3-Clause
"""Messages that change control blocks, in sequences which no signal breaks off."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from .._native._lib import ffi, lib
from .._native.cmethods import Owner, to_the_end
from .._runtime.failures import from_code
from ..errors import RmaError

if TYPE_CHECKING:
    from .._comm.group import Group

__all__ = ["FAILURES", "Add", "Messages", "Swap"]

_PENDING = lib.RMAEXT_PENDING
FAILURES = RmaError, MemoryError  # what a message may raise: C has no other errors

Add = list[tuple[int, int]]  # place and value of each: all in one message
Swap = tuple[int, int, int]  # place, old and new value


class Messages:
    """Updates of control blocks by messages; a sequence ends even if a signal raises."""

    def __init__(self, group: Group, window: Any) -> None:
        self._group = group
        self._window = window

    def run(
        self, ranks: Sequence[int], make: Callable[[], Generator[Any, list[int], Any]]
    ) -> tuple[Any, BaseException | None]:
        """Carry the steps out; return their result, and what a signal handler raised.

        After such an exception they are gone through again from the start, with
        the answers that there are already, and then on. Each part of a step goes
        to a rank of its own, or all go to the only one.
        """
        answers: list[list[int]] = []
        started: list[_Message] = []
        return to_the_end(FAILURES, self._go_through, ranks, make, answers, started)

    def _go_through(
        self,
        ranks: Sequence[int],
        make: Callable[[], Generator[Any, list[int], Any]],
        answers: list[list[int]],
        started: list[_Message],
    ) -> Any:
        try:
            steps = make()
            step = next(steps)
            for number in itertools.count():
                if number == len(answers):
                    if number == len(started):
                        started.append(_Message(self._window, ranks, step))
                    answers.append(started[number].finish(self._group))
                step = steps.send(answers[number])
        except StopIteration as end:
            return end.value
        except FAILURES:
            for message in started:
                message.release()
            raise

    def tell(
        self,
        ranks: Sequence[int],
        make: Callable[[], Generator[Any, list[int], Any]],
        done: Callable[[], None],
    ) -> BaseException | None:
        """As `run`; `done` is called even if a message fails, after which it may have arrived."""
        try:
            return self.run(ranks, make)[1]
        except FAILURES:
            done()
            raise


class _Message:
    """One message, which can be waited for again after an exception."""

    def __init__(self, window: Any, ranks: Sequence[int], step: Add | Swap) -> None:
        self._window, self._ranks = window, ranks
        self._swap = isinstance(step, tuple)
        places, values = ([step[0]], step[1:]) if self._swap else zip(*step, strict=True)
        self._count, at = len(places), len(ranks)
        # in one piece: what C reads of ranks, places and values; and the previous values
        words = ffi.new("int64_t[]", [*ranks, *places, *values, *[0] * self._count])
        self._words, self._places, self._values = words, words + at, words + at + self._count
        self._old = self._values + len(values)
        self._op = Owner(window._fabric, window._handle, (self._words,))
        self._call = self._made()

    def finish(self, group: Group) -> list[int]:
        """Return the previous values."""
        op = self._op  # each step of it may be repeated
        code = op.start(self._call) if self._swap else op.start_many(self._call)
        where = f"synchronisation with rank {', '.join(map(str, self._ranks))}"
        if code == _PENDING:
            code = group.watch.wait(op, where, lambda: self._ranks, lambda: self._ranks)
        if code:
            raise from_code(code, where)
        self.release()
        return list(ffi.unpack(self._old, self._count))

    def release(self) -> None:
        """Let go of the buffers, now or when they are not in use any more."""
        self._op.release()

    def _made(self) -> Any:
        """Return what is to be done, as C takes it."""
        asked = {
            "kind": lib.RMAEXT_UPDATE,
            "op": lib.RMAEXT_CSWAP if self._swap else lib.RMAEXT_SUM,
            "type": lib.RMAEXT_INT64,
            "count": self._count,
        }
        if self._swap:
            asked |= {"rank": self._ranks[0], "offset": self._places[0] * 8}
            asked |= {"operand": self._values + 1, "compare": self._values, "result": self._old}
            return ffi.new("struct rmaext_call *", asked)
        asked |= {"ones": lib.RMAEXT_ONE_RANK if len(self._ranks) == 1 else 0, "unit": 8}
        asked |= {"ranks": self._words, "offsets": self._places}
        asked |= {"values": self._values, "results": self._old}
        return ffi.new("struct rmaext_places_call *", asked)
