# SPDX-License-Identifier: BSD-3-Clause
"""The examples for GPUs, over the tests' libcuda."""

from __future__ import annotations

import sys

import launch
import numpy as np
import pytest

pytestmark = pytest.mark.mpi


def test_gpu_heat(comm, monkeypatch):
    from device import little_cupy

    monkeypatch.syspath_prepend(str(launch.ROOT / "examples"))
    monkeypatch.setitem(sys.modules, "cupy", little_cupy)
    import gpu_heat

    rows, where = gpu_heat.solve(comm)
    assert np.allclose(rows, gpu_heat.serial()[where])
    assert not np.allclose(gpu_heat.serial(), gpu_heat.plate()[1:-1])
