# SPDX-License-Identifier: BSD-3-Clause
"""What some kinds of windows do not have: bases that come before `Window`, to raise Unsupported."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from .._ops.core import WindowCore
from .._runtime.failures import not_for
from ..errors import NotLocalError
from ..typing import Access, Advice, ArrayLibrary, ScalarT

__all__ = ["NoRankHere", "SeveralArrays"]


class SeveralArrays(WindowCore[ScalarT]):
    """A window whose ranks have more than one array, or none that is known here."""

    _in_pieces = _divided = True

    @property
    def numba(self) -> int:
        """There is none: compiled code knows one array a rank."""
        raise not_for(self, "numba")

    def advise(self, advice: Advice, part: slice | None = None) -> NoReturn:
        """There is no one array to speak of."""
        raise not_for(self, "advise")

    def local_as(self, library: ArrayLibrary) -> NoReturn:
        """There is no one array, and none on a device."""
        raise not_for(self, "local_as")

    def subwindow(self, start: int, stop: int) -> NoReturn:
        """There are no views."""
        raise not_for(self, "subwindow")

    def dup(self, access: Access | None = None, timeout: float | None = None) -> NoReturn:
        """There are no views."""
        raise not_for(self, "dup")

    def field(self, name: str) -> NoReturn:
        """There are no views."""
        raise not_for(self, "field")

    def view(self, dtype: Any) -> NoReturn:
        """There are no views."""
        raise not_for(self, "view")


class NoRankHere(SeveralArrays[ScalarT]):
    """A window none of whose ranks is this process: it has no memory here, and no part in a call.

    Locks, epochs, notifications and fences need the window's other ranks.
    """

    @property
    def local(self) -> Any:
        """There is none: no rank is this process's."""
        raise not_for(self, "local")

    @property
    def comm(self) -> Any:
        """There is none."""
        raise not_for(self, "comm")

    @property
    def memory(self) -> Any:
        """There is none."""
        raise not_for(self, "memory")

    def advise(self, advice: Advice, part: slice | None = None) -> NoReturn:
        """There is no memory of this rank."""
        raise not_for(self, "advise")

    def refresh(self, part: slice | None = None) -> NoReturn:
        """There is no registration here."""
        raise not_for(self, "refresh")

    @property
    def writes_received(self) -> int:
        """There is no registration here."""
        raise not_for(self, "writes_received")

    def peer_view(self, rank: int) -> NoReturn:
        """Raise NotLocalError: the memory is not mapped here."""
        text = f"peer_view: window {self._name}, rank {rank}: another job's"
        raise NotLocalError(errno.EREMOTE, text, call="peer_view", rank=0)

    def fence(self) -> NoReturn:
        """There are no others to wait for."""
        raise not_for(self, "fence")

    def _state(self, call: str) -> NoReturn:
        raise not_for(self, call)

    def _members(self, call: str, group: Any) -> NoReturn:
        raise not_for(self, call)

    def _slot(self, call: str, slot: Any) -> NoReturn:
        raise not_for(self, call)

    def _slots(self, call: str, slots: Any) -> NoReturn:
        raise not_for(self, call)

    def notify_counts(self) -> NoReturn:
        """There are no notifications."""
        raise not_for(self, "notify_counts")
