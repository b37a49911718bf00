# SPDX-License-Identifier: BSD-3-Clause
"""Tests over memory of devices, but for those of the tests' libcuda itself, need RMAEXT_CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS = pytest.mark.skipif(
    "RMAEXT_CUDA" not in os.environ, reason="make test-device, or test-gpu, names one"
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == HERE and item.path.name != "test_driver.py":
            item.add_marker(NEEDS)


@pytest.fixture(scope="module")
def cuda():
    """Return the arrays of RMAEXT_CUDA, the context of whose first device is current then."""
    from device import device_array

    device_array.begin()
    return device_array
