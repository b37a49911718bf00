# SPDX-License-Identifier: BSD-3-Clause
"""No loop of a try block ends with a conditional jump: what the handlers guard, see jumps.py.

Where this fails, let the loop be `while True` with its `if ...: break` at the start and a plain
statement at its end, or give it a function of its own.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

import launch
import pytest
from support import jumps

import rmaext

PRODUCT = os.path.dirname(rmaext.__file__)
LOOP = """
def f(wait, look, end):
    try:
        while wait():
            look()
    finally:
        end()
"""


def pythons() -> list[str]:
    """Return the interpreters here of the two releases that do so."""
    versions = "3.12", "3.13"
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    known = [it for v in versions for it in glob.glob(f"{root}/versions/{v}.*/bin/python")]
    return known + [path for v in versions if (path := shutil.which(f"python{v}"))]


def test_it_is_seen():
    assert len([*jumps.unguarded(LOOP, "loop")]) == (sys.version_info[:2] in ((3, 12), (3, 13)))


def test_this_python():
    done = subprocess.run([sys.executable, jumps.__file__, PRODUCT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_others():
    if not pythons():
        pytest.skip("neither CPython 3.12 nor 3.13 is here")
    for python in pythons():
        done = subprocess.run([python, jumps.__file__, PRODUCT], capture_output=True, text=True)
        if "pyenv: " in done.stderr:  # a shim of one that is not chosen
            continue
        assert done.returncode == 0, f"{python}\n{done.stdout}{done.stderr}"
        code = f"from support.jumps import unguarded; print(len([*unguarded({LOOP!r}, 'x')]))"
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, cwd=launch.ROOT / "tests"
        )
        assert done.stdout == "1\n", f"{python} {done.stderr}"
