# SPDX-License-Identifier: BSD-3-Clause
"""Network namespaces of a test's own, and what happens to connections in them.

A namespace has no name: it belongs to a process that ends with this one, and
so nothing is left behind. Ranks enter it after MPI_Init and before they open a
window; MPI's own connections stay where they are.

No command runs here unless its namespace is proven to be another than the
one that this module was imported in: interfaces and connections of the
machine are never touched.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_OWN = os.stat("/proc/self/ns/net").st_ino  # the machine's


class Unavailable(Exception):
    """No namespaces here."""


def _inode(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino


class Namespace:
    """A new network namespace with its loopback interface up."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                ["unshare", "--net", "cat"],
                stdin=subprocess.PIPE,  # it ends when this process does
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as exc:
            raise Unavailable(str(exc)) from None
        self.pid = self._process.pid
        end = time.monotonic() + 20
        while _inode(self.pid) == _OWN:
            if self._process.poll() is not None or time.monotonic() > end:
                assert self._process.stderr is not None
                text = self._process.stderr.read().decode() if self._process.poll() else ""
                self.close()
                raise Unavailable(f"no new network namespace: {text.strip() or 'no answer'}")
            time.sleep(0.005)
        self.inode = _inode(self.pid)
        try:
            self.run("ip", "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def run(self, *command: str) -> str:
        """Run a command inside; returns what it prints."""
        if _inode(self.pid) == _OWN:
            raise RuntimeError("that would be the machine's own namespace")
        enter = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def decoy(self, name: str, address: str) -> None:
        """Add an interface that leads nowhere."""
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        self.run("ip", "addr", "add", address, "dev", name)
        for end in (name, f"{name}-end"):
            self.run("ip", "link", "set", end, "up")

    def slow(self, name: str, rate: str) -> None:
        """Let an interface send no faster."""
        tbf = ("tbf", "rate", rate, "burst", "16kb", "limit", "200kb")
        self.run("tc", "qdisc", "replace", "dev", name, "root", *tbf)

    def close(self) -> None:
        """Give it up; its interfaces go with the last process inside."""
        self._process.kill()
        self._process.communicate()


def join(name: str, ends: list[tuple[Namespace, str]]) -> None:
    """Lay a cable between two namespaces; `ends` have each an address for it."""
    (first, _), (second, _) = ends
    if _inode(second.pid) == _OWN:
        raise RuntimeError("that would be the machine's own namespace")
    peer = ("peer", "name", name, "netns", str(second.pid))
    first.run("ip", "link", "add", name, "type", "veth", *peer)
    for namespace, address in ends:
        namespace.run("ip", "addr", "add", address, "dev", name)
        namespace.run("ip", "link", "set", name, "up")
    end = time.monotonic() + 20
    for namespace, _ in ends:  # the kernel may take a second to say so
        while "state UP" not in namespace.run("ip", "link", "show", name):
            if time.monotonic() > end:
                raise Unavailable(f"{name} does not come up")
            time.sleep(0.02)


@contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    made: list[Namespace] = []
    try:
        for _ in range(count):
            made.append(Namespace())
        yield made
    finally:
        for namespace in made:
            namespace.close()


@functools.cache
def missing() -> str:
    """Return why namespaces cannot be made and used here; "" if they can."""
    for tool in ("unshare", "nsenter", "ip", "ss", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool} here"
    try:
        with namespaces(2) as (one, two):
            join("probe", [(one, "10.9.9.1/24"), (two, "10.9.9.2/24")])
    except Unavailable as exc:
        return str(exc)
    return ""


# -- for ranks ---------------------------------------------------------------------


def enter(pid: int) -> None:
    """Move this thread, and those that it starts, to the namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def cut() -> int:
    """Cut all TCP connections of the namespace that was entered; returns how many."""
    if os.stat("/proc/thread-self/ns/net").st_ino == _OWN:
        raise RuntimeError("that would be the machine's own namespace")
    command = ["ss", "--kill", "--tcp", "--no-header", "--numeric", "state", "established"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode or done.stderr:
        print(done.stderr, file=sys.stderr)
    return len(done.stdout.splitlines())


def listening() -> dict[str, str]:
    """Return the addresses that this process listens on, by inode: TCP and UDP."""
    own = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            own.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
        except OSError:  # closed meanwhile
            continue
    found = {}
    for kind, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        try:
            lines = Path(f"/proc/thread-self/net/{kind}").read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[9] in own and fields[3] == state:
                found[fields[9]] = f"{kind} {_address(fields[1])}"
    return found


def _address(text: str) -> str:
    """As the kernel prints it: 32-bit words in the machine's byte order."""
    import socket

    host, _, port = text.partition(":")
    raw = b"".join(
        int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8)
    )
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return f"{socket.inet_ntop(family, raw)} {int(port, 16)}"
