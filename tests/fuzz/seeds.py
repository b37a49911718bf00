# SPDX-License-Identifier: BSD-3-Clause
"""Write what the fuzzers start from, good messages and records: seeds.py FOLDER."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False

from rmaext._comm import agreement, window_record  # noqa: E402
from rmaext._comm.host import Hello  # noqa: E402
from rmaext._fabric.library import Candidate  # noqa: E402
from rmaext._remote import ticket  # noqa: E402
from rmaext._remote.ticket import ORDER, Ticket  # noqa: E402
from rmaext._runtime.config import Config  # noqa: E402

PUT, GET, UPDATE = range(3)
SUM, NO_OP, CSWAP = 2, 10, 12
UINT64, LONG_DOUBLE = 7, 12
ROW, ELEMENTS, LOOPS = 1, 2, 3
MANY = 7  # of messages.c: its first byte chooses what the bytes are

_LO = Candidate("tcp;ofi_rxm", "lo", "lo", "127.0.0.1", 8)
_ETH = Candidate("tcp;ofi_rxm", "eth0", "eth0", "10.0.0.2", 24)


def request(*items: bytes) -> bytes:
    """Return a request of these items, as struct rmx_request_header has it."""
    head = struct.pack("=II16sQQIBB2x", 0x33516D72, 1, b"", 1, 0, len(items), 0, 0)
    padded = (it.ljust((len(it) + 15) // 16 * 16, b"\0") for it in items[:-1])
    return head + b"".join(padded) + items[-1]


def item(form: int, count: int, body: bytes, **given: int) -> bytes:
    """Return an item, as struct rmx_item has it, with its places and values."""
    it = {"offset": 0, "unit": 1, "kind": PUT, "op": 0, "type": 0, "flags": 0, "slot": 0, **given}
    names = ("unit", "kind", "op", "type", "flags", "slot")
    head = struct.pack("=QQIBBBBHB5x", it["offset"], count, *(it[name] for name in names), form)
    return head + body


def messages() -> list[bytes]:
    """Return inputs of messages.c."""
    eight, values = struct.pack("=4Q", 8, 64, 128, 72), struct.pack("=4Q", 1, 2, 3, 4)
    update = {"kind": UPDATE, "op": SUM, "type": UINT64, "unit": 8}
    loops = struct.pack("=3Qqq", 1, 64, 0, 4, 8)
    row = item(ROW, 16, bytes(16), offset=64)
    swap = {**update, "op": CSWAP, "flags": 1}
    no_op = {**update, "op": NO_OP, "flags": 1}
    wide = {**update, "unit": 16, "type": LONG_DOUBLE}
    sent = [
        request(item(ELEMENTS, 4, eight + values, unit=8)),
        request(item(ELEMENTS, 4, eight, kind=GET, unit=8, flags=1)),
        request(item(ELEMENTS, 4, eight + values, flags=1, **update)),
        request(item(ELEMENTS, 2, eight[:16] + values, **swap)),
        request(item(LOOPS, 4, loops + values, unit=8)),
        request(item(LOOPS, 4, loops, kind=GET, unit=8, flags=1)),
        request(item(LOOPS, 4, loops + values, **update)),
        request(row, item(ROW, 1, values[:8], offset=128, **update)),
        request(
            item(ROW, 1, values[:16], offset=64, **swap), item(ROW, 1, b"", offset=72, **no_op)
        ),
        request(item(ELEMENTS, 4, eight, **no_op), row),
        request(item(ROW, 2, bytes(32), offset=64, **wide)),
        request(item(ROW, 0, b"")),
        request(item(ROW, 8, bytes(8), flags=2, slot=3)),
    ]
    found = []
    for message in sent:
        for token in range(5):
            found.append(bytes([0, token, 2 + 32, 0, 0]) + message)
        found.append(bytes([16, 3, 1 + 2, 0, 0]) + message)
    introduction = (
        bytes(16) + struct.pack("=H", 16) + struct.pack("=HHI8x", 2, 9, 1).ljust(238, b"\0")
    )
    client = sent[-2] + introduction
    found += [bytes([0, 3, how, 0, 0]) + client for how in (8, 8 + 16, 8 + 16 + 64)]
    for size in (0, 8, 64):
        answer = struct.pack("=IiQ16s", 0x32416D72, 0, 0, b"") + bytes(size)
        found += [bytes([mode, 7, 0, 2, 8]) + answer for mode in (2, 6, MANY)]
        found.append(bytes([MANY, 7, 0, 7, 1]) + answer)
    return found


def records() -> list[bytes]:
    """Return inputs of records.py; the first byte is the decoder's number."""
    made = Hello.make(Config.read(), "ab" * 32, candidates=[_LO, _ETH], version="1.17")
    dtypes = ("<f8", [["a", "<i4"], ["", "|V4"], ["b", "<f8", [2, 3]]], [[["t", "n"], "|u1"]])
    hello = made.pack()
    window = window_record.WindowRecord(
        800, 16, 3, "<f8", bytes(8), 4096, (10, 10), (5, 6, 7, 8), 2
    ).pack()
    error = json.dumps({"type": "ValueError", "errno": 3, "text": "words"}).encode()
    found = [
        b"\0" + agreement.encode(window),
        b"\0" + agreement.encode(error, True),
        b"\1\xff" + error,
    ]
    alone = window_record.WindowRecord(800, 16, 3, "<f8", bytes(8), 4096, (10, 10)).pack()
    found += [b"\7" + bytes([k]) + alone for k in (200, 1, 9, 17, 57, 68, 80)]
    found += [b"\1\0" + window, b"\2" + error, b"\3" + window, b"\4" + hello]
    for dtype, unit in zip(dtypes, (8, 56, 1), strict=True):
        it = Ticket(
            order=ORDER,
            scope="host",
            net=made.net,
            node="",
            pids=made.pids,
            pid=made.pid,
            started=made.started,
            beacon="ab" * 32,
            endpoint=_LO,
            address="02000000" * 4,
            secret="cd" * 16,
            token="ef" * 16,
            name="1[2:3]",
            size=6 * unit,
            access=3,
            align=8,
            dtype=dtype,
            shape=[2, 3],
        )
        found += [b"\5" + it.pack(), b"\6" + ticket._open(it.pack())]
    return found


def columns() -> list[bytes]:
    """Return inputs of columns.c."""
    plain = window_record.WindowRecord(800, 16, 3, "<f8", bytes(8), 4096, (10, 10), (5, 6, 7, 8), 2)
    pair = plain, plain._replace(size=400, shape=(50,), key=b"other ky", access=1)
    none = plain._replace(size=0, shape=(0,), key=b"")
    sent = [agreement.encode(it.pack()) for it in (*pair, none)]
    found = []
    # which ranks are neighbours: all, or the last
    all_, last = 4 + 8 + 64 + 128, 128
    for byte in (16, 24, 32, 72, 99, 115, 255):
        found.append(bytes([3 + 16 + 32 + last, 8, byte]) + sent[0])
    found += [bytes([1 + 16 + all_, 8, len(sent[0])]) + sent[0] + it for it in sent]
    found += [bytes([0, 8, 0]) + it for it in sent]
    return found


def main(folder: Path) -> None:
    """Write them, a file each."""
    for make in (messages, columns, records):
        name, inputs = make.__name__, make()
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / name / f"seed-{number}").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
