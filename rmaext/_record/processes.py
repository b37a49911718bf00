# SPDX-License-Identifier: BSD-3-Clause
"""What /proc tells of processes."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Collection

__all__ = ["descendants", "processes", "stat", "status", "user", "user_of"]


def processes(users: Collection[int] = ()) -> list[int]:
    """Return the processes of some users, by default of this one."""
    wanted, found = users or (os.geteuid(),), []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # gone by now
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid in wanted:
                found.append(int(name))
    return sorted(found)


def status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status, empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:
            return {name: rest.strip() for name, _, rest in (s.partition(":") for s in file)}
    except OSError:
        return {}


def stat(pid: int) -> tuple[str, int, int]:
    """Return a process's state, its parent and when it began; ("", 0, 0) if there is none."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0, 0


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    parents = {int(n): stat(int(n))[1] for n in os.listdir("/proc") if n.isdigit()}
    found = [pid]
    for parent in found:  # grows on the way
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def user(uid: int) -> str:
    """Return a user's name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_of(pid: int) -> int:
    """Return the user that a process belongs to; -1 if it is gone."""
    return int(status(pid).get("Uid", "-1").split()[0])
