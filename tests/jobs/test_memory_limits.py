# SPDX-License-Identifier: BSD-3-Clause
"""Jobs in a memory cgroup, as Slurm and docker make them: MemoryError, and nobody is killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import launch
import pytest

LIMIT = 1 << 30  # MPI and Python take some of it
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A new one within the own one, where this user may make one."""
    unified = not V1.is_dir()
    top = V2 if unified else V1
    mine = "0::" if unified else ":memory:"
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    below = next((line for line in lines if mine in line), ":/").rpartition(":")[2]
    group = top / below.strip("/") / f"rmaext-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        limit = group / ("memory.max" if unified else "memory.limit_in_bytes")
        if not limit.exists():
            pytest.skip("the memory controller is not on for new cgroups")
        limit.write_text(str(LIMIT))
        yield group
    finally:
        for _ in range(100):  # the last process may not be gone yet
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@pytest.mark.parametrize("size", [1, 3])
def test_too_much_is_memory_error(size):
    with memory_cgroup() as group:
        program = launch.ROOT / "tests/jobs/programs/crowded.py"
        args, env = (str(LIMIT), str(group / "cgroup.procs")), {"PYTHONPATH": launch.PYTHONPATH}
        done = launch.mpirun(size, program, *args, env=env, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("OK") == size, done.stdout + done.stderr
