# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables, read where a fabric is opened; docs/reference/environment.md."""

from __future__ import annotations

import difflib
import logging
import math
import numbers
import operator
import os
import time
from dataclasses import dataclass
from typing import Any

__all__ = [
    "PROVIDERS",
    "VARIABLES",
    "Config",
    "deadline",
    "is_known",
    "reports_differences",
    "seconds",
    "tell_of_unknown",
    "timeout_seconds",
]

_log = logging.getLogger("rmaext")

VARIABLES = (
    *("RMAEXT_PROVIDER", "RMAEXT_LIBFABRIC", "RMAEXT_IFACE", "RMAEXT_TIMEOUT", "RMAEXT_ROUTE"),
    *("RMAEXT_NODE", "RMAEXT_PTRACER", "RMAEXT_PROGRESS", "RMAEXT_MPI_PROGRESS", "RMAEXT_COMPAT"),
    "RMAEXT_MR_MODE",
)
_OF_TESTS = tuple(f"RMAEXT_{name}" for name in ("TEST_", "EMULATED"))  # which the tests read
_told = set[str]()

# Best first; tcp by itself is for a libfabric whose ofi_rxm does not load (Intel MPI's,
# where there is no libibverbs). Never by default: shm, sm2, lnx, sockets (FACTS: they
# hang, stall or take over signal handlers).
PROVIDERS = ("cxi", "efa", "verbs;ofi_rxm", "tcp;ofi_rxm", "tcp")


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(name, "")
    if value and value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    return value


def _cache_limit(what: str, usual: int) -> int:
    """Return a limit of libfabric's own caches, fi_mr(3), which ours keeps to as well."""
    if os.environ.get("FI_MR_CACHE_MONITOR") == "disabled":
        return 0
    name = f"FI_MR_CACHE_MAX_{what}"
    text = os.environ.get(name)
    try:
        value = int(text, 0) if text else usual
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{name}={text!r}: must be a number of 0 or more")
    return value


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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
    cache_count: int  # origins that stay registered, where FI_MR_LOCAL is demanded
    cache_bytes: int  # of these
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
            cache_count=_cache_limit("COUNT", 1024),
            cache_bytes=_cache_limit("SIZE", _memory() // 4),
            timeout=timeout_seconds(None),
        )


def is_known(name: str) -> bool:
    """Tell whether a variable of the environment is none of ours, or one that is read."""
    return not name.startswith("RMAEXT_") or name in VARIABLES or name.startswith(_OF_TESTS)


def tell_of_unknown() -> None:
    """Report variables that look like ours and are not: once each, to `logging`."""
    for name in sorted(name for name in os.environ if not is_known(name)):
        if name in _told:
            continue
        _told.add(name)
        near = difflib.get_close_matches(name, VARIABLES, 1, 0.75)
        text = f"did you mean {near[0]}?" if near else f"there are {', '.join(VARIABLES)}"
        _log.warning("%s is set, which rmaext does not know: %s", name, text)


def moves_mpi() -> bool:
    """Tell whether a thread shall move MPI while the program computes."""
    return _choice("RMAEXT_MPI_PROGRESS", ("0", "1")) == "1"


def reports_differences() -> bool:
    """Tell whether rmaext.compat shall report calls that differ from MPI's."""
    return _choice("RMAEXT_COMPAT", ("warn",)) == "warn"


_LONGEST = 1e9  # seconds, 31 years: what is longer is no limit


def seconds(value: Any, what: str = "") -> float:
    """Return a time limit in seconds: the one rule for all that takes one.

    Any real number is one, NumPy's too, and what has `__index__`; a bool is none, and
    TypeError. Negative ones and nan are ValueError. inf is no limit, here 1e9. What None
    means is the caller's business.
    """
    what = what or f"timeout={value!r}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value if isinstance(value, numbers.Real) else operator.index(value))
    except OverflowError:  # an int
        number = math.inf if value > 0 else -math.inf
    except TypeError:
        raise TypeError(f"{what}: must be a number of seconds, or None") from None
    if not number >= 0:  # nan is not
        raise ValueError(f"{what}: must not be negative, nor nan")
    return min(number, _LONGEST)


def deadline(timeout: Any) -> float | None:
    """Return when a time limit is over, by time.monotonic(); None if there is none."""
    return None if timeout is None else time.monotonic() + seconds(timeout)


def timeout_seconds(value: float | None) -> float:
    """Return the time limit of data operations: argument, environment, or 60 s.

    As `seconds`, but not 0, in which nothing would ever be done.
    """
    what = f"timeout={value!r}"
    if value is None:
        text = os.environ.get("RMAEXT_TIMEOUT", "60")
        what = f"RMAEXT_TIMEOUT={text!r}"
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{what}: must be a number of seconds") from None
    number = seconds(value, what)
    if not number:
        raise ValueError(f"{what}: must be positive")
    return number
