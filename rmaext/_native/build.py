# SPDX-License-Identifier: BSD-3-Clause
"""Builds `rmaext._native._lib` from csrc/; the declarations are read from rmaext.h.

The same shared object holds `rmaext._native.cmethods`, so that both share the C code.
"""

import zlib
from pathlib import Path

import numpy
from cffi import FFI

ROOT = Path(__file__).parent.parent.parent
CSRC = ROOT / "csrc"
SOURCES = sorted(CSRC.glob("*/**/*.c"))
HEADERS = sorted([*CSRC.glob("*.h"), *CSRC.glob("*/**/*.h")])
STUB = ROOT / "rmaext" / "_native" / "cmethods.pyi"
DECLARED = [STUB, STUB.with_name("declared.py"), ROOT / "rmaext" / "typing.py"]


def relative(path: Path) -> str:
    """Return a path as setuptools wants it: from where setup.py is, and is run."""
    return str(path.relative_to(ROOT))


def declarations() -> str:
    """Return the part of rmaext.h that is the ABI."""
    text = (CSRC / "rmaext.h").read_text()
    return text.split("/* cdef begin */")[1].split("/* cdef end */")[0]


def number() -> int:
    """Return what tells this build from others: a checksum of all that it is made of."""
    total = 0
    for path in [*SOURCES, *HEADERS, STUB, *sorted((ROOT / "rmaext").rglob("*.py"))]:
        total = zlib.crc32(path.read_bytes(), total)
    return total


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "rmaext._native._lib",
    '#include "rmaext.h"',
    sources=[relative(path) for path in SOURCES],
    depends=[relative(path) for path in [*HEADERS, *DECLARED]],
    include_dirs=[relative(CSRC), numpy.get_include()],  # setup.py adds that of declared.h
    py_limited_api=False,  # csrc/python/ needs more
    # A CFLAGS of the user's takes the place of Python's own flags, NDEBUG among them.
    define_macros=[("NDEBUG", None), ("RMX_BUILD", str(number()))],
    # A product and a sum are rounded each, as NumPy's are: clang fuses them on aarch64.
    extra_compile_args=[
        *("-std=c11", "-O2", "-g", "-Wall", "-fvisibility=hidden", "-ffp-contract=off"),
    ],
    libraries=["dl", "pthread"],
)
