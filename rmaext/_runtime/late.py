# SPDX-License-Identifier: BSD-3-Clause
"""What `import rmaext` leaves out: the rarer kinds of windows."""

from __future__ import annotations

from importlib import import_module

__all__ = ["load"]

_KINDS = ("dynamic", "fields", "joined", "remote", "shared", "views")


def load() -> None:
    """Import them; in the first window's creation, which fails on all ranks or on none.

    Later there may be no descriptor left, or a peer may wait.
    """
    for name in _KINDS:
        import_module(f"rmaext._window.{name}")
