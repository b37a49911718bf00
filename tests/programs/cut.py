# SPDX-License-Identifier: BSD-3-Clause
"""Rank 0's connection to rank 1 is cut while an operation is on its way.

    mpiexec -n 2 python cut.py SCENARIO ROUNDS NAMESPACE [NAMESPACE]

Each rank enters the network namespace of the process with that pid. An
operation may fail, but if it succeeds its effect must be there. The next
operations have to succeed before long.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import netns
import numpy as np
from mpi4py import MPI

BOUND = 5.0  # seconds that anything may take here
SMALL = 8  # elements: copied, put returns at once
MEDIUM = 4 << 10  # 32 KiB, still copied
LARGE = 1 << 18  # 2 MiB: put waits

comm = MPI.COMM_WORLD
scenario, rounds = sys.argv[1], int(sys.argv[2])
pids = [int(pid) for pid in sys.argv[3:]]
target_pid = comm.bcast(os.getpid(), 1)
netns.enter(pids[comm.rank % len(pids)])
os.environ["RMAEXT_ROUTE"] = "fabric"
if len(pids) > 1:
    os.environ["RMAEXT_NODE"] = f"node{comm.rank}"

import rmaext  # noqa: E402

random.seed(1234)
counts = {"success": 0, "lost": 0, "sockets cut": 0, "lost again": 0}
longest = 0.0


def attempt(action: Callable[[], object]) -> bool:
    """Tell whether an action succeeds; it may only be PeerLostError that it raises."""
    global longest
    start = time.monotonic()
    try:
        action()
    except rmaext.PeerLostError:
        return False
    finally:
        longest = max(longest, time.monotonic() - start)
    return True


@contextmanager
def stopped() -> Iterator[None]:
    """The target does not run: what is sent waits in its socket."""
    os.kill(target_pid, signal.SIGSTOP)
    while ") T " not in Path(f"/proc/{target_pid}/stat").read_text():
        time.sleep(0.0005)
    try:
        yield
    finally:
        os.kill(target_pid, signal.SIGCONT)


@contextmanager
def cut_after(seconds: float) -> Iterator[None]:
    """Something else happens meanwhile."""

    def run() -> None:
        time.sleep(seconds)
        cut()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def cut() -> None:
    counts["sockets cut"] += netns.cut()


def put_flush(data: np.ndarray, between: Callable[[], object] = lambda: None) -> None:
    win.put(data, 1)
    between()
    win.flush(1)


def put_round(i: int) -> bool:
    """One cut; whether put and flush succeeded."""
    data = np.full(SIZES[scenario], i, "i8")
    if scenario == "idle":
        cut()
        return attempt(lambda: put_flush(data))
    if scenario == "between":  # mostly applied already, but the answer may be lost
        return attempt(lambda: put_flush(data, cut))
    if scenario == "stopped":  # in the target's socket, not applied
        with stopped():
            done = attempt(lambda: win.put(data, 1))
            cut()
        return attempt(lambda: win.flush(1)) and done
    if scenario == "race":
        with cut_after(random.uniform(0, 0.02)):
            done = True
            for _ in range(300):
                done = attempt(lambda: put_flush(data))
                if not done:
                    break
        return done
    if scenario == "slow small":  # the interface sends 32 KiB in 65 ms
        with cut_after(random.uniform(0, 0.03)):
            return attempt(lambda: put_flush(data))
    if scenario == "slow large":  # and 2 MiB in 0.4 s, so the cut is inside put
        with cut_after(random.uniform(0, 0.2)):
            return attempt(lambda: put_flush(data))
    raise ValueError(scenario)


SIZES = {"idle": SMALL, "between": SMALL, "stopped": SMALL, "race": SMALL}
SIZES |= {"slow small": MEDIUM, "slow large": LARGE}


def recover() -> int:
    """Operate until it succeeds again; returns how often it did not."""
    end = time.monotonic() + BOUND
    failures = 0
    while not attempt(lambda: win.get(1, 0, 1)):
        failures += 1
        assert time.monotonic() < end, f"no operation succeeds {BOUND} s after the cut"
    return failures


def puts(i: int) -> None:
    if comm.rank == 0:
        done = put_round(i)
        counts["success" if done else "lost"] += 1
        comm.send(done, 1)
        comm.recv(None, 1)
        counts["lost again"] += recover()
    else:
        done = comm.recv(None, 0)
        seen = win.local[: SIZES[scenario]].copy()
        comm.send(None, 0)
        if done:
            assert (seen == i).all(), f"round {i}: success, but old data: {seen}"
        else:
            assert np.isin(seen, (i - 1, i) if not i else range(i + 1)).all(), seen


def gets_and_updates(i: int) -> None:
    """A get that succeeds is right; an update that succeeds is made once, else at most once."""
    if comm.rank == 0:
        with cut_after(random.uniform(0, 0.02)):
            for k in range(200):
                out = np.full(SMALL, -1, "i8")
                if not attempt(lambda out=out: win.get(1, SMALL, out=out)):
                    counts["lost"] += 1
                    break
                assert (out == np.arange(SMALL)).all(), out
                before = len(previous)
                if not attempt(lambda: previous.append(int(win.fetch_add(1, 1)))):
                    counts["lost"] += 1
                    unknown.append(previous[-1] if previous else -1)
                    break
                assert len(previous) == before + 1
            else:
                counts["success"] += 1
        counts["lost again"] += recover()
        value = int(win.get(1, 0, 1)[0])
        assert len(set(previous)) == len(previous), "the same previous value twice"
        assert len(previous) <= value <= len(previous) + len(unknown), (value, len(previous))


previous: list[int] = []
unknown: list[int] = []

with rmaext.Window.allocate(comm, LARGE, "i8", timeout=10) as win:
    body = puts
    if scenario == "get and fetch_add":
        body = gets_and_updates
        if comm.rank == 1:
            win.local[SMALL : 2 * SMALL] = np.arange(SMALL)
    win.fence()
    if comm.rank == 0:
        win.get(1, 0, 1)  # connected
    for i in range(1, rounds + 1):
        body(i)
    comm.Barrier()
    if comm.rank == 0:
        recover()
        attempt(lambda: win.put(np.int64(-5), 1))
        win.flush(1)
        assert win.get(1, 0, 1)[0] == -5
        assert longest < BOUND, f"an operation took {longest:.1f} s"
        assert win.fabric is not None
        print(f"{scenario}, libfabric {win.fabric.version}: {counts}, longest {longest:.2f} s OK")
