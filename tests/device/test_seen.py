# SPDX-License-Identifier: BSD-3-Clause
"""What tools say of devices: `python -m rmaext info`, and the record and trace of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import launch


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


def test_info_counts_devices():
    found = json.loads(output("-m", "rmaext", "info", "--json", DEVICE_COUNT="3"))
    assert found["devices"] == {"cuda": 3, "library": os.environ["RMAEXT_CUDA"]}
    text = output("-m", "rmaext", "info", DEVICE_COUNT="3")
    assert "\n  cuda       3; arrays there are mapped on a node" in text


def test_info_says_why_there_is_none():
    found = json.loads(output("-m", "rmaext", "info", "--json", RMAEXT_CUDA="/no/libcuda.so"))
    assert "/no/libcuda.so" in found["devices"]["error"]
    text = output("-m", "rmaext", "info", RMAEXT_CUDA="/no/libcuda.so")
    assert "\n  cuda       none (" in text
    text = output("-m", "rmaext", "info", DEVICE_COUNT="0")
    assert "\n  cuda       none (" in text
    assert "see CUDA_VISIBLE_DEVICES" in text


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
    win.fence()
    for it in (host, win): it.close()
"""


def test_a_trace_names_the_device(tmp_path):
    output("-c", textwrap.dedent(PROGRAM), RMAEXT_TRACE=str(tmp_path))
    (names,) = tmp_path.rglob("*.names.jsonl")
    entries = [json.loads(line) for line in names.read_text().splitlines()]
    windows = [it for it in entries if "window" in it and not it["hidden"]]
    assert [it["dtype"] for it in windows] == ["<c16 on cuda:0", "<f8"]
