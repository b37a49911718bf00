# SPDX-License-Identifier: BSD-3-Clause
"""The order in which make does its work where nothing has been set up yet."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import ROOT, environment

COMPILES = re.compile(r"^(gcc|clang) .*\.c |setup\.py")


def plan(*arguments):
    """Return what make would do in a tree where nothing has been made, one job at a time."""
    command = ["make", "--dry-run", "--always-make", "VENV=no/venv", *arguments]
    env = environment({"MAKEFLAGS": None, "MAKELEVEL": None, "CC": None})
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("goal", ["demo", "test", "test-2", "provider", "check-c", "asan", "fuzz"])
def test_set_up_comes_before_whatever_is_compiled(goal):
    lines = plan(goal)
    first = next(i for i, line in enumerate(lines) if COMPILES.search(line))
    assert any(line.startswith(".ci/environment ") for line in lines[:first]), lines[: first + 1]


def test_whatever_is_compiled_waits_for_the_set_up():
    """With several jobs at once, too: each rule that compiles has the set-up before it."""
    goals = ["test", "asan", "tsan", "fuzz"]
    rules, recipe = {}, None
    for line in plan("--print-data-base", *goals):
        if match := re.match(r"(build/[^:=]*):(?!=)(.*)", line):
            recipe = rules.setdefault(match[1], [match[2], ""])
        elif line.startswith("\t") and recipe:
            recipe[1] += line
        elif not line:
            recipe = None
    before = {name: set(words.replace("|", "").split()) for name, (words, _) in rules.items()}

    def waits(name):
        return "no/venv/.runs" in before[name] or any(
            waits(other) for other in before[name] if other in rules
        )

    compiled = [name for name, (_, text) in rules.items() if re.search(r"\$\(C(C|LANG)\)", text)]
    assert len(compiled) > 150
    assert [name for name in compiled if not waits(name)] == []


def test_what_declares_c_methods_is_compiled_anew():
    lines = plan("--print-data-base", "build")
    (rule,) = (line for line in lines if line.startswith("no/venv/.extension:"))
    declared = "_native/cmethods.pyi", "_native/declared.py", "typing.py"
    assert {f"rmaext/{name}" for name in declared} <= {*rule.split()}


def test_a_build_leaves_its_tree_as_it_is(tmp_path):
    """So one may be read-only, or built by two Pythons at once. The compiler here only fails."""
    tree, built = tmp_path / "tree", tmp_path / "built"
    shutil.copytree(ROOT / "csrc", tree / "csrc")
    shutil.copytree(
        ROOT / "rmaext", tree / "rmaext", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    before = {*tree.rglob("*")}
    command = [sys.executable, "-B", "setup.py", "-q", "build_ext", "--build-temp", built]
    env = environment({"CC": "false"})
    done = subprocess.run(
        [*command, "--build-lib", built], cwd=tree, env=env, capture_output=True, text=True
    )
    assert "_lib.c" in done.stderr, done.stderr  # it is what was to be compiled
    assert "#define PY_DOC_window_put " in (built / "declared.h").read_text()
    assert {*tree.rglob("*")} == before


def test_an_editor_can_compile_a_file_of_each_folder():
    venv = Path(sys.prefix)
    command = ["make", "-o", f"{venv}/.runs", f"VENV={venv}", "compile_commands.json"]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    listed = json.loads((ROOT / "compile_commands.json").read_text())
    folders = {Path(entry["file"]).parent: entry for entry in listed}
    assert {Path("csrc/python"), Path("csrc/net"), Path("tests/c/net")} <= folders.keys()
    for entry in folders.values():
        command = [*entry["arguments"], "-fsyntax-only"]
        subprocess.run(command, cwd=entry["directory"], timeout=60, check=True)


PIP = """\
Looking in indexes: https://pypi.org/simple
Processing /opt/wheels/cffi-2.1.1-cp311-cp311-manylinux_2_17_x86_64.whl
Collecting numpy>=2
  Downloading numpy-2.5.0-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (62 kB)
  Downloading numpy-2.5.0-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)
  Downloading https://files.pythonhosted.org/packages/ab/mpich-5.0.2-py3-none-any.whl (13.3 MB)
  Using cached mpi4py-4.1.2-cp311-cp311-manylinux_2_5_x86_64.whl (1.4 MB)
  Downloading old-1.0.tar.gz (3 kB)
  Building editable for rmaext (pyproject.toml): started
  Building editable for rmaext (pyproject.toml): finished with status 'done'
Installing collected packages: numpy, cffi
Installing collected packages: {}
""".format(", ".join(f"package{i}" for i in range(30)))
STEPS = """\
pip has cffi 2.1.1
pip downloads numpy 2.5.0 (16.9 MB)
pip downloads mpich 5.0.2 (13.3 MB)
pip has mpi4py 4.1.2
pip downloads old 1.0 (3 kB)
compiling the extension, which takes half a minute
pip installs numpy, cffi
pip installs 30 packages
"""


def test_the_set_up_shows_the_steps_of_pip():
    """A line each, with the seconds since the set-up began."""
    start = int(time.time()) - 61
    command = [ROOT / ".ci" / "progress", str(start)]
    said = subprocess.check_output(command, input=PIP, text=True, timeout=30)
    found = [re.fullmatch(r"rmaext: +(\d+) s  (.*)", line) for line in said.splitlines()]
    assert all(found), said
    assert "".join(f"{match[2]}\n" for match in found) == STEPS
    assert all(int(match[1]) >= 61 for match in found)


def test_the_demo_installs_no_tools_of_ours():
    lines = plan("demo")
    assert not [line for line in lines if line.startswith(".ci/environment no/venv test")]
    assert not [line for line in lines if "build/provider" in line]
