# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables, read where a fabric is opened; docs/reference/environment.md."""

from __future__ import annotations

import math
import numbers
import operator
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from .log import log

__all__ = [
    "PROVIDERS",
    "RDMA",
    "VARIABLES",
    "Config",
    "checks",
    "cuda_library",
    "deadline",
    "hints_from",
    "is_known",
    "preferred",
    "records",
    "reports_differences",
    "seconds",
    "tell_of_launcher",
    "tell_of_unknown",
    "timeout_seconds",
    "trace_bytes",
    "whole_tracebacks",
]

VARIABLES = (
    *("RMAEXT_PROVIDER", "RMAEXT_LIBFABRIC", "RMAEXT_IFACE", "RMAEXT_TIMEOUT", "RMAEXT_ROUTE"),
    *("RMAEXT_NODE", "RMAEXT_PTRACER", "RMAEXT_PROGRESS", "RMAEXT_MPI_PROGRESS", "RMAEXT_COMPAT"),
    *("RMAEXT_MR_MODE", "RMAEXT_RECORD", "RMAEXT_TRACE", "RMAEXT_TRACE_SIZE", "RMAEXT_CHECK"),
    *("RMAEXT_ADMIT", "RMAEXT_SECRET", "RMAEXT_HINTS", "RMAEXT_TRACEBACK"),
    *("RMAEXT_TRANSPORT", "RMAEXT_UCX", "RMAEXT_CUDA"),
)
# which the tests read, and what is for them only
_OF_TESTS = tuple(f"RMAEXT_{name}" for name in ("TEST_", "EMULATED", "UCX_ANY"))
_told = set[str]()
# Of launchers: how many processes they have started, and which this is.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE": "PMI_RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID",
}

# Best first. Never by default: shm, sm2, lnx, sockets (FACTS: they hang, stall or take over
# signal handlers).
RDMA = ("cxi", "efa", "verbs;ofi_rxm")
PROVIDERS = (*RDMA, "tcp", "tcp;ofi_rxm")


def preferred(versions: Iterable[str]) -> list[str]:
    """Return the providers, best first, where ranks have these versions of libfabric."""
    found = list(PROVIDERS)
    if any(version.startswith("1.") for version in versions):
        # there tcp alone is young: it is for where ofi_rxm does not load (Intel MPI's
        # libfabric, without a libibverbs)
        found.append(found.pop(found.index("tcp")))
    return found


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


class Config(NamedTuple):
    """What the environment of this rank asks for."""

    transport: str  # "libfabric" or "ucx"
    provider: str  # exact libfabric name, "" for the default order; "ucx" with that transport
    route: str  # "" or "fabric"
    node: str  # pretend node name
    iface: str  # interface, address or network
    library: str  # path of libfabric
    ucx: str  # path of libucp
    ucx_any: bool  # it may use transports without RDMA
    progress: bool  # start the progress thread
    ptracer: bool  # let the node's other processes copy from here, under Yama
    mr_basic: bool  # ask the provider for FI_MR_BASIC
    hmem: bool  # ask it for FI_HMEM
    cache_count: int  # origins that stay registered, where FI_MR_LOCAL is demanded
    cache_bytes: int  # of these
    timeout: float  # seconds, of windows that say nothing else
    hints_from: int  # updates by message
    admit: tuple[tuple[bytes, int], ...] | None  # networks let in, `networks`; None: everyone
    secret: bytes  # that connections between hosts are signed with; b"": none

    @classmethod
    def read(cls) -> Config:
        """Read the environment; ValueError on a value that means nothing."""
        get = os.environ.get
        provider = get("RMAEXT_PROVIDER", "")
        transport = _choice("RMAEXT_TRANSPORT", ("libfabric", "ucx")) or "libfabric"
        if transport == "ucx" and provider not in ("", "ucx"):
            raise ValueError(
                f"RMAEXT_PROVIDER={provider!r}: names a provider of libfabric, but "
                "RMAEXT_TRANSPORT=ucx: unset one of them"
            )
        return cls(
            transport=transport,
            provider=provider,
            route=_choice("RMAEXT_ROUTE", ("fabric",)),
            node=get("RMAEXT_NODE", ""),
            iface=get("RMAEXT_IFACE", ""),
            library=get("RMAEXT_LIBFABRIC", ""),
            ucx=get("RMAEXT_UCX", ""),
            ucx_any=_choice("RMAEXT_UCX_ANY", ("0", "1")) == "1",
            progress=_choice("RMAEXT_PROGRESS", ("0", "1")) != "0",
            ptracer=_choice("RMAEXT_PTRACER", ("0", "1")) != "0",
            mr_basic=_choice("RMAEXT_MR_MODE", ("basic", "hmem")) == "basic",
            hmem=get("RMAEXT_MR_MODE") == "hmem",
            cache_count=_cache_limit("COUNT", 1024),
            cache_bytes=_cache_limit("SIZE", _memory() // 4),
            timeout=timeout_seconds(None),
            hints_from=hints_from(),
            admit=networks(),
            secret=secret(),
        )

    def __repr__(self) -> str:
        shown = (f"{name}={it!r}" for name, it in self._asdict().items() if name != "secret")
        return f"Config({', '.join(shown)})"

    @property
    def signature(self) -> str:
        """Tell whether another rank has the same secret, without telling the secret."""
        if not self.secret:
            return ""
        from hashlib import blake2b

        return blake2b(self.secret, digest_size=8).hexdigest()


def networks() -> tuple[tuple[bytes, int], ...] | None:
    """Return what may connect though no rank is there; None: everyone, unchecked.

    Each is an address of 16 bytes, an IPv4 address mapped to IPv6, and the number of its bits
    that count.
    """
    text = os.environ.get("RMAEXT_ADMIT", "")
    if text == "everyone":
        return None
    found = []
    for word in text.replace(",", " ").split():
        import ipaddress

        try:
            it = ipaddress.ip_network(word, strict=False)
        except ValueError:
            raise ValueError(
                f"RMAEXT_ADMIT={text!r}: must be addresses or networks (10.0.0.0/8) with commas "
                'between them, or "everyone"'
            ) from None
        mapped = b"" if it.version == 6 else bytes(10) + b"\xff\xff"
        found.append((mapped + it.network_address.packed, 8 * len(mapped) + it.prefixlen))
    return tuple(found)


def secret() -> bytes:
    """Return 64 bytes made of the file that RMAEXT_SECRET names; b"" if it names none."""
    path = os.environ.get("RMAEXT_SECRET", "")
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as exc:
        raise ValueError(f"RMAEXT_SECRET={path!r}: {exc.strerror}") from None
    if len(text) < 16 or mode & 0o077:
        raise ValueError(
            f"RMAEXT_SECRET={path!r}: must be a file of 16 bytes or more that only its owner may "
            "read: (umask 077; head -c 32 /dev/urandom > FILE)"
        )
    from hashlib import blake2b

    return blake2b(text, person=b"rmaext signature").digest()


def is_known(name: str) -> bool:
    """Tell whether a variable of the environment is none of ours, or one that is read."""
    return not name.startswith("RMAEXT_") or name in VARIABLES or name.startswith(_OF_TESTS)


def tell_of_unknown() -> None:
    """Report variables that look like ours and are not: once each, to `logging`."""
    for name in sorted(name for name in os.environ if not is_known(name)):
        if name in _told:
            continue
        import difflib

        _told.add(name)
        near = difflib.get_close_matches(name, VARIABLES, 1, 0.75)
        text = f"did you mean {near[0]}?" if near else f"there are {', '.join(VARIABLES)}"
        log.warning("%s is set, which rmaext does not know: %s", name, text)


def tell_of_launcher() -> None:
    """Report that MPI knows of no other process, but a launcher does: once, and by its first."""
    for size, rank in _LAUNCHERS.items():
        first = os.environ.get(size, "1") != "1" and os.environ.get(rank) == "0"
        if first and size not in _told:
            from .launcher import misfit

            _told.add(size)
            log.warning("%s", misfit(size))


def moves_mpi() -> bool:
    """Tell whether a thread shall move MPI while the program computes."""
    return _choice("RMAEXT_MPI_PROGRESS", ("0", "1")) == "1"


def records() -> bool:
    """Tell whether this process shall keep a record of what it does."""
    return _choice("RMAEXT_RECORD", ("0", "1")) != "0"


def trace_bytes() -> int:
    """Return the bytes that a rank's trace may take."""
    text = os.environ.get("RMAEXT_TRACE_SIZE", "1024")
    try:
        value = int(float(text) * (1 << 20))
    except (ValueError, OverflowError):
        value = 0
    if value < 1 << 16:
        raise ValueError(f"RMAEXT_TRACE_SIZE={text!r}: must be a number of MiB, at least 0.0625")
    return value


def hints_from() -> int:
    """Return from how many operations on a hint is given that others would be faster; 0: none."""
    text = os.environ.get("RMAEXT_HINTS", "100000")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"RMAEXT_HINTS={text!r}: must be a number of operations, or 0")
    return min(int(text), 1 << 62)


def checks() -> str:
    """Return whether the program's own mistakes shall be looked for: "" if not."""
    value = _choice("RMAEXT_CHECK", ("0", "1", "error"))
    return "" if value == "0" else value


def whole_tracebacks() -> bool:
    """Tell whether tracebacks shall show all frames of rmaext."""
    return _choice("RMAEXT_TRACEBACK", ("full",)) == "full"


def reports_differences() -> bool:
    """Tell whether rmaext.compat shall report calls that differ from MPI's."""
    return _choice("RMAEXT_COMPAT", ("warn",)) == "warn"


_LONGEST = 1e9  # seconds, 31 years: what is longer is no limit


def cuda_library() -> bytes:
    """Return the file of CUDA's driver, which is opened when an array of a device appears."""
    return os.fsencode(os.environ.get("RMAEXT_CUDA") or "libcuda.so.1")


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
