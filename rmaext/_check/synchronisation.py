# SPDX-License-Identifier: BSD-3-Clause
"""The synchronisation of a window: what orders the accesses of its ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any

import numpy as np

from .clock import BUSY
from .operations import of_range, shadow_of
from .shadow import Rows, Shadow

__all__ = ["SYNCHRONISATION"]

Original = Callable[..., Any]
Handler = Callable[..., Any]


def _ranks(shadow: Shadow, rank: int | None) -> Iterable[int]:
    return range(shadow.size) if rank is None else [int(rank)]


def _flush(shadow: Shadow, win: Any, original: Original, rank: Any = None, **more: Any) -> Any:
    result = original(win, rank, **more)
    shadow.flushed(None if rank is None else [int(rank)])
    return result


def _flush_all(shadow: Shadow, win: Any, original: Original) -> None:
    original(win)
    shadow.flushed(None)


def _flush_local(shadow: Shadow, win: Any, original: Original, rank: Any = None) -> None:
    original(win, rank)
    shadow.flushed(None if rank is None else [int(rank)], locally=True)


def _flush_local_all(shadow: Shadow, win: Any, original: Original) -> None:
    original(win)
    shadow.flushed(None, locally=True)


def _fence(shadow: Shadow, win: Any, original: Original) -> None:
    original(win)
    shadow.exchange()


def _close(shadow: Shadow, win: Any, original: Original) -> None:
    was = win.closed
    if win is not win._root:
        original(win)
        shadow.flushed(None)
        return
    original(win)
    if not was and win.closed:
        shadow.end()
        del win._shadow


def _lock(
    shadow: Shadow,
    win: Any,
    original: Original,
    rank: Any,
    exclusive: Any = True,
    timeout: Any = None,
) -> Any:
    guard = original(win, rank, exclusive, timeout)
    if int(rank) != win._null:
        shadow.held[get_ident(), int(rank)] = bool(exclusive)
        rows = [Rows.EXCLUSIVE, Rows.SHARED] if exclusive else [Rows.EXCLUSIVE]
        shadow.learn([(int(rank), row) for row in rows])
    return guard


def _give_back(shadow: Shadow, win: Any, ranks: Iterable[int], flush: Callable[[], Any]) -> None:
    """Flush, and leave the clock for those who get the locks after this rank."""
    flush()
    held = {rank: shadow.held.pop((get_ident(), rank), False) for rank in ranks}
    shadow.flushed(held)
    shadow.publish(
        [(rank, Rows.EXCLUSIVE if alone else Rows.SHARED) for rank, alone in held.items()]
    )


def _unlock(shadow: Shadow, win: Any, original: Original, rank: Any) -> None:
    try:
        if int(rank) != win._null:
            _give_back(shadow, win, [int(rank)], lambda: win.flush(rank))
    finally:
        original(win, rank)


def _lock_all(shadow: Shadow, win: Any, original: Original, timeout: Any = None) -> Any:
    guard = original(win, timeout)
    shadow.held.update({(get_ident(), rank): False for rank in range(shadow.size)})
    shadow.learn([(rank, Rows.EXCLUSIVE) for rank in range(shadow.size)])
    return guard


def _unlock_all(shadow: Shadow, win: Any, original: Original, *args: Any) -> None:
    try:
        _give_back(shadow, win, range(shadow.size), win.flush)
    finally:
        original(win, *args)


def _post(shadow: Shadow, win: Any, original: Original, group: Any) -> None:
    group = list(group) if not hasattr(group, "Incl") else group
    ranks = win._members("post", group)
    shadow.publish([(rank, Rows.POST + shadow.rank) for rank in ranks])
    original(win, group)


def _start(shadow: Shadow, win: Any, original: Original, group: Any) -> None:
    group = list(group) if not hasattr(group, "Incl") else group
    ranks = win._members("start", group)
    original(win, group)
    shadow.learn([(shadow.rank, Rows.POST + rank) for rank in ranks])


def _complete(shadow: Shadow, win: Any, original: Original) -> None:
    state = win._root._sync
    ranks = list(state.access or ()) if state is not None else []
    for rank in ranks:
        win.flush(rank)
    shadow.flushed(ranks)
    row = Rows.complete(shadow.size, shadow.rank)
    shadow.publish([(rank, row) for rank in ranks])
    original(win)


def _exposure(win: Any) -> list[int]:
    state = win._root._sync
    return list(state.exposure or ()) if state is not None else []


def _wait(shadow: Shadow, win: Any, original: Original, timeout: Any = None) -> None:
    ranks = _exposure(win)
    original(win, timeout)
    shadow.learn([(shadow.rank, Rows.complete(shadow.size, rank)) for rank in ranks])


def _test(shadow: Shadow, win: Any, original: Original) -> Any:
    ranks = _exposure(win)
    ended = original(win)
    if ended:
        shadow.learn([(shadow.rank, Rows.complete(shadow.size, rank)) for rank in ranks])
    return ended


def _learn_slots(shadow: Shadow, slots: Iterable[Any]) -> None:
    shadow.learn([(shadow.rank, Rows.SLOT + int(slot)) for slot in slots])


def _wait_notify(
    shadow: Shadow, win: Any, original: Original, slot: Any, *more: Any, **k: Any
) -> Any:
    result = original(win, slot, *more, **k)
    if result:  # test_notify returns whether
        _learn_slots(shadow, [slot])
    return result


def _wait_slots(
    shadow: Shadow, win: Any, original: Original, slots: Any, timeout: Any = None
) -> Any:
    slots = list(slots)
    result = original(win, slots, timeout)
    _learn_slots(shadow, slots if result is None else np.atleast_1d(result).tolist())
    return result


def _wait_until(
    shadow: Shadow, win: Any, original: Original, offset: Any, *args: Any, **keywords: Any
) -> Any:
    result = original(win, offset, *args, **keywords)
    for _, spans in of_range(win, shadow.rank, offset, 1):
        shadow.signalled(spans)
    return result


SYNCHRONISATION: dict[str, Handler] = {
    "flush": _flush,
    "flush_all": _flush_all,
    "flush_local": _flush_local,
    "flush_local_all": _flush_local_all,
    "fence": _fence,
    "close": _close,
    "lock": _lock,
    "unlock": _unlock,
    "lock_all": _lock_all,
    "unlock_all": _unlock_all,
    "_flush_and_release_all": _unlock_all,
    "post": _post,
    "start": _start,
    "complete": _complete,
    "wait": _wait,
    "test": _test,
    "wait_notify": _wait_notify,
    "test_notify": _wait_notify,
    "wait_any": _wait_slots,
    "wait_some": _wait_slots,
    "wait_all": _wait_slots,
    "wait_until": _wait_until,
}


def synchronising(name: str, original: Original) -> Original:
    """Return a method that follows the synchronisation."""
    handler = SYNCHRONISATION[name]

    @functools.wraps(original)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        shadow = shadow_of(self)
        if shadow is None:
            return original(self, *args, **keywords)
        BUSY.now = True
        try:
            return handler(shadow, self, original, *args, **keywords)
        finally:
            BUSY.now = False

    return method
