# SPDX-License-Identifier: BSD-3-Clause
"""One-sided communication over libfabric for MPI programs in Python."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _gil, _needs  # noqa: F401 (before anything that needs it)

# All of it at once, so that nothing is missing after a fork, or without descriptors. But
# the import of mpi4py.MPI initialises MPI: `python -m rmaext run` leaves that to the program.
if TYPE_CHECKING or sys.argv[:1] != ["-m"]:
    _needs.check_mpi()
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
    from .fabric import Fabric
    from .grants import Grant
    from .node import empty, zeros
    from .registration import Registration
    from .remote import RemoteWindow
    from .request import Request
    from .window import Window

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
    "Fabric": "fabric",
    "Grant": "grants",
    "Registration": "registration",
    "RemoteWindow": "remote",
    "Request": "request",
    "Window": "window",
    "empty": "node",
    "zeros": "node",
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
