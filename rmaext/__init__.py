# SPDX-License-Identifier: BSD-3-Clause
"""One-sided communication over libfabric for MPI programs in Python."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ._native import gil as _gil  # noqa: F401 (before anything that needs it)
from ._native import needs as _needs
from ._runtime import tracebacks as _tracebacks

_tracebacks.install()

# What every window needs at once, so that nothing is missing after a fork, or without
# descriptors; the rarer kinds of windows as they are asked for. But the import of mpi4py.MPI
# initialises MPI: `python -m rmaext run` leaves that to the program.
if TYPE_CHECKING:
    from ._window.dynamic import DynamicWindow
    from ._window.fields import FieldView
    from ._window.joined import JoinedWindow
    from ._window.remote import RemoteWindow
    from ._window.shared import SharedWindow
    from ._window.views import View

if TYPE_CHECKING or sys.argv[:1] != ["-m"]:
    _needs.check_mpi()
    from . import errors, typing  # noqa: F401 (attributes)
    from ._fabric.fabric import Fabric
    from ._fabric.registration import Registration
    from ._memory.node import empty, zeros
    from ._memory.values import elements
    from ._native.cmethods import Buffer, Prepared
    from ._ops.indexing import ElementUpdates
    from ._ops.request import Request
    from ._remote.grants import Grant
    from ._sync.sync import LockGuard
    from ._window.memory import Memory
    from ._window.window import Window
    from .errors import (
        AccessError,
        AddressError,
        AlignmentError,
        AttachError,
        BoundsError,
        BusyError,
        CapacityError,
        ClosedError,
        FlagsError,
        GrantError,
        KeyRecordError,
        KeyRejectedError,
        LibraryError,
        NoKeyError,
        NoProviderError,
        NotLocalError,
        PeerLostError,
        RmaError,
        RmaTimeout,
        SyncError,
        TooSmallError,
        Unsupported,
    )

    if os.environ.get("RMAEXT_CHECK"):
        importlib.import_module("._check.install", __name__).install()
    _tracebacks.hide()

__version__ = "0.2.0"

__all__ = [
    "AccessError",
    "AddressError",
    "AlignmentError",
    "AttachError",
    "BoundsError",
    "Buffer",
    "BusyError",
    "CapacityError",
    "ClosedError",
    "DynamicWindow",
    "ElementUpdates",
    "Fabric",
    "FieldView",
    "FlagsError",
    "Grant",
    "GrantError",
    "JoinedWindow",
    "KeyRecordError",
    "KeyRejectedError",
    "LibraryError",
    "LockGuard",
    "Memory",
    "NoKeyError",
    "NoProviderError",
    "NotLocalError",
    "PeerLostError",
    "Prepared",
    "Registration",
    "RemoteWindow",
    "Request",
    "RmaError",
    "RmaTimeout",
    "SharedWindow",
    "SyncError",
    "TooSmallError",
    "Unsupported",
    "View",
    "Window",
    "elements",
    "empty",
    "zeros",
]

_MODULES = ("compat", "containers", "errors", "jit", "typing")  # the public ones
_HOMES = dict.fromkeys(__all__, "errors") | {
    "Buffer": "_native.cmethods",
    "DynamicWindow": "_window.dynamic",
    "ElementUpdates": "_ops.indexing",
    "Fabric": "_fabric.fabric",
    "FieldView": "_window.fields",
    "Grant": "_remote.grants",
    "JoinedWindow": "_window.joined",
    "LockGuard": "_sync.sync",
    "Memory": "_window.memory",
    "Prepared": "_native.cmethods",
    "Registration": "_fabric.registration",
    "RemoteWindow": "_window.remote",
    "Request": "_ops.request",
    "SharedWindow": "_window.shared",
    "View": "_window.views",
    "Window": "_window.window",
    "elements": "_memory.values",
    "empty": "_memory.node",
    "zeros": "_memory.node",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is."""
    home = _HOMES.get(name)
    if home is None and name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{home or name}", __name__)
    except ModuleNotFoundError as exc:
        if exc.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    private = (name for name in globals() if name.startswith("_"))
    return sorted({*__all__, *_MODULES, *private})
