# SPDX-License-Identifier: BSD-3-Clause
"""No loop of a try block ends with a jump that its handlers do not guard; see jumps.py.

Where this fails, let the loop be `while True` with its `if ...: break` at the start and a plain
statement at its end, or give the loop or the comprehension a function of its own.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys

import launch
import pytest
from support import jumps

import rmaext

PRODUCT = os.path.dirname(rmaext.__file__)
SHAPES = {
    "while": "while wait():\n            look()",
    "for": "for i in wait():\n            if i:\n                look()",
    "chained": "for i in wait():\n            if 1 < i < 3:\n                look()",
    "yield": "for i in wait():\n            if i:\n                yield i",
    "comprehension": "x = [i for i in wait() if i]",
}
# That the loop ends as a call does, on all releases.
GUARDED = "while True:\n            if wait():\n                break\n            look()"


def program(shape: str) -> str:
    text = f"def f(wait, look, end):\n    {{}}\n        {shape}\n"
    return text.format("with end:") + text.format("try:") + "    finally:\n        end()\n"


def pythons() -> list[str]:
    """Return the interpreters here of releases that do so."""
    versions = "3.12", "3.13", "3.14", "3.15"
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    known = [it for v in versions for it in glob.glob(f"{root}/versions/{v}.*/bin/python")]
    return known + [path for v in versions if (path := shutil.which(f"python{v}"))]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_seen(shape):
    found = [*jumps.unguarded(program(SHAPES[shape]), "it")]
    release = sys.version_info[:2]
    assert bool(found) == ((3, 12) <= release < ((3, 14) if shape == "while" else (4,))), found
    assert not [*jumps.unguarded(program(GUARDED), "it")]


def test_this_python():
    done = subprocess.run([sys.executable, jumps.__file__, PRODUCT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_others():
    if not pythons():
        pytest.skip("no CPython from 3.12 on is here")
    for python in pythons():
        done = subprocess.run([python, jumps.__file__, PRODUCT], capture_output=True, text=True)
        if "pyenv: " in done.stderr:  # a shim of one that is not chosen
            continue
        assert done.returncode == 0, f"{python}\n{done.stdout}{done.stderr}"
        shapes = [program(shape) for shape in (*SHAPES.values(), GUARDED)]
        code = (
            f"from support.jumps import unguarded as u; print([len([*u(s, '')]) for s in {shapes}])"
        )
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, cwd=launch.ROOT / "tests"
        )
        assert not done.returncode, f"{python} {done.stderr}"
        *counts, guarded = json.loads(done.stdout)
        assert all(counts[1:]), (python, counts)  # of `while` not with 3.14
        assert not guarded
