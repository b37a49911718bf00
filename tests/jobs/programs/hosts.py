# SPDX-License-Identifier: BSD-3-Clause
"""Ranks on several hosts, played by network namespaces.

    mpiexec -n 4 python hosts.py PREFIX PIDS [IFACE]

Rank i enters the namespace of the i-th of the comma-separated pids (0: none),
runs the demo's two parts, and requires that its endpoint has an address that
begins with PREFIX and listens nowhere else. IFACE "absent" asks for an
interface that is not there.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import numpy as np
from mpi4py import MPI
from support import netns

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
world = MPI.COMM_WORLD
prefix, pids = sys.argv[1], [int(pid) for pid in sys.argv[2].split(",")]
iface = sys.argv[3] if len(sys.argv) > 3 else ""
if pids[world.rank]:
    netns.enter(pids[world.rank])
    os.environ["RMAEXT_NODE"] = f"host{pids.index(pids[world.rank])}"
if iface:
    os.environ["RMAEXT_IFACE"] = iface

import rmaext  # noqa: E402


def listens_at(address: str) -> None:
    """Require that the process's new listening sockets have one address."""
    new = {text for inode, text in netns.listening().items() if inode not in before}
    assert new, "no listening socket"
    assert all(text.split()[1] == address for text in new), new


def refused() -> None:
    """Every rank gets the same error, whose text names what there is."""
    try:
        rmaext.Window(world, np.zeros(4))
    except rmaext.NoProviderError as exc:
        texts = world.allgather(str(exc))
        assert len(set(texts)) == 1, texts
        assert iface in texts[0], texts
        assert prefix in texts[0], texts
    else:
        raise AssertionError(f"RMAEXT_IFACE={iface} is ignored")


def run() -> None:
    import heat
    import taskfarm

    with rmaext.Window(world, np.zeros(4, "i8")) as win:
        fabric = win.fabric
        assert fabric is not None
        host = fabric.address.rpartition("/")[2].rpartition(":")[0]
        assert host.startswith(prefix), fabric.address
        listens_at(host)
        hosts = world.allgather(host)
        assert len(set(hosts)) == len(set(pids)), hosts
        assert {win.route(r) for r in range(world.size)} <= {"direct", "cma", "fabric"}
        with rmaext.Window(world, np.zeros(4, "i8")) as another:
            assert another.memory.key != win.memory.key
        keys = world.gather(win.memory.key.hex())
    result = heat.solve(world, 64, 96, 60)
    assert heat.check(world, result, 64, 96, 60), "heat: wrong"
    farm = taskfarm.run(world, 48, 96)
    assert taskfarm.check(world, farm, 48, 96), "task farm: wrong"
    # those of one host keep to themselves
    local = world.Split(pids.index(pids[world.rank]), world.rank)
    if local.size > 1 and not iface:
        with rmaext.Window(local, np.zeros(1, "i8")) as win:
            assert win.fabric is not None
            assert "//127.0.0.1:" in win.fabric.address, win.fabric.address
            assert win.fetch_add(1, 0) in range(local.size)
            win.fence()
    if world.rank == 0:
        print(f"libfabric {fabric.version}, {hosts}, keys {','.join(keys)}: OK")


before = set(netns.listening())
try:
    (refused if iface == "absent" else run)()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    world.Abort(1)
