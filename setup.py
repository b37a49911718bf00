# SPDX-License-Identifier: BSD-3-Clause
"""Describes the extension; the package is described in setup.cfg."""

import os
import re
import shutil
import subprocess
from runpy import run_path

from setuptools import setup
from setuptools.command.build_ext import build_ext

NEEDED = {  # header: what it is, and its packages
    "stdio.h": "the C library's headers (Debian: libc6-dev; Fedora: glibc-devel)",
    "Python.h": "this Python's headers (Debian: python3-dev; Fedora: python3-devel)",
    "rdma/fi_domain.h": "libfabric's headers (Debian: libfabric-dev; Fedora: libfabric-devel; "
    "conda: libfabric-devel), or their folder in CPATH",
}


class checked_build_ext(build_ext):  # noqa: N801 (the name of a command)
    """Ends with a sentence, not with the compiler's errors, where something is missing."""

    def pre_run(self, ext, ffi):
        """Before cffi writes its C file: writes declared.h beside that, of this Python only."""
        run_path("rmaext/_native/declared.py")["make"](self.build_temp)
        ext.include_dirs.append(self.build_temp)

    def build_extensions(self):
        command = self.compiler.compiler_so
        if not shutil.which(command[0]):
            raise SystemExit(
                f"rmaext: there is no C compiler {command[0]!r}: install one "
                "(Debian and Fedora: gcc), or name yours in CC."
            )
        folders = [f"-I{folder}" for folder in self.compiler.include_dirs]
        for header, what in NEEDED.items():
            done = subprocess.run(
                [*command, *folders, "-E", "-xc", "-"],
                input=f"#include <{header}>\n",
                text=True,
                env={**os.environ, "LC_ALL": "C"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            # Other errors are the compiler's to tell.
            if re.search(f"error: '?{re.escape(header)}", done.stderr):
                raise SystemExit(f"rmaext: {command[0]} does not find <{header}>: install {what}.")
        super().build_extensions()


setup(
    cffi_modules=["rmaext/_native/build.py:ffibuilder"],
    cmdclass={"build_ext": checked_build_ext},
)
