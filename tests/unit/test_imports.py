# SPDX-License-Identifier: BSD-3-Clause
"""What programs that the suite does not run import of rmaext is there: fuzzers, benchmarks, ..."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys

import launch
import pytest

FOLDERS = ["tests", "benchmarks", "examples", "docs"]
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((launch.ROOT / folder).rglob("*.py"))
    if "rmaext" in path.read_text()
]


def there(module, name):
    """Whether a name can be imported from a module."""
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(launch.ROOT)))
def test_what_is_imported_is_there(path):
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module
            if module.partition(".")[0] == "rmaext":
                names = [alias.name for alias in node.names]
                missing += [f"{module}.{name}" for name in names if not there(module, name)]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "rmaext":
                    importlib.import_module(alias.name)
    assert not missing


LATE = """
import sys
import mpi4py.MPI, numpy
before = set(sys.modules)
import rmaext
print(*sorted(set(sys.modules) - before))
"""


def test_what_few_programs_need_is_imported_late():
    """Each of these takes a millisecond or more, of which the first window needs nothing."""
    env = {**os.environ, "MPI4PY_RC_INITIALIZE": "0"}
    command = [sys.executable, "-c", LATE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    found = set(done.stdout.split())
    assert "rmaext._window.window" in found
    assert not found & {"asyncio", "difflib", "pathlib", "secrets", "socket", "urllib", "_hashlib"}
    assert not found & {"rmaext._record.snapshot", "rmaext._record.verdict", "rmaext.compat"}
