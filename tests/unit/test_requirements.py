# SPDX-License-Identifier: BSD-3-Clause
"""What is missing, too old or built for another Python is said in one sentence."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import launch
import pytest

import rmaext
from rmaext._native import needs

HERE = Path(rmaext.__file__).parent


def says(code, tmp_path, **env):
    """Import rmaext after some code, and return the last line, where the traceback is short."""
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}\nimport rmaext"
    done = launch.run_python(code, env=env)
    assert done.returncode == 1, done.stdout
    *traceback, last = done.stderr.strip().splitlines()
    assert last.startswith("ImportError: rmaext"), done.stderr
    assert "another exception" not in done.stderr  # nor "direct cause"
    inside = [line for line in traceback if "File" in line and "/needs.py" not in line]
    assert len(inside) <= 2, done.stderr  # the user's, and rmaext/__init__.py
    return last


@pytest.mark.parametrize(("name", "package", "least"), needs._PACKAGES)
def test_a_package_that_is_too_old_or_missing(name, package, least, tmp_path):
    last = says(f"import {name}; {name}.__version__ = '0.9.9'", tmp_path)
    assert f"needs {package} {least} or later and finds 0.9.9: " in last
    assert last.endswith(f"{sys.executable} -m pip install '{package}>={least}'")
    last = says(f"sys.modules['{name}'] = None", tmp_path)
    assert f"needs {package} {least} or later and finds none (" in last


def test_the_versions_are_those_that_pip_is_told():
    setup = configparser.ConfigParser()
    setup.read(launch.ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"].split("\n")
    wanted = {line.replace(" ", "") for line in lines if line}
    assert {f"{package}>={least}" for _, package, least in needs._PACKAGES} == wanted
    assert needs._version("2.1.0.dev0") == (2, 1)
    assert needs._version("1.26") < needs._version("2.0") < needs._version("10.0")


@pytest.fixture
def another(tmp_path):
    """Return a copy of the package that has no compiled part yet."""
    shutil.copytree(HERE, tmp_path / "rmaext", ignore=shutil.ignore_patterns("*.so", "bench"))
    return tmp_path


# `pip install -e` finds modules of the package for whoever lacks them, or is in the path.
NO_OTHER = (
    "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in f.__module__.lower()]; "
    f"sys.path[:] = [it for it in sys.path if it not in ('', {str(launch.ROOT)!r})]"
)


def test_the_extension_of_another_python(another):
    last = says(NO_OTHER, another)
    assert "there is none for this Python" in last
    assert "only its source" in last
    other = "_lib.cpython-39-x86_64-linux-gnu.so"
    (another / "rmaext" / "_native" / other).touch()
    assert f"only {other}" in says(NO_OTHER, another)
    (another / "rmaext" / "_native" / f"_lib{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    assert "file too short" in says(NO_OTHER, another)


def test_a_source_that_hides_the_package(another, tmp_path_factory):
    """As in a checkout after `pip install .`."""
    installed = tmp_path_factory.mktemp("site")
    shutil.copytree(HERE, installed / "rmaext", ignore=shutil.ignore_patterns("bench"))
    last = says(NO_OTHER, another, PYTHONPATH=str(installed))
    assert f"source in {another} is not compiled" in last
    assert f"installed in {installed}: start Python in another folder" in last


def test_without_an_mpi(tmp_path):
    last = says("pass", tmp_path, MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert "mpi4py loads none (cannot load MPI library" in last
    assert "pip install mpich" in last
    assert "MPI4PY_LIBMPI" in last


@pytest.mark.parametrize("command", ["info", "doctor", "bench"])
def test_commands_without_an_mpi(command):
    env = launch.environment({"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"})
    line = [sys.executable, "-m", "rmaext", command]
    done = subprocess.run(
        line, env=env, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert "cannot load MPI library" in said
    if command == "info":
        assert done.returncode == 0
        assert "provider tcp;ofi_rxm" in said
    else:
        assert done.returncode in (1, 2)
