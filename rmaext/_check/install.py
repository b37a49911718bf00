# SPDX-License-Identifier: BSD-3-Clause
"""Puts what follows the calls in the place of the package's methods, once, at its import."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .._comm.group import has_lost_any
from .._memory import node
from .._native import cmethods
from .._ops import indexing, request
from .._runtime import config, lifetime, mpi_progress
from .._window.dynamic import DynamicWindow
from .._window.fields import FieldView
from .._window.joined import JoinedWindow
from .._window.shared import SharedWindow
from .._window.views import View
from .._window.window import Window
from ..errors import PeerLostError, RmaTimeout
from . import compat, messages
from . import memory as requests
from .arrays import followed_array
from .clock import BUSY
from .memory import memory
from .operations import OPERATIONS, followed, plain, shadow_of
from .report import report
from .shadow import Rows, Shadow
from .synchronisation import SYNCHRONISATION, synchronising
from .world import all_of, of_windows, ranks_of, world

__all__ = ["install"]

_KINDS = (Window, View, FieldView, JoinedWindow, DynamicWindow, SharedWindow)
_PREPARED = {cmethods.PUT: "put", cmethods.GET: "get", cmethods.FETCH_ADD: "fetch_add"}
_PATIENCE = 30.0  # seconds that the end of the program waits for other ranks
_open: list[Shadow] = []


def install() -> None:
    """Follow the program from now on, if RMAEXT_CHECK asks for it."""
    if not config.checks():
        return
    for table, wrap in ((OPERATIONS, followed), (SYNCHRONISATION, synchronising)):
        for name in table:
            _replace(name, functools.partial(wrap, name))
    _replace("_create", _creating)
    _replace("_shut", _shutting)
    for name in ("local", "whole"):
        _replace(name, _property)
    _replace("peer_view", _viewing)
    _replace("register", _registering)
    _replace("_prepare", _preparing)
    _updates()
    _requests()
    package = sys.modules["rmaext"]
    package.empty = package.zeros = _array(node.empty)  # type: ignore[attr-defined]
    messages.follow()
    compat.follow()
    lifetime.on_finalize(_end)
    if config.checks() == "error":  # the last of both is the first to run
        atexit.unregister(lifetime._run)
        atexit.register(_leave)
        atexit.register(lifetime._run)


def _replace(name: str, wrap: Callable[[Any], Any]) -> None:
    """Put another method in the place of one, in each class that has its own."""
    for kind in _KINDS:
        if name in kind.__dict__ or (kind is Window and hasattr(kind, name)):
            setattr(kind, name, wrap(getattr(kind, name)))


def _creating(original: Any) -> Any:
    @functools.wraps(original)
    def create(self: Any, comm: Any, make: Any, *args: Any, **keywords: Any) -> None:
        if BUSY.now:
            original(self, comm, make, *args, **keywords)
            return
        BUSY.now = True
        try:
            original(self, comm, lambda: plain(make()), *args, **keywords)
            _begin(self, comm)
        finally:
            BUSY.now = False

    return create


def _begin(window: Any, comm: Any) -> None:
    """Follow a window. Collective."""
    if MPI.UNDEFINED in ranks_of(comm):
        return report.note("windows of processes outside MPI.COMM_WORLD are not followed")
    try:
        own, rows = of_windows(comm, window._group), None
    except (PeerLostError, RmaTimeout) as exc:
        return report.note(f"window {window._name} is not followed: {exc}")
    if own is not None:
        count = (Rows.SIZE + 2 * comm.size) * MPI.COMM_WORLD.size
        rows = Window.allocate(own, count, "i8")
    quiet = _is_own()
    window._shadow = shadow = Shadow(window, own or MPI.COMM_SELF, rows, quiet)
    _open[:] = [*(it for it in _open if not it.over), shadow]
    if not quiet:
        base = 0
        for part in window._mine() if isinstance(window, JoinedWindow) else [window]:
            memory.add(part._array, shadow, shadow.rank, base)
            base += part._array.nbytes
    shadow.exchange()


def _is_own() -> bool:
    """Tell whether another part of this package makes the window, for itself."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("rmaext.containers"):
            return True
        if not name.startswith("rmaext."):
            return False
        frame = frame.f_back
    return False


def _shutting(original: Any) -> Any:
    @functools.wraps(original)
    def shut(self: Any, *args: Any, **keywords: Any) -> None:
        shadow = self.__dict__.get("_shadow")
        if shadow is not None:
            shadow.shut = True
            memory.remove(shadow)
        original(self, *args, **keywords)

    return shut


def _property(original: Any) -> Any:
    def get(self: Any) -> Any:
        shadow, found = shadow_of(self), original.fget(self)
        if shadow is None or shadow.quiet or isinstance(self, DynamicWindow):
            return found
        return followed_array(found)

    return property(get, original.fset, doc=original.__doc__)


def _viewing(original: Any) -> Any:
    @functools.wraps(original)
    def peer_view(self: Any, rank: int) -> Any:
        shadow = shadow_of(self)
        if shadow is None or shadow.quiet:
            return original(self, rank)
        BUSY.now = True
        try:
            found = original(self, rank)
            base = 0
            whole = self._root.peer_view(rank) if self._root is not self else found
            for array in whole if isinstance(whole, list) else [whole]:
                memory.add(array, shadow, int(rank), base)
                base += array.nbytes
        finally:
            BUSY.now = False
        return followed_array(found)

    return peer_view


def _registering(original: Any) -> Any:
    @functools.wraps(original)
    def register(self: Any, array: Any) -> Any:
        made = original(self, plain(array))
        shadow = shadow_of(self)
        return made if shadow is None or shadow.quiet else _Buffer(self, made)

    return register


def _preparing(original: Any) -> Any:
    @functools.wraps(original)
    def prepare(self: Any, kind: int, array: Any, rank: int, offset: int) -> Any:
        made = original(self, kind, plain(array), rank, offset)
        shadow = shadow_of(self)
        if shadow is None or shadow.quiet:
            return made
        return _Call(self, made, _PREPARED[kind], rank, offset)

    return prepare


def _updates() -> None:
    """Follow `win.at(rank)`: all goes through accumulate_many."""
    kind = indexing.ElementUpdates
    original = kind.update

    @functools.wraps(original)
    def update(self: Any, index: Any, values: Any, op: Any = "sum") -> None:
        original(self, plain(index), plain(values), op)

    kind.update = update  # type: ignore[method-assign]


def _requests() -> None:
    """Follow what the program learns of its requests."""

    def learns(original: Any, ends: Callable[[Any, Any], bool]) -> Any:
        def method(self: Any, *args: Any, **keywords: Any) -> Any:
            result = original(self, *args, **keywords)
            begun = requests.begun_by(self)
            if begun is not None and not BUSY.now and ends(self, result):
                begun.waited = True
                if self._state != request._FREED:
                    begun.end()
            return result

        return functools.wraps(original)(method)

    kind = request.Request
    kind.wait = learns(kind.wait, lambda it, _: True)  # type: ignore[method-assign]
    kind.test = learns(kind.test, lambda it, done: bool(done))  # type: ignore[method-assign]
    kind.free = learns(kind.free, lambda it, _: True)  # type: ignore[method-assign]
    kind.cancel = learns(kind.cancel, lambda it, done: bool(done))  # type: ignore[method-assign]
    seen = learns(kind.done.fget, lambda it, done: bool(done))  # type: ignore[attr-defined]
    kind.done = property(seen, doc=kind.done.__doc__)  # type: ignore[method-assign,assignment]


def _array(original: Any) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **keywords: Any) -> Any:
        found = original(*args, **keywords)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return found if BUSY.now or caller.startswith("rmaext.") else followed_array(found)

    return make


def _end() -> None:
    """At the end of the program: compare what is left, and say how much was found."""
    BUSY.now = True
    comm = world().comm if MPI.COMM_WORLD.size > 1 else MPI.COMM_SELF
    if comm is not None and _all_are_there(comm):
        for shadow in [it for it in _open if not it.over]:  # in the order of their creation
            if _all_are_there(shadow.comm):
                shadow.exchange(ending=True)
        found = all_of(comm, report.told) if comm.size > 1 else [report.told]
    else:
        found = [report.told]
    if comm is None or comm.rank == 0:
        report.count = report.summarise([_requests_left(), *found])


def _requests_left() -> dict[str, Any]:
    """Tell of requests whose windows are not followed any more."""
    left = requests.unwaited()
    report.tell(left)
    return {finding.key: finding for finding in left}


def _leave() -> None:
    """End the process with status 1, if anything was found: an exit handler has no other way."""
    if report.count:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.Finalize()
        os._exit(1)


def _all_are_there(comm: Any) -> bool:
    """Wait until all ranks are here, for a while."""
    request, end = comm.Ibarrier(), time.monotonic() + _PATIENCE
    while not request.Test():
        if time.monotonic() > end or has_lost_any():  # who ends by an error does not come
            report.note("not all ranks have come to the end of the program: some is not compared")
            return False
        mpi_progress.nap(1e-4)
    return True


class _Call:
    """In place of a `Prepared`: carries the operation out through the window."""

    def __init__(self, window: Any, made: Any, name: str, rank: int, offset: int) -> None:
        self._made, self._name, self._place = made, name, (rank, offset)
        self.window, self.array = made.window, made.array
        self._through = window

    def __call__(self) -> Any:
        if self._name == "get":
            return self._through.get(*self._place, out=self.array)
        return getattr(self._through, self._name)(self.array, *self._place)

    def __repr__(self) -> str:
        return repr(self._made)


class _Buffer:
    """In place of a `Buffer`: carries the operations out through the window."""

    def __init__(self, window: Any, made: Any) -> None:
        self._made, self._through = made, window
        self.window, self.array = made.window, made.array

    def put(self, rank: int, offset: int = 0) -> None:
        """Put the array."""
        self._through.put(self.array, rank, offset)

    def get(self, rank: int, offset: int = 0) -> Any:
        """Get into the array, and return it."""
        return self._through.get(rank, offset, out=self.array)

    def fetch_add(self, rank: int, offset: int = 0) -> Any:
        """Add the array; return what was there."""
        return self._through.fetch_add(self.array, rank, offset)

    def __repr__(self) -> str:
        return repr(self._made)
