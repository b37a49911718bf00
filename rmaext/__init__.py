# SPDX-License-Identifier: BSD-3-Clause
"""One-sided communication over libfabric for MPI programs in Python."""

from . import _gil  # noqa: F401 (before anything that needs it)
from .errors import (
    AccessError,
    AlignmentError,
    AttachError,
    BoundsError,
    ClosedError,
    KeyRecordError,
    LibraryError,
    NoProviderError,
    NotLocalError,
    PeerLostError,
    RmaError,
    RmaTimeout,
    SyncError,
    Unsupported,
)
from .fabric import Fabric
from .node import empty, zeros
from .request import Request
from .window import Window

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "AlignmentError",
    "AttachError",
    "BoundsError",
    "ClosedError",
    "Fabric",
    "KeyRecordError",
    "LibraryError",
    "NoProviderError",
    "NotLocalError",
    "PeerLostError",
    "Request",
    "RmaError",
    "RmaTimeout",
    "SyncError",
    "Unsupported",
    "Window",
    "empty",
    "zeros",
]
