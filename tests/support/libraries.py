# SPDX-License-Identifier: BSD-3-Clause
"""The libfabrics that tests run with: the system's, and the one in the MPI's wheel."""

from __future__ import annotations

from pathlib import Path

import launch
import pytest

SYSTEM = next(
    (str(p) for p in sorted(Path("/usr/lib").glob("*-linux-gnu/libfabric.so.1"))),
    "/usr/lib64/libfabric.so.1",
)
WHEEL = launch.wheel()
LIBRARIES = {"system": SYSTEM, "wheel": WHEEL}

# Parameters: the one that rmaext prefers, and the wheel's; that with `make test-matrix` only.
PREFERRED = pytest.param("", id="preferred")
BOTH = [PREFERRED, pytest.param(WHEEL, id="wheel")]
BOTH_IN_MATRIX = [PREFERRED, pytest.param(WHEEL, id="wheel", marks=pytest.mark.matrix)]

MRAIL = {
    "FI_PROVIDER": "tcp;ofi_rxm;ofi_mrail",
    "FI_OFI_MRAIL_ADDR": "127.0.0.1,127.0.0.1",
}
