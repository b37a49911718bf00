# SPDX-License-Identifier: BSD-3-Clause
"""Coroutines of asyncio that wait for requests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._lib import ffi, lib
from .request import SLICE, Request, look_at, target_of

if TYPE_CHECKING:
    from .fabric import Fabric

__all__ = ["Watcher"]

_Function = Callable[[Exception | None], None]
_Outcome = tuple[asyncio.Future[None], Exception | None]


class Watcher:
    """Completes the futures of requests that coroutines await, and calls functions.

    There is a thread for each fabric. It waits for the network like any other thread
    that waits, and goes when there has been nothing to watch for a second.
    """

    _lock = threading.Lock()

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._new = threading.Condition(threading.Lock())
        self._awaited: dict[Request, list[asyncio.Future[None] | _Function]] = {}
        self._runs = False

    @classmethod
    def of(cls, fabric: Fabric) -> Watcher:
        """Return a fabric's watcher."""
        with cls._lock:
            if fabric.watcher is None:
                fabric.watcher = cls(fabric)
            watcher: Watcher = fabric.watcher
            return watcher

    def future(self, request: Request) -> asyncio.Future[None]:
        """Return a future that ends once the request has; to be called in its loop."""
        future = asyncio.get_running_loop().create_future()
        self._enter(request, future)
        # the thread may have looked before it was entered
        if request.done:
            _resolve([(future, None)])
        return future

    def call(self, request: Request, function: _Function) -> None:
        """Call a function once a request has ended, in the thread or at once."""
        self._enter(request, function)
        if request.done:
            self._tell({})

    def _enter(self, request: Request, awaiting: asyncio.Future[None] | _Function) -> None:
        with self._new:
            self._awaited.setdefault(request, []).append(awaiting)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="rmaext requests", daemon=True).start()
            self._new.notify()

    def _run(self) -> None:
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
                self._tell(look_at(requests))
            if closed:
                time.sleep(SLICE)  # what was in flight has ended

    def _tell(self, late: dict[tuple[int, int], Exception]) -> None:
        """Complete the futures of what has ended, and of what is late."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        calls: list[tuple[_Function, Exception | None]] = []
        with self._new:
            for request in list(self._awaited):
                error = None
                if request.goes_on():
                    error = late.get(target_of(request))
                    if error is None:
                        continue
                for awaiting in self._awaited.pop(request):
                    if callable(awaiting):
                        calls.append((awaiting, error))
                    else:
                        by_loop.setdefault(awaiting.get_loop(), []).append((awaiting, error))
        for loop, outcomes in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it was closed: nobody waits there
                loop.call_soon_threadsafe(_resolve, outcomes)
        for function, error in calls:
            function(error)


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, error in outcomes:
        if future.done():
            continue  # its task was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
