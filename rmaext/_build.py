# SPDX-License-Identifier: BSD-3-Clause
"""Builds `rmaext._lib` from csrc/; the declarations are read from rmaext.h.

The same shared object holds `rmaext._hot`, so that both share the C code.
"""

from pathlib import Path

import numpy
from cffi import FFI

HOT = [
    "_hot.c",
    "_hot_args.c",
    "_hot_compat.c",
    "_hot_derived.c",
    "_hot_end.c",
    "_hot_grequest.c",
    "_hot_index.c",
    "_hot_many.c",
    "_hot_notify.c",
    "_hot_numba.c",
    "_hot_op.c",
    "_hot_prepared.c",
    "_hot_update.c",
    "_hot_win.c",
    "_hot_window.c",
]
CSRC = Path("csrc")
SOURCES = [
    "address.c",
    "answer.c",
    "arena.c",
    "attach.c",
    "await.c",
    "begin.c",
    "bell.c",
    "cells.c",
    "complete.c",
    "direct.c",
    "element.c",
    "error.c",
    "executor.c",
    "extent.c",
    "fabric.c",
    "gate.c",
    "guard.c",
    "guest.c",
    "incoming.c",
    "jit.c",
    "key.c",
    "knock.c",
    "lanes.c",
    "library.c",
    "lock.c",
    "many.c",
    "members.c",
    "memory.c",
    "message.c",
    "mpi.c",
    "near.c",
    "notify.c",
    "op.c",
    "origin.c",
    "outgoing.c",
    "pages.c",
    "place.c",
    "post.c",
    "progress.c",
    "range.c",
    "receive.c",
    "record.c",
    "region.c",
    "request.c",
    "rma.c",
    "runs.c",
    "serve.c",
    "signals.c",
    "sleep.c",
    "slot.c",
    "storage.c",
    "strided.c",
    "survey.c",
    "team.c",
    "update.c",
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
    sources=[f"rmaext/{name}" for name in HOT] + [str(CSRC / name) for name in SOURCES],
    depends=["rmaext/_hot.h", *map(str, CSRC.glob("*.h"))],
    include_dirs=[str(CSRC), numpy.get_include()],
    py_limited_api=False,  # rmaext/_hot*.c need more
    # A CFLAGS of the user's takes the place of Python's own flags, NDEBUG among them.
    define_macros=[("NDEBUG", None)],
    # A product and a sum are rounded each, as NumPy's are: clang fuses them on aarch64.
    extra_compile_args=[
        *("-std=c11", "-O2", "-g", "-Wall", "-fvisibility=hidden", "-ffp-contract=off"),
    ],
    libraries=["dl", "pthread"],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
