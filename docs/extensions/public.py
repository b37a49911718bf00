# SPDX-License-Identifier: BSD-3-Clause
"""What is public: the names in __all__ of rmaext and rmaext.containers.

Of their classes, what has no underscore.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import rmaext
import rmaext.containers

__all__ = ["is_error", "is_window", "public"]


def is_error(value: Any) -> bool:
    """Tell whether it is one of the exceptions."""
    return inspect.isclass(value) and issubclass(value, BaseException)


def is_window(value: Any) -> bool:
    """Tell whether it is a kind of window of its own, which has all that Window has."""
    return inspect.isclass(value) and issubclass(value, rmaext.Window) and value != rmaext.Window


def public() -> Iterator[tuple[str, Any]]:
    """Return names, with a dot before those of classes, and what they stand for.

    Kinds of windows have only what they define themselves; of exceptions, and fields that
    are parameters of their class, there is the class.
    """
    named = [(name, getattr(rmaext, name)) for name in rmaext.__all__]
    containers = rmaext.containers
    named += [(f"containers.{name}", getattr(containers, name)) for name in containers.__all__]
    for name, value in named:
        yield name, value
        if not inspect.isclass(value) or is_error(value):
            continue
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        hidden = {field.name for field in fields}
        if is_window(value):
            hidden |= set(dir(value)) - set(vars(value))
        for attribute in dir(value):
            if not attribute.startswith("_") and attribute not in hidden:
                yield f"{name}.{attribute}", inspect.getattr_static(value, attribute)
