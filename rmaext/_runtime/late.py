# SPDX-License-Identifier: BSD-3-Clause
"""What `import rmaext` leaves out: a third of its time, and a job without windows needs none."""

from __future__ import annotations

from importlib import import_module

__all__ = ["load"]

_KINDS = ("dynamic", "fields", "joined", "remote", "shared", "views")


def load() -> None:
    """Import it; in the first window's creation, which fails on all ranks or on none.

    Later there may be no descriptor left, or a peer may wait.
    """
    for name in _KINDS:
        import_module(f"rmaext._window.{name}")
