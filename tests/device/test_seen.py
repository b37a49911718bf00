# SPDX-License-Identifier: BSD-3-Clause
"""What tools say of devices: `python -m rmaext info`, and the record and trace of a program."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import launch
import pytest
from support.hung import hanging, job, why

SIMULATED = pytest.mark.skipif(
    not os.environ.get("RMAEXT_CUDA", "").startswith(str(launch.ROOT)),
    reason="no call fails at will",
)


def output(*args, **env):
    done = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": launch.PYTHONPATH, **env},
        timeout=100,
        check=False,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_info_and_doctor_find_devices():
    found = json.loads(output("-m", "rmaext", "info", "--json", DEVICE_COUNT="3"))["devices"]
    assert (found["cuda"], found["library"]) == (3, os.environ["RMAEXT_CUDA"])
    assert len(set(found["devices"])) == 3
    assert all(re.fullmatch(r"GPU(-[0-9a-f]+){5}", name) for name in found["devices"])
    assert re.fullmatch(r"\d+\.\d", found["driver"])
    assert found["ipc"] is True
    words = f"3 devices, driver {found['driver']}, {found['library']}; "
    words += "two processes map each other's memory (CUDA IPC); that of pools (cudaMallocAsync) "
    words += "its owner copies for others\n"
    text = output("-m", "rmaext", "info", DEVICE_COUNT="3")
    assert f"\n  cuda       {words}  cuda:0     {found['devices'][0]}\n" in text
    text = output("-m", "rmaext", "doctor", "--limit", "50", DEVICE_COUNT="3")
    assert f"\nok       cuda: {words}" in text


def test_doctor_tries_the_network_first(tmp_path):
    """A driver that does not open spends no time of the network's."""
    driver, folder = tmp_path / "libcuda.so.1", tmp_path / "jobs"
    folder.mkdir()
    os.mkfifo(driver)
    before = folder.stat().st_mtime_ns
    command = [sys.executable, "-m", "rmaext", "doctor", "--limit", "50"]
    env = {**os.environ, "PYTHONPATH": launch.PYTHONPATH}
    env |= {"RMAEXT_CUDA": str(driver), "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as doctor:
        number = -1
        while number < 0 and doctor.poll() is None:
            with contextlib.suppress(OSError):  # nobody opens it yet
                number = os.open(driver, os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.01)
        assert number >= 0
        assert folder.stat().st_mtime_ns > before  # there was a job
        os.close(number)
        text = doctor.communicate(timeout=60)[0]
    assert re.search(r"\nnone     cuda: .*file too short", text)


@SIMULATED
def test_the_file_behind_a_link(tmp_path):
    """As a driver is installed."""
    file, link = tmp_path / "libcuda.so.550.54", tmp_path / "libcuda.so.1"
    file.write_bytes(Path(os.environ["RMAEXT_CUDA"]).read_bytes())
    link.symlink_to(file.name)
    found = json.loads(output("-m", "rmaext", "info", "--json", RMAEXT_CUDA=str(link)))
    assert found["devices"]["library"] == str(file)


@SIMULATED
@pytest.mark.parametrize(
    ("call", "words"),
    [("cuIpcOpenMemHandle_v2:1:201", "map: CUDA_"), ("cuIpcGetMemHandle:1:801", "export: ")],
)
def test_what_keeps_processes_from_mapping(call, words):
    """In one sentence, with what to do; and nothing else is the worse for it."""
    found = json.loads(output("-m", "rmaext", "info", "--json", DEVICE_FAIL=call))["devices"]
    assert found["ipc"] is False
    assert found["ipc_error"].startswith(words)
    text = output("-m", "rmaext", "doctor", "--limit", "50", DEVICE_FAIL=call)
    (line,) = (line for line in text.splitlines() if " cuda: " in line)
    assert line.startswith("fails    cuda: 1 device, driver ")
    assert f"two processes do not map each other's memory: {words}" in line
    assert line.endswith("--ipc=host and --pid=host may help, and WSL has no CUDA IPC")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RMAEXT_CUDA": "/no/libcuda.so"}, "CUDA's driver library does not open: /no/libcuda.so"),
        ({"DEVICE_COUNT": "0"}, "see CUDA_VISIBLE_DEVICES"),
    ],
)
def test_why_there_is_none(env, words):
    found = json.loads(output("-m", "rmaext", "info", "--json", **env))
    assert words in found["devices"]["error"]
    assert re.search(rf"\n  cuda       none \(.*{words}", output("-m", "rmaext", "info", **env))
    text = output("-m", "rmaext", "doctor", "--limit", "50", **env)
    assert re.search(rf"\nnone     cuda: .*{words}", text)


PROGRAM = """
    import numpy as np
    from mpi4py import MPI
    from device import device_array
    import rmaext
    device_array.begin()
    comm = MPI.COMM_WORLD
    win = rmaext.Window(comm, device_array.Array.from_numpy(np.zeros(3, "c16")))
    host = rmaext.Window(comm, np.zeros(3))
    win.put([1, 2], 0)
    win.put(device_array.Array.from_numpy(np.zeros(3, "c16")), 0)
    win.fence()
    for it in (host, win): it.close()
"""


def test_a_trace_names_the_device(tmp_path):
    output("-c", textwrap.dedent(PROGRAM), RMAEXT_TRACE=str(tmp_path))
    (names,) = tmp_path.rglob("*.names.jsonl")
    entries = [json.loads(line) for line in names.read_text().splitlines()]
    windows = [it for it in entries if "window" in it and not it["hidden"]]
    assert [it["dtype"] for it in windows] == ["<c16 on cuda:0", "<f8"]
    output("-m", "rmaext", "trace", str(names.parent))
    with gzip.open(names.parent / "trace.json.gz") as file:
        found = json.load(file)["traceEvents"]
    waits = [it for it in found if it.get("cat") == "wait"]
    assert any(it["name"] == "copy of cuda:0" for it in waits)
    assert not any(it["name"] == "container" for it in waits)


WAITING = launch.ROOT / "tests" / "device" / "programs" / "waiting.py"


def at(comment):
    (number,) = (
        i for i, text in enumerate(WAITING.read_text().splitlines(), 1) if f"# {comment}" in text
    )
    return f"{WAITING}:{number}"


@pytest.mark.parametrize(
    ("how", "route"),
    [(how, "") for how in ("put", "result", "store", "request")]
    + [(how, "fabric") for how in ("request", "any")],
)
def test_why_names_who_waits_for_a_device(how, route):
    """And since when, at which line; the others wait for that rank in turn."""
    env = {"RMAEXT_CUDA": os.environ["RMAEXT_CUDA"], "RMAEXT_ROUTE": route}
    with hanging(how, 3, WAITING, **env) as pids:
        found = job(why("--json", str(pids[0])).stdout, pids)
    one = next(rank for rank in found["ranks"] if rank["rank"] == 1)
    words = "waits for a copy from or to an array of cuda:0 since "
    assert re.match(rf"{words}\d+(\.\d)? s, at {at(how)}$", one["does"]), one
    texts = {it["kind"]: it for it in found["verdict"]}
    assert texts["unclear"]["waiting"] == [1]
    assert re.match(
        rf"rank 1 {words}.*: is a kernel still at work there\?$", texts["unclear"]["text"]
    )
    assert texts["turn"]["waiting"] == [0, 2]
    assert "ranks 0, 2 wait in fence" in texts["turn"]["text"]


@SIMULATED
@pytest.mark.parametrize("how", ["mapped", "places"])
def test_why_of_a_copy_to_mapped_memory(how):
    with hanging(how, 3, WAITING, RMAEXT_CUDA=os.environ["RMAEXT_CUDA"]) as pids:
        found = job(why("--json", str(pids[0])).stdout, pids)
    one = next(rank for rank in found["ranks"] if rank["rank"] == 1)
    assert re.match(r"waits in a put\S* to rank 0 of window", one["does"]), one
    assert one["does"].endswith(f", at {at(how)}"), one
    (text,) = (it["text"] for it in found["verdict"] if it["waiting"] == [1])
    assert text.endswith("the device with the memory is at work: is a kernel still running there?")


def test_why_on_a_device_that_hangs_at_its_owner():
    env = {"RMAEXT_CUDA": os.environ["RMAEXT_CUDA"], "RMAEXT_ROUTE": "fabric"}
    with hanging("owner", 2, WAITING, **env) as pids:
        found = job(why("--json", str(pids[0])).stdout, pids)
    (text,) = (it["text"] for it in found["verdict"] if it["waiting"] == [1])
    assert text.startswith("rank 1 waits in a get from rank 0 of window")
    assert text.endswith("the device with the memory is at work: is a kernel still running there?")
