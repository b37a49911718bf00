# SPDX-License-Identifier: BSD-3-Clause
"""How ranks that make a container learn each other's arguments, and fail together."""

from __future__ import annotations

import errno
import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import numpy as np
from mpi4py import MPI

from .. import Request, SyncError, Window
from .._comm.group import gathered, together
from .._runtime.failures import is_of_all, of_all

__all__ = ["Opening", "agreed", "bracketed", "common", "exchange", "named"]

_T = TypeVar("_T")
_Init = TypeVar("_Init", bound=Callable[..., None])


class _Length:
    """The length of a window, worked out while that is made: what this raises, all ranks raise."""

    def __init__(self, call: str, tell: Callable[[], Any]) -> None:
        self._call, self._tell = call, tell

    def __index__(self) -> int:
        self.mine = pickle.dumps((self._call, self._tell()))
        return len(self.mine)


def exchange(comm: MPI.Comm, call: str, tell: Callable[[], _T], timeout: float | None) -> list[_T]:
    """Return what each rank has to tell; what `tell` raises on one, all raise. Collective.

    By windows, and not by MPI: so a call that does not match, and a rank that is lost, are
    errors on all ranks, within the time limit. Rank 0 collects, so that nobody else
    connects to all ranks here.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    call : str
        The name of the container, which must be the same on all ranks.
    tell : callable
        It checks this rank's arguments. What it returns is pickled.
    timeout : float or None
        Of the windows.
    """
    length: Any = _Length(call, tell)  # whatever has __index__ is an integer to Window
    with Window.allocate(comm, length, np.uint8, "r", timeout) as parts:
        parts.local[:] = np.frombuffer(length.mine, np.uint8)
        parts.fence()
        sizes = [parts.size(rank) for rank in range(comm.size)]
        ends = np.cumsum(sizes).tolist()
        room = ends[-1] if comm.rank == 0 else 0
        with Window.allocate(comm, room, np.uint8, "r", timeout) as whole:
            if room:
                places = np.split(whole.local, ends[:-1])
                Request.waitall([parts.rget(rank, out=it) for rank, it in enumerate(places)])
            whole.fence()
            data = whole.get(0).tobytes()
    records = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return _of_one_call(call, records)


def agreed(comm: MPI.Comm, call: str, tell: Callable[[], _T]) -> list[_T]:
    """As `exchange` of a few values, over a communicator that has windows: by one meeting."""
    return _of_one_call(call, gathered(comm, lambda: pickle.dumps((call, tell()))))


def _of_one_call(call: str, records: Sequence[bytes]) -> list[Any]:
    told = [pickle.loads(record) for record in records]
    calls = [name for name, _ in told]
    if len(set(calls)) > 1:
        text = f"the ranks make different calls ({_who_has(calls, str)})"
        raise of_all(SyncError(errno.EINVAL, text, call=call))
    return [mine for _, mine in told]


class Opening(ExitStack):
    """Windows that are made one after another: what has no memory for one closes the others.

    A lack of memory is an error of all ranks, as are those that say so: they can close them
    together. After other errors some rank may never come to that.
    """

    _finalizing = staticmethod(sys.is_finalizing)

    def close(self) -> None:
        """Close the windows; at the interpreter's end, when contextlib has no names, they are."""
        if not self._finalizing():
            super().close()

    def __exit__(self, *error: Any) -> bool | None:
        of_all_ranks = isinstance(error[1], Exception) and is_of_all(error[1])
        if isinstance(error[1], MemoryError) or (
            of_all_ranks and not isinstance(error[1], SyncError)
        ):
            self.close()
        return super().__exit__(*error)


def bracketed(init: _Init) -> _Init:
    """Let the others know if an exception, as of a signal handler, ends an __init__ on this rank.

    It is several collective calls, and they may wait in the next one.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807, by reports
        comm = args[0] if args else keywords.get("comm")
        name = type(self).__name__
        init.__qualname__ = f"{name}.__init__"  # in Python's words on wrong arguments
        what = f"the creation of a {name}"
        together(comm, what, lambda: init(self, *args, **keywords))

    return cast(_Init, __init__)


def common(
    values: Sequence[_T | None],
    error: type[Exception],
    what: str,
    text: Callable[[_T], str] = str,
) -> _T | None:
    """Return what ranks have in common, None if no rank has any; else raise who has what."""
    some = [value for value in values if value is not None]
    if len(set(some)) > 1:
        raise of_all(error(f"{what} ({_who_has(values, text)}): all need the same"))
    return some[0] if some else None


def _who_has(values: Sequence[_T | None], text: Callable[[_T], str]) -> str:
    ranks: dict[_T, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{named(some)}: {text(value)}" for value, some in ranks.items())


def named(ranks: Sequence[int]) -> str:
    """Return "rank 3", or "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
