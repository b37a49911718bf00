# SPDX-License-Identifier: BSD-3-Clause
"""Containers on another device than the first one."""

from __future__ import annotations

import os

import launch
import pytest
from support.jobs import PRELUDE

CODE = (
    PRELUDE
    + """
from device import device_array as cuda
from rmaext._memory import cuda as reader
from rmaext.containers import Array, NodeArray, Store

cuda.begin(1)
how = {"timeout": 20, "device": "cuda:1"}
with Store(world, np.ones((3, 2)) if rank == 0 else [], **how) as store:
    assert (store.get([2]) == 1).all()
    assert store.local.shape == ((0, 3)[rank == 0], 2)
    assert store.local.__dlpack_device__() == (2, 1)
for rows in 0, 3:
    with NodeArray(world, rows, fill=lambda array: None, **how) as table:
        assert table.array.__dlpack_device__() == (2, 1)
        assert table.array.shape == (rows,)
with rmaext.Window.allocate(world, 3, device="cuda:1") as win:
    nothing = win.local[3:]
    assert win.get(1 - rank, 0, 0, out=nothing) is nothing
    assert win.rget(1 - rank, out=nothing).wait() is nothing
    win.put(nothing, 1 - rank)
    win.fence()
with NodeArray.assemble(world, np.ones((rank, 2))[:0], **how) as table:
    assert table.array.shape == (0, 2)
with Array(world, (1,), **how) as array:
    array[0] = 5
    assert array[0] == 5
print("end", flush=True)
"""
)


def test_ranks_with_nothing_there(mpirun):
    if not os.environ["RMAEXT_CUDA"].startswith(str(launch.ROOT)):
        pytest.skip("there is one GPU")
    done = mpirun(2, CODE, env={"PYTHONPATH": launch.PYTHONPATH, "DEVICE_COUNT": "2"})
    assert done.stdout.splitlines().count("end") == 2, done.stdout + done.stderr
