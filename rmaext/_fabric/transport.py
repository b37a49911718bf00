# SPDX-License-Identifier: BSD-3-Clause
"""The library of the transport that RMAEXT_TRANSPORT names: libfabric, or UCX."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any

from .._native._lib import ffi, lib
from .._runtime import locks
from .._runtime.config import Config
from .._runtime.failures import check
from .._runtime.log import log
from ..errors import LibraryError
from .library import Candidate, Library, loaded, mr_mode_text, open_library, system

__all__ = ["Ucx", "open_transport"]

_SONAME = "libucp.so.0"


class Ucx:
    """One opened UCX; what it has is what a `Library` has."""

    def __init__(self, path: str, unrestricted: bool) -> None:
        self.path = path
        self.shared = path in loaded(os.path.basename(path))
        handle = ffi.new("rmaext_library **")
        code = lib.rmaext_ucx_open(os.fsencode(path), unrestricted, handle)
        check(code, f"UCX {path}")
        self.handle: Any = handle[0]
        version = ffi.new("char[16]")
        lib.rmaext_ucx_version(self.handle, version)
        self.version: str = ffi.string(version).decode()
        log.info("UCX %s: %s", self.version, path)

    def candidates(self, provider: str, mr_basic: bool) -> list[Candidate]:
        """Return the one endpoint there may be: UCX chooses devices and transports itself."""
        devices: list[str] = []
        with contextlib.suppress(OSError):
            devices = sorted(os.listdir("/sys/class/infiniband"))
        return [Candidate("ucx", ",".join(devices), "", "", 0)]

    def survey(self, provider: str, mr_basic: bool) -> dict[str, Any]:
        """Return what an endpoint is like, which is opened for that."""
        options = ffi.new("struct rmaext_fabric_options *")
        name = options.provider = ffi.new("char[]", b"ucx")
        fabric = ffi.new("rmaext_fabric **")
        check(lib.rmaext_fabric_open(self.handle, options, fabric))
        found = ffi.new("struct rmaext_fabric_info *")
        lib.rmaext_fabric_describe(fabric[0], found)
        check(lib.rmaext_fabric_close(fabric))
        del name
        return {
            "mr_mode": mr_mode_text(found.mr_mode),
            "key_size": int(found.key_size),
            "max_msg_size": int(found.max_msg_size),
            "wait_fd": bool(found.wait_fd),
        }

    def settings(self) -> dict[str, dict[str, str]]:
        """Return the variables of UCX that are set."""
        return {
            name: {"value": value, "help": ""}
            for name, value in sorted(os.environ.items())
            if name.startswith("UCX_")
        }


_opened: dict[tuple[str, bool], Ucx] = {}
_opening = locks.lock()


def open_transport(config: Config) -> Library | Ucx:
    """Open the library that windows take; each once a process."""
    if config.transport != "ucx":
        return open_library(config.library, config.provider)
    with _opening:
        key = config.ucx, config.ucx_any
        known = _opened.get(key)
        # a signal handler may be faster
        return known or _opened.setdefault(key, Ucx(_place(config.ucx), config.ucx_any))


def _place(wanted: str) -> str:
    """Return the path of the libucp to open.

    MPI's, if it has loaded one: the libraries of a second one, which have the same names,
    would be mixed with the first one's. Else the one that RMAEXT_UCX names, a conda
    environment's, or the system's.
    """
    mapped = next(iter(loaded(_SONAME)), "")
    if mapped and wanted == _SONAME:
        wanted = mapped  # the loader gives that one, whatever else there is
    same = os.path.realpath(wanted) == os.path.realpath(mapped)
    if mapped and wanted and not same and os.path.basename(wanted).startswith("libucp.so"):
        text = (
            f"RMAEXT_UCX={wanted}: MPI has loaded {mapped}, beside which it cannot be: unset it; "
            "if MPI's is too old, unset RMAEXT_TRANSPORT, or use an MPI with UCX 1.20"
        )
        raise LibraryError(errno.EBUSY, text)
    folders = [f"{sys.base_prefix}/lib"] if os.path.isdir(f"{sys.base_prefix}/conda-meta") else []
    there = (f"{folder}/{_SONAME}" for folder in [*folders, *system()])
    found = wanted or mapped or next(filter(os.path.exists, there), "")
    if not found:
        raise LibraryError(
            errno.ENOENT,
            "no UCX found: install one (Debian: libucx0, conda: ucx), set RMAEXT_UCX to the path "
            "of a libucp.so.0, or unset RMAEXT_TRANSPORT",
        )
    return found
