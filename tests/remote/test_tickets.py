# SPDX-License-Identifier: BSD-3-Clause
"""Tickets: damaged, forged and of other versions."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from clients import forge, refuses

import rmaext
from rmaext import RemoteWindow
from rmaext._remote.ticket import Ticket


def frame(payload: bytes, magic=b"rmxT", version=2, length=None) -> bytes:
    body = struct.pack("<4sII", magic, version, len(payload) if length is None else length)
    return body + payload + struct.pack("<I", zlib.crc32(body + payload))


def test_ticket_round_trip(alone):
    blob = alone.export()
    it = Ticket.parse(blob)
    assert it.pack() == blob
    assert len(blob) < 2048
    assert Ticket.parse(bytearray(blob)) == it
    assert alone.export() == blob  # and no second grant
    assert (it.size, it.access, it.shape, it.scope) == (64, 3, [8], "host")
    assert it.endpoint.address.startswith("127.")


def test_damaged_tickets(alone):
    blob = alone.export()
    for bit in range(0, 8 * len(blob)):
        bad = bytearray(blob)
        bad[bit // 8] ^= 1 << bit % 8
        refuses(lambda bad=bad: RemoteWindow.attach(bytes(bad)), rmaext.KeyRecordError)
    for end in range(len(blob)):
        refuses(lambda end=end: RemoteWindow.attach(blob[:end]), rmaext.KeyRecordError)
    refuses(lambda: RemoteWindow.attach(blob + b"x"), rmaext.KeyRecordError)
    refuses(lambda: RemoteWindow.attach(bytes(1 << 17)), rmaext.KeyRecordError)
    for it in ("text", None, 3, np.zeros(3)):
        refuses(lambda it=it: RemoteWindow.attach(it), TypeError)


def test_other_versions(alone):
    payload = alone.export()[12:-4]
    assert Ticket.parse(frame(payload)).size == 64
    for bad, why in (
        (frame(payload, version=3), "version 3"),
        (frame(payload, magic=b"rmx1"), "begins with"),
        (frame(payload, length=3), "length"),
        (frame(payload.replace(b'"little"', b'"big"')), "byte order"),
    ):
        refuses(lambda bad=bad: Ticket.parse(bad), rmaext.KeyRecordError, why)


BAD = {
    "order": ["", 1, "middle"],
    "scope": ["", "world", None],
    "pid": [-1, 1.5, True, "1", 1 << 63],
    "beacon": ["", "zz", "ab"],
    "endpoint": [None, [], {}, {"provider": 1}],
    "address": ["", "0", "ab" * 239],
    "secret": ["", "ab", 3],
    "token": ["ab" * 15, None],
    "size": [63, -1, 1 << 63],
    "access": [0, 4],
    "align": [64, -1],
    "dtype": [
        "O",
        "V0",
        "x",
        "",
        3,
        None,
        [],
        [[]],
        [["a"]],
        [["a", "O"]],
        ["f8"],
        "f8,f8",
    ],
    "shape": [[7], [-8], [1 << 63], [2.0, 4], 8, "8", None, [1] * 65, {}],
}


@pytest.mark.parametrize("field", BAD)
def test_nonsense_in_tickets(alone, field):
    record = json.loads(alone.export()[12:-4])
    for value in BAD[field]:
        changed = frame(json.dumps(record | {field: value}).encode())
        refuses(lambda it=changed: Ticket.parse(it), rmaext.KeyRecordError)
    less = {key: it for key, it in record.items() if key != field}
    refuses(lambda: Ticket.parse(frame(json.dumps(less).encode())), rmaext.KeyRecordError)


@pytest.mark.parametrize("payload", [b"", b"[]", b"3", b"{}", b"nonsense", b"[" * 10000, b"\xff"])
def test_no_json(payload):
    refuses(lambda: Ticket.parse(frame(payload)), rmaext.KeyRecordError)


def test_forged_tickets(alone):
    """With a checksum that fits: refused by the owner, or before anything is sent."""
    it = Ticket.parse(alone.export("r"))
    # more than there is, and more rights: the owner looks, too
    with RemoteWindow.attach(forge(it, size=800, shape=[100], access=3)) as far:
        refuses(lambda: far.get(0, 8, 1), rmaext.BoundsError)
        assert far.get(0, 7, 1)[0] == 7
        far.put(np.ones(1), 0)
        refuses(far.flush, rmaext.AccessError)
        refuses(lambda: far.fetch_add(1.0, 0, 99), rmaext.RmaError)
    assert alone.local.tolist() == list(range(8))
    refuses(lambda: RemoteWindow.attach(forge(it, address="ab" * 16)), rmaext.RmaError)
    refuses(lambda: RemoteWindow.attach(forge(it, address="ab" * 15)), rmaext.RmaError)
    refuses(lambda: RemoteWindow.attach(forge(it, net="elsewhere")), rmaext.NotLocalError)
    none = it.endpoint._replace(provider="none")
    refuses(lambda: RemoteWindow.attach(forge(it, endpoint=none)), rmaext.NoProviderError)
    lost = forge(it, beacon="ab" * 32)
    refuses(lambda: RemoteWindow.attach(lost), rmaext.PeerLostError, "has left")
