#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Replay seeds on two machines (`make sim-replay`): this one, and a guest that QEMU emulates.

    replay.py LIBFABRIC WORLD ...

Another kernel, another processor: the hash of each history must be the same. The status is 1 if
one is not; 77: there can be no guest here (tests/guest/run).
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3, 17, 99, 1234, 77777, 5000001)


def main(libfabric: str, *worlds: str) -> int:
    """Run all seeds of all worlds at both places, and compare."""
    each = f"for s in {' '.join(map(str, SEEDS))}; do SEED=$s $w {libfabric} seeds | tail -1; done"
    script = f"uname -r; for w in {' '.join(worlds)}; do {each}; done"
    found = []
    for where in ([], [str(ROOT / "tests" / "guest" / "run"), "-t", "600"]):
        command = [*where, "bash", "-c", script]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=900)
        if done.returncode:
            return done.returncode
        kernel, *lines = done.stdout.splitlines()
        print(f"{kernel}: {len(lines)} histories")
        found.append(lines)
    here, there = found
    assert len(here) == len(SEEDS) * len(worlds), here
    assert all(": " in line for line in here), here
    for pair in zip(here, there, strict=True):
        print(pair[0] if pair[0] == pair[1] else f"{pair[0]}, but in the guest: {pair[1]}")
    return int(here != there)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
