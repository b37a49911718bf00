# SPDX-License-Identifier: BSD-3-Clause
"""Rank 0's connection to rank 1 is cut while an operation is on its way.

    mpiexec -n 2 python cut.py SCENARIO=ROUNDS[,...] NAMESPACE [NAMESPACE]

Each rank enters the network namespace of the process with that pid. An
operation may fail, but if it succeeds its effect must be there. The next
operations have to succeed before long.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI
from support import netns
from support.processes import stopped

BOUND = 5.0  # seconds that anything may take here
SMALL = 8  # elements: copied, put returns at once
MEDIUM = 4 << 10  # 32 KiB, still copied
LARGE = 1 << 16  # 512 KiB: put waits
SIZES = {"slow small": MEDIUM, "slow large": LARGE}  # else SMALL
COUNTER = LARGE

comm = MPI.COMM_WORLD
scenarios = dict(pair.split("=") for pair in sys.argv[1].split(","))
pids = [int(pid) for pid in sys.argv[2:]]
target_pid = comm.bcast(os.getpid(), 1)
netns.enter(pids[comm.rank % len(pids)])
os.environ["RMAEXT_ROUTE"] = "fabric"
if len(pids) > 1:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402

# ofi_rxm forgets an atomic whose answer went with the connection: that one times out
LOST = (rmaext.PeerLostError, rmaext.RmaTimeout)[: 1 + ("fetch_add" in scenarios)]
TIMEOUT = 1.0 if "fetch_add" in scenarios else BOUND

random.seed(1234)
counts: Counter[str] = Counter()
longest = 0.0


def attempt(action: Callable[[], object]) -> bool:
    """Tell whether an action succeeds; it may only raise what says that the peer is lost."""
    global longest
    start = time.monotonic()
    try:
        action()
    except LOST:
        return False
    finally:
        longest = max(longest, time.monotonic() - start)
    return True


@contextmanager
def cut_after(seconds: float) -> Iterator[None]:
    """Something else happens meanwhile."""

    def run() -> None:
        time.sleep(seconds)
        netns.cut()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def until_failure(action: Callable[[], object]) -> bool:
    return all(attempt(action) for _ in range(300))


def put_flush(data: np.ndarray, between: Callable[[], object] = lambda: None) -> None:
    win.put(data, 1)
    between()
    win.flush(1)


def put_round(scenario: str, data: np.ndarray) -> bool:
    """One cut; whether put and flush succeeded."""
    if scenario == "idle":
        netns.cut()
        return attempt(lambda: put_flush(data))
    if scenario == "between":  # mostly applied already, but the answer may be lost
        return attempt(lambda: put_flush(data, netns.cut))
    if scenario == "stopped":  # in the target's socket, not applied
        with stopped(target_pid):
            done = attempt(lambda: win.put(data, 1))
            netns.cut()
        return attempt(lambda: win.flush(1)) and done
    if scenario == "race":
        with cut_after(random.uniform(0, 0.02)):
            return until_failure(lambda: put_flush(data))
    if scenario == "slow small":  # the interface sends 32 KiB in 33 ms
        with cut_after(random.uniform(0, 0.03)):
            return attempt(lambda: put_flush(data))
    if scenario == "slow large":  # and 512 KiB in 0.5 s: the cut is inside put
        with cut_after(random.uniform(0, 0.3)):
            return attempt(lambda: put_flush(data))
    raise ValueError(scenario)


def puts(scenario: str, i: int) -> None:
    size = SIZES.get(scenario, SMALL)
    if comm.rank == 0:
        done = comm.bcast(put_round(scenario, np.full(size, i, "i8")), 0)
        counts["success" if done else "lost"] += 1
    else:
        done = comm.bcast(None, 0)
        seen = win.local[:size].copy()
        if done:
            assert (seen == i).all(), f"{scenario} {i}: success, but old data: {seen[seen != i]}"
        else:
            assert np.isin(seen, range(i + 1)).all(), seen
    comm.Barrier()


def reads(scenario: str, i: int) -> None:
    """A get that succeeds is right."""

    def read() -> None:
        out = np.full(SMALL, -1, "i8")
        win.get(1, COUNTER + 1, out=out)
        assert (out == np.arange(SMALL)).all(), out

    if comm.rank == 0:
        with cut_after(random.uniform(0, 0.02)):
            done = until_failure(read)
        counts["success" if done else "lost"] += 1


previous: list[int] = []
failures = [0]


def updates(scenario: str, i: int) -> None:
    """An update that succeeds is made once, one that fails at most once."""
    if comm.rank == 0:
        with cut_after(random.uniform(0, 0.02)):
            done = until_failure(lambda: previous.append(int(win.fetch_add(1, 1, COUNTER))))
        failures[0] += not done
        counts["success" if done else "lost"] += 1
        value = recover(COUNTER)
        assert len(set(previous)) == len(previous), "the same previous value twice"
        assert len(previous) <= value <= len(previous) + failures[0], (value, len(previous))


def again(action: Callable[[], object]) -> None:
    """Operate until it succeeds again."""
    end = time.monotonic() + BOUND
    while not attempt(action):
        counts["lost again"] += 1
        assert time.monotonic() < end, f"no operation succeeds {BOUND} s after the cut"


def recover(place: int = 0) -> int:
    """Read until it succeeds again; return what was read."""
    read: list[int] = []
    again(lambda: read.append(int(win.get(1, place, 1)[0])))
    return read[0]


def main() -> None:
    global win
    with rmaext.Window.allocate(comm, COUNTER + 1 + SMALL, "i8", timeout=TIMEOUT) as win:
        win.local[COUNTER + 1 :] = np.arange(SMALL)
        win.fence()
        if comm.rank == 0:
            recover()  # connected
        i = 0
        for scenario, rounds in scenarios.items():
            body = {"get": reads, "fetch_add": updates}.get(scenario, puts)
            counts.clear()
            for _ in range(int(rounds)):
                i += 1
                body(scenario, i)
                if comm.rank == 0:
                    recover()
            if comm.rank == 0:
                assert win.fabric is not None
                print(f"{scenario}, libfabric {win.fabric.version}: {dict(counts)}", flush=True)
        if comm.rank == 0:
            again(lambda: put_flush(np.full(1, -5)))
            assert recover() == -5
            assert longest < BOUND, f"an operation took {longest:.1f} s"
            print(f"at most {longest:.3f} s an operation, OK", flush=True)


win: rmaext.Window
try:
    main()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    comm.Abort(1)
