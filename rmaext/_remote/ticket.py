# SPDX-License-Identifier: BSD-3-Clause
"""What `export` writes and `attach` reads: where some memory is, and the right to use it.

A ticket is a frame (magic, version, length, payload, crc32 of all before it) around
JSON, so that any machine can read it, if only to say why it does not fit. Whatever
arrives is checked in full before it is used.
"""

from __future__ import annotations

import errno
import json
import math
import struct
import sys
import zlib
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .._comm.host import check_candidate, check_types
from .._fabric.library import Candidate
from .._memory.arrays import check_dtype
from .._runtime.reports import dtype_name
from ..errors import KeyRecordError

__all__ = ["ORDER", "Ticket", "describe_dtype"]

MAGIC = b"rmxT"
VERSION = 2
LIMIT = 1 << 16  # bytes
ORDER = sys.byteorder
_HEAD = struct.Struct("<4sII")  # magic, version, bytes of the payload
_CRC = struct.Struct("<I")


def _malformed(what: str) -> NoReturn:
    raise KeyRecordError(errno.EPROTO, f"malformed ticket: {what}")


class Ticket(NamedTuple):
    """A part of a process's memory, for processes of other jobs."""

    order: str  # of the owner's bytes: of messages too
    scope: str  # "host" or "network"
    net: str  # network namespace
    node: str  # RMAEXT_NODE
    pids: str  # pid namespace
    pid: int
    started: int
    beacon: str
    endpoint: Candidate
    address: str  # of the endpoint, in hexadecimal, as the next two
    secret: str  # of the endpoint
    token: str  # secret of the grant
    name: str  # of the window
    size: int  # bytes
    access: int
    align: int  # of the first byte, modulo 64
    dtype: Any  # as describe_dtype() has it
    shape: list[int]

    def pack(self) -> bytes:
        """Return it as bytes."""
        facts = self._asdict() | {"endpoint": self.endpoint._asdict()}
        payload = json.dumps(facts).encode()
        body = _HEAD.pack(MAGIC, VERSION, len(payload)) + payload
        if len(body) + _CRC.size > LIMIT:
            raise KeyRecordError(errno.EMSGSIZE, f"ticket of {len(body)} bytes is too long")
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def parse(cls, blob: Any) -> Ticket:
        """Check what claims to be a ticket; KeyRecordError if it is none."""
        payload = _open(blob)
        try:
            record = json.loads(payload)
            if set(record) != set(cls._fields):
                raise ValueError("other fields")
            record["endpoint"] = check_candidate(record["endpoint"])
            ticket = cls(**record)
            check_types(ticket)
            ticket._check()
        except (TypeError, ValueError, AttributeError, RecursionError) as exc:
            raise KeyRecordError(errno.EPROTO, f"malformed ticket: {exc}") from None
        if ticket.order != ORDER:
            _malformed("from a machine of another byte order")
        return ticket

    def _check(self) -> None:
        """Raise ValueError where fields of the right types make no sense."""
        if self.scope not in ("host", "network") or self.order not in ("little", "big"):
            raise ValueError("scope or byte order")
        for text, sizes in (
            (self.secret, (16,)),
            (self.token, (16,)),
            (self.beacon, (32,)),
            (self.address, range(1, 239)),
        ):
            if len(bytes.fromhex(text)) not in sizes:
                raise ValueError("an address or a secret")
        if not 1 <= self.access <= 3 or not self.align < 64:
            raise ValueError("rights or alignment")
        shape = self.shape
        if type(shape) is not list or len(shape) > 64:
            raise ValueError("shape")
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in shape):
            raise ValueError("shape")
        if math.prod(shape) * self.element.itemsize != self.size:
            raise ValueError("shape and size do not match")

    @property
    def element(self) -> np.dtype[Any]:
        """The dtype."""
        try:
            dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_tuples(self.dtype))
            check_dtype(dtype)
            same = describe_dtype(dtype) == self.dtype
        except Exception as exc:  # NumPy has many, SyntaxError among them
            raise ValueError(f"dtype: {exc}") from None
        if not same:
            raise ValueError("dtype")
        return dtype


def _open(given: Any) -> bytes:
    """Return the payload of a frame."""
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"a ticket is bytes, not {type(given).__name__}")
    blob = bytes(given)
    if not _HEAD.size + _CRC.size <= len(blob) <= LIMIT:
        _malformed(f"{len(blob)} bytes")
    magic, version, length = _HEAD.unpack_from(blob)
    if magic != MAGIC:
        _malformed(f"begins with {magic!r}")
    body = blob[: -_CRC.size]
    if length != len(body) - _HEAD.size or _CRC.unpack(blob[-_CRC.size :])[0] != zlib.crc32(body):
        _malformed("length or checksum do not match")
    if version != VERSION:
        _malformed(f"version {version}, this is rmaext for version {VERSION}")
    return body[_HEAD.size :]


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as JSON has it: a text, or lists of fields; TypeError if it cannot be."""
    found = np.lib.format.dtype_to_descr(dtype)
    if np.lib.format.descr_to_dtype(found) != dtype:
        raise TypeError(f"dtype {dtype_name(dtype)} cannot be described to others")
    return json.loads(json.dumps(found))


def _tuples(it: Any) -> Any:
    """Undo what JSON makes of a description: its fields, titles and shapes are tuples."""
    if not isinstance(it, list):
        return it
    # fields are a list of lists; what begins otherwise is a field, or a part of one
    is_fields = all(isinstance(part, list) for part in it)
    parts = [_tuples(part) for part in it]
    return parts if is_fields else tuple(parts)
