# SPDX-License-Identifier: BSD-3-Clause
"""rmaext's fabric route next to MPI.Win over TCP, of both MPIs.

    python benchmarks/fabric.py [--json FILE]         (make bench)

Each line of the table compares two numbers of one job, measured in turns. The
ratio says how many times as fast as MPI rmaext is: above 1, rmaext wins.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
TEARDOWN = 20  # seconds that a job has to end after its result is written


class Peer(NamedTuple):
    """An MPI library and how to keep it off shared memory."""

    title: str
    environment: str  # name of the virtual environment
    mpiexec: str
    options: str = ""
    variables: str = ""


OPENMPI = "--oversubscribe --bind-to none --mca"
PEERS = {
    "mpich": Peer(
        "MPICH, libfabric tcp",
        ".venv",
        "mpiexec",
        variables="MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo",
    ),
    "openmpi": Peer(
        "Open MPI, ob1 tcp",
        ".venv-openmpi",
        "mpirun",
        f"{OPENMPI} pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo --mca osc rdma",
    ),
    "ucx": Peer(
        "Open MPI, UCX tcp",
        ".venv-openmpi",
        "mpirun",
        f"{OPENMPI} pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any",
        "UCX_TLS=tcp,self",
    ),
}


class SkippedError(Exception):
    """A job that cannot be run here, and why."""


def command(peer: Peer, venvs: Path) -> tuple[list[str], dict[str, str]]:
    """Command line, up to the worker's arguments, and environment of a job."""
    binaries = venvs / peer.environment / "bin"
    if not (binaries / peer.mpiexec).exists():
        name = "openmpi" if "openmpi" in peer.environment else "mpich"
        raise SkippedError(f"no {binaries / peer.mpiexec}: make build MPI={name}")
    env = dict(os.environ, RMAEXT_ROUTE="fabric", OMP_NUM_THREADS="1")
    if os.getuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= dict(pair.split("=", 1) for pair in peer.variables.split())
    worker = [str(binaries / "python"), str(HERE / "fabric_worker.py")]
    return [str(binaries / peer.mpiexec), *peer.options.split(), "-n", "2", *worker], env


def stop(process: subprocess.Popen[str]) -> None:
    """End mpiexec and, if it does not obey, its process group."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def run_job(name: str, args: argparse.Namespace, rest: list[str]) -> dict[str, Any]:
    """Run the worker under one mpiexec, within the time limit; return its result."""
    line, env = command(PEERS[name], args.venvs)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "result.json")
        line += ["--out", str(out), "--limit", str(args.limit), *rest]
        process = subprocess.Popen(
            line,
            env=env,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timer = threading.Timer(args.limit + 5, stop, [process])
        timer.start()
        said: list[str] = []
        assert process.stdout is not None
        for text in process.stdout:
            if not text.startswith("progress "):
                said.append(text)
                continue
            show(f"{PEERS[name].title}: {text.split()[1]}")
            if "done" in text:  # what comes now is MPI's business
                timer.cancel()
                timer = threading.Timer(TEARDOWN, stop, [process])
                timer.start()
        process.wait()
        timer.cancel()
        show("")
        if not out.exists():
            detail = "".join(said[-30:])
            raise RuntimeError(f"status {process.returncode}, no result\n{detail}")
        result: dict[str, Any] = json.loads(out.read_text())
    if process.returncode:
        signs = [text.strip() for text in said if "signal" in text or "Timeout" in text]
        why = f" ({signs[0]})" if signs else ""
        result["note"] = f"ended with status {process.returncode} after its result was written{why}"
    return result


def show(text: str) -> None:
    """Show progress in place, if somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def cell(entry: dict[str, Any] | None) -> str:
    """A median with its unit, and the 99th percentile of a latency."""
    if entry is None:
        return f"{'-':>10}{'':>9}"
    tail = f"{entry['p99']:9.1f}" if "p99" in entry else " " * 9
    return f"{entry['median']:10.2f}{tail}"


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Lay the results out, operation by operation."""
    lines = [f"{'':16}{'':22}{'rmaext':>10}{'p99':>9}{'MPI.Win':>10}{'p99':>9}  unit   ratio"]
    best: list[str] = []
    for operation in next(iter(results.values()))["results"]:
        head = operation
        ratios = {}
        for name, result in results.items():
            entry = result["results"][operation]
            mine, theirs = entry.get("rmaext"), entry.get("mpi")
            unit = (mine or theirs)["unit"]
            factor = f"{entry['ratio']:6.2f}" if "ratio" in entry else f"{'-':>6}"
            title = PEERS[name].title
            lines.append(f"{head:16}{title:22}{cell(mine)}{cell(theirs)}  {unit:5}{factor}")
            head = ""
            if "ratio" in entry:
                ratios[title] = entry["ratio"]
        if ratios:
            peer = min(ratios, key=lambda title: ratios[title])
            best.append(f"{operation:16}{ratios[peer]:5.2f} x the speed of {peer}")
    if best:
        lines += ["", "Against the better peer:", *best]
    return lines


def main() -> int:
    """Run the jobs, print the table. Exit status 1 if a job failed."""
    parser = argparse.ArgumentParser(
        description="rmaext over the fabric next to MPI.Win over TCP",
        epilog="Other options go to fabric_worker.py: --rounds, --count, --batches, --only.",
    )
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--peers", default=",".join(PEERS), help="which, of %(default)s")
    parser.add_argument("--limit", type=float, default=180, help="seconds a job may take")
    parser.add_argument("--venvs", type=Path, default=HERE.parent, help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    peers = args.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}: choose from {', '.join(PEERS)}")
    results: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for name in peers:
        try:
            results[name] = run_job(name, args, rest)
        except SkippedError as reason:
            skipped[name] = str(reason)
        except RuntimeError as reason:
            failures[name] = str(reason)

    if results:
        load = os.getloadavg()[0]
        print(
            f"2 ranks, {os.cpu_count()} cores, load {load:.1f}; ratio above 1: rmaext is faster\n"
        )
        print("\n".join(table(results)), end="\n\n")
    for name, result in results.items():
        print(f"{PEERS[name].title} ({result['mpi']})", end="")
        if facts := result["rmaext"]:
            print(f"; rmaext: {facts['provider']}, libfabric {facts['version']}", end="")
            print(f" ({facts['library']})", end="")
        print()
        if "note" in result:
            print(f"  the job {result['note']}")
    for name, why in skipped.items():
        print(f"{PEERS[name].title}: skipped, {why}")
    for name, why in failures.items():
        print(f"{PEERS[name].title}: FAILED, {why}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failures or not results else 0


if __name__ == "__main__":
    sys.exit(main())
