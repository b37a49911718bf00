# SPDX-License-Identifier: BSD-3-Clause
"""The structs of a record (csrc/rmaext.h) as NumPy's structured types, and their constants."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .._native._lib import ffi, lib

__all__ = [
    "COMM",
    "COUNTS",
    "EVENT",
    "HEADER",
    "LOCK",
    "NAME",
    "ROUTES",
    "SENT",
    "SITE",
    "THREAD",
    "WINDOW",
    "kinds",
    "printable",
    "text",
    "version",
]

NAME = "rmaext-record"  # of the memfd
ROUTES = ("direct", "cma", "fabric", "message", "ipc")  # by their numbers


def _dtype(ctype: Any) -> np.dtype[Any]:
    """Return the NumPy type of a C type."""
    if ctype.kind == "array":
        if ctype.item.cname == "char":
            return np.dtype(f"S{ctype.length}")
        return np.dtype((_dtype(ctype.item), (ctype.length,)))
    if ctype.kind != "struct":
        code = "u" if ctype.cname.startswith("u") else "i"
        return np.dtype(f"{code}{ffi.sizeof(ctype)}")
    names, fields = zip(*ctype.fields, strict=True)
    return np.dtype(
        {
            "names": names,
            "formats": [_dtype(field.type) for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": ffi.sizeof(ctype),
        }
    )


def _struct(name: str) -> np.dtype[Any]:
    return _dtype(ffi.typeof(f"struct rmaext_record_{name}"))


HEADER, EVENT, COUNTS = _struct("header"), _struct("event"), _struct("counts")
THREAD, WINDOW = _struct("thread"), _struct("window")
COMM, LOCK = _struct("comm"), _struct("lock")
SENT, SITE = _struct("sent"), _struct("site")


def version() -> str:
    """Return the version of this rmaext: it reads the records of no other."""
    return str(sys.modules["rmaext"].__version__)


def kinds(*prefixes: str) -> dict[int, str]:
    """Return the kinds of calls and events: number -> "put", "flush", ...

    Parameters
    ----------
    *prefixes : str
        Of the constants: "DID", "SERVED" or "IN"; all three by default.
    """
    found: dict[int, str] = {}
    for prefix in prefixes or ("DID", "SERVED", "IN"):
        start = f"RMAEXT_{prefix}_"
        found |= {
            int(getattr(lib, name)): name.removeprefix(start).lower()
            for name in dir(lib)
            if name.startswith(start)
        }
    return found


def text(field: bytes) -> str:
    """Return the text of an array of characters: what is before the first NUL."""
    return printable(field.split(b"\0")[0].decode(errors="replace"))


def printable(words: str) -> str:
    """Return a text of another process as a terminal may show it: in one line, no commands."""
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
