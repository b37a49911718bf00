# SPDX-License-Identifier: BSD-3-Clause
"""How the ranks come to the end of the program, or of a communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native._lib import lib
from .._runtime.reports import tell
from .._runtime.steps import END
from .abandoned import ENDED
from .liveness import Living

if TYPE_CHECKING:
    from .group import Group
    from .meeting import Meetings

__all__ = ["End"]


class End:
    """The last call over a communicator, which nobody waits in: `Group` asks again and again.

    It owns whether this rank has come there, and makes the call by what `Meetings` has for that:
    `begin`, `start`, `test` and `finish`. Where the ranks can meet no more, each tells the others
    that it has ended, and knows by itself who is gone.
    """

    def __init__(self, meetings: Meetings, group: Group) -> None:
        self._meetings, self._group = meetings, group
        self._begun = False
        self._bid = 0  # see Meetings.bid
        self._living: Living | None = None  # once this rank has told that it has ended

    def of_program(self) -> bool:
        """Come to the end of the program; return whether all have. Without waiting.

        To be called again and again. Raises what ends the wait for the others, and
        SyncError if they are in another call; then it may be called again, too.
        """
        meetings, hints = self._meetings, self._group.last_hints
        if meetings.abandoned.out is not None:
            return self._apart()
        if not self._begun:
            self._bid = meetings.bid(bool(hints))
            meetings.begin(END, 0)
            self._begun = True
            meetings.start(self._bid)
        try:
            most = meetings.test(self._bid)
            if most is None:
                return False
        except BaseException as exc:
            self._begun = False
            lib.rmaext_record_quit()
            meetings.finish(exc)
            raise
        self._begun = False
        meetings.finish(None)
        if self._bid and self._bid == most:
            tell(hints)
        return True

    def of_comm(self) -> bool:
        """As `of_program`, which goes on meanwhile, and so waits in nothing between the calls."""
        if self._group.size == 1:
            return True
        try:
            return self.of_program()
        finally:
            self._meetings.wait = None
            lib.rmaext_record_quit()

    def _apart(self) -> bool:
        """As `of_program`, where the ranks can meet no more."""
        abandoned, group = self._meetings.abandoned, self._group
        if self._living is None:
            self._living = Living(group)
            abandoned.tell(ENDED, "")
        return abandoned.ended() | self._living.gone() | {group.rank} == set(range(group.size))
