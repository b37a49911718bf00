# SPDX-License-Identifier: BSD-3-Clause
"""RMAEXT_TRACE=folder: all events of this process in files, and where in the program they began.

csrc/record/trace.c writes the events. Here is what they refer to by numbers, as lines of JSON:
the places of the program, the windows, the communicators and the threads.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from .._native._lib import ffi, lib
from .._runtime import locks, reports
from .._runtime.config import trace_bytes
from .._runtime.log import log
from .._runtime.reports import container_call, place
from . import jobname, layout

__all__ = ["begin", "end", "follow", "name", "wanted"]

_OPERATORS = ("__exit__", "__getitem__", "__init__", "__setitem__")
_names: Any = None  # the file of this process
_lock = locks.lock()
_sites: dict[tuple[str, int, str], int] = {}
_inside = threading.local()  # call: in one that is followed; wait: the site of a container's


def wanted() -> bool:
    """Tell whether this process shall write a trace."""
    return bool(os.environ.get("RMAEXT_TRACE")) and os.environ.get("RMAEXT_RECORD") != "0"


def on() -> bool:
    """Tell whether names are written: whether this process writes a trace."""
    return _names is not None


def begin(rank: int) -> None:
    """Begin to write, if that is wanted. Local; the record is open."""
    global _names
    if not wanted():
        return
    folder = os.path.join(os.environ["RMAEXT_TRACE"], jobname.folder(os.environ))
    try:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(os.path.abspath(folder), f"rank-{rank:05d}")
        most = trace_bytes()
        import glob

        for old in glob.glob(f"{glob.escape(path)}.*.events"):
            os.remove(old)  # of an earlier job of that name
        _names = open(f"{path}.names.jsonl", "wb", buffering=0)  # noqa: SIM115
        code = lib.rmaext_record_trace(os.fsencode(path), most)
        if code:
            raise OSError(-code, os.strerror(-code), path)
        reports.follow_wait = _follow_wait
        for (at, line, call), number in [*_sites.items()]:
            _name_site(number, at, line, call)
    except OSError as exc:
        _names = None
        text = f"RMAEXT_TRACE={os.environ['RMAEXT_TRACE']!r}: cannot be written ({exc.strerror})"
        raise ValueError(f"{text}; name a folder on a disk with room") from exc


def name(**what: Any) -> None:
    """Write what a number in the events stands for. Never raises: the program goes on."""
    global _names
    file = _names
    if file is None:
        return
    try:
        with _lock:
            file.write(f"{json.dumps(what)}\n".encode())
    except OSError as exc:
        _names = None
        log.warning("the names of the trace cannot be written any more: %s", exc)


def end() -> None:
    """Write the threads, and whether the trace is whole. No event comes after it."""
    if _names is None:
        return
    header = lib.rmaext_record_own()
    base = ffi.cast("char *", header) + header.threads
    threads = ffi.cast("struct rmaext_record_thread *", base)
    for index in range(lib.RMAEXT_RECORD_THREADS):
        tid, title = int(threads[index].tid), layout.text(ffi.string(threads[index].name))
        if title:  # that of a thread that has ended stays
            name(thread=index, tid=tid, name="main" if tid == os.getpid() else title)
    lost, dropped = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    error = lib.rmaext_record_traced(lost, dropped)
    name(lost=int(lost[0]), dropped=int(dropped[0]), error=os.strerror(-error) if error else "")
    if error or lost[0] or dropped[0]:
        why = f": {os.strerror(-error)}" if error else ""
        text = "the trace lacks %d events that were not written%s, and %d of files that were "
        text += "removed as the trace was longer than RMAEXT_TRACE_SIZE"
        log.warning(text, int(lost[0]), why, int(dropped[0]))
    name(end=True)


def _site(call: str) -> int:
    path, line = place(sys._getframe(2))
    key = path, line, container_call() or call
    number = _sites.get(key)
    if number is None:
        with _lock:
            number = _sites.setdefault(key, len(_sites) + 1)
        _name_site(number, *key)
    return number


def _name_site(number: int, path: str, line: int, call: str) -> None:
    name(site=number, at=f"{path}:{line}" if path else "", call=call)


def _follow_wait(what: str) -> None:
    """Give all steps of a container's wait its site, until it is over: what is "" then."""
    _inside.wait = _site(what) if what else 0
    lib.rmaext_record_at(_inside.wait)


def _followed(function: Callable[..., Any], call: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def followed(*args: Any, **keywords: Any) -> Any:
        if getattr(_inside, "call", False):
            return function(*args, **keywords)
        try:
            _inside.call = True
            lib.rmaext_record_at(getattr(_inside, "wait", 0) or _site(call))
            return function(*args, **keywords)
        finally:
            _inside.call = False  # first: a signal handler may raise between the two
            lib.rmaext_record_at(getattr(_inside, "wait", 0))

    return followed


def follow(kind: type, base: type | None = None) -> None:
    """Have the public methods of a class, and of C's below it, say where the program is."""
    if not wanted():
        return
    found = dict(vars(base) if base else {}) | dict(vars(kind))
    for attribute, what in found.items():
        if attribute.startswith("_") and attribute not in _OPERATORS:
            continue
        if isinstance(what, classmethod | staticmethod):
            setattr(kind, attribute, type(what)(_followed(what.__func__, attribute)))
        elif callable(what) and not isinstance(what, type):
            setattr(kind, attribute, _followed(what, attribute))


def _forked() -> None:
    """In a forked child: the trace is its parent's."""
    global _names
    _names = None


os.register_at_fork(after_in_child=_forked)
