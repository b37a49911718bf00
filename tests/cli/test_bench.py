# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext bench, run as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import launch
import pytest

FORMS = ["rmaext.Window.allocate", "rmaext.Window", "MPI.Win.Allocate", "MPI.Win.Create"]
UNITS = {"us": "lower", "ms": "lower", "GB/s": "higher", "M/s": "higher"}
JOB = {"limit": 30, "quick": True, "rounds": 2, "sizes": [8], "forms": FORMS[:1]}


def bench(*arguments: str, limit: float = 50, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rmaext", "bench", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    env = launch.environment()
    return subprocess.run(command, env=env, text=True, timeout=limit, check=False, **pipes)


def check_document(document: dict[str, Any], cases: list[str]) -> None:
    assert document["format"] == 1
    assert document["machine"]["cores"] == os.cpu_count()
    assert [job["case"] for job in document["jobs"]] == cases
    for job in document["jobs"]:
        assert (job["error"], job["route"], job["thread_level"]) == (None, "node", "multiple")
        assert job["ranks"] == 2
        assert job["facts"]["mpi"].startswith(("MPICH", "Open MPI", "Intel MPI"))
        assert job["facts"]["thread_level"] == "multiple"
        assert job["figures"]
        for figure in job["figures"]:
            check_figure(figure)


def check_figure(figure: dict[str, Any]) -> None:
    values = figure["values"]
    assert [name for name in values if name.startswith(("rmaext", "MPI"))] == FORMS
    assert figure["better"] == UNITS[figure["unit"]]
    for entry in values.values():
        assert 0 < entry["value"] < 1e6
        assert entry["samples"] >= len(entry["rounds"]) >= 1
        assert min(entry["rounds"]) <= entry["value"] * 1.001
        assert max(entry["rounds"]) >= entry["value"] * 0.999
    others = [name for name in values if not name.startswith("rmaext")]
    pairs = [(ratio["of"], ratio["to"]) for ratio in figure["ratios"]]
    assert pairs == [(mine, other) for mine in FORMS[:2] for other in others]
    for ratio in figure["ratios"]:
        both = [values[ratio[key]]["rounds"] for key in ("of", "to")]
        if figure["better"] == "lower":
            both.reverse()
        speeds = [a / b for a, b in zip(*both, strict=True)]
        assert ratio["times_as_fast"] == pytest.approx(median(speeds))


def check_image(path: Path) -> None:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 500
    assert height > 200
    assert len(data) > 10_000  # a blank one has some 2,000


@pytest.mark.timeout(200)
@pytest.mark.parametrize("cases", ["latency,bandwidth,creation,progress", "rate,random,fence"])
def test_quick(cases: str, tmp_path: Path) -> None:
    file, plots = tmp_path / "figures.json", tmp_path / "plots"
    options = ["--json", str(file), "--plot", str(plots)]
    done = bench("--quick", "--cases", cases, *options, limit=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    check_document(json.loads(file.read_text()), cases.split(","))
    images = sorted(plots.iterdir())
    assert [path.name for path in images] == sorted(
        f"{case}-node-multiple-2ranks.png" for case in cases.split(",")
    )
    for path in images:
        check_image(path)
    for case in cases.split(","):
        assert f"\n{case}: " in "\n" + done.stdout
    for form in FORMS:
        assert f" = {form}" in done.stdout


@pytest.mark.timeout(200)
def test_start(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = bench("--quick", "--cases", "start", "--rounds", "1", "--json", str(file), limit=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    (job,) = json.loads(file.read_text())["jobs"]
    assert job["error"] is None
    imports, window = job["figures"]
    assert list(imports["values"])[:2] == ["import rmaext", "import mpi4py.MPI"]
    assert [window["operation"], *window["values"]] == ["first window", *FORMS]
    for figure in job["figures"]:
        assert all(0 < entry["value"] < 1e5 for entry in figure["values"].values())


def test_sizes_and_level(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = ["--thread-level", "single", "--sizes", "16,4Ki", "--rounds", "3"]
    done = bench("--quick", "--cases", "latency", *options, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (job,) = json.loads(file.read_text())["jobs"]
    assert job["facts"]["thread_level"] == "single"
    assert [(figure["operation"], figure["size"]) for figure in job["figures"]] == [
        ("put + flush", 16),
        ("put + flush", 4096),
        ("get", 16),
        ("get", 4096),
        ("fetch_add", 8),
    ]
    assert all(len(e["rounds"]) == 3 for f in job["figures"] for e in f["values"].values())


def test_bar_on_a_terminal() -> None:
    master, slave = pty.openpty()
    done = bench("--quick", "--cases", "creation", stderr=slave)
    os.close(slave)
    assert done.returncode == 0, done.stdout
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "0%" in shown
    assert "creation, node, multiple" in shown
    assert "█" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--cases", "latency,gossip"], "no case 'gossip': choose from latency,"),
        (["--sizes", "12"], "multiple of 8"),
        (["--sizes", "1Gi"], "not a size: '1Gi'"),
        (["--sizes", "65Mi"], "at most 64 MiB"),
        (["--rounds", "0"], "'0' is not a positive number"),
        (["--route", "sea"], "invalid choice: 'sea'"),
        (["--qui"], "unrecognized arguments: --qui"),
    ],
)
def test_bad_arguments(arguments: list[str], text: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: python -m rmaext" in done.stderr
    assert text in done.stderr


def test_help() -> None:
    done = bench("--help")
    assert done.returncode == 0
    for word in ("--json", "--plot", "--quick", "latency, bandwidth, rate", "not under mpiexec"):
        assert word in done.stdout
    general = subprocess.run(
        [sys.executable, "-m", "rmaext", "--help"], capture_output=True, text=True, timeout=30
    )
    assert general.returncode == 0
    assert "measure rmaext next to MPI.Win" in general.stdout


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    done = bench("--json", str(tmp_path / "missing" / "file"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such file" in done.stderr


COMMAND = """
    import sys
    from rmaext.__main__ import main
    sys.argv[1:] = ["bench", "--plot", "/nowhere"]
    sys.exit(main())
"""


def test_without_matplotlib(run_python: Any) -> None:
    done = run_python("import sys\nsys.modules['matplotlib'] = None\n" + dedented(COMMAND))
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'rmaext[bench]'" in done.stderr


def test_under_mpiexec(mpirun: Any) -> None:
    done = mpirun(1, COMMAND)
    assert done.returncode == 2
    assert "start it without mpiexec" in done.stderr


@pytest.mark.parametrize("case", ["latency", "bandwidth"])
def test_wrong_data_is_a_failure(case: str, mpirun: Any, tmp_path: Path) -> None:
    code = """
        import rmaext
        from rmaext.bench import cases, job
        rmaext.Window.put = lambda *arguments: None
        job.main(cases.CASES)
    """
    settings = json.dumps({**JOB, "case": case})
    done = mpirun(2, code, settings, str(tmp_path))
    assert done.returncode != 0
    assert not (tmp_path / "result").exists()
    text = (tmp_path / "error").read_text()
    assert text.startswith("WrongDataError: rank 1: rmaext.Window.allocate, put")


def test_time_limit(run_python: Any) -> None:
    code = """
        import time
        from rmaext.bench import run
        sleep = "import time; print('here', flush=True); time.sleep(60)"
        job = run.Job("none", program=("-c", sleep))
        start = time.monotonic()
        try:
            run.launch(run.mpi_in_use(), job, 1)
        except run.JobError as exc:
            print(exc)
        print(time.monotonic() - start < 15)
    """
    done = run_python(code)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], lines[-1]) == (0, "not done after 1 s", "True")
    assert "here" in lines


def dedented(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())
