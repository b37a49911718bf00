# SPDX-License-Identifier: BSD-3-Clause
"""Requests of rmaext as requests of MPI."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from mpi4py import MPI

from .errors import translation

if TYPE_CHECKING:
    from ..request import Request

__all__ = ["begun", "done"]

_NOTHING = [None, 0, MPI.BYTE]


def done() -> MPI.Request:
    """Return a request that is done."""
    return MPI.COMM_SELF.Isend(_NOTHING, MPI.PROC_NULL)  # no other costs as little


def begun(requests: list[Request]) -> MPI.Request:
    """Return a request of MPI that is done when those of rmaext are.

    A thread of rmaext completes it, so nobody need call anything. Where MPI may
    be called by one thread only, it is done at once.
    """
    pending = [request for request in requests if not request.test()]
    if pending and MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        for request in pending:
            request.wait()
        pending = []
    if not requests:
        return done()
    return _Several(requests, pending).made


class _Several:
    """Completes a request of MPI after the last of several of rmaext."""

    def __init__(self, requests: list[Request], pending: list[Request]) -> None:
        self._requests = requests
        self._error: Exception | None = None
        self._left = len(pending)
        self._lock = threading.Lock()
        self.made = MPI.Grequest.Start(self._query)
        for request in pending:
            request._then(self._ended)
        if not pending:
            self.made.Complete()

    def _ended(self, late: Exception | None) -> None:
        with self._lock:
            self._error = self._error or late
            self._left -= 1
            last = not self._left
        if last and not MPI.Is_finalized():
            # a copy: the caller's becomes null in the hands of MPI
            self.made.Complete()

    def _query(self, _status: MPI.Status) -> None:
        """Raise the error of the first that failed; MPI's wait returns its class."""
        try:
            if self._error is not None:
                raise self._error
            for request in self._requests:
                request.wait()
        except Exception as exc:
            raise translation(exc) or exc from exc
