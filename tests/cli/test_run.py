# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext run: what python does, but for MPI.Win."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import launch
import pytest

from rmaext.compat import warn

ROOT = launch.ROOT
RUN = ["-m", "rmaext", "run"]

SHOW = """
import sys
import __main__
print(sys.argv, sys.path[0], __name__, globals().get("__file__"), "mpi4py.MPI" in sys.modules)
print(__main__.__dict__ is globals(), __spec__ and __spec__.name, __package__)
"""

REPLACED = """
from mpi4py.MPI import Win
from mpi4py import MPI
import rmaext.compat
assert MPI.Win is Win is rmaext.compat.Win, MPI.Win
assert MPI.WIN_NULL is rmaext.compat.WIN_NULL
win = MPI.Win.Allocate(8)
win.Lock(0)
win.Put(b"12345678", 0)
win.Unlock(0)
assert bytes(win.tomemory()) == b"12345678"
win.Free()
assert win == MPI.WIN_NULL
print("replaced")
"""


def python(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own."""
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=launch.environment(env),
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    "args",
    [
        ["show.py", "-m", "--x", "a b"],
        ["sub/../sub/show.py"],
        ["-m", "show", "-c", "1"],
        ["-m", "sub.show"],
        ["-m", "sub"],
        ["sub", "1"],
        ["-c", SHOW, "-m", "1"],
    ],
)
def test_program_sees_what_it_sees_under_python(tmp_path: Path, args: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("show.py", "sub/show.py", "sub/__main__.py"):
        (tmp_path / name).write_text(SHOW)
    plain = python(*args, cwd=tmp_path)
    mine = python(*RUN, *args, cwd=tmp_path)
    assert plain.returncode == 0
    assert (mine.stdout, mine.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('text')",
        "import sys; sys.exit()",
        "def f():\n    raise ValueError('x')\n\ntry:\n    f()\nfinally:\n    f()\n",
        "raise KeyboardInterrupt\n",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\nraise ValueError\n",
        "1 +\n",
        "import no_such_module\n",
        "import atexit\natexit.register(lambda: print(name))\nname = 'kept until the end'\n",
    ],
)
def test_program_ends_as_under_python(tmp_path: Path, code: str) -> None:
    (tmp_path / "program.py").write_text(code)
    plain = python("program.py", cwd=tmp_path)
    mine = python(*RUN, "program.py", cwd=tmp_path)
    assert mine.returncode == plain.returncode
    assert (mine.stdout, mine.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize("args", [["missing.py"], ["-m", "missing"]])
def test_missing_program(tmp_path: Path, args: list[str]) -> None:
    plain, mine = python(*args, cwd=tmp_path), python(*RUN, *args, cwd=tmp_path)
    assert mine.returncode == plain.returncode != 0
    assert mine.stderr == plain.stderr


def test_no_program(tmp_path: Path) -> None:
    done = python(*RUN, cwd=tmp_path)
    assert done.returncode == 2
    assert "missing" in done.stderr


@pytest.mark.parametrize("number", [0, 3])
def test_status_with_mpi(tmp_path: Path, number: int) -> None:
    done = python(*RUN, "-c", f"from mpi4py import MPI; raise SystemExit({number})", cwd=tmp_path)
    assert done.returncode == number


def test_window_is_replaced(tmp_path: Path) -> None:
    done = python(*RUN, "-c", REPLACED, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "replaced\n"), done.stderr


def test_auto(tmp_path: Path) -> None:
    done = python("-c", "import rmaext.compat.auto" + REPLACED, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "replaced\n"), done.stderr


def test_below_mpi4py_run(tmp_path: Path) -> None:
    done = python(*RUN, "-m", "mpi4py", "-c", REPLACED, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "replaced\n"), done.stderr


def test_program_decides_how_mpi_starts(tmp_path: Path) -> None:
    code = """
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    assert not MPI.Is_initialized()
    MPI.Init_thread(MPI.THREAD_FUNNELED)
    assert MPI.Query_thread() == MPI.THREAD_FUNNELED
    MPI.Win.Create(None).Free()
    """
    (tmp_path / "program.py").write_text("if True:" + code)
    done = python(*RUN, "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_exception_aborts_the_job() -> None:
    code = """
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 0:
        raise ValueError("of rank 0")
    MPI.COMM_WORLD.Barrier()
    """
    done = launch.mpirun(2, code, dropin=True)
    assert done.returncode != 0
    assert "ValueError: of rank 0" in done.stderr
    assert "rmaext" not in done.stderr


@pytest.mark.parametrize("route", ["", "fabric", "mixed"])
def test_spokes_do_not_wait_for_a_hub_that_sleeps(route: str) -> None:
    env = {"RMAEXT_ROUTE": "fabric" if route == "fabric" else None}
    node = 'RMAEXT_NODE="node $((${PMI_RANK-$PMIX_RANK} % 2))" exec "$@"'
    program = ROOT / "tests" / "cli" / "programs" / "hub.py"
    extra = ["sh", "-c", node, "sh"] if route == "mixed" else []
    done = launch.mpirun(3, program, dropin=True, env=env, timeout=50, extra_args=extra)
    assert done.returncode == 0, done.stderr
    assert "20 reads by each spoke" in done.stdout


def test_differences_are_reported_once_a_place(tmp_path: Path) -> None:
    code = (
        "from mpi4py import MPI\n"
        "win = MPI.Win.Allocate(8)\n"
        "win.Lock(0)\n"
        "for _ in range(3):\n"
        "    win.Rput(b'1', 0).Wait()\n"
        "win.Put(b'2', 0); win.Unlock(0)\n"
        "win.handle\n"
        "win.info = win.info\n"
        "win.Free()\n"
    )
    (tmp_path / "program.py").write_text(code)
    assert python(*RUN, "program.py", cwd=tmp_path).stderr == ""
    done = python(*RUN, "program.py", cwd=tmp_path, RMAEXT_COMPAT="warn")
    assert done.returncode == 0, done.stderr
    lines = [Path(line).name.split(": ")[:2] for line in done.stderr.splitlines()]
    assert lines == [
        ["program.py:5", "MPI.Win.Rput"],
        ["program.py:7", "MPI.Win.handle"],
        ["program.py:8", "MPI.Win.info"],
    ]


def test_wrong_setting_is_refused(tmp_path: Path) -> None:
    done = python("-c", "import rmaext.compat", cwd=tmp_path, RMAEXT_COMPAT="yes")
    assert done.returncode == 1
    assert "RMAEXT_COMPAT='yes'" in done.stderr


def test_documented_differences_are_those_reported() -> None:
    """Each line of the table says in its last column whether warn reports its calls."""
    text = (ROOT / "docs" / "guides" / "drop-in.md").read_text()
    rows = [row.strip("|").split("|") for row in text.splitlines() if row.startswith("|")]
    reported = set()
    for row in rows[2:]:
        if row[-1].strip() == "yes":
            reported.update(re.findall(r"`(\w+)`", row[0]))
    assert reported == set(warn.DIFFERENCES)


def test_keyboard_interrupt_is_a_signal(tmp_path: Path) -> None:
    done = python(*RUN, "-c", "raise KeyboardInterrupt", cwd=tmp_path)
    assert done.returncode == -signal.SIGINT
