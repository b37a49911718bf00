# SPDX-License-Identifier: BSD-3-Clause
"""What a stranger sends to the port of a rank: a hello over tcp, and what harms.

The hello is that of tcp by itself, or of ofi_rxm over it.

A stranger is a child of the test's process, which enters the network namespace of a job,
becomes another user, and returns what its attack gave. It executes no other program: that
user might not be able to read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import struct
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from support import netns

NOBODY = 65534
HEADER = struct.Struct("<BBHIQQQ")  # version, type, bytes that follow (big endian), ...
CONNECT = struct.Struct("<BBBBHBBIIQ")  # of ofi_rxm
NATIVE = struct.Struct(">BBHI")  # of tcp by itself: version, features, port, process
BASE = struct.Struct("<BBHBBBBQ")  # version, operation, flags, data, pieces, header's bytes, 0, all


class Address(NamedTuple):
    """Where a rank listens, and whether for tcp by itself."""

    host: str
    port: int
    native: bool


def header(promised: int) -> bytes:
    """Return the header of a request for a connection, which says how much follows it."""
    return HEADER.pack(3, 0, socket.htons(promised), 0, 0, 0, 1)


def hello(to: Address, port: int) -> bytes:
    """Return the request, to a rank, of an endpoint that listens at a port."""
    if to.native:
        data = NATIVE.pack(1, 0, port, 77)
    else:
        data = CONNECT.pack(1, 1, 4, 3, port, 0, 0, 16384, 128, 77 << 32)
    return header(len(data)) + data


def ack() -> bytes:
    """Return the acknowledgement of something that nobody has sent."""
    return BASE.pack(3, 0, 0, 2, 0, 16, 0, 16)


def wild(kind: int) -> bytes:
    """Return a message of a type of ofi_rxm that names what is not there."""
    packet = struct.pack("<BBHIQQQ", 4, kind, 8, 1, 1 << 40, 0xFFFF_FFF0, 0xFFFF_FFF0)
    packet += struct.pack("<BBHIQQQ", 3, 0, 0, 0, 64, 0, 0) + bytes(range(64))
    return BASE.pack(3, 0, 0, 0, 0, 16, 0, 16 + len(packet)) + packet


def stray(operation: int) -> bytes:
    """Return a message of tcp that names what is not there: 3 to 7 answer what nobody asked."""
    return BASE.pack(3, operation, 0, 0, 0, 32, 7, 64) + bytes(48)


def connection(to: Address, first: bytes, source: str = "", port: int = 0) -> socket.socket:
    """Connect, and send something at once."""
    it = socket.socket()
    it.settimeout(3)
    if source or port:
        it.bind((source, port))
    it.connect(to[:2])
    if first:
        it.sendall(first)
    return it


def answer(it: socket.socket, seconds: float = 2) -> int:
    """Return how many bytes the rank sends; 0 if it hangs up, or says nothing."""
    try:
        return len(it.recv(1 << 16)) if select.select([it], [], [], seconds)[0] else 0
    except OSError:
        return 0


def is_open(it: socket.socket) -> bool:
    """Tell whether the rank has not hung up, whatever it has said before."""
    it.setblocking(False)
    try:
        while it.recv(1 << 16):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


# -- attacks: each returns in how many tries it got what it wanted ----------------


def hijack(victim: Address, other: Address) -> int:
    """Claim another rank's port, and wait for what the victim sends to that rank."""
    taken = 0
    for _ in range(10):
        try:
            it = connection(victim, hello(victim, other.port))
        except OSError:
            continue
        taken += answer(it, 0.5) > 0
        it.close()
    return taken


def say(victim: Address, port: int, *messages: bytes) -> int:
    """Say hello, and then the messages, ten times."""
    taken = 0
    for _ in range(10):
        try:
            it = connection(victim, hello(victim, port))
            taken += answer(it, 5) > 0
            for message in messages:
                it.sendall(message)
            answer(it, 0.1)
        except OSError:
            continue
        it.close()
    return taken


def try_once(victim: Address, port: int = 0) -> int:
    """Connect, from a port, and say hello."""
    try:
        return int(answer(connection(victim, hello(victim, 9), port=port), 5) > 0)
    except (TimeoutError, ConnectionError):
        return 0


def say_often(victim: Address, seconds: float) -> int:
    """Say hello all the time; return how often that was answered."""
    taken, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), connection(victim, hello(victim, 9)) as it:
            taken += answer(it, 0.5) > 0
    return taken


def come_and_go(victim: Address) -> int:
    """Open idle connections, more than may be, and close them; one has promised data."""
    for _ in range(3):
        held = [connection(victim, header(24))]
        for _ in range(140):
            with contextlib.suppress(ConnectionError):  # refused before it was seen to be made
                held.append(connection(victim, b""))
        assert len(held) > 70
        select.select([], [], [], 0.2)
        for it in held[::-1]:
            it.close()
        select.select([], [], [], 0.5)
    return 0


def promise_twice(victim: Address, count: int, seconds: float) -> int:
    """Hold connections with two headers that promise data; return how many are open at the end."""
    held = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            held.append(connection(victim, header(24)))
    select.select([], [], [], 0.3)
    for it in held:
        with contextlib.suppress(OSError):
            it.sendall(header(24))
    select.select([], [], [], seconds)
    return sum(map(is_open, held))


def promise(victim: Address, seconds: float) -> int:
    """Promise data that does not come, on ten connections."""
    held = []
    for _ in range(10):
        try:
            held.append(connection(victim, header(24)))
        except OSError:
            continue
    select.select([], [], [], seconds)
    return sum(map(is_open, held))


def leave(victim: Address, reset: bool, *messages: bytes) -> int:
    """Send all at once, and close, fifty times."""
    done = 0
    for _ in range(50):
        with socket.socket() as it, contextlib.suppress(ConnectionError):
            it.connect(victim[:2])
            it.sendall(b"".join(messages))
            if reset:
                it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        done += 1
    return done


def idle(victim: Address, count: int, seconds: float, sources: str = "127.0.{}.1") -> int:
    """Hold that many connections that say nothing; return how many are open at the end."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 100), hard))
    held = []
    for i in range(count):
        try:
            held.append(connection(victim, b"", sources.format(1 + i // 5000)))
        except OSError:
            continue
    select.select([], [], [], seconds)
    return sum(map(is_open, held))


def listen(port: int, until: str) -> int:
    """Listen at a port, for any address, until a file is there, for a minute at most."""
    end = time.monotonic() + 60
    with socket.socket() as it:
        it.bind(("", port))
        it.listen()
        while not os.path.exists(until) and time.monotonic() < end:
            time.sleep(0.05)
    return 0


# -- who attacks ------------------------------------------------------------------


class Stranger:
    """A child of this process in a namespace, of another user, that attacks."""

    def __init__(self, namespace: int, uid: int, attack: Callable[..., int], *args: Any) -> None:
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(write)
            return
        said: Any = None
        try:  # in the child: no way out but _exit
            netns.enter(namespace)
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            said = attack(*args)
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(write, json.dumps(said).encode())
            os._exit(0)

    def result(self) -> int:
        """Wait for its end."""
        with os.fdopen(self._read) as pipe:
            said = json.load(pipe)
        os.waitpid(self._pid, 0)
        assert isinstance(said, int), said
        return said
