# SPDX-License-Identifier: BSD-3-Clause
"""rmaext at work: a heat equation and a task farm, checked against NumPy.

    mpirun -n 4 python examples/demo.py

Both run twice: by the routes that windows take by themselves, which on one machine are
loads and stores, and over libfabric, as between machines. Exit status 0 if all answers are
right, 1 on every rank if not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import heat
import taskfarm
from mpi4py import MPI

import rmaext

ROOT = 0


def say(comm: Any, line: str = "") -> None:
    """Print a line, on ROOT only."""
    if comm.rank == ROOT:
        print(line, flush=True)


def describe(comm: Any) -> None:
    """Print what carries the data: provider, libfabric, keys, addresses. Collective."""
    with rmaext.Window.allocate(comm, 1) as win:
        fabric = win.fabric
        facts = fabric and (fabric.provider, fabric.version, fabric.library, fabric.key_size)
        rows = comm.gather((facts, fabric and fabric.address), ROOT)
    if comm.rank != ROOT:
        return
    used = list(dict.fromkeys(facts for facts, _ in rows if facts))
    for provider, version, library, key_size in used:
        print(f"  provider    {provider}, {key_size}-byte remote keys")
        print(f"  libfabric   {version} ({library})")
    if not used:
        print("  provider    none is needed: all ranks share this machine's memory")
    for rank, (_, address) in enumerate(rows):
        if address:
            print(f"  rank {rank:<6} {address}")


def run_heat(comm: Any, rows: int, cols: int, steps: int) -> bool:
    """Solve the heat equation and print routes, times and verdict. Collective."""
    start = time.perf_counter()
    result = heat.solve(comm, rows, cols, steps)
    seconds = time.perf_counter() - start
    good = heat.check(comm, result, rows, cols, steps)
    routes = comm.gather(result.routes, ROOT)
    times = comm.gather((seconds, result.compute, result.exchange, result.wait), ROOT)
    if comm.rank == ROOT:
        total, compute, exchange, wait = (1e3 * max(column) for column in zip(*times, strict=True))
        print(f"  heat        {rows} x {cols}, {steps} steps: {'OK' if good else 'WRONG'}")
        for rank, peers in enumerate(routes):
            text = ", ".join(f"to {peer} {route}" for peer, route in peers.items())
            print(f"    rank {rank:<4} {text or 'no neighbour'}")
        print(f"    time      {total:.1f} ms; slowest rank: NumPy {compute:.1f} ms,")
        print(f"              put + flush {exchange:.1f} ms, fence {wait:.1f} ms")
    return good


def run_farm(comm: Any, rows: int, cols: int) -> bool:
    """Run the task farm and print times, shares and verdict. Collective."""
    result = taskfarm.run(comm, rows, cols)
    good = taskfarm.check(comm, result, rows, cols)
    shares = comm.gather((len(result.tasks), result.seconds, result.drawing), ROOT)
    if comm.rank == ROOT:
        counts, seconds, drawing = zip(*shares, strict=True)
        each = 1e6 * sum(drawing) / (sum(counts) + comm.size)
        print(f"  task farm   {rows} tasks, each once: {'OK' if good else 'WRONG'}")
        print(f"    tasks     {' '.join(map(str, counts))} (by rank)")
        print(f"    time      {1e3 * max(seconds):.1f} ms; a draw takes {each:.1f} us")
    return good


def run_both(comm: Any, title: str, args: argparse.Namespace) -> bool:
    """Run both parts over the routes that windows take now. Collective."""
    say(comm, title)
    describe(comm)
    good = run_heat(comm, args.rows, args.cols, args.steps)
    return run_farm(comm, args.tasks, args.cols) and good


def main(comm: Any = MPI.COMM_WORLD, argv: Sequence[str] | None = None) -> int:
    """Run both parts. Returns the exit status, the same on every rank."""
    parser = argparse.ArgumentParser(description="rmaext demonstration")
    parser.add_argument("--rows", type=int, default=192, help="rows of the plate")
    parser.add_argument("--cols", type=int, default=256, help="columns of the plate")
    parser.add_argument("--steps", type=int, default=200, help="time steps")
    parser.add_argument("--tasks", type=int, default=128, help="tasks in the farm")
    args = parser.parse_args(argv)
    vendor, version = MPI.get_vendor()
    say(comm, f"rmaext demo: {vendor} {'.'.join(map(str, version))}, ranks: {comm.size}")
    good = run_both(comm, "by the routes that windows take by themselves", args)
    # The route is settled with a communicator's first window, so this takes another one.
    os.environ["RMAEXT_ROUTE"] = "fabric"
    good = run_both(comm.Dup(), "over libfabric, as between machines", args) and good
    say(comm, "demo          OK" if good else "demo          WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        status = 1
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
