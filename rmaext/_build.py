# SPDX-License-Identifier: BSD-3-Clause
"""Builds `rmaext._lib` from csrc/; the declarations are read from rmaext.h."""

from pathlib import Path

from cffi import FFI

CSRC = Path("csrc")
SOURCES = [
    "address.c",
    "atomic.c",
    "error.c",
    "fabric.c",
    "gate.c",
    "key.c",
    "knock.c",
    "library.c",
    "memory.c",
    "near.c",
    "op.c",
    "progress.c",
    "rma.c",
    "signals.c",
    "sleep.c",
    "slot.c",
    "window.c",
]


def declarations() -> str:
    """Return the part of rmaext.h that is the ABI."""
    text = (Path(__file__).parent.parent / CSRC / "rmaext.h").read_text()
    return text.split("/* cdef begin */")[1].split("/* cdef end */")[0]


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "rmaext._lib",
    '#include "rmaext.h"',
    sources=[str(CSRC / name) for name in SOURCES],
    include_dirs=[str(CSRC)],
    extra_compile_args=["-std=c11", "-O2", "-g", "-Wall", "-fvisibility=hidden"],
    libraries=["dl", "pthread"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
