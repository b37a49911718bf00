# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables, read where a fabric is opened. README has the table."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["PROVIDERS", "Config", "reports_differences", "timeout_seconds"]

# Best first. Never by default: shm, sm2, lnx, sockets (FACTS: they hang, stall
# or take over signal handlers).
PROVIDERS = ("cxi", "efa", "verbs;ofi_rxm", "tcp;ofi_rxm")


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, "")
    if value and value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    return value


@dataclass(frozen=True)
class Config:
    """What the environment of this rank asks for."""

    provider: str  # exact libfabric name, "" for the default order
    route: str  # "" or "fabric"
    node: str  # pretend node name
    iface: str  # interface, address or network
    library: str  # path of libfabric
    progress: bool  # start the progress thread
    ptracer: bool  # let the node's other processes copy from here, under Yama
    mr_basic: bool  # ask the provider for FI_MR_BASIC
    hmem: bool  # ask it for FI_HMEM
    timeout: float  # seconds, of windows that say nothing else

    @classmethod
    def read(cls) -> Config:
        """Read the environment; ValueError on a value that means nothing."""
        get = os.environ.get
        return cls(
            provider=get("RMAEXT_PROVIDER", ""),
            route=_choice("RMAEXT_ROUTE", ("fabric",)),
            node=get("RMAEXT_NODE", ""),
            iface=get("RMAEXT_IFACE", ""),
            library=get("RMAEXT_LIBFABRIC", ""),
            progress=_choice("RMAEXT_PROGRESS", ("0", "1")) != "0",
            ptracer=_choice("RMAEXT_PTRACER", ("0", "1")) != "0",
            mr_basic=_choice("RMAEXT_MR_MODE", ("basic", "hmem")) == "basic",
            hmem=get("RMAEXT_MR_MODE") == "hmem",
            timeout=timeout_seconds(None),
        )


def reports_differences() -> bool:
    """Tell whether rmaext.compat shall report calls that differ from MPI's."""
    return _choice("RMAEXT_COMPAT", ("warn",)) == "warn"


def timeout_seconds(value: float | None) -> float:
    """Return the time limit of data operations: argument, environment, or 60 s."""
    what = f"timeout={value!r}"
    if value is None:
        text = os.environ.get("RMAEXT_TIMEOUT", "60")
        what = f"RMAEXT_TIMEOUT={text!r}"
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{what}: must be a number of seconds") from None
    if not isinstance(value, int | float):
        raise TypeError(f"{what}: must be a number of seconds")
    if not 0 < value <= 1e9:  # nan is neither
        raise ValueError(f"{what}: must be positive, and at most 1e9")
    return float(value)
