# SPDX-License-Identifier: BSD-3-Clause
"""Records on the wire, and their agreed exchange.

Every rank sends a record in every exchange, one that failed sends its error,
so that a collective call fails on all ranks or on none. A record is a frame
around a payload; whatever arrives is checked in full before it is used.
"""

from __future__ import annotations

import errno
import json
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from .._runtime.failures import of_all, pack, unpack
from .._runtime.reports import numbers
from ..errors import KeyRecordError, RmaError

__all__ = ["WindowRecord", "agree", "decode", "encode"]

MAGIC = b"rmx1"
LIMIT = 1 << 16  # bytes of a record: more is an error, not an allocation
# magic, native byte order, pointer bytes, status, payload length, crc32
_FRAME = struct.Struct("<4sBBBxII")
_ORDER = 1 if sys.byteorder == "little" else 2
_POINTER = struct.calcsize("P")
_OK, _FAILED = 0, 1

Gather = Callable[[bytes], Sequence[bytes]]


def encode(payload: bytes, failed: bool = False) -> bytes:
    """Return the frame around a payload."""
    if len(payload) + _FRAME.size > LIMIT:
        raise KeyRecordError(errno.EMSGSIZE, f"record of {len(payload)} bytes is too long")
    status = _FAILED if failed else _OK
    head = (MAGIC, _ORDER, _POINTER, status, len(payload), zlib.crc32(payload))
    return _FRAME.pack(*head) + payload


def _malformed(what: str) -> NoReturn:
    raise KeyRecordError(errno.EPROTO, f"malformed record: {what}")


def decode(record: bytes) -> tuple[bool, bytes]:
    """Return whether the sender failed, and its payload; KeyRecordError if malformed."""
    if not _FRAME.size <= len(record) <= LIMIT:
        _malformed(f"{len(record)} bytes")
    magic, order, pointer, status, length, crc = _FRAME.unpack_from(record)
    payload = record[_FRAME.size :]
    if magic != MAGIC:
        _malformed(f"begins with {magic!r}; do all ranks run the same version of rmaext?")
    if (order, pointer) != (_ORDER, _POINTER):
        _malformed("from a machine of another byte order or word size")
    if status not in (_OK, _FAILED):
        _malformed(f"status {status}")
    if length != len(payload) or crc != zlib.crc32(payload):
        _malformed("length or checksum do not match")
    return status == _FAILED, payload


def blame(ranks: Sequence[int], error: type[Exception], text: str) -> Exception:
    """Return an error that names the ranks at fault, for all ranks to raise."""
    message = f"{numbers(ranks)}: {text}"
    if issubclass(error, RmaError):
        return of_all(error(errno.EINVAL, message))
    return of_all(error(message))


def succeeded(payload: bytes = b"") -> bytes:
    """Return the record of a rank that is well."""
    return encode(payload)


def failed(error: Exception) -> bytes:
    """Return the record of a rank that has failed."""
    return encode(json.dumps(pack(error)).encode(), failed=True)


def attempt(produce: Callable[[], bytes]) -> tuple[bytes, Exception | None]:
    """Run `produce`; return its record or its error's, and the error."""
    try:
        return succeeded(produce()), None
    except Exception as exc:
        return failed(exc), exc


def settle(records: Sequence[bytes], own: Exception | None) -> list[bytes]:
    """Return all ranks' payloads, or raise the same error on all.

    It is that of the lowest rank that failed, in words that name all of them.
    """
    payloads: list[bytes] = []
    failures: dict[int, dict[str, Any]] = {}
    for rank, record in enumerate(records):
        try:
            bad, payload = decode(record)
            payloads.append(payload)
            if bad:
                failures[rank] = error_record(payload)
        except KeyRecordError as exc:
            failures[rank] = pack(exc)
    if failures:
        first = failures[min(failures)]
        text = f"{numbers(sorted(failures))}: {first['text']}"
        raise of_all(unpack(first, text)) from own
    return payloads


def agree(gather: Gather, produce: Callable[[], bytes]) -> list[bytes]:
    """Run `produce` on every rank and return every rank's payload.

    Collective over `gather`. If it raises on some ranks, all raise.
    """
    record, own = attempt(produce)
    return settle(gather(record), own)


T = TypeVar("T")


def parse_all(parse: Callable[[bytes], T], payloads: Sequence[bytes]) -> list[T]:
    """Parse all ranks' payloads; KeyRecordError names the ranks that sent nonsense."""
    parsed: list[T] = []
    wrong: dict[int, KeyRecordError] = {}
    for rank, payload in enumerate(payloads):
        try:
            parsed.append(parse(payload))
        except KeyRecordError as exc:
            wrong[rank] = exc
    if wrong:
        raise blame(list(wrong), KeyRecordError, str(wrong[min(wrong)]))
    return parsed


def error_record(payload: bytes) -> dict[str, Any]:
    """Decode the payload of a rank that failed."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        _malformed("no error in it")
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        _malformed("no error in it")
    return fields


# size, base, address, block, access, lengths of shape, dtype and key, parts, fresh;
# csrc/win/window_record.c reads them, too
_HEAD = struct.Struct("<QQQqQQQBBHHIB")


class WindowRecord(NamedTuple):
    """What the others must know about one rank's part of a window."""

    size: int  # bytes
    base: int  # address the provider wants added to offsets
    access: int
    dtype: str  # as np.dtype.descr, in text
    key: bytes
    address: int = 0  # in its process
    shape: tuple[int, ...] = ()
    block: tuple[int, int, int, int] = (-1, 0, 0, 0)  # of its arena; -1: elsewhere
    parts: int = 0  # arrays that the window has there, this being the first; 0: not a list
    fresh: bool = False  # the first of this communicator in that part of the arena

    def pack(self) -> bytes:
        """Return the payload of a record."""
        dtype = self.dtype.encode()
        head = _HEAD.pack(
            *(self.size, self.base, self.address, *self.block),
            *(self.access, len(self.shape), len(dtype), len(self.key), self.parts, self.fresh),
        )
        shape = struct.pack(f"<{len(self.shape)}Q", *self.shape)
        return head + shape + dtype + self.key

    @classmethod
    def unpack(cls, payload: bytes) -> WindowRecord:
        """Decode a payload; KeyRecordError if malformed."""
        if len(payload) < _HEAD.size:
            _malformed(f"window record of {len(payload)} bytes")
        fields = _HEAD.unpack_from(payload)
        size, base, address, *block, access, n_shape, n_dtype, n_key, parts, fresh = fields
        body = payload[_HEAD.size :]
        if len(body) != 8 * n_shape + n_dtype + n_key:
            _malformed("lengths inside the window record do not match")
        if not access & 3 or access > 7 or fresh > 1:
            _malformed("window record out of range")
        if size + base >= 1 << 64 or size + address >= 1 << 64:
            _malformed("window record out of range")
        shape = struct.unpack_from(f"<{n_shape}Q", body)
        if max(shape, default=0) >= 1 << 63:
            _malformed("shape of the window")
        try:
            dtype = body[8 * n_shape : 8 * n_shape + n_dtype].decode()
        except UnicodeDecodeError:
            _malformed("dtype of the window")
        key = body[8 * n_shape + n_dtype :]
        return cls(size, base, access, dtype, key, address, shape, tuple(block), parts, bool(fresh))


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a text that two dtypes share if and only if they are the same layout."""
    return repr(dtype.descr) if dtype.fields else dtype.str
