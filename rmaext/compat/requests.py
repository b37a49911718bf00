# SPDX-License-Identifier: BSD-3-Clause
"""Requests of rmaext as requests of MPI."""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from .._native import cmethods
from .._runtime import locks
from .errors import checked, code_of, library

if TYPE_CHECKING:
    from .._ops.request import Request

__all__ = ["begun", "done"]

_NOTHING = [None, 0, MPI.BYTE]


class _Start(NamedTuple):
    """How MPI starts a generalized request."""

    function: Any
    callbacks: tuple[Any, ...]
    status: bytes


@cache
def _start() -> _Start | None:
    """Return how generalized requests are started that any thread may complete; None: not at all.

    In MPICH those of the standard are not safe: Waitall ends the process if one is not yet
    complete and another request is null. Its extended ones have a function that it waits by.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return None
    name, version = MPI.get_vendor()
    mpich = name == "MPICH" and version >= (4,)  # those before call us with a lock held
    if not mpich and name != "Open MPI":
        return None
    mpi = library()
    symbol = "MPIX_Grequest_start" if mpich else "MPI_Grequest_start"
    try:
        function = getattr(mpi, symbol)
    except AttributeError:
        return None
    pointers = [ctypes.c_void_p(address) for address in cmethods.mpi_request_functions()]
    callbacks = pointers if mpich else pointers[:3]
    status = MPI.Status()
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)
    success = ctypes.string_at(MPI._addressof(status), MPI._sizeof(status))
    return _Start(function, tuple(callbacks), success)


# a request that is done: no other costs as little
done = partial(MPI.COMM_SELF.Isend, _NOTHING, MPI.PROC_NULL)
cmethods.mpi_done(done)


def begun(requests: list[Request]) -> MPI.Request:
    """Return a request of MPI that is done when those of rmaext are.

    A thread of rmaext completes it, so nobody need call anything. Where MPI may be called by
    one thread only, or has no requests that may be completed so, it is done at once. An error
    is raised by MPI's wait, and by this function if they have ended.
    """
    pending = [request for request in requests if not request.test()]
    how = _start() if pending else None
    if how is not None:
        return _Several(requests, pending, how).made
    for request in requests:
        request.wait()
    return done()


class _Several:
    """Completes a request of MPI after the last of several of rmaext."""

    def __init__(self, requests: list[Request], pending: list[Request], how: _Start) -> None:
        self._requests = requests
        self._error: Exception | None = None
        self._left = len(pending)
        self._lock = locks.lock()
        self._state = cmethods.mpi_request_new(how.status)
        self.made = MPI.Grequest()
        at = ctypes.c_void_p(MPI._addressof(self.made))
        checked(how.function(*how.callbacks, ctypes.c_void_p(self._state), at))
        # a copy: the caller's becomes null in the hands of MPI
        self._copy = MPI.Grequest(self.made)
        for request in pending:
            request._then(self._ended)

    def _ended(self, late: Exception | None) -> None:
        with self._lock:
            self._error = self._error or late
            self._left -= 1
            last = not self._left
        if last:
            try:
                code = self._code()
            except Exception:  # no memory for its words: whoever waits must not do so for ever
                code = MPI.ERR_OTHER
            cmethods.mpi_request_end(self._state, code)
            if not MPI.Is_finalized():
                self._copy.Complete()

    def _code(self) -> int:
        """Return the code of the error of the first that failed; 0 if none has."""
        try:
            if self._error is not None:
                raise self._error
            for request in self._requests:
                request.wait()
        except Exception as exc:
            return code_of(exc)
        return 0
