# SPDX-License-Identifier: BSD-3-Clause
"""The last rank is killed at a random moment while all use a table; the others go on.

    mpiexec -n 3 python dict_killed.py SEED [nodes] [wide]

With "nodes" each rank pretends to be on a node of its own. Needs a launcher that lets the
survivors run. They leave by os._exit: MPI_Finalize would wait.
"""

from __future__ import annotations

import faulthandler
import math
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Hashable

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
seed, wide = int(sys.argv[1]), "wide" in sys.argv
if "nodes" in sys.argv:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

from support.linearizable import Call, entry, linearizable  # noqa: E402
from support.processes import wait_for_end  # noqa: E402
from support.tables import Recorder, dawdling  # noqa: E402

import rmaext  # noqa: E402
from rmaext.containers import Dict  # noqa: E402

VICTIM = comm.size - 1
SECONDS = 1.0  # that survivors work after the kill
BOUND = 10.0  # the longest call
WIDE = np.dtype([("a", "i8"), ("b", "i8"), ("c", "i8")])
rng = random.Random(100 * seed + comm.rank)


def pack(number: int) -> object:
    return np.array((number,) * 3, WIDE)[()] if wide else number


def unpack(value: object) -> int:
    if not wide:
        return int(value)
    assert value["a"] == value["b"] == value["c"], f"torn: {value}"
    return int(value["a"])


def model(value: Hashable, name: str, argument: object) -> tuple[object, Hashable]:
    """As `entry`, with a call that takes a half-made entry away."""
    return (None, None) if name == "lost" else entry(value, name, argument)


def work(table: Dict, keys: list[int], recorder: Recorder, end: float) -> tuple[float, int]:
    """Call at random; return the longest call, and how many were lost."""
    names = ["get", "set", "pop", "setdefault"] + ([] if wide else ["add"])
    slowest, lost, turn = 0.0, 0, 0
    while time.monotonic() < end:
        turn += 1
        name, key = rng.choice(names), rng.choice(keys)
        start = time.monotonic()
        try:
            recorder.call(name, key, 1_000_000 * (comm.rank + 1) + turn)
        except rmaext.PeerLostError:
            lost += 1
        slowest = max(slowest, time.monotonic() - start)
    return slowest, lost


def main() -> None:
    table = Dict(comm, "i8", WIDE if wide else "i8", 12, timeout=30)
    keys = list(range(12))
    here = [key for key in keys if table.rank_of(key) != VICTIM]
    assert 0 < len(here) < len(keys)
    comm.Barrier()
    dawdling(table, seed + comm.rank, often=0.05).__enter__()
    if comm.rank == VICTIM:
        delay = random.Random(seed).uniform(0.05, 0.5)
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        work(table, keys, Recorder(table, pack, unpack), time.monotonic() + 60)
    before = Recorder(table, pack, unpack)
    slowest, lost = work(table, keys, before, time.monotonic() + SECONDS)
    wait_for_end(pids[VICTIM])  # it may be late
    end = time.monotonic() + 2 * BOUND
    # On its node what it held may be read until its death is noticed.
    while "nodes" in sys.argv and not lost:
        assert time.monotonic() < end, "no call failed for what the victim held"
        slow, lost = work(table, keys, before, time.monotonic() + SECONDS / 4)
        slowest = max(slow, slowest)
    SURVIVORS.Barrier()
    after = Recorder(table, pack, unpack)
    slow, lost = work(table, here, after, time.monotonic() + SECONDS)
    assert not lost, "a call for what a living rank holds"
    assert max(slow, slowest) < BOUND, f"a call took {max(slow, slowest):.1f} s"
    check(SURVIVORS.allgather(after.calls), here)
    # All that is on living ranks can be used: nothing is locked, busy or lost for ever.
    SURVIVORS.Barrier()
    if comm.rank == 0:
        for key in here:
            table[key] = pack(key)
    SURVIVORS.Barrier()
    assert [unpack(table[key]) for key in here] == here
    mine = [key for key in here if table.rank_of(key) == comm.rank]
    assert sorted(key for key, _ in table.local_items() if key in here) == mine
    SURVIVORS.Barrier()
    try:
        len(table)
    except rmaext.PeerLostError:
        pass
    else:
        raise AssertionError("len without the victim")
    assert unpack(table[here[0]]) == here[0], "the table is over"
    SURVIVORS.Barrier()
    try:
        table.close()
    except rmaext.PeerLostError:
        pass
    text = f"rank {comm.rank}: slowest {max(slow, slowest):.2f} s, {len(after.calls)} calls, OK\n"
    os.write(1, text.encode())
    SURVIVORS.Barrier()


def check(histories: list[list[tuple[int, Call]]], keys: list[int]) -> None:
    """Require that what survivors did after the death is linearizable, from some state on."""
    for key in keys:
        calls = [call for history in histories for k, call in history if k == key]
        states = {None, *(call.result for call in calls)}
        lost = Call(0.0, math.inf, "lost", None, None)  # what the victim was about to make
        assert any(linearizable([*calls, lost], model, state) for state in states), (
            f"key {key}: {sorted(calls)}"
        )


SURVIVORS = comm.Split(comm.rank != VICTIM, comm.rank)
pids = comm.allgather(os.getpid())
faulthandler.dump_traceback_later(40, exit=True)
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
os._exit(0)
