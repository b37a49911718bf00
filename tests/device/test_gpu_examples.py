# SPDX-License-Identifier: BSD-3-Clause
"""The examples for GPUs, over the tests' libcuda."""

from __future__ import annotations

import sys

import launch
import numpy as np
import pytest

pytestmark = pytest.mark.mpi


@pytest.fixture
def cupy(monkeypatch):
    from device import little_cupy

    monkeypatch.syspath_prepend(str(launch.ROOT / "examples"))
    monkeypatch.setitem(sys.modules, "cupy", little_cupy)


@pytest.mark.parametrize("lines", [30, 3, 1])
def test_gpu_heat(cupy, comm, monkeypatch, lines):
    """With more ranks than lines, too."""
    import gpu_heat

    monkeypatch.setattr(gpu_heat, "ROWS", lines)
    rows, where = gpu_heat.solve(comm)
    assert comm.allreduce(len(rows)) == lines
    assert np.allclose(rows, gpu_heat.serial()[where])
    assert not np.allclose(gpu_heat.serial(), gpu_heat.plate()[1:-1])


def test_gpu_parameter_server(cupy, comm):
    import gpu_parameter_server as server

    found, wanted = server.train(comm), server.serial()
    for name in server.SHAPES:
        assert np.allclose(found[name], wanted[name], atol=1e-3)
    assert np.allclose(wanted["bias"], [1, 2, 3])
    assert not np.allclose(server.serial(20)["bias"], [1, 2, 3])  # it takes most of them
