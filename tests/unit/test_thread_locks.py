# SPDX-License-Identifier: BSD-3-Clause
"""All locks are those of _runtime/locks.py: free in a forked child, and for a handler to take."""

from __future__ import annotations

import ast
from pathlib import Path

import rmaext

ROOM = Path(rmaext.__file__).parent
KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"}
# the others, and why nobody waits for them in vain
OTHERS = {
    "_runtime/locks.py: RLock": "it is what `lock` returns",
    "_memory/devices.py: RLock": "of a result that a child never copies: its request is inherited",
    "_ops/watcher.py: Condition": "of a fabric that a child never uses: its requests are inherited",
    "_runtime/tracebacks.py: Lock": "nobody waits for it: who finds it held shows an error whole",
    "_sync/ticket_lock.py: Lock": "a place in a queue: made for one thread, which others wake",
}


def made(path):
    """Return the locks of threading that a file makes."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "threading":
            names |= {alias.name for alias in node.names} & KINDS
        if not isinstance(node, ast.Call):
            continue
        it = node.func
        if isinstance(it, ast.Attribute) and isinstance(it.value, ast.Name):
            if it.value.id in ("threading", "_thread") and it.attr in {*KINDS, "allocate_lock"}:
                yield f"{path.relative_to(ROOM)}: {it.attr}"
        elif isinstance(it, ast.Name) and it.id in names:
            yield f"{path.relative_to(ROOM)}: {it.id}"


def test_locks_are_those_of_the_runtime():
    """Make one by locks.lock(), or say in OTHERS why this is another."""
    found = {one for path in ROOM.rglob("*.py") for one in made(path)}
    assert found == set(OTHERS)
