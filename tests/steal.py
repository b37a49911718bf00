# SPDX-License-Identifier: BSD-3-Clause
"""Take the cores away now and then, as a busy host takes those of a virtual machine.

    python tests/steal.py [--share 0.25] [--longest 0.9] [--seed 1] -- COMMAND ...

On each core a process of real-time priority sleeps and computes by turns, for up to
`--longest` seconds at once, `--share` of the time, while COMMAND runs. Whoever was to run there is
held up in the middle of anything. A test that fails so and passes otherwise says that one rank is
faster than another, and should not. The status is COMMAND's. Needs root.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time


def steal(core: int, share: float, longest: float, seed: int) -> None:
    """Compute on that core for random times, until the parent has ended."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    random.seed(seed + core)
    parent = os.getppid()
    while os.getppid() == parent:
        busy = longest * random.random() ** 3  # mostly short, a quarter of the longest on average
        time.sleep(random.expovariate(share / (1 - share) / (longest / 4)))
        end = time.monotonic() + busy
        while time.monotonic() < end:
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--longest", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    thieves = []
    for core in sorted(os.sched_getaffinity(0)):
        pid = os.fork()
        if not pid:
            try:
                steal(core, args.share, args.longest, args.seed)
            finally:
                os._exit(0)
        thieves.append(pid)
    try:
        return subprocess.run(args.command, check=False).returncode
    finally:
        for pid in thieves:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
