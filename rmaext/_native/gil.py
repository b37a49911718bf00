# SPDX-License-Identifier: BSD-3-Clause
"""Refuses to be imported where Python runs without its global lock.

The C types of `cmethods` rely on that lock: while they look at a window, no other
thread closes it. A free-threaded build will do with the lock switched on.
"""

import sys

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "rmaext does not support Python without the GIL; "
        "on a free-threaded build set PYTHON_GIL=1, or run python -X gil=1"
    )
