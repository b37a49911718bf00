# SPDX-License-Identifier: BSD-3-Clause
"""A stranger, who is another user of the host, takes the beacon's name of a rank that has left."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import launch
import pytest
from support import netns
from support.libraries import BOTH_IN_MATRIX

from rmaext._comm.host import Beacon

# Each name of a beacon is taken as soon as its owner has closed it.
STRANGER = """
import os, socket, sys, time
mine, seen, looks, end = {}, set(), False, time.monotonic() + 50
def names():
    lines = open("/proc/self/net/unix").read().split("\\n")
    words = [word for line in lines for word in line.split()[7:]]
    return {word[1:] for word in words if word.startswith("@rmaext-" + sys.argv[2])}
while time.monotonic() < end:
    now = names()
    for name in seen - now - set(mine):
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            taken.bind("\\0" + name)
        except OSError:  # /proc may leave one out while others come and go
            continue
        mine[name] = taken
        print("taken", os.getuid(), flush=True)
    seen |= now
    if len(seen) >= int(sys.argv[1]) and not looks:
        looks = True
        print("looks", flush=True)
    time.sleep(0.001)
"""
USER = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


def stranger(beacons: int, name: str, *enter: str) -> subprocess.Popen[str]:
    # the machine's Python: another user may not read the environment's
    command = [*enter, *USER, "/usr/bin/python3", "-c", STRANGER, str(beacons), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def read(it: subprocess.Popen[str], ready: Path, said: list[str]) -> None:
    """Note what the stranger says, and tell the ranks once it looks."""
    for line in it.stdout:
        said.append(line)
        if line == "looks\n":
            ready.touch()


@pytest.fixture(autouse=True)
def _possible():
    if os.geteuid() or shutil.which("setpriv") is None or not Path("/usr/bin/python3").exists():
        pytest.skip("no other user here: it takes root, setpriv and /usr/bin/python3")


def test_a_name_that_a_stranger_takes():
    beacon = Beacon()
    with stranger(1, beacon.name) as it:
        try:
            assert it.stdout.readline() == "looks\n"
            beacon.close()
            assert it.stdout.readline() == "taken 65534\n"
            assert not Beacon.visible(beacon.name)
            assert not any(Beacon.visible_of([beacon.name] * 8))  # asked otherwise
        finally:
            it.kill()


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("route", ["direct", "fabric"])
def test_a_rank_that_a_stranger_hides(mpirun, route, library, tmp_path):
    """It left by an exception; those who wait in fence learn of it all the same."""
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(1) as (only,):
        enter = ["nsenter", f"--net=/proc/{only.pid}/ns/net"]
        with stranger(2, "", *enter) as it:
            ready = tmp_path / "ready"
            reader = threading.Thread(target=read, args=(it, ready, said := []))
            reader.start()
            env = {"RMAEXT_LIBFABRIC": library or None, "PYTHONPATH": launch.PYTHONPATH}
            env["RMAEXT_ROUTE"] = "fabric" if route == "fabric" else None
            try:
                program = launch.ROOT / "tests/jobs/programs/beacon.py"
                done = mpirun(2, program, str(only.pid), str(ready), env=env, timeout=40)
                end = time.monotonic() + 10
                while "taken 65534\n" not in said and time.monotonic() < end:
                    time.sleep(0.01)  # a stranger that is late takes it now
            finally:
                it.kill()
                reader.join()
    assert "taken 65534\n" in said
    assert "PeerLostError after" in done.stdout, done.stdout + done.stderr
