# SPDX-License-Identifier: BSD-3-Clause
"""Raise at the k-th place of a call at which CPython lets a signal handler run.

Where those are, the interpreter itself says: a signal is always pending, so its handler is
called at each of them. It counts, rings again, and raises at the k-th. So all places are tried,
by their number and not by chance, and no others: what CPython never divides stays whole.

CPython 3.10 to 3.14 look for signals, in the main thread only,

- at the beginning of a function of Python's (RESUME; also one that C calls: a property, an
  `__enter__`, an `__exit__`, a finalizer, a function given to `map`), and when a generator goes on;
- after a call of C's (CALL and its kin: the result is not stored yet, and is lost). They do not
  look after the return of a function of Python's that its caller has entered without C, nor
  after what C does for another instruction: the `acquire` of `with lock:`, `a[i]`, `a.b`, `a + b`;
- at a jump back, so once in each turn of a loop;
- where C asks, as `lock.acquire` and `time.sleep` do when a signal has woken them.

So `x = f(); y.z = x` may be divided after f, if that is C's; `self.a = 1; self.b = 2` may not.
3.10 does not look where the next instruction begins a `try` or a `with`, later ones do.
An exception that is raised in a finalizer is lost, with what that had still to do.

Tracing (sys.settrace with f_trace_opcodes, sys.monitoring) raises at the next instruction
instead, outside of a `try` that the call was the last one of, and between those that nothing
divides: it finds what no program ever sees.
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

from support.processes import waits

import rmaext

__all__ = ["Bell", "ring_in_c"]

_SIGNAL = signal.SIGUSR1
_ROOT = os.path.dirname(os.path.abspath(rmaext.__file__)) + os.sep


class Bell:
    """A signal that is always pending while a call runs.

    Attributes
    ----------
    once : bool
        Places where a function and its caller have been before in the call do not count: other
        turns of a loop, and the same function called on the same line for something else.
    count : int
        How many places of the call have been met.
    place : str
        Where the handler has raised: function, file and line; "" if it has not.
    of_all : bool
        All ranks raise that, as rmaext says of it.
    """

    def __init__(self) -> None:
        self.once = False
        self._once: defaultdict[int, None] = defaultdict(partial(_thread.interrupt_main, _SIGNAL))
        self._at = 0
        self._error: type[BaseException] = KeyboardInterrupt
        self._inside = True
        self._ours: dict[CodeType, bool] = {}
        self._met: set[tuple[Any, ...]] = set()
        self.count, self.place = 0, ""
        self.of_all = False
        signal.signal(_SIGNAL, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._at:
            return
        self._once.clear()
        if not _is_lost(frame) and (not self._inside or self._is_inside(frame)):
            self.count += self._is_new(frame)
            if self.count == self._at:
                self._at = 0
                self.place = _where(frame)
                raise self._error("of the bell")
        # The last step of this handler, and one of C's: nobody looks for signals after it here.
        self._once[0]

    def _is_inside(self, frame: FrameType | None) -> bool:
        """Whether rmaext has called what is interrupted."""
        while frame is not None and frame.f_code is not _CALL:
            code = frame.f_code
            ours = self._ours.get(code)
            if ours is None:
                ours = self._ours[code] = code.co_filename.startswith(_ROOT)
            if ours:
                return True
            frame = frame.f_back
        return False

    def _is_new(self, frame: FrameType | None) -> bool:
        """Whether this place of the call is one to count."""
        if not self.once or frame is None:
            return True
        by = frame.f_back
        place = frame.f_code, frame.f_lasti, by and by.f_code, by and by.f_lasti
        met = place in self._met
        self._met.add(place)
        return not met

    def call(
        self, function: Callable[[], Any], at: int, error: type[BaseException], inside: bool = True
    ) -> tuple[bool, Any]:
        """Call a function, and raise at its place of that number, from 1.

        `inside`: the places are those of what rmaext calls; else also those before and after
        calls of it in the function, where a call has returned and its result is lost.
        Return whether that ended the call, and what it has returned. `place` says whether there
        is such a place; in a finalizer the error is lost, and the call goes on.
        """
        self.count, self.place, self._error, self._inside = 0, "", error, inside
        self.of_all = False
        self._met.clear()
        gc.disable()  # it would come at other places each time
        try:
            self._at = at
            self._once.clear()
            self._once[0]
            result = function()
            self._at = 0
        except BaseException as caught:
            self._at = 0
            if "of the bell" not in str(caught):  # all ranks may raise it in other words
                raise
            self.of_all = "of_all_ranks" in caught.__dict__
            return True, None
        finally:
            self._at = 0
            gc.enable()
        return False, result


_CALL = Bell.call.__code__


def _is_lost(frame: FrameType | None) -> bool:
    """Whether the frame is that of a callback of weakref's, which loses what is raised in it."""
    return frame is not None and "weakref" in frame.f_code.co_filename


def _where(frame: FrameType | None) -> str:
    assert frame is not None
    ours: FrameType | None = frame
    while ours is not None and not ours.f_code.co_filename.startswith(_ROOT):
        ours = ours.f_back
    if ours is None:
        return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    text = f"{ours.f_code.co_filename.removeprefix(_ROOT)}:{ours.f_lineno} {ours.f_code.co_name}"
    return text if ours is frame else f"{text} > {frame.f_code.co_name}"


def ring_in_c(function: Callable[[], Any], error: type[BaseException]) -> bool:
    """Call a function that waits; a signal wakes it in C. Return whether that ended it."""

    def handler(*_: object) -> None:
        raise error("of the bell")

    over = threading.Event()

    def ring() -> None:
        while not waits(os.getpid()) and not over.wait(0.002):
            pass
        pause = 0.02
        while not over.wait(pause):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
            pause = 2.0  # once more, should the first meet a finalizer, which drops it

    signal.signal(signal.SIGUSR2, handler)
    thread = threading.Thread(target=ring)
    try:
        thread.start()
        function()
    except BaseException as caught:
        if "of the bell" not in str(caught):
            raise
        return True
    finally:
        over.set()
        thread.join()
    return False
