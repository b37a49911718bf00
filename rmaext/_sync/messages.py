# SPDX-License-Identifier: BSD-3-Clause
"""Messages that change control blocks, in sequences which no signal breaks off."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._memory.arrays import address
from .._native._lib import ffi, lib
from .._native.cmethods import to_the_end
from .._runtime.failures import from_c
from .._runtime.reports import Patience
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
        self._window = window
        self._ranks = np.array(ranks, np.int64)
        self._swap = isinstance(step, tuple)
        if isinstance(step, tuple):
            self._places, self._values = np.array(step[:1]), np.array(step[1:])
        else:
            self._places, self._values = np.array(step, np.int64).T.copy()
        self._old = np.zeros(self._places.size, np.int64)
        self._begun = False
        self._many = ffi.new("struct rmaext_many *")
        self._op = ffi.NULL

    def finish(self, group: Group) -> list[int]:
        """Return the previous values."""
        where = f"synchronisation with rank {', '.join(map(str, self._ranks))}"
        code = _PENDING if self._begun else self._begin()
        if code == _PENDING:
            with Patience() as patience:
                while code == _PENDING:
                    for rank in self._ranks:
                        group.watch.check(int(rank), where)
                    patience.look(where, self._ranks.tolist)
                    code = self._go_on()
        if code:
            raise from_c(code, where)
        self.release()
        return [int(value) for value in self._old]

    def _go_on(self) -> int:
        """Wait for a slice; return C's code."""
        if self._swap:
            return int(lib.rmaext_op_wait(self._op[0])) if self._op and self._op[0] else 0
        return int(lib.rmaext_many_wait(self._many)) if self._many.batch else 0

    def release(self) -> None:
        """Let go of the buffers, now or when they are not in use any more."""
        fabric = self._window._fabric
        if not self._begun or fabric is None:
            return
        if self._swap:
            op, self._op = self._op, ffi.NULL
            if op:
                fabric.release(op)
            return
        if self._many.batch:
            lib.rmaext_many_release(self._many)
        fabric.drop(self._many)

    def _begin(self) -> int:
        window, fabric = self._window, self._window._fabric
        handle, kept = window._handle, (self._ranks, self._places, self._values, self._old)
        ranks, places, values, old = map(address, kept)
        type_ = lib.RMAEXT_INT64
        if self._swap:
            self._op = fabric.hold(handle, kept)
            at = int(self._ranks[0]), int(self._places[0]) * 8
            arguments = (lib.RMAEXT_CSWAP, type_, values + 8, values, old, 1)
            self._begun = True
            return int(lib.rmaext_update(handle, *at, *arguments, self._op))
        fabric.hold(handle, kept, self._many)
        ones = lib.RMAEXT_ONE_RANK if self._ranks.size == 1 else 0
        where = ffi.cast("int64_t *", ranks), ffi.cast("int64_t *", places)
        what = (handle, lib.RMAEXT_UPDATE, lib.RMAEXT_SUM, type_, 8, self._old.size, ones)
        self._begun = True
        return int(lib.rmaext_many(*what, *where, values, old, self._many))
