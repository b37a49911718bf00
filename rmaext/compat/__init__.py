# SPDX-License-Identifier: BSD-3-Clause
"""The API of mpi4py's MPI.Win, over `rmaext.Window`."""

from .._runtime import tracebacks as _tracebacks
from .._runtime.config import reports_differences
from .warn import report_differences
from .win import WIN_NULL, Win

__all__ = ["WIN_NULL", "Win"]

if reports_differences():
    report_differences(Win)
_tracebacks.hide()


def __dir__() -> list[str]:
    private = (name for name in globals() if name.startswith("_"))
    return sorted({*__all__, "auto", *private})
