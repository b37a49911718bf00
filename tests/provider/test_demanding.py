# SPDX-License-Identifier: BSD-3-Clause
"""The demanding test provider: it can fail, and rmaext gives it no cause to complain.

The whole RMA suite runs over it with `make test-demanding`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from launch import mpirun, run_python
from support import demanding
from support.libraries import LIBRARIES

SELF_TEST = demanding.FOLDER / "selftest"
SOURCE = Path(__file__).parent
SMALL = {"FI_OFI_RXM_MSG_RX_SIZE": "128", "FI_OFI_RXM_MSG_TX_SIZE": "128"}


def cases() -> dict[str, list[str]]:
    """Return what each case of the self-test provokes, as it says itself."""
    text = (SOURCE / "selftest" / "main.c").read_text()
    lines = re.findall(r'^\t\{"(\w+)", "[^"]*", "[^"]*",\s+"([^"]*)"', text, re.M)
    return {name: kinds.split() for name, kinds in lines}


@pytest.mark.parametrize(
    "library", ["system", pytest.param("wheel", marks=pytest.mark.matrix)], scope="module"
)
@pytest.mark.parametrize("case", cases())
def test_provider_counts_each_violation(case: str, library: str, tmp_path: Path) -> None:
    other = LIBRARIES["wheel" if library == "system" else "system"]
    done = subprocess.run(
        [SELF_TEST, LIBRARIES[library], case, other],
        env={
            "FI_PROVIDER_PATH": str(demanding.FOLDER),
            "DEMAND_REPORT": str(tmp_path / "report"),
            **SMALL,
        },
        timeout=30,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (events,) = demanding.reports(tmp_path)
    assert set(cases()[case]) <= set(events[-1]["violations"])
    assert events[-1]["event"] == "exit"
    assert events[-1]["left"] == 0


def test_each_violation_has_a_case() -> None:
    kinds = re.search(
        r"define DM_VIOLATIONS\(X\)(.*?)\n\n", (SOURCE / "demand" / "demand.h").read_text(), re.S
    )
    assert kinds
    provoked = {kind for case in cases().values() for kind in case}
    assert provoked == set(re.findall(r"X\((\w+)\)", kinds[1]))


WORK = """
    import numpy as np, rmaext
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    peer = (world.rank + 1) % world.size
    array = np.zeros(100_000)
    with rmaext.Window(world, array) as win:
        win.put(np.arange(100_000.0), peer)
        win.fence()
        assert (array == np.arange(100_000)).all()
        out = np.zeros(1000)
        win.get(peer, 1, out=out)
        assert (out == np.arange(1, 1001)).all()
        win.fence()
        win.fetch_add(1.0, peer, 5)
        win.fence()
        assert array[5] == 6
        if world.rank == 0:
            print(win.fabric.provider, win.fabric.mr_mode, win.fabric.key_size)
"""


@pytest.mark.parametrize("mode", ["verbs", "cxi", "raw:4096@300", "none:1"])
def test_job_keeps_the_rules(mode: str, tmp_path: Path) -> None:
    env = demanding.environment(mode, tmp_path) | {"RMAEXT_ROUTE": "fabric"}
    done = mpirun(2, WORK, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("demand ")
    assert not list(demanding.complaints(tmp_path, 2))


def test_complaints(tmp_path: Path) -> None:
    """A job that breaks a rule, leaves things or dies is noticed."""
    assert list(demanding.complaints(tmp_path, 1)) == ["0 processes of 1 used the provider"]
    (tmp_path / "report.1").write_text(
        '{"event": "violation", "kind": "key", "errno": 1, "text": "key 0x7"}\n'
        '{"event": "exit", "left": 1, "calls": {}, "violations": {"key": 1}}\n'
    )
    (tmp_path / "report.2").write_text('{"event": "open", "calls": {}, "violations": {}}\n')
    text = "\n".join(demanding.complaints(tmp_path, 2))
    assert re.fullmatch(r"violation: key: key 0x7\n1 domains left .*\nno report at exit.*", text)


def test_faults_are_typed(tmp_path: Path) -> None:
    """A registration that fails is the exception of its code, and the next one works."""
    env = demanding.environment("none", tmp_path) | {"RMAEXT_ROUTE": "fabric"}
    done = run_python(
        """
        import os
        import numpy as np, rmaext
        from mpi4py import MPI
        rmaext.Window(MPI.COMM_SELF, np.zeros(8)).close()
        os.environ["DEMAND_FAULT"] = "regattr:*:EKEYREJECTED"
        try:
            rmaext.Window(MPI.COMM_SELF, np.zeros(8))
        except rmaext.RmaError as error:
            print(type(error).__name__, error)
        del os.environ["DEMAND_FAULT"]
        rmaext.Window(MPI.COMM_SELF, np.zeros(8)).close()
        """,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fi_mr_regattr" in done.stdout
    assert not list(demanding.complaints(tmp_path, 1))


def test_failing_completions(tmp_path: Path) -> None:
    """What the provider reports as failed is an error of that operation, and of no other."""
    env = demanding.environment("efa", tmp_path) | {"RMAEXT_ROUTE": "fabric"}
    done = run_python(
        """
        import os
        import numpy as np, rmaext
        from mpi4py import MPI
        with rmaext.Window(MPI.COMM_SELF, np.arange(100)) as win:
            for name, failing in {
                "get": lambda: win.get(0, 0, 5),
                "put": lambda: (win.put(np.arange(100), 0), win.flush(0)),
                "add": lambda: win.fetch_add(5, 0, 3),
            }.items():
                os.environ["DEMAND_FAULT"] = "completion:*:EIO"
                try:
                    failing()
                except rmaext.RmaError as error:
                    print(name, error.errno)
                del os.environ["DEMAND_FAULT"]
                assert win.get(0, 1, 1)[0] == 1
        """,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["get", "5", "put", "5", "add", "5"]
    assert not list(demanding.complaints(tmp_path, 1))


@pytest.mark.parametrize("longest", [16_300, 20_000, 32_767, 32_768, 40_000])
def test_short_messages(longest: int, tmp_path: Path) -> None:
    """All of a long put arrives where the provider takes it in pieces only."""
    env = demanding.environment("none", tmp_path)
    env |= {"RMAEXT_ROUTE": "fabric", "DEMAND_MAX_MSG": str(longest)}
    done = run_python(
        """
        import numpy as np, rmaext
        from mpi4py import MPI
        count = 40_000
        with rmaext.Window(MPI.COMM_SELF, np.zeros(count)) as win:
            values = np.arange(1.0, count + 1)
            for put in win.put, lambda *args: win.rput(*args).wait():
                put(values, 0)
                win.flush(0)
                assert (win.local == values).all()
                values += count
            win.put(values[:4095], 0)  # a copy
            win.flush(0)
            assert (win.local[:4095] == values[:4095]).all()
            win.local[:] = values
            assert (win.get(0) == values).all()
            old = win.get_accumulate(np.ones(count), 0)
            assert (old == values).all()
            assert (win.local == values + 1).all()
            win.put_many(0, np.arange(count), values)
            assert (win.get_many(0, np.arange(count)) == values).all()
            win.put_notify(values[:4000], 0, 0)
            win.wait_notify(0)
        """,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(demanding.complaints(tmp_path, 1))


def test_too_short_messages(tmp_path: Path) -> None:
    """Who could not be sent an answer is told so when it opens the network."""
    env = demanding.environment("none", tmp_path)
    env |= {"RMAEXT_ROUTE": "fabric", "DEMAND_MAX_MSG": "16000"}
    done = run_python(
        """
        import numpy as np, rmaext
        from mpi4py import MPI
        try:
            rmaext.Window(MPI.COMM_SELF, np.zeros(8))
        except rmaext.RmaError as error:
            print(error)
        """,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "messages of 16000 bytes" in done.stdout


@pytest.mark.parametrize("count", [1, 128, 100_000])
def test_registration_is_off_the_data_path(count: int, tmp_path: Path) -> None:
    """However often a buffer is used, it is registered once, or copied."""
    registrations = []
    for times in (2, 40):
        folder = tmp_path / str(times)
        folder.mkdir()
        env = demanding.environment("verbs", folder) | {"RMAEXT_ROUTE": "fabric"}
        done = run_python(
            """
            import sys
            import numpy as np, rmaext
            from mpi4py import MPI
            times, count = map(int, sys.argv[1:])
            buffer = np.ones(count, "i8")
            with rmaext.Window(MPI.COMM_SELF, np.zeros(count, "i8")) as win:
                for _ in range(times):
                    win.put(buffer, 0)
                    win.flush(0)
                    win.get(0, 0, count, out=buffer)
                    win.fetch_add(1, 0, 0)
            """,
            str(times),
            str(count),
            env=env,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(demanding.complaints(folder, 1))
        assert demanding.calls(folder, "read") >= [times]
        registrations += demanding.calls(folder, "regattr")
    assert registrations[0] == registrations[1] > 0


def test_many_on_a_view_leaves_nothing(tmp_path: Path) -> None:
    """As many elements as drop the GIL: view and window are entered and left alike."""
    env = demanding.environment("none", tmp_path) | {"RMAEXT_ROUTE": "fabric"}
    done = run_python(
        """
        import numpy as np, rmaext
        from mpi4py import MPI
        with rmaext.Window(MPI.COMM_SELF, np.zeros(100)) as win:
            view = win.subwindow(3, 40)
            view.accumulate_many(np.zeros(3000, "i8"), np.arange(3000) % 37, 1.0)
            view.flush()
        """,
        env=env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(demanding.complaints(tmp_path, 1))
