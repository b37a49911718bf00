# SPDX-License-Identifier: BSD-3-Clause
"""Windows over a GPU's memory: two ranks, both with their memory on its first device.

    python benchmarks/gpu.py [--quick]

Beside each operation stand a copy of as many bytes within that device (cuMemcpyDtoDAsync, and its
stream waited for), which is the least that it can take, and messages of mpi4py with copies from
and to the host around them. RMAEXT_CUDA names the driver's library; with the tests' own one the
figures say only that all of it works.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rmaext
from rmaext.bench import run
from rmaext.bench.job import main
from rmaext.bench.measure import Job, WrongDataError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

REPEATS = {8: 200, 64 << 10: 100, 64 << 20: 5}  # by bytes
ROUNDS = 6
TARGET = 1


def _nothing(_: int) -> None:
    pass


class Way(NamedTuple):
    """How an operation is done so many times: what the origin does, and what the target."""

    name: str
    origin: Callable[[int], None]
    target: Callable[[int], None] = _nothing
    enter: Callable[[], None] = lambda: None
    leave: Callable[[], None] = lambda: None


def operations(job: Job) -> None:
    """Measure all of them on the ranks of a job."""
    from device import device_array as gpu

    gpu.begin()
    sizes = [size for size in REPEATS if not (job.quick and size > 1 << 20)]
    job.facts["simulated"] = gpu.SIMULATED
    job.expect(2 * ROUNDS * (3 * 2 * len(sizes) + 5))
    for size in sizes:
        _transfers(job, gpu, size)
    _words(job, gpu)


def _measure(job: Job, what: str, size: int, ways: list[Way]) -> None:
    comm, count = job.comm, REPEATS[size]

    def turn(way: Way) -> list[float]:
        comm.Barrier()
        start = time.perf_counter_ns()
        (way.target if comm.rank == TARGET else way.origin)(count)
        return [(time.perf_counter_ns() - start) / count * 1e-3]

    job.add(what, job.alternate(ways, turn, ROUNDS, everywhere=True), "us", size)


def _transfers(job: Job, gpu: Any, size: int) -> None:
    comm, here = job.comm, job.comm.rank
    own = gpu.Array.from_numpy(np.full(size // 8, here + 1.0), gpu.Stream())
    other, host = gpu.Array(size // 8, "f8", own.stream), np.empty(size // 8)
    stream = ctypes.c_void_p(own.stream.handle)

    def inside(n: int) -> None:
        for _ in range(n):
            gpu.call("cuMemcpyDtoDAsync_v2", other.address, own.address, size, stream)
            own.stream.synchronize()

    def fetch() -> None:
        gpu.call("cuMemcpyDtoHAsync_v2", host.ctypes.data, own.address, size, stream)
        own.stream.synchronize()

    def store() -> None:
        gpu.call("cuMemcpyHtoDAsync_v2", other.address, host.ctypes.data, size, stream)
        own.stream.synchronize()

    def send(n: int) -> None:
        for _ in range(n):
            fetch()
            comm.Send(host, 1 - here)
            comm.Recv(bytearray(), 1 - here)

    def receive(n: int) -> None:
        for _ in range(n):
            comm.Recv(host, 1 - here)
            store()
            comm.Send(b"", 1 - here)

    def put(n: int) -> None:
        for _ in range(n):
            win.put(own, TARGET)
            win.flush(TARGET)

    def get(n: int) -> None:
        for _ in range(n):
            win.get(TARGET, out=own)

    window = gpu.Array.from_numpy(np.zeros(size // 8))
    with rmaext.Window(comm, window) as win:
        route = win.route(TARGET)
        copy = Way("a copy within the device", inside)
        ways = [Way(f"rmaext ({route})", put), copy, Way("mpi4py", send, receive)]
        _measure(job, "put + flush", size, ways)
        win.fence()
        wrong = here == TARGET and not (window.to_numpy() == 1.0).all()
        job.check("the put's data" if wrong else None)
        ways = [Way(f"rmaext ({route})", get), copy, Way("mpi4py", receive, send)]
        _measure(job, "get", size, ways)
    own.stream.synchronize()
    for array in (own, other, window):
        array.free()


def _words(job: Job, gpu: Any) -> None:
    comm, here, left = job.comm, job.comm.rank, 1 - job.comm.rank
    word, host = gpu.Array.from_numpy(np.ones(1)), np.zeros(1)
    with rmaext.Window(comm, gpu.Array.from_numpy(np.zeros(2))) as win:

        def ping(n: int) -> None:
            for _ in range(n):
                win.put_notify(word, left, 0, slot=1)
                win.wait_notify(slot=1)

        def pong(n: int) -> None:
            for _ in range(n):
                win.wait_notify(slot=1)
                win.put_notify(word, left, 0, slot=1)

        def copy(to_device: bool) -> None:
            ends = (word.address, host.ctypes.data)
            name = "cuMemcpyHtoD_v2" if to_device else "cuMemcpyDtoH_v2"
            gpu.call(name, *(ends if to_device else ends[::-1]), 8)

        def send(n: int) -> None:
            for k in range(2 * n):
                if (k + here) % 2:
                    comm.Recv(host, left)
                    copy(to_device=True)
                else:
                    copy(to_device=False)
                    comm.Send(host, left)

        def add(n: int) -> None:
            for _ in range(n):
                win.fetch_add(1.0, TARGET, 1)

        name = f"rmaext ({win.route(TARGET)})"
        _measure(job, "put_notify and back", 8, [Way(name, ping, pong), Way("mpi4py", send, send)])
        _measure(job, "fetch_add", 8, [Way(name, add)])
        win.fence()
        if win.get(TARGET, 1, 1)[0] != ROUNDS * REPEATS[8]:
            raise WrongDataError("fetch_add")


def device_library() -> str:
    """Return the name of the driver's library."""
    return os.environ.get("RMAEXT_CUDA", "the tests' libcuda")


def report() -> None:
    """Run the job, and print a table."""
    settings = {"quick": "--quick" in sys.argv}
    job = run.Job("operations", program=(__file__,), settings=settings)
    found = run.launch(run.mpi_in_use(), job, 240)
    if found["facts"]["simulated"]:
        print(
            f"simulated by {os.environ.get('RMAEXT_CUDA', 'tests/device')}: no GPU was measured\n"
        )
    print("| operation | bytes | by | us | of rmaext |\n|---|---|---|---|---|")
    for figure in found["figures"]:
        mine = next(iter(figure["values"].values()))["value"]
        for name, it in figure["values"].items():
            ratio = f"{mine / it['value']:.2f} x" if it["value"] != mine else "-"
            line = f"| {figure['operation']} | {figure['size']} | {name} | {it['value']:.1f} | "
            print(line + ratio + " |")


if __name__ == "__main__":
    main({"operations": operations}) if sys.argv[1:] and sys.argv[1] != "--quick" else report()
