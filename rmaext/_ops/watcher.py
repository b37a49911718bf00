# SPDX-License-Identifier: BSD-3-Clause
"""Coroutines of asyncio that wait for requests."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._native._lib import ffi, lib
from .._runtime import locks
from .._runtime.failures import again
from .request import SLICE, Request, look_at

if TYPE_CHECKING:
    from .._fabric.endpoint import Endpoint

__all__ = ["Watcher"]

_Function = Callable[[Exception | None], None]
_Outcome = tuple[asyncio.Future[None], Exception | None]


class Watcher:
    """Completes the futures of requests that coroutines await, and calls functions.

    There is a thread for each fabric. It waits for the network like any other thread
    that waits, and goes when there has been nothing to watch for a second. Nothing that
    others raise in it ends it: that goes to `threading.excepthook`.
    """

    _lock = locks.lock()

    def __init__(self, fabric: Endpoint) -> None:
        self._fabric = fabric
        self._new = threading.Condition()  # as a signal handler may enter another request
        self._awaited: dict[Request, list[asyncio.Future[None] | _Function]] = {}
        self._runs = False

    @classmethod
    def of(cls, fabric: Endpoint) -> Watcher:
        """Return a fabric's watcher."""
        with cls._lock:
            if fabric.watcher is None:
                fabric.watcher = cls(fabric)
            watcher: Watcher = fabric.watcher
            return watcher

    def future(self, request: Request) -> asyncio.Future[None]:
        """Return a future that ends once the request has; to be called in its loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._enter(request, future)
        mover = _movers.get(loop)
        if mover is None:
            mover = _movers[loop] = _Mover()
        mover.add(loop, future)
        # The request may have ended before the thread knew of it.
        if request.done:
            _resolve([(future, None)])
        return future

    def call(self, request: Request, function: _Function) -> None:
        """Call a function once a request has ended, in a thread of rmaext's.

        Not in the program's own: a signal handler that raises would keep what has ended, of
        other requests too, from those who wait for it.
        """
        self._enter(request, function)
        if request.done:  # perhaps before the thread knew of it
            threading.Thread(target=self._tell, args=({},), daemon=True).start()

    def _enter(self, request: Request, awaiting: asyncio.Future[None] | _Function) -> None:
        with self._new:
            self._awaited.setdefault(request, []).append(awaiting)
            if not self._runs:
                threading.Thread(target=self._run, name="rmaext requests", daemon=True).start()
                self._runs = True
            self._new.notify()

    def _run(self) -> None:
        lib.rmaext_mpi_aside(1)
        try:
            self._watch()
        except BaseException:
            with self._new:
                self._runs = False  # the next one to wait starts another
            raise
        finally:
            lib.rmaext_mpi_aside(-1)

    def _watch(self) -> None:
        seen = ffi.new("uint64_t *")
        look = 0.0
        while True:
            with self._new:
                if not self._awaited and not self._new.wait_for(lambda: self._awaited, 1.0):
                    self._runs = False
                    return
            handle = self._fabric.handle
            closed = not handle or lib.rmaext_fabric_wait_ended(handle, seen, int(SLICE * 1e9))
            self._tell({})
            if closed or time.monotonic() >= look:
                look = time.monotonic() + SLICE
                with self._new:
                    requests = list(self._awaited)
                self._tell(self._look_at(requests))
            if closed:
                time.sleep(SLICE)  # no more comes: all that was in flight has ended

    @staticmethod
    def _look_at(requests: list[Request]) -> dict[tuple[int, int], Exception]:
        try:
            return look_at(requests)
        except Exception as exc:  # for those who wait
            return {request._target(): exc for request in requests}

    def _tell(self, late: dict[tuple[int, int], Exception]) -> None:
        """Complete the futures of what has ended, and of what is late."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        calls: list[tuple[_Function, Exception | None]] = []
        with self._new:
            for request in list(self._awaited):
                error = None
                if request._goes_on():
                    error = late.get(request._target())
                    if error is None:
                        continue
                for awaiting in self._awaited.pop(request):
                    if callable(awaiting):
                        calls.append((awaiting, error))
                    else:
                        by_loop.setdefault(awaiting.get_loop(), []).append((awaiting, error))
        for loop, outcomes in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, outcomes)
            except Exception:
                if not loop.is_closed():  # then nobody waits there
                    _report()
        for function, error in calls:
            try:
                function(None if error is None else again(error))
            except Exception:
                _report()


class _Mover:
    """Moves MPI while coroutines of a loop await requests: in its thread, which may call MPI."""

    def __init__(self) -> None:
        # Weak references: a future refers to its loop, which would else never be collected.
        self._awaited: weakref.WeakSet[asyncio.Future[None]] = weakref.WeakSet()
        self._moves = False

    def add(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        """Add a future that is awaited."""
        self._awaited.add(future)
        if not self._moves:
            self._moves = True
            self._move(loop, 0.0)

    def _move(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        """Call MPI now, and again after a pause, while anything is awaited."""
        self._moves = not all(future.done() for future in self._awaited)
        if self._moves:
            pause = 0.0 if lib.rmaext_mpi_glance() else min(pause * 1.5 + 1e-4, 2e-3)
            loop.call_later(pause, self._move, loop, pause)


_movers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mover] = weakref.WeakKeyDictionary()


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, error in outcomes:
        if future.done():
            continue  # its task was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(again(error))


def _report() -> None:
    """Tell of an exception as of one that has ended a thread."""
    report = threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
    try:
        threading.excepthook(report)
    except Exception:  # the program's own hook
        threading.__excepthook__(report)
