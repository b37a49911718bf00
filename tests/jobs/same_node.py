# SPDX-License-Identifier: BSD-3-Clause
"""Jobs with windows whose routes stay within a node."""

from __future__ import annotations

import textwrap

from support import jobs

PRELUDE = (
    jobs.PRELUDE
    + """
import multiprocessing, resource, traceback

def allocate(n=1000, comm=world):
    return rmaext.Window.allocate(comm, n)

def own(n=1000, comm=world):
    return rmaext.Window(comm, np.zeros(n))

def links():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass
    return found

def mapped():
    "paths that are mapped"
    lines = [line.split(maxsplit=5) for line in open("/proc/self/maps")]
    return {line[5].strip() for line in lines if len(line) > 5}

def say(text):
    os.write(1, f"{text}\\n".encode())
"""
)


def start(size, body, timeout=45, **options):
    """Run on that many ranks; size 0 is one process without mpiexec."""
    return jobs.start(size, PRELUDE + textwrap.dedent(body), timeout=timeout, **options)
