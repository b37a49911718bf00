# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext info and doctor, as commands."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launch
import numpy as np
import pytest
from support import demanding

import rmaext.cli.info
from rmaext.cli.probe import Watch

MISSING = "/nonexistent/libfabric.so.1"


def command(*args, timeout=60, **env):
    """Run python -m rmaext in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "rmaext", *args]
        return launch._run(Path(folder), line, env, timeout)


def info(**env):
    done = command("info", "--json", **env)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_info_says_what_there_is():
    code, found = info(RMAEXT_TIMEOUT="7", FI_MR_CACHE_MAX_COUNT="31", FI_PROVIDER=None)
    assert code == 0
    assert found["format"] == 1
    import rmaext

    assert found["versions"]["rmaext"] == rmaext.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["numpy"] == np.__version__
    kind = {"mpich": "MPICH", "openmpi": "Open MPI", "intelmpi": "Intel MPI"}[launch.launcher()[1]]
    assert found["versions"]["mpi"].startswith(kind)

    used = found["libfabric"]
    assert used["path"] in [copy["path"] for copy in used["copies"]]
    assert {copy["version"][:2] for copy in used["copies"]} <= {"1.", "2."}

    rxm = next(p for p in found["providers"] if p["name"] == "tcp;ofi_rxm")
    assert rxm["mr_mode"] == "none"
    assert rxm["key_size"] == 8
    assert rxm["inject_size"] == 64  # FACTS section 3
    assert rxm["atomics"] == {"update": 2036, "fetch": 2036, "compare": 1018}
    assert rxm["wait_fd"]
    assert rxm["data_progress"] == "manual"
    assert {"127.0.0.1"} <= {end["address"] for end in rxm["endpoints"]}
    shm = next(p for p in found["providers"] if p["name"] == "shm")
    assert shm["mr_mode"] == "VIRT_ADDR"
    assert not shm["wait_fd"]

    assert found["cache"]["FI_MR_CACHE_MAX_COUNT"]["value"] == "31"
    assert {"FI_MR_CACHE_MAX_SIZE", "FI_MR_CACHE_MONITOR"} <= set(found["cache"])
    assert found["environment"]["RMAEXT_TIMEOUT"] == "7"
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert found["limits"]["locked_memory"] == (locked if locked >= 0 else None)
    assert found["limits"]["mappings"] == int(Path("/proc/sys/vm/max_map_count").read_text())
    assert found["routes"]["direct"]


def test_info_for_people():
    done = command("info")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^provider tcp \(default\)$", done.stdout, re.MULTILINE)
    assert re.search(r"mr_mode +none; keys of 8 bytes", done.stdout)
    assert "\033" not in done.stdout


@pytest.mark.parametrize(
    ("release", "mr_mode", "noted"),
    [
        ("5.4.0-150-generic", "LOCAL|VIRT_ADDR|ALLOCATED|PROV_KEY", True),
        ("5.11.22", "ALLOCATED|ENDPOINT", True),
        ("4.18.0-553.el8_10.x86_64", "LOCAL", True),
        ("5.12.0", "LOCAL|ALLOCATED", False),
        ("6.18.44", "LOCAL|ALLOCATED", False),
        ("5.4.0", "VIRT_ADDR", False),
        ("5.4.0", "none", False),
        ("unknown", "LOCAL", False),
    ],
)
def test_info_notes_what_a_fork_does(release, mr_mode, noted):
    note = rmaext.cli.info.fork_note(release, mr_mode)
    assert bool(note) == noted
    assert not noted or release in note


def test_info_says_which_copy_and_why():
    wheel = launch.wheel()
    if not os.path.exists(wheel):
        pytest.skip(f"no {wheel}")
    code, found = info(RMAEXT_LIBFABRIC=wheel)
    assert code == 0
    assert found["libfabric"]["path"] == wheel
    assert found["libfabric"]["why"] == "RMAEXT_LIBFABRIC"
    assert found["libfabric"]["version"].startswith("2.")
    assert found["libfabric"]["shared_with_mpi"]  # libmpi is linked to it


def test_info_without_a_libfabric():
    code, found = info(RMAEXT_LIBFABRIC=MISSING)
    assert code == 1
    assert MISSING in found["libfabric"]["error"]
    assert found["providers"] == []
    assert found["libfabric"]["copies"]  # those that it could name


def test_info_does_not_initialise_mpi(run_python):
    code = """
        import sys
        sys.argv[:1] = ["-m"]  # as `python -m rmaext`, which imports no more than it needs
        from rmaext.cli import info
        info.collect()
        assert "mpi4py.MPI" not in sys.modules
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


CRASHES = """
import os, sys, time
sys.argv[:1] = ["-m"]
from rmaext.cli import info
def crash(): os.abort()
def hang(): time.sleep(60)
def refuse(): raise ValueError("words")
print(info.apart(crash), info.apart(hang, limit=0.2), info.apart(refuse), info.apart(dict))
"""


def test_who_crashes_or_hangs_is_a_line(run_python):
    done = run_python(CRASHES)
    assert done.returncode == 0, done.stderr
    words = ["{'error': 'crashed: SIGABRT'}", "{'error': 'no answer within 0.2 s'}"]
    assert done.stdout.split("\n")[0] == " ".join([*words, "{'error': 'words'}", "{}"])


# -- doctor ------------------------------------------------------------------------

# One provider at most is there besides the default: each takes seconds of a busy machine.
ONE = {"FI_PROVIDER": "tcp;ofi_rxm"}
MARKS = "ok|fails|hangs|no time|none"


def doctor(*args, limit=50, **env):
    """Return its status, and the lines: name -> (mark, words)."""
    done = command("doctor", "--limit", str(limit), *args, **(ONE | env))
    assert not done.stderr, done.stderr
    *found, last = done.stdout.splitlines()
    lines = {}
    for line in found:
        mark, name, words = re.fullmatch(rf"({MARKS}) +([^:]+): (.*)", line).groups()
        lines[name] = (mark, words)
    pattern = (
        r"at       load \d+\.\d on \d+ cores?, \d+\.\d s of \S+ s(\. Not tried: (.*): --all does)?"
    )
    lines["not tried"] = re.fullmatch(pattern, last)[2]
    return done.returncode, lines


def test_doctor_finds_that_all_is_well():
    code, lines = doctor(RMAEXT_CUDA="/no/libcuda.so.1")
    assert code == 0, lines
    assert lines.pop("not tried") is None  # there is no other
    mark, words = lines.pop("cuda")
    assert mark == "none"
    assert words.startswith("devices: CUDA's driver library does not open: /no/libcuda.so.1: ")
    assert words.endswith(": install it, or name it in RMAEXT_CUDA")
    assert set(lines) == {"tcp;ofi_rxm (default)", "this node"}
    assert {mark for mark, _ in lines.values()} == {"ok"}
    words = lines["tcp;ofi_rxm (default)"][1]
    assert re.match(r"put, get, \d{3} kinds of update, \d+ us on .*teardown; mr_mode none", words)
    assert "direct" in lines["this node"][1]


def test_doctor_finds_that_targets_do_not_answer():
    code, lines = doctor(RMAEXT_PROGRESS="0")
    assert code == 1, lines
    assert lines["this node"][0] == "ok"
    mark, words = lines["tcp;ofi_rxm (default)"]
    assert mark == "hangs"
    assert re.match(r"progress: nothing came of it in \d+\.\d s in which all could run\. ", words)
    assert "RMAEXT_PROGRESS=0 keeps targets from answering" in words


def test_doctor_with_a_hidden_provider():
    code, lines = doctor(FI_PROVIDER="udp;ofi_rxd")
    assert code == 0, lines  # it is what FI_PROVIDER asks for
    assert "udp;ofi_rxd (default)" in lines
    code, lines = doctor(FI_PROVIDER="udp", RMAEXT_PROVIDER="tcp;ofi_rxm")
    assert code == 1
    mark, words = lines["tcp;ofi_rxm (default)"]
    assert mark == "fails"
    assert "does not offer it" in words
    assert "FI_PROVIDER=udp hides it" in words


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("regattr:1:SIGABRT", "open: crashed: Aborted"),
        ("write:1:SIGSEGV", "put of 8 bytes: crashed: Segmentation fault"),
        ("inject:1:SIGSEGV", "updates of bool: crashed: Segmentation fault"),  # the target
        ("close_ep:1:SIGSEGV", "teardown: crashed: Segmentation fault"),
    ],
)
def test_doctor_finds_that_a_provider_crashes(fault, words, tmp_path):
    """Wherever it does, and in whichever rank: a line, and what to do instead."""
    env = demanding.environment("none", tmp_path)
    # it lies over the other one; "this node" uses it, too
    code, lines = doctor("--all", **env, FI_PROVIDER="demand,tcp,ofi_rxm", DEMAND_FAULT=fault)
    assert code == 1
    assert set(lines) == {"demand (default)", "tcp;ofi_rxm", "this node", "cuda", "not tried"}
    assert lines["demand (default)"] == ("fails", f"{words}. RMAEXT_PROVIDER='tcp;ofi_rxm' works.")
    assert lines["tcp;ofi_rxm"][0] == "ok"


def test_doctor_with_a_broken_setting():
    code, lines = doctor("--all", RMAEXT_PROVIDER="nonsense")
    assert code == 1
    assert lines["nonsense (default)"][0] == "fails"
    assert lines["tcp;ofi_rxm"][0] == "ok"
    assert "RMAEXT_PROVIDER='tcp;ofi_rxm' works" in lines["nonsense (default)"][1]


@pytest.mark.parametrize("command", ["why", "top --once"])
def test_a_broken_setting_is_told_in_a_line(run_python, command):
    code = "import sys, rmaext.__main__ as m; sys.argv[1:] = {!r}; sys.exit(m.main())"
    done = run_python(code.format(command.split()), env={"RMAEXT_HINTS": "many"})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "RMAEXT_HINTS='many': must be a number of operations, or 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_without_a_libfabric():
    code, lines = doctor(RMAEXT_LIBFABRIC=MISSING)
    assert code == 1
    assert set(lines) == {"set-up", "not tried"}
    assert MISSING in lines["set-up"][1]
    assert "set RMAEXT_LIBFABRIC" in lines["set-up"][1]


def test_doctor_is_in_time():
    """What does not fit into the limit is said, not waited for."""
    code, lines = doctor(limit=0.01)
    assert code == 3
    mark, words = lines["set-up"]
    assert mark == "no time"
    assert words == "no answer within 0.01 s. Give it more time: --limit 30."


@pytest.mark.parametrize(
    ("fault", "step"), [("write:1:SIGSTOP", "put of 8 bytes"), ("close_ep:1:SIGSTOP", "teardown")]
)
def test_doctor_finds_that_a_process_is_stopped(fault, step, tmp_path):
    """That is no matter of time, however busy the machine is."""
    env = demanding.environment("none", tmp_path)
    code, lines = doctor(**env, FI_PROVIDER="demand,tcp,ofi_rxm", DEMAND_FAULT=fault)
    assert code == 1
    mark, said = lines["demand (default)"]
    assert mark == "hangs"
    assert re.match(rf"{step}: its process \d+ is stopped by a signal\. ", said)


@contextlib.contextmanager
def busy(number, **how):
    """Have so many processes compute."""
    line = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(line, **how) for _ in range(number)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_doctor_on_a_busy_machine():
    """Whatever it finds there to be slow, it calls nothing broken."""
    with busy(8):
        code, lines = doctor(limit=6, FI_PROVIDER=None)
    assert "udp;ofi_rxd" in lines.pop("not tried")
    marks = {mark for mark, _ in lines.values()}
    assert marks <= {"ok", "no time", "none"}, lines
    default = [mark for name, (mark, _) in lines.items() if name.endswith("(default)")]
    assert code == (0 if default == ["ok"] else 3)
    for mark, words in lines.values():
        if mark == "no time" and not words.startswith("no"):
            assert re.search(r"its processes ran for \S+ s, and waited \S+ s for a CPU\. ", words)


def watched(pids, seconds):
    """Return what is seen of processes meanwhile, and how long that was."""
    watch, begin = Watch(pids), time.monotonic()
    watch.look("step")
    while (spent := time.monotonic() - begin) < seconds:
        time.sleep(0.05)
        watch.look("step")
    return watch, spent


def test_who_waits_for_a_cpu_does_not_hang():
    """One that nobody lets run; all on one CPU, so that there are too few of them."""
    cpu = {min(os.sched_getaffinity(0))}
    here = {"preexec_fn": lambda: os.sched_setaffinity(0, cpu)}
    with busy(6, **here) as others:
        os.setpriority(os.PRIO_PROCESS, others[0], 19)
        watch, spent = watched(others[:1], 1.5)
    assert watch.free < 0.5 * spent
    assert watch.waited > watch.ran


def test_who_sleeps_could_run():
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            watch, end = Watch([process.pid]), time.monotonic() + 30
            while watch.free < 0.5 and time.monotonic() < end:
                time.sleep(0.05)
                watch.look("step")
            assert watch.free >= 0.5
            watch.look("next")
            assert watch.free == 0  # another step
        finally:
            process.kill()
