# SPDX-License-Identifier: BSD-3-Clause
"""What is public: what rmaext.__all__ names, and of its classes what has no underscore."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import rmaext

__all__ = ["is_error", "is_window", "public"]


def is_error(value: Any) -> bool:
    """Tell whether it is one of the exceptions."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def is_window(value: Any) -> bool:
    """Tell whether it is a kind of window of its own, which has all that Window has."""
    return inspect.isclass(value) and issubclass(value, rmaext.Window) and value != rmaext.Window


def public() -> Iterator[tuple[str, Any]]:
    """Return names, with a dot before those of classes, and what they stand for.

    Exceptions and kinds of windows have only what they define themselves.
    """
    for name in rmaext.__all__:
        value = getattr(rmaext, name)
        yield name, value
        if not inspect.isclass(value):
            continue
        if is_error(value):
            continue
        for attribute in dir(value):
            inherited = is_window(value) and attribute not in vars(value)
            if not attribute.startswith("_") and not inherited:
                yield f"{name}.{attribute}", inspect.getattr_static(value, attribute)
