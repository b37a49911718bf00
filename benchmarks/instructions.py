# SPDX-License-Identifier: BSD-3-Clause
"""Instructions of this process for each operation on the same node, by valgrind's callgrind.

    python benchmarks/instructions.py [--python PATH]

They do not depend on what else the machine does. What is counted is a call from Python, without
the loop around it, on a window of the own rank, which goes the way of all mapped memory. Calls on
many elements are divided by their number. It takes half a minute.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, MANY, WORDS, ROW, RANGES = 100, 600, 4096, 128, 3000
CALLS = {  # bound method, statement, number of elements
    "put, 8 B": ("win.put", "call(one, 0, 0)", 1),
    "the same, rput and wait": ("win.rput", "call(one, 0, 0).wait()", 1),
    "get, 8 B": ("win.get", "call(0, 0, out=out)", 1),
    "the same, rget and wait": ("win.rget", "call(0, 0, out=out).wait()", 1),
    "put a row, win[rank, key]": ("win.put", "win[0, 3] = row", 1),
    "the same, rput and wait, key": ("win.rput", "call(row, 0, key=3).wait()", 1),
    "get a row, win[rank, key]": ("win.get", "win[0, 3]", 1),
    "the same, rget and wait, key": ("win.rget", "call(0, key=3).wait()", 1),
    "put_notify, 8 B": ("win.put_notify", "call(one, 0, 0, 7)", 1),
    "the same, rput_notify and wait": ("win.rput_notify", "call(one, 0, 0, 7).wait()", 1),
    "put_notify a row by its key": ("win.put_notify", "call(row, 0, key=3, slot=7)", 1),
    "the same, by rput_notify": ("win.rput_notify", "call(row, 0, key=3, slot=7).wait()", 1),
    "put_notify, nothing": ("win.put_notify", "call([], 0, slot=7)", 1),
    "fetch_add, 8 B": ("win.fetch_add", "call(1, 0, 0)", 1),
    "flush": ("win.flush", "call(0)", 1),
    "put_many, each element": ("win.put_many", "call(ranks, offsets, values)", WORDS),
    "get_many, each element": ("win.get_many", "call(ranks, offsets, out=fetched)", WORDS),
    "the drop-in's Put, 8 B": ("dropin.Put", "call(double, 0, 0)", 1),
    "Get of 3,000 ranges, each": ("dropin.Get", "call(some, 0, ranges)", RANGES),
    "Put of 16 x 16, each row": ("dropin.Put", "call(square, 0, block)", 16),
}
LOOP = "def loop(n):\n    for _ in repeat(None, n):\n        {}\n"


def loops() -> None:
    """Call each a few times, then many times, between calls of getppid. Under callgrind."""
    from itertools import repeat

    import numpy as np
    from mpi4py import MPI

    import rmaext
    from rmaext import compat

    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 19, RANGES)
    ranges = MPI.DOUBLE.Create_indexed(lengths, np.arange(RANGES) * 30).Commit()
    block = MPI.DOUBLE.Create_vector(16, 16, 64).Commit()
    dropin = compat.Win.Allocate(8 * 30 * RANGES, 8, comm=MPI.COMM_SELF)
    dropin.Lock_all()
    with rmaext.Window.allocate(MPI.COMM_SELF, (1024, ROW), np.int64) as win:
        names = {
            "repeat": repeat,
            "win": win,
            "dropin": dropin,
            "double": np.ones(1),
            "square": np.ones((16, 16)),
            "block": (0, 1, block),
            "some": np.ones(lengths.sum()),
            "ranges": (0, 1, ranges),
            "one": np.array([1]),
            "row": np.ones(ROW, np.int64),
            "out": np.zeros(1, np.int64),
            "ranks": np.zeros(WORDS, np.int64),
            "offsets": draw.integers(1024 * ROW, size=WORDS),
            "values": np.arange(WORDS),
            "fetched": np.zeros(WORDS, np.int64),
        }
        texts = [(method, statement) for method, statement, _ in CALLS.values()]
        for method, text in [*texts, ("win.put", "pass")]:
            names["call"] = eval(method, names)
            exec(LOOP.format(text), names)
            names["loop"](FEW)  # to warm up
            for number in (FEW, MANY):
                os.getppid()
                names["loop"](number)
                os.getppid()
    dropin.Unlock_all()
    dropin.Free()


def main() -> int:
    """Run the loops under callgrind, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="whose rmaext is measured")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        loops()
        return 0
    with tempfile.TemporaryDirectory(prefix="rmaext-callgrind-") as name:
        command = ["valgrind", "--tool=callgrind", "--dump-before=getppid", "-q"]
        command += [f"--callgrind-out-file={name}/out", options.python, __file__, "--inside"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
        dumps = sorted(Path(name).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        text = "\n".join(path.read_text() for path in dumps)
    # what is counted up to each getppid: a loop, or what is between two
    counts = [int(count) for count in re.findall(r"^totals: (\d+)", text, re.MULTILINE)]
    if done.returncode or len(counts) < 4 * (len(CALLS) + 1):
        print(f"valgrind ended with {done.returncode}: {done.stderr}", file=sys.stderr)
        return 1
    pairs = zip(counts[1::4], counts[3::4], strict=False)
    each = [(many - few) / (MANY - FEW) for few, many in pairs]
    for title, (_, _, elements), count in zip(CALLS, CALLS.values(), each, strict=False):
        print(f"{title:33}{(count - each[len(CALLS)]) / elements:10,.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
