# SPDX-License-Identifier: BSD-3-Clause
"""What a stranger sends to the port of a rank over tcp: streams that are wrong.

A stream begins with the connection header of libfabric's tcp provider and, as its data, a
hello (which port and process it claims to come from): that of tcp by itself, or of ofi_rxm
over it. Messages follow, each with a header of tcp, and within plain ones a packet of ofi_rxm,
which is any message to tcp by itself.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from random import Random

EAGER = 16384  # ofi_rxm refuses another limit than its own
LITTLE = 2  # endianness, as the hello has it
MESSAGE, TAGGED, READ, ANSWER, WRITE = range(5)  # operations of tcp; 5 to 7: its rendezvous
ACK = 2
PORTS = (0, 1, 65535)

_WILD = (0, 1, 2, 3, 7, 8, 15, 16, 17, 24, 32, 40, 63, 64, 96, 120, 127, 128, 129, 255)
_WILD += tuple(2**k + d for k in (12, 14, 15, 16, 31, 32, 47, 63, 64) for d in (-16, -1, 0, 1))


@dataclass(frozen=True)
class Peer:
    """Where a rank listens, and its process."""

    address: str
    port: int
    pid: int


@dataclass
class Case:
    """A stream, or several at once."""

    kind: str
    target: Peer
    pieces: list[bytes] = field(default_factory=list)  # sent one by one
    reads: bool = True  # waits for the answer to the first piece
    pause: float = 0.0  # seconds before each later piece
    end: str = "close"  # or "reset", or "hold"
    copies: int = 1


class Maker:
    """Makes the cases of one seed, in turn; for tcp by itself, or for ofi_rxm."""

    def __init__(self, seed: str, peers: list[Peer], native: bool) -> None:
        self.rng = Random(seed)
        self.peers = peers
        self.native = native

    def case(self) -> Case:
        """Return a case."""
        rng = self.rng
        made = Case("", rng.choice(self.peers))
        kinds = {
            self._messages: 10,
            self._acknowledged: 2,
            self._hijack: 2,
            self._cut: 3,
            self._promise: 1,
            self._garbage: 1,
            self._idle: 1,
        }
        fill = rng.choices(list(kinds), list(kinds.values()))[0]
        made.kind = fill.__name__.strip("_")
        fill(made)
        if rng.random() < 0.3:
            made.pieces = [self._bent(piece) for piece in made.pieces]
        made.pause = rng.choice((0, 0, 0, 0.001, 0.02))
        if made.end == "close":
            made.end = rng.choices(("close", "reset", "hold"), (6, 3, 1))[0]
        if rng.random() < 0.05:
            made.copies = rng.randrange(2, 20)
        return made

    # -- cases ---------------------------------------------------------------------

    def _messages(self, case: Case) -> None:
        """Say hello, then send messages with anything in them."""
        case.pieces = [self._hello(case.target)]
        case.pieces += [self._message() for _ in range(self.rng.randrange(1, 7))]

    def _acknowledged(self, case: Case) -> None:
        """Acknowledge what nobody sent."""
        case.pieces = [self._hello(case.target), _header(MESSAGE, b"", op_data=ACK)]

    def _hijack(self, case: Case) -> None:
        """Claim to be another rank, and stay for what it is sent."""
        other = self.rng.choice(self.peers)
        case.pieces = [self._hello(case.target, other, pid=self.rng.choice((0, 1, other.pid)))]
        case.end = "hold"

    def _cut(self, case: Case) -> None:
        """End anywhere in a message that is right so far."""
        whole = _header(MESSAGE, _packet(0, bytes(self.rng.randrange(1, EAGER))))
        case.pieces = [self._hello(case.target), whole[: self.rng.randrange(1, len(whole))]]

    def _promise(self, case: Case) -> None:
        """Promise data of the connection header, and send less."""
        hello = self._hello(case.target)
        case.pieces = [hello[: self.rng.randrange(32, len(hello))]]
        case.reads, case.end = False, "hold"

    def _garbage(self, case: Case) -> None:
        case.pieces = [self.rng.randbytes(self.rng.choice((1, 31, 32, 56, 4096)))]

    def _idle(self, case: Case) -> None:
        case.copies, case.reads = self.rng.randrange(1, 40), False
        case.end = self.rng.choice(("reset", "hold"))

    # -- pieces --------------------------------------------------------------------

    def _bits(self, good: int, size: int, chance: float = 0.15) -> int:
        """Return the good value of so many bytes; now and then, another."""
        rng = self.rng
        if rng.random() >= chance:
            return good
        wild = rng.choice(
            (rng.choice(_WILD), rng.getrandbits(8 * size), good + rng.randrange(-9, 9))
        )
        return wild & ((1 << 8 * size) - 1)

    def _hello(self, target: Peer, claimed: Peer | None = None, pid: int | None = None) -> bytes:
        """Return a connection header with a hello."""
        rng, few = self.rng, 0.02
        port = claimed.port if claimed else rng.choice((*PORTS, rng.randrange(1024, 65536)))
        if rng.random() < 0.1:
            port = target.port
        pid = rng.getrandbits(31) if pid is None else pid
        if self.native:
            hello = struct.pack(">BBHI", self._bits(1, 1), self._bits(0, 1, few), port, pid)
        else:
            hello = self._rxm_hello(port, pid)
        size = self._bits(len(hello), 2, few)
        head = (self._bits(3, 1, few), self._bits(0, 1, few), socket.htons(size), 0, 0, 0)
        return struct.pack("=BBHIQQQ", *head, self._bits(1, 8, few)) + hello

    def _rxm_hello(self, port: int, pid: int) -> bytes:
        rng, few = self.rng, 0.02
        return struct.pack(
            "=BBBBHBBIIQ",
            *(self._bits(good, 1, few) for good in (1, LITTLE, 4, 3)),
            port,
            self._bits(rng.randrange(3), 1),
            0,
            self._bits(EAGER, 4, few),
            self._bits(128, 4),
            pid << 32 | self._bits(rng.randrange(4), 4),
        )

    def _message(self) -> bytes:
        """Return one of any sort."""
        rng = self.rng
        op = self._bits(rng.choice((MESSAGE, MESSAGE, MESSAGE, *range(8))), 1, 0.05)
        if op in (READ, WRITE):
            count = self._bits(rng.randrange(1, 5), 1)
            places = [self._place() for _ in range(min(count, 4))]
            data = rng.randbytes(rng.randrange(64)) if op == WRITE else b""
            body, head = b"".join(places) + data, 16 + 24 * len(places)
        else:
            body, count, head = self._packet(), 0, 16
        given = {
            "op_data": rng.choice((0, 0, 0, ACK, rng.randrange(256))),
            "flags": rng.choice((0, 0, 1, 4, 5, 8, 128, rng.randrange(65536))),
            "count": count,
            "head": self._bits(head, 1, 0.1),
            "size": self._bits(16 + len(body), 8, 0.1),
        }
        return _header(op, body, **given)

    def _place(self) -> bytes:
        """Return where a read or write goes: address, length, key."""
        rng = self.rng
        return struct.pack("=QQQ", *(self._bits(rng.randrange(4096), 8) for _ in range(3)))

    def _packet(self) -> bytes:
        """Return a packet of ofi_rxm, of any type and with any numbers."""
        rng = self.rng
        data = rng.randbytes(rng.choice((0, 8, 97, 256, 1024, EAGER)))
        kind = self._bits(rng.randrange(9), 1, 0.05)
        given = {name: self._bits(rng.randrange(4), 8, 0.4) for name in ("line", "number", "more")}
        given["part"] = self._bits(min(len(data), 65535), 2)
        given["op"] = self._bits(rng.choice((0, 0, 0, 1, rng.randrange(10))), 1, 0.05)
        return _packet(kind, data, size=self._bits(len(data), 8), tag=self._bits(0, 8), **given)

    def _bent(self, piece: bytes) -> bytes:
        """Return the piece with some bytes changed, left out or doubled."""
        rng, text = self.rng, bytearray(piece)
        for _ in range(rng.randrange(1, 4)):
            if not text:
                break
            at = rng.randrange(min(len(text), 200))
            match rng.randrange(4):
                case 0:
                    text[at] ^= 1 << rng.randrange(8)
                case 1:
                    text[at] = rng.choice((0, 1, 127, 128, 255))
                case 2:
                    del text[at : at + rng.randrange(1, 9)]
                case _:
                    text[at:at] = text[at : at + rng.randrange(1, 9)]
        return bytes(text)


def _header(
    op: int,
    body: bytes,
    op_data: int = 0,
    flags: int = 0,
    count: int = 0,
    head: int = 16,
    size: int | None = None,
) -> bytes:
    """Return a message of tcp."""
    size = 16 + len(body) if size is None else size
    return struct.pack("=BBHBBBBQ", 3, op, flags, op_data, count, head, 0, size) + body


def _packet(
    kind: int,
    data: bytes,
    line: int = 0,
    number: int = 0,
    more: int = 0,
    part: int = 0,
    op: int = 0,
    size: int | None = None,
    tag: int = 0,
) -> bytes:
    """Return a packet of ofi_rxm: which connection, which message, and what it is."""
    size = len(data) if size is None else size
    head = struct.pack("=BBHIQQQ", 4, kind, part, 0, line, number, more)
    return head + struct.pack("=BBBBIQQQ", 2, 0, op, 0, 0, size, 0, tag) + data
