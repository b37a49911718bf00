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

# Parameters: the one that rmaext prefers (a wheel's 2.x, with native tcp), and the system's
# (1.x, with tcp;ofi_rxm); that with `make test-matrix` only.
_THERE = pytest.mark.skipif(not Path(SYSTEM).exists(), reason=f"no {SYSTEM}")
PREFERRED = pytest.param("", id="preferred")
SYSTEM_THERE = pytest.param(SYSTEM, id="system", marks=_THERE)
BOTH = [PREFERRED, SYSTEM_THERE]
BOTH_IN_MATRIX = [
    PREFERRED,
    pytest.param(SYSTEM, id="system", marks=(_THERE, pytest.mark.matrix)),
]

MRAIL = {
    "FI_PROVIDER": "tcp;ofi_rxm;ofi_mrail",
    "FI_OFI_MRAIL_ADDR": "127.0.0.1,127.0.0.1",
}
