# SPDX-License-Identifier: BSD-3-Clause
"""Results that land in an array on a device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .._memory.devices import of_cuda
from .request import Request, done_at_once

__all__ = ["lands"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def lands(method: _Method) -> _Method:
    """Let a method take an `out` on a device, to which the result is copied; a request, at once."""
    at = list(inspect.signature(method).parameters).index("out") - 1

    @functools.wraps(method)
    def landing(self: Any, *args: Any, **keywords: Any) -> Any:
        out = args[at] if at < len(args) else keywords.get("out")
        cuda = None if out is None or isinstance(out, np.ndarray) else of_cuda(out)
        if cuda is None:
            return method(self, *args, **keywords)
        host = cuda.fetch(out)  # what the operation leaves as it is stays so
        if at < len(args):
            args = (*args[:at], host, *args[at + 1 :])
        else:
            keywords["out"] = host
        found = method(self, *args, **keywords)
        if isinstance(found, Request):
            found.wait()
            found = done_at_once(out)
        else:
            found = out
        cuda.fill(out, host)
        return found

    return landing  # type: ignore[return-value]
