# SPDX-License-Identifier: BSD-3-Clause
"""One-sided communication over libfabric for MPI programs in Python."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._native import gil as _gil  # noqa: F401 (before anything that needs it)
from ._native import needs as _needs

# All of it at once, so that nothing is missing after a fork, or without descriptors. But
# the import of mpi4py.MPI initialises MPI: `python -m rmaext run` leaves that to the program.
if TYPE_CHECKING or sys.argv[:1] != ["-m"]:
    _needs.check_mpi()
    from ._fabric.endpoint import Fabric
    from ._fabric.registration import Registration
    from ._memory.node import empty, zeros
    from ._ops.request import Request
    from ._remote.grants import Grant
    from ._window.remote import RemoteWindow
    from ._window.window import Window
    from .errors import (
        AccessError,
        AddressError,
        AlignmentError,
        AttachError,
        BoundsError,
        BusyError,
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

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "AddressError",
    "AlignmentError",
    "AttachError",
    "BoundsError",
    "BusyError",
    "ClosedError",
    "Fabric",
    "FlagsError",
    "Grant",
    "GrantError",
    "KeyRecordError",
    "KeyRejectedError",
    "LibraryError",
    "NoKeyError",
    "NoProviderError",
    "NotLocalError",
    "PeerLostError",
    "Registration",
    "RemoteWindow",
    "Request",
    "RmaError",
    "RmaTimeout",
    "SyncError",
    "TooSmallError",
    "Unsupported",
    "Window",
    "empty",
    "zeros",
]

_HOMES = dict.fromkeys(__all__, "errors") | {
    "Fabric": "_fabric.endpoint",
    "Grant": "_remote.grants",
    "Registration": "_fabric.registration",
    "RemoteWindow": "_window.remote",
    "Request": "_ops.request",
    "Window": "_window.window",
    "empty": "_memory.node",
    "zeros": "_memory.node",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is, under `python -m rmaext`."""
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
    return sorted({*globals(), *__all__})
