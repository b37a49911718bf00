# SPDX-License-Identifier: BSD-3-Clause
"""Something happens before the k-th bytecode of some modules' code, for each k."""

from __future__ import annotations

import dis
import sys
from functools import lru_cache

_NOP = dis.opmap["NOP"]


@lru_cache(maxsize=1000)
def _bytecodes(code):
    return code.co_code


def is_place(frame):
    """Whether a signal handler may be called about here: never where the bytecode does nothing.

    The compiler leaves a NOP for a `break` that ends what a `try` has in it, and behind what the
    `try` protects.
    """
    return _bytecodes(frame.f_code)[frame.f_lasti] != _NOP


class Interrupt(BaseException):
    """As KeyboardInterrupt: a signal handler raises it."""


def interrupt():
    raise Interrupt


class Tracing:
    """With it, a function is called before the k-th bytecode of some modules, once."""

    def __init__(self, modules, at, act):
        self.files = frozenset(module.__file__ for module in modules)
        self.left, self.act = at, act
        self.acted = False
        self.depth = 0

    def without(self, function):
        """Call a function whose bytecodes do not count."""
        depth, self.depth = self.depth, -99
        try:
            return function()
        finally:
            self.depth = depth

    def __enter__(self):
        self.depth += 1
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        self.depth -= 1
        if not self.depth:
            sys.settrace(None)

    def _trace(self, frame, event, argument):
        if frame.f_code.co_filename not in self.files or self.depth < 1:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and not self.acted and is_place(frame):
            self.left -= 1
            if self.left <= 0:
                self.acted = True
                self.act()
        return self._trace


def places(scenario, stride):
    """Call scenario(k) for each stride-th k until it says that there are no more bytecodes."""
    k, tried = 1, 0
    while scenario(k):
        k += stride
        tried += 1
    return tried
