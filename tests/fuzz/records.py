# SPDX-License-Identifier: BSD-3-Clause
"""atheris: any bytes to the decoders of Python, which raise KeyRecordError or nothing.

    python tests/fuzz/records.py [libFuzzer's arguments]

The first byte chooses the decoder, and whether the frame around the rest is made good: a
checksum would keep everything else from being reached.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import atheris
import mpi4py
import numpy as np

mpi4py.rc.initialize = False

with atheris.instrument_imports(
    include=[
        "rmaext._runtime.failures",
        "rmaext._comm.host",
        "rmaext._comm.provider_choice",
        "rmaext._comm.agreement",
        "rmaext._comm.window_record",
        "rmaext._comm.columns",
    ]
):
    import rmaext
    from rmaext._comm import agreement, window_record
    from rmaext._comm.columns import Told
    from rmaext._comm.host import Hello
    from rmaext._comm.provider_choice import choose
with atheris.instrument_imports(include=["rmaext._remote.ticket", "rmaext._window.remote"]):
    from rmaext._remote.ticket import Ticket
    from rmaext._window.remote import RemoteWindow


def record(data: bytes) -> None:
    """Read a record of any sort."""
    failed, payload = agreement.decode(data)
    if failed:
        agreement.error_record(payload)


def framed_record(data: bytes) -> None:
    """Read one whose lengths and checksum are right."""
    record(agreement.encode(data[1:], failed=bool(data[:1] > b"\x7f")))


def settled(data: bytes) -> None:
    """As all ranks do: what one of them says of its failure is raised."""
    try:
        agreement.settle([agreement.encode(b""), agreement.encode(data, failed=True)], None)
    except rmaext.KeyRecordError:
        pass
    except Exception as exc:
        if not str(exc).startswith("rank 1: "):  # it is not the error that was sent
            raise


def window(data: bytes) -> None:
    """Read what a window is on a rank."""
    it = window_record.WindowRecord.unpack(data)
    if window_record.WindowRecord.unpack(it.pack()) != it:
        raise RuntimeError(f"{it} is read as something else")


class _Ranks:
    """What a group does: here ranks 1 to 3 send what they like."""

    def __init__(self, *others: bytes) -> None:
        self._others = others

    def gather_whole(self, record: bytes) -> tuple[bytes, np.ndarray]:
        """Return all records, and their lengths."""
        records = [record, *self._others]
        return b"".join(records), np.array([len(it) for it in records], np.int32)


_OWN = window_record.WindowRecord(800, 16, 3, "<f8", bytes(8), 4096, (10, 10))


def columns(data: bytes) -> None:
    """Read what all ranks have sent in one pass, and one by one: it is the same."""
    payloads = [data[1:]] * 3
    if data[:1] < b"\x80" and len(data) > 1:  # with a byte changed
        k = 1 + data[0] % (len(data) - 1)
        payloads[1] = data[1:k] + bytes([data[k] ^ 1]) + data[k + 1 :]
    records = [agreement.encode(it, failed=it[:1] == b"{") for it in payloads]
    try:
        told = Told.by(_Ranks(*records), lambda: (_OWN, 8))
    except Exception as exc:
        if str(exc).startswith(("rank", "[EPROTO]")):
            return
        raise
    found = told.records(0, 8)
    c = told.columns()
    for rank, payload in enumerate([_OWN.pack(), *payloads]):
        one = window_record.WindowRecord.unpack(payload)
        at = 0 if told.all.same & rmaext._native._lib.lib.RMAEXT_SAME_KEY else rank * c.key_len
        if (
            (one.size, one.shape, one.access, one.parts, one.address % 64)
            != (found.size[rank], found.shape[rank], *_rest(found, rank))
            or (one.size and one.key != bytes(c.keys[at : at + c.key_len]))
            or math.prod(one.shape) * 8 != one.size
        ):
            raise RuntimeError(f"{one} is read as something else")


def _rest(found: Any, rank: int) -> tuple[int, ...]:
    return found.access[rank], found.parts[rank], found.align[rank]


def hello(data: bytes) -> None:
    """Read what a rank says of its host, and choose endpoints with it."""
    it = Hello.parse(data)
    for scope in ("host", "network"):
        try:
            choose([it, it], scope)
        except (rmaext.NoProviderError, ValueError):
            pass


def ticket(data: bytes) -> None:
    """Read a blob."""
    it = Ticket.parse(data)
    if Ticket.parse(it.pack()) != it:
        raise RuntimeError(f"{it} is read as something else")
    far = RemoteWindow.__new__(RemoteWindow)
    far._describe(it)
    far._closed = True


def framed_ticket(data: bytes) -> None:
    """Read one whose length and checksum are right."""
    body = struct.pack("<4sII", b"rmxT", 1, len(data)) + data
    ticket(body + struct.pack("<I", zlib.crc32(body)))


DECODERS: list[Callable[[bytes], None]] = [
    *(record, framed_record, settled, window, hello, ticket, framed_ticket, columns),
]


def one(data: bytes) -> None:
    """Give some bytes to a decoder."""
    if not data:
        return
    try:
        DECODERS[data[0] % len(DECODERS)](data[1:])
    except rmaext.KeyRecordError:
        pass


_JSON = [DECODERS.index(it) for it in (settled, hello, framed_ticket)]
_VALUES = (
    *(None, True, 0, -1, 1.5, 2**63, 2**64, "", "O", "ab" * 16, "f8,f8", "<M8[ns]", "127.0.0.1"),
    *([], [[]], {}, [[["t", "n"], "<i4", [2]]], [["a", "<i4"], ["a", "<i4"]], "\0", "\ud800"),
)


def _change(it: Any, rng: random.Random) -> Any:
    """Return JSON with something in it changed."""
    if isinstance(it, dict) and it and rng.random() < 0.9:
        key = rng.choice(sorted(it))
        if rng.random() < 0.05:
            return {k: v for k, v in it.items() if k != key}
        return it | {key: _change(it[key], rng)}
    if isinstance(it, list) and it and rng.random() < 0.7:
        at = rng.randrange(len(it))
        return [*it[:at], _change(it[at], rng), *it[at + 1 :]] + it[: rng.randrange(2)]
    if isinstance(it, str) and rng.random() < 0.5:
        text = bytearray(it.encode("utf-8", "surrogatepass"))
        return atheris.Mutate(bytes(text), len(text) + 8).decode(errors="replace")
    if isinstance(it, int) and rng.random() < 0.5:
        return it + rng.choice((-1, 1, 8, 1 << 32, 1 << 63))
    return rng.choice(_VALUES)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Change bytes, or what they mean where they are JSON."""
    rng = random.Random(seed)
    if data and data[0] % len(DECODERS) in _JSON and rng.random() < 0.8:
        with contextlib.suppress(ValueError, RecursionError):
            changed = json.dumps(_change(json.loads(data[1:]), rng)).encode()
            return (data[:1] + changed)[:most]
    made: bytes = atheris.Mutate(data, most)
    return made


if __name__ == "__main__":
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()
