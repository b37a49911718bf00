# SPDX-License-Identifier: BSD-3-Clause
"""Windows over the network in a process with ever more room, until there is enough.

Each creation before that raises an error; the last window works. RMAEXT_ROUTE=fabric.
"""

import resource

import numpy as np
from mpi4py import MPI

import rmaext

STEP = 512 << 10


def limit_to(room: int) -> None:
    """Let the process have so many bytes more than it has; 0: any number."""
    with open("/proc/self/status") as status:
        now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + room if room else most, most))


errors: list[str] = []
win = None
while win is None:
    assert len(errors) < 1000
    limit_to((len(errors) + 1) * STEP)
    try:
        win = rmaext.Window(MPI.COMM_SELF, np.zeros(8))
    except (rmaext.RmaError, MemoryError) as exc:
        errors.append(str(exc))
    finally:
        limit_to(0)
step = "rmx_am_start" if win.fabric.provider == "tcp" else "fi_enable"
assert any(step in error for error in errors), errors
win.put(np.ones(8), 0)
win.accumulate(np.ones(8), 0)
win.flush()
assert win.route(0) == "fabric"
assert win.get(0).tolist() == [2] * 8
win.close()
print("OK")
